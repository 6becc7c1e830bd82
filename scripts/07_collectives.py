# Chapter 7 of Many Ranks, One Model, as one script. Generated from book/07_collectives.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 07_collectives.py
#     torchrun --standalone --nproc-per-node 4 07_collectives.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 07_collectives.py
#     mpiexec -n 4 python 07_collectives.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import contextlib
import html
import io
import os
import pickle
import re
import socket
import struct
import sys
import time
import warnings
from contextlib import contextmanager
from datetime import timedelta
from math import ceil, log2
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.autograd.profiler import profile


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
    limit = timedelta(seconds=5)
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
APART = ["adjoint", "kept", "list_form", "name", "other", "tensor_form", "theirs"]  # the kernel and the ranks have one each
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


# === Collectives: what all ranks do together ==========================================

# A training step gives every rank the start, shares out the batch, adds everybody's
# gradients. Which patterns are these, what does each of them cost, and which one undoes
# which?
#
# 35 minutes to read, 16 predictions · 15 seconds to run · stands on chapter 6
#
# At the end you know the nine calls that nearly every distributed program is made of.
# You have written each of them with nothing but messages, you can say what it sends and
# in how many rounds, and you know which of them a backward pass turns into which.

if rank == 0:
    n = world_size

# A collective is one call that all ranks of a process group make together. Nobody names
# a partner; who sends what to whom, and when, is inside. All that a caller must know is
# who holds what before, and who holds what after. To see that, let every number say
# where it comes from:


def marks(n=1):
    """n numbers of this rank, each with a bit of its own."""
    bits = [2.0 ** (rank + 8 * j) for j in range(n)]  # whose, and which
    return torch.tensor(bits, dtype=torch.float64)


def empty(n=1):
    return torch.zeros(n, dtype=torch.float64)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# Rank 0's first number is 1 and rank 2's is 4, so a 5 can only be their sum. Here is
# PyTorch's all-gather, as the ranks really hold it. A cell has the color of the rank
# that its number comes from:

everyone()
play("ranks")
before = marks()
boxes = [empty() for _ in range(world_size)]
dist.all_gather(boxes, before)


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


class Drawing:
    """An SVG picture that a notebook shows below a cell."""

    def __init__(self, svg, name):
        self.svg = svg
        self.name = name

    def _repr_svg_(self):
        return self.svg

    def __repr__(self):
        return f"<drawing {self.name}>"


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


before_by_rank = to_rank_0(before)
boxes_by_rank = to_rank_0(boxes)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, boxes_by_rank, name="all-gather"))

# Everybody had one number, and now everybody has everybody's. In this chapter you write
# this call and eight others yourself.
#
# They are made of chapter 6's messages, with two additions. A message may be a view of
# something larger, such as a column of a matrix, which has to be packed to be sent. And
# the partners may be numbered within a group of ranks, of which more below;
# `group=None` means all ranks. As in chapter 6, this is for Gloo: NCCL wants sends and
# receives that need each other started by `dist.batch_isend_irecv`.


def send(x, dst, group=None):
    """Send x, any view, to rank dst of the group."""
    dist.send(x.contiguous(), group=group, group_dst=dst)


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


# --- Broadcast ------------------------------------------------------------------------

# One rank, the root, has a tensor; afterwards all have it. The obvious way: the root
# sends it to one rank after the other.
#
# What does a collective cost? We count bytes, and rounds. A rank has one connection to
# the network, so let it send one message at a time, and receive one at a time. Messages
# that can be under way together are one round. One that must wait for another, because
# a rank is busy or has not got it yet, is in a later round.


def broadcast_in_turn(x, src):
    """Give rank src's x to all: the others' x is overwritten."""
    if rank == src:
        for dst in range(world_size):
            if dst != src:
                send(x, dst)
    else:
        recv(x, src)


# Predict: With eight ranks this takes seven rounds, one message in each. After the
# first of them, two ranks have the tensor. How few rounds can there be, if everyone who
# has it may pass it on?
#
# Three: the number of those who have it can double in every round. That is the binomial
# tree, which MPI libraries use for short messages [thakur2005]. Count the ranks from
# the root on; then in the round with `step` = 1, 2, 4, …, those below `step` have it,
# and each passes it on to the one `step` places further.


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


# The functions of this chapter take the same arguments as PyTorch's own, in the same
# order, so that every one of them can be compared with its original: same call, same
# numbers.

everyone()
if rank == 0:
    print("\n## Broadcast\n")

play("ranks")
x = marks() if rank == 0 else empty()
before = x.clone()
theirs = x.clone()
broadcast(x, 0)
dist.broadcast(theirs, 0)  # PyTorch's own
assert torch.equal(x, theirs)

before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, x_by_rank, name="broadcast"))

# A dashed box is still empty. Let the tensor have $N$ bytes, and let there be $n$
# ranks. Every rank but the root must get the $N$ bytes once, so $n - 1$ messages of $N$
# bytes is the least. Both versions send just that. What the tree saves are rounds:
# $\lceil \log_2 n \rceil$ in place of $n - 1$.
#
# For long tensors the tree is not the best, as its root sends all of the tensor in
# every round. Scatter its parts and then all-gather them, by the next two sections, and
# nobody sends or receives more than two tensors [thakur2005]. The last exercise builds
# that.
#
# Used for: the same initial parameters on every rank.

# --- Scatter and gather ---------------------------------------------------------------

# Scatter: the root has $n$ parts and gives one to each rank. Gather is the way back.
# The simplest way is that the root sends each part straight to its owner.
#
# Predict: A tree needs $\lceil \log_2 n \rceil$ rounds in place of $n - 1$: the root
# gives half of the parts to one rank, which scatters them in turn, then a quarter to
# another. Does the root send more bytes that way, or fewer?


def scatter(box, parts, src, group=None):
    """Fill each rank's box with its part of rank src's list."""
    me = dist.get_rank(group)
    if me != src:  # parts is None
        recv(box, src, group)
        return
    for dst, part in enumerate(parts):
        if dst == me:
            box.copy_(part)
        else:
            send(part, dst, group)


def gather(x, boxes, dst, group=None):
    """Fill rank dst's list of boxes with each rank's x."""
    me = dist.get_rank(group)
    if me != dst:  # boxes is None
        send(x, dst, group)
        return
    for src, box in enumerate(boxes):
        if src == me:
            box.copy_(x)
        else:
            recv(box, src, group)


everyone()
if rank == 0:
    print("\n## Scatter and gather\n")

play("ranks")
before = marks(world_size) if rank == 0 else empty(0)
parts = list(before.split(1)) if rank == 0 else None
box, theirs = empty(), empty()
scatter(box, parts, 0)
dist.scatter(theirs, parts, 0)
assert torch.equal(box, theirs)

before_by_rank = to_rank_0(before)
box_by_rank = to_rank_0(box)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, box_by_rank, name="scatter"))

# 0c is rank 0's number c, the third of its four. Gather, the way back:

everyone()
play("ranks")
before = marks()
boxes, theirs = None, None
if rank == 0:
    boxes = [empty() for _ in range(world_size)]
    theirs = [empty() for _ in range(world_size)]
gather(before, boxes, 0)
dist.gather(before, theirs, 0)
assert rank != 0 or all(map(torch.equal, boxes, theirs))

boxes_by_rank = to_rank_0(boxes)
if rank == 0:
    play("kernel")
    boxes_held = [held or [] for held in boxes_by_rank]

before_by_rank = to_rank_0(before)
if rank == 0:
    show(holdings(before_by_rank, boxes_held, name="gather"))

# If the whole has $N$ bytes, the root sends or receives $\frac{n-1}{n} N$ of them, in
# $n - 1$ rounds. With a tree it is the same number. For $n$ a power of two the root
# sends $\frac{1}{2} + \frac{1}{4} + \dots + \frac{1}{n}$ of the whole, which is
# $\frac{n-1}{n}$.
#
# So the tree is better in rounds and no worse in the root's bytes, and MPICH scatters
# along it for short and for long messages [mpichscatter]. Its price is room for other
# ranks' parts, and traffic: a part is sent up to $\log_2 n$ times before it is where it
# belongs. We keep the one that sends straight to the owner, because it is shorter.
#
# Used for: sharing out data that one rank has read; collecting losses or samples in one
# place, for a log. Beware of gathering anything large: the root needs room for all of
# it.

# --- All-gather -----------------------------------------------------------------------

# Everybody gathers. A gather and then a broadcast would do, but everyone would wait for
# the root. The ring has no root: everyone passes on to the right what came from the
# left, first its own part, until everything has been everywhere. It is chapter 6's last
# program, without its sum.
#
# Predict: How many bytes must each rank receive, at the least? How many does it receive
# around the ring?


def all_gather(boxes, x, group=None):
    """Fill each rank's boxes with every rank's x, around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    boxes[me].copy_(x)
    for step in range(n - 1):
        mine, next_one = boxes[(me - step) % n], boxes[(me - step - 1) % n]
        sendrecv(mine, right, next_one, left, group)


everyone()
if rank == 0:
    print("\n## All-gather\n")

play("ranks")
before = marks()
boxes, theirs = ([empty() for _ in range(world_size)] for _ in range(2))
all_gather(boxes, before)
dist.all_gather(theirs, before)
assert all(map(torch.equal, boxes, theirs))

# The result is the picture at the head of the chapter. Let the whole, of all parts
# together, again have $N$ bytes. Every rank must receive the $n - 1$ parts that it does
# not have, $\frac{n-1}{n} N$ bytes. Around the ring it receives just these, in $n - 1$
# rounds.
#
# Each box must be a tensor of its own: `[empty()] * n` would be one box, n times, and
# keep one part only.
#
# Used for: putting together a tensor of which everyone has a shard, such as a part of a
# model's parameters.

# --- Reduce ---------------------------------------------------------------------------

# Now something new: numbers are combined. Reduce adds the tensors of all ranks, and the
# root gets the sum. How do they get there? Take the tree of the broadcast and run it
# backwards: the last round first, every message in the other direction, and "add what
# comes" instead of "keep what comes".
#
# Predict: The root has the sum afterwards. What is in the tensors of the other ranks,
# with ours and with PyTorch's?


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


everyone()
if rank == 0:
    print("\n## Reduce\n")

before = marks(world_size)
x, theirs = before.clone(), before.clone()
reduce(x, 0)
dist.reduce(theirs, 0)
assert rank != 0 or torch.equal(x, theirs)
kept = torch.equal(x, before), torch.equal(theirs, before)

before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, x_by_rank, name="reduce"))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


play("ranks")
kept_by_rank = to_rank_0(kept)
if rank == 0:
    play("kernel")
    kept = kept_by_rank[1:]  # of the ranks that are not the root
    assert all(by_ours for by_ours, _ in kept)
    changed = [r + 1 for r, (_, by_theirs) in enumerate(kept) if not by_theirs]
    result("changed_by_pytorchs_reduce", changed, varies=True)

# A cell with stripes is a sum; its stripes are the ranks that are in it, and Σb is the
# sum of their numbers b.
#
# Ours leaves the others' tensors alone. PyTorch's own has changed those of the ranks
# (changed_by_pytorchs_reduce). Nothing is promised about the tensor of a rank that is
# not the root, and Gloo uses it for its partial sums. Whoever reads it afterwards has a
# program that may work on one backend and not on another.
#
# The costs are the broadcast's: $n - 1$ messages of $N$ bytes, $\lceil \log_2 n \rceil$
# rounds.
#
# Used for: a loss or an accuracy that only rank 0 prints.

# --- Reduce-scatter -------------------------------------------------------------------

# Everyone has a tensor of $n$ parts. All are added, part by part, and rank $r$ gets
# part $r$ of the sum, nothing else. Again it is a program that we have, run backwards:
# the ring of the all-gather, the last step first, to the left instead of to the right,
# adding.
#
# Predict: In the all-gather a part travels around the ring and leaves a copy
# everywhere. What travels here?


def reduce_scatter(box, parts, group=None):
    """Fill each rank's box with the sum of its part of all lists."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    sums = [part.clone() for part in parts]
    for step in reversed(range(n - 1)):
        staying, leaving = sums[(me - step) % n], sums[(me - step - 1) % n]
        incoming = torch.empty_like(staying)
        sendrecv(leaving, left, incoming, right, group)
        staying += incoming
    box.copy_(sums[me])


everyone()
if rank == 0:
    print("\n## Reduce-scatter\n")

play("ranks")
before = marks(world_size)
parts = list(before.split(1))
box, theirs = empty(), empty()
reduce_scatter(box, parts)
dist.reduce_scatter(theirs, parts)
assert torch.equal(box, theirs)

before_by_rank = to_rank_0(before)
box_by_rank = to_rank_0(box)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, box_by_rank, name="reduce-scatter"))

# A sum travels. It starts at the owner's left neighbor and goes around to the left,
# every rank adds its own part, and it ends at its owner: of four ranks, part 0 goes
# from rank 3 to 2, to 1, to 0. As in the all-gather, every rank sends $\frac{n-1}{n} N$
# bytes in $n - 1$ rounds.
#
# Used for: gradients of which every rank needs only its own shard.

# --- All-reduce -----------------------------------------------------------------------

# The sum of everything, for everyone: the one that data parallelism lives on.
# Reduce-scatter gives each rank a part of the sum. All-gather gives everybody
# everybody's part. So there is nothing left to write but the cutting into parts, which
# need not be of the same size.
#
# Predict: How many bytes does a rank send, with four ranks and with four hundred?


def all_reduce(x, group=None):
    """Replace x by the sum of all: reduce-scatter, then all-gather."""
    flat = x.reshape(-1)  # a view if there can be one, otherwise a copy
    parts = list(flat.tensor_split(dist.get_world_size(group)))
    total = torch.empty_like(parts[dist.get_rank(group)])
    reduce_scatter(total, parts, group)
    all_gather(parts, total, group)
    if not x.is_contiguous():
        x.copy_(flat.view_as(x))


everyone()
if rank == 0:
    print("\n## All-reduce\n")

play("ranks")
before = marks(world_size)
x, theirs = before.clone(), before.clone()
all_reduce(x)
dist.all_reduce(theirs)
assert torch.equal(x, theirs)

before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, x_by_rank, name="all-reduce"))

# Each half costs $\frac{n-1}{n} N$ bytes a rank, so it is $2\,\frac{n-1}{n} N$
# together: 1.5 tensors with four ranks, 1.995 with four hundred. As long as only the
# ranks add, that is the best possible in bytes [patarasuk2009]. In rounds, $2(n-1)$, it
# is not. Chapter 8 is about nothing else.
#
# Used for: gradients (chapter 10), and whatever everybody must agree on. A sum is the
# default. PyTorch's reductions also take `op=dist.ReduceOp.MAX`, `MIN`, `PRODUCT` and
# others. `AVG` divides the sum by $n$; NCCL has it, Gloo only in newer versions of
# PyTorch.

# --- All-to-all -----------------------------------------------------------------------

# Everyone has a part for everyone. In step $k$, each rank sends to the one $k$ places
# to the right and receives from the one $k$ places to the left, so that no two ranks
# send to the same one at the same time: pairwise exchange [thakur2005].
#
# Predict: Write the parts as a matrix, a row for each rank. What does all-to-all make
# of it?


def all_to_all(boxes, parts, group=None):
    """Fill box s of rank r with part r of rank s, for all r and s."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    boxes[me].copy_(parts[me])
    for step in range(1, n):
        to, come_from = (me + step) % n, (me - step) % n
        sendrecv(parts[to], to, boxes[come_from], come_from, group)


everyone()
if rank == 0:
    print("\n## All-to-all\n")

play("ranks")
before = marks(world_size)
parts = list(before.split(1))
boxes, theirs = ([empty() for _ in range(world_size)] for _ in range(2))
all_to_all(boxes, parts)
dist.all_to_all(theirs, parts)
assert all(map(torch.equal, boxes, theirs))

before_by_rank = to_rank_0(before)
boxes_by_rank = to_rank_0(boxes)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, boxes_by_rank, name="all-to-all"))

# It is the transposed matrix: what was a row is a column. No number is needed twice and
# none is added, so every rank must send the $\frac{n-1}{n} N$ bytes that are for
# others. It does, in $n - 1$ rounds. For small parts there is a way in $\lceil \log_2 n
# \rceil$ rounds, in which parts travel by way of others, and more bytes are sent:
# Bruck's [bruck1997].
#
# Used for: going from one way of sharing a tensor to another; sending tokens to the
# ranks that compute on them, and back.

# --- Barrier --------------------------------------------------------------------------

# Nobody passes before everybody has come. No data at all, and yet everyone must have
# heard of everyone. In round $k$, tell the rank $2^k$ places to the right that you are
# here, and wait for word from the one $2^k$ to the left. With every round, you know of
# twice as many. This is the dissemination barrier [hensgen1988].
#
# Predict: The ranks come 0.05 s one after the other. When can the first of them leave?
# Do all leave together?


def barrier(group=None):
    """Return when every rank of the group has called it."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    word, heard = torch.empty(0), torch.empty(0)
    step = 1
    while step < n:
        sendrecv(word, (me + step) % n, heard, (me - step) % n, group)
        step *= 2


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


def come_and_go(wait):
    """Come 0.05 s after the rank before; return when I came and went."""
    dist.barrier()  # PyTorch's own lines the ranks up
    time.sleep(0.05 * rank)
    came = time.time()
    wait()
    return came, time.time()


everyone()
if rank == 0:
    print("\n## Barrier\n")

play("ranks")

came_and_went = come_and_go(barrier), come_and_go(dist.barrier)
with trace() as t:
    come_and_go(barrier)

t_by_rank = to_rank_0(t)
if rank == 0:
    play("kernel")
    show(messages(t_by_rank, name="barrier"))

came_and_went_by_rank = to_rank_0(came_and_went)
if rank == 0:
    for what, times in zip(("ours", "PyTorch's"), zip(*came_and_went_by_rank)):
        last_came = max(came for came, _ in times)
        leave = sorted(1e3 * (went - last_came) for _, went in times)
        print(f"{what}: the first rank left {leave[0]:.1f} ms after the last")
        print(f"came, and the last one {leave[-1]:.1f} ms after it")
        assert leave[0] > -20  # clocks of several hosts may differ a little

# The gray band is PyTorch's barrier, which lines them up. Then the ranks sleep, a thin
# line, and come one after the other. Whoever comes early waits in one of its rounds,
# the broad pale part, until word of the last rank has reached it. Nobody leaves before
# the last has come. They do not leave together: each leaves when it has heard.
#
# Used for: lining the ranks up before a clock is started; waiting until rank 0 has
# written a file. It is not needed between two collectives: the second one finds its
# partners by itself.

# --- The bill -------------------------------------------------------------------------

# Nine collectives, and for each a claim about bytes and rounds. Are they true? And what
# does PyTorch's own send?
#
# Our own messages are in a trace, where `traffic` counts them. The messages inside one
# of Gloo's calls are in no trace. But the operating system counts what every connection
# has received, and on Linux a process may ask.
#
# Predict: An all-reduce through a root, gather and then broadcast in turn, sends
# $2(n-1)N$ bytes in all. How many does the ring send in all? Which number tells the two
# apart?


def received_over_tcp():
    """Bytes that open connections have received; nan where nobody counts."""
    if not os.path.isdir("/proc/self/fd"):  # not Linux
        return float("nan")
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=int(number))
        except OSError:  # not a connection
            continue
        try:
            asked = socket.IPPROTO_TCP, socket.TCP_INFO, 136
            info = connection.getsockopt(*asked)
            total += struct.unpack_from("Q", info, 128)[0]  # bytes_received
        except (OSError, struct.error):  # not TCP
            pass
        finally:
            connection.detach()  # only look: it stays open
    return total


everyone()
if rank == 0:
    print("\n## The bill\n")

play("ranks")
whole = torch.zeros(world_size * (1 << 14))
parts, boxes = (list(whole.clone().chunk(world_size)) for _ in range(2))
part, at_root = torch.zeros(1 << 14), rank == 0


def arguments():
    return {
        broadcast: (whole, 0),
        scatter: (part, parts if at_root else None, 0),
        gather: (part, boxes if at_root else None, 0),
        all_gather: (boxes, part),
        reduce: (whole, 0),
        reduce_scatter: (part, parts),
        all_reduce: (whole,),
        all_to_all: (boxes, parts),
        barrier: (),
    }


def median_time(call, given, repeats=5):
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        call(*given)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def measured(ours, given):
    """A trace of ours, the bytes that Gloo receives, seconds of both."""
    pytorchs = getattr(dist, ours.__name__)
    seconds = median_time(ours, given), median_time(pytorchs, given)
    with trace() as t:
        ours(*given)
    start = received_over_tcp()
    dist.barrier()  # its own bytes are too few to matter
    pytorchs(*given)
    return t, received_over_tcp() - start, seconds


everyone()

bill = {f.__name__: measured(f, given) for f, given in arguments().items()}
bytes_and_times = {name: rest for name, (t, *rest) in bill.items()}

# The bytes of all ranks together cannot tell a good algorithm from a bad one: through a
# root and around a ring it is $2(n-1)N$. What decides is the busiest rank, the most
# bytes that any rank sends or receives.
#
# With it, chapter 6's model of a message becomes one of a collective, with a latency α
# for each round and a bandwidth β: T = rounds · α + bytes of the busiest / β. It holds
# where the busiest rank sends and receives at the same time, or does only one of the
# two. A root that must receive everything before it sends anything needs the time of
# both.
#
# What must come out, as multiples of the whole tensor's $N$ bytes:

everyone()
if rank == 0:
    play("kernel")
    log_n, share = ceil(log2(n)), (n - 1) / n
    claims = {  # name: rounds, bytes of all, bytes of the busiest rank
        "broadcast": (log_n, n - 1, log_n),
        "scatter": (n - 1, share, share),
        "gather": (n - 1, share, share),
        "all_gather": (n - 1, n - 1, share),
        "reduce": (log_n, n - 1, log_n),
        "reduce_scatter": (n - 1, n - 1, share),
        "all_reduce": (2 * (n - 1), 2 * (n - 1), 2 * share),
        "all_to_all": (n - 1, n - 1, share),
        "barrier": (log_n, 0, 0),
    }

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)

bytes_and_times_by_rank = to_rank_0(bytes_and_times)
if rank == 0:
    N, every = n * (4 << 14), bytes_and_times_by_rank
    gloos = {name: sum(m[name][0] for m in every) / N for name in claims}
    gloos_root = every[0]["reduce"][0] / N
    slowest = {name: np.max([m[name][1] for m in every], axis=0) for name in claims}
    print(f"{'':14}  rounds    bytes of          Gloo's    time, ours")
    print(f"{'':14}            busiest    all     all       over Gloo's")
    for name, (rounds_of, of_all, of_busiest) in claims.items():
        ours, theirs = slowest[name]
        print(
            f"{name:14} {rounds_of:5} {of_busiest:10.2f} {of_all:8.2f}"
            f" {gloos[name]:8.2f} {ours / theirs:12.2f}"
        )

if rank == 0:
    result("all_reduce_bytes_a_rank", claims["all_reduce"][2])
    result("gloo_reduce_scatter", gloos["reduce_scatter"], varies=True)
    result("gloo_all_reduce", gloos["all_reduce"], varies=True)
    result("gloo_reduce", gloos["reduce"], varies=True)
    if np.isfinite(gloos["all_reduce"]):
        for name in ("broadcast", "scatter", "gather", "all_gather",
                     "all_reduce", "all_to_all"):
            assert abs(gloos[name] - claims[name][1]) < 0.15, name
        assert abs(gloos["reduce_scatter"] - gloos["all_reduce"]) < 0.15
        assert abs(gloos["reduce"] - (n - 1 + share)) < 0.15
        assert abs(gloos_root - 2 * share) < 0.15

# Compare the two columns "all": what all of our ranks send together, and what Gloo's
# do. Ours sent to the byte what the formulas say. In the all-reduce the busiest rank
# sends (all_reduce_bytes_a_rank) times its tensor; through a root it would be $n - 1$
# times. Gloo mostly sends the same, as less is not possible. Its rounds cannot be seen
# from outside. In two lines it sends more.
#
# Gloo's reduce-scatter moves as much as its all-reduce: (gloo_reduce_scatter) times the
# tensor against (gloo_all_reduce), where half is enough. Which of Gloo's routines ran
# inside, the profiler does show:

everyone()
play("ranks")
all_gather_single, reduce_scatter_single = (
    getattr(dist, new, None) or getattr(dist, old)
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    )
)


def reductions_inside(call, *given):
    """How many all-reduces Gloo makes of one call."""
    with profile() as p:
        call(*given)
    return sum(e.name == "gloo:all_reduce" for e in p.function_events)


everyone()

in_one_piece = torch.zeros_like(whole)
list_form = reductions_inside(dist.reduce_scatter, part, parts)
tensor_form = reductions_inside(reduce_scatter_single, part, in_one_piece)

list_form_by_rank = to_rank_0(list_form)
tensor_form_by_rank = to_rank_0(tensor_form)
if rank == 0:
    play("kernel")
    list_form, tensor_form = list_form_by_rank, tensor_form_by_rank
    assert list_form == [n] * n and tensor_form == [1] * n
    result("list_form", list_form[0])
    result("tensor_form", tensor_form[0])

# Of a list it makes (list_form) all-reduces, one for each part, and keeps one result;
# of one tensor, in `reduce_scatter_single`, (tensor_form) [gloo_reduce_scatter]. So on
# Gloo neither form saves bytes, and the list form costs rounds, too. NCCL has a
# reduce-scatter of its own [nccl]. Remember it when you measure a reduce-scatter on a
# laptop.
#
# Its reduce moves (gloo_reduce) times the tensor: a reduce-scatter, then a gather to
# the root. That is more than our tree in all. But its root receives $2\frac{n-1}{n} N$,
# never more than two tensors, and the root of our tree $\lceil \log_2 n \rceil N$,
# which grows with the ranks.
#
# The last column is the median of five calls at one size, on a machine whose ranks
# share its cores: conclude nothing from a single line. Chapter 8 measures one
# collective at all sizes.
#
# Worked problem: Eight H100 with NVLink: β = 450 GB/s each way [hopper], and α = 3.4 µs
# a round for large messages, as NCCL's own model has it [nccltuning]. What does each
# collective take for N = 1 GB, and what for 64 KB? Which of the two constants matters?


def seconds(name, n, nbytes, alpha=3.4e-6, beta=450e9):
    """The model: rounds * alpha + bytes of the busiest / beta."""
    log_n, share = ceil(log2(n)), (n - 1) / n
    rounds_of, busiest = {
        "broadcast, tree": (log_n, log_n),
        "broadcast, parts": (2 * (n - 1), 2 * share),
        "all_gather": (n - 1, share),
        "all_reduce": (2 * (n - 1), 2 * share),
        "all_reduce, root": (2 * (n - 1), 2 * (n - 1)),  # all in, then out
    }[name]
    return rounds_of * alpha + busiest * nbytes / beta


if rank == 0:
    print("8 GPUs, NVLink:         1 GB       64 KB")
    for name in ("broadcast, tree", "broadcast, parts", "all_gather",
                 "all_reduce", "all_reduce, root"):
        large, small = seconds(name, 8, 1e9), seconds(name, 8, 1 << 16)
        print(f"{name:16}: {1e3 * large:8.2f} ms {1e6 * small:8.1f} µs")
    result("of_the_wire", 7 / 8 * 1e9 / 450e9 / seconds("all_gather", 8, 1e9))

# For 1 GB, bytes are nearly all: (of_the_wire) of the all-gather's time. So the way in
# parts broadcasts faster than the tree, and an all-reduce through a root takes about
# $n$ times as long as the ring. For 64 KB, rounds are nearly all, and the tree
# broadcasts faster. For messages so short NCCL has a protocol with a smaller α (chapter
# 8): the right column is too large as a forecast, and right in its order. Over
# InfiniBand at 400 Gb/s, 50 GB/s [connectx7], the left column would be about nine times
# as large.

# --- The forms that libraries use -----------------------------------------------------

# Lists of boxes are good to look at. Libraries gather into one flat tensor, and call
# forms that fill it in one piece: no copies from separate boxes.
#
# Predict: `all_to_all_single` takes one tensor of world-size equal parts. Rank r's part
# s is 10r + s. What does rank 1 get?

everyone()
if rank == 0:
    print("\n## The forms that libraries use\n")

play("ranks")
mine = torch.tensor([float(rank)])
gathered = torch.empty(world_size)
all_gather_single(gathered, mine)

total = torch.empty(1)
reduce_scatter_single(total, torch.arange(world_size) * 1.0)

to_all = 10.0 * rank + torch.arange(world_size)
from_all = torch.empty(world_size)
dist.all_to_all_single(from_all, to_all)

largest = mine.clone()
dist.all_reduce(largest, op=dist.ReduceOp.MAX)


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play("kernel")
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return pickle.loads(box[0])


def in_step(make):
    """Loop over make() on rank 0, and as often, over None, on the other ranks."""
    if rank == 0:
        play("kernel")
        for item in make():
            from_rank_0(lambda: True)
            yield item
            play("kernel")
    while from_rank_0(lambda: False):
        yield None


gathered_by_rank = to_rank_0(gathered)
total_by_rank = to_rank_0(total)
if rank == 0:
    play("kernel")
    print("rank 1:", gathered_by_rank[1].tolist(), total_by_rank[1].tolist())

from_all_by_rank = to_rank_0(from_all)
largest_by_rank = to_rank_0(largest)
if rank == 0:
    print("       ", from_all_by_rank[1].tolist(), largest_by_rank[1].tolist())

for r in in_step(lambda: range(n)):
    gathered_by_rank = to_rank_0(gathered)
    if rank == 0:
        play("kernel")
        assert gathered_by_rank[r].tolist() == list(range(n))

    total_by_rank = to_rank_0(total)
    if rank == 0:
        assert total_by_rank[r].item() == r * n

    from_all_by_rank = to_rank_0(from_all)
    if rank == 0:
        assert from_all_by_rank[r].tolist() == [10 * s + r for s in range(n)]

    largest_by_rank = to_rank_0(largest)
    if rank == 0:
        assert largest_by_rank[r].item() == n - 1

# Rank 1 gets the parts with number 1: 1, 11, 21, and so on. Older versions of PyTorch
# call the first two `all_gather_into_tensor` and `reduce_scatter_tensor`. You will meet
# these names in most code, and they still work, with a warning. `all_to_all_single`
# also takes lists of sizes, for parts that are not equal; both sides must then name the
# same sizes, and on Gloo nobody checks.

# --- Backwards ------------------------------------------------------------------------

# Which collective does a backward pass make of each? Twice in this chapter a program
# was another one, run backwards: reduce and broadcast, reduce-scatter and all-gather.
#
# Put the numbers of all ranks together into one long vector. A collective makes another
# such vector of it. It only moves and adds numbers, so it is a linear map, and it has a
# matrix. To see the matrix $A$ of a map, apply it to the identity: let every rank hold
# its rows of the identity matrix instead of its numbers. Each column is then one long
# vector, and the collective takes them all at once. What the ranks hold afterwards are
# their rows of $A$.


def fresh(like, n):
    return [torch.zeros_like(like) for _ in range(n)]


def broadcast_map(x):
    y = x.clone()
    broadcast(y, 0)
    return y


def reduce_map(x):
    y = x.clone()
    reduce(y, 0)
    return y if rank == 0 else torch.zeros_like(y)  # the others have none


def all_gather_map(x):
    boxes = fresh(x, world_size)
    all_gather(boxes, x)
    return torch.cat(boxes)


def reduce_scatter_map(x):
    parts = list(x.chunk(world_size))
    (box,) = fresh(parts[0], 1)
    reduce_scatter(box, parts)
    return box


def scatter_map(x):
    parts = list(x.chunk(world_size))
    (box,) = fresh(parts[0], 1)
    scatter(box, parts if rank == 0 else None, 0)
    return box


def gather_map(x):
    boxes = fresh(x, world_size)
    gather(x, boxes if rank == 0 else None, 0)
    return torch.cat(boxes)


def all_reduce_map(x):
    y = x.clone()
    all_reduce(y)
    return y


def all_to_all_map(x):
    boxes = fresh(x[: len(x) // world_size], world_size)
    all_to_all(boxes, list(x.chunk(world_size)))
    return torch.cat(boxes)


def rows_of_matrix(call, parts):
    """My rows of the matrix of `call`, which takes `parts` numbers a rank."""
    identity = torch.eye(parts * world_size, dtype=torch.float64)
    return call(identity.chunk(world_size)[rank].clone())


everyone()
if rank == 0:
    print("\n## Backwards\n")

play("ranks")

takes = {  # the map, and how many numbers a rank gives to it
    "broadcast": (broadcast_map, 1), "reduce": (reduce_map, 1),
    "all_gather": (all_gather_map, 1),
    "reduce_scatter": (reduce_scatter_map, world_size),
    "scatter": (scatter_map, world_size), "gather": (gather_map, 1),
    "all_reduce": (all_reduce_map, 1),
    "all_to_all": (all_to_all_map, world_size),
}
matrix_rows = {name: rows_of_matrix(*given) for name, given in takes.items()}

# Predict: The broadcast's matrix: $n$ numbers in, one on each rank, and $n$ out. Where
# are its ones? And the reduce's?

rows_of_all = to_rank_0(matrix_rows)
if rank == 0:
    play("kernel")
    matrices = {
        name: np.concatenate([rows[name] for rows in rows_of_all])
        for name in rows_of_all[0]
    }
    adjoint = {
        "broadcast": "reduce", "all_gather": "reduce_scatter",
        "scatter": "gather", "all_reduce": "all_reduce",
        "all_to_all": "all_to_all",
    }
    for name, other in adjoint.items():
        assert np.array_equal(matrices[name].T, matrices[other]), name


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


def draw_matrix(ax, name):
    """A square for each one, in the color of the rank whose number it takes."""
    matrix = matrices[name]
    rows, columns = matrix.shape
    colors = [to_rgb(RANK_COLORS[j * n // columns]) for j in range(columns)]
    white = (1, 1, 1)
    squares = [[c if a else white for a, c in zip(r, colors)] for r in matrix]
    ax.imshow(squares)
    ax.set(title=name, xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    ax.grid(False)


if rank == 0:
    shown = "broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"
    fig, axes = plt.subplots(1, 5, num="matrices", figsize=(5.2, 2.4),
                             width_ratios=(1, 1, 0.6, 2, 1))
    for ax, name in zip(axes, shown):
        draw_matrix(ax, name)
        ax.title.set_fontsize(8)
    save_figures()


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


# A column stands for a number before, a row for a number after, and a colored square
# for a one. The color is that of the rank whose number it takes. The broadcast's ones
# are the first column, the reduce's the first row: the one matrix is the transpose of
# the other. The cell above the picture has checked it for all five pairs. All-reduce
# and all-to-all are their own transposes.
#
# The linear map that belongs to the transpose is called the adjoint. It is the one map
# $A^T$ with
#
# $$\langle A x,\, y \rangle = \langle x,\, A^T y \rangle \quad \text{for all } x \text{ and } y.$$
#
# This can be checked without a matrix, with random numbers, for tensors of any size,
# and so it makes a good test. The inner product of two vectors that are spread over the
# ranks takes one all-reduce.

push("adjoint", lambda: adjoint)


def inner(a, b):
    """The inner product of two vectors spread over the ranks."""
    total = (a * b).sum()
    dist.all_reduce(total)
    return total.item()


everyone()
play("ranks")

generator, gaps = torch.Generator().manual_seed(rank), []
for name, other in adjoint.items():
    (forward, size_in), (backward, size_out) = takes[name], takes[other]
    x, y = (
        torch.randn(3 * size, dtype=torch.float64, generator=generator)
        for size in (size_in, size_out)
    )
    gaps.append(abs(inner(forward(x), y) - inner(x, backward(y))))

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    play("kernel")
    assert np.max(gaps_by_rank) < 1e-12

# Why does it matter? The chain rule multiplies by transposes. If $y = A x$ is a step of
# the forward pass and $\partial l/\partial y$ the gradient that comes back, then
#
# $$\frac{\partial l}{\partial x} = A^T \frac{\partial l}{\partial y}.$$
#
# So the backward pass of a collective is its adjoint, and you need not derive it again:
#
# | forward | backward |
# | --- | --- |
# | broadcast | reduce |
# | all-gather | reduce-scatter |
# | scatter | gather |
# | all-reduce | all-reduce |
# | all-to-all | all-to-all |
#
# Read it in both directions. Everyone who was given the same parameter has a gradient
# for it, and the gradients must be added: broadcast forward, reduce back. Sharded
# parameters that are all-gathered for the forward pass have gradients that are
# reduce-scattered after the backward pass.
#
# The table takes every rank's tensor for numbers of its own. Where copies of one tensor
# count only once, as in tensor parallelism [shoeybi2019], other pairs belong together:
# chapter 18.
#
# PyTorch does not do it for you. The functions of `torch.distributed` write into their
# tensors and tell autograd nothing:
#
# Predict: y = 2x on every rank, then an all-reduce of y, and every rank's loss is its
# y. So each x counts in all losses. What should its gradient be, and what does autograd
# say?

everyone()
play("ranks")
x = torch.ones(1, requires_grad=True)
y = 2 * x
with torch.no_grad():
    dist.all_reduce(y)
y.backward()
gradient = x.grad.item()

by_hand = torch.tensor([2.0])  # of the loss with respect to y, times 2
dist.all_reduce(by_hand)  # the adjoint of the all-reduce

gradient_by_rank = to_rank_0(gradient)
if rank == 0:
    play("kernel")
    assert gradient_by_rank == [2.0] * n

by_hand_by_rank = to_rank_0(by_hand)
if rank == 0:
    assert [g.item() for g in by_hand_by_rank] == [2.0 * n] * n

gradient_by_rank = to_rank_0(gradient)
if rank == 0:
    result("gradient", gradient_by_rank[0])

by_hand_by_rank = to_rank_0(by_hand)
if rank == 0:
    result("right_gradient", by_hand_by_rank[0].item())


def backward_with(context):
    """(x's gradient, how many warnings) with the all-reduce in a context."""
    x = torch.ones(1, requires_grad=True)
    y = 2 * x
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with context:
            dist.all_reduce(y)
        y.backward()
    return x.grad.item(), len(caught)


everyone()
play("ranks")

assert backward_with(torch.no_grad()) == (gradient, 0)
assert backward_with(contextlib.nullcontext())[0] == gradient

# It should be (right_gradient), and it is (gradient), without an error: autograd saw no
# other rank. Without `no_grad` it is (gradient), too. All that `no_grad` does here is
# to say that we know: newer versions of PyTorch warn without it, in the backward pass,
# that the gradient may be wrong.
#
# Chapters 16 and 18 wrap collectives in autograd functions whose backward is the
# adjoint.
#
# An adjoint need not be an inverse. Gather undoes scatter, and all-to-all undoes
# itself. What does a reduce after a broadcast give?

everyone()
if rank == 0:
    play("kernel")
    round_trip = {a: matrices[b] @ matrices[a] for a, b in adjoint.items()}
    assert np.array_equal(round_trip["all_to_all"], np.eye(n * n))
    assert np.array_equal(round_trip["scatter"][:n, :n], np.eye(n))
    assert round_trip["broadcast"][0, 0] == n
    result("reduce_after_broadcast", int(round_trip["broadcast"][0, 0]))

# (reduce_after_broadcast) times what there was: as many as there are ranks.

# --- Groups ---------------------------------------------------------------------------

# So far all ranks took part. A process group of some of them makes the same calls
# possible among a few: `dist.new_group` takes their ranks. All ranks must call it, also
# those that will not be members, and in the same order; a communication is being set
# up, and that is itself collective.
#
# Predict: Even ranks form one group, odd ranks another. Both run an all-reduce at the
# same time. What does rank 1 hold afterwards?

everyone()
if rank == 0:
    print("\n## Groups\n")

play("ranks")
evens = dist.new_group(range(0, world_size, 2))
odds = dist.new_group(range(1, world_size, 2))
team = odds if rank % 2 else evens

before = marks()
x, theirs = before.clone(), before.clone()
all_reduce(x, group=team)
dist.all_reduce(theirs, group=team)
assert torch.equal(x, theirs)
numbers = rank, dist.get_rank(team), dist.get_world_size(team)

before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    play("kernel")
    show(holdings(before_by_rank, x_by_rank, name="groups"))

numbers_by_rank = to_rank_0(numbers)
if rank == 0:
    pairs = [(r, k) for r, k, _ in numbers_by_rank]
    result("rank_and_rank_in_group", pairs)

# Rank 1 holds the sum over the odd ranks. A rank has a number in each of its groups:
# (rank_and_rank_in_group) are the pairs of rank in all and rank in its group.
#
# It is a common mistake to take one for the other. Our functions count within the
# group. PyTorch's `src` and `dst` are numbers in all, also with a group; whoever wants
# to count within it says `group_src` and `group_dst` instead. The first of `odds` is
# `src=0` for our broadcast, and `src=1` or `group_src=0` for PyTorch's.

# --- Start now, wait later ------------------------------------------------------------

# With `async_op=True`, a collective returns a handle, as `isend` does. The last rank
# comes to the next cell's all-reduce only when rank 0 has looked.
#
# Predict: Is rank 0's all-reduce complete when it looks? Can rank 0 do anything else
# meanwhile?

everyone()
if rank == 0:
    print("\n## Start now, wait later\n")

play("ranks")
last, done_at_once = world_size - 1, None
x, letter = torch.ones(3), torch.zeros(1)
if rank == last:
    dist.recv(letter, src=0)  # comes late
handle = dist.all_reduce(x, async_op=True)
if rank == 0:
    done_at_once = handle.is_completed()
    dist.send(letter, dst=last)
finished = handle.wait()

finished_by_rank = to_rank_0(finished)
if rank == 0:
    play("kernel")
    assert all(finished_by_rank)

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all(x.tolist() == [n] * 3 for x in x_by_rank)

done_at_once_by_rank = to_rank_0(done_at_once)
if rank == 0:
    result("done_at_once", done_at_once_by_rank[0])

# When rank 0 looked, `is_completed()` said (done_at_once). Its all-reduce was still
# under way, and rank 0 had gone on: it even sent a message, without which that
# all-reduce could never have ended. Between the call and `wait()` the tensor belongs to
# the collective, just as in chapter 6. Several may be under way at once, and all ranks
# must start them in the same order. Chapter 12 hides the gradients' all-reduce behind
# the backward pass in this way.
#
# With NCCL `wait()` returns at once, and only the GPU's later work waits
# [pytorchdistributed]. So before you read a clock, call `torch.cuda.synchronize()`.

# --- Objects --------------------------------------------------------------------------

# Every tensor collective has a cousin for anything that Python can pickle:
# `broadcast_object_list`, `all_gather_object` and others. They need no box and no
# agreement on shapes.
#
# Predict: So why not always? How many times as long does a list of 100,000 numbers take
# as a tensor of them?


def slow_and_fast(count, repeats):
    """Median seconds to all-gather numbers, in a list and in a tensor."""
    tensor = torch.rand(count, dtype=torch.float64)
    as_list, found = tensor.tolist(), [None] * world_size
    boxes = fresh(tensor, world_size)
    return (
        median_time(dist.all_gather_object, (found, as_list), repeats),
        median_time(dist.all_gather, (boxes, tensor), repeats),
    )


everyone()
if rank == 0:
    print("\n## Objects\n")

play("ranks")

object_times = slow_and_fast(100_000, repeats=3)

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


object_times_by_rank = to_rank_0(object_times)
if rank == 0:
    play("kernel")
    slow, fast = np.max(object_times_by_rank, axis=0)  # the slowest rank's
    assert slow > fast or not cores_are_free()
    result("objects_many", slow / fast, varies=True)

# Here the list takes (objects_many) times as long. An object is pickled, each number of
# the list as an object of its own. And since nobody knows how long the others' bytes
# are, a collective of lengths goes first: two instead of one.
#
# Unpickling also runs whatever code the bytes ask for, so do it only among ranks that
# you trust. Objects are for names, settings and reports, once in a while; tensors for
# everything in a loop. With NCCL the bytes travel through the rank's GPU, so every rank
# must have chosen its own with `torch.cuda.set_device`.

# --- When the calls do not match ------------------------------------------------------

# A collective has no name. The first call of each rank in a group belongs together,
# then the second, and so on. Here the ranks add up two gradients, and rank 0 goes
# through them in another order, as a loop over a `set` of names may.
#
# Predict: Every weight's gradient is 1 and every bias's is 10. Four ranks add theirs
# up. What should come out, and what does?

everyone()
if rank == 0:
    print("\n## When the calls do not match\n")

play("ranks")
gradients = {"weight": torch.ones(2), "bias": torch.full((2,), 10.0)}
for key in ["bias", "weight"] if rank == 0 else ["weight", "bias"]:
    dist.all_reduce(gradients[key])

gradients_by_rank = to_rank_0(gradients)
if rank == 0:
    play("kernel")
    weights = [gradients["weight"].tolist() for gradients in gradients_by_rank]
    assert weights[1] == [10.0 + n - 1] * 2 != [n] * 2
    result("weights_wrong", weights[1][0])


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


# No error, and every number is wrong: the weights' gradients should be the world size,
# everywhere, and on rank 1 they are (weights_wrong). The first all-reduce added rank
# 0's bias to the others' weights, 10 + 3 · 1 with four ranks, and the second rank 0's
# weight to the others' biases. The shapes agreed, and nothing else is looked at.
#
# This is the dangerous kind. `Ranks(4, debug=True)`, or
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` on a cluster, compares what the ranks call before
# every collective; it finds calls of different kinds, sizes or types, and it is slow.
# Two tensors of the same size in the wrong order are found only by a test of the
# numbers.
#
# The other kind is loud. Only rank 0 prints the mean loss, so somebody has put the
# all-reduce where it prints:

everyone()
play("ranks")
with may_fail():
    loss = torch.tensor([float(rank)])
    if rank == 0:
        dist.all_reduce(loss)
        print(f"mean loss {loss.item() / world_size}")
    dist.barrier()


def fresh_group():
    """Replace the process groups, whatever state they are in; variables live on."""
    everyone()
    dist.destroy_process_group()
    form_groups()


# The lab names both calls: rank 0 is in an all-reduce, and the others, which have
# passed it by, are in the barrier. On a cluster you would see little more than that a
# time is up. Whenever that happens, look first for a collective inside of an `if` that
# depends on the rank.
#
# The rule: all ranks of a group make the same calls, in the same order, on tensors of
# the same shape and type, whatever each of them does in between.

fresh_group()

loss = torch.tensor([float(rank)])
dist.all_reduce(loss)
if rank == 0:
    print(f"mean loss {loss.item() / world_size}")


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


loss_by_rank = to_rank_0(loss)
if rank == 0:
    play("kernel")
    assert [loss.item() for loss in loss_by_rank] == [n * (n - 1) / 2] * n

# The groups of the evens and the odds are gone with the reset: whoever needs them makes
# them again.

# --- What you can do now --------------------------------------------------------------

# - Say of each of the nine collectives who holds what before and after, and draw it.
# - Write each one with messages, for any number of ranks, any length, any group; along
#   a tree, around a ring, or pair by pair.
# - Say how many rounds each takes, how many bytes the busiest rank sends or receives,
#   and so how long it takes on given links.
# - Name the adjoint of each, test it with two random vectors, and read a backward pass
#   off it, which PyTorch does not do for you.
# - Call collectives in groups, and start them now and wait later.
# - Recognize calls that do not match, the silent kind and the loud one.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/07_collectives.py
#
# On two hosts (the same line on both, with the first one's name):
#
#     torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \
#         --rdzv-endpoint HOST:29500 scripts/07_collectives.py
#
# Between hosts, look at the last column of the bill again. Bytes and rounds are the
# same; what they cost is not.

# --- Where to read on -----------------------------------------------------------------

# - [chan2007]: the collectives as a family, with their duals, their lower bounds, and
#   algorithms that reach them. The best next reading.
# - [thakur2005]: which algorithm MPICH takes for which size, and why.
# - [hensgen1988]: the barrier of this chapter, in a few pages.
# - [bruck1997]: all-to-all in fewer rounds, for more bytes.
# - [mpi], chapter 6: every collective, exactly.
# - [pytorchdistributed]: which backend has which collective.
# - [nccl]: the same collectives between GPUs, with pictures.

leave_group()
