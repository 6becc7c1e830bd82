# Chapter 8 of Many Ranks, One Model, as one script. Generated from book/08_all_reduce.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 08_all_reduce.py
#     torchrun --standalone --nproc-per-node 4 08_all_reduce.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 08_all_reduce.py
#     mpiexec -n 4 python 08_all_reduce.py
#
# pip install matplotlib numpy torch vl-convert-python  (for mpiexec also: mpich mpi4py)

import functools
import html
import itertools
import json
import mmap
import os
import pickle
import re
import socket
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.patches import Rectangle
from torch.profiler import record_function


def start_ranks():
    """Started by hand: let torchrun start this file once for each rank."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    n = os.environ.get("RANKLAB_RANKS", "4")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share the processor
    try:
        torchrun(["--standalone", "--nproc-per-node", n, *sys.argv])
    except ChildFailedError:  # the rank itself has said why
        sys.exit(1)
    sys.exit()


def ask_mpi():
    """Started by mpiexec: note in the environment what torchrun would have noted there."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    with socket.socket() as free:
        free.bind(("", 0))
        name = "127.0.0.1" if host.size == world.size else socket.gethostname()
        address, port = world.bcast((name, free.getsockname()[1]))
    told = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": host.rank}
    told |= {"LOCAL_WORLD_SIZE": host.size, "MASTER_ADDR": address, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})


def form_groups():
    """Form the process group, and a second one that moves values to and from rank 0.

    The second one is patient: rank 0 may compute alone for long.
    """
    global driver
    number = store.add(f"groups of rank {rank}", 1)
    own = dist.PrefixStore(f"group {number}", store)
    own.set(f"rank {rank}", "here")  # no clock runs before all ranks are here
    own.wait([f"rank {r}" for r in range(world_size)], timedelta(minutes=30))
    limit = timedelta(seconds=10)
    defaults = dist.distributed_c10d  # what dist.new_group() goes by, if not told otherwise
    defaults.default_pg_timeout = limit
    if defaults.default_pg_nccl_timeout is not None:  # there is NCCL in this build of torch
        defaults.default_pg_nccl_timeout = limit
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=limit)
    driver = dist.new_group(backend="gloo", timeout=timedelta(hours=1))


if not os.environ.keys() & {"RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}:
    start_ranks()
if "RANK" not in os.environ:
    ask_mpi()


if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"] and sys.platform != "win32":
    # All ranks are on this machine: no message needs to leave it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device, backend = torch.device("cpu"), "gloo"
store = next(dist.rendezvous("env://"))[0]
form_groups()


playing = "kernel"
APART = ["core", "held", "names", "nbytes", "table", "way"]  # the kernel and the ranks have one each
held_by = {"ranks": {}}


def play(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
    return before


# === All-reduce: one sum for all, as fast as it can be ================================

# Every training step ends with the same sum over all ranks. What is the least that it
# can cost, and who gets near that?
#
# 35 minutes to read, 11 predictions · 20 seconds to run · stands on chapter 6 and
# chapter 7
#
# Data parallelism adds up every gradient over all ranks, in every step: an all-reduce.
# Chapter 12 hides a part of that time behind the backward pass. The rest comes on top.
# At the end of this chapter you have written an all-reduce in six ways. You can say of
# each how many rounds it takes and what every rank sends, you know what a wrong one
# looks like, and you choose between them as libraries do: by measuring.

if rank == 0:
    n = world_size

# From ranklab.taught.collectives:


def recv(box, src, group=None):
    """Fill `box`, any view, with what rank src of the group sends."""
    packed = box.contiguous()  # box itself, if it is contiguous
    dist.recv(packed, group=group, group_src=src)
    if packed is not box:
        box.copy_(packed)


def sendrecv(outgoing, dst, incoming, src, group=None):
    """Send `outgoing` to rank dst, fill `incoming` from rank src, at once.

    For Gloo and MPI; NCCL wants both started by dist.batch_isend_irecv.
    """
    handle = dist.isend(outgoing.contiguous(), group=group, group_dst=dst)
    recv(incoming, src, group)
    handle.wait()


# --- Around a ring --------------------------------------------------------------------

# The first way that comes to mind: all send their tensors to rank 0, which adds them
# and sends the sum back. Then rank 0 moves everybody's tensor, twice, while the others
# wait. The ring shares that work out: nobody adds all of it.
#
# Cut the tensor into n parts. In step s, counted from 0, rank r sends part r − s to its
# right neighbor and gets part r − s − 1 from its left one, both counted around the
# circle. Of four ranks, rank 0 sends part 0, then 3, then 2. In the first n − 1 steps
# it adds what comes to its own part. That is a reduce-scatter. In the other n − 1 steps
# it keeps what comes, and that is an all-gather. Chapter 7 called the two one after the
# other, and its sums went to the left. Here they are one loop, and everything goes to
# the right.


def ring_step(parts, step, members, me, box):
    """Part me - step goes to the right, part me - step - 1 comes in."""
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    outgoing = parts[(me - step) % n]
    mine = parts[(me - step - 1) % n]
    if step < n - 1:  # what comes is a sum under way: add mine to it
        incoming = box[: len(mine)]
        sendrecv(outgoing, right, incoming, left)
        mine += incoming
    else:  # what comes is a total
        sendrecv(outgoing, right, mine, left)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# From ranklab.plots:

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

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)

# `members` are the ranks that take part, `me` is our own place among them, and `box` is
# room for what comes and is still to be added.
#
# To see the sums travel, let every number say whose it is, as in chapter 7, and keep a
# copy after each step.
#
# Predict: Four ranks, four parts each. After the third step, how many parts are
# complete, and where do they lie?


def marks(n):
    """n numbers of this rank, each with a bit of its own."""
    bits = [2.0 ** (rank + 8 * j) for j in range(n)]
    return torch.tensor(bits, dtype=torch.float64)


everyone()
if rank == 0:
    print("\n## Around a ring\n")

play("ranks")

x = marks(world_size)
states, everybody = [x.clone()], range(world_size)
for step in range(2 * (world_size - 1)):
    box = torch.empty(1, dtype=x.dtype)
    ring_step(x.tensor_split(world_size), step, everybody, rank, box)
    states.append(x.clone())


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


SCRIPT = Path(__file__)
pictures = []


def file_beside(name):
    """The path of an SVG file beside this script, for a picture of this name."""
    name = first = re.sub(r"[^\w.-]+", "-", str(name))
    number = 1
    while name in pictures:
        number += 1
        name = f"{first}-{number}"
    pictures.append(name)
    path = SCRIPT.with_name(f"{SCRIPT.stem}-{name}.svg")
    print(f"saved beside this script: {path.name}")
    return path


# From ranklab.plots:


def pale(color, share=0.25):
    """Return `color` mixed with white, as an opaque color: `share` of it is the color.

    Transparent colors and hatching do not go together in an SVG.
    """
    rgb = matplotlib.colors.to_rgb(color)
    return tuple(1 - share * (1 - part) for part in rgb)


def marks_in(number):
    """Say whose parts a mark, or a sum of marks, is made of: a list of (rank, part).

    The mark of rank r's part j is 2 ** (r + 8 * j): one bit that tells who and which.
    """
    bits = int(number)
    return [(bit % 8, bit // 8) for bit in range(bits.bit_length()) if bits >> bit & 1]


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


def draw_cell(ax, column, row, number, n):
    """A cell with a stripe for each rank that is in it; framed if all are."""
    marks = marks_in(number)
    full = len(marks) == n
    width = 0.84 / max(1, len(marks))
    for k, (r, _) in enumerate(marks):
        corner = column + 0.08 + k * width, row + 0.08
        color = pale(RANK_COLORS[r], 0.65)
        ax.add_patch(Rectangle(corner, width, 0.84, facecolor=color))
    line = "-" if marks else (0, (2, 2))
    ax.add_patch(Rectangle((column + 0.08, row + 0.08), 0.84, 0.84, fill=False,
                           edgecolor="black" if full else "#A0A0A0",
                           linewidth=1.8 if full else 0.6, linestyle=line))


def draw_grid(ax, rows, n, names=None):
    """A row for each rank, a column for each number."""
    for row, numbers in enumerate(rows):
        for column, number in enumerate(numbers):
            draw_cell(ax, column, row, number, n)
    ax.set(xlim=(-0.05, len(rows[0]) + 0.05), ylim=(len(rows) + 0.05, -0.05))
    ax.set(xticks=[], yticks=[], aspect="equal")
    if names:
        ax.set_yticks([row + 0.5 for row in range(len(rows))], names)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)


states_by_rank = to_rank_0(states)
if rank == 0:
    play("kernel")
    after_steps = [
        [held.tolist() for held in of_all] for of_all in zip(*states_by_rank)
    ]
    fig, axes = plt.subplots(2, n, num="ring", figsize=(5.2, 3.1))
    axes[1, 0].axis("off")
    shown = [*axes[0], *axes[1, 1:]]
    for step, (ax, grid) in enumerate(zip(shown, after_steps)):
        draw_grid(ax, grid, n, [str(r) for r in range(n)] if step == 0 else None)
        does = "add" if step < n else "copy"
        ax.set_title(f"step {step}: {does}" if step else "start", fontsize=9)
    axes[0, 0].set_ylabel("rank", fontsize=9)
    save_figures()

if rank == 0:
    whole = [sum(2.0 ** (r + 8 * j) for r in range(n)) for j in range(n)]
    for r, numbers in enumerate(after_steps[n - 1]):
        assert [j for j in range(n) if numbers[j] == whole[j]] == [(r + 1) % n]
    assert after_steps[-1] == [whole] * n

# From ranklab.playable:

VEGA_LITE = "5.20"  # what draws it: a script's picture, and the pages' (bookmaker/site/stage.py)

MOST = 20_000  # rows: a page with more is slow to load

# Names of Vega's own signals: a control cannot have one of these.
_TAKEN = {"width", "height", "padding", "autosize", "background", "cursor"} | {
    "datum", "event", "item", "parent"}  # fmt: skip

_BASE = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "config": {
        "font": "sans-serif",
        "axis": {
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridOpacity": 0.4,
        },
        "legend": {"labelFontSize": 12, "orient": "bottom", "columns": 2, "title": None},
        "view": {"stroke": None},
    },
}


class Playable:
    """A figure with controls, as Vega-Lite; `spec` is all of it."""

    def __init__(self, spec, name):
        self.spec, self.name = spec, name

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"application/vnd.vegalite.v5+json": self.spec, "text/plain": repr(self)}

    def _repr_svg_(self):
        import vl_convert

        svg = vl_convert.vegalite_to_svg(self.spec, vl_version=VEGA_LITE)
        alt = html.escape(self.spec["description"])
        return svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)

    def __repr__(self):
        return f"<figure to play with: {self.name}>"


def playable(view, chart, name, alt, **controls):
    """Return a figure whose controls choose among tables that `view` computes now.

    view: called by keyword with a value for each control; returns a sentence with the numbers that
        matter, which stands above the figure, and its rows: dicts with the fields that the chart
        draws.
    chart: what `line_chart`, `bar_chart` or `box_chart` gives.
    name: the picture's name, from which a script makes its file name. alt: what is to be seen.
    controls: for each argument of the view a list of its values, or a dict from what the reader
        chooses to the value. Whole numbers in equal steps get a slider, all else a menu. The first
        value is chosen first.

    Raises ValueError for a control without values or with a name that Vega keeps for itself, for a
    combination without rows, and where all rows are too many for a page.
    """
    if taken := sorted(_TAKEN & controls.keys()):
        raise ValueError(f"playable: a control cannot be called {taken[0]!r}: Vega uses that name.")
    values = {key: c if isinstance(c, dict) else {v: v for v in c} for key, c in controls.items()}
    if empty := [key for key, options in values.items() if not options]:
        raise ValueError(f"playable: the control {empty[0]!r} has no values.")
    rows = []
    for at, chosen in enumerate(itertools.product(*(v.values() for v in values.values()))):
        says, some = view(**dict(zip(values, chosen)))
        if not some:
            raise ValueError(f"playable: the view has no rows for {dict(zip(values, chosen))}.")
        some = [{key: _short(value) for key, value in row.items()} for row in some]
        rows += [{"at": at, **row} for row in [some[0] | {"says": says}, *some[1:]]]
    if len(rows) > MOST:
        raise ValueError(f"playable: {len(rows)} rows are too many for a page; at most {MOST}.")
    lines = max(row["says"].count("\n") for row in rows if "says" in row)
    above = {
        "transform": [{"filter": "isValid(datum.says)"}],
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "lineBreak": "\n",
                 "fontSize": 12, "aria": False},
        "encoding": {"text": {"field": "says"}, "x": {"value": 0},
                     "y": {"value": -8 - 14 * lines}},
    }  # fmt: skip
    spec = _BASE | {
        "description": alt,
        "width": 440,  # a page's script makes it as wide as there is room
        "height": chart.get("height", 220),
        "usermeta": {"controls": {key: list(options) for key, options in values.items()}},
        "params": [_control(key, list(options)) for key, options in values.items()],
        "data": {"values": rows},
        "transform": [{"filter": f"datum.at == {_index(values)}"}],
        "layer": [*_with_colors(deepcopy(chart["layer"]), rows), above],
    }
    return Playable(spec, name)


def box_chart(x, y, height=200):
    """Boxes in rows, as of a timetable: rows have `row`, `x`, `x2`, `which` and a `text`."""
    place = {
        "y": {"field": "row", "type": "nominal", "sort": None, "title": y},
        "x": _axis("x", x, False) | {"axis": {"tickMinStep": 1}},
        "x2": {"field": "x2"},
    }
    box = {"mark": {"type": "bar", "stroke": "white"}, "encoding": place | {"color": _which()}}
    middle = {"calculate": "(datum.x + datum.x2) / 2", "as": "middle"}
    text = {
        "transform": [middle],
        "mark": {"type": "text", "fontSize": 10, "color": "white", "aria": False},
        "encoding": {
            "y": place["y"],
            "x": {"field": "middle", "type": "quantitative", "title": x},
            "text": {"field": "text"},
        },
    }
    return {"layer": [box, text], "height": height}


def _axis(field, title, log, domain=None):
    scale = {"type": "log"} if log else {}
    scale |= {"domain": list(domain)} if domain else {}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _which():
    return {"field": "which", "type": "nominal", "sort": None, "scale": {"range": RANK_COLORS}}


def _with_colors(layers, rows):
    """The layers, with one color for each kind whatever the controls say; none if there is one."""
    kinds = list(dict.fromkeys(row["which"] for row in rows if "which" in row))
    for layer in layers:
        color = layer["encoding"].get("color")
        if color is None:
            continue
        if kinds:
            color["scale"] = {"domain": kinds, "range": RANK_COLORS[: len(kinds)]}
        else:
            layer["encoding"] = {
                key: how for key, how in layer["encoding"].items() if how.get("field") != "which"
            }
            layer["mark"] = _mark(layer["mark"]) | {"color": RANK_COLORS[0]}
    return layers


def _mark(mark):
    return {"type": mark} if isinstance(mark, str) else mark


def _control(key, options):
    """A parameter of Vega-Lite's, bound to an input of the browser's own."""
    label = {"name": key.replace("_", " ")}
    if len(options) > 2 and all(type(option) is int for option in options):
        steps = {b - a for a, b in itertools.pairwise(options)}
        if len(steps) == 1 and min(steps) > 0:
            bind = {"input": "range", "min": options[0], "max": options[-1], "step": steps.pop()}
            return {"name": key, "value": options[0], "bind": bind | label}
    return {
        "name": key,
        "value": options[0],
        "bind": {"input": "select", "options": options} | label,
    }


def _index(values):
    """The expression of Vega's that says which combination is chosen."""
    index = "0"
    for key, options in values.items():
        index = f"({index}) * {len(options)} + indexof({json.dumps(list(options))}, {key})"
    return index


def _short(value):
    """A number as its first five digits: a page holds thousands of them."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def show(value, on_rank=None):
    """Print a cell's last value, as a notebook does; a picture becomes a file."""
    if isinstance(value, plt.Figure):
        value.savefig(file_beside(value.get_label() or "figure"))
        return plt.close(value)
    if hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


# A row is a rank, a column a part, and the stripes of a cell say whose numbers are in
# it. A framed cell is complete. After three steps, counted here from 1, there are four
# complete cells, one on each rank: rank r has the total of part r + 1. In the second
# row of grids nothing is added any more. The totals go once around, and everybody keeps
# a copy.


def ring_after(step):
    boxes, complete = [], 0
    for r, numbers in enumerate(after_steps[step]):
        for j, number in enumerate(numbers):
            whose = sorted(of_rank for of_rank, _ in marks_in(number))
            complete += len(whose) == n
            which = f"sum of {len(whose)}" if len(whose) > 1 else "one rank's"
            boxes.append({"row": f"rank {r}", "x": j, "x2": j + 1,
                          "which": which, "text": "+".join(map(str, whose))})
    says = f"after {step} steps {complete} of {n * n} cells are complete"
    return says, boxes


if rank == 0:
    show(playable(
        ring_after,
        box_chart("part of the tensor", None),
        name="play-ring",
        alt="A row for each rank and a cell for each part; in it, the ranks whose "
        "numbers are summed there. With each step one cell of each row changes.",
        step=range(len(after_steps)),
    ))

# An all-reduce is all the steps, one after the other. All algorithms of this chapter
# are written for the simplest case, a flat `x` that lies in memory in one piece. A
# wrapper, `on_flat`, turns each of them into an all-reduce of any tensor among the
# ranks of any process group:


def on_flat(algorithm):
    """Make `algorithm(flat, members, me)` an all-reduce, in place.

    It takes any tensor, and any process group.
    """

    @functools.wraps(algorithm)
    def all_reduce(x, group=None):
        flat = x.contiguous().view(-1)  # x itself, if it is in one piece
        members = dist.get_process_group_ranks(group)
        algorithm(flat, members, dist.get_rank(group))
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))

    del all_reduce.__wrapped__  # else help() shows algorithm's arguments
    return all_reduce


everyone()
play("ranks")


@on_flat
def ring_all_reduce(x, members, me):
    """Each part's sum goes once around, then its total."""
    n = len(members)
    parts = x.tensor_split(n)  # the first ones may be longer by one
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        ring_step(parts, step, members, me, box)


def left_out(view):
    """A stand-in for one of ranklab's views, which says that it is left out."""

    def say(*args, **kwargs):
        print(f"{view}: left out, for this view of ranklab's is not installed here")

    return say


@contextmanager
def untraced(*args, **kwargs):
    """A stand-in for ranklab's trace: it records nothing."""
    yield None


try:
    from ranklab import messages, trace, traffic
except ImportError:
    messages = left_out("messages")
    trace = untraced
    traffic = left_out("traffic")

# Predict: Four ranks, 1 MB each. How much of its tensor does every rank send? And with
# a thousand ranks?


def counted(all_reduce, n):
    """All-reduce n numbers, r + 1 on rank r: the result, the trace."""
    x = torch.full((n,), rank + 1.0)
    dist.barrier()
    with trace() as t:
        all_reduce(x)
    return x, t


everyone()

# Parts of 256 KB. The first attempt connects, and warms up.
attempts = [counted(ring_all_reduce, world_size << 16) for _ in range(6)]
(x, _), ts = attempts[-1], [t for _, t in attempts]

# From ranklab.taught.messages:


def quietest(attempts):
    """Of several attempts, the traces of the one that was over soonest.

    attempts: for each rank a list of traces, one of each attempt; of None
    in a script that runs without ranklab.
    """

    def seconds(traces):
        if None in traces:
            return 0.0
        return max(t.end for t in traces) - min(t.begin for t in traces)

    return list(min(zip(*attempts, strict=True), key=seconds))


# Of six attempts, the one that other programs disturbed least:

ts_by_rank = to_rank_0(ts)
if rank == 0:
    play("kernel")
    ring_traces = quietest(ts_by_rank)
    show(messages(ring_traces, name="ring-messages"))

if rank == 0:
    total = sum(range(1, n + 1))

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all((y == total).all() for y in x_by_rank)
    show(traffic(ring_traces))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


if rank == 0:
    result("total", total)
    result("n_ranks", n)
    result("ring_sends", 2 * (n - 1) / n)

# In the picture all arrows of one color go to one neighbor. In the table all ranks send
# the same: 2(n − 1) parts of n, (ring_sends) times the tensor. With a thousand ranks it
# is 1.998 times. What a rank sends hardly grows with the number of ranks.
#
# As long as it is ranks that add, the busiest one cannot do with less. Take one number
# of the tensor. Somebody is the first to know its total, and for that the n − 1 other
# ranks must each have sent something. From there the total must reach n − 1 ranks. That
# is 2(n − 1) numbers sent for each number of the tensor, on average $2\frac{n-1}{n}$
# tensors a rank [patarasuk2009].

# --- One step too few -----------------------------------------------------------------

# Predict: This ring stops a step early. Does it hang? Does it fail? Which ranks have
# wrong numbers, and where?

everyone()
if rank == 0:
    print("\n## One step too few\n")

play("ranks")


@on_flat
def short_ring(x, members, me):
    n = len(members)
    parts = x.tensor_split(n)
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1) - 1):  # range() stops before its end
        ring_step(parts, step, members, me, box)


y = torch.full((world_size,), rank + 1.0)
show(short_ring(y), rank)

y_by_rank = to_rank_0(y)
if rank == 0:
    play("kernel")
    ys = [y.tolist() for y in y_by_rank]
    for r, numbers in enumerate(ys):
        print(f"rank {r}:", *(f"{number:5.1f}" for number in numbers))
    stale = [[i for i in range(n) if of_r[i] != total] for of_r in ys]
    assert stale == [[(r + 2) % n] for r in range(n)]
    result("stale_on_rank_0", stale[0][0])

# It neither hangs nor fails. All ranks make the same mistake, so every send has its
# receive. But one part of each rank was never overwritten, and it is a partial sum:
# part (stale_on_rank_0) on rank 0, another one on each other rank.
#
# In training nothing would tell you. In one quarter of the weights each rank follows
# the gradient of only some of the ranks, and the loss may still go down. As each rank
# is wrong in another quarter, the copies of the model drift apart. A collective that is
# wrong need not crash; it may only train worse. Until 2020 the ring all-reduce in
# PyTorch's own tutorial received into one buffer and added another one [wrongring].
#
# What finds it is a comparison with something that is simple enough to be right. Two
# habits help. Compare with PyTorch's own on numbers whose sum is exact, such as small
# whole ones. And use lengths that no part divides, empty tensors too. The repaired ring
# is the one above, and it passes:

everyone()
play("ranks")
for length in (0, 1, world_size + 1, 1000):
    y = torch.arange(length) % 7 + rank
    theirs = y.clone()
    ring_all_reduce(y)
    dist.all_reduce(theirs)
    assert torch.equal(y, theirs)

# --- Fewer rounds ---------------------------------------------------------------------

# The price of the ring is 2(n − 1) rounds, one after the other. With a small tensor and
# many ranks nearly all of the time is latency. Here are three ways with other prices.
# The first is the obvious one:

everyone()
if rank == 0:
    print("\n## Fewer rounds\n")


@on_flat
def gather_all_reduce(x, members, me):
    """Rank 0 receives from all, adds, and sends the sum to all."""
    if me > 0:
        dist.send(x, members[0])
        dist.recv(x, members[0])
        return
    incoming = torch.empty_like(x)
    for other in members[1:]:
        dist.recv(incoming, other)
        x += incoming
    for other in members[1:]:
        dist.send(x, other)


# From ranklab.taught.collectives:


def send(x, dst, group=None):
    """Send x, any view, to rank dst of the group."""
    dist.send(x.contiguous(), group=group, group_dst=dst)


def broadcast(x, src, group=None):
    """Give rank src's x to all of the group, along a binomial tree."""
    n = dist.get_world_size(group)
    me = (dist.get_rank(group) - src) % n  # counted from the root
    step = 1
    while step < n:
        if me < step and me + step < n:
            send(x, (src + me + step) % n, group)
        elif step <= me < 2 * step:
            recv(x, (src + me - step) % n, group)
        step *= 2


def reduce(x, dst, group=None):
    """Put the sum of all ranks' x into rank dst's x; the others keep theirs."""
    n = dist.get_world_size(group)
    me = (dist.get_rank(group) - dst) % n
    total, incoming = x.clone(), torch.empty_like(x)
    step = 1
    while 2 * step < n:  # to the last step of the broadcast
        step *= 2
    while step:
        if me < step and me + step < n:
            recv(incoming, (dst + me + step) % n, group)
            total += incoming
        elif step <= me < 2 * step:
            send(total, (dst + me - step) % n, group)
        step //= 2
    if me == 0:
        x.copy_(total)


# The second is chapter 7's reduce along a binomial tree, then its broadcast. Pairs add
# at the same time, then pairs of pairs, and the total goes down the same tree:


def tree_all_reduce(x, group=None):
    """Sums go up a tree to rank 0, and the total comes down."""
    reduce(x, 0, group)
    broadcast(x, 0, group)


# The third has no root. In recursive doubling, every rank swaps what it has with a
# partner, in each round, and both add. The partners are at distance 1, then 2, then 4.
# After $\log_2 n$ rounds everybody has everything. In Python the partner is `rank ^
# distance`: the same number with one bit changed. Drawn, it is the butterfly:


def swap_and_add(x, partner, incoming):
    """Two ranks give each other what they have, and both add."""
    sendrecv(x, partner, incoming, partner)
    x += incoming


everyone()
x, incoming = marks(1), torch.zeros(1, dtype=torch.float64)
states, distance = [x.clone()], 1
core = 1 << (world_size.bit_length() - 1)  # the largest power of two
while distance < core:
    if rank < core:
        swap_and_add(x, rank ^ distance, incoming)
    states.append(x.clone())
    distance *= 2

states_by_rank = to_rank_0(states)
if rank == 0:
    play("kernel")
    rounds_of = [
        [held.item() for held in of_all] for of_all in zip(*states_by_rank)
    ]
    core = 1 << (n.bit_length() - 1)
    fig, ax = plt.subplots(num="butterfly", figsize=(5.2, 0.55 * core + 0.4))
    for k, held in enumerate(rounds_of):
        for r in range(core):
            draw_cell(ax, 3 * k, r, held[r], core)
            if k + 1 < len(rounds_of):
                for to in (r, r ^ (1 << k)):
                    ax.plot([3 * k + 1, 3 * k + 3], [r + 0.5, to + 0.5],
                            color=RANK_COLORS[r], linewidth=1.5)
    columns = range(len(rounds_of))
    titles = [f"round {k}, distance {1 << (k - 1)}" for k in columns[1:]]
    ax.set_xticks([3 * k + 0.5 for k in columns], ["start", *titles])
    rows = range(core)
    ax.set_yticks([r + 0.5 for r in rows], [f"rank {r}" for r in rows])
    ax.set(ylim=(core + 0.05, -0.05), xlim=(-0.1, 3 * columns[-1] + 1.1))
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    save_figures()

if rank == 0:
    for k, held in enumerate(rounds_of):
        assert {len(marks_in(number)) for number in held[:core]} == {1 << k}
    save_figures()

# Predict: That needs a power of two. What would you do with rank 4 of five, or with
# ranks 4, 5 and 6 of seven?

everyone()
play("ranks")


@on_flat
def doubling_all_reduce(x, members, me):
    """Recursive doubling, for any number of ranks."""
    core = 1 << (len(members).bit_length() - 1)  # a power of two
    if me >= core:  # a partner in the core speaks for me
        dist.send(x, members[me - core])
        dist.recv(x, members[me - core])
        return
    incoming = torch.empty_like(x)
    represents = me + core < len(members)
    if represents:
        dist.recv(incoming, members[me + core])
        x += incoming
    distance = 1
    while distance < core:  # the partner's number differs in one bit
        swap_and_add(x, members[me ^ distance], incoming)
        distance *= 2
    if represents:
        dist.send(x, members[me + core])


# Ranks beyond the largest power of two hand their tensor to a partner, who swaps on
# their behalf, and get the total in the end. That is two rounds more.
#
# Here are the three, one after the other, with 1 MB on each rank. Look at how many
# arrows follow one another, and at how many leave at the same time.

everyone()

by_messages = {
    "gather": gather_all_reduce, "tree": tree_all_reduce,
    "doubling": doubling_all_reduce, "ring": ring_all_reduce,
}


def recorded(algorithms, n):
    """One trace of all of them, one after the other."""
    x = torch.ones(n)
    dist.barrier()
    with trace() as t:
        for way, all_reduce in algorithms.items():
            dist.barrier()
            with record_function(way):
                all_reduce(x)
    return t


few = {way: by_messages[way] for way in ("gather", "tree", "doubling")}
ts = [recorded(few, 1 << 18) for _ in range(6)]  # 1 MB
traces_of = {
    way: counted(call, world_size << 16)[1] for way, call in by_messages.items()
}

ts_by_rank = to_rank_0(ts)
if rank == 0:
    play("kernel")
    show(messages(quietest(ts_by_rank), name="four"))

# The names of the three stand above their parts of the picture; the gray bands are
# barriers, after which all start. With gather every arrow begins or ends at rank 0.
# With the tree there are fewer rounds, but only some ranks have something to do in
# each. With doubling, as around the ring, everybody sends in every round.
#
# How many rounds are they, and how much does the busiest rank send? First as formulas,
# then checked against the traces:

if rank == 0:
    logs, beyond = core.bit_length() - 1, 2 * (n > core)
    up = (n - 1).bit_length()  # log2, rounded up
    claims = {  # way: (rounds, tensors that the busiest rank sends)
        "gather": (2 * (n - 1), n - 1),
        "tree": (2 * up, up),
        "doubling": (logs + beyond, logs + beyond // 2),
        "ring": (2 * (n - 1), 2 * (n - 1) / n),
    }
    print("          rounds   the busiest rank sends")
    for way, (rounds, tensors) in claims.items():
        print(f"{way:>8} {rounds:>7}   {tensors:>8.2f} tensors")

# No row is the best in both columns. Recursive doubling has the fewest rounds, and a
# rank sends $\log_2 n$ whole tensors. The ring sends the least and has the most rounds.
#
# For n a power of two there is one that has both, nearly: recursive halving and
# doubling. Swap halves with one partner and add, then quarters with another, until
# every rank has the total of one part, and go the same way back. It sends as little as
# the ring, in $2\log_2 n$ rounds. This is Rabenseifner's algorithm. MPICH uses it for
# large tensors [thakur2005], and the last exercise builds it. The ring asks less of the
# wiring: it only ever sends to a neighbor.

# --- The same bits? -------------------------------------------------------------------

# Floating-point addition rounds, so a sum depends on its order, and each way adds in
# another order. Do all ranks at least get the same? Here are all ways on the same
# random numbers, and beside them the ring of chapter 6, in which whole tensors go
# around and everybody adds what comes, as it comes.
#
# Predict: Which ways give every rank the same, to the last bit? Think of recursive
# doubling: rank 0 adds rank 1's numbers to its own, and rank 1 adds rank 0's.

everyone()
if rank == 0:
    print("\n## The same bits?\n")

play("ranks")


@on_flat
def everybody_adds(x, members, me):
    n = len(members)
    passing, incoming = x.clone(), torch.empty_like(x)
    right, left = members[(me + 1) % n], members[(me - 1) % n]
    for _ in range(n - 1):
        sendrecv(passing, right, incoming, left)
        x += incoming
        passing, incoming = incoming, passing


sums = {}
for way, call in {"everybody adds": everybody_adds, **by_messages}.items():
    generator = torch.Generator().manual_seed(rank)
    sums[way] = torch.randn(10_000, generator=generator)
    call(sums[way])

sums_of_all = to_rank_0(sums)
if rank == 0:
    play("kernel")
    print("places of 10,000 that differ:  from rank 0   from gather")
    for way in sums_of_all[0]:
        first, *others = (of_rank[way] for of_rank in sums_of_all)
        from_rank_0 = max(int((other != first).sum()) for other in others)
        from_gather = int((first != sums_of_all[0]["gather"]).sum())
        print(f"{way:>27}: {from_rank_0:>13} {from_gather:>13}")
        assert (from_rank_0 > 0) == (way == "everybody adds" and n > 2)

# In all ways but the first, all ranks agree. They add each number in one order, on one
# rank or, with recursive doubling, on several in mirror images of one another; and a +
# b is b + a to the last bit. Only where everybody adds for itself do the ranks end up
# with different sums.
#
# For a replica this matters. Copies of one model stay equal because each of them adds
# the same gradient to the same weights; nobody ever compares them. If the sums differ
# in their last bits, so do the weights after the first step, and nothing brings them
# together again. An all-reduce must give all ranks the same bits. Nobody promises the
# bits of another algorithm, as the second column shows, or those of another number of
# ranks: a training on eight ranks is not bit for bit the one on four.

# --- In pieces ------------------------------------------------------------------------

# In one step of the ring a rank first receives all of a part, then adds, then sends.
# While it adds, its connections are idle. Cut each part into pieces, and a piece can go
# on as soon as it has been added, while the next one arrives: pipelining.
#
# Predict: Does a rank send more bytes that way? More messages? And when is it faster?
#
# In the code, `pieces[p][i]` is piece i of part p. Receives for all pieces of a step
# are under way at once. When piece i has come it is added and sent on, and the receive
# for piece i of the next step is started.


def _pipelined(x, members, me, piece):
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    count = max(1, x.nbytes // n // piece)
    pieces = [part.tensor_split(count) for part in x.tensor_split(n)]
    boxes = [torch.empty_like(longest) for longest in pieces[0]]

    def receive(step, i):  # into a box, or where it belongs
        mine = pieces[(me - step - 1) % n][i]
        box = boxes[i][: len(mine)] if step < n - 1 else mine
        return dist.irecv(box, left)

    steps = range(2 * (n - 1))
    sends = [dist.isend(mine, right) for mine in pieces[me] if steps]
    arriving = [receive(0, i) for i in range(count) if steps]
    for step in steps:
        for i, mine in enumerate(pieces[(me - step - 1) % n]):
            arriving[i].wait()
            if step < n - 1:
                mine += boxes[i][: len(mine)]
            if step + 1 in steps:  # pass it on, make room for the next
                sends.append(dist.isend(mine, right))
                arriving[i] = receive(step + 1, i)
    for handle in sends:
        handle.wait()


def pipelined_all_reduce(x, group=None, piece=2 << 20):
    """The ring in pieces of `piece` bytes: each goes on when added."""
    on_flat(functools.partial(_pipelined, piece=piece))(x, group)


everyone()
if rank == 0:
    print("\n## In pieces\n")

play("ranks")
by_messages["pieces"] = pipelined_all_reduce
halves = functools.partial(pipelined_all_reduce, piece=1 << 17)
attempts = [counted(halves, world_size << 16) for _ in range(6)]
(x, _), ts = attempts[-1], [t for _, t in attempts]  # 2 pieces a part

ts_by_rank = to_rank_0(ts)
if rank == 0:
    play("kernel")
    piece_traces = quietest(ts_by_rank)
    show(messages(piece_traces, name="pieces"))

# Where the ring had one arrow there are two now, each for half of a part. The bytes are
# the same, in twice as many messages. The first piece of a part goes on before the
# second one has come.
#
# It can be faster where adding and sending go on at the same time: with cores to spare,
# or a network card that sends by itself. It costs more messages, so pieces must not be
# small. Below, it is timed beside the ring, with pieces of 2 MB.

# --- Through memory that all can see --------------------------------------------------

# On one machine, why send at all? A message between two processes of one host is copied
# into the operating system and out of it. But the operating system can also put the
# same pages of memory into several processes, and then a number that one writes is
# there for the others to read.
#
# Each rank puts its numbers into a row of its own. After a barrier each adds up one
# part of all rows, and shows the sum in a row for sums. After another barrier everybody
# takes the sums.
#
# Predict: How many messages does that take? And what goes wrong without the barriers?
#
# Three folded cells hold what it stands on: the memory, a barrier in it, and the rows.
# You need not open them. Think of a table with a row for each rank and one more for the
# sums. Of the rows we need three calls. `rows` gives a piece of the tensor its rows,
# `add` adds this rank's part of them, and `copy` copies all other parts.


def this_host():
    """Its name, and (on Linux) what tells it from others of that name."""
    name = socket.gethostname()
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            # A start of the machine, and what containers differ in.
            return name, boot.read(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return (name,)


def shared_bytes(nbytes, group=None):
    """Return `nbytes` bytes of memory that all ranks of the group see.

    All must call it. The memory has no name, so it goes with the last
    process that has it, however that one ends. Raises ValueError if the
    ranks are not all on one host.
    """
    members = dist.get_process_group_ranks(group)
    hosts = [None] * len(members)
    dist.all_gather_object(hosts, this_host(), group=group)
    if len(set(hosts)) > 1:
        names = ", ".join(sorted(host[0] for host in set(hosts)))
        raise ValueError(
            f"Ranks on several hosts ({names}) share no memory: "
            "it needs one host."
        )
    file, where = None, [None]
    if members[0] == dist.get_rank():
        if hasattr(os, "memfd_create"):  # Linux: it never has a name
            file = os.memfd_create("all-reduce")
            where = [f"/proc/{os.getpid()}/fd/{file}"]
        else:
            file, where[0] = tempfile.mkstemp()
        os.ftruncate(file, nbytes)
    dist.broadcast_object_list(where, src=members[0], group=group)
    file = os.open(where[0], os.O_RDWR) if file is None else file
    memory = mmap.mmap(file, nbytes)
    dist.barrier(group)  # rank 0 keeps its file until all have it
    os.close(file)
    if members[0] == dist.get_rank() and not where[0].startswith("/proc/"):
        os.remove(where[0])
    return memory


class SharedBarrier:
    """A barrier for `n` ranks that share `memory`: its first 64 n bytes."""

    def __init__(self, memory, me, n, timeout=20.0):
        # 8 numbers a rank: a cache line of its own.
        self.counts = memoryview(memory)[: 64 * n].cast("q")
        self.me, self.n = me, n
        self.timeout, self.count = timeout, 0
        self.fence = threading.Lock()
        self.fence.acquire()  # it stays taken, but for a moment

    def wait(self):
        """Return when all ranks have called it as often as this one.

        Raises TimeoutError.
        """
        self.count += 1
        self._in_order()  # what was written before is seen before
        self.counts[8 * self.me] = self.count
        deadline, looks = time.monotonic() + self.timeout, 0
        for r in range(self.n):
            while self.counts[8 * r] < self.count:
                looks += 1
                self._let_others_work(looks)
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"Rank {r} has not come for {self.timeout} s."
                    )
        self._in_order()  # what is read from now on is no older

    def _in_order(self):
        """A fence: nothing from before and from after changes places."""
        self.fence.release()  # nothing from before it comes after it,
        self.fence.acquire()  # and nothing from after it before it

    def _let_others_work(self, looks):
        """Offer the core to others; after a while of that, sleep."""
        if looks < 100 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(2e-5)


class SharedRows:
    """A row for each rank and one for sums, which all ranks see, twice.

    All ranks of the group make it together. Pieces of a tensor use the
    two halves by turns.
    """

    def __init__(self, group=None, piece=1 << 21, timeout=20.0):
        self.me, self.n = dist.get_rank(group), dist.get_world_size(group)
        self.piece = piece
        head = 4096 * (1 + self.n // 64)  # for the barrier's counts
        memory = shared_bytes(head + 2 * (self.n + 1) * piece, group)
        self.barrier = SharedBarrier(memory, self.me, self.n, timeout)
        halves = torch.frombuffer(memory, dtype=torch.uint8, offset=head)
        self.halves = halves.view(2, self.n + 1, piece)

    def rows(self, k, piece):
        """The n + 1 rows for piece k, of its length and type."""
        return self.halves[k % 2].view(piece.dtype)[:, : len(piece)]

    def mine(self, length):
        """The part that this rank adds: where it begins, and ends."""
        first = length * self.me // self.n
        return first, length * (self.me + 1) // self.n

    def copy(self, source, target):
        """Copy all but my part, which need not travel."""
        first, end = self.mine(len(source))
        target[:first].copy_(source[:first])
        target[end:].copy_(source[end:])

    def add(self, piece, rows):
        """Add the others' rows to my part of the piece; show the sum."""
        first, end = self.mine(len(piece))
        for r in range(self.n):
            if r != self.me:
                piece[first:end] += rows[r, first:end]
        rows[self.n, first:end].copy_(piece[first:end])


# The all-reduce itself is short. It works on pieces of 2 MB, so that it needs no room
# for large tensors. Between one barrier and the next a rank does three things: take the
# sums of the last piece, add this one, put the next. So the loop begins a step early,
# when there is only a piece to put, and ends a step late, when there are only sums to
# take.


class SharedMemory(SharedRows):
    """All-reduce for ranks of one host, through memory that all see."""

    def all_reduce(self, x):
        """Replace x by the sum of all ranks' x, of one shape and type."""
        flat = x.contiguous().view(-1)
        pieces = flat.split(self.piece // x.element_size())
        for k in range(-1, len(pieces) + 1):
            if k > 0:  # take the sums of the piece before
                old = pieces[k - 1]
                self.copy(self.rows(k - 1, old)[self.n], old)
            if 0 <= k < len(pieces):
                self.add(pieces[k], self.rows(k, pieces[k]))
            if k + 1 < len(pieces):  # put the next piece
                new = pieces[k + 1]
                self.copy(new, self.rows(k + 1, new)[self.me])
            if k < len(pieces):
                self.barrier.wait()
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))


everyone()
if rank == 0:
    print("\n## Through memory that all can see\n")

play("ranks")
try:
    shared, no_shared = SharedMemory(), ""
except ValueError as several_hosts:
    shared, no_shared = None, str(several_hosts)
held = None
if shared:
    marked = SharedMemory(piece=64)
    marked.all_reduce(marks(world_size))
    x, t = counted(shared.all_reduce, 1 << 18)
    held = marked.halves[0].view(torch.float64)[:, :world_size].clone()


def from_rank_0_(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play("kernel")
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return pickle.loads(box[0])


no_shared_by_rank = to_rank_0(no_shared)
if rank == 0:
    play("kernel")
    one_host = not no_shared_by_rank[0]

if from_rank_0_(lambda: bool(not one_host)):
    no_shared_by_rank = to_rank_0(no_shared)
    if rank == 0:
        print(no_shared_by_rank[0], "The other ways are timed below.")

play("ranks")
held_by_rank = to_rank_0(held)
if rank == 0:
    play("kernel")
    rows_held = held_by_rank[0]
    if one_host:
        fig, ax = plt.subplots(num="rows", figsize=(3.2, 2.6))
        names = [f"rank {r}" for r in range(n)] + ["sums"]
        draw_grid(ax, rows_held.tolist(), n, names)
        ax.set_xticks([j + 0.5 for j in range(n)], range(n))
        ax.set_xlabel("part")
    save_figures()

# Not one message. The empty cells are the parts that a rank adds itself: they need not
# travel. Without the first barrier a rank could add rows that are not there yet, and
# without the second one take sums that are not there yet. A receive waits; shared
# memory does not.
#
# Pieces of a tensor use the memory's two halves by turns. Why are two enough? Between
# two barriers a rank takes from one half the sums of piece k − 1, and puts piece k + 1
# into its own row there. Sums of piece k + 1 are written only after the next barrier,
# which everybody reaches when it has taken those of piece k − 1.

# --- Extra: the order of writes -------------------------------------------------------

# A rank writes its numbers, then its count in the barrier. If another one could see the
# new count first, it would go on and read old numbers. On x86 it cannot. ARM processors
# may let a later write be seen first [mckenney2010], unless a fence forbids it. Python
# has none, so `_in_order` makes one of a lock.
#
# Each call of a lock is half a fence: nothing from before a release can be seen after
# it, nothing from after an acquire before it. Taken and then released, a lock is no
# fence: both sides may slip in between and change places there [memorybarriers].
# Released first and taken again, nothing gets past: ARMv8 keeps a release and the
# acquire after it in order [pulte2018]. That is the processor's promise, for locks made
# of its own release and acquire instructions, as those of CPython on Linux are. Neither
# Python nor POSIX promises it, and we have run it on x86 only. Whoever writes C takes
# `atomic_thread_fence`.
#
# Two more details. Nobody writes what another rank writes: each count has one writer,
# and it is one aligned machine word, so a reader sees the old one or the new one. Each
# stands on a cache line of its own, so that a write disturbs nobody who reads another
# count. And whoever waits in a loop keeps a core busy that others may need:
# `sched_yield` offers it to them, and a wait that lasts sleeps.

# --- Extra: a copy thrown away --------------------------------------------------------

# A tensor that does not lie in memory in one piece, a column of a matrix for instance,
# must be copied before it can be sent. `on_flat` copies back what came out. The second
# classic mistake is to forget that:


def forgetful_all_reduce(x):
    flat = x.contiguous().view(-1)
    ring_all_reduce(flat)


everyone()
play("ranks")

matrix = torch.full((3, 2), rank + 1.0)
forgetful_all_reduce(matrix)
whole_matrix = matrix[0, 0].item()
matrix = torch.full((3, 2), rank + 1.0)
forgetful_all_reduce(matrix[:, 0])
column = matrix[0, 0].item()

whole_matrix_by_rank = to_rank_0(whole_matrix)
if rank == 0:
    play("kernel")
    assert whole_matrix_by_rank == [total] * n

column_by_rank = to_rank_0(column)
if rank == 0:
    assert column_by_rank == [r + 1.0 for r in range(n)]

column_by_rank = to_rank_0(column)
if rank == 0:
    result("columns", column_by_rank)

# For the matrix it works. For its column nothing happens, and the ranks keep (columns):
# the sum went into a copy that nobody looks at again. And PyTorch's own all-reduce?
# Here it gets the first column of a matrix full of r + 1:

everyone()
play("ranks")
matrix = torch.full((3, 2), rank + 1.0)
dist.all_reduce(matrix[:, 0])

matrix_by_rank = to_rank_0(matrix)
if rank == 0:
    play("kernel")
    for r, m in enumerate(matrix_by_rank):
        assert m.flatten().tolist() == [total] * 3 + [r + 1.0] * 3

matrix_by_rank = to_rank_0(matrix)
if rank == 0:
    show(matrix_by_rank[0])
    save_figures()

# Gloo takes the column's three numbers for the first three of the matrix in memory. Two
# of the column are added up, the third is not, one of the column beside it is
# overwritten, and nothing is said. NCCL refuses such a tensor. So give it what
# `x.contiguous()` returns, and copy that back.

# --- What should it take? -------------------------------------------------------------

# Chapter 6 measured one message of S bytes: α + S/β, a latency and a bandwidth. An
# all-reduce also adds numbers, at γ bytes a second: a third constant. With n ranks, and
# for doubling and halving with n a power of two:
#
# | way | rounds | time |
# | --- | --- | --- |
# | gather | $2(n-1)$ | $2(n-1)\,(\alpha + S/\beta) + (n-1)\, S/\gamma$ |
# | tree | $2\lceil\log_2 n\rceil$ | $2\lceil\log_2 n\rceil\,(\alpha + S/\beta) + \lceil\log_2 n\rceil\, S/\gamma$ |
# | doubling | $\log_2 n$ | $\log_2 n\,(\alpha + S/\beta + S/\gamma)$ |
# | ring | $2(n-1)$ | $2(n-1)\,\alpha + 2\frac{n-1}{n}\frac{S}{\beta} + \frac{n-1}{n}\frac{S}{\gamma}$ |
# | halving | $2\log_2 n$ | $2\log_2 n\,\alpha + 2\frac{n-1}{n}\frac{S}{\beta} + \frac{n-1}{n}\frac{S}{\gamma}$ |
#
# MPICH chose by such a table [thakur2005]: doubling for small tensors, halving for
# large ones. In the table the ring never wins against halving. What speaks for the ring
# is left out: neighbors are near, and any n will do.
#
# To predict with it we need the constants. In the table every rank has a processor and
# a link of its own. Your ranks share a few cores, so a message takes longer while
# others travel. We measure it twice, one at a time and with all ranks sending at once.
# A number of messages in between takes what lies in between.
#
# Each call is timed several times, and the least time counts: whatever else the machine
# does can only make it longer.
#
# Predict: All ranks send at once, and each receives at once. What becomes of α and of
# β, on a machine with fewer cores than ranks?


def least(calls, repeats, row=1):
    """The least seconds of one of `row` calls, for each of `calls`."""
    times = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, seconds in zip(calls, times):  # they take turns
            dist.barrier()
            start = time.perf_counter()
            for _ in range(row):
                call()
            if repeat > 0:  # the first time warms up
                seconds.append((time.perf_counter() - start) / row)
    return [min(each) for each in times]


def costs(nbytes):
    """What all-reduces are made of: to send, to add, to copy."""
    x, y = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    left, right = (rank - 1) % world_size, (rank + 1) % world_size

    def there_and_back():  # two messages, one at a time
        if rank == 0:
            dist.send(x, 1)
            dist.recv(y, 1)
        elif rank == 1:
            dist.recv(y, 0)
            dist.send(x, 0)

    def all_at_once():
        sendrecv(x, right, y, left)

    return [
        there_and_back, all_at_once,
        lambda: y.add_(x), lambda: y.copy_(x),
    ]


everyone()
if rank == 0:
    print("\n## What should it take?\n")

play("ranks")

bill = []
for nbytes in [2 * 4**k for k in range(1, 12)]:  # 8 bytes to 8 MB
    repeats, row = (5, 4) if nbytes < 1 << 20 else (3, 2)
    bill.append(least(costs(nbytes), repeats, row))

# The formulas of the table become functions of the size. Each round asks `message` what
# m messages at a time take:


def cost_models(n, message, add):
    """Return {way: function from bytes to seconds} for n ranks.

    message(nbytes, m): the seconds of m messages at the same time;
    add(nbytes): those of an addition.
    """
    core = 1 << (n.bit_length() - 1)
    beyond = [n - core] * (n > core)
    # Round k of the tree: ranks 2^k, 3 * 2^k, 5 * 2^k, ... send.
    levels = range((n - 1).bit_length())
    senders = [len(range(1 << k, n, 2 << k)) for k in levels]
    return {
        "gather": lambda s: 2 * (n - 1) * message(s, 1) + (n - 1) * add(s),
        "tree": lambda s: sum(2 * message(s, m) + add(s) for m in senders),
        "doubling": lambda s: (
            (core.bit_length() - 1) * (message(s, core) + add(s))
            + sum(2 * message(s, m) + add(s) for m in beyond)
        ),
        "ring": lambda s: (
            2 * (n - 1) * message(s / n, n) + (n - 1) * add(s / n)
        ),
    }


# From ranklab.taught.messages:


def latency_bandwidth(sizes, seconds):
    """Fit T(n) = alpha + n / beta to measured times.

    Return alpha (s) and beta (bytes/s). Least squares of the relative error,
    so that every size has the same weight.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    equations = np.stack([1 / t, n / t], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(equations, np.ones(len(t)))
    return float(alpha), float(1 / per_byte)


# The line through the measured times is fitted as in chapter 6, once for a message
# alone and once for all together:

everyone()
if rank == 0:
    play("kernel")
    other_sizes = np.array([2 * 4**k for k in range(1, 12)])

bill_by_rank = to_rank_0(bill)
if rank == 0:
    there_back, at_once, adding, copying = np.max(bill_by_rank, axis=0).T
    alpha, beta = latency_bandwidth(other_sizes, there_back / 2)
    alpha_all, beta_all = latency_bandwidth(other_sizes, at_once)
    gamma = latency_bandwidth(other_sizes, adding)[1]


def message(nbytes, m):
    """Seconds of m messages at the same time, by the fitted lines."""
    one, all_n = alpha + nbytes / beta, alpha_all + nbytes / beta_all
    return one + (all_n - one) * (m - 1) / max(1, n - 1)


if rank == 0:
    models = cost_models(n, message, lambda nbytes: nbytes / gamma)

if rank == 0:
    result("cores", os.cpu_count(), varies=True)
    result("alpha_us", 1e6 * alpha, varies=True)
    result("alpha_all_us", 1e6 * alpha_all, varies=True)
    result("beta_gb_s", beta / 1e9, varies=True)
    result("beta_all_gb_s", beta_all / 1e9, varies=True)
    result("gamma_gb_s", gamma / 1e9, varies=True)

if rank == 0:
    if os.cpu_count() < n and one_host:
        assert alpha_all > alpha

# On this machine of (cores) cores, a message alone takes (alpha_us) µs of latency, at
# (beta_gb_s) GB/s. When all ranks send and receive at once, it is (alpha_all_us) µs,
# and (beta_all_gb_s) GB/s for each. A rank that has a core adds (gamma_gb_s) GB/s.

# --- What does it take? ---------------------------------------------------------------

# Predict: For 4 bytes and for 16 MB: which of our ways will be the fastest? How many
# times as long does gathering take for 16 MB?

everyone()
if rank == 0:
    print("\n## What does it take?\n")

play("ranks")
timed = dict(by_messages)
if shared:
    timed["shared"] = shared.all_reduce
timed["Gloo"] = dist.all_reduce
names, seconds = list(timed), []
for nbytes in [4**k for k in range(1, 13)]:  # 4 bytes to 16 MB
    x = torch.zeros(nbytes // 4)  # sums of zeros stay zeros
    calls = [functools.partial(call, x) for call in timed.values()]
    repeats, row = (9, 2) if nbytes < 1 << 20 else (3, 1)
    seconds.append(least(calls, repeats, row))

everyone()
if rank == 0:
    play("kernel")
    sizes = np.array([4**k for k in range(1, 13)])

play("ranks")
names_by_rank = to_rank_0(names)
if rank == 0:
    play("kernel")
    names = names_by_rank[0]

seconds_by_rank = to_rank_0(seconds)
if rank == 0:
    slowest = np.max(seconds_by_rank, axis=0)  # the slowest rank counts
    measured = dict(zip(names, slowest.T))
    save_figures()

if rank == 0:
    fig, (ax, below) = plt.subplots(
        2, num="all-reduces", figsize=(5.2, 6), height_ratios=(5, 3), sharex=True
    )
    for i, way in enumerate(names):
        style = {"color": f"C{i}", "marker": "osv^D*P"[i]}
        style |= {"markersize": 5, "linewidth": 1}
        ax.loglog(sizes, 1e3 * measured[way], **style)
        if way in models:
            below.loglog(sizes, models[way](sizes) / measured[way], **style)
    height = np.inf
    for way in sorted(names, key=lambda way: -measured[way][-1]):
        end = 1e3 * measured[way][-1]
        height = min(end, height / 1.4)  # names stand apart, close as the ends are
        line = {"arrowstyle": "-", "relpos": (0, 0.5)}
        line["color"] = f"C{names.index(way)}"
        ax.annotate(way, (sizes[-1], end), (4 * sizes[-1], height), va="center",
                    fontsize=9, arrowprops=line)
    ax.set_title("left: latency counts; right: bytes count", fontsize=10,
                 loc="left")
    ax.set(ylabel="time (ms)", xlim=(2, 90 * sizes[-1]))
    below.axhspan(1 / 1.5, 1.5, color="#E4E4E4", zorder=0)
    below.set_title("the model (gray: off by less than 1.5 times)", fontsize=10,
                    loc="left")
    below.set(xlabel="size of the tensor", ylabel="predicted / measured")
    low, high = below.get_ylim()
    below.set(ylim=(min(low, 0.3), max(high, 3)))
    below.set_yticks([0.5, 1, 2], ["0.5", "1", "2"])
    below.tick_params(axis="y", which="minor", left=False, labelleft=False)
    below.set_xticks(sizes[[0, 4, 8, 11]], ["4 B", "1 KB", "256 KB", "16 MB"])
    below.tick_params(axis="x", which="minor", bottom=False)
    ax.tick_params(axis="x", which="minor", bottom=False)
    save_figures()

# From ranklab.taught.matmul:


def cores_are_free():
    """Do others leave the cores to us?

    Not if less than 0.8 of a core was ours for 50 ms just now, or if in the
    last minute twice as many programs as cores had something to do, our own
    among them. False with one core, too, where the system does not count
    programs, as Windows does not, and where RANKLAB_CORES_ARE_SHARED is set:
    whoever starts several programs at once knows better than we can measure.
    """
    counted = (os.cpu_count() or 1) > 1 and hasattr(os, "getloadavg")
    if not counted or "RANKLAB_CORES_ARE_SHARED" in os.environ:
        return False
    start, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() < start + 0.05:
        pass
    ours = (time.thread_time() - used) / 0.05
    return ours > 0.8 and os.getloadavg()[0] < 2 * os.cpu_count()


if rank == 0:
    for way in names if cores_are_free() else ():
        assert measured[way][4] < 10 * measured[way][0], way
        assert measured[way][11] > 2 * measured[way][9], way
    save_figures()

if rank == 0:
    ours = [way for way in names if way != "Gloo"]
    sending = [way for way in ours if way != "shared"]
    near = 2 * min(measured[way][0] for way in sending)
    at_4 = [way for way in sending if measured[way][0] <= near]
    result("fast_at_4_bytes", ", ".join(at_4), varies=True)
    at_16_mb = min(ours, key=lambda way: measured[way][-1])
    result("fastest_16_mb", at_16_mb, varies=True)
    spread = measured["gather"][-1] / measured[at_16_mb][-1]
    result("spread_16_mb", spread, varies=True)
    pieces_over_ring = measured["pieces"][-1] / measured["ring"][-1]
    result("pieces_over_ring", pieces_over_ring, varies=True)
    large = sizes >= 1 << 16
    ratios = np.array([models[way](sizes) / measured[way] for way in models])
    within = 100 * (np.abs(np.log(ratios)) < np.log(1.5))
    result("within_half", within[:, large].mean(), varies=True)
    result("small_within_half", within[:, ~large].mean(), varies=True)
    save_figures()

# On the left latency counts: 256 times the bytes take less than ten times as long. On
# the right bytes count: 16 times as many take at least twice as long. And the curves
# cross: what is fast with few bytes need not be fast with many.
#
# For 4 bytes, among the ways that send messages, these took at most twice as long as
# the fastest: (fast_at_4_bytes). Where times differ by less than a factor of two, name
# no winner. For 16 MB (fastest_16_mb) was the fastest of all of ours. Gathering took
# (spread_16_mb) times as long.
#
# Below 16 MB pieces sends the messages of the ring, with four ranks: a part is shorter
# than two pieces of 2 MB. It only posts its receives earlier, and waits for its sends
# later. How much of the difference there is due to that, and how much to the clock, we
# have not measured. At 16 MB, with two pieces a part, it took (pieces_over_ring) times
# as long as the ring.
#
# Latency is not the number of rounds alone. Gather has as many rounds as the ring. But
# in a round of gather one message travels, and in one of the ring all ranks send at
# once. With fewer cores than ranks α is larger then, as measured above.
#
# The model is no oracle: from 64 KB on, (within_half) % of its times are within a
# factor of 1.5 of the clock. Of the smaller tensors' it is (small_within_half) %. The
# model leaves out caches, memory that is new from the operating system, and Gloo's own
# thread in each rank, which waits for a core too. Which of them matters where, we have
# not measured.
#
# Is it good enough to choose by? Here are the choices of two models. Own links is the
# textbook's, in which each rank has a link of its own. Here is the one for this
# machine, whose ranks share what there is. The number says how many times as long the
# chosen way took as the fastest of the four: 1.0 is the right choice.

if rank == 0:
    own_links = cost_models(
        n, lambda s, m: alpha + s / beta, lambda s: s / gamma
    )


def fastest(models, nbytes):
    return min(models, key=lambda way: models[way](nbytes))


if rank == 0:
    print("     bytes      own links           here")
    for k in range(1, len(sizes), 2):
        best = min(measured[way][k] for way in models)
        chosen = [fastest(each, sizes[k]) for each in (own_links, models)]
        costs_more = [measured[way][k] / best for way in chosen]
        print(f"{sizes[k]:>10,}",
              *(f"{way:>9} {x:4.1f}" for way, x in zip(chosen, costs_more)))
    save_figures()

if rank == 0:
    assert fastest(own_links, 4) == "doubling"
    assert n == 2 or fastest(own_links, 64 << 20) == "ring"
    for kind, each in (("own", own_links), ("here", models)):
        worst = max(
            measured[fastest(each, sizes[k])][k]
            / min(measured[way][k] for way in models)
            for k in range(1, len(sizes), 2)
        )
        result(f"worst_{kind}", float(worst), varies=True)
    save_figures()

# With a link for every rank the model knows two regimes, doubling for small tensors and
# the ring for large ones. Between them there is a crossover: the size at which the next
# way becomes the faster one. With shared cores the model puts the borders elsewhere: a
# way in which few ranks send at a time, such as the tree, loses less there than one in
# which all do.
#
# In the lines above the choice took at worst (worst_own) times as long as the fastest
# with own links, and (worst_here) times here. One noisy time can make such a worst
# case, so it does not say which model is better. The model is a rough guide: between
# ways that are close, its errors and the clock's decide.

# --- Choose by measuring --------------------------------------------------------------

# So every library keeps several ways and chooses by size, number of ranks and wiring:
# Open MPI and MPICH by tables, NCCL by a model like ours [nccltuning]. Ours chooses by
# what was measured. As timings are noisy, it changes its mind only for a clear gain:


def winners(sizes, times, gain=2):
    """Return [(nbytes, way), ...]: from that size on, take that way.

    times: {way: seconds at each of `sizes`}, the same on all ranks. It
    changes only for a way that is `gain` times as fast.
    """
    table = []
    for k, nbytes in enumerate(sizes):
        best = min(times, key=lambda way: times[way][k])
        if not table:
            table.append((0, best))
        elif times[table[-1][1]][k] > gain * times[best][k]:
            table.append((int(nbytes), best))
    return table


class FastAllReduce:
    """For each size the way that was measured to be the fastest.

    ways: {name: all-reduce}. table: what `winners` returns, one and the
    same on all ranks.
    """

    def __init__(self, ways, table):
        self.ways, self.table = ways, table

    def way(self, nbytes):
        """The name of the way that a tensor of this size takes."""
        return [way for first, way in self.table if nbytes >= first][-1]

    def __call__(self, x):
        """Replace x by the sum of all ranks' x."""
        self.ways[self.way(x.nbytes)](x)


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0_(make)
    play(before)


# Predict: What happens if each rank makes its table from its own clock?
#
# The ranks could disagree at some size. Then one swaps while another goes around the
# ring: a deadlock, or messages taken for what they are not. So the time that counts is
# the slowest rank's, and all ranks get one table:

if rank == 0:
    print("\n## Choose by measuring\n")
    table = winners(sizes, {way: measured[way] for way in ours})

push("table", lambda: table)
if rank == 0:
    for first, way in table:
        print(f"from {first:>10,} bytes on: {way}")
    save_figures()

everyone()
play("ranks")
fast = FastAllReduce(timed, table)
wrong = 0
for length in (1, 1000, 100_001, 1 << 21):
    x = torch.arange(length) % 11 + rank
    theirs = x.clone()
    fast(x)
    dist.all_reduce(theirs)
    wrong += not torch.equal(x, theirs)

wrong_by_rank = to_rank_0(wrong)
if rank == 0:
    play("kernel")
    assert wrong_by_rank == [0] * n
    for k, nbytes in enumerate(sizes):
        chosen = [way for first, way in table if nbytes >= first][-1]
        best = min(measured[way][k] for way in ours)
        assert measured[chosen][k] <= 2 * best
    over_gloo = measured[chosen] / measured["Gloo"]
    result("chosen_16_mb", chosen, varies=True)
    result("chosen_over_gloo", over_gloo[-1], varies=True)
    ring_over_gloo = measured["ring"][-1] / measured["Gloo"][-1]
    result("ring_over_gloo", ring_over_gloo, varies=True)
    save_figures()

# For 16 MB, (chosen_16_mb) is chosen and takes (chosen_over_gloo) of Gloo's time. Our
# ring, in Python, takes (ring_over_gloo) times as long as Gloo's, in C++. Gloo has no
# way through shared memory. NCCL has: within a host its ranks reach into each other's
# memory, and between hosts they send [hu2025].

# --- Bus bandwidth --------------------------------------------------------------------

# Is a time good? Seconds cannot be compared between machines, sizes, and numbers of
# ranks. GB/s can, if we agree on what to divide.
#
# Bytes of the tensor over seconds is the algorithm bandwidth. It must fall with n even
# on perfect links, as each rank has to send more. So the tests of NCCL multiply it by
# what the best algorithm sends, $2\frac{n-1}{n}$, and call it bus bandwidth
# [nccltests]. Where each rank sends over a link of its own, and as little as it can, it
# is for large tensors the speed of the link, whatever n is.
#
# Predict: Eight GPUs all-reduce 1 GB in 5 ms. What is the bus bandwidth? Their links do
# 450 GB/s each way. Is that good?


def bus_bandwidth(n, nbytes, seconds):
    return 2 * (n - 1) / n * nbytes / seconds / 1e9  # GB/s


if rank == 0:
    print("\n## Bus bandwidth\n")
    print("16 MB, between your ranks:")
    for way in names:
        bus = bus_bandwidth(n, sizes[-1], measured[way][-1])
        print(f"{way:>10}: {bus:5.2f} GB/s")
    save_figures()

if rank == 0:
    result("predicted_bus", bus_bandwidth(8, 1e9, 5e-3))
    result("of_450", 100 * bus_bandwidth(8, 1e9, 5e-3) / 450)

# The GPUs get (predicted_bus) GB/s, (of_450) % of the link. As long as the ranks add,
# no algorithm gets more than 100 %, so little is left to gain. The algorithm bandwidth
# would be 200 GB/s, and alone say nothing about the link.
#
# Ranks on one host have no links: the printed numbers say how fast its cores move and
# add bytes. Where a link is what limits, bus bandwidth shows it at once. Here is a run
# of this chapter's script, with sizes up to 64 MB, on two hosts with two ranks each. It
# was recorded on two network namespaces of one machine, joined by a link limited to 1
# Gbit/s, 0.125 GB/s each way. The best of each size is bold.
#
# | GB/s, recorded | 64 KB | 1 MB | 16 MB | 64 MB |
# | --- | --- | --- | --- | --- |
# | gather | 0.08 | 0.05 | 0.04 | 0.04 |
# | tree | 0.07 | 0.06 | 0.04 | 0.03 |
# | doubling | 0.07 | 0.09 | 0.04 | 0.03 |
# | ring | 0.02 | 0.05 | 0.09 | 0.10 |
# | pieces | 0.03 | 0.07 | 0.12 | 0.11 |
# | Gloo | 0.02 | 0.08 | 0.11 | 0.11 |
#
# With large tensors the ring, in pieces, nearly fills the link, and gather, tree and
# doubling reach a quarter to a third of it. At 64 KB these three win, but there the
# limiter lets the first half megabyte pass at full speed. At 1 MB doubling is fastest,
# and at 16 and 64 MB the ring in pieces, at 64 MB level with Gloo: first few rounds,
# then few bytes. So the choice depends on the size.
#
# The formulas explain who wins for large tensors, and not by how much. By them doubling
# moves 2 tensors where the ring moves 1.5, and no way's bus bandwidth falls as tensors
# grow. Here that of doubling falls from 0.09 at 1 MB to 0.03 at 64 MB, less than a
# third of that of the ring in pieces, and there gather, by them the slowest, is no
# slower than doubling. Why, we have not measured. How the run was recorded stands in
# `images/recorded/`.

# --- Extra: an estimate of what is left -----------------------------------------------

# How much faster could one host be? Count what the way through shared memory reads and
# writes, as if each byte came from memory and went there. To put and to take all but
# its own part, a rank copies $2\frac{n-1}{n}$ tensors. To add, it reads n parts and
# writes one twice, which is half of $1 + \frac{2}{n}$ copies.

if rank == 0:
    in_copies = 2 * (n - 1) / n + (1 + 2 / n) / 2
    result("in_copies", in_copies)
    if one_host:
        estimate = in_copies * 2 * copying[-1]  # of 8 MB, on a rank with a core
        result("over_estimate", measured["shared"][-1] / estimate, varies=True)
    save_figures()

# That is (in_copies) copies for (n_ranks) ranks. The measurement, at 16 MB, is
# (over_estimate) times what they would take on a rank that always has a core; with
# fewer cores than ranks they take turns, and that is in the number, too. It is an
# estimate, and no floor: pieces of 2 MB may stay in a cache, and then cost less than a
# copy through memory.

# --- On real machines -----------------------------------------------------------------

# The same formulas, with other constants:
#
# | link | β, each way | α a hop |
# | --- | --- | --- |
# | between your ranks, all at once | (beta_all_gb_s) GB/s | (alpha_all_us) µs |
# | NVLink 4, H100 [hopper] | 450 GB/s | 0.6 to 3.4 µs [nccltuning] |
# | InfiniBand NDR, 400 Gb/s [connectx7] | 50 GB/s | 2.7 to 14 µs [nccltuning] |
# | Ethernet, 100 Gb/s | 12.5 GB/s | measure it: chapter 6 |
#
# A hop is a message from one rank to the next. The latencies are those that NCCL's own
# model has for a hop of its ring. The lower one is that of its protocol LL, the higher
# one that of Simple; the extra below says what they are.
#
# Worked problem:
#
# 1 GB of gradients, 128 H100 in 16 nodes of 8. Each GPU has NVLink inside its node and
# a card of 50 GB/s of its own to the others. What does one ring through all take, and
# what a hierarchical all-reduce: reduce-scatter inside the nodes, all-reduce between
# the GPUs with the same place in their nodes, all-gather inside?
#
# One ring sends $2\frac{127}{128}$ GB over its slowest link, in 254 hops. The
# hierarchical one sends $\frac{7}{8}$ GB inside, twice, and between nodes only
# $2\frac{15}{16}$ of an eighth, in 7 + 30 + 7 hops.

if rank == 0:
    print("\n## On real machines\n")
    S, inside, between = 1e9, 450e9, 50e9  # bytes, bytes a second
    hop_inside, hop_between = 3.4e-6, 14e-6

    one_ring = 2 * 127 / 128 * S / between
    one_ring += 2 * (16 * hop_between + 112 * hop_inside)  # nearly 254 hops
    hierarchical = 2 * (7 / 8 * S / inside + 7 * hop_inside)
    hierarchical += 2 * (15 / 16 * S / 8 / between + 15 * hop_between)
    print(f"{1e3 * one_ring:.1f} ms, {1e3 * hierarchical:.1f} ms")

if rank == 0:
    result("one_ring_ms", 1e3 * one_ring)
    result("hierarchical_ms", 1e3 * hierarchical)
    result("ring_latency_ms", 2e3 * (16 * hop_between + 112 * hop_inside))


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


# From ranklab.playable:


def line_chart(x, y, log="", domain=None):
    """Lines through points: rows have `x`, `y` and, for several lines, `which`.

    x, y: what the axes say, with units. log: "x", "y" or "xy". domain: of y, (from, to).
    """
    encoding = {
        "x": _axis("x", x, "x" in log),
        "y": _axis("y", y, "y" in log, domain),
        "color": _which(),
    }
    dash = {"field": "which", "type": "nominal", "sort": None, "legend": None}
    line = {"mark": {"type": "line", "clip": True}, "encoding": encoding | {"strokeDash": dash}}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 50, "clip": True},
        "encoding": encoding,
    }
    return {"layer": [line, dots]}


# (one_ring_ms) ms against (hierarchical_ms) ms. The latencies of the one ring are
# (ring_latency_ms) ms of it, whatever the size: they grow with n.

if rank == 0:
    links = {"NVLink 4, 450 GB/s": 450e9, "InfiniBand NDR, 50 GB/s": 50e9}
    links |= {"Ethernet, 12.5 GB/s": 12.5e9, "between your ranks": beta_all}


def times_by_way(number_of_ranks, link, microseconds_a_hop):
    ways = cost_models(
        number_of_ranks, lambda s, m: microseconds_a_hop / 1e6 + s / link,
        lambda s: 0.0)  # adding counts as nothing
    sizes = [2.0**k for k in range(10, 31, 2)]
    lines = [{"x": s, "y": 1e3 * ways[which](s), "which": which}
             for which in ways for s in sizes]
    best = {s: min(ways, key=lambda which: ways[which](s))
            for s in (2**10, 2**20, 2**30)}
    says = "fastest with 1 KiB: {},\nwith 1 MiB: {}, with 1 GiB: {}"
    return says.format(*best.values()), lines


if rank == 0:
    show(playable(
        times_by_way,
        line_chart("bytes", "time (ms)", log="xy", domain=(1e-3, 1e7)),
        name="play-links",
        alt="Time of an all-reduce against its size, a line for each way, both "
        "logarithmic. Small ones are fastest by doubling, large ones by the ring.",
        number_of_ranks=[8, 2, 4, 16, 64, 256, 1024],
        link=links,
        microseconds_a_hop=[3, 1, 10, 30, 100],
    ))

# In practice several rings, one for each network card, share the tensor. With eight of
# them the bytes of the ring take an eighth of the time, about 5 ms, and no longer lose
# to three phases that wait for each other. That does not win back the hops.

# --- Extra: what NCCL does about the hops ---------------------------------------------

# NCCL has three answers [hu2025]:
# - Double binary trees. In a binary tree an inner rank sends the tensor up once and
#   down twice, a leaf only up. Two trees, of which each carries half of the tensor, are
#   laid so that an inner rank of one is a leaf of the other. Everybody sends about two
#   tensors, as in a ring, in about $2\log_2 n$ hops [sanders2009]. NCCL builds them
#   between nodes.
# - Protocols. Simple sends large chunks and then tells the receiver: nearly the full
#   bandwidth, some µs a hop. LL sends 4 bytes of data with a 4-byte flag, by which the
#   receiver sees that they are there: a low latency, and at most half of the bandwidth.
#   LL128 has 120 bytes of data in 128: both, over NVLink.
# - NVLS: the NVLink switch adds. A GPU sends its tensor about once and gets the total
#   about once, in place of $2\frac{n-1}{n}$ times. The proof above was about ranks that
#   add; so bus bandwidth may exceed the link.
#
# `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING` prints NCCL's table of latencies and
# bandwidths, its counterpart of our `winners`. `NCCL_ALGO` and `NCCL_PROTO` force a
# choice, for experiments.

# --- What you can do now --------------------------------------------------------------

# - Write an all-reduce of any tensor among any ranks around a ring, by gathering, with
#   a tree, by recursive doubling and through shared memory, and say for each how many
#   rounds it takes and what each rank sends.
# - Say why nobody needs to send more than two tensors, and why the busiest rank sends
#   nearly as many.
# - Find out what is wrong with a collective that neither hangs nor fails.
# - Estimate times from α, β and γ, for your machine and for one that you do not have.
# - Choose the way by measuring, with one table for all ranks, and read bus bandwidth.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/08_all_reduce.py
#
# On one host this is what you have seen. On two, the same line on both, with the first
# one's name:
#
#     torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \
#         --rdzv-endpoint HOST:29500 scripts/08_all_reduce.py
#
# The script then says that these ranks share no memory, leaves that way out, and times
# the rest. `ranklab.taught.all_reduce` has all of it to import.

# --- Where to read on -----------------------------------------------------------------

# - [patarasuk2009]: the ring, and the proof that somebody must send as much.
# - [thakur2005]: how MPICH chooses, with the same models; recursive halving, also where
#   n is no power of two.
# - [hu2025]: the protocols and algorithms of NCCL, read in its source. [sanders2009]:
#   the two trees.
# - [nccltests]: bus bandwidth, and what its factor is for every collective.
# - [mckenney2010]: why writes are seen in another order, and what fences do about it.
#   [memorybarriers]: what locks do about it, and what they do not.
# - [gloo]: its ring, in C++, with two pieces under way at a time.
# - [li2020]: what data parallelism does with all this.

leave_group()
