"""The book's figures: their look, and those that draw graphs and what ranks hold.

`RANK_COLORS` and `STYLE` are the look of all figures, `drawing` lays out a graph, `holdings` shows
which rank holds what before and after a collective, from marks that `marks_in` reads, `timetables`
what the stages of a pipeline do when. `as_drawing` makes a picture of any figure, with words for
those who cannot see it.

What stands here needs matplotlib and the standard library alone: the scripts that are made
of the chapters carry these definitions along.
"""

import html
import io
import subprocess
import sys

import matplotlib
import matplotlib.colors
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

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
    return Drawing(_labeled(run.stdout.decode(), alt), name)


def as_drawing(figure, name, alt):
    """Return a figure of matplotlib's as a picture, the same bytes for the same figure.

    name, alt: as for `drawing`.
    """
    file = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return Drawing(_labeled(file.getvalue(), alt), name)


def _labeled(svg, alt):
    """The <svg> element alone, with a description for those who cannot see it."""
    svg = svg[svg.index("<svg") :]
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)


def marks_in(number):
    """Say whose parts a mark, or a sum of marks, is made of: a list of (rank, part).

    The mark of rank r's part j is 2 ** (r + 8 * j): one bit that tells who and which.
    """
    bits = int(number)
    return [(bit % 8, bit // 8) for bit in range(bits.bit_length()) if bits >> bit & 1]


def holdings(before, after, name):
    """Draw who holds what before and after a collective: a row for a rank, a cell for a number.

    before, after: for each rank a tensor of marks (see `marks_in`), or a list of such tensors. A
        cell shows the ranks that its number came from by their colors, and says which rank's
        part it is, "2c" or, of a sum, "Σc". A zero is an empty box.
    name: the picture's name, from which a script makes its file name.
    """
    states = [
        [[marks_in(n) for n in _numbers(held)] for held in held_by] for held_by in (before, after)
    ]
    parted = any(part for state in states for held in state for cell in held for _, part in cell)
    widths = [max(1, *map(len, state)) for state in states]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 0.36 * len(before) + 0.5))
        axes = figure.subplots(1, 2, width_ratios=[width + 1 for width in widths])
        for ax, state, width, title in zip(axes, states, widths, ("before", "after")):
            _draw_state(ax, state, width, parted)
            ax.set_title(title)
        axes[1].set_yticklabels([])
    alt = f"{_told('Before', states[0], parted)} {_told('After', states[1], parted)}"
    return as_drawing(figure, name, alt)


def _draw_state(ax, state, width, parted):
    """Draw what each rank holds: `state` has the marks of each number of each rank."""
    for row, held in enumerate(state):
        for column, marks in enumerate(held):
            _draw_cell(ax, column, row, marks, _cell_name(marks, parted))
    rows = range(len(state))
    ax.set(xlim=(-0.05, width + 0.05), ylim=(len(state), -0.05), xticks=[])
    ax.set_yticks([row + 0.5 for row in rows], [f"rank {row}" for row in rows])
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _cell_name(marks, parted):
    """Name a number by its rank and its part: "2c", and "Σc" for a sum; "2" without parts."""
    who = "Σ" if len(marks) > 1 else "".join(str(rank) for rank, _ in marks)
    return who + "".join(sorted({"abcdefgh"[part] for _, part in marks})) * parted


def _told(when, state, parted):
    """Say what each rank holds, for those who cannot see it."""
    sums = {tuple(rank for rank, _ in cell) for held in state for cell in held if len(cell) > 1}
    said = []
    for row, held in enumerate(state):
        cells = [_cell_name(marks, parted) or "an empty box" for marks in held]
        if len(sums) > 1:  # then each says its own
            cells = [_with_ranks(cell, marks) for cell, marks in zip(cells, held)]
        said.append(f"rank {row} holds {', '.join(cells) or 'nothing'}")
    of = f" Σ is the sum over ranks {_listed(*sums)}." if len(sums) == 1 else ""
    return f"{when}, {'; '.join(said)}.{of}"


def _with_ranks(cell, marks):
    return f"{cell} over {_listed([rank for rank, _ in marks])}" if len(marks) > 1 else cell


def _listed(ranks):
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"


def _numbers(held):
    """All numbers in a tensor, or in a list of tensors, in one list."""
    if hasattr(held, "tolist"):
        held = held.tolist()
    if not isinstance(held, (list, tuple)):
        return [held]
    return [number for item in held for number in _numbers(item)]


def _draw_cell(ax, column, row, marks, label):
    """Draw one number: stripes in the colors of the ranks that it came from, and a label."""
    left, top, size = column + 0.04, row + 0.08, 0.92
    if not marks:
        empty = {"fill": False, "edgecolor": "#808080", "linestyle": (0, (2, 2))}
        ax.add_patch(Rectangle((left, top), size, 0.84, **empty))
    stripe = size / max(len(marks), 1)
    for k, (rank, _) in enumerate(marks):
        corner = (left + k * stripe, top)
        color = pale(RANK_COLORS[rank], 0.55)
        ax.add_patch(Rectangle(corner, stripe, 0.84, facecolor=color, edgecolor="none"))
    font = {"ha": "center", "va": "center", "fontsize": 9, "color": "black"}
    ax.text(column + 0.5, row + 0.5, label, **font)


def timetables(times, name, words=("forward", "backward")):
    """Draw what each stage of a pipeline computes when: a row for a stage, a box a computation.

    times: {title: for each stage (instruction, start, end)}, in seconds; one under the other. An
        instruction is a tuple (kind, micro-batch, chunk). Forwards, "F", are light, backwards, "B"
        and "I", are full, gradients of weights alone, "W", are faint; other kinds are left out. The
        number in a box is the micro-batch; where a row has more than 20 boxes a chunk, only
        forwards have one. Of several chunks, the later ones are drawn higher.
    name: the picture's name, from which a script makes its file name.
    words: what light, full and faint boxes are called.
    """
    last = max(end for rows in times.values() for row in rows for _, _, end in row)
    tall = [len(rows) for rows in times.values()]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 0.8 + 0.3 * len(times) + 0.37 * sum(tall)))
        axes = figure.subplots(len(times), 1, sharex=True, height_ratios=tall, squeeze=False)
        for ax, (title, rows) in zip(axes[:, 0], times.items()):
            _draw_timetable(ax, rows, last)
            ax.set_title(title, fontsize=10)
        ax.set_xlabel("time (ms)")
        looks = [{"fc": pale("C7", 0.4)}, {"fc": "C7"}, {"fc": pale("C7", 0.12), "ec": "C7"}]
        boxes = [Rectangle((0, 0), 1, 1, **look, label=word) for look, word in zip(looks, words)]
        figure.legend(handles=boxes, loc="outside upper center", ncols=3, fontsize=9)
    told = [f"{title}: {_told_timetable(rows)}" for title, rows in times.items()]
    return as_drawing(figure, name, f"Boxes over time, a row for each stage. {' '.join(told)}")


def _draw_timetable(ax, rows, last):
    chunks = 1 + max(chunk for row in rows for (_, _, chunk), _, _ in row)
    boxes = max(sum(kind in "FBIW" for (kind, *_), _, _ in row) for row in rows)
    numbered = "F" if boxes > 20 * chunks else "FBIW"
    for stage, row in enumerate(rows):
        full = RANK_COLORS[stage]
        fills = {"F": pale(full, 0.4), "B": full, "I": full, "W": pale(full, 0.12)}
        for (kind, k, chunk), start, end in row:
            if kind in fills:
                low, tall = stage + 0.4 - 0.8 * (chunk + 1) / chunks, 0.8 / chunks
                edge = full if kind == "W" else "white"
                look = {"facecolor": fills[kind], "edgecolor": edge, "linewidth": 0.6}
                ax.add_patch(Rectangle((1e3 * start, low), 1e3 * (end - start), tall, **look))
                # The axes are about 320 points wide, a digit about 0.64 of its size.
                fits = 320 / 0.64 * (end - start) / last / len(str(k))
                if fits > 3 and kind in numbered:
                    color = "white" if fills[kind] == full else "black"
                    look = {"ha": "center", "va": "center_baseline", "color": color}
                    look["fontsize"] = min(fits, 7 if chunks == 1 else 6)
                    ax.text(500 * (start + end), low + tall / 2 + 0.01, k, **look)
    ax.set_yticks(range(len(rows)), [f"stage {stage}" for stage in range(len(rows))])
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1020 * last))
    ax.grid(False, axis="y")


def _told_timetable(rows):
    """Of each stage, when it begins and ends, and which share of that it is at work."""
    parts = []
    for stage, row in enumerate(rows):
        boxes = [(start, end) for (kind, *_), start, end in row if len(kind) == 1]
        begin, end = boxes[0][0], boxes[-1][1]
        busy = sum(end - start for start, end in boxes) / (end - begin)
        span = f"{1e3 * begin:.0f} to {1e3 * end:.0f} ms"
        parts.append(f"stage {stage} from {span}, {100 * busy:.0f} % of it at work")
    return "; ".join(parts) + "."
