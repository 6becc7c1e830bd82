"""The book's figures: its colors, its sizes, and drawings of graphs.

What stands here needs matplotlib and the standard library alone: the scripts that are made
of the chapters carry these definitions along.
"""

import html
import subprocess
import sys

import matplotlib.colors

# Rank r has the same color in every figure. Okabe and Ito's palette, which stays distinct
# for color-blind readers, with its yellow and black replaced by colors seen on white.
RANK_COLORS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C510A",
    "#595959",
]

# For matplotlib.rcParams. The size is chosen for a phone: 5.2 inches of figure on 350
# pixels leave 11 point type readable.
STYLE = {
    "axes.prop_cycle": f"cycler('color', {RANK_COLORS})",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "figure.figsize": (5.2, 3.2),
    "font.size": 11,
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "savefig.facecolor": "white",
    "svg.hashsalt": "ranklab",
}


def pale(color, share=0.25):
    """Return `color` mixed with white, as an opaque color: `share` of it is the color.

    Transparent colors and hatching do not go together in an SVG.
    """
    rgb = matplotlib.colors.to_rgb(color)
    return tuple(1 - share * (1 - part) for part in rgb)


# torch and Graphviz in one process crash, so Graphviz gets a process of its own.
_RENDER = """
import sys, pygraphviz
sys.stdout.buffer.write(pygraphviz.AGraph(sys.stdin.read()).draw(format="svg", prog="dot"))
"""


class Drawing:
    """An SVG picture that a notebook shows below a cell."""

    def __init__(self, svg, name):
        self.svg = svg
        self.name = name

    def _repr_svg_(self):
        return self.svg

    def __repr__(self):
        return f"<drawing {self.name}>"


def drawing(dot, name, alt):
    """Lay out a graph with Graphviz and return it as a picture.

    dot: the graph in Graphviz's DOT language (a string).
    name: the picture's name, from which a script makes its file name.
    alt: what is to be seen, for those who cannot see it.

    Raises ValueError if Graphviz cannot read the graph.
    """
    run = subprocess.run(
        [sys.executable, "-c", _RENDER], input=dot.encode(), capture_output=True, timeout=60
    )
    if run.returncode:
        raise ValueError(f"Graphviz could not draw {name!r}: {run.stderr.decode().strip()}")
    svg = run.stdout.decode()
    svg = svg[svg.index("<svg") :]
    label = f'<svg role="img" aria-label="{html.escape(alt)}"'
    return Drawing(svg.replace("<svg", label, 1), name)
