# Generated from book/17_pipeline.md by `make forms`: edit the manuscript, not this file.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 17_pipeline.py
#     torchrun --standalone --nproc-per-node 4 17_pipeline.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 17_pipeline.py
#     mpiexec -n 4 python 17_pipeline.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import itertools
import os
import pickle
import re
import socket
import statistics
import sys
import textwrap
import time
import weakref
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.patches import Patch, Rectangle
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
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
device, backend = choose_device(device='cpu', backend='gloo')
store = next(dist.rendezvous("env://"))[0]
form_groups()


# === Filling the bubble ===============================================================

# A model that is cut into stages keeps one rank busy at a time, and all others wait.
# How can all of them work at once, how much idle time is left, and what does that cost
# in memory?
#
# 65 minutes to read · 25 seconds to run · stands on chapter 02_graphs, chapter
# 06_messages and chapter 16_layers
#
# The answer is to send several small batches through the stages, one behind the other.
# What is left is a question of order: which stage does what, when. You write that order
# down as data, a list of instructions for each stage. One function draws it, one proves
# that it works, and one runs it, on real ranks. Four orders that are in use, and any of
# your own, then take a few lines each.

# --- An order is data -----------------------------------------------------------------

# Chapter 16 ended with a triangle. While the batch is in stage 0, the other stages have
# nothing to do, and the same again on its way back. With n stages, each is idle for n −
# 1 of n parts of the time.
#
# So cut the batch into micro-batches. As soon as the first one has left stage 0, the
# second one can enter. The gradient of a batch is the mean over its samples, so it is
# also the mean of the micro-batches' gradients, if these are of one size: nothing but
# the order changes. (That is so for layers that treat each sample alone. Batch
# normalization does not: its mean and variance would be those of a micro-batch.)
#
# A schedule is, for each stage, a list of instructions. An instruction is a tuple: what
# to do ("F" for forward, "B" for backward), with which micro-batch, and one number
# more, the chunk, which is 0 until we need it. The simplest schedule is that of GPipe
# [huang2019]: all forwards, then all backwards.


def gpipe(stages, micro_batches):
    """A schedule: for each stage a list of instructions. All forwards, then all backwards."""
    numbers = range(micro_batches)
    return [[(kind, k, 0) for kind in "FB" for k in numbers] for _ in range(stages)]


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
    return SCRIPT.with_name(f"{SCRIPT.stem}-{name}.svg")


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


if rank == 0:
    show(gpipe(2, 2))

# Both stages do the same. That they do it at different times is not in the lists, and
# need not be: a stage cannot begin before it has what it needs. For GPipe the times can
# be worked out by hand. A stage begins when the first micro-batch has passed all stages
# before it. Its backwards begin when the last stage has done all forwards, and the
# first gradient has passed all stages behind it.


def gpipe_times(stages, micro_batches, forward, backward):
    """When GPipe's instructions start and end: for each stage a list of (what, start, end)."""
    turn = (stages - 1 + micro_batches) * forward  # the last stage has done its forwards
    times = []
    for stage, program in enumerate(gpipe(stages, micro_batches)):
        first = {"F": stage * forward, "B": turn + (stages - 1 - stage) * backward}
        takes = {"F": forward, "B": backward}
        starts = [(i, first[i[0]] + i[1] * takes[i[0]]) for i in program]
        times.append([(i, start, start + takes[i[0]]) for i, start in starts])
    return times


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


def pale(color, share=0.25):
    """Return `color` mixed with white, as an opaque color: `share` of it is the color.

    Transparent colors and hatching do not go together in an SVG.
    """
    rgb = matplotlib.colors.to_rgb(color)
    return tuple(1 - share * (1 - part) for part in rgb)


# Two cells that draw are folded here. A box is an instruction, and its number is the
# micro-batch.


def end_of(times):
    """When the last stage has come to its end."""
    return max(end for of_stage in times for _, _, end in of_stage)


def draw(ax, times, last):
    """A row for each stage: forwards light, backwards full, gradients of weights alone white.

    A number is a micro-batch's. Of several chunks, the later ones are drawn higher. last: the
    length of the axis, in seconds.
    """
    chunks = 1 + max(chunk for of_stage in times for (_, _, chunk), _, _ in of_stage)
    for stage, of_stage in enumerate(times):
        full = RANK_COLORS[stage]
        fills = {"F": pale(full, 0.4), "B": full, "I": full, "W": "white"}
        for (kind, k, chunk), start, end in of_stage:
            if kind in fills:  # no message
                low, tall = stage + 0.4 - 0.8 * (chunk + 1) / chunks, 0.8 / chunks
                edge = full if kind == "W" else "white"
                ax.add_patch(Rectangle((1e3 * start, low), 1e3 * (end - start), tall,
                                       facecolor=fills[kind], edgecolor=edge, linewidth=0.6))
                if end - start > 0.014 * last:
                    ax.text(500 * (start + end), low + tall / 2 + 0.01, k, ha="center",
                            va="center_baseline", fontsize=7 if chunks == 1 else 6,
                            color="white" if fills[kind] == full else "black")
    ax.set_yticks(range(len(times)), [f"stage {stage}" for stage in range(len(times))])
    ax.set(ylim=(len(times) - 0.5, -0.5), xlim=(0, 1020 * last))
    ax.grid(False, axis="y")


# From ranklab.plots:

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


def draw_both(num, titles, both, words=("forward", "backward")):
    """Two schedules' times above each other, on one axis, with what the boxes mean."""
    fig, axes = plt.subplots(2, 1, num=num, figsize=(5.2, 4.4), sharex=True)
    for ax, title, times in zip(axes, titles, both):
        draw(ax, times, max(map(end_of, both)))
        ax.set_title(title, fontsize=10)
    axes[1].set(xlabel="time (ms)")
    looks = [{"fc": pale("C7", 0.4)}, {"fc": "C7"}, {"fc": "white", "ec": "C7"}]
    boxes = [Patch(**look, label=word) for look, word in zip(looks, words)]
    fig.legend(handles=boxes, loc="outside upper center", ncols=3, fontsize=9)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


# Predict: Above: one batch, forward 80 ms and backward 160 ms on each stage. Below, the
# same batch in four micro-batches: 20 and 40 ms each. Which share of the time is a
# stage idle above, and which below?

if rank == 0:
    n = world_size
    whole_batch, four_parts = gpipe_times(n, 1, 0.08, 0.16), gpipe_times(n, 4, 0.02, 0.04)
    show(draw_both("triangle", ("the whole batch", "in four micro-batches"), (whole_batch, four_parts)))
    save_figures()

# The empty area is the bubble. As a number: the share of the stages' time in which they
# do not compute.


def idle_share(times):
    """The bubble: the share of their time in which the stages do not compute.

    times: of each stage, a list of (instruction, start, end).
    """
    # Computations have names of one letter; messages, which come further down, have longer ones.
    parts = [part for of_stage in times for part in of_stage if len(part[0][0]) == 1]
    whole = max(end for _, _, end in parts) - min(start for _, start, _ in parts)
    return 1 - sum(end - start for _, start, end in parts) / (len(times) * whole)


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


if rank == 0:
    result("stages", n)
    result("idle_whole", round(idle_share(whole_batch), 3))
    result("idle_four", round(idle_share(four_parts), 3))
    assert abs(idle_share(whole_batch) - (n - 1) / n) < 1e-9
    assert abs(idle_share(four_parts) - (n - 1) / (4 + n - 1)) < 1e-9

# With (stages) stages, (idle_whole) of the time was idle, and with four micro-batches
# it is (idle_four). The formula can be read off the picture. A stage works for m
# micro-batches, m(f + b) seconds, where f is a forward and b a backward. And it waits:
# the last stage for n − 1 forwards to reach it, the first one for n − 1 backwards to
# come back, and those between for some of both. So
#
# $$
# \begin{aligned}
# \text{idle} &= (n - 1)(f + b) \\[4pt]
# \frac{\text{idle}}{\text{busy}} &= \frac{n - 1}{m} \\[4pt]
# \frac{\text{idle}}{\text{idle} + \text{busy}} &= \frac{n - 1}{m + n - 1}
# \end{aligned}
# $$
#
# The last one is our share of the whole time, and what the GPipe paper calls the
# bubble. The Megatron-LM paper [narayanan2021] gives the name to the one in the middle:
# look which before you compare.
#
# More micro-batches make the bubble as small as the batch allows: there cannot be more
# of them than samples, and small products are slow ones (chapter 01_matmul). So one
# takes some times n: GPipe's authors found 4n enough [huang2019].

# --- When can what begin? -------------------------------------------------------------

# GPipe's times were easy. For other orders we let a function find them, from the lists
# alone. First, short names for instructions, to write and to read:


def parse(text):
    """Instructions from their names: parse("F0 B2.1") is [("F", 0, 0), ("B", 2, 1)]."""
    found = []
    for word in text.split():
        micro_batch, _, chunk = word[1:].partition(".")
        found.append((word[0], int(micro_batch), int(chunk or 0)))
    return found


def name(instruction):
    """An instruction's name, "F0"; the chunk is named if it is not chunk 0: "B2.1"."""
    kind, micro_batch, chunk = instruction
    space = " " * (len(kind) > 1)  # "send activation 0"
    return f"{kind}{space}{micro_batch}" + f".{chunk}" * (chunk > 0)


# What a stage needs comes by message: an activation before each forward, but for the
# stage that has the model's beginning; a gradient before each backward, but for the
# stage that has its end. And who has made something sends it. (`computing` names I and
# W, too. They come with zero bubble, below.)


def size(schedule):
    """(stages, micro-batches, chunks of a stage) of a schedule."""
    _, micro_batches, chunks = zip(*itertools.chain(*schedule))
    return len(schedule), max(micro_batches) + 1, max(chunks) + 1


def computing(program):
    """Without the messages."""
    return [i for i in program if i[0] in {"F", "B", "I", "W"}]


def with_messages(schedule):
    """The schedule with a receive before whatever needs one, and a send after what makes one."""
    stages, _, chunks = size(schedule)
    full = [[] for _ in schedule]
    for stage, program in enumerate(schedule):
        for kind, k, chunk in computing(program):
            piece = chunk * stages + stage  # of the model, whose pieces go round the stages
            first, last = piece == 0, piece == stages * chunks - 1
            if kind == "F" and not first:
                full[stage].append(("receive activation", k, chunk))
            if kind in "BI" and not last:
                full[stage].append(("receive gradient", k, chunk))
            full[stage].append((kind, k, chunk))
            if kind == "F" and not last:
                full[stage].append(("send activation", k, chunk))
            if kind in "BI" and not first:
                full[stage].append(("send gradient", k, chunk))
    return full


if rank == 0:
    for stage, program in enumerate(with_messages(gpipe(2, 1))):
        print(f"stage {stage}:", ", ".join(map(name, program)))

# How long does it take? Let us say what a computation takes, and a message, and go
# through the lists. The rules are few:
# - A stage does one thing after the other.
# - A receive is over when the message has arrived. A send is over at once.
# - Messages from one stage to another arrive in the order in which they were sent,
#   activations and gradients on links of their own.
# - A link may be short. With `depth` 1 it holds one message, and a second one waits at
#   its sender until the first has been taken. The checker below will need that. Until
#   then, links hold any number.


class ScheduleError(ValueError):
    """Why a schedule cannot work."""


def neighbor(kind, stage, stages):
    """The other stage of a message: activations go to the next one, gradients to the one before."""
    return (stage + (1 if kind in ("send activation", "receive gradient") else -1)) % stages


class Links:
    """The messages between stages: for each direction and kind a queue, first in, first out.

    seconds: what a message takes; depth: how many a queue can hold (None: any number).
    """

    def __init__(self, stages, seconds, depth):
        self.stages, self.seconds, self.depth = stages, seconds, depth
        self.sent, self.taken = defaultdict(list), defaultdict(list)

    def carry(self, instruction, stage, now):
        """When a send or a receive that begins now is over; None: it has to wait for another."""
        verb, what = instruction[0].split()
        other = neighbor(instruction[0], stage, self.stages)
        link = (what, stage, other) if verb == "send" else (what, other, stage)
        carried = self.send if verb == "send" else self.receive
        return carried(instruction, stage, now, self.sent[link], self.taken[link])

    def send(self, instruction, stage, now, sent, taken):
        if self.depth is not None and len(sent) >= self.depth:
            if len(taken) <= len(sent) - self.depth:
                return None  # no room
            now = max(now, taken[len(sent) - self.depth])
        sent.append((self.received_as(instruction, stage), now + self.seconds))
        return now

    def receive(self, instruction, stage, now, sent, taken):
        if len(taken) == len(sent):
            return None  # nothing is there
        message, arrival = sent[len(taken)]
        if message != instruction:
            raise ScheduleError(
                f"Stage {stage} wants to `{name(instruction)}`, and the next message on that link "
                f"is for `{name(message)}`."
            )
        taken.append(max(now, arrival))
        return taken[-1]

    def received_as(self, instruction, stage):
        """The instruction that takes a message, on the stage to which it goes."""
        kind, micro_batch, chunk = instruction
        piece = chunk * self.stages + stage + (1 if kind == "send activation" else -1)
        return kind.replace("send", "receive"), micro_batch, piece // self.stages


# `simulate` lets every stage go on until it has to wait for another, and repeats that
# until nothing moves.


def simulate(
    schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, message=0.0, depth=None
):
    """When every instruction starts and ends: for each stage a list of (instruction, start, end).

    schedule: with messages. Seconds: of the computations of one chunk, and of a message; a whole
    backward takes as long as both of its parts. depth: how many messages a link holds before a
    send has to wait; None: any number. Raises ScheduleError where stages wait for each other, or
    messages come in another order.
    """
    seconds = {"F": forward, "I": backward_input, "W": backward_weight}
    seconds["B"] = backward_input + backward_weight
    links, times, moved = Links(len(schedule), message, depth), [[] for _ in schedule], True
    while moved:
        moved = False
        for stage, (program, done) in enumerate(zip(schedule, times)):
            while len(done) < len(program):
                i, now = program[len(done)], done[-1][2] if done else 0.0
                end = now + seconds[i[0]] if i[0] in seconds else links.carry(i, stage, now)
                if end is None:
                    break
                done.append((i, now, end))
                moved = True
    demand_end(schedule, times)
    return times


def demand_end(schedule, times):
    """Raise ScheduleError if some stage did not come to its end."""
    waits = []
    for stage, (program, done) in enumerate(zip(schedule, times)):
        if len(done) < len(program):
            i = program[len(done)]
            other = neighbor(i[0], stage, len(schedule))
            waits.append(f"stage {stage} waits for stage {other} in `{name(i)}`")
    if waits:
        raise ScheduleError(f"Deadlock: {', '.join(waits)}.")


# It finds what we worked out by hand:

if rank == 0:
    found = simulate(with_messages(gpipe(n, 4)), 0.02, 0.02, 0.02)
    for of_stage, by_hand in zip(found, four_parts):
        without = [(i, start, end) for i, start, end in of_stage if len(i[0]) == 1]
        assert [i for i, _, _ in without] == [i for i, _, _ in by_hand]
        assert np.allclose([times[1:] for times in without], [times[1:] for times in by_hand])

# --- One interpreter ------------------------------------------------------------------

# Now the ranks. First the part of a stage that sends and receives:
# - box: a tensor between a computation and a message lies there, under the name of the
#   send or the receive.
# - send does not wait until its tensor has arrived (`isend`). The handle that it gets
#   keeps the tensor alive. The next send on the same link waits for it, so that at most
#   one is under way.
# - receive waits. What it waits for was posted before (`irecv`), so that the message
#   can travel while the stage computes. (chapter 06_messages measured how much faster
#   messages in a row are whose receives are there when they come.) Posted are the next
#   `ahead` receives of the program, in its order. Eight is a choice: each takes the
#   room of one tensor, whatever the schedule; for all at once, the room would grow with
#   the number of micro-batches. The tensors are made like `like`.
# - A message does not say what it is. A smaller one would fill a part of that tensor,
#   without an error: so the sender compares shapes.
# - tags: 0 for activations, 1 for gradients, as each has links of its own.


def demand_like(tensor, like, instruction):
    """Raise ValueError for a tensor that the other side has no room for."""
    found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, like))
    if found != wanted:
        raise ValueError(
            f"`{name(instruction)}` has a tensor of shape {found[0]} and {found[1]}, and "
            f"`like`, what a receive makes room for, is of shape {wanted[0]} and {wanted[1]}."
        )


class Messenger:
    """A rank as a stage of a pipeline: what it sends and receives, by instructions."""

    ahead = 8  # so many receives are posted at a time

    def __init__(self, like, group=None):
        self.like, self.group = like, group
        self.stage, self.stages = dist.get_rank(group), dist.get_world_size(group)
        whats = ("activation", "gradient")
        self.does = {f"send {what}": self.send for what in whats}
        self.does |= {f"receive {what}": self.receive for what in whats}

    def begin(self, program):
        """Before a step: nothing is there, and the first messages may come."""
        if self.ahead < 1:
            raise ValueError("`ahead` must be at least 1: what a stage waits for has to be posted.")
        self.box, self.under_way, self.posted = {}, {}, {}
        self.to_post = deque(i for i in program if i[0].startswith("receive"))
        for _ in range(self.ahead):
            self.post()

    def send(self, instruction):
        to = neighbor(instruction[0], self.stage, self.stages)
        tensor, tag = self.box.pop(instruction).contiguous(), int("gradient" in instruction[0])
        demand_like(tensor, self.like, instruction)
        self.end_send(to, tag)  # the one before it
        self.under_way[to, tag] = dist.isend(tensor, group=self.group, group_dst=to, tag=tag)

    def end_send(self, to, tag):
        """Wait for what is under way on a link, and forget it."""
        if (to, tag) in self.under_way:
            self.under_way.pop((to, tag)).wait()

    def post(self):
        """Make room for the message of the next receive, if there is one, and let it come."""
        if self.to_post:
            instruction = self.to_post.popleft()
            source = neighbor(instruction[0], self.stage, self.stages)
            tensor, tag = torch.empty_like(self.like), int("gradient" in instruction[0])
            work = dist.irecv(tensor, group=self.group, group_src=source, tag=tag)
            self.posted[instruction] = tensor, work

    def receive(self, instruction):
        tensor, work = self.posted.pop(instruction)
        work.wait()
        self.box[instruction] = tensor.requires_grad_("activation" in instruction[0])
        self.post()


# The `Worker` is the part that computes. A table, `does`, leads from the kind of an
# instruction to a method, and that is all it knows about schedules. What the methods do
# is chapter 16's: a tensor that was received is a leaf; backward starts from a gradient
# that was received. On the model's last piece it starts from the loss itself, divided
# by the number of micro-batches: the mean of their means is the mean of the batch, if
# all are of one size. (`parts` holds the piece as a list of one; it will be cut later.)


class Worker(Messenger):
    """A rank as a stage of a pipeline: it carries out one instruction after the other.

    chunks: this stage's pieces of the model; chunk c of stage s is piece c * stages + s.
    like: what the pieces hand on for a micro-batch is of this tensor's shape, type and device.
    loss: called with the last piece's output and a micro-batch's targets; the mean over it.
    """

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(like, group)
        self.parts, self.loss = [[chunk] for chunk in chunks], loss
        self.does |= {"F": self.forward, "B": self.backward}

    def begin(self, program, inputs, targets):
        """Before a step. Each stage uses what it needs of the micro-batches."""
        super().begin(program)
        self.inputs, self.targets = inputs, targets
        self.kept, self.losses, self.log = {}, [], []

    def ends(self, chunk):
        """Is this chunk the model's first piece? Its last one?"""
        piece = chunk * self.stages + self.stage
        return piece == 0, piece == self.stages * len(self.parts) - 1

    def forward(self, instruction):
        _, micro_batch, chunk = instruction
        which, (first, last) = instruction[1:], self.ends(chunk)
        y = self.inputs[micro_batch] if first else self.box.pop(("receive activation", *which))
        self.kept[which] = []
        for part in self.parts[chunk]:
            x = y.detach().requires_grad_(y.requires_grad)
            y = part(x)
            self.kept[which].append((part, x, y))
        if last:
            loss = self.loss(y, self.targets[micro_batch])
            self.losses.append(loss.item())
            self.kept[which][-1] = part, x, loss / len(self.targets)  # there backward begins
        else:
            self.box["send activation", *which] = y.detach()

    def backward(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)  # a loss needs none
        for _, x, y in reversed(self.kept.pop(which)):
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
            gradient = x.grad
        self.hand_back(gradient, *which)

    def hand_back(self, gradient, *which):
        """The gradient of a piece's input is for the stage before, if there is one."""
        if not self.ends(which[1])[0]:
            self.box["send gradient", *which] = gradient


# The interpreter is a loop, and a clock. Before it begins, it looks at what it was
# given: with more micro-batches than in the program, or with some that are smaller, all
# gradients would be wrong, and nothing would say so. (After an error in the middle of a
# step, receives are still posted, and would take the messages of whatever comes next.
# `ranks.reset()` makes a new group.)


def demand_parts(program, parts, what):
    """Raise ValueError unless there are as many micro-batches as in the program, of one size."""
    many, shapes = 1 + max(k for _, k, _ in program), {tuple(part.shape) for part in parts}
    if len(parts) != many or len(shapes) > 1:
        raise ValueError(
            f"The program has {many} micro-batch{'es' * (many > 1)}, and needs as many {what}, all "
            f"of one shape; there are {len(parts)}, of shapes {sorted(shapes)}."
        )


def demand_known(program, worker):
    """Raise ValueError for an instruction that a worker does not know, before it sends anything."""
    for i in program:
        if i[0] not in worker.does:
            raise ValueError(f"A {type(worker).__name__} cannot do `{name(i)}`.")


def run(program, worker, inputs, targets):
    """Forward and backward of a step: carry out a stage's program, messages included.

    inputs, targets: lists of micro-batches, of equal size; the first ones are needed on the stage
    of the first piece, the others on that of the last one. Gradients of the mean loss are added to
    .grad. Returns the losses of the micro-batches, in the program's order, on the rank of the last
    piece, [] on others. worker.log: (instruction, start, end), in seconds since the step's start.
    After an error in a step the group is of no more use: receives are still posted in it.
    """
    demand_known(program, worker)
    if worker.ends(0)[0]:
        demand_parts(program, inputs, "inputs")
    if worker.ends(len(worker.parts) - 1)[1]:
        demand_parts(program, targets, "targets")
    worker.begin(program, inputs, targets)
    zero = time.perf_counter()
    for instruction in program:
        start = time.perf_counter() - zero
        with record_function(name(instruction)):  # its name in a profile
            worker.does[instruction[0]](instruction)
        worker.log.append((instruction, start, time.perf_counter() - zero))
    for link in list(worker.under_way):
        worker.end_send(*link)
    return worker.losses


# To see what a schedule does, we want stages whose work takes a fixed time, whatever
# the machine. Ranks that share cores would spoil each other's times. So our first
# stages sleep. They take a unit, (unit_ms) ms, for a forward, one for the gradient of
# the input and one for that of the weight, and need no core; all messages are real.


class Nap(torch.autograd.Function):
    """The identity. It takes some seconds, and so does its gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        time.sleep(forward)
        ctx.seconds = backward
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient.clone(), None, None


class Napping(nn.Module):
    """A piece whose work takes fixed times: forward, gradient of the input, of the weight."""

    def __init__(self, forward, backward_input, backward_weight):
        super().__init__()
        self.seconds = forward, backward_input, backward_weight
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        forward, backward_input, backward_weight = self.seconds
        weight = Nap.apply(self.weight, 0, backward_weight)
        return Nap.apply(x, forward, backward_input) + weight


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    return pickle.loads(box[0])


if rank == 0:
    unit = 0.02  # seconds

unit = from_rank_0(lambda: unit)
if rank == 0:
    result("unit_ms", round(1000 * unit))


def napped(program):
    """Run a stage's program with pieces that sleep, in all a unit for each of their three works."""
    chunks = 1 + max(chunk for _, _, chunk in program)
    kind = SplitWorker if any(i[0] in "IW" for i in program) else Worker  # I, W: further down
    worker = kind([Napping(*[unit / chunks] * 3) for _ in range(chunks)],
                  torch.zeros(1), lambda y, target: y.sum())
    inputs = [torch.zeros(1, requires_grad=True)] * (1 + max(k for _, k, _ in program))
    dist.barrier()  # all clocks start together
    run(program, worker, inputs, inputs)
    return worker.log


# A machine that does something else for a moment makes a run longer, never shorter. So
# a run that took much longer than planned is done again, up to five times, and the
# shortest one counts.


def shortest(program, enough, most=5):
    """The log of the first run that ends within `enough` seconds, or else of the shortest."""
    best = float("inf"), None
    for _ in range(most):
        log = napped(program)
        end = torch.tensor(log[-1][2])
        dist.all_reduce(end, dist.ReduceOp.MAX)  # the slowest rank's counts
        best = min(best, (end.item(), log))
        if best[0] < enough:
            break
    return best[1]


# The schedule is written in the kernel, and sent to the ranks; each carries out its own
# program. Twice as many micro-batches as stages.


def plan(schedule):
    """The schedule with messages, for the ranks; and its times, as planned."""
    full = with_messages(schedule)
    return full, simulate(full, *[unit / size(schedule)[2]] * 3)


if rank == 0:
    schedules, plans, runs = {}, {}, {}  # of the orders that have a name
    schedules["gpipe"] = gpipe(n, 2 * n)
    full, plans["gpipe"] = plan(schedules["gpipe"])

programs = from_rank_0(lambda: full)
enough = from_rank_0(lambda: 1.15 * end_of(plans["gpipe"]))
one_batch = from_rank_0(lambda: with_messages(gpipe(n, 1)))


@contextmanager
def untraced(*args, **kwargs):
    """A stand-in for ranklab's trace: it records nothing."""
    yield None


try:
    from ranklab import trace
except ImportError:
    trace = untraced

with trace() as t:
    warm_log = napped(one_batch[rank])  # warms up
ran = shortest(programs[rank], enough)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


def compare(num, planned, ran, *words):
    """As planned above, as it ran below, which must not be much longer."""
    orders = [[[i for i, _, _ in of_stage] for of_stage in times] for times in (planned, ran)]
    assert orders[0] == orders[1], "this ran by another schedule: run the section's cells again"
    draw_both(num, ("planned", "ran"), (planned, ran), *words)
    busy = "the machine is busy with other things: run the cells of this figure again"
    assert end_of(ran) < 2 * end_of(planned), busy


ran_by_rank = to_rank_0(ran)
if rank == 0:
    runs["gpipe"] = ran_by_rank
    compare("gpipe", plans["gpipe"], runs["gpipe"])
    result("ran_over_planned", end_of(runs["gpipe"]) / end_of(plans["gpipe"]), varies=True)
    save_figures()

# The ranks did what the plan said, and took (ran_over_planned) times as long as it
# said. Nobody told them when: each one did the next thing on its list as soon as it
# could.
#
# The figure is drawn from the worker's own clock. PyTorch's profiler sees the same:
# `run` gives each instruction its name there, so that you find it in the trace of a
# real step, too (chapter 06_messages).

# --- 1F1B: the same idle time, less memory --------------------------------------------

# Before the first backward begins, every stage has done all forwards, and of each
# micro-batch it keeps what autograd has saved, until its backward. So GPipe's stages
# hold the activations of the whole batch, however it is cut, as without a pipeline. For
# micro-batches of one size, twice as many need twice the room. (The GPipe paper avoids
# that in another way: a stage keeps only its inputs, and computes the rest a second
# time, in the backward.) Counting needs no clock, only the list:


def held(program):
    """The most activations that a stage holds at a time: one for a micro-batch in a chunk."""
    most = now = 0
    for kind, _, _ in program:
        now += kind == "F"
        most = max(most, now)
        now -= kind in ("B", "W")
    return most


# But why should stage 0 go on with forwards while the first gradient could be on its
# way back? The last stage can do B0 at once after F0. 1F1B does so. PipeDream had it
# first [narayanan2019], with several versions of the weights; here it is in the form of
# PipeDream-Flush [narayanan2021memory], in which all weights of a step are the same.
# Each stage warms up with one forward for every stage that comes after it: so many
# micro-batches keep all of those busy. More would only be held longer and, as long as
# messages take no time, end no sooner. Then it does one forward and one backward in
# turn.


def alternating(forwards, backwards, warm_up):
    """Some forwards to warm up, then a forward and a backward in turn, then what is left."""
    pairs = zip(forwards[warm_up:], backwards)
    steady = [i for pair in pairs for i in pair]
    return [*forwards[:warm_up], *steady, *backwards[len(forwards[warm_up:]) :]]


def one_f_one_b(stages, micro_batches):
    """1F1B: as many forwards to warm up as there are stages behind it, then alternates."""
    forwards, backwards = ([(kind, k, 0) for k in range(micro_batches)] for kind in "FB")
    return [alternating(forwards, backwards, stages - stage - 1) for stage in range(stages)]


# Predict: How many micro-batches does each stage hold at most? And is the bubble larger
# than GPipe's, smaller, or the same?

if rank == 0:
    schedules["one_f_one_b"] = one_f_one_b(n, 2 * n)
    full, plans["one_f_one_b"] = plan(schedules["one_f_one_b"])

programs = from_rank_0(lambda: full)
enough = from_rank_0(lambda: 1.15 * end_of(plans["one_f_one_b"]))
if rank == 0:
    print("stage 0:", *map(name, schedules["one_f_one_b"][0]))


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


everyone()
ran = shortest(programs[rank], enough)

ran_by_rank = to_rank_0(ran)
if rank == 0:
    runs["one_f_one_b"] = ran_by_rank
    show(compare("one-f-one-b", plans["one_f_one_b"], runs["one_f_one_b"]))
    save_figures()

if rank == 0:
    result("held_gpipe", [held(program) for program in schedules["gpipe"]])
    result("held_1f1b", [held(program) for program in schedules["one_f_one_b"]])
    assert abs(idle_share(plans["one_f_one_b"]) - idle_share(plans["gpipe"])) < 1e-9
    assert [held(program) for program in one_f_one_b(n, 100)] == list(range(n, 0, -1))

# It ends at the same time. The bubble is the same, its pieces lie elsewhere. (That is a
# plan in which messages take no time; what they change comes below.) What is different
# is the memory: micro-batches held are (held_1f1b) in the place of (held_gpipe), and
# with 100 micro-batches in a step they would still be (held_1f1b). Memory no longer
# limits m. Nor does what has been sent pile up: a send waits for the one before it, and
# no more than `ahead` receives are posted. That is why 1F1B, not GPipe, is where all
# others start from.

# --- A checker ------------------------------------------------------------------------

# Two schedules, and both are right: we saw them run. A wrong one may hang, stop with an
# error, or silently give wrong gradients, and running it on many GPUs is a costly way
# to find out. As it is data, it can be proven right before. What must be true?
# - Each stage does the forward and the backward of each micro-batch once.
# - Nothing stands before what it needs: a backward after the forward, a send after what
#   is sent, and so on. That is a question to one list alone.
# - The messages that a stage expects are those that come, in the order in which they
#   come.
# - No stages wait for each other in a circle, however few messages a link has room for,
#   if it is one at least.


def needs(instruction, first, last):
    """What must stand before an instruction in its program: of each list, one.

    first, last: is its piece the first one of the model, the last one?
    """
    kind, *which = instruction
    forward, backward = [("F", *which)], [("B", *which), ("I", *which)]
    if kind in "BI":
        return [forward] if last else [forward, [("receive gradient", *which)]]
    return {
        "F": [] if first else [[("receive activation", *which)]],
        "W": [[("I", *which)]],
        "send activation": [forward],
        "send gradient": [backward],
    }.get(kind, [])


def check_instructions(stage, program):
    """Raise ScheduleError for what is no instruction, or comes twice."""
    messages = itertools.product(("send", "receive"), ("activation", "gradient"))
    kinds, seen = {*"FBIW", *map(" ".join, messages)}, set()
    for i in program:
        if i[0] not in kinds or min(i[1:]) < 0:
            raise ScheduleError(f"Stage {stage} has no use for `{name(i)}`.")
        if i in seen:
            raise ScheduleError(f"Stage {stage}: `{name(i)}` comes twice.")
        seen.add(i)


def check_program(stage, program, stages, micro_batches, chunks):
    """Raise ScheduleError unless a stage does all that it must, and after what it needs."""
    done = set()
    for i in program:
        piece = i[2] * stages + stage
        for some in needs(i, piece == 0, piece == stages * chunks - 1):
            if not done & set(some):
                raise ScheduleError(
                    f"Stage {stage}: `{name(i)}` needs `{name(some[0])}` before it."
                )
        done.add(i)
    for k, chunk in itertools.product(range(micro_batches), range(chunks)):
        kinds = "".join(kind for kind in "FBIW" if (kind, k, chunk) in done)
        if kinds not in ("FB", "FIW"):
            this = name(("", k, chunk))
            raise ScheduleError(
                f"Stage {stage} does {' '.join(kinds) or 'nothing'} with micro-batch {this}; it "
                "must do F and B, or F, I and W."
            )


# The last two points are a matter of all lists together, and there the simulation is
# the proof. It stops only when every stage has come to its end, or every one that has
# not is waiting. But is one simulation enough? The real ranks may be faster or slower,
# in any way. It is enough: each stage's next step is fixed by its list, and a step that
# is possible stays possible, whatever the others do meanwhile. So all speeds lead to
# the same end [kahn1974]. And the depth? Whatever can happen with room for one message
# can happen with room for more. What comes to its end with depth 1, where a second
# message waits until the first has been taken, does so with all others. That is also
# why our `send` may wait for the one before it. It is no proof for a blocking
# `dist.send`, which is over only when the other side has posted the receive: a link
# then has room for no message at all. With such sends, and receives that are posted
# only at their turn, GPipe would come to its end, and 1F1B would not: each of the last
# two stages would be in a send, and wait for the other one to receive. There a send has
# to be started together with the receive behind it (chapter 06_messages).


def check_schedule(schedule):
    """Return how many activations each stage holds at most, or raise ScheduleError, a sentence.

    Right is: every micro-batch passes every piece once in each direction, nothing comes before
    what it needs, and all messages arrive in order, as long as a link can hold one of them. The
    schedule may have messages; where it has none, they are put in.
    """
    if not schedule or not all(schedule):
        raise ScheduleError("There is a stage at least, and every stage has something to do.")
    for stage, program in enumerate(schedule):
        check_instructions(stage, program)
    stages, micro_batches, chunks = size(schedule)
    if stages == 1 and chunks > 1:
        raise ScheduleError("One stage with several chunks would send messages to itself.")
    full = with_messages(schedule)
    bare = all(program == computing(program) for program in schedule)
    for stage, program in enumerate(full if bare else schedule):
        check_program(stage, program, stages, micro_batches, chunks)
        there, wanted = set(program), set(full[stage])
        for i in [*full[stage], *program]:
            if i not in there or i not in wanted:
                what = "never does" if i in wanted else "has no use for"
                raise ScheduleError(f"Stage {stage} {what} `{name(i)}`.")
    simulate(full if bare else schedule, depth=1)
    return [held(program) for program in schedule]


if rank == 0:
    for stages, micro_batches in itertools.product(range(1, 9), range(1, 13)):
        assert check_schedule(gpipe(stages, micro_batches)) == [micro_batches] * stages
        most = [min(stages - stage, micro_batches) for stage in range(stages)]
        assert check_schedule(one_f_one_b(stages, micro_batches)) == most

# Predict: Four schedules for two stages, each with something wrong. What, and which of
# them would hang?


def verdict(schedule):
    """What the checker says, in lines that fit."""
    try:
        return f"Right. Held: {check_schedule(schedule)}"
    except ScheduleError as error:
        return textwrap.fill(str(error), 76, initial_indent="    ", subsequent_indent="    ")


if rank == 0:
    for texts in (
        ("F0 F1 B0 B1", "F0 B0 F1"),
        ("F0 F1 B0 B1", "F0 B0 B1 F1"),
        ("F0 F1 B0 B1", "F1 B1 F0 B0"),
        ("F0 B0 F1 B1", "F0 F1 B0 B1"),
    ):
        print(" | ".join(texts), verdict([parse(text) for text in texts]), sep="\n")

# The first one would hang: stage 0 waits for a gradient that nobody computes. The
# second one would stop with an error. The third one is the worst. The tensor for F0 is
# taken for F1's, for nothing in it says whose it is. The gradients are swapped on their
# way back, too, so stage 0 gets the right ones; but the loss has compared micro-batch
# 0's output with micro-batch 1's targets. No error on real ranks, and wrong gradients.
# And the last one hangs, though each of its lists is fine by itself: the last stage
# wants F1 before it gives B0 away, and stage 0 wants B0 before it does F1.

# --- Yours ----------------------------------------------------------------------------

# Here is a schedule that nobody has given a name. It goes through the micro-batches in
# groups, GPipe within each group, and so holds no more than a group. It is checked,
# drawn and run; put your own in its place, and run the next four cells again. (Of F and
# B, in any number of chunks. With I and W it runs, too, once you have run the cell of
# `SplitWorker`, further down.)


def yours(stages, micro_batches):
    """Groups of as many micro-batches as stages; of each, all forwards, then all backwards."""
    groups = [range(first, first + stages) for first in range(0, micro_batches, stages)]
    program = [(kind, k, 0) for group in groups for kind in "FB" for k in group]
    return [program] * stages


if rank == 0:
    of_yours = yours(n, 2 * n)
    assert len(of_yours) == n, f"it is for {len(of_yours)} stages, and there are {n} ranks"
    print("held:", check_schedule(of_yours))
    full, planned = plan(of_yours)

programs = from_rank_0(lambda: full)
enough = from_rank_0(lambda: 1.15 * end_of(planned))

everyone()
ran = shortest(programs[rank], enough)

ran_by_rank = to_rank_0(ran)
if rank == 0:
    show(compare("yours", planned, ran_by_rank))
    save_figures()

if rank == 0:
    result("idle_groups", round(idle_share(planned), 3))
    result("idle_1f1b", round(idle_share(plans["one_f_one_b"]), 3))

# Memory like 1F1B's, but (idle_groups) of the time is idle, and (idle_1f1b) with 1F1B:
# each group pays a bubble of its own. It is what you get by accumulating gradients over
# several small pipelines, and a reason not to.

# --- Interleaved: shorter ways --------------------------------------------------------

# What makes the bubble is the way of the first micro-batch to the last stage, and of
# the last gradient back. It is shorter when a stage is shorter. So give each stage
# several chunks, pieces of the model that do not follow each other: with 4 stages and 2
# chunks, stage 0 has pieces 0 and 4, stage 1 has pieces 1 and 5. A micro-batch goes
# around twice, and each part of its way takes half as long [narayanan2021]. Now the
# third number in an instruction, the chunk, is of use.
#
# The order: as many micro-batches as there are stages go through chunk 0, then the same
# ones through chunk 1, then the next ones come. By then, the first of them has come
# around. And the warm-up is longer. A stage does the forwards of all chunks but the
# last for a whole group, and two more for each stage behind it: one for a micro-batch's
# way there, one for its gradient's way back.


def interleaved(stages, micro_batches, chunks):
    """Interleaved 1F1B: several chunks a stage; as many micro-batches as stages go round together.

    Raises ScheduleError unless micro_batches is a multiple of stages.
    """
    if micro_batches % stages:
        raise ScheduleError(f"{micro_batches} micro-batches do not make groups of {stages}.")
    groups = range(0, micro_batches, stages)
    order = [(g + k, c) for g in groups for c in range(chunks) for k in range(stages)]
    forwards = [("F", k, c) for k, c in order]
    backwards = [("B", k, chunks - 1 - c) for k, c in order]
    warm_ups = [(chunks - 1) * stages + 2 * (stages - stage - 1) for stage in range(stages)]
    return [alternating(forwards, backwards, warm_up) for warm_up in warm_ups]


# Predict:
#
# 2 chunks. What becomes of the bubble, what of the memory, and what of the number of
# messages?

if rank == 0:
    schedules["interleaved"] = interleaved(n, 2 * n, 2)
    full, plans["interleaved"] = plan(schedules["interleaved"])

programs = from_rank_0(lambda: full)
enough = from_rank_0(lambda: 1.15 * end_of(plans["interleaved"]))
if rank == 0:
    print("stage 0:", *map(name, schedules["interleaved"][0][: 5 * n // 2]), "...")

everyone()
ran = shortest(programs[rank], enough)

ran_by_rank = to_rank_0(ran)
if rank == 0:
    runs["interleaved"] = ran_by_rank
    words = "forward", "backward (in each row: chunk 0 below, chunk 1 above)"
    show(compare("interleaved", plans["interleaved"], runs["interleaved"], words))
    save_figures()

if rank == 0:
    sends = [
        sum(i[0].startswith("send") for program in with_messages(schedules[which]) for i in program)
        for which in ("one_f_one_b", "interleaved")
    ]
    assert sends == [2 * (n - 1) * 2 * n, 2 * (2 * n - 1) * 2 * n]  # borders, both ways
    result("messages_1f1b", sends[0])
    result("messages_interleaved", sends[1])
    result("held_interleaved", check_schedule(schedules["interleaved"]))
    result("idle_interleaved", round(idle_share(plans["interleaved"]), 3))

# A stage is idle half as long as in 1F1B: (idle_interleaved) of the (shorter) time. It
# is not for nothing. There are (messages_interleaved) messages in place of
# (messages_1f1b), and stages hold (held_interleaved) activations, each for one chunk,
# half a stage: more than 1F1B.

# --- Zero bubble: work that nobody waits for ------------------------------------------

# chapter 02_graphs has shown that the backward of a linear layer is two products that
# do not need each other: the gradient of its input and that of its weight. Only the
# first one is urgent: the stage before waits for it. For the second one nobody waits
# before the optimizer's step. So make two instructions of B: I, the gradient of the
# input, and W, that of the weights. W can be put where a stage would otherwise be idle
# [qi2024]. (I and W are PyTorch's letters; the paper calls I B.)
#
# The variant ZB-H1 takes 1F1B, puts I in the place of B, and does W later: on stage s,
# s micro-batches later. An activation is needed until W, so a stage that is late with W
# holds more. Stage s of 1F1B holds n − s of them, so it can be s late, and no stage
# holds more than stage 0 does.


def zero_bubble(stages, micro_batches):
    """ZB-H1: 1F1B with I and W in the place of B; stage s is s micro-batches late with its W."""
    schedule = []
    for stage, program in enumerate(one_f_one_b(stages, micro_batches)):
        late = [("W", k, 0) for k in range(micro_batches)]
        schedule.append([])
        for kind, k, _ in program:
            schedule[-1].append(("I" if kind == "B" else "F", k, 0))
            if kind == "B" and k >= stage:
                schedule[-1].append(late.pop(0))
        schedule[-1] += late
    return schedule


# How can a real module be made to do that? `torch.autograd.grad(y, x, gradient,
# retain_graph=True)` computes the gradient of x alone; the products for the weights are
# left out, as nobody asks for them. Later, `torch.autograd.backward(y, gradient,
# inputs=weights)` computes those. But the second call has to get to the weights first:
# it walks through the layers once more, and computes all gradients between them again.
#
# The way out is to cut the stage between its layers, as the ranks are cut. The first
# walk leaves the gradient at each cut. Then each layer's weights need only what lies at
# their own cut.


class SplitWorker(Worker):
    """A worker that can compute the gradient of the input now, and those of the weights later.

    A piece that is an nn.Sequential is cut between its layers: then nothing that lies between two
    layers is computed twice. One with a forward of its own, or without layers, stays whole.
    """

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(chunks, like, loss, group)
        plain = nn.Sequential.forward  # a subclass may do more than one layer after the other
        self.parts = [[*c] if type(c).forward is plain and len(c) else [c] for c in chunks]
        self.does |= {"I": self.backward_input, "W": self.backward_weight}
        self.late = {}

    def backward_input(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)
        self.late[which] = []
        for part, x, y in reversed(self.kept.pop(which)):
            self.late[which].append((part, y, gradient))
            if x.requires_grad:
                (gradient,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
        self.hand_back(gradient, *which)

    def backward_weight(self, instruction):
        for part, y, gradient in self.late.pop(instruction[1:]):
            weights = [p for p in part.parameters() if p.requires_grad]
            if weights and y.requires_grad:
                torch.autograd.backward(y, gradient, inputs=weights)


# What is computed when? PyTorch counts floating-point operations, so we need not guess.
# Four linear layers, an input that wants a gradient: 4 products in forward, 4 for the
# gradients of the inputs, 4 for those of the weights. Rank 0 counts, alone, as a
# pipeline of one stage.

everyone()
alone = dist.new_group([0])


def counted(cut):
    """How many products F, I and W are, of four layers; with cuts between them, or without."""
    from torch.utils.flop_counter import FlopCounterMode

    layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    worker = SplitWorker([layers], None, lambda y, target: y.sum(), alone)
    if not cut:
        worker.parts = [[layers]]
    worker.begin([], [torch.zeros(8, 16, requires_grad=True)], [None])
    found = []
    for kind in "FIW":
        with FlopCounterMode(display=False) as counter:
            worker.does[kind]((kind, 0, 0))
        found.append(counter.get_total_flops() // (2 * 8 * 16 * 16))
    return found


products = {"cut": counted(True), "uncut": counted(False)} if rank == 0 else None

products_by_rank = to_rank_0(products)
if rank == 0:
    result("products_cut", products_by_rank[0]["cut"])

products_by_rank = to_rank_0(products)
if rank == 0:
    result("products_uncut", products_by_rank[0]["uncut"])

products_by_rank = to_rank_0(products)
if rank == 0:
    assert products_by_rank[0] == {"cut": [4, 4, 4], "uncut": [4, 4, 7]}

# With cuts F, I and W are (products_cut) products, without them (products_uncut): three
# gradients between layers are computed twice. The same happens inside of a layer that
# is a whole block of the GPT in chapter 16_layers. (PyTorch's pipelining finds the
# places to cut in autograd's graph; [qi2024] replaces the linear layers.) And memory:
# `retain_graph` keeps all that autograd has saved until W, and the gradients at the
# cuts are kept until then, too. What only I needed could go before.
#
# Predict: One unit each for F, I and W. In 1F1B a stage is idle for 3 (n − 1) units.
# For how many in ZB-H1?

if rank == 0:
    schedules["zero_bubble"] = zero_bubble(n, 2 * n)
    full, plans["zero_bubble"] = plan(schedules["zero_bubble"])

programs = from_rank_0(lambda: full)
enough = from_rank_0(lambda: 1.15 * end_of(plans["zero_bubble"]))
if rank == 0:
    print("stage 1:", *map(name, schedules["zero_bubble"][1]))

everyone()
ran = shortest(programs[rank], enough)

ran_by_rank = to_rank_0(ran)
if rank == 0:
    runs["zero_bubble"] = ran_by_rank
    words = "F: forward", "I: gradient of the input", "W: of the weights"
    show(compare("zero-bubble", plans["zero_bubble"], runs["zero_bubble"], words))
    save_figures()

if rank == 0:
    idle_times = {which: end_of(plans[which]) - 2 * n * 3 * unit for which in plans}
    assert abs(idle_times["zero_bubble"] - (n - 1) * unit) < 1e-9
    assert abs(idle_times["one_f_one_b"] - (n - 1) * 3 * unit) < 1e-9
    assert check_schedule(schedules["zero_bubble"]) == [n] * n
    result("idle_zero", round(idle_share(plans["zero_bubble"]), 3))

# A third, n − 1 units: (idle_zero) of the (shorter) time. At the start the way to the
# last stage is as long as ever, n − 1 forwards. At the end, each stage on the way back
# costs only I, and while it waits for the gradient a stage has W to do. Each stage
# holds (stages) micro-batches now, as many as stage 0 of 1F1B. The name promises more:
# with more memory, and an optimizer that does not wait for all ranks, the same paper
# removes the rest.
#
# How much there is to fill in depends on W. If a forward takes f, an I takes i and a W
# takes w seconds, a stage is idle for $(n - 1)(f + i - w)$: more than a third where W
# is short. A W that is longer than F or I delays them, and then it is $(n - 1) \max(f,
# i)$. The next section's `formula` says both; here it is held against the lists.

# --- Formula, schedule, clock ---------------------------------------------------------

# All four side by side, the idle time three times: by the formula that each section has
# argued for, by the simulation, and on the ranks.


def formula(
    order, stages, micro_batches, chunks=1, forward=1, backward_input=1, backward_weight=1
):
    """(idle seconds of a stage in a step, activations that stage 0 holds), by the formulas.

    order: "gpipe", "one_f_one_b", "interleaved" or "zero_bubble"; the last two with at least as
    many micro-batches as stages. Seconds: of a micro-batch in all chunks of a stage. Raises
    ValueError for another order.
    """
    ways, work = stages - 1, forward + backward_input + backward_weight
    urgent = max(forward, backward_input, forward + backward_input - backward_weight)
    known = {
        "gpipe": (ways * work, micro_batches),
        "one_f_one_b": (ways * work, min(stages, micro_batches)),
        "interleaved": (ways * work / chunks, min(chunks * stages + ways, chunks * micro_batches)),
        "zero_bubble": (ways * urgent, min(stages, micro_batches)),
    }
    if order not in known:
        raise ValueError(f"There is no formula for {order!r}, only for {', '.join(known)}.")
    return known[order]


if rank == 0:
    for f, i, w in ((2, 2, 1), (1, 2, 2), (2, 1, 3)):  # a W that is short, as long, long
        ended = end_of(simulate(with_messages(schedules["zero_bubble"]), f, i, w))
        assert ended - 2 * n * (f + i + w) == formula("zero_bubble", n, 2 * n, 1, f, i, w)[0]

if rank == 0:
    measured = {which: idle_share(ran) for which, ran in runs.items()}
    longer = {which: end_of(runs[which]) / end_of(plans[which]) for which in runs}
    print(f"{'':>12}  idle: formula  schedule  measured   step: measured / schedule")
    for which, schedule in schedules.items():
        idle, held_first = formula(which, n, 2 * n, size(schedule)[2], unit, unit, unit)
        by_formula, by_schedule = idle / (idle + 2 * n * 3 * unit), idle_share(plans[which])
        shares = f"{by_formula:14.3f} {by_schedule:9.3f} {measured[which]:9.3f}"
        print(f"{which:>12} {shares} {longer[which]:14.2f}")
        assert abs(by_formula - by_schedule) < 1e-9
        assert check_schedule(schedule)[0] == held_first
    result("longest", max(longer.values()), varies=True)

# Formula and schedule agree to the last digit. The clock says somewhat more: the step
# takes up to (longest) times as long as planned. What the plan leaves out are the
# messages, and what it takes to wake a rank that sleeps. With naps so long that this
# does not count, step and idle share are within a tenth of the plan
# (`tests/chapters/test_pipeline_on_ranks.py` holds all four orders to that).
#
# For messages we can make another plan: 2 ms each. And we can count for how many
# messages the end of a step waits, one after the other, with more micro-batches, too.
# "1F1B, longer" warms up with two forwards for each stage behind, as interleaved does;
# it is `interleaved` with one chunk.

if rank == 0:
    orders = {
        "GPipe": gpipe,
        "1F1B": one_f_one_b,
        "interleaved": lambda stages, m: interleaved(stages, m, 2),
        "ZB-H1": zero_bubble,
        "1F1B, longer": lambda stages, m: interleaved(stages, m, 1),
    }
    waits, slower = {}, {}
    for title, make in orders.items():
        for m in (2 * n, 16 * n):
            full, planned = plan(make(n, m))
            seconds = [unit / size(full)[2]] * 3
            late = [end_of(simulate(full, *seconds, message=s)) - end_of(planned) for s in (1e-6, 2e-3)]
            waits[title, m] = round(late[0] / 1e-6)
            slower[title, m] = 1 + late[1] / end_of(planned)

if rank == 0:
    print(f"{'':>12}   messages waited for   step longer by\n{'':>12}   m = {2 * n:<7} m = {16 * n}")
    for title in orders:
        few, many = waits[title, 2 * n], waits[title, 16 * n]
        by_few, by_many = slower[title, 2 * n], slower[title, 16 * n]
        print(f"{title:>12} {few:6} {many:11} {by_few:14.3f} {by_many:7.3f}")
        assert (few < many) == (title == "1F1B")
    result("waits_1f1b", [waits["1F1B", m] for m in (2 * n, 16 * n)])
    result("waits_longer", waits["1F1B, longer", 16 * n])
    result("held_longer", check_schedule(interleaved(n, 16 * n, 1)))

# GPipe, interleaved and ZB-H1 wait for a fixed number of messages, on the first way
# there and the last way back. 1F1B waits again and again, (waits_1f1b) times in all: a
# stage has warmed up with just enough forwards, so in every turn it waits for an
# answer, and more micro-batches do not help. ZB-H1 has a W to do meanwhile. Interleaved
# has more forwards done before. With that longer warm-up, 1F1B waits for (waits_longer)
# messages however many micro-batches there are, and holds (held_longer). So a longer
# warm-up buys messages with memory.

if rank == 0:
    fig, ax = plt.subplots(num="four", figsize=(5.2, 3.6))
    for k, (which, title) in enumerate(zip(schedules, orders)):
        per_stage = np.array(check_schedule(schedules[which])) / size(schedules[which])[2]
        idle, first = idle_share(plans[which]), k == 0
        ax.plot(per_stage, [idle] * n, "-", color=f"C{k}", lw=1, label="the other stages" * first)
        ax.plot(per_stage[0], idle, "o", color=f"C{k}", markersize=11, fillstyle="none",
                label="stage 0, planned" * first)
        ax.plot(per_stage[0], measured[which], "o", color=f"C{k}", markersize=4,
                label="stage 0, measured" * first)
        ax.annotate(title, (per_stage[0], idle), (9, -12), textcoords="offset points", fontsize=10)
    ax.set(xlabel="micro-batches that a stage holds", ylabel="idle share of the time")
    ax.set(xlim=(0, 2.6 * n), ylim=(0, 0.1 + idle_share(plans["gpipe"])))
    ax.legend(fontsize=9, ncols=3, loc="upper left", handletextpad=0.3, columnspacing=1)
    save_figures()

# From ranklab.taught.layers:


def prose():
    """The text of Python's own documentation: a str of plain ASCII."""
    from pydoc_data.topics import topics  # a large module

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def encode(text):
    """Characters as int64 tokens: 0 ends a line, 1 is a space, 95 a tilde."""
    return torch.tensor([0 if c == "\n" else ord(c) - 31 for c in text])


def windows(tokens, batch, context, seed):
    """Inputs and targets, (batch, context): windows of text, and one later."""
    g = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - context, (batch, 1), generator=g)
    rows = tokens[starts + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


@dataclass(frozen=True)
class Shape:
    """The numbers that make a GPT: `width` features a token, `heads` heads."""

    vocabulary: int = 96
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 4


# Down and to the left is better. 1F1B is left of GPipe at the same height. From there,
# interleaving buys idle time with memory and messages. ZB-H1 buys it with memory that
# the later stages had to spare: each now holds as much as stage 0.

# --- The same weights -----------------------------------------------------------------

# Another order of the same sums: nothing else has changed. So every schedule must come
# to the weights of the whole model, to the last digits of float64. The model is chapter
# 16's GPT, with as many layers as make two for each rank. Where a stage has two chunks,
# its layers do not follow each other.

everyone()

text = encode(prose())
small = Shape(context=8, width=16, heads=2, blocks=2 * world_size - 2)  # 2 * world_size layers


def batch_of(step, micro_batches=2 * world_size):
    """A batch's inputs and targets, each cut into micro-batches of two."""
    inputs, targets = windows(text, 2 * micro_batches, small.context, seed=step)
    return inputs.split(2), targets.split(2)


# From ranklab.taught.layers:


class Embed(nn.Module):
    """Tokens (batch, time) -> (batch, time, width), token plus place."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places.weight[: tokens.shape[1]]


def attend(query, key, value):
    """Causal attention; all (batch, heads, time, size)."""
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """(batch, time, width) -> the same; `heads` heads of `size` features."""

    def __init__(self, width, heads, size):
        super().__init__()
        self.size = size
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, heads * size, bias=False)
        self.value = nn.Linear(width, heads * size, bias=False)
        self.out = nn.Linear(heads * size, width)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


def head_size(shape):
    """The features of a head. ValueError if the heads cannot share evenly."""
    if shape.width % shape.heads:
        what = f"{shape.width} features evenly."
        raise ValueError(f"{shape.heads} heads cannot share {what}")
    return shape.width // shape.heads


class MLP(nn.Module):
    """(..., width) -> the same: up to `hidden` features, GELU, and down."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """(batch, time, width) -> the same: attention and MLP, each added to x."""

    def __init__(self, shape):
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads, head_size(shape))
        self.mlp = MLP(shape.width, 4 * shape.width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Head(nn.Module):
    """(batch, time, width) -> logits (batch, time, vocabulary)."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x):
        return self.logits(self.norm(x))


def drawn(name, sizes, seed=0):
    """A parameter's first value, float64; name, sizes and seed alone decide."""
    if name.endswith("bias"):
        return torch.zeros(sizes, dtype=torch.float64)
    if "norm" in name:
        return torch.ones(sizes, dtype=torch.float64)
    number = zlib.crc32(f"{seed} {name}".encode())  # hash() differs by process
    g = torch.Generator().manual_seed(number)
    scale = sizes[-1] ** -0.5  # so that outputs are about as large as inputs
    return torch.randn(sizes, dtype=torch.float64, generator=g) * scale


def gpt(shape, first=0, last=None, seed=0, dtype=torch.float32):
    """Layers `first` to `last` (excluded) of a GPT, an nn.Sequential.

    Layer 0 embeds, the last one is the head. The names and initial weights of a
    layer are the same in whatever slice it stands.
    """
    blocks = [(f"block{i}", Block) for i in range(shape.blocks)]
    makers = [("embed", Embed), *blocks, ("head", Head)]
    layers = OrderedDict((name, make(shape)) for name, make in makers[first:last])
    model = nn.Sequential(layers).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(drawn(name, p.shape, seed))
    return model


def pieces_of(shape, chunks, dtype=torch.float64):
    """This rank's chunks of a GPT, all of them with as many layers."""
    each = (shape.blocks + 2) // (world_size * chunks)
    firsts = [(chunk * world_size + rank) * each for chunk in range(chunks)]
    return nn.ModuleList(gpt(shape, first, first + each, dtype=dtype) for first in firsts)


everyone()
all_programs = from_rank_0(lambda: {which: with_messages(schedule) for which, schedule in schedules.items()})

# From ranklab.taught.layers:


def language_loss(logits, targets):
    """Mean cross-entropy of logits (batch, time, vocabulary)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(chunks, program, finish=lambda: None, steps=3):
    """Losses and weights after some steps of a schedule; the losses on the last rank alone."""
    like = torch.empty(2, small.context, small.width, dtype=torch.float64)
    worker = SplitWorker(chunks, like, language_loss)
    optimizer = torch.optim.SGD(chunks.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        of_step = run(program, worker, *batch_of(step))
        finish()
        optimizer.step()
        losses += [sum(of_step) / len(of_step)] if of_step else []
    return losses, {name: p.detach() for chunk in chunks for name, p in chunk.named_parameters()}


def train_whole(model, finish=lambda: None, steps=3):
    """The same in one piece."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = map(torch.cat, batch_of(step))
        loss = language_loss(model(inputs), targets)
        loss.backward()
        finish()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.named_parameters(remove_duplicate=False))


def largest_gaps(trained, whole):
    """The largest differences of losses, and of weights, from the whole model's."""
    (losses, weights), (whole_losses, whole_weights) = trained, whole
    of_losses = [abs(a - b) for a, b in zip(losses, whole_losses)]
    of_weights = [(w - whole_weights[name]).abs().max().item() for name, w in weights.items()]
    return max(of_losses, default=0.0), max(of_weights)


whole = train_whole(gpt(small, dtype=torch.float64))
gaps = {}
for order, programs_of in all_programs.items():
    pieces = pieces_of(small, 2 if order == "interleaved" else 1)
    gaps[order] = largest_gaps(train(pieces, programs_of[rank]), whole)
whole_losses = whole[0]

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    found = [gap for of_rank in gaps_by_rank for pair in of_rank.values() for gap in pair]
    assert len(found) == n * 4 * 2 and max(found) < 1e-12

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("first_loss", round(whole_losses_by_rank[0][0], 4))

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("last_loss", round(whole_losses_by_rank[0][-1], 4))
    result("weight_gap", max(found), varies=True)

# The loss falls from (first_loss) to (last_loss) in three steps, and of all schedules,
# losses and weights the largest difference from the whole model is (weight_gap).

# --- A whole training step ------------------------------------------------------------

# A step has more to it than `run`. What looks at all gradients needs all stages: to
# clip by the norm of the whole gradient takes one all-reduce, of a sum of squares. And
# a weight that two stages share (chapter 16_layers) needs another, before it: both
# copies get the sum of their gradients, and only one of the two is counted in the norm.

everyone()
first_and_last = dist.new_group([0, world_size - 1])


def sum_and_clip(parameters, shared, max_norm):
    """Between the last backward and the optimizer, on every stage; returns the whole norm."""
    if shared is not None:
        dist.all_reduce(shared.grad, group=first_and_last)
    counted = [p.grad for p in parameters if p is not shared or rank == 0]  # one of the two
    squares = sum(gradient.square().sum() for gradient in counted)
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    for p in parameters:
        p.grad *= min(1, max_norm / (norm + 1e-6))  # PyTorch adds this, too
    return norm


everyone()

max_norm, norms = 1.0, []
pieces = pieces_of(small, 1)
ties = ("embed.tokens.weight", "head.logits.weight")
tied = next((p for name, p in pieces[0].named_parameters() if name in ties), None)
if rank == world_size - 1:
    tied.data.copy_(drawn(ties[0], tied.shape))  # it begins as the other copy does
mine = list(pieces.parameters())
clipped = train(pieces, all_programs["one_f_one_b"][rank],
                lambda: norms.append(sum_and_clip(mine, tied, max_norm)))

model, whole_norms = gpt(small, dtype=torch.float64), []
model.head.logits.weight = model.embed.tokens.weight
whole = train_whole(model, lambda: whole_norms.append(
    nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()))
clipped_gaps = *largest_gaps(clipped, whole), max(abs(a - b) for a, b in zip(norms, whole_norms))

clipped_gaps_by_rank = to_rank_0(clipped_gaps)
if rank == 0:
    assert max(max(gaps) for gaps in clipped_gaps_by_rank) < 1e-12

norms_by_rank = to_rank_0(norms)
if rank == 0:
    assert min(norms_by_rank[0]) > 1  # every step was clipped

norms_by_rank = to_rank_0(norms)
if rank == 0:
    result("norms", [round(norm, 3) for norm in norms_by_rank[0]])

# The norms of the three steps, (norms), were all clipped to 1, and losses, weights and
# norms are again those of the whole model. Data parallelism fits in at the same place:
# several such pipelines, each with its part of the batch, and the ranks that hold the
# same stage average their gradients (chapter 12_own_ddp) before the norm is taken.
# chapter 18_tensor asks which way of cutting a model is for what.

# --- Activations, counted -------------------------------------------------------------

# `held` counts forwards and backwards in a list. Does memory follow? Autograd calls a
# hook for each tensor that it saves (chapter 02_graphs). Ours puts it into a box, and
# notes when the box is thrown away. What two operations save, one as its output and the
# next one as its input, is in memory once, and is counted once: with its first box,
# until its last one is gone.


class Box:
    """Holds what autograd has saved."""

    def __init__(self, tensor):
        self.tensor = tensor


class Saved:
    """Bytes that autograd holds, now and at most, weights left out."""

    def __init__(self, modules):
        self.now = self.most = 0
        self.boxes = Counter()  # of each storage
        self.weights = {p.untyped_storage().data_ptr() for m in modules for p in m.parameters()}

    def pack(self, tensor):
        box, storage = Box(tensor.detach()), tensor.untyped_storage()  # no way back to the graph
        where = storage.data_ptr()
        if where not in self.weights:
            self.now += storage.nbytes() * (self.boxes[where] == 0)
            self.boxes[where] += 1
            self.most = max(self.most, self.now)
            weakref.finalize(box, self.drop, where, storage.nbytes())
        return box

    def drop(self, where, nbytes):
        self.boxes[where] -= 1
        self.now -= nbytes * (self.boxes[where] == 0)


# The stages are alike this time, two layers of an MLP each, so that every micro-batch
# leaves the same behind in each chunk. The last stage saves something for the loss,
# too, and is left out of the comparison.


def most_saved(program, chunks, micro_batches):
    """The most bytes that autograd holds on this rank, while it carries out a program."""
    def layer():
        return nn.Sequential(nn.Tanh(), nn.Linear(32, 32))
    pieces = [nn.Sequential(*[layer() for _ in range(2 // chunks)]) for _ in range(chunks)]
    saved, inputs = Saved(pieces), [torch.zeros(4, 32)] * micro_batches
    worker = SplitWorker(pieces, torch.empty(4, 32), lambda y, target: y.square().mean())
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda box: box.tensor):
        run(program, worker, inputs, inputs)
    assert saved.now == 0  # all of it was forgotten
    return saved.most


everyone()

unit_bytes = most_saved(one_batch[rank], 1, 1)  # of one micro-batch, in a whole stage
most_bytes = {
    order: most_saved(lists[rank], 2 if order == "interleaved" else 1, 2 * world_size)
    for order, lists in all_programs.items()
}

most_bytes_by_rank = to_rank_0(most_bytes)
unit_bytes_by_rank = to_rank_0(unit_bytes)
if rank == 0:
    most_of, unit_of = most_bytes_by_rank, unit_bytes_by_rank
    for which, schedule in schedules.items():
        units = [most[which] / unit for most, unit in zip(most_of, unit_of)]
        wanted = np.array(check_schedule(schedule)) / size(schedule)[2]
        assert np.allclose(units[:-1], wanted[:-1])
        print(f"{which:>12}: {list(map(float, units[:-1]))}, by the lists {wanted[:-1].tolist()}")
    result("unit_bytes", unit_of[0])
    save_figures()

# Exactly what the lists say, on all stages but the last, in units of (unit_bytes)
# bytes, what one micro-batch leaves behind in one stage. The hooks do not see what the
# worker itself keeps: outputs at the cuts, gradients between I and W, for each link the
# tensor that was sent last, and the empty tensors of the receives that are posted.

# --- Real layers, real cores ----------------------------------------------------------

# Stages that sleep share nothing. Stages that compute share the machine. Here is a
# larger GPT. Each rank first measures its own stage while the others wait. The slowest
# stage sets the pace, so its times go into the plan. Then all run 1F1B.
#
# Predict: How many cores has your machine? If the ranks outnumber them: will the step
# take longer than planned, and will the share of idle time be smaller or larger?

everyone()
large = Shape(context=64, width=64, heads=4, blocks=2 * world_size - 2)
text_inputs, text_targets = windows(text, 2 * 2 * world_size, large.context, seed=0)
real_inputs, real_targets = text_inputs.split(2), text_targets.split(2)
real_pieces = pieces_of(large, 1, torch.float32)
real_like = torch.empty(2, large.context, large.width)


def seconds_alone(repeats=5):
    """Seconds of a forward and of a backward of this rank's stage, while all others wait."""
    found = []
    for r in range(world_size):
        dist.barrier()
        for _ in range(repeats if r == rank else 0):
            x = real_inputs[0] if rank == 0 else torch.randn_like(real_like).requires_grad_()
            start = time.perf_counter()
            y = real_pieces[0](x)
            middle = time.perf_counter()
            y.square().mean().backward()
            found.append((middle - start, time.perf_counter() - middle))
    return [min(times) for times in zip(*found)]


alone_seconds = seconds_alone()

alone_seconds_by_rank = to_rank_0(alone_seconds)
if rank == 0:
    forward_alone, backward_alone = np.max(alone_seconds_by_rank, axis=0)  # the slowest stage
    full = with_messages(one_f_one_b(n, 2 * n))
    planned = simulate(full, forward_alone, backward_input=0.0, backward_weight=backward_alone)  # B

programs = from_rank_0(lambda: full)

everyone()
worker = Worker(real_pieces, real_like, language_loss)
real_logs = []
for _ in range(4):
    dist.barrier()
    run(programs[rank], worker, real_inputs, real_targets)
    real_logs.append(worker.log)
ends = torch.tensor([log[-1][2] for log in real_logs])
dist.all_reduce(ends, dist.ReduceOp.MAX)
real_ran = real_logs[ends.argmin()]

real_ran_by_rank = to_rank_0(real_ran)
if rank == 0:
    show(draw_both("real", ("planned, with a core for each rank", "ran"), (planned, real_ran_by_rank)))
    save_figures()

real_ran_by_rank = to_rank_0(real_ran)
if rank == 0:
    cores, at_work = os.cpu_count(), real_ran_by_rank

alone_seconds_by_rank = to_rank_0(alone_seconds)
if rank == 0:
    work = 2 * n * np.sum(alone_seconds_by_rank)  # of all stages, one after the other
    computed = (1 - idle_share(at_work)) * n * end_of(at_work)
    result("cores", cores, varies=True)
    result("even_over_whole", round((2 * n + n - 1) / (2 * n * n), 2))
    result("planned_over_whole", end_of(planned) / work, varies=True)
    result("ran_over_whole", end_of(at_work) / work, varies=True)
    result("stretch", computed / work, varies=True)
    result("idle_planned", idle_share(planned), varies=True)
    result("idle_real", idle_share(at_work), varies=True)
    result("limit_over_whole", 1 / min(cores, n), varies=True)

# All times here are shares of what one rank would need for all of the work, one stage
# after the other. With stages all alike and a core for each, 1F1B takes (m + n − 1) /
# (m · n), (even_over_whole) of it. The plan says (planned_over_whole), for it gives
# every stage the times of the slowest one. It took (ran_over_whole): where that is near
# 1, or above it, the pipeline wins nothing over one rank that does all.
#
# No schedule can do better than work / cores, here (limit_over_whole) with (cores)
# cores. What came on top shows in two numbers. All boxes together took (stretch) times
# as long as the same computations alone: above 1, ranks that compute at the same time
# were in each other's way. And the share of idle time is (idle_real), where
# (idle_planned) was planned. In the plan all stages are as slow as the slowest; really,
# the faster ones wait for it. (And a rank whose message has come may have to wait until
# a core is free. That is likely, but this page has not measured it.) So measure a
# schedule with a device for each stage.

# --- Two stages that both receive first -----------------------------------------------

# 1F1B sends an activation, and then receives a gradient. Somebody improves it: the
# gradient may be on its way already, so receive it first, and send after that. The list
# of each stage is still in order by itself.


def receives_first(program):
    """Where a send stands before a receive, put the receive first."""
    program = list(program)
    for k in range(len(program) - 1):
        (kind, *_), (after, *_) = program[k : k + 2]
        if kind.startswith("send") and after.startswith("receive"):
            program[k : k + 2] = program[k + 1], program[k]
    return program


if rank == 0:
    good = with_messages(one_f_one_b(n, 2 * n))
    improved = [receives_first(program) for program in good]

improved_programs = from_rank_0(lambda: improved)

# Predict: Which stages get stuck, and in which instruction? Read the programs of the
# last two.

if rank == 0:
    print(f"{f'stage {n - 2}':28}stage {n - 1}")
    for of_both in zip(improved[n - 2][:8], improved[n - 1]):
        print("{:28}{}".format(*map(name, of_both)))

# The report names the circle. The last stage waits for an activation, the one before it
# for a gradient, and each would send what the other waits for in its next instruction.
# All other stages wait because of these two. On a cluster you would see timeouts, of
# all ranks, many minutes later.

# The checker says it without any rank, in the instructions' own words:

if rank == 0:
    print(verdict(improved))

# The repair is the old order: send before you wait for the answer. And what was right
# in the idea? A receive can be posted early, with `irecv`, if the wait for it stays
# where it was. That is what `Messenger` does.

if rank == 0:
    print(verdict(good))

programs = from_rank_0(lambda: good)

everyone()
ran = napped(programs[rank])

ran_by_rank = to_rank_0(ran)
if rank == 0:
    assert [[i for i, _, _ in log] for log in ran_by_rank] == good
    print("All stages have come to their end.")

# --- Beside PyTorch's -----------------------------------------------------------------

# `torch.distributed.pipelining` [pytorchpipelining] has these schedules, too. A
# `PipelineStage` wraps a piece; a schedule takes it, the number of micro-batches and
# the loss; and its `step` takes the whole batch and cuts it. We give both the same
# pieces and the same batch.


def pytorchs(kind, pieces):
    """A step of one of PyTorch's schedules: gives the losses of the micro-batches."""
    numbered = [(chunk * world_size + rank, piece) for chunk, piece in enumerate(pieces)]
    stages = [PipelineStage(p, k, len(pieces) * world_size, device) for k, p in numbered]
    many = {"n_microbatches": 2 * world_size, "loss_fn": language_loss}
    pipeline = kind(stages if len(stages) > 1 else stages[0], **many)
    inputs, targets = map(torch.cat, batch_of(0))

    def step():
        losses = []
        first, last = rank == 0, rank == world_size - 1
        pipeline.step(*[inputs] * first, **({"target": targets, "losses": losses} if last else {}))
        return [loss.item() for loss in losses]
    return step, pipeline


def side_by_side(which, kind, repeats=3):
    """A step of ours and of PyTorch's: losses, largest difference of a gradient, median seconds."""
    chunks = 2 if which == "interleaved" else 1
    mine, theirs = pieces_of(small, chunks), pieces_of(small, chunks)
    like = torch.empty(2, small.context, small.width, dtype=torch.float64)
    worker, batch = Worker(mine, like, language_loss), batch_of(0)
    program = all_programs[which][rank]
    their_step, pipeline = pytorchs(kind, theirs)
    ways = (mine, lambda: run(program, worker, *batch)), (theirs, their_step)
    losses, seconds = [None, None], [[], []]
    for _ in range(repeats + 1):
        for k, (model, step) in enumerate(ways):
            model.zero_grad()
            dist.barrier()
            start = time.perf_counter()
            losses[k] = step()
            seconds[k].append(time.perf_counter() - start)
    pairs = zip(mine.parameters(), theirs.parameters())
    gap = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
    return losses, gap, [statistics.median(times[1:]) for times in seconds], pipeline


everyone()
kinds = {
    "gpipe": ScheduleGPipe,
    "one_f_one_b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}
beside = {}
for order, kind in kinds.items():
    *beside[order], pipeline = side_by_side(order, kind)

# The last one keeps its order as a list: piece, F or B, micro-batch.
no_messages = [i for i in all_programs[order][rank] if i[0] in "FB"]
own_order = [f"{chunk * world_size + rank}{kind}{k}" for kind, k, chunk in no_messages]
same_order = own_order == [str(each) for each in pipeline.pipeline_order[rank] if each]


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


of_ranks = to_rank_0(beside)
if rank == 0:
    for which in ("gpipe", "one_f_one_b", "interleaved"):
        (own_losses, their_losses), *_ = of_ranks[-1][which]  # the last rank has them
        assert np.allclose(own_losses, their_losses, rtol=0, atol=1e-12) and len(own_losses) == 2 * n
        assert max(of_rank[which][1] for of_rank in of_ranks) < 1e-12
        own_seconds, their_seconds = np.max([of_rank[which][2] for of_rank in of_ranks], axis=0)
        print(f"{which:>12}: own {1e3 * own_seconds:5.1f} ms, PyTorch's {1e3 * their_seconds:5.1f} ms")
        result(f"beside_{which}", own_seconds / their_seconds, varies=True)

same_order_by_rank = to_rank_0(same_order)
if rank == 0:
    assert all(same_order_by_rank)
    save_figures()

# The same losses, the same gradients, and for the interleaved schedule, the same order
# on every rank: PyTorch keeps it as data, too. Our step takes (beside_gpipe),
# (beside_one_f_one_b) and (beside_interleaved) times as long. Theirs can do more:
# shapes that the stages find out by themselves, stages that are cut out of a whole
# model, skip connections (in GPipe and 1F1B), FSDP within a stage. It is still marked
# as alpha. `ScheduleZBVZeroBubble` goes further than ZB-H1, and in
# `_PipelineScheduleRuntime` you find this chapter's interpreter.

# --- What you can do now --------------------------------------------------------------

# - Write a pipeline's order down as lists, for GPipe, 1F1B, interleaved 1F1B, ZB-H1,
#   and for orders of your own.
# - Prove that such lists work, at any speed and with any room on the links, before a
#   rank has run.
# - Say how long the stages are idle and how many activations they hold, by formula, by
#   counting, and by measuring.
# - Run any of them with one interpreter, and get the weights of the whole model.
# - Separate the gradient that somebody waits for from the one that can wait.
# - Find two stages that wait for each other, in the report and in the lists.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/17_pipeline.py
#
# With more hosts, the same file under `torchrun --nnodes`. `run`, `Worker` and the
# schedules are in `ranklab.taught.pipeline`. They are for Gloo. NCCL knows no tags, and
# with it sends and receives between two ranks stand in one queue: there, take PyTorch's
# `torch.distributed.pipelining`, which starts them as one group where they could block
# each other.

# --- Where to read on -----------------------------------------------------------------

# - [huang2019]: GPipe, with the trick that this chapter leaves out: to compute
#   activations twice in place of holding them.
# - [narayanan2019]: PipeDream, the first 1F1B, which does not wait for a step to end.
# - [narayanan2021memory]: PipeDream-Flush, 1F1B as used here, with all weights of one
#   step the same.
# - [narayanan2021]: Megatron-LM on 3072 GPUs: interleaving, and pipeline, tensor and
#   data parallelism together.
# - [qi2024]: zero bubble, with the schedules that come after ZB-H1.
# - [pytorchpipelining]: the schedules that PyTorch has, and how a model is cut for
#   them.
# - [kahn1974]: why programs that talk through queues come to the same end at any speed.

leave_group()
