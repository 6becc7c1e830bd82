"""Utilization over time, as a figure."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ranklab.plots import RANK_COLORS, STYLE, as_drawing, pale


def utilization_plot(recordings, name="utilization"):
    """A figure of utilization over time, a panel for each recording (title -> Recording).

    Of a GPU its utilization; of a CPU the time that this process used, in percent of one core, and,
    as a line, the processes that it started. name: of the figure's file in a script.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 0.6 + 1.3 * len(recordings)), layout="constrained")
        axes = figure.subplots(len(recordings), sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, (title, recording) in zip(axes, recordings.items(), strict=True):
            _draw(ax, title, recording)
        axes[-1].set_xlabel("time (s)")
        top = 1.05 * max(map(_highest, recordings.values()))
        axes[-1].set(xlim=(0, None), ylim=(0, top))
        figure.supylabel("utilization (%)", fontsize="medium")
    return as_drawing(figure, name, _alt(recordings))


def _main_column(recording):
    return "own_percent" if "own_percent" in recording.columns else "utilization_percent"


def _draw(ax, title, recording):
    column = _main_column(recording)
    times = [0.0, *recording.time_s]
    # A reading is about the time before it. Stairs: nothing is drawn that was not measured.
    style = {"facecolor": pale(RANK_COLORS[0], 0.5), "edgecolor": RANK_COLORS[0], "fill": True}
    ax.stairs(recording[column], times, **style)
    title = f"{title}: {recording.mean(column):.0f} % on average"
    if column == "own_percent" and (recording["children_percent"] > 1).any():
        line = {"color": RANK_COLORS[1], "baseline": None, "linewidth": 1.5}
        ax.stairs(recording["children_percent"], times, **line)
        title += " (line: its workers)"
    ax.set_title(title, fontsize="medium")


def _highest(recording):
    """The largest reading that is drawn, and no less than 100."""
    readings = recording[_main_column(recording)]
    if "children_percent" in recording.columns:
        readings = np.append(readings, recording["children_percent"])
    return np.nanmax(readings, initial=100)


def _alt(recordings):
    """What is to be seen in the plot, in words, from the data."""
    parts = []
    for title, recording in recordings.items():
        column = _main_column(recording)
        low, middle, high = np.nanpercentile(recording[column], [10, 50, 90])
        parts.append(
            f"{title}: {recording.mean(column):.0f} % on average, half of the readings above "
            f"{middle:.0f} %, eight of ten between {low:.0f} and {high:.0f} %."
        )
    return "Utilization over time, one panel below the other. " + " ".join(parts)
