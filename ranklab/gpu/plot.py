"""Utilization over time, as a figure."""

import math
import textwrap
from collections import Counter

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ranklab.errors import named
from ranklab.gpu.samples import flat
from ranklab.plots import RANK_COLORS, STYLE, as_drawing, pale

LANE = 0.16  # the height of a rank's phases, as a share of the readings' below them
PHASES = "#595959"  # in the legend


def utilization_plot(recordings, name="utilization"):
    """A figure of utilization over time: of a GPU, or of a process in percent of one core.

    recordings: title -> Recording: a panel for each, in which time begins at 0. Or a list of
        Recordings, or of lists (`ranks["s"]`, `sampled(device="all")`, one of each host): a row for
        each GPU, and on the CPU for each process, all on one axis of time. (Between hosts it is as
        good as their clocks are.) Ranks that share a GPU share its row.
    name: of the figure's file in a script.

    Phases stand above the readings, a strip for each rank; what could not be read is said below.
    """
    rows = _panels(recordings) if isinstance(recordings, dict) else _cards(recordings)
    if not rows:
        raise ValueError("utilization_plot: there is no recording to draw.")
    phases = dict.fromkeys(name for row in rows for r, _ in row.members for name, *_ in r.phases)
    shades = dict(zip(phases, np.linspace(0.35, 1, max(2, len(phases)))))  # light, ..., full
    lanes, notes = max(len(row.marked) for row in rows), _notes(rows)
    top = 1.05 * max(row.highest for row in rows)
    tall = (1.3 if isinstance(recordings, dict) else 0.8) + 0.55 * LANE * lanes
    height = 0.6 + 0.3 * bool(phases) + 0.16 * len(notes) + tall * len(rows)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        axes = figure.subplots(len(rows), sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, row in zip(axes, rows, strict=True):
            _draw(ax, row)
            _draw_phases(ax, row, shades, top)
        axes[-1].set_xlabel("time (s)")
        axes[-1].set(xlim=(0, None), ylim=(0, top * (1 + LANE * lanes)))
        if tall < 1.3 or lanes:
            axes[-1].set_yticks([0, 50, 100] if top < 200 else [0, 100, 100 * (top // 100)])
        figure.supylabel("utilization (%)", fontsize="medium")
        if notes:
            figure.supxlabel("\n".join(notes), fontsize=9, x=0.02, ha="left")
        if phases:
            boxes = [
                Rectangle((0, 0), 1, 1, facecolor=pale(PHASES, share), label=phase)
                for phase, share in shades.items()
            ]
            figure.legend(handles=boxes, loc="outside upper center", ncols=3, fontsize=9)
    return as_drawing(figure, name, _alt(rows))


class _Row:
    """What is drawn of one card: its members are (recording, when it began on the axis of time)."""

    def __init__(self, title, color, members):
        self.title, self.color, self.members = title, color, members
        self.marked = [(r, start) for r, start in members if r.phases]
        # All that watched one card saw the same: the one that watched longest is drawn.
        longest, start = max(members, key=lambda member: member[0].time_s.max(initial=0.0))
        self.times = start + np.append(0.0, longest.time_s)
        own = "own_percent" in longest.columns
        self.readings = longest["own_percent" if own else "utilization_percent"]
        self.workers = longest["children_percent"] if own else np.zeros(0)
        self.known = self.readings[~np.isnan(self.readings)]
        self.highest = max(100.0, self.known.max(initial=0), self.workers.max(initial=0))
        self.said = "utilization is not known"
        if len(self.known):
            mean = longest.mean("own_percent" if own else "utilization_percent")
            self.said = f"{mean:.0f} % on average"


def _panels(recordings):
    return [_Row(title, RANK_COLORS[0], [(r.so_far(), 0.0)]) for title, r in recordings.items()]


def _cards(recordings):
    """A row for each card of a list of recordings, or of lists; those without a UUID are alone."""
    cards, each = {}, list(flat(recordings))
    first = np.nanmin([r.began for r in each] + [math.inf])
    for i, r in enumerate(each):
        start = 0.0 if math.isnan(r.began) else r.began - first
        cards.setdefault(r.about.get("uuid") or i, []).append((r.so_far(), start))
    hosts, rows = {r.about.get("host") for r in each}, []
    for members in cards.values():
        about = members[0][0].about
        ranks = [r.about["rank"] for r, _ in members if r.about.get("rank") is not None]
        number = about.get("device")
        title = _named(ranks) if ranks else "CPU" if number is None else f"GPU {number}"
        title += ", on one GPU" if len(ranks) > 1 else ""
        title += f", {about.get('host')}" if len(hosts) > 1 else ""
        color = _color((ranks or [number or 0])[0])
        rows.append(_Row(title, "black" if len(ranks) > 1 else color, members))
    return rows


def _named(ranks):
    """Short enough for a title: of many, the first and the last."""
    low, high = min(ranks), max(ranks)
    return f"ranks {low} to {high}" if 4 < len(ranks) == high - low + 1 else named(ranks)


def _color(rank):
    return RANK_COLORS[rank % len(RANK_COLORS)]


def _draw(ax, row):
    # A reading is about the time before it. Stairs: nothing is drawn that was not measured.
    style = {"facecolor": pale(row.color, 0.5), "edgecolor": row.color, "fill": True}
    ax.stairs(row.readings, row.times, **style)
    title = f"{row.title}: {row.said}"
    if (row.workers > 1).any():
        color = "black" if row.color == RANK_COLORS[1] else RANK_COLORS[1]
        ax.stairs(row.workers, row.times, color=color, baseline=None, linewidth=1.5)
        title += " (line: its workers)"
    ax.set_title(title, fontsize="medium")


def _draw_phases(ax, row, shades, top):
    """A strip above the readings for each rank that marked phases, in its color."""
    for lane, (recording, start) in enumerate(row.marked):
        rank = recording.about.get("rank")
        color = row.color if rank is None else _color(rank)
        for phase, share in shades.items():
            spans = [(start + a, b - a) for name, a, b in recording.phases if name == phase]
            place = top * (1 + LANE * (lane + 0.1)), top * 0.8 * LANE
            ax.broken_barh(spans, place, facecolor=pale(color, share))


def _notes(rows):
    """All notes, each once and with the rows that it is about, in lines."""
    said = {}
    for row in rows:
        for note in dict.fromkeys(note for r, _ in row.members for note in r.notes):
            said.setdefault(note, []).append(row.title)
    notes = [
        note if len(titles) == len(rows) else f"{'; '.join(titles)}: {note}"
        for note, titles in said.items()
    ]
    return [line for note in notes for line in textwrap.wrap(note, 76)]


def _alt(rows):
    """What is to be seen in the plot, in words, from the data."""
    parts = ["Utilization over time, one panel below the other."]
    for row in rows:
        said = f"{row.title}: {row.said}"
        if len(row.known):
            low, middle, high = np.percentile(row.known, [10, 50, 90])
            said += f", half of the readings above {middle:.0f} %, eight of ten between "
            said += f"{low:.0f} and {high:.0f} %"
        parts.append(said + ".")
    for row in rows:
        for recording, _ in row.marked:
            whole, took = recording.time_s.max(initial=1e-9), Counter()
            for phase, start, end in recording.phases:
                took[phase] += 100 * (end - start) / whole
            rank = recording.about.get("rank")
            shares = ", ".join(f"{phase} {share:.0f} %" for phase, share in took.items())
            title = row.title if rank is None else named([rank])
            parts.append(f"Phases of {title}: {shares} of the time.")
    return " ".join([*parts, *_notes(rows)])
