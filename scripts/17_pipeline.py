# Chapter 17 of Many Ranks, One Model, as one script. Generated from book/17_pipeline.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 17_pipeline.py
#     torchrun --standalone --nproc-per-node 4 17_pipeline.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 17_pipeline.py
#     mpiexec -n 4 python 17_pipeline.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install matplotlib numpy torch vl-convert-python  (for mpiexec also: mpich mpi4py)

import html
import io
import itertools
import json
import os
import re
import socket
import sys
import textwrap
import time
import zlib
from collections import OrderedDict, defaultdict, deque
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import nn
from torch.distributed import pipelining
from torch.profiler import record_function
from torch.utils.flop_counter import FlopCounterMode


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


def choose_device(local_rank, local_size, gpus, device=None, backend=None):
    """Return the name of a rank's device, and the backend that fits.

    The rank is one of local_size on its host, where torch can use so many gpus. Asked for no
    device, it is RANKLAB_DEVICE; else a GPU, where there is one, and NCCL, if each rank has its
    own. What cannot be is a ValueError, in one sentence.
    """
    wanted = device or os.environ.get("RANKLAB_DEVICE") or ("cuda" if gpus else "cpu")
    said = f"device={device!r}" if device else f"RANKLAB_DEVICE={wanted}"
    name, _, index = wanted.partition(":")
    if name not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"{said} is not known. There are: 'cpu' and 'cuda'.")
    if name == "cpu":
        return "cpu", backend or "gloo"
    if int(index or 0) >= gpus:
        found = f"{gpus} GPU(s) here, counted from 0" if gpus else "no GPU here: take 'cpu'"
        raise ValueError(f"{said}: torch finds {found}.")
    alone = local_size == 1 or (gpus >= local_size and not index)
    return f"cuda:{index or local_rank % gpus}", backend or ("nccl" if alone else "gloo")


def send_over_host():
    """Let messages take tensors on a GPU: Gloo does it in collectives, but not in these."""
    import torch

    c10d = torch.distributed.distributed_c10d
    isend, irecv = c10d.isend, c10d.irecv
    if isend.__module__ != c10d.__name__:  # done before
        return

    class Coming:
        def __init__(self, work, box, tensor):
            self.work, self.box, self.tensor = work, box, tensor

        def __getattr__(self, name):
            return getattr(self.work, name)

        def wait(self, *limit):
            done = self.work.wait(*limit)
            if self.box is not None:
                self.tensor.data.copy_(self.box)
                self.box = None
            return done

    def send(tensor, *args, **kwargs):
        return isend(tensor.detach().cpu(), *args, **kwargs)

    def receive(tensor, *args, **kwargs):
        if not tensor.is_cuda:
            return irecv(tensor, *args, **kwargs)
        box = torch.empty_like(tensor, device="cpu", requires_grad=False)
        work = irecv(box, *args, **kwargs)
        return work and Coming(work, box, tensor)

    for module in (torch.distributed, c10d):
        module.isend, module.irecv = send, receive


def choose_together():
    """This rank's device, and the backend: NCCL only if every rank of every host says so."""
    mine = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        name, fits = choose_device(*mine, torch.cuda.device_count(), backend='gloo')
    except ValueError as error:
        name, fits = "cpu", f"{error}"
    store.set(f"backend of rank {rank}", fits)
    said = [store.get(f"backend of rank {r}").decode() for r in range(world_size)]
    if wrong := [words for words in said if " " in words]:  # one says it, all end
        sys.exit(wrong[0] if rank == 0 else 0)
    fits = "gloo" if "gloo" in said else fits
    return torch.device(name), "cpu:gloo,cuda:nccl" if fits == "nccl" else fits


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
store = next(dist.rendezvous("env://"))[0]
device, backend = choose_together()
if device.type == "cuda":
    torch.cuda.set_device(device)
    torch.set_default_device(device if rank else None)  # rank 0 begins as the kernel
if device.type == "cuda" and backend == "gloo":
    send_over_host()
form_groups()


playing = "kernel"
APART = ["alone", "both", "m"]  # the kernel and the ranks have one each
held_by = {"ranks": {}}


def play_(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
        if device.type == "cuda":
            torch.set_default_device(device if part == "ranks" else None)
    return before


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


# === Pipeline parallelism: filling the bubble =========================================

# A model that is cut into stages keeps one rank busy at a time, and all others wait.
# How can all of them work at once, how much idle time is left, and what does that cost
# in memory?
#
# 35 minutes to read, 10 predictions · 30 seconds to run · stands on chapter 2, chapter
# 6 and chapter 16
#
# Send several small batches through the stages, one behind the other. What is left is a
# question of order: which stage does what, when. You will write that order down as
# data, a list of instructions for each stage. At the end you can predict what an order
# costs in time and in memory, prove that it works, and run it on real ranks: GPipe,
# 1F1B, interleaved, zero bubble, and orders of your own.

# --- Micro-batches --------------------------------------------------------------------

# In chapter 16 one batch goes through the stages. While it is in one of them, all
# others have nothing to do: with n stages, each is idle for n − 1 of n parts of the
# time.
#
# So cut the batch into micro-batches. As soon as the first one has left stage 0, the
# second one can enter.
#
# A stage adds up the gradients of all of them before the optimizer's step: that is
# gradient accumulation. With micro-batches of one size, and each loss divided by their
# number, the sum is the gradient of the whole batch. Only layers that mix samples, such
# as batch normalization, see the difference, and dropout draws other numbers.
#
# A schedule is, for each stage, a list of instructions. An instruction is a tuple: what
# to do ("F" for forward, "B" for backward), with which micro-batch, and a third entry,
# the chunk, which is 0 until we need it. The simplest schedule is that of GPipe
# [huang2019]: all forwards, then all backwards.


def gpipe(stages, micro_batches):
    """For each stage a list of instructions: all forwards, all backwards."""
    ks = range(micro_batches)
    return [[(kind, k, 0) for kind in "FB" for k in ks] for _ in range(stages)]


if rank == 0:
    print("\n## Micro-batches\n")
    show(gpipe(2, 2))

# Both stages do the same. When they do it is not in the lists, and need not be. A stage
# does one thing after the other. It begins each as soon as what it needs is there: an
# activation from the previous stage, or a gradient from the next one. `simulate` goes
# through the lists by these rules.
#
# It is given the seconds of a forward, and those of a backward in two halves: zero
# bubble will pull the halves apart. Until then they are done together.


class ScheduleError(ValueError):
    """Why a schedule cannot work."""


def size(schedule):
    """(stages, micro-batches, chunks of a stage) of a schedule."""
    _, micro_batches, chunks = zip(*itertools.chain(*schedule))
    return len(schedule), max(micro_batches) + 1, max(chunks) + 1


def computing(program):  # the messages have longer names
    return [i for i in program if len(i[0]) == 1]


def simulate(schedule, forward=1.0, backward_input=1.0, backward_weight=1.0,
             message=0):
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


def end_of(times):
    return max(end for of_stage in times for _, _, end in of_stage)


# Predict: In the picture, above: one batch, forward 80 ms and backward 160 ms on each
# of four stages. Below: the same batch in four micro-batches, 20 and 40 ms each. Which
# share of the time is a stage idle above, and which below?

if rank == 0:
    n = world_size  # stages
    whole_batch = simulate(gpipe(n, 1), 0.08, 0.08, 0.08)
    four_parts = simulate(gpipe(n, 4), 0.02, 0.02, 0.02)

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


if rank == 0:
    of_both = {"the whole batch": whole_batch, "four micro-batches": four_parts}
    show(timetables(of_both, "micro-batches"))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# The number in a box is the micro-batch. The empty area is the bubble. As a number: the
# share of the stages' time in which they do not compute.


def idle_share(times):
    """The bubble: the share of the stages' time without computing."""
    parts = [p for row in times for p in row if len(p[0][0]) == 1]
    busy = sum(end - start for _, start, end in parts)
    whole = max(end for *_, end in parts) - min(start for _, start, _ in parts)
    return 1 - busy / (len(times) * whole)


if rank == 0:
    result("idle_whole", idle_share(whole_batch))
    result("idle_four", idle_share(four_parts))

if rank == 0:
    result("stages", n)
    for m in range(1, 40):  # whatever a forward and a backward take
        share = idle_share(simulate(gpipe(n, m), 3.0, 4.0, 1.0))
        assert abs(share - (n - 1) / (m + n - 1)) < 1e-9

# With (stages) stages, (idle_whole) of the time is idle for the whole batch, and
# (idle_four) with four micro-batches.
#
# A formula can be read off the picture. Let $t_F$ and $t_B$ be the seconds of a forward
# and of a backward of one micro-batch, and m the number of micro-batches. A stage works
# for $m (t_F + t_B)$.
#
# The last stage waits n − 1 forwards until it can begin, and has nothing to do in the
# last n − 1 backwards. So it is idle for $(n - 1) (t_F + t_B)$. The others are idle for
# as long, only their gap lies partly or wholly in the middle. So
#
# $$
# \frac{\text{idle}}{\text{busy}} = \frac{n - 1}{m}, \qquad
# \frac{\text{idle}}{\text{idle} + \text{busy}} = \frac{n - 1}{m + n - 1}.
# $$
#
# The GPipe paper calls the right one the bubble, and so do we. Megatron's
# [narayanan2021] gives the name to the left one: look which before you compare.
#
# More micro-batches make the bubble smaller. GPipe's authors found four times as many
# as stages to be enough [huang2019]. There cannot be more than samples, unless one cuts
# sequences, too [li2021terapipe]. And small matrix products are slow ones (chapter 1).

# --- 1F1B: the same idle time, less memory --------------------------------------------

# Of each micro-batch a stage keeps what autograd has saved, from its forward to its
# backward. GPipe's stages do all forwards first. So they hold the activations of the
# whole batch, however it is cut.
#
# To count what is held needs no clock, only the list: F adds one micro-batch, B takes
# one away. The W in the code comes with zero bubble.


def held(program):
    """The most activations, one a micro-batch and chunk, that a stage holds."""
    most = now = 0
    for kind, _, _ in program:
        now += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
        most = max(most, now)
    return most


# But why should stage 0 go on with forwards while the first gradient could be on its
# way back? The last stage can do B0 at once after F0. 1F1B, one forward and one
# backward, does so.
#
# Each stage warms up with one forward for every stage behind it: so many micro-batches
# keep all of those busy. Then it does one forward and one backward in turn.


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


# Predict: Twice as many micro-batches as stages. How many does each stage hold at most?
# Is the bubble larger than GPipe's, smaller, or the same?

if rank == 0:
    print("\n## 1F1B: the same idle time, less memory\n")
    unit = 0.02  # seconds of a forward, and of each half of a backward
    schedules = {"GPipe": gpipe(n, 2 * n), "1F1B": one_f_one_b(n, 2 * n)}
    plans = {which: simulate(s, unit, unit, unit) for which, s in schedules.items()}
    result("held_gpipe", [held(program) for program in schedules["GPipe"]])
    result("held_1f1b", [held(program) for program in schedules["1F1B"]])

if rank == 0:
    holds = {f"{which}: stage 0 holds {held(s[0])} micro-batches": plans[which]
             for which, s in schedules.items()}
    show(timetables(holds, "one-f-one-b"))

if rank == 0:
    assert np.ptp([idle_share(times) for times in plans.values()]) < 1e-9
    assert [held(program) for program in gpipe(n, 100)] == [100] * n
    assert [held(program) for program in one_f_one_b(n, 100)] == [*range(n, 0, -1)]

# The bubble is the same, only its pieces lie elsewhere.
#
# What is different is the memory. From stage 0 to the last one, 1F1B holds (held_1f1b)
# micro-batches, and GPipe (held_gpipe). A stage of 1F1B holds those of its warm-up and
# the one that it works on. So with 100 micro-batches in a step the numbers would still
# be (held_1f1b). Memory no longer limits m.
#
# 1F1B is PipeDream's [narayanan2019]. Here all weights of a step are the same, as in
# PipeDream-Flush [narayanan2021memory].

# --- The slowest stage sets the pace --------------------------------------------------

# Predict: One stage of four takes twice as long as the others. All of the work is a
# quarter more. By how much does the step grow?

if rank == 0:
    alike, one_slow = [unit] * n, [unit, 2 * unit] + [unit] * (n - 2)
    steps = [end_of(simulate(schedules["1F1B"], *[cost] * 3))
             for cost in (alike, one_slow)]
    result("work_grows", sum(one_slow) / sum(alike))
    result("step_grows", steps[1] / steps[0])

if rank == 0:
    rng = np.random.default_rng(0)
    for _ in range(50):
        cost, m = rng.integers(1, 9, n), int(rng.integers(n, 4 * n))
        both = [end_of(simulate(make(n, m), *[cost.tolist()] * 3))
                for make in (gpipe, one_f_one_b)]
        said = 3 * (cost.sum() + (m - 1) * cost.max())
        assert 3 * m * cost.max() <= both[1] <= both[0] == said

# From ranklab.taught.layers:


def balance(costs, n):
    """Bounds that cut a chain of layers for n owners: the largest sum is least.

    Raises ValueError where an owner would be left without a layer.
    """
    if not 1 <= n <= len(costs):
        raise ValueError(f"{n} owners for {len(costs)} layers: one each at least.")
    ends = range(1, len(costs) + 1)
    best = {j: (sum(costs[:j]), [0, j]) for j in ends}  # for one owner
    for k in range(2, n + 1):
        fewer, best = best, {}  # fewer: for k - 1 owners
        for j in range(k, len(costs) + 1):
            for i in range(k - 1, j):  # the last owner takes layers i to j
                largest, bounds = fewer[i]
                candidate = max(largest, sum(costs[i:j])), [*bounds, j]
                best[j] = min(best.get(j, candidate), candidate)
    return best[len(costs)][1]


# The work grows by a factor of (work_grows), and the step, here of 1F1B, by
# (step_grows). One slow stage slows down all.
#
# The first micro-batch passes all stages once. Each of the m − 1 others comes out one
# beat later, and the beat is that of the slowest stage. So GPipe takes
#
# $$
# \sum_s c_s + (m - 1) \max_s c_s
# $$
#
# seconds, where $c_s$ is a forward and a backward of stage s, if a backward is the same
# multiple of a forward on every stage. 1F1B takes no longer, and no less than $m \max_s
# c_s$.
#
# So the cut should be balanced. Chapter 16 has a function for that. In a language model
# the embedding is cheap, and a head over a large vocabulary costs as much as several
# blocks. Say it is two and a half:

if rank == 0:
    costs = [0.2] + [1.0] * (2 * n - 2) + [2.5]  # embedding, blocks, head
    cuts = {"even": [*range(0, 2 * n + 1, 2)], "balanced": balance(costs, n)}
    took = {}
    for which, bounds in cuts.items():
        of_stage = [sum(costs[i:j]) for i, j in itertools.pairwise(bounds)]
        took[which] = end_of(simulate(one_f_one_b(n, 8 * n), *[of_stage] * 3))
    result("balanced_over_even", took["balanced"] / took["even"])
    assert took["balanced"] < took["even"]


def packed(value):
    """The bytes of a value."""
    with io.BytesIO() as file:
        torch.save(value, file)
        return file.getvalue()


def unpacked(data, place):
    """The value of these bytes, its tensors on the device `place`."""
    return torch.load(io.BytesIO(data), map_location=place, weights_only=False)


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play_("kernel")
    box = [packed(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play_(before)
    return unpacked(box[0], device)


# The balanced cut takes (balanced_over_even) of the even one's time.

# --- Real layers on real ranks --------------------------------------------------------

# Now the ranks carry the lists out. `with_messages` completes the lists, a `Messenger`
# sends and receives, a `Worker` computes, and `run` goes through the list.
#
# What a stage needs comes by message. So `with_messages` puts a receive before each
# instruction that needs something from another stage, and a send after each that makes
# something for another stage. A piece is a part of the model that lies on one stage.
# Until we come to chunks, each stage has one.


def with_messages(schedule):
    """The schedule with a receive before whatever needs one, and a send after
    what makes one. Piece chunk * stages + stage of the model is a stage's."""
    stages, _, chunks = size(schedule)
    full = [[] for _ in schedule]
    for stage, program in enumerate(schedule):
        for kind, *which in computing(program):
            piece, what = which[1] * stages + stage, "gradient"
            ends = [piece == stages * chunks - 1, piece == 0]
            if kind == "F":
                what, ends = "activation", ends[::-1]
            if kind != "W" and not ends[0]:
                full[stage].append((f"receive {what}", *which))
            full[stage].append((kind, *which))
            if kind != "W" and not ends[1]:
                full[stage].append((f"send {what}", *which))
    return full


def neighbor(kind, stage, stages):
    """The other stage: activations go to the next one, gradients back."""
    step = 1 if kind in ("send activation", "receive gradient") else -1
    return (stage + step) % stages


def name(instruction):
    """Its name, "F0"; the chunk is named if it is not chunk 0: "B2.1"."""
    kind, k, chunk = instruction
    return f"{kind}{' ' * (len(kind) > 1)}{k}" + f".{chunk}" * (chunk > 0)


def parse(text):
    """Instructions by name: parse("F0 B2.1") is [("F", 0, 0), ("B", 2, 1)]."""
    words = [(word[0], *word[1:].split(".")) for word in text.split()]
    return [(kind, int(k), int(*chunk or "0")) for kind, k, *chunk in words]


if rank == 0:
    print("\n## Real layers on real ranks\n")

programs = from_rank_0(lambda: with_messages(schedules["1F1B"]))

if rank == 0:
    for stage, program in enumerate(with_messages(gpipe(2, 1))):
        print(f"stage {stage}:", ", ".join(map(name, program)))

# The `Messenger` is a stage's post office:
# - A box holds each tensor between a computation and a message, under the instruction's
#   name.
# - A send does not wait until its tensor has arrived, only for the one before it on the
#   same link.
# - A receive waits. But the room for it was made before, by `irecv`, so that the
#   message can travel while the stage computes. In that way the next eight receives of
#   the list are posted.
# - Activations and gradients have tags of their own, 0 and 1.
# - A message does not say what it is, and one that is too small would fill a part of
#   the room without an error. So the sender compares its shape and type with those of
#   `like`, an example.


class Messenger:
    """A rank as a stage of a pipeline: its messages, by instructions."""

    ahead = 8  # so many receives are posted at a time

    def __init__(self, like, group=None):
        self.like, self.group = like, group
        self.stage = dist.get_rank(group)
        self.stages = dist.get_world_size(group)
        self.does = {f"{way} {what}": getattr(self, way) for way in
                     ("send", "receive") for what in ("activation", "gradient")}

    def begin(self, program):
        """Before a step: nothing is there, and the first messages may come."""
        if self.ahead < 1:
            raise ValueError("`ahead` must be at least 1.")
        self.box, self.under_way, self.posted = {}, {}, {}
        self.to_post = deque(i for i in program if i[0].startswith("receive"))
        for _ in range(self.ahead):
            self.post()

    def link(self, instruction):  # the rank at its other end, and its tag
        other = neighbor(instruction[0], self.stage, self.stages)
        return other, int("gradient" in instruction[0])

    def send(self, instruction):
        to, tag = self.link(instruction)
        tensor = self.box.pop(instruction).contiguous()
        demand_like(tensor, self.like, instruction)
        self.end_send(to, tag)  # the one before it
        work = dist.isend(tensor, group=self.group, group_dst=to, tag=tag)
        self.under_way[to, tag] = work

    def end_send(self, *link):  # wait for what is under way on it
        if link in self.under_way:
            self.under_way.pop(link).wait()

    def post(self):
        """Make room for the next receive's message, and let it come."""
        if self.to_post:
            i, tensor = self.to_post.popleft(), torch.empty_like(self.like)
            src, tag = self.link(i)
            work = dist.irecv(tensor, group=self.group, group_src=src, tag=tag)
            self.posted[i] = tensor, work

    def receive(self, i):
        tensor, work = self.posted.pop(i)
        work.wait()
        self.box[i] = tensor.requires_grad_("activation" in i[0])
        self.post()


class Stage(Messenger):
    """chunks: its pieces of the model; chunk c of stage s is piece c * stages
    + s. like: of such a shape, type and device is what they send. loss: of the
    last piece's output and targets. parts: each piece as a list."""

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(like, group)
        self.parts, self.loss = [[chunk] for chunk in chunks], loss
        methods = "forward", "backward", "backward_input", "backward_weight"
        able = [pair for pair in zip("FBIW", methods) if hasattr(self, pair[1])]
        self.does |= {kind: getattr(self, method) for kind, method in able}

    def begin(self, program, inputs, targets):
        """Before a step. Each stage uses what it needs of the micro-batches."""
        super().begin(program)
        self.inputs, self.targets = inputs, targets
        self.kept, self.late, self.losses, self.log = {}, {}, [], []

    def ends(self, chunk):
        """Is this chunk the model's first piece? Its last one?"""
        piece = chunk * self.stages + self.stage
        return piece == 0, piece == self.stages * len(self.parts) - 1

    def send_back(self, gradient, which):
        """The gradient of a piece's input is for the stage before."""
        if not self.ends(which[1])[0]:
            self.box["send gradient", *which] = gradient


def demand_like(tensor, like, instruction):
    """Raise ValueError for a tensor that the other side has no room for."""
    found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, like))
    if found != wanted:
        raise ValueError(
            f"`{name(instruction)}` has a tensor of shape {found[0]} and "
            f"{found[1]}, and `like`, what a receive makes room for, is of "
            f"shape {wanted[0]} and {wanted[1]}.")


def demand_sound(program, worker, inputs, targets):
    """Raise ValueError for what a worker cannot do, or for other micro-batches
    than the program's."""
    for i in program:
        if i[0] not in worker.does:
            kind = type(worker).__name__
            raise ValueError(f"A {kind} cannot do `{name(i)}`.")
    m = 1 + max(k for _, k, _ in program)
    ends = worker.ends(0)[0], worker.ends(len(worker.parts) - 1)[1]
    given = ("inputs", inputs), ("targets", targets)
    for (what, parts), needed in zip(given, ends):
        shapes = sorted({tuple(part.shape) for part in parts})
        if needed and (len(parts) != m or len(shapes) > 1):
            raise ValueError(
                f"The program has {m} micro-batch{'es' * (m > 1)}, and needs "
                f"as many {what}, all of one shape; there are {len(parts)}, "
                f"of shapes {shapes}.")


# The `Worker` is the part that computes. A table, `does`, leads from the kind of an
# instruction to a method. That is all it knows about schedules.
#
# First the forward. A tensor that was received is a leaf, as in chapter 16. On the
# model's last piece comes the loss, divided by the number of micro-batches: they are of
# one size, so the mean of their means is the mean of the batch.
#
# `parts` holds each piece as a list of one, which zero bubble will cut further.
# `detach` ends autograd's graph in front of each part, so that a backward can stop
# there.


class ForwardWorker(Stage):
    """A stage that can do forwards, and keeps what backward will need."""

    def forward(self, instruction):
        which, (first, last) = instruction[1:], self.ends(instruction[2])
        came = ("receive activation", *which)
        y = self.inputs[which[0]] if first else self.box.pop(came)
        self.kept[which] = []
        for part in self.parts[which[1]]:
            x = y.detach().requires_grad_(y.requires_grad)
            y = part(x)
            self.kept[which].append((part, x, y))
        if last:
            loss = self.loss(y, self.targets[which[0]])
            self.losses.append(loss.item())
            self.kept[which][-1] = part, x, loss / len(self.targets)
        else:
            self.box["send activation", *which] = y.detach()


# Backward starts from a gradient that was received, or from the loss. What it leaves at
# the piece's input is for the stage before.


class Worker(ForwardWorker):
    """A rank as a stage of a pipeline: it carries out its instructions."""

    def backward(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)
        for _, x, y in reversed(self.kept.pop(which)):
            if y.requires_grad:
                torch.autograd.backward(y, gradient)  # None: y is the loss
            gradient = x.grad
        self.send_back(gradient, which)


# From ranklab.taught.training:


def now():
    """The time, once the GPU, if one is used, has done all it was asked."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


# The interpreter is a loop, and a clock.


def run(program, worker, inputs, targets):
    """Forward and backward of a step. inputs, targets: micro-batches of one
    size, needed for the first and for the last piece. Returns the losses, in
    the program's order, of the last piece. After an error the group is lost."""
    demand_sound(program, worker, inputs, targets)
    worker.begin(program, inputs, targets)
    zero = now()
    for i in program:
        start = now() - zero
        with record_function(name(i)):  # its name in a profile
            worker.does[i[0]](i)
        worker.log.append((i, start, now() - zero))
    for link in list(worker.under_way):
        worker.end_send(*link)
    return worker.losses


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


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
    with torch.device("cpu"):  # where the generator is
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


class Embed(nn.Module):
    """Tokens (batch, time) -> (batch, time, width), token plus place."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places.weight[: tokens.shape[1]]


def attend(q, k, v):
    """Causal attention; all (batch, heads, time, size)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


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
    value = torch.randn(sizes, dtype=torch.float64, generator=g, device="cpu")
    return value * sizes[-1] ** -0.5  # outputs about as large as inputs


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


# --- The same weights -----------------------------------------------------------------

# The small GPT of chapter 16, two layers a rank, is trained for three steps with 1F1B,
# and for comparison as a whole. Only the order of the sums is another one, so losses
# and weights have to be the same but for rounding.

everyone()
play_("ranks")

text, m = encode(prose()), 2 * world_size  # micro-batches, of two windows each
small = Shape(context=8, width=16, heads=2, blocks=2 * world_size - 2)


def batch_of(step):
    return [t.split(2) for t in windows(text, 2 * m, small.context, seed=step)]


def pieces_of(chunks):  # of one or two layers each
    each = 2 // chunks
    firsts = [(c * world_size + rank) * each for c in range(chunks)]
    whole = gpt(small, dtype=torch.float64)
    return nn.ModuleList(whole[i : i + each] for i in firsts)


# From ranklab.taught.layers:


def language_loss(logits, targets):
    """Mean cross-entropy of logits (batch, time, vocabulary)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def in_pieces(pieces, program, kind):
    like = torch.empty(2, small.context, small.width, dtype=torch.float64)
    worker = kind(pieces, like, language_loss)
    def step(number):
        losses = run(program, worker, *batch_of(number))
        return [sum(losses) / m] if losses else []
    return step


def in_one(model):
    def step(number):
        inputs, targets = map(torch.cat, batch_of(number))
        loss = language_loss(model(inputs), targets)
        loss.backward()
        return [loss.item()]
    return step


def train(pieces, step):
    weights = {k: p for each in pieces for k, p in each.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1, momentum=0.9)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        losses += step(number)
        optimizer.step()
    return losses, weights


everyone()

model, pieces = gpt(small, dtype=torch.float64), pieces_of(1)
whole = train([model], in_one(model))
cut = train(pieces, in_pieces(pieces, programs[rank], Worker))


def largest_gap(trained):
    (losses, weights), (others_losses, others) = trained, whole
    gaps = [abs(a - b) for a, b in zip(losses, others_losses)]
    gaps += [(w - others[k]).abs().max().item() for k, w in weights.items()]
    return max(gaps)


everyone()

assert largest_gap(cut) < 1e-12
assert len(cut[0]) == 3 * (rank == world_size - 1)
whole_losses = whole[0]


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(packed(value), values, group=driver)
    values = values and [unpacked(data, "cpu") for data in values]
    return values


whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    play_("kernel")
    result("first_loss", whole_losses_by_rank[0][0])

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("last_loss", whole_losses_by_rank[0][-1])

# The loss falls from (first_loss) to (last_loss) in three steps, with the whole model
# and with its pieces alike.

# --- Are two ranks faster than one? ---------------------------------------------------

# To be faster takes a core for each stage, and matrix products large enough to be worth
# a message. We measure two stages of a wider GPT on the first two ranks against one
# rank that has the whole model. Every rank has one torch thread. The one rank takes the
# batch in micro-batches or in one piece, and the better counts.
#
# Predict: Two stages, eight micro-batches, a core for each. Stages all alike would take
# (m + n − 1) / (m n) of the time. How many times as fast as one rank is that?
#
# `way` makes a step of it. `fastest` takes each of several ways four times, in turn,
# and the shortest time counts.

pair_1f1b = from_rank_0(lambda: with_messages(one_f_one_b(2, 8)))
one_8 = from_rank_0(lambda: with_messages(gpipe(1, 8)))
one_1 = from_rank_0(lambda: with_messages(gpipe(1, 1)))

everyone()
play_("ranks")
wide = Shape(context=64, width=256, heads=4, blocks=2)
many = 16 if device.type == "cpu" else 2048  # windows: work for a card
wide_batch = windows(text, many, wide.context, seed=0)


def way(programs, layers, m, kind=Worker):  # a step, for the first ranks
    group = dist.new_group(list(range(len(programs))))
    if rank >= len(programs):
        return lambda: None
    like = torch.empty(many // m, wide.context, wide.width)
    worker = kind([gpt(wide, *layers)], like, language_loss, group)
    parts = [tensor.split(many // m) for tensor in wide_batch]
    return lambda: (run(programs[rank], worker, *parts), worker.log)


def fastest(ways, mark=record_function):
    best = dict.fromkeys(ways, (float("inf"), None))
    for which, step in [*ways.items()] * 4:
        dist.barrier()
        start = now()
        with mark(which):
            got = step()
        dist.barrier()  # a step is over when all are done
        took = now() - start
        best[which] = min(best[which], (took, got))
    return best


@contextmanager
def unsampled(*args, **kwargs):
    """A stand-in for ranklab's sampled: it reads nothing, and its phases only pass."""
    yield SimpleNamespace(phase=nullcontext)


try:
    from ranklab.gpu import recorded, sampled, utilization_plot
except ImportError:
    recorded = utilization_plot = None
    sampled = unsampled
    if rank == 0:
        print("What ranklab.gpu measures is left out, for it is not installed here")

everyone()

half = (0, 2) if rank == 0 else (2, 4)  # of four layers
ways = {"pair": way(pair_1f1b, half, 8), "one_8": way(one_8, (), 8),
        "one_1": way(one_1, (), 1)}
with sampled(device=device) as meter:  # what the ranks' cards do meanwhile
    best = fastest(ways, meter.phase)

of_ranks = to_rank_0(best)
if rank == 0:
    play_("kernel")
    plan = simulate(one_f_one_b(2, 8), *[of_ranks[0]["one_8"][0] / 48] * 3)
    ran = [of_rank["pair"][1][1] for of_rank in of_ranks[:2]]
    show(timetables({"1F1B as planned": plan, "as it ran": ran}, "two-ranks"))

if rank == 0:
    took = {which: each[0] for which, each in of_ranks[0].items()}
    speed_up = min(took["one_8"], took["one_1"]) / took["pair"]
    result("speed_up", speed_up, varies=True)
    result("limit", 2 * 8 / (8 + 2 - 1))

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
    busy = sum(b - a for row in ran for i, a, b in row if len(i[0]) == 1)
    alone = speed_up * took["pair"]  # one rank's better way
    assert speed_up > 1.05 or busy > 1.25 * alone or not cores_are_free()
    result("one_in_pieces", took["one_8"] / alone, varies=True)
    result("pair_busy", busy / took["one_8"], varies=True)
    result("pair_idle", idle_share(ran), varies=True)
    product = 2 * (1 - idle_share(ran)) * alone / busy
    result("pair_product", product, varies=True)
    assert abs(product / speed_up - 1) < 0.1 or not cores_are_free()

# With stages all alike it would be (limit) times as fast. Measured was a factor of
# (speed_up). Where two cores are free, the check demands that two ranks are faster.
#
# The order is the same in both pictures. Where is the rest of the factor 2? In three
# places. Cutting the batch: in eight micro-batches one rank needs (one_in_pieces) times
# what it needs in the better of its two ways. Longer boxes: added up, they are
# (pair_busy) times as long as planned. Above 1, computations took longer, as where
# stages share a core. And waits, for a late stage or for a message: the stages are idle
# for (pair_idle) of their time, in the plan for a ninth. Together that is 2 · (1 −
# (pair_idle)) / ((one_in_pieces) · (pair_busy)) = (pair_product).

# --- Extra: what a meter shows --------------------------------------------------------

# `sampled`, of chapter 4, has watched both ranks while the three ways took turns: their
# cards where they have some, else their share of a core. Each has a row. The strip
# above it shows what the rank works on: `pair` is both stages, `one_8` and `one_1` are
# rank 0 alone, in eight micro-batches and in one piece. In the gaps a rank waits for
# the other.

if recorded:
    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        show(utilization_plot(meter_by_rank[:2], name="meters"))

# Rank 1 has a stage of the pair, and nothing to do in the other two ways. Its meter
# says so, for such a wait lasts several readings. The bubble of the pair it cannot
# show: its pieces are as long as one or two boxes of the picture above, a reading is a
# tenth of a second, and a card's own meter averages over more. Who looks for bubbles
# needs the log of `run`, or a trace. And with NCCL a rank that waits for a message does
# so in a kernel, which a card's meter counts as work.

if recorded:
    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        play_("kernel")
        cards = recorded("17_pipeline-cards", meter_by_rank[:2])
        show(utilization_plot([*cards.values()]) if cards else print("None yet."))

# In the recording two ranks share one card. There the pair takes longest: its stages
# have no second card to work on, and each message goes through the host's memory. The
# card's meter averages over a fifth of a second, and shows neither bubble nor boxes.

# --- Proven before it runs ------------------------------------------------------------

# A wrong schedule may hang, stop with an error, or silently give wrong gradients, and
# many GPUs are a costly place to find that out. But a schedule is data, so it can be
# proven right before it runs. What must be true?
# - Each stage does the forward and the backward of each micro-batch once.
# - Nothing stands before what it needs: a backward after the forward, a send after what
#   is sent.
# - The messages that a stage expects are those that come, in the order in which they
#   come.
# - No stages wait for each other in a circle, even if a link has room for one message
#   only.


def check_program(stage, program, wanted, micro_batches, chunks):
    """Does a stage do all that it must, and after what it needs of `wanted`?"""
    came = ["F", "receive gradient"]
    needs = {"F": ["receive activation"], "B": came, "I": came, "W": ["I"]}
    needs |= {"send activation": ["F"], "send gradient": ["B", "I"]}
    done = set()
    for i in program:
        for before in [(kind, *i[1:]) for kind in needs.get(i[0], [])]:
            always = len(i[0]) == len(before[0]) == 1
            if before not in done and (always or before in wanted):
                wrong = f"Stage {stage}: `{name(i)}` needs"
                raise ScheduleError(f"{wrong} `{name(before)}` before it.")
        done.add(i)
    for k, chunk in itertools.product(range(micro_batches), range(chunks)):
        kinds = "".join(kind for kind in "FBIW" if (kind, k, chunk) in done)
        if kinds not in ("FB", "FIW"):
            this, does = name(("", k, chunk)), " ".join(kinds) or "nothing"
            wrong = f"Stage {stage} does {does} with micro-batch {this}"
            raise ScheduleError(f"{wrong}; it must do F and B, or F, I and W.")


# The last two points are a matter of all lists together. So play them: every stage goes
# on until it has to wait, and a link is a queue that holds so many messages.


def play(schedule, depth=1):
    """Let every stage go on until it has to wait; links hold `depth` messages.
    Raises ScheduleError if one is not that expected, or stages stay waiting."""
    stages, links, moved = len(schedule), defaultdict(deque), True
    left = [deque(program) for program in schedule]
    while moved:
        moved = False
        for stage, program in enumerate(left):
            while program and carry(links, program[0], stage, stages, depth):
                program.popleft()
                moved = True
    waits = []
    for stage, program in enumerate(left):
        if program:
            kind, this = program[0][0], name(program[0])
            other = neighbor(kind, stage, stages)
            waits.append(f"stage {stage} waits for stage {other} in `{this}`")
    if waits:
        raise ScheduleError(f"Deadlock: {', '.join(waits)}.")


def carry(links, instruction, stage, stages, depth):
    """Put a message on its link, or take it; False if that has to wait."""
    kind, k, chunk = instruction
    if len(kind) == 1:
        return True
    (verb, what), other = kind.split(), neighbor(kind, stage, stages)
    if verb == "send":
        link = links[what, stage, other]
        piece = chunk * stages + stage + (1 if what == "activation" else -1)
        if len(link) != depth:  # there is room
            link.append((f"receive {what}", k, piece // stages))
            return True
        return False
    link = links[what, other, stage]
    if link and link[0] != instruction:
        raise ScheduleError(
            f"Stage {stage} wants to `{name(instruction)}`, and the next "
            f"message on that link is for `{name(link[0])}`.")
    return bool(link and link.popleft())


def check_schedule(schedule):
    """Return how many activations each stage holds at most, or raise
    ScheduleError, a sentence. Messages are put in where there are none."""
    if not schedule or not all(schedule):
        raise ScheduleError("Every stage has something to do.")
    ways = itertools.product(("send", "receive"), ("activation", "gradient"))
    kinds = {*"FBIW", *map(" ".join, ways)}
    for s, program in enumerate(schedule):
        for k, i in enumerate(program):
            if i[0] not in kinds or min(i[1:]) < 0:
                raise ScheduleError(f"Stage {s} has no use for `{name(i)}`.")
            if i in program[:k]:
                raise ScheduleError(f"Stage {s}: `{name(i)}` comes twice.")
    full, (stages, m, chunks) = with_messages(schedule), size(schedule)
    if stages == 1 and chunks > 1:
        raise ScheduleError("A stage cannot send messages to itself.")
    bare = all(program == computing(program) for program in schedule)
    schedule = full if bare else schedule
    for stage, program in enumerate(schedule):
        check_program(stage, program, set(full[stage]), m, chunks)
        for i in [*full[stage], *program]:
            if i not in program or i not in full[stage]:
                what = "never does" if i in full[stage] else "has no use for"
                raise ScheduleError(f"Stage {stage} {what} `{name(i)}`.")
    play(schedule, depth=1)
    return [held(program) for program in schedule]


# Is one play enough? Real ranks may be faster or slower, in any way. It is enough: a
# step that is possible stays possible, whatever the others do meanwhile, so all speeds
# lead to the same end [kahn1974]. What ends with room for one message also ends with
# room for more.
#
# That is why our `send` may wait for the one before it. A blocking `dist.send` has no
# room at all: for it this proves nothing.
#
# Predict: The list in the next cell has four schedules for two stages. Each has
# something wrong. What, and which of them would hang?


def verdict(schedule):
    try:
        return f"Right. Held: {check_schedule(schedule)}"
    except ScheduleError as error:
        return textwrap.indent(textwrap.fill(str(error), 76), "    ")


if rank == 0:
    print("\n## Proven before it runs\n")
    play_("kernel")
    for texts in (("F0 F1 B0 B1", "F0 B0 F1"), ("F0 F1 B0 B1", "F0 B0 B1 F1"),
                  ("F0 F1 B0 B1", "F1 B1 F0 B0"), ("F0 B0 F1 B1", "F0 F1 B0 B1")):
        print(" | ".join(texts), verdict([parse(text) for text in texts]), sep="\n")

# On real ranks:
# 1. The first one hangs: stage 0 waits for a gradient that nobody computes.
# 2. The second one stops with an error.
# 3. The third one is the worst: no error, and wrong gradients. The tensor for F0 is
#    taken for F1's, for nothing in it says whose it is. The loss compares micro-batch
#    0's output with micro-batch 1's targets.
# 4. The last one hangs, though each of its lists is fine by itself. The last stage
#    wants F1 before it does B0, and stage 0 wants B0 before it does F1.

everyone()
play_("ranks")
other = {0: 1, 1: 0} if rank == world_size - 1 else {}
mistaken = [(kind, other.get(k, k), c) for kind, k, c in programs[rank]]
pieces = pieces_of(1)
mistaken = train(pieces, in_pieces(pieces, mistaken, Worker))
assert largest_gap(mistaken) > 1e-6 or world_size == 1

# --- Two stages that both receive first -----------------------------------------------

# 1F1B sends an activation, and then receives a gradient. Somebody improves it: the
# gradient may be on its way already, so receive it first, and send after that. Where a
# send stands before a receive, the two change places:


def receives_first(program):
    for k, (kind, *_) in enumerate(program[:-1]):
        if kind[0] + program[k + 1][0][0] == "sr":
            program[k : k + 2] = program[k + 1], program[k]
    return program


everyone()
if rank == 0:
    play_("kernel")
    improved = [*map(receives_first, with_messages(schedules["1F1B"]))]

improved_programs = from_rank_0(lambda: improved)

# Predict: Which stages get stuck, and in which instruction? Read the programs of the
# last two.

if rank == 0:
    print(f"{f'stage {n - 2}':28}stage {n - 1}")
    for of_both in zip(improved[n - 2][:8], improved[n - 1]):
        print("{:28}{}".format(*map(name, of_both)))

# The report names the circle. The last stage waits for an activation, the one before it
# for a gradient. Each would send what the other waits for in its next instruction. On a
# cluster you would see timeouts of all ranks, many minutes later. The checker says it
# without any rank:

if rank == 0:
    print(verdict(improved))

# The repair is the old order: send before you wait for the answer. What was right in
# the idea is that a receive can be posted early, if the wait for it stays where it was.
# `Messenger` does that.

everyone()
play_("ranks")
repaired = in_pieces(pieces_of(1), programs[rank], Worker)(0)

repaired_by_rank = to_rank_0(repaired)
whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    play_("kernel")
    assert abs(repaired_by_rank[-1][0] - whole_losses_by_rank[0][0]) < 1e-12

# --- Interleaved: shorter ways --------------------------------------------------------

# The bubble is the time of two trips: that of the first micro-batch to the last stage,
# and that of the last gradient back. A trip takes less time when a stage is shorter.
#
# So give each stage several chunks, pieces of the model that do not follow each other.
# With 4 stages and 2 chunks, stage 0 has pieces 0 and 4, stage 1 has pieces 1 and 5. A
# micro-batch goes around twice, and each part of its way takes half as long
# [narayanan2021]. The third entry of an instruction now says which chunk.
#
# The order has two rules:
# - Micro-batches go in groups, as many as there are stages. A group goes through chunk
#   0, then through chunk 1, then the next group comes. A smaller group would leave
#   stage 0 idle until its first micro-batch has come around. So m has to be a multiple
#   of n.
# - To warm up, a stage does the forwards of all chunks but the last for a whole group.
#   In Megatron's schedule it does two more for each stage behind it. Then come a
#   forward and a backward in turn, as in 1F1B.


def interleaved(stages, micro_batches, chunks, each=2):
    """Interleaved 1F1B; each: more forwards first, for each stage behind."""
    if micro_batches % stages:
        wrong = f"{micro_batches} micro-batches do not make"
        raise ScheduleError(f"{wrong} groups of {stages}.")
    groups, inside = range(0, micro_batches, stages), range(stages)
    order = [(g + k, c) for g in groups for c in range(chunks) for k in inside]
    forwards = [("F", k, c) for k, c in order]
    backwards = [("B", k, chunks - 1 - c) for k, c in order]
    warm_ups = [(chunks - 1) * stages + each * k for k in reversed(inside)]
    return [alternating(forwards, backwards, some) for some in warm_ups]


# Predict: With 4 stages and 8 micro-batches, 1F1B is idle for 3/11 of the time, by the
# formula. What becomes of that with two chunks a stage?

if rank == 0:
    print("\n## Interleaved: shorter ways\n")
    schedules["interleaved"] = interleaved(n, 2 * n, 2)
    plans["interleaved"] = simulate(schedules["interleaved"], *[unit / 2] * 3)
    result("idle_interleaved", idle_share(plans["interleaved"]))

if rank == 0:
    of_both = {f"{which}, idle {idle_share(plans[which]):.2f}": plans[which]
               for which in ("1F1B", "interleaved")}
    show(timetables(of_both, "interleaved"))

# Below, chunk 0 is the lower half of a row, and chunk 1 the upper one. Look at the
# white corners on the lower left and the lower right: they are half as wide. Now
# (idle_interleaved) of the time is idle. With v chunks a stage is idle for 1/v of the
# seconds that it was.
#
# It has two prices. One is messages: a micro-batch takes 2 (n v − 1) of them in place
# of 2 (n − 1), here (messages_interleaved) in place of (messages_1f1b).
#
# The other is memory. Megatron's interleaved schedule holds $1 + (n - 1) / (n v)$ times
# 1F1B's activations [korthikanti2023], because of its longer warm-up. That hides the
# time of messages.

# --- Extra: one forward more, or two? -------------------------------------------------

# In the warm-up a stage does two forwards more for each stage behind it. 1F1B does with
# one.
#
# Predict: Let interleaved 1F1B do with one, too. Is the step longer then? What becomes
# of the activations held?

if rank == 0:
    short = interleaved(n, 2 * n, 2, each=1)
    short_plan = simulate(short, *[unit / 2] * 3)
    result("short_over_long", end_of(short_plan) / end_of(plans["interleaved"]))
    result("held_two", [held(p) for p in schedules["interleaved"]])
    result("held_one", [held(p) for p in short])
    print(verdict(short))

# The step is not longer: it takes (short_over_long) of the time. And stages hold
# (held_one) chunks in place of (held_two). A chunk is half a stage, so stage 0 now
# holds what it holds in 1F1B.
#
# So what is the second forward good for? The checker gives a first answer: with one, a
# link with room for one message is no longer enough. The second answer is that messages
# take time. How many of them does the end of a step wait for, one after the other? The
# next cell counts them, on the left for 2n micro-batches, on the right for 16n.


def waited_for(schedule, *works):
    few = 1e-6  # seconds: so short that nothing else changes
    ends = [end_of(simulate(schedule, *works, message=s)) for s in (few, 0)]
    return round((ends[0] - ends[1]) / few)


if rank == 0:
    waits = {"1F1B": one_f_one_b, "two each": lambda n, m: interleaved(n, m, 2),
             "one each": lambda n, m: interleaved(n, m, 2, each=1)}
    for which, make in waits.items():
        waits[which] = [waited_for(make(n, m)) for m in (2 * n, 16 * n)]
        print(f"{which:10} {waits[which]}")

if rank == 0:
    for m, v in itertools.product((2 * n, 4 * n), (2, 3)):
        two, one = (interleaved(n, m, v, each) for each in (2, 1))
        assert end_of(simulate(two)) == end_of(simulate(one))
        idle = idle_share(simulate(two))
        assert abs(idle / (1 - idle) - (n - 1) / (m * v)) < 1e-9
        assert abs(held(two[0]) / v - n * (1 + (n - 1) / (n * v))) < 1e-9
        assert held(one[0]) / v == n
        play(with_messages(one), depth=None)
        full = itertools.chain(*with_messages(two))
        assert sum(i[0][:4] == "send" for i in full) == m * 2 * (v * n - 1)
    assert "Deadlock" in verdict(short) or n == 2
    assert waits["two each"][0] == waits["two each"][1] < waits["one each"][1]
    result("waits_1f1b", float(np.diff(waits["1F1B"])[0] / (14 * n)))
    result("messages_1f1b", 2 * (n - 1))
    result("messages_interleaved", 2 * (2 * n - 1))
    group = parse("F0 F0.1 B0.1 B0")  # one micro-batch where n would have room
    assert simulate([group] * n)[0][1] == (("F", 0, 1), n, n + 1)

# With two each, a step waits for a fixed number of messages, if they are short beside
# the work. 1F1B waits for (waits_1f1b) more with every micro-batch. It has warmed up
# with just enough forwards, so in every turn it waits for an answer. So does
# interleaved with one each.
#
# So the longer warm-up costs memory, and hides the time of messages.

# --- Zero bubble: work that nobody waits for ------------------------------------------

# The backward of a linear layer is two products that do not need each other, as in
# chapter 2: the gradient of its input, and that of its weight. The first one is urgent,
# for the stage before waits for it. The second one can wait until the optimizer's step.
#
# So make two instructions of B: I, the gradient of the input, and W, that of the
# weights. W can be put where a stage would otherwise be idle [qi2024]. I and W are
# PyTorch's letters. The paper writes B for I.
#
# ZB-H1 is 1F1B with I in the place of B, and W later: on stage s, s micro-batches
# later. An activation is needed until W, so a stage that is late with W holds more.
# Stage s of 1F1B holds n − s of them, so it can be s late, and no stage holds more than
# stage 0 does.
#
# ZB-H2 spends more memory: nearly twice as many forwards first, and W twice as late.


def zero_bubble(stages, micro_batches, memory=1):
    """ZB-H1, or with memory=2 ZB-H2: 1F1B with I and W in the place of B.
    Stage s is memory * s micro-batches late with its W."""
    schedule, m = [], micro_batches
    for stage in range(stages):
        late = memory * stage
        warm_up = min(m, memory * (stages - stage) - memory + 1)
        program = [("F", k, 0) for k in range(warm_up)]
        for k in range(m):
            program.append(("I", k, 0))
            if k >= late:
                program.append(("W", k - late, 0))
            if k + warm_up < m:
                program.append(("F", k + warm_up, 0))
        program += [("W", k, 0) for k in range(max(0, m - late), m)]
        schedule.append(program)
    return schedule


# Predict: One unit each for F, I and W. In 1F1B a stage is idle for 3 (n − 1) units of
# a step. For how many in ZB-H1, and in ZB-H2?

if rank == 0:
    print("\n## Zero bubble: work that nobody waits for\n")
    schedules["ZB-H1"] = zero_bubble(n, 2 * n)
    schedules["ZB-H2"] = zero_bubble(n, 2 * n, memory=2)
    for which in ("1F1B", "ZB-H1", "ZB-H2"):
        plans[which] = simulate(schedules[which], unit, unit, unit)
        extra = round((end_of(plans[which]) - 6 * n * unit) / unit)
        print(f"{which}: {extra} units, held {check_schedule(schedules[which])}")

# ZB-H1 leaves a third, n − 1 units. And ZB-H2, for all its memory, the same? So far we
# have measured from the first start anywhere to the last end anywhere. Then it has to
# be the same: whatever the order, n − 1 forwards come before the last stage can begin.
#
# But that is the wrong question. Ask each stage how long it is idle between its own
# first and last instruction:


def idle_within(times):
    """Of each stage, the seconds that it is idle within its own span."""
    rows = [[p for p in row if len(p[0][0]) == 1] for row in times]
    busy = [sum(end - start for _, start, end in row) for row in rows]
    return [row[-1][2] - row[0][1] - b for row, b in zip(rows, busy)]


if rank == 0:
    for which in ("1F1B", "ZB-H1", "ZB-H2"):
        print(which, [round(s / unit) for s in idle_within(plans[which])])

# In ZB-H2 no stage ever waits. It only starts later than the one before it, and ends
# later: a parallelogram. Then the next step fits in without a gap. Here are two steps,
# one behind the other, and no stage waits for all others between them:


def repeated(schedule, steps):
    m = size(schedule)[1]
    return [[(kind, k + m * step, c) for step in range(steps)
             for kind, k, c in program] for program in schedule]


if rank == 0:
    two_steps = [simulate(repeated(schedules[which], 2), *[unit] * 3)
                 for which in ("ZB-H1", "ZB-H2")]

if rank == 0:
    words = "F: forward", "I: gradient of the input", "W: of the weights"
    titles = f"ZB-H1: each step leaves {n - 1} units idle", "ZB-H2: no gap"
    numbered = [[[((kind, k % (2 * n), c), *when) for (kind, k, c), *when in row]
                 for row in of_stages] for of_stages in two_steps]
    show(timetables(dict(zip(titles, numbered)), "parallelogram", words))

if rank == 0:
    for m, memory in itertools.product((2 * n, 3 * n + 1), (1, 2)):
        schedule = zero_bubble(n, m, memory)
        idle = [*reversed(range(n))] if memory == 1 else [0] * n
        assert idle_within(simulate(schedule)) == idle
        assert set(check_schedule(schedule)) == {memory * (n - 1) + 1}
        ends = [end_of(simulate(repeated(schedule, s))) for s in (1, 2, 3)]
        assert np.diff(ends).tolist() == [3 * m + idle[0]] * 2
        assert ends[0] == 3 * m + n - 1  # a step that others wait for

# With F, I and W of equal length, a step of ZB-H2 costs its work and nothing more, if a
# stage may begin the next step while others are still in this one.
#
# Whatever waits for all stages between two steps cuts the parallelogram off, and the n
# − 1 units are back: the norm of the whole gradient for clipping, the search for
# infinities in mixed precision, a barrier. The paper's optimizer steps without waiting,
# validates afterwards, and rolls back in the rare case that it must.

# --- What I and W cost on real layers -------------------------------------------------

# How can a real module be made to do that? `torch.autograd.grad(y, x, gradient,
# retain_graph=True)` computes the gradient of x alone. Later,
# `torch.autograd.backward(y, gradient, inputs=weights)` computes those of the weights.
# But to get to the weights, the second call walks through the layers once more, and
# computes all gradients between them again.
#
# So cut the stage between its layers, as the ranks are cut. The first walk leaves the
# gradient at each cut. Then each layer's weights need only what lies at their own cut.
# The price: `retain_graph` keeps all that autograd has saved until W, though W needs
# only a part of it.


class InputWorker(Worker):
    """A worker that can compute the gradient of an input alone."""

    def backward_input(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)
        self.late[which] = []
        for part, x, y in reversed(self.kept.pop(which)):
            self.late[which].append((part, y, gradient))
            if x.requires_grad:
                keep = {"retain_graph": True}  # for W
                (gradient,) = torch.autograd.grad(y, x, gradient, **keep)
        self.send_back(gradient, which)


class SplitWorker(InputWorker):
    """Does I now and W later. A plain nn.Sequential is cut between layers."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        plain = nn.Sequential.forward  # a subclass's may do more
        for k, [piece] in enumerate(self.parts):
            if type(piece).forward is plain and len(piece):
                self.parts[k] = [*piece]

    def backward_weight(self, instruction):
        for part, y, gradient in self.late.pop(instruction[1:]):
            weights = [p for p in part.parameters() if p.requires_grad]
            if weights and y.requires_grad:
                torch.autograd.backward(y, gradient, inputs=weights)


# Is nothing computed twice now? PyTorch counts floating-point operations, so we need
# not guess. We count those of F, I and W, for four linear layers and for two blocks of
# the GPT. The unit is the forward.

everyone()
play_("ranks")

alone = dist.new_group([0])


def counted(layers, x):
    worker = SplitWorker([layers], None, lambda y, _: y.sum(), alone)
    worker.begin([], [x.requires_grad_()], [None])
    found = []
    for kind in "FIW":
        with FlopCounterMode(display=False) as counter:
            worker.does[kind]((kind, 0, 0))
        found.append(counter.get_total_flops())
    return [each / found[0] for each in found]


four = [nn.Linear(16, 16) for _ in range(4)]
cases = (nn.Sequential(*four), (8, 16)), (gpt(wide, 1, 3), (2, 64, 256))
products = [counted(layers, torch.randn(shape)) for layers, shape in cases
            if rank == 0]

products_by_rank = to_rank_0(products)
if rank == 0:
    play_("kernel")
    of_layers, of_blocks = products_by_rank[0]
    result("layers_fiw", of_layers)
    result("blocks_fiw", [round(share, 2) for share in of_blocks])

if rank == 0:
    assert of_layers == [1, 1, 1]
    assert abs(of_blocks[1] - 1) < 0.1 and 1.7 < of_blocks[2] < 2.2

# Of plain layers F, I and W take (layers_fiw) forwards. But a block is not cut inside,
# and takes (blocks_fiw): its W computes the gradients within the block a second time.
#
# What is ZB-H1 worth then? It saves 2 (n − 1) units of the bubble. And it pays one unit
# more for each micro-batch, as W takes two. So it breaks even at m = 2 (n − 1). With
# more micro-batches than that, our cut does not pay. Now the same on real layers, with
# the two ranks from above:

pair_zero = from_rank_0(lambda: with_messages(zero_bubble(2, 8)))

everyone()
play_("ranks")
best = fastest({"1F1B": way(pair_1f1b, half, 8),
                "ZB-H1": way(pair_zero, half, 8, SplitWorker)})

best_by_rank = to_rank_0(best)
if rank == 0:
    play_("kernel")
    took = {which: each[0] for which, each in best_by_rank[0].items()}
    cases = (zero_bubble(2, 8), 1, 1, 2), (one_f_one_b(2, 8), 1, 1, 1)
    zero, one = [end_of(simulate(*case)) for case in cases]
    result("zero_planned", zero / one)
    result("zero_real", took["ZB-H1"] / took["1F1B"], varies=True)

if rank == 0:
    for m in range(n, 5 * n):
        zero = end_of(simulate(zero_bubble(n, m), 1, 1, 2))
        assert zero - end_of(simulate(one_f_one_b(n, m))) == m - 2 * (n - 1)

device_by_rank = to_rank_0(device)
if rank == 0:
    on_cpu = device_by_rank[0].type == "cpu"
    assert took["ZB-H1"] > took["1F1B"] or not (on_cpu and cores_are_free())

# ZB-H1 takes (zero_planned) times as long as 1F1B by the plan, and (zero_real) times on
# real layers. So zero bubble needs an I and a W that share no work. [qi2024] replaces
# the linear layers by ones that keep input and gradient for later, and PyTorch's
# pipelining finds the places to cut in autograd's graph [pytorchpipelining].

# --- Plan and clock -------------------------------------------------------------------

# Now all orders side by side, on four real ranks. Ranks that share cores would spoil
# each other's times, so these stages sleep: a unit, (unit_ms) ms, for a forward, one
# for the gradient of the input and one for that of the weight. All messages are real. A
# busy machine makes a run longer, never shorter, so the shorter of two runs counts.
#
# The table counts memory in micro-batches of a whole stage.
#
# Predict: Will a step be longer than planned, or shorter? What does the plan not know?


class Napper(Stage):
    """A stage that sleeps in the place of computing. Messages are real."""

    def __init__(self, unit, chunks=1, group=None):
        super().__init__([None] * chunks, torch.zeros(1), None, group)
        self.unit = unit / chunks
        self.does |= dict.fromkeys("FBIW", self.nap)

    def nap(self, instruction):
        kind, *which = instruction
        time.sleep(self.unit * (2 if kind == "B" else 1))
        what = "activation" if kind == "F" else "gradient"
        if kind != "W":  # at the model's ends nobody takes it
            self.box.pop((f"receive {what}", *which), None)
            self.box[f"send {what}", *which] = torch.zeros(1)


def napped(program, unit):
    parts, best = [torch.zeros(1)] * 2 * world_size, (float("inf"), None)
    for _ in range(2):
        worker = Napper(unit, 1 + max(chunk for _, _, chunk in program))
        dist.barrier()  # all clocks start together
        run(program, worker, parts, parts)
        end = torch.tensor(worker.log[-1][2])
        dist.all_reduce(end, dist.ReduceOp.MAX)
        best = min(best, (end.item(), worker.log))
    return best[1]


if rank == 0:
    print("\n## Plan and clock\n")

lists = from_rank_0(lambda: {which: with_messages(s) for which, s in schedules.items()})
unit = from_rank_0(lambda: unit)
if rank == 0:
    result("unit_ms", round(1000 * unit))

everyone()
play_("ranks")
runs = {which: napped(lists[which][rank], unit) for which in lists}

of_ranks = to_rank_0(runs)
if rank == 0:
    play_("kernel")
    ran = {which: [runs[which] for runs in of_ranks] for which in schedules}
    print(f"{'':12} held by stage 0  idle: planned    ran  step: ran / planned")
    for which, schedule in schedules.items():
        row = [held(schedule[0]) / size(schedule)[2]]
        row += [idle_share(times[which]) for times in (plans, ran)]
        row += [end_of(ran[which]) / end_of(plans[which])]
        print("{:12} {:15} {:14.3f} {:6.3f} {:17.2f}".format(which, *row))

if rank == 0:
    for which, schedule in schedules.items():
        assert [computing([i for i, *_ in log]) for log in ran[which]] == schedule
        assert end_of(ran[which]) > 0.95 * end_of(plans[which])
    longer = max(end_of(ran[which]) / end_of(plans[which]) for which in ran)
    if cores_are_free():
        assert longer < 2 and idle_share(ran["ZB-H1"]) < idle_share(ran["GPipe"])
    result("longest", longer, varies=True)

# Longer: up to (longest) times as long. The plan leaves out the messages, and what it
# takes to wake a rank that sleeps. The book's tests also count what autograd holds on
# real ranks: as many activations as `held` says.
#
# From 1F1B three ways lead to less idle time, and each has its price:
# - Interleaved: more messages, and with Megatron's warm-up more memory.
# - ZB-H1: an I and a W that share no work.
# - ZB-H2: nearly twice the memory. It shows no gain in this table, which has a single
#   step that all wait for.
#
# To try an order of your own, put its lists into `schedules` and its simulated times
# into `plans`, and run this section again.

# --- All of them train the same model -------------------------------------------------

everyone()
play_("ranks")
gaps = {}
for which, of_stages in lists.items():
    pieces = pieces_of(2 if which == "interleaved" else 1)
    step = in_pieces(pieces, of_stages[rank], SplitWorker)
    gaps[which] = largest_gap(train(pieces, step))

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    play_("kernel")
    assert all(max(gaps.values()) < 1e-12 for gaps in gaps_by_rank)

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    result("weight_gap", max(max(g.values()) for g in gaps_by_rank), varies=True)

# The largest difference of a loss or a weight from the whole model's is (weight_gap).
#
# What looks at all gradients at once needs all stages. To clip by the norm of the whole
# gradient takes one all-reduce, of a sum of squares. A weight that two stages share,
# such as a tied embedding, needs another one before it (chapter 16).
#
# Data parallelism fits in at the same place: several such pipelines, each with its part
# of the batch. As in chapter 12, the ranks that hold the same stage average their
# gradients, before the norm is taken.

# --- Machines that you do not have ----------------------------------------------------

# | | an H100 [h100] |
# | --- | --- |
# | bfloat16, dense | 989 TFLOP/s |
# | memory | 80 GB, 3.35 TB/s |
# | to a GPU in the same host, NVLink 4 [hopper] | 450 GB/s each way |
# | to another host, 400 Gbit/s InfiniBand [connectx7] | 50 GB/s |
#
# Worked problem: GPT-3 has 96 blocks of width 12,288, and reads 2,048 tokens
# [brown2020]. Eight stages of 12 blocks, an H100 each, in different hosts;
# micro-batches of one sequence, 64 of them. A block takes 24 w² operations a token in
# forward, if attention's scores are left out. Say that 40 % of the peak is reached. How
# long is a forward, how long its message, how large the bubble, and does it fit?
# Autograd saves about 34 bytes a token and feature in each block, if attention does not
# keep its scores. With them it would be 114 here [korthikanti2023].

if rank == 0:
    print("\n## Machines that you do not have\n")
    width, tokens, blocks_each, stages, m = 12_288, 2_048, 12, 8, 64
    forward = blocks_each * 24 * width**2 * tokens / (0.4 * 989e12)
    result("forward_ms", 1e3 * forward)
    result("message_ms", 1e3 * 2 * tokens * width / 50e9)  # two bytes a number
    result("bubble", (stages - 1) / (m + stages - 1))
    result("bubble_4", (stages - 1) / (4 * m + stages - 1))  # in four chunks
    saved = 34 * tokens * width * blocks_each * stages
    result("saved_gb", saved / 1e9)
    result("weights_gb", 16 * 12 * width**2 * blocks_each / 1e9)

if rank == 0:
    assert 2 * tokens * width / 50e9 < 0.01 * forward and saved > 80e9

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


# A forward takes (forward_ms) ms, and its message (message_ms) ms even between hosts: a
# pipeline asks little of its links. The bubble is (bubble), and with four chunks a
# stage (bubble_4).
#
# But it does not fit. Stage 0 of 1F1B holds eight micro-batches, (saved_gb) GB, and its
# weights with gradients and Adam's state take (weights_gb) GB at 16 bytes a parameter
# [rajbhandari2020]. The card has 80. More stages would each have fewer weights, but
# stage 0 would hold as much as now: n micro-batches of 1/n of the blocks. So a stage is
# itself cut, over the GPUs of a host (chapter 18).

if rank == 0:
    orders = {"1F1B": one_f_one_b, "GPipe": gpipe, "ZB-H1": zero_bubble,
              "interleaved, two chunks": lambda s, m: interleaved(s, m, 2)}


def planned(stages, micro_batches_a_stage, schedule, backward):
    program = schedule(stages, stages * micro_batches_a_stage)
    chunks = size(program)[2]
    times = simulate(program, 1 / chunks, *[backward / 2 / chunks] * 2)
    words = {"F": "forward", "B": "backward", "I": "gradient of the input",
             "W": "gradient of the weight"}
    boxes = [{"row": f"stage {stage}", "x": start, "x2": end,
              "which": words[what[0]], "text": str(what[1])}
             for stage, row in enumerate(times) for what, start, end in row]
    says = (f"idle for {idle_share(times):.1%} of the time; stage 0 holds\n"
            f"{held(program[0]) / chunks:.3g} micro-batches")
    return says, boxes


if rank == 0:
    show(playable(
        planned,
        box_chart("time, a forward is 1", None, height=240),
        name="play-pipeline",
        alt="A timetable with a row for each stage: boxes for forwards and "
        "backwards, numbered by micro-batch, and gaps where a stage is idle.",
        stages=[4, 2, 8],
        micro_batches_a_stage=[2, 1],
        schedule=orders,
        backward=[2, 1],
    ))

# --- Beside PyTorch's -----------------------------------------------------------------

# `torch.distributed.pipelining` [pytorchpipelining] has GPipe, 1F1B and interleaved,
# too. A `PipelineStage` wraps a piece; a schedule takes it, the number of micro-batches
# and the loss; and its `step` takes the whole batch and cuts it. PyTorch's step and
# ours get the same pieces and the same batch.


def pytorchs(kind, pieces):
    """A step of one of PyTorch's schedules, and the schedule."""
    every, last = len(pieces) * world_size, rank == world_size - 1
    stages = [pipelining.PipelineStage(piece, k, every, device)
              for k, piece in zip(range(rank, every, world_size), pieces)]
    order = kind(stages if len(stages) > 1 else stages[0], n_microbatches=m,
                 loss_fn=language_loss)
    inputs, targets = map(torch.cat, batch_of(0))
    def step():
        given = {"target": targets, "losses": []} if last else {}
        order.step(*[inputs] * (rank == 0), **given)
        return [loss.item() for loss in given.get("losses", [])]
    return step, order


everyone()
if rank == 0:
    print("\n## Beside PyTorch's\n")

play_("ranks")
kinds = {"GPipe": pipelining.ScheduleGPipe, "1F1B": pipelining.Schedule1F1B,
         "interleaved": pipelining.ScheduleInterleaved1F1B}
like, both = torch.empty(2, 8, 16, dtype=torch.float64), {}
for which, kind in kinds.items():
    chunks = 2 if which == "interleaved" else 1
    mine, theirs = pieces_of(chunks), pieces_of(chunks)
    worker = Worker(mine, like, language_loss)
    own_losses = run(lists[which][rank], worker, *batch_of(0))
    their_step, order = pytorchs(kind, theirs)
    both[which] = mine, theirs, own_losses, their_step()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)

everyone()
for mine, theirs, own_losses, their_losses in both.values():
    gaps = [abs(a - b) for a, b in zip(own_losses, their_losses)]
    assert len(gaps) == m * (rank == world_size - 1)
    pairs = zip(mine.parameters(), theirs.parameters())
    gaps += [(a.grad - b.grad).abs().max().item() for a, b in pairs]
    assert max(gaps) < 1e-12
bare = [i for i in lists["interleaved"][rank] if i[0] in "FB"]
own_order = [f"{c * world_size + rank}{kind}{k}" for kind, k, c in bare]
assert own_order == [str(i) for i in order.pipeline_order[rank] if i]

# The same losses, the same gradients, and for the interleaved schedule the same order
# on every rank: PyTorch keeps it as data, too. Its stages find out shapes by
# themselves, it can cut stages out of a whole model, and it has schedules for zero
# bubble and for V shapes [pytorchpipelining].

# --- What you can do now --------------------------------------------------------------

# - Write a pipeline's order down as lists: GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-H2,
#   and orders of your own.
# - Prove that such lists work, at any speed and with any room on the links, before a
#   rank has run.
# - Say how long the stages are idle and how many activations they hold, by formula, by
#   counting, and by measuring.
# - Run any of them with one interpreter, and get the weights of the whole model.
# - Separate the gradient that somebody waits for from the one that can wait, count what
#   that costs, and say when it pays.
# - Find two stages that wait for each other, in the report and in the lists.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/17_pipeline.py
#
# With more hosts, the same file under `torchrun --nnodes`. `run`, `Worker` and the
# schedules are in `ranklab.taught.pipeline`. They are for Gloo. NCCL has no tags, and
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
# - [qi2024]: zero bubble: ZB-H1, ZB-H2, ZB-V, and the optimizer that does not wait.
# - [qi2024memory]: schedules from building blocks, with half or a third of 1F1B's
#   memory.
# - [korthikanti2023]: the bytes of activations, counted, and which to compute twice.
# - [pytorchpipelining]: the schedules that PyTorch has, and how a model is cut for
#   them.
# - [kahn1974]: why programs that talk through queues come to the same end at any speed.

leave_group()
