"""A figure that a notebook shows as SVG, with its description for those who cannot see it."""

import textwrap

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ranklab.plots import RANK_COLORS, STYLE, Drawing, as_drawing

GREY = "#767676"
LETTER = 0.0145  # the width of a letter of a label, as a share of the figure


class Picture(Drawing):
    """A figure as a cell's last value: shown as SVG, or saved beside a script.

    figure, axes: matplotlib's, for whoever wants to change something. alt: what is to be seen.
    """

    def __init__(self, figure, axes, name, alt):
        self.figure, self.axes, self.name, self.alt = figure, axes, name, alt

    @property
    def svg(self):
        return as_drawing(self.figure, self.name, self.alt).svg

    def savefig(self, *args, **kwargs):
        """Save it to a file, as matplotlib does."""
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(*args, **kwargs)

    def __repr__(self):
        return f"{self.name}: {self.alt}"


def canvas(ax, height):
    """Return (figure, axes): those of `ax`, or new ones in the book's look.

    The new figure is not one of pyplot's, which would show it a second time. height: in inches.
    """
    if ax is not None:
        return ax.figure, ax
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        FigureCanvasSVG(figure)
        return figure, figure.subplots()


def color(rank):
    return RANK_COLORS[rank % len(RANK_COLORS)]


def label(ax, x, y, text):
    """Write on top of what is drawn, centered at x, y."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    ax.text(x, y, text, fontsize=8, ha="center", va="center", bbox=box, zorder=5, clip_on=True)


def rank_axis(ax, traces, below=0.5):
    """Name the rows of `ax`: one for each rank, rank 0 on top. below: room under the last one."""
    rows = len(traces)
    ax.set_ylim(rows - 1 + below, -0.6)
    named = [f"rank {t.rank}" if rows <= 8 else str(t.rank) for t in traces]
    ax.set_yticks(range(rows), named)
    if rows > 8:
        ax.set_ylabel("rank")
    for label, trace in zip(ax.get_yticklabels(), traces):
        label.set_color(color(trace.rank))
        label.set_fontweight("bold")
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)


def time_axis(ax, unit, sentences):
    """Name the time axis; below, what the figure leaves out, or does not know."""
    lines = [f"time ({unit})", *textwrap.wrap("; ".join(sentences), 64)]
    ax.set_xlabel("\n".join(lines), fontsize="small", linespacing=1.3)
