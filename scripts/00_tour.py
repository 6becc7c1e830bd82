# Chapter 0 of Many Ranks, One Model, as one script. Generated from book/00_tour.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 00_tour.py
#     torchrun --standalone --nproc-per-node 4 00_tour.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 00_tour.py
#     mpiexec -n 4 python 00_tour.py
#
# pip install matplotlib numpy scikit-learn torch  (for mpiexec also: mpich mpi4py)

import html
import io
import itertools
import os
import re
import socket
import sys
from datetime import timedelta
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import nn


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
    limit = timedelta(seconds=20)
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


# === The tour: the whole book in twenty minutes =======================================

# How do many processes train one model, what can go wrong, and which way of sharing the
# work do you need?
#
# 9 minutes to read, 2 predictions · 25 seconds to run · stands on nothing but a little
# PyTorch
#
# At the end you have seen four ranks send, add up, train and get stuck, and a model cut
# in two ways. You know the words, and in which chapter each of them is at home.
#
# A rank is a process with a number. It has its own memory and its own Python. The next
# cell starts four of them on this machine. They compute on the CPU, so it needs no GPU.

# A cell that begins with `%%px` runs on all four at once. Each rank knows its own
# number, `rank`, and how many there are, `world_size`. It also has `torch`, and `dist`,
# which is `torch.distributed`. Gloo is the library that carries messages between CPUs.

# --- Stop 1: a message ----------------------------------------------------------------

# Ranks share nothing. What one of them has, another one gets only by a message: one
# rank sends, the other one has a box of the right size ready and receives.

if rank == 0:
    print("\n## Stop 1: a message\n")

box = torch.zeros(3)
right, left = (rank + 1) % world_size, (rank - 1) % world_size
if rank % 2 == 0:
    dist.send(torch.full((3,), float(rank)), dst=right)
    dist.recv(box, src=left)
else:
    dist.recv(box, src=left)
    dist.send(torch.full((3,), float(rank)), dst=right)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# Predict: Every rank has sent three copies of its own number to the right. What is in
# rank 0's box?

box_by_rank = to_rank_0(box)
if rank == 0:
    received = [int(box[0]) for box in box_by_rank]
    assert received == [(r - 1) % world_size for r in range(world_size)]
    result("received", received)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# The number of the last rank: the four stand in a ring. Everything in this book can be
# made of that, a message from here to there. chapter 6 is about messages: who waits for
# whom, and what they cost.

# --- Stop 2: a sum for all ------------------------------------------------------------

# In each step of a training all ranks need the same sum, that of their gradients.
# Adding up so that all have the result is called an all-reduce. Here every rank brings
# as many numbers as there are ranks, each a power of two of its own, so that a sum
# shows who is in it:

everyone()
if rank == 0:
    print("\n## Stop 2: a sum for all\n")

mine = torch.tensor([2.0 ** (rank + 8 * j) for j in range(world_size)])
total = mine.clone()
dist.all_reduce(total)

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


mine_by_rank = to_rank_0(mine)
total_by_rank = to_rank_0(total)
if rank == 0:
    before, after = mine_by_rank, total_by_rank
    assert all((each == sum(before)).all() for each in after)
    show(holdings(before, after, "all-reduce"))

# Afterwards each number is the sum of all ranks', on every rank. How would you do it
# with messages alone? Everybody could send everything to rank 0, which adds up and
# answers. Then n ranks wait for one, over whose link 2(n − 1) tensors go. In a ring
# each tensor is cut into n parts. For n − 1 steps each rank sends one part to the
# right, and adds what comes from the left to its own. Then each part is complete on one
# rank, and for n − 1 more steps the complete parts go around. You may skip the indices:

everyone()
parts = list(mine.clone().tensor_split(world_size))
for step in range(2 * (world_size - 1)):
    out = parts[(rank - step) % world_size]
    came = torch.empty_like(parts[(rank - step - 1) % world_size])
    sending = dist.isend(out, right)
    dist.recv(came, left)
    sending.wait()
    adds = step < world_size - 1  # afterwards what comes is complete
    k = (rank - step - 1) % world_size
    parts[k] = parts[k] + came if adds else came
by_ring = torch.cat(parts)

by_ring_by_rank = to_rank_0(by_ring)
total_by_rank = to_rank_0(total)
if rank == 0:
    assert all((a == b).all() for a, b in zip(by_ring_by_rank, total_by_rank))
    result("ring_sends", 2 * (world_size - 1) / world_size)

# From ranklab.taught.training:


def split(X, y, share=0.1, seed=0):
    """Return (train X, train y) and (test X, test y): a random share to test.

    Every sample is in exactly one of the two.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator, device="cpu")
    test, train = order.tensor_split([round(share * len(X))])
    return (X[train], y[train]), (X[test], y[test])


# From ranklab.taught.sync_sgd:


def digits(seed=0):
    """Return (X, y) to train on and (X, y) to test: 1797 handwritten digits.

    X (n, 64), float32: 8 x 8 pixels, 0 to 1. y (n,), int64: the digit. A random
    fifth, drawn with `seed`, is for testing.
    """
    from sklearn.datasets import load_digits  # slow to import: only if wanted

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32)
    return split(X, torch.tensor(y), share=0.2, seed=seed)


class DigitsNet(nn.Module):
    """A small convolutional network for 8 x 8 pixels, seeded."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)  # as before outside
            self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False)
            self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False)
            self.hidden = nn.Linear(16 * 4 * 4, 64, bias=False)
            self.last = nn.Linear(64, 10, bias=False)
        self.to(torch.get_default_device())

    def forward(self, x):
        """x: (batch, 64) pixels. Returns (batch, 10), a number for a digit."""
        x = torch.tanh(self.first(x.view(-1, 1, 8, 8)))
        x = nn.functional.avg_pool2d(torch.tanh(self.second(x)), 2)
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


def shard(n, rank, world_size):
    """Return `rank`'s slice of n samples; two sizes differ by one at most."""
    return slice(n * rank // world_size, n * (rank + 1) // world_size)


# Every rank sends (ring_sends) times its tensor, and never more than twice, however
# many ranks there are. chapter 8 builds it, measures it, and looks for what is faster
# when tensors are small.

# --- Stop 3: one model, four ranks ----------------------------------------------------

# Each rank has a copy of the model and a quarter of the batch. It computes what its
# quarter adds to the gradient, an all-reduce adds these up, and all take the same step.
# This is data parallelism.

everyone()
if rank == 0:
    print("\n## Stop 3: one model, four ranks\n")

(X, y), _ = digits()
loss_of = torch.nn.CrossEntropyLoss(reduction="sum")


def train(part, with_others):
    """20 steps; part: of each batch; with_others: are there other parts?"""
    model, losses = DigitsNet().double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(20):
        batch = slice(64 * step, 64 * (step + 1))
        inputs, labels = X[batch].double()[part], y[batch][part]
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels) / 64  # its part of the mean
        loss.backward()
        if with_others:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(loss.detach())  # the same memory
        optimizer.step()
        losses.append(loss.item())
    return losses


together = train(shard(64, rank, world_size), with_others=True)
alone = train(slice(64), with_others=False)  # the whole batch, on every rank

# Predict: How far are the losses of the four from those of one rank with the whole
# batch?

together_by_rank = to_rank_0(together)
alone_by_rank = to_rank_0(alone)
if rank == 0:
    apart = np.abs(np.subtract(together_by_rank[0], alone_by_rank[0])).max()
    assert apart < 1e-12

alone_by_rank = to_rank_0(alone)
if rank == 0:
    first, *_, last = alone_by_rank[0]
    result("first_loss", round(first, 4))
    result("last_loss", round(last, 4))
    result("apart", apart, varies=True)

# From ranklab.plots:


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


# From ranklab.taught.pipeline:


class ScheduleError(ValueError):
    """Why a schedule cannot work."""


def size(schedule):
    """(stages, micro-batches, chunks of a stage) of a schedule."""
    _, micro_batches, chunks = zip(*itertools.chain(*schedule))
    return len(schedule), max(micro_batches) + 1, max(chunks) + 1


def computing(program):  # the messages have longer names
    return [i for i in program if len(i[0]) == 1]


def simulate(schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, message=0):
    """For each stage a list of (computation, start, end). Seconds: of the work
    on one chunk, a number or one a stage, and of a message. Raises
    ScheduleError where no stage can go on."""
    stages, micro_batches, chunks = size(schedule)
    works = forward, backward_input, backward_weight
    each = [x if hasattr(x, "__len__") else [x] * stages for x in works]
    seconds = [{"F": f, "I": i, "W": w, "B": i + w} for f, i, w in zip(*each)]
    outside = ("F", 0), ("B", stages * chunks - 1)  # inputs, and losses
    there = {(*end, k): 0 for end in outside for k in range(micro_batches)}
    times, left = [[] for _ in schedule], [computing(p) for p in schedule]
    while any(left):
        before = sum(map(len, left))
        for stage, (program, done) in enumerate(zip(left, times)):
            while program:
                kind, k, chunk = program[0]
                piece, way = chunk * stages + stage, "BF"[kind == "F"]
                if (way, piece, k) not in there:
                    break  # it has to wait
                start = max(done[-1][2] if done else 0, there[way, piece, k])
                end = start + seconds[stage][kind]
                done.append((program.pop(0), start, end))
                if kind != "W":
                    to = piece + (1 if way == "F" else -1)
                    there[way, to, k] = end + message
        if before == sum(map(len, left)):
            raise ScheduleError("Deadlock: no stage can go on.")
    return times


def idle_share(times):
    """The bubble: the share of the stages' time without computing."""
    parts = [p for row in times for p in row if len(p[0][0]) == 1]
    busy = sum(end - start for _, start, end in parts)
    whole = max(end for *_, end in parts) - min(start for _, start, _ in parts)
    return 1 - busy / (len(times) * whole)


def alternating(forwards, backwards, warm_up):
    """Some forwards to warm up, then both in turn, then what is left."""
    pairs = zip(forwards[warm_up:], backwards)
    rest = backwards[len(forwards[warm_up:]) :]
    return [*forwards[:warm_up], *itertools.chain(*pairs), *rest]


def one_f_one_b(stages, micro_batches):
    """1F1B: to warm up, a forward for each stage behind."""
    ks = range(micro_batches)
    both = [[(kind, k, 0) for k in ks] for kind in "FB"]
    return [alternating(*both, some) for some in reversed(range(stages))]


# By rounding: (apart). The loss falls from (first_loss) to (last_loss) in 20 steps, for
# four ranks as for one. It is one training. chapter 10 proves it, chapter 11 shows the
# line with which PyTorch does it, and chapter 12 how it hides the messages behind
# backward.

# --- Stop 4: stuck --------------------------------------------------------------------

# Now a mistake that everybody makes once. Ranks 0 and 1 each wait for a message from
# the other, and nobody has sent one.

# On a cluster you would see nothing, for minutes. Here you can ask:

# Two ranks wait in a circle: a deadlock. The report names the line, the tensor and the
# peer. `reset` gives the same processes a fresh start, with all their variables:

# Every chapter with ranks breaks something on purpose, and finds it. stuck is the list
# of what it may be.

# --- Stop 5: a model in pieces --------------------------------------------------------

# What if the model does not fit on one rank? There are two ways to cut its work. A
# third, sharding (ZeRO, FSDP), cuts only what is stored.
#
# Between its layers. Each rank owns some of the layers. An activation goes from rank to
# rank, and its gradient comes back. While rank 3 computes, the others would be idle, so
# the batch is cut, too, into micro-batches that follow each other. Here is a plan for
# four ranks, each a stage, and eight micro-batches, computed by what chapter 17
# teaches. The three 0.01 are seconds, of a forward and of the two halves of a backward:

if rank == 0:
    print("\n## Stop 5: a model in pieces\n")
    plan = simulate(one_f_one_b(4, 8), 0.01, 0.01, 0.01)
    result("idle", round(idle_share(plan), 4))
    show(timetables({"four ranks, eight micro-batches": plan}, "pipeline"))

# Light boxes are forwards, full ones backwards. The gaps are the bubble: (idle) of the
# time. More micro-batches make it smaller.
#
# Through the layers. Each rank owns some columns of a weight, or some rows. With
# columns, forward needs no message until somebody wants the whole result; in backward,
# the ranks' gradients of the input have to be added up:

everyone()
g = torch.Generator().manual_seed(0)
x = torch.randn(5, 8, generator=g, dtype=torch.float64)
W = torch.randn(8, 4 * world_size, generator=g, dtype=torch.float64)
columns = W.tensor_split(world_size, dim=1)[rank]  # all that it needs to hold
gathered = [torch.empty(5, 4).double() for _ in range(world_size)]
dist.all_gather(gathered, x @ columns)
gap = (torch.cat(gathered, dim=1) - x @ W).abs().max().item()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)

gap_by_rank = to_rank_0(gap)
if rank == 0:
    assert max(gap_by_rank) < 1e-12

# This is tensor parallelism. It sends much more, for every layer and every batch, so
# its ranks sit in one host, on fast links. chapter 18 cuts a whole GPT like this.

# --- Stop 6: which of them do I need? -------------------------------------------------

# | what you see | what it is called | chapter |
# | --- | --- | --- |
# | the model fits, training takes too long | data parallelism | chapter 11 |
# | the batch does not fit, the model does | gradient accumulation | chapter 11 |
# | weights, gradients and optimizer do not fit | sharding: ZeRO, FSDP | chapter 19 |
# | the model does not fit, links are slow | pipeline parallelism | chapter 17 |
# | a single layer does not fit, or is too slow | tensor parallelism | chapter 18 |
# | the sequence is too long | context parallelism | chapter 20 |
#
# which asks you three questions and names the way. Large models use several of these at
# once.

# --- What you can do now --------------------------------------------------------------

# - Say what a rank, a message, an all-reduce, a deadlock, a bubble and a column are.
# - Show that data parallel training is the same training.
# - Ask ranks that are stuck where they are.
# - Name the way to share a training that fits your case, and open its chapter.

# --- Run it as a script ---------------------------------------------------------------

# ```bash
# torchrun --standalone --nproc-per-node 4 scripts/00_tour.py
# ```

# --- Where to read on -----------------------------------------------------------------

# - chapter 1, if you want it from the beginning: one product, and how fast a machine
#   can be.
# - chapter 5, if you would rather start with processes.
# - [pytorchdistributed]: every call that you have seen, and all the others.

leave_group()
