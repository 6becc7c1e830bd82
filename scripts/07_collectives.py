# Chapter 7 of Many Ranks, One Model, as one script. Generated from book/07_collectives.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 07_collectives.py
#     torchrun --standalone --nproc-per-node 4 07_collectives.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 07_collectives.py
#     mpiexec -n 4 python 07_collectives.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import html
import io
import os
import pickle
import re
import socket
import struct
import sys
import time
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
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(host.rank),
        LOCAL_WORLD_SIZE=str(host.size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )


def choose_device(device=None, backend=None):
    """A GPU for each rank, and NCCL, if there are enough; else Gloo. Or what is asked for."""
    local_rank, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    device = torch.device(device or (f"cuda:{local_rank % gpus}" if gpus else "cpu"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device, backend or ("nccl" if device.type == "cuda" and gpus >= here else "gloo")


def form_groups():
    """Form the process group, and a second one that moves values to and from rank 0.

    The second one is patient: rank 0 may compute alone for long.
    """
    global driver
    number = store.add(f"groups of rank {rank}", 1)
    own = dist.PrefixStore(f"group {number}", store)
    own.set(f"rank {rank}", "here")  # no clock runs before all ranks are here
    own.wait([f"rank {r}" for r in range(world_size)], timedelta(minutes=30))
    limit = timedelta(seconds=3)
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
device, backend = choose_device(device='cpu', backend='gloo')
store = next(dist.rendezvous("env://"))[0]
form_groups()


APART = ["adjoint"]  # the kernel and the ranks have one each
playing, held_by = "kernel", {"ranks": {}}


def play(part):
    """Rank 0 is also the kernel; give each part its own of the names that are apart."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
    return before


# === What everybody does together =====================================================

# A training step gives every rank the start, shares out the batch, adds everybody's
# gradients. Which patterns are these, what does each of them cost, and which one undoes
# which?
#
# 35 minutes to read · 15 seconds to run · stands on chapter 6
#
# At the end you know the nine calls that nearly every distributed program is made of.
# You have written each of them with nothing but messages, you can say what it sends and
# in how many rounds, and you know which of them a backward pass turns into which.

# A collective is one call that all ranks of a process group make together. Nobody names
# a partner; who sends what to whom, and when, is inside. All that a caller must know is
# who holds what before, and who holds what after. To see that, let every number say
# where it comes from:


def marks(n=1):
    """n numbers of this rank, the j-th with one bit: 2 ** (rank + 8 * j) says whose, and which."""
    return torch.tensor([2.0 ** (rank + 8 * j) for j in range(n)], dtype=torch.float64)


def empty(n=1):
    return torch.zeros(n, dtype=torch.float64)


# Rank 0's first number is 1 and rank 2's is 4, so a 5 can only be their sum: up to
# eight ranks, each number has a bit of its own. So every picture of this chapter is
# drawn from what the ranks really hold, before and after. A cell has the color of the
# rank that its number comes from.
#
# The messages are those of chapter 6, `sendrecv` among them, with two additions. A
# message may be a view of something larger (a column of a matrix, say), which has to be
# packed to be sent; and the partners may be numbered within a group of ranks, of which
# more below. `group=None` means all ranks.


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
    """Send `outgoing` to rank dst and fill `incoming` from rank src, both at the same time."""
    handle = dist.isend(outgoing.contiguous(), group=group, group_dst=dst)
    recv(incoming, src, group)
    handle.wait()


# --- Broadcast ------------------------------------------------------------------------

# One rank, the root, has a tensor; afterwards all have it. The obvious way: the root
# sends it to one rank after the other.
#
# We count bytes, and rounds. A rank has one connection to the network, so let it send
# one message at a time, and receive one at a time. Messages that can be under way
# together are one round; one that must wait for another, because a rank is busy or has
# not got it yet, is in a later round.


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
    """Give the x of rank src to all ranks of the group, in place, along a binomial tree."""
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
# numbers (among all ranks; in groups the root is numbered differently, see below).

if rank == 0:
    print("\n## Broadcast\n")

x = marks() if rank == 0 else empty()
before = x.clone()
theirs = x.clone()
broadcast(x, 0)
dist.broadcast(theirs, 0)  # PyTorch's own
assert torch.equal(x, theirs)


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
        plt.close(value)
    elif hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    show(holdings(before_by_rank, x_by_rank, name="broadcast"))

# Every rank but the root must get the $N$ bytes once, so $n - 1$ messages of $N$ bytes
# is the least. Both versions send just that. What the tree saves are rounds: $\lceil
# \log_2 n \rceil$ for $n - 1$.
#
# Used for: the same initial parameters on every rank.

# --- Scatter and gather ---------------------------------------------------------------

# Scatter: the root has $n$ parts and gives one to each rank. Gather is the way back. No
# part is needed by two ranks, so there is nothing to pass on, and the root sends each
# one straight to its owner.


def scatter(box, parts, src, group=None):
    """Fill every rank's box with its part of the list that rank src has; the others give None."""
    me = dist.get_rank(group)
    if me != src:
        recv(box, src, group)
        return
    for dst, part in enumerate(parts):
        if dst == me:
            box.copy_(part)
        else:
            send(part, dst, group)


def gather(x, boxes, dst, group=None):
    """Fill the list of boxes that rank dst has with every rank's x; the others give None."""
    me = dist.get_rank(group)
    if me != dst:
        send(x, dst, group)
        return
    for src, box in enumerate(boxes):
        if src == me:
            box.copy_(x)
        else:
            recv(box, src, group)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


everyone()
if rank == 0:
    print("\n## Scatter and gather\n")

before = marks(world_size) if rank == 0 else empty(0)
parts = list(before.split(1)) if rank == 0 else None
box, theirs = empty(), empty()
scatter(box, parts, 0)
dist.scatter(theirs, parts, 0)
assert torch.equal(box, theirs)

before_by_rank = to_rank_0(before)
box_by_rank = to_rank_0(box)
if rank == 0:
    show(holdings(before_by_rank, box_by_rank, name="scatter"))

everyone()
before = marks()
boxes = [empty() for _ in range(world_size)] if rank == 0 else None
theirs = [empty() for _ in range(world_size)] if rank == 0 else None
gather(before, boxes, 0)
dist.gather(before, theirs, 0)
assert boxes == theirs

before_by_rank = to_rank_0(before)
boxes_by_rank = to_rank_0(boxes)
if rank == 0:
    show(holdings(before_by_rank, [held or [] for held in boxes_by_rank], name="gather"))

# If the whole has $N$ bytes, the root sends (or receives) $\frac{n-1}{n} N$ of them, in
# $n - 1$ rounds. With a tree it would take $\lceil \log_2 n \rceil$ rounds, but then
# parts travel more than once: good for parts so small that α, a message's time without
# its bytes (chapter 6), is all that counts [thakur2005].
#
# Used for: sharing out data that one rank has read; collecting losses or samples in one
# place, for a log. Beware of gathering anything large: the root needs room for all of
# it.

# --- All-gather -----------------------------------------------------------------------

# Everybody gathers. A gather and then a broadcast would do, through a root that
# everyone waits for. The ring has no root: everyone passes on to the right what came
# from the left, until everything has been everywhere. It is chapter 6's last program,
# without its sum.


def all_gather(boxes, x, group=None):
    """Fill every rank's boxes, one for each rank, with every rank's x, around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    boxes[me].copy_(x)
    for step in range(n - 1):
        mine, next_one = boxes[(me - step) % n], boxes[(me - step - 1) % n]
        sendrecv(mine, right, next_one, left, group)


everyone()
if rank == 0:
    print("\n## All-gather\n")

before = marks()
boxes, theirs = ([empty() for _ in range(world_size)] for _ in range(2))
all_gather(boxes, before)
dist.all_gather(theirs, before)
assert boxes == theirs

before_by_rank = to_rank_0(before)
boxes_by_rank = to_rank_0(boxes)
if rank == 0:
    show(holdings(before_by_rank, boxes_by_rank, name="all-gather"))

# Each box is a tensor of its own. (`[empty()] * n` would be one box, n times, and keep
# one part only.)
#
# Every rank receives the $n - 1$ parts that it does not have: $\frac{n-1}{n} N$ bytes,
# in $n - 1$ rounds. Fewer bytes there cannot be.
#
# Used for: putting together a tensor of which everyone has a shard: parameters (chapter
# 19), activations (chapter 18).

# --- Reduce ---------------------------------------------------------------------------

# Now something new: numbers are combined. Reduce adds the tensors of all ranks, and the
# root gets the sum. How do they get there? Take the tree of the broadcast and run it
# backwards: the last round first, every message in the other direction, and "add what
# comes" instead of "keep what comes".


def reduce(x, dst, group=None):
    """Put the sum of all ranks' x into the x of rank dst; the others' x stays as it is."""
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
kept = torch.equal(theirs, before)

before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    show(holdings(before_by_rank, x_by_rank, name="reduce"))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# A cell with stripes is a sum; its stripes are the ranks that are in it. The assertion
# looks at rank 0 alone, and it must. What did PyTorch's own leave on the others?

kept_by_rank = to_rank_0(kept)
if rank == 0:
    changed = [r for r, kept in enumerate(kept_by_rank) if r > 0 and not kept]
    result("changed_by_pytorchs_reduce", changed, varies=True)

# These ranks have something else in `theirs` than they gave: nothing is promised about
# the tensor of a rank that is not the root, and Gloo uses it as scratch paper. To read
# it afterwards is a mistake that works on one backend and not on another.
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
    """Fill every rank's box with the sum of its part of all ranks' lists, around the ring."""
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

before = marks(world_size)
parts = list(before.split(1))
box, theirs = empty(), empty()
reduce_scatter(box, parts)
dist.reduce_scatter(theirs, parts)
assert torch.equal(box, theirs)

before_by_rank = to_rank_0(before)
box_by_rank = to_rank_0(box)
if rank == 0:
    show(holdings(before_by_rank, box_by_rank, name="reduce-scatter"))

# A sum travels. It starts at the owner's left neighbor and goes around to the left,
# every rank adds its own part, and it ends at its owner: of four ranks, part 0 goes
# from rank 3 to 2, to 1, to 0. As in the all-gather, every rank sends $\frac{n-1}{n} N$
# bytes in $n - 1$ rounds.
#
# Used for: gradients of which every rank needs only its own shard (chapter 19).

# --- All-reduce -----------------------------------------------------------------------

# The sum of everything, for everyone: the one that data parallelism lives on.
# Reduce-scatter gives each rank a part of the sum. All-gather gives everybody
# everybody's part. So there is nothing left to write but the cutting into parts, which
# need not be of the same size.


def all_reduce(x, group=None):
    """Replace every rank's x by the sum of all: reduce-scatter, then all-gather."""
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

before = marks(world_size)
x, theirs = before.clone(), before.clone()
all_reduce(x)
dist.all_reduce(theirs)
assert torch.equal(x, theirs)

before_by_rank = to_rank_0(before)
x_by_rank = to_rank_0(x)
if rank == 0:
    show(holdings(before_by_rank, x_by_rank, name="all-reduce"))

# Each half costs $\frac{n-1}{n} N$ bytes a rank, so it is $2\,\frac{n-1}{n} N$
# together: less than twice the tensor, however many ranks there are. As long as only
# the ranks add, that is the best possible in bytes [patarasuk2009]. In rounds,
# $2(n-1)$, it is not. chapter 8 is about nothing else.
#
# Used for: gradients (chapter 10), and whatever everybody must agree on.

# --- All-to-all -----------------------------------------------------------------------

# Everyone has a part for everyone. In step $k$, each rank sends to the one $k$ places
# to the right and receives from the one $k$ places to the left, so that no two ranks
# send to the same one at the same time: pairwise exchange [thakur2005].


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

before = marks(world_size)
parts = list(before.split(1))
boxes, theirs = ([empty() for _ in range(world_size)] for _ in range(2))
all_to_all(boxes, parts)
dist.all_to_all(theirs, parts)
assert boxes == theirs

before_by_rank = to_rank_0(before)
boxes_by_rank = to_rank_0(boxes)
if rank == 0:
    show(holdings(before_by_rank, boxes_by_rank, name="all-to-all"))

# It is the transposed matrix: what was a row is a column. No number is needed twice and
# none is added, so every rank must send the $\frac{n-1}{n} N$ bytes that are for
# others. It does, in $n - 1$ rounds.
#
# Used for: tokens that go to their experts and back (chapter 21); going from one way of
# sharing a tensor to another.

# --- Barrier --------------------------------------------------------------------------

# Nobody passes before everybody has come. No data at all, and yet everyone must have
# heard of everyone. In round $k$, tell the rank $2^k$ places to the right that you are
# here, and wait for word from the one $2^k$ to the left. With every round, you know of
# twice as many. This is the dissemination barrier [hensgen1988].


def barrier(group=None):
    """Return when every rank of the group has called it."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    step = 1
    while step < n:
        sendrecv(torch.empty(0), (me + step) % n, torch.empty(0), (me - step) % n, group)
        step *= 2


# To see it work, let every rank come at another time. (PyTorch's own lines them up
# first.)


def come_and_go(wait):
    """Come 0.05 s after the rank before, wait for all; return when this rank came and went."""
    dist.barrier()
    time.sleep(0.05 * rank)
    came = time.time()
    wait()
    return came, time.time()


everyone()
if rank == 0:
    print("\n## Barrier\n")

came_and_went = come_and_go(barrier), come_and_go(dist.barrier)

came_and_went_by_rank = to_rank_0(came_and_went)
if rank == 0:
    for what, times in zip(("ours", "PyTorch's"), zip(*came_and_went_by_rank)):
        last_came, first_went = max(came for came, _ in times), min(went for _, went in times)
        milliseconds = 1e3 * (first_went - last_came)
        print(f"{what}: the first rank left {milliseconds:.1f} ms after the last came")
        assert first_went > last_came - 0.02  # the clocks of several hosts may differ a little


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

everyone()
with trace() as t:
    come_and_go(barrier)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(messages(t_by_rank, name="barrier"))

# The grey band is PyTorch's barrier, which lines them up. Then whoever comes early
# waits in one of its rounds (the broad pale part), until word of the last rank has
# reached it.
#
# Used for: starting a clock at the same time; waiting until rank 0 has written a file.
# It is not needed between two collectives: the second one finds its partners by itself.

# --- The bill -------------------------------------------------------------------------

# Nine collectives, and for each a claim about bytes and rounds. Are they true? And what
# does PyTorch's own send? Our own messages are in a trace, where `traffic` counts them.
# Inside of Gloo the profiler cannot see; but the operating system counts what every
# connection has received, and on Linux a process may ask (how, you need not read).


def received_over_tcp():
    """Bytes that this process's open connections have received so far; nan where nobody counts."""
    if not os.path.isdir("/proc/self/fd"):  # not Linux
        return float("nan")
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=int(number))
        except OSError:  # not a connection
            continue
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
            total += struct.unpack_from("Q", info, 128)[0]  # tcpi_bytes_received
        except (OSError, struct.error):  # not TCP
            pass
        finally:
            connection.detach()  # only look: it stays open
    return total


# Every collective, with a tensor of 64 KB a part. The arguments are the same for ours
# and for PyTorch's.

everyone()
if rank == 0:
    print("\n## The bill\n")

whole = torch.zeros(world_size * (1 << 14))
parts, boxes = list(whole.clone().chunk(world_size)), list(whole.clone().chunk(world_size))
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
    """What one collective did: ours in a trace, Gloo's bytes, and the seconds of both."""
    pytorchs = getattr(dist, ours.__name__)
    seconds = median_time(ours, given), median_time(pytorchs, given)
    with trace() as t:
        ours(*given)
    start = received_over_tcp()
    dist.barrier()  # its own bytes are too few to matter
    pytorchs(*given)
    return t, received_over_tcp() - start, seconds


everyone()

bill = {ours.__name__: measured(ours, given) for ours, given in arguments().items()}
bytes_and_times = {name: rest for name, (t, *rest) in bill.items()}

# What must come out, with $n$ ranks; bytes of all ranks together, as a multiple of the
# whole tensor's:

everyone()
if rank == 0:
    n = world_size
    log_n = ceil(log2(n))
    claims = {  # name: (bytes, rounds)
        "broadcast": (n - 1, log_n),
        "scatter": ((n - 1) / n, n - 1),
        "gather": ((n - 1) / n, n - 1),
        "all_gather": (n - 1, n - 1),
        "reduce": (n - 1, log_n),
        "reduce_scatter": (n - 1, n - 1),
        "all_reduce": (2 * (n - 1), 2 * (n - 1)),
        "all_to_all": (n - 1, n - 1),
        "barrier": (0, log_n),
    }
    result("all_reduce_bytes_a_rank", claims["all_reduce"][0] / n)

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)

# Bytes are in the trace, and rounds can be read off it: a message is in the round after
# the last one that either of its ends had to finish before.

measurements = to_rank_0(bytes_and_times)
if rank == 0:
    gloos = {name: sum(m[name][0] for m in measurements) / (n * (4 << 14)) for name in claims}
    slowest = {name: np.max([m[name][1] for m in measurements], axis=0) for name in claims}
    print(f"{'':14}  rounds  bytes   Gloo's   time, ours")
    print(f"{'':14}                  bytes    over Gloo's")
    for name, (bytes_claimed, rounds_claimed) in claims.items():
        ours, pytorchs = slowest[name]
        print(
            f"{name:14} {rounds_claimed:5} {bytes_claimed:8.2f} {gloos[name]:8.2f}"
            f" {ours / pytorchs:9.2f}"
        )
    result("gloo_reduce_scatter", gloos["reduce_scatter"], varies=True)
    result("gloo_all_reduce", gloos["all_reduce"], varies=True)
    result("gloo_reduce", gloos["reduce"], varies=True)
    ratios = [ours / pytorchs for ours, pytorchs in slowest.values()]
    result("median_ratio", float(np.median(ratios)), varies=True)

# Our own versions sent to the byte what the formulas say (the notebook asserts it); in
# the all-reduce each rank sends (all_reduce_bytes_a_rank) times its tensor. Gloo mostly
# sends the same, for there is nothing less to send. Two lines stand out.
# - Gloo's reduce-scatter moves as much as its all-reduce: (gloo_reduce_scatter) times
#   the tensor against (gloo_all_reduce), where half is enough. PyTorch has it do the
#   whole all-reduce and keep one part of the result. So on Gloo you save memory with a
#   reduce-scatter, and no bytes. NCCL has a real one [nccl]. Whoever measures chapter
#   19 on a laptop should remember it.
# - Its reduce moves (gloo_reduce) times the tensor: a reduce-scatter around a ring,
#   then a gather to the root. That is more than our tree in total, but its root
#   receives $2\,\frac{n-1}{n} N$, and the root of our tree $N$ in every round: with
#   many ranks, the more.
#
# The last column is the time: ours over Gloo's, below 1 if ours is faster. It is about
# one size and five calls, on a machine whose ranks share its cores, and single lines
# differ from run to run: conclude nothing from one of them. The median of the nine is
# (median_ratio). Chapter 8 measures one collective at all sizes.

# --- Backwards ------------------------------------------------------------------------

# Twice in this chapter a program was another one, run backwards: reduce and broadcast,
# reduce-scatter and all-gather. It is no accident. Each of these collectives (with a
# sum) is a linear map: it takes the numbers of all ranks together, one long vector, to
# another such vector. So it has a matrix. To see the matrix $A$ of a map, apply it to
# the identity: let every rank hold its rows of the identity matrix instead of its
# numbers. Every column is treated alike, as a vector of its own, so what the ranks hold
# afterwards are their rows of $A$. (The eight functions below only give all maps one
# form: a tensor in, a tensor out.)


def fresh(like, n):
    return [torch.zeros_like(like) for _ in range(n)]


def broadcast_map(x):
    y = x.clone()
    broadcast(y, 0)
    return y


def reduce_map(x):
    y = x.clone()
    reduce(y, 0)
    return y if rank == 0 else torch.zeros_like(y)  # the others have no result


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
    """This rank's rows of the matrix of `call`, which takes `parts` numbers from every rank."""
    identity = torch.eye(parts * world_size, dtype=torch.float64)
    return call(identity.chunk(world_size)[rank].clone())


everyone()
if rank == 0:
    print("\n## Backwards\n")

takes = {  # the map, and how many numbers a rank gives to it
    "broadcast": (broadcast_map, 1), "reduce": (reduce_map, 1),
    "all_gather": (all_gather_map, 1), "reduce_scatter": (reduce_scatter_map, world_size),
    "scatter": (scatter_map, world_size), "gather": (gather_map, 1),
    "all_reduce": (all_reduce_map, 1), "all_to_all": (all_to_all_map, world_size),
}
matrix_rows = {name: rows_of_matrix(*given) for name, given in takes.items()}

# Predict: The broadcast's matrix: $n$ numbers in, one on each rank, and $n$ out. Where
# are its ones? And the reduce's?

rows_of_all = to_rank_0(matrix_rows)
if rank == 0:
    matrices = {name: np.concatenate([rows[name] for rows in rows_of_all]) for name in rows_of_all[0]}
    adjoint = {
        "broadcast": "reduce",
        "all_gather": "reduce_scatter",
        "scatter": "gather",
        "all_reduce": "all_reduce",
        "all_to_all": "all_to_all",
    }
    for name, other in adjoint.items():
        assert np.array_equal(matrices[name].T, matrices[other]), f"{name} and {other}"
    result("adjoint_pairs", len(adjoint))


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


def draw_matrix(ax, name):
    """A square for each one in the matrix, in the color of the rank whose number it takes."""
    matrix = matrices[name]
    rows, columns = matrix.shape
    colors = [to_rgb(RANK_COLORS[j * n // columns]) for j in range(columns)]
    ax.imshow([[color if a else (1, 1, 1) for a, color in zip(row, colors)] for row in matrix])
    ax.set(title=name, xticks=[], yticks=[])
    ax.spines[:].set_visible(True)
    ax.grid(False)


if rank == 0:
    fig, axes = plt.subplots(1, 5, num="matrices", figsize=(5.2, 2.4), width_ratios=(1, 1, 0.6, 2, 1))
    for ax, name in zip(axes, ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")):
        draw_matrix(ax, name)
        ax.title.set_fontsize(8)
    save_figures()


def from_rank_0(make):
    """What make() returns on rank 0, in the kernel, on every rank: a copy for each."""
    before = play("kernel")
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return pickle.loads(box[0])


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


# The broadcast's ones are the first column, the reduce's the first row. All
# (adjoint_pairs) pairs are a matrix and its transpose. The linear map that belongs to
# the transpose is called the adjoint; it is the one map $A^T$ with
#
# $$\langle A x,\, y \rangle = \langle x,\, A^T y \rangle \quad \text{for all } x \text{ and } y.$$
#
# This can be checked without a matrix, with random numbers, for tensors of any size:
# the form in which you will want it as a test. An inner product of two vectors that are
# spread over the ranks is one all-reduce.

push("adjoint", lambda: adjoint)


def inner(a, b):
    """The inner product of two vectors of which every rank holds a part: on every rank."""
    total = (a * b).sum()
    dist.all_reduce(total)
    return total.item()


everyone()
play("ranks")

generator = torch.Generator().manual_seed(rank)
gaps = []
for name, other in adjoint.items():
    (forward, size_in), (backward, size_out) = takes[name], takes[other]
    x = torch.randn(3 * size_in, dtype=torch.float64, generator=generator)
    y = torch.randn(3 * size_out, dtype=torch.float64, generator=generator)
    gaps.append(abs(inner(forward(x), y) - inner(x, backward(y))))

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
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
# reduce-scattered after the backward pass (chapter 19).
#
# (The table takes every rank's tensor for numbers of its own. Where copies of one
# tensor count only once, as in tensor parallelism [shoeybi2019], other pairs belong
# together: chapter 18.)
#
# An adjoint need not be an inverse. Gather undoes scatter, and all-to-all undoes
# itself. What does a reduce after a broadcast give?

if rank == 0:
    play("kernel")
    there_and_back = {name: matrices[other] @ matrices[name] for name, other in adjoint.items()}
    assert np.array_equal(there_and_back["all_to_all"], np.eye(n * n))
    assert np.array_equal(there_and_back["scatter"][:n, :n], np.eye(n))  # what the root had
    assert there_and_back["broadcast"][0, 0] == n
    result("reduce_after_broadcast", int(there_and_back["broadcast"][0, 0]))

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
    show(holdings(before_by_rank, x_by_rank, name="groups"))

numbers_by_rank = to_rank_0(numbers)
if rank == 0:
    result("rank_and_rank_in_group", [(r, k) for r, k, _ in numbers_by_rank])

# A rank has a number in each of its groups: (rank_and_rank_in_group) are (rank in all,
# rank in its group). Our functions count within the group. PyTorch's `src` and `dst`
# are numbers in all, also with a group; who wants to count within it says `group_src`
# and `group_dst` instead. The first of `odds` is `src=0` for our broadcast, and `src=1`
# or `group_src=0` for PyTorch's. To mix the two up is a classic, and with an unlucky
# pair of numbers it hangs. Grids of groups, a row and a column for each rank, are what
# chapters 18 to 22 are built on.

# --- Start now, wait later ------------------------------------------------------------

# With `async_op=True`, a collective returns a handle, as `isend` does. The last rank
# comes to the next cell's all-reduce only when rank 0 has looked:

everyone()
if rank == 0:
    print("\n## Start now, wait later\n")

last, done_at_once = world_size - 1, None
x, letter = torch.ones(3), torch.zeros(1)
if rank == last:
    dist.recv(letter, src=0)  # comes late
handle = dist.all_reduce(x, async_op=True)
if rank == 0:
    done_at_once = handle.is_completed()
    dist.send(letter, dst=last)
finished = handle.wait()

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all(x.tolist() == [world_size] * 3 for x in x_by_rank)

done_at_once_by_rank = to_rank_0(done_at_once)
if rank == 0:
    result("done_at_once", done_at_once_by_rank[0])

# When rank 0 looked (complete: (done_at_once)), its all-reduce was still under way, and
# rank 0 had gone on: it even sent a message, without which that all-reduce could never
# have ended. Between the call and `wait()` the tensor belongs to the collective, just
# as in chapter 6. Several may be under way at once, and all ranks must start them in
# the same order. Chapter 12 hides the gradients' all-reduce behind the backward pass in
# this way. (With NCCL `wait()` returns at once, and only the GPU's later work waits
# [pytorchdistributed]. Before you read a clock, call `torch.cuda.synchronize()`.)

# --- Objects --------------------------------------------------------------------------

# Every tensor collective has a cousin for anything that Python can pickle:
# `broadcast_object_list`, `all_gather_object` and others. They need no box and no
# agreement on shapes. So why not always?


def slow_and_fast(count, repeats):
    """Median seconds to all-gather `count` numbers: as a list of Python's, and as a tensor."""
    tensor = torch.rand(count, dtype=torch.float64)
    numbers_as_list, found = tensor.tolist(), [None] * world_size
    boxes = fresh(tensor, world_size)
    return (
        median_time(dist.all_gather_object, (found, numbers_as_list), repeats),
        median_time(dist.all_gather, (boxes, tensor), repeats),
    )


everyone()
if rank == 0:
    print("\n## Objects\n")

object_times = slow_and_fast(1, repeats=25), slow_and_fast(100_000, repeats=5)

object_times_by_rank = to_rank_0(object_times)
if rank == 0:
    slow_fast = np.max(object_times_by_rank, axis=0)  # the slowest rank's
    assert slow_fast[1, 0] > slow_fast[1, 1]
    result("objects_one", slow_fast[0, 0] / slow_fast[0, 1], varies=True)
    result("objects_many", slow_fast[1, 0] / slow_fast[1, 1], varies=True)

# An object is pickled, and since nobody knows how long the others' bytes are, a
# collective of lengths goes first: two instead of one. For one number that took
# (objects_one) times as long here (on a busy machine the ranks' waiting for their turn
# can hide the difference), and for a list of 100,000 (objects_many) times, for each
# number is an object of its own. And unpickling runs whatever code the bytes ask for,
# so do it only among ranks that you trust. Objects are for names, settings and reports,
# once in a while; tensors for everything in a loop.

# --- When the calls do not match ------------------------------------------------------

# A collective has no name. The first call of each rank in a group belongs together,
# then the second, and so on. Here the ranks add up two gradients, and rank 0 goes
# through them in another order (as a loop over a `set` of names may):
#
# Predict: Every weight's gradient is 1 and every bias's is 10. Four ranks add theirs
# up. What should come out, and what does?

everyone()
if rank == 0:
    print("\n## When the calls do not match\n")

gradients = {"weight": torch.ones(2), "bias": torch.full((2,), 10.0)}
for key in ["bias", "weight"] if rank == 0 else ["weight", "bias"]:
    dist.all_reduce(gradients[key])

gradients_by_rank = to_rank_0(gradients)
if rank == 0:
    weights = [gradients["weight"].tolist() for gradients in gradients_by_rank]
    assert weights[1] == [10.0 + n - 1] * 2 != [n] * 2
    result("weights_wrong", weights)


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        print(f"rank {rank} failed, as it may here: {type(error).__name__}: {first_line}")


# No error, and every number is wrong: the weights' gradients should be the world size,
# everywhere. The first all-reduce added rank 0's bias to the others' weights, with four
# ranks 10 + 3 · 1 = 13, and the second rank 0's weight to the others' biases, 1 + 3 ·
# 10 = 31: the shapes agreed, and nothing else is looked at. (With different sizes Gloo
# may end the process.) This is the dangerous kind. `Ranks(4, debug=True)`, or
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` on a cluster, compares what the ranks call before
# every collective; it finds calls of different kinds, sizes or types, and it is slow.
# Two tensors of the same size in the wrong order nobody finds but a test of the
# numbers.
#
# The other kind is loud. Rank 0 alone prints, so the average is put where it prints:

everyone()
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
# passed it by, are in the barrier. On a cluster you would see only that a time is up.
# Whenever that happens, look first for a collective inside of an `if` that depends on
# the rank. The rule: all ranks of a group make the same calls, in the same order, on
# tensors of the same shape and type, whatever each of them does in between.

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
    assert [loss.item() for loss in loss_by_rank] == [n * (n - 1) / 2] * n

# (The groups of the evens and the odds are gone with the reset: whoever needs them
# makes them again.)

# --- What you can do now --------------------------------------------------------------

# - Say of each of the nine collectives who holds what before and after, and draw it.
# - Write each one with messages, for any number of ranks, any length, any group; along
#   a tree, around a ring, or pair by pair.
# - Say how many bytes and how many rounds that takes, and count both.
# - Name the adjoint of each, test it with two random vectors, and read a backward pass
#   off it.
# - Call collectives in groups, and start them now and wait later.
# - Recognize calls that do not match, the silent kind and the loud one.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/07_collectives.py
#
# On two hosts (the same line on both, with the first one's name):
#
#     torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 scripts/07_collectives.py
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
