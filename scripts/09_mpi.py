# Chapter 9 of Many Ranks, One Model, as one script. Generated from book/09_mpi.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 09_mpi.py
#     mpiexec -n 4 python 09_mpi.py
#
# pip install matplotlib mpi4py mpich numpy torch

import html
import io
import json
import mmap
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path


def start_ranks():
    """Started by hand: become mpiexec, which starts this file once for each rank."""
    beside = os.path.dirname(sys.executable)
    mpiexec = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if not mpiexec or not find_spec("mpi4py"):
        missing = "mpi4py" if mpiexec else "mpiexec"
        sys.exit(f"The ranks talk through MPI, and {missing} is missing: pip install mpich mpi4py")
    if "RANK" in os.environ:  # torchrun has started some, of which one says so
        words = f"The ranks talk through MPI. Start them with: mpiexec -n N python {sys.argv[0]}"
        sys.exit(words if os.environ["RANK"] == "0" else 0)
    n = os.environ.get("RANKLAB_RANKS", "4")
    # The ranks share the processor: one thread each, and who waits gives it away (in MPICH).
    for name in ("OMP_NUM_THREADS", "MPIR_CVAR_ENABLE_HEAVY_YIELD"):
        os.environ.setdefault(name, "1")
    os.execv(mpiexec, [mpiexec, "-n", n, sys.executable, *sys.argv])


if not os.environ.keys() & {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} or not find_spec("mpi4py"):
    start_ranks()

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mpi4py import MPI


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
    number = store_.add(f"groups of rank {rank}", 1)
    own = dist.PrefixStore(f"group {number}", store_)
    own.set(f"rank {rank}", "here")  # no clock runs before all ranks are here
    own.wait([f"rank {r}" for r in range(world_size)], timedelta(minutes=30))
    limit = timedelta(seconds=60)
    defaults = dist.distributed_c10d  # what dist.new_group() goes by, if not told otherwise
    defaults.default_pg_timeout = limit
    if defaults.default_pg_nccl_timeout is not None:  # there is NCCL in this build of torch
        defaults.default_pg_nccl_timeout = limit
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=limit)
    driver = dist.new_group(backend="gloo", timeout=timedelta(hours=1))


def end_all(*error):
    """An error that nobody catches ends all ranks: they would wait for this one for ever."""
    from mpi4py import MPI

    sys.stderr = sys.__stderr__  # torch would keep the text until this function returns
    sys.__excepthook__(*error)
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.2)  # mpiexec, which ends now, is to show it first
    MPI.COMM_WORLD.Abort(1)


signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank also while it waits
sys.excepthook = end_all
ask_mpi()


if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"] and sys.platform != "win32":
    # All ranks are on this machine: no message needs to leave it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device, backend = torch.device("cpu"), "gloo"
store_ = next(dist.rendezvous("env://"))[0]
form_groups()


playing = "kernel"
APART = ["count", "differ", "eager", "exact", "library", "name", "pairs", "refused", "rounds", "seconds", "sizes", "theirs", "way", "x", "y"]  # the kernel and the ranks have one each
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


# === MPI: the same ideas under an older name ==========================================

# The cluster's manual says `mpiexec`. My code says `torch.distributed`. What is the
# same in both, what is different, and which do I use for what?
#
# 30 minutes to read, 12 predictions · 30 seconds to run · stands on chapter 6, chapter
# 7 and chapter 8
#
# MPI, the message-passing interface, is a standard of 1994 [mpi]. MPICH, Open MPI and
# Intel MPI implement it. At the end you can
# - read a program in one of the two libraries, and write it in the other;
# - start ranks with `mpiexec`, and form a group of PyTorch among them;
# - say what only one of them has, and what each costs, a waiting rank included;
# - recognize six faults, and say what becomes of each.
#
# The first sitting ends with the faults: a little more than half of the reading, and
# eight predictions. The second, with two predictions, is for those who have to choose
# between the two libraries. Two optional sections have a prediction each.

if rank == 0:
    n = world_size

# From ranklab.programs:

TOLD = ("PMI", "HYD", "MPI_", "OMPI_")  # what an mpiexec tells those that it has started


def mpiexec(program, *options, n=2, seconds=20, sleeps="1"):
    """Run the text of a Python program on n ranks, and end it after so many seconds.

    options: of Python, such as "-m", "mpi4py". sleeps: in MPICH, does a rank that waits sleep
    ("1") or spin ("0")? Returns what it printed, errors included, and its exit code, or "stuck".
    """
    beside = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    command = [beside or shutil.which("mpiexec"), "-n", str(n), sys.executable]
    fresh = {name: said for name, said in os.environ.items() if not name.startswith(TOLD)}
    fresh["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = sleeps
    running = subprocess.Popen(
        [*command, *options, "-c", program],
        env=fresh,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return running.communicate(timeout=seconds)[0], running.returncode
    except subprocess.TimeoutExpired:
        running.terminate()
        return running.communicate()[0], "stuck"


# --- Two libraries in one process -----------------------------------------------------

# MPI comes with a launcher, `mpiexec`, which starts a program several times. A function
# of the same name runs the text of a program here, on two ranks. It returns what was
# printed, and the exit code or "stuck":

if rank == 0:
    print("\n## Two libraries in one process\n")
    hello = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
numbers = comm.gather(comm.rank)  # to rank 0; the others get None
if comm.rank == 0:
    print("ranks:", numbers)
"""
    said, ended = mpiexec(hello)
    print(said.strip())

if rank == 0:
    assert (said.strip(), ended) == ("ranks: [0, 1]", 0)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# The ranks of this notebook are an MPI program, too. And they have a Gloo group, as in
# all chapters. So each rank can call both libraries. All call them in the same order:
# two ranks that wait for each other, one in MPI and one in Gloo, are stuck. Here is
# chapter 7's all-gather, by MPI. A communicator is what PyTorch calls a process group;
# `COMM_WORLD` is that of all ranks.

everyone()
play("ranks")

comm = MPI.COMM_WORLD
before = torch.tensor([2.0**rank], dtype=torch.float64)
after = torch.zeros(comm.size, dtype=torch.float64)
comm.Allgather(before, after)
same_numbers = comm.rank == rank and comm.size == world_size
library = MPI.Get_library_version()


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


def show_(value, on_rank=None):
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
after_by_rank = to_rank_0(after)
if rank == 0:
    play("kernel")
    show_(holdings(before_by_rank, after_by_rank, name="allgather"))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


same_numbers_by_rank = to_rank_0(same_numbers)
if rank == 0:
    assert all(same_numbers_by_rank)

after_by_rank = to_rank_0(after)
if rank == 0:
    assert all(x.tolist() == [2.0**r for r in range(n)] for x in after_by_rank)

play("ranks")
library_by_rank = to_rank_0(library)
if rank == 0:
    play("kernel")
    library = library_by_rank[0]  # "MPICH Version: 5.0.2 ...", say
    mpich = library.split()[2] if "MPICH" in library else ""
    result("mpich", mpich, varies=True)

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)

# The labels name the rank that a number came from. A rank has the same number in both
# libraries, because the lab has numbered the Gloo group as MPI did. MPI is MPICH here
# [mpich], and Python reaches it through mpi4py [dalcin2021], which takes NumPy's arrays
# and PyTorch's CPU tensors.
#
# How does a group of PyTorch form among ranks that MPI has started? In chapter 5 their
# environment told them an address at which to meet. Ours can already talk, by MPI. So
# rank 0 makes up an address, and broadcasts it. Here the address is a file in a new
# folder:

everyone()
play("ranks")

folder = tempfile.mkdtemp() if rank == 0 else None
folder = comm.bcast(folder)  # from rank 0 to all, by MPI
store = dist.FileStore(folder + "/store", comm.size)
gloo = dist.ProcessGroupGloo(store, comm.rank, comm.size)

x = torch.tensor([rank + 1.0])
finished = gloo.allreduce([x]).wait()  # this class takes lists

everyone()

assert x.item() == world_size * (world_size + 1) / 2
comm.Barrier()  # all have met
if rank == 0:
    shutil.rmtree(folder)

# The ranks of this notebook had a default group already. Where there is none,
# `dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)`
# makes it from such a store. On several hosts rank 0 broadcasts its host's name and a
# free port, in place of a file. NCCL works in the same way: rank 0 draws a unique id,
# and another library, such as MPI, has to bring it to the other ranks [nccl].

# --- Call for call --------------------------------------------------------------------

# First the names:
#
# | PyTorch | MPI, in mpi4py |
# | --- | --- |
# | `torchrun --nproc-per-node 4 x.py`, 4 on each host | `mpiexec -n 4 python -m mpi4py x.py`, 4 in all |
# | `dist.init_process_group(...)` | `from mpi4py import MPI` |
# | `dist.get_rank()`, `dist.get_world_size()` | `comm.rank`, `comm.size` |
# | process group, `dist.new_group(ranks)` | communicator, `comm.Create_group(...)` or `comm.Split(color)` |
# | `dist.destroy_process_group()` | `MPI.Finalize()`, which mpi4py calls at the end |
# | handle, `handle.wait()` | request, `request.Wait()` |
# | `dist.ReduceOp.PRODUCT` | `MPI.PROD` |
# | `timeout=`, 30 minutes for Gloo | none in the standard: it waits for ever |
#
# In `Split` each rank names a color, a number, and gets a communicator of all ranks
# that named the same. All ranks must call it. `Create_group` is called by its members
# only, and `new_group`, by default, by all.

everyone()
if rank == 0:
    print("\n## Call for call\n")

left, right = (rank - 1) % world_size, (rank + 1) % world_size
teams = [dist.new_group(range(k, world_size, 2)) for k in (0, 1)]
team, team_comm = teams[rank % 2], comm.Split(rank % 2)  # every other rank

# Then the (calls) calls of chapters 6 and 7. Folded cells run each call and its twin on
# the same numbers, and compare what comes out. They try all types and operations that
# both libraries have, except complex numbers. They count how far apart two results are,
# in units in the last place. One unit is the distance from a float to the next.
#
# Predict: Are the results of both libraries equal to the last bit, for integers, for
# floats?
#
# Six of the pairs are shown below, the others in the extra. In them
# - `x` is this rank's numbers, and `y` a copy of them;
# - `part` is a copy of this rank's part of `x`;
# - `parts` is there on the root, and lists all parts of its `x`, as views;
# - `op` is an operation: `dist.ReduceOp.SUM` in PyTorch, say, and `MPI.SUM` in MPI.

everyone()

text = """
send, on 0:            dist.send(x, 1)
                       comm.Send(x, 1)
receive, on 1:         dist.recv(y, 0)
                       comm.Recv(y, 0, tag=0)
with a tag, on 0:      dist.send(x, 1, tag=7)
                       comm.Send(x, 1, tag=7)
from anyone, on 1:     dist.recv(y, tag=7)
                       comm.Recv(y, tag=7)
start now, wait later: dist.isend(x, right), dist.irecv(y, left)
                       comm.Isend(x, right), comm.Irecv(y, left, tag=0)
both at once:          sendrecv(x, right, y, left)
                       comm.Sendrecv(x, right, 0, y, left, 0)
broadcast:             dist.broadcast(x, 0)
                       comm.Bcast(x, 0)
scatter:               dist.scatter(part, parts, 0)
                       comm.Scatter(x, part, 0)
gather:                dist.gather(part, parts, 0)
                       comm.Gather(part, x, 0)
all-gather:            all_gather_single(x, part)
                       comm.Allgather(part, x)
all-to-all:            dist.all_to_all_single(y, x)
                       comm.Alltoall(x, y)
barrier:               dist.barrier()
                       comm.Barrier()
reduce:                dist.reduce(y, 0, op)
                       comm.Reduce(x, y, op, 0)
reduce-scatter:        reduce_scatter_single(part, x, op)
                       comm.Reduce_scatter_block(x, part, op)
all-reduce:            dist.all_reduce(y, op)
                       comm.Allreduce(x, y, op)
all-reduce, a handle:  dist.all_reduce(y, op, async_op=True).wait()
                       comm.Iallreduce(x, y, op).Wait()
all-reduce, in a team: dist.all_reduce(y, op, team)
                       team_comm.Allreduce(x, y, op)
"""
named = [line.split(": ") for line in text.strip().splitlines()[::2]]
twins = text.strip().splitlines()[1::2]
pairs = {name: (call.strip(), twin.strip())
         for (name, call), twin in zip(named, twins)}

# From ranklab.taught.messages:


def sendrecv(outgoing, dst, incoming, src):
    """Send `outgoing` to rank dst, and receive `incoming` from rank src.

    Both at the same time. On return, `incoming` is filled and `outgoing` may
    be changed. If every rank makes one such call, there is no circle, whoever
    sends to whom, as long as every send has its receive. For Gloo and MPI;
    NCCL wants both started as one group, by `dist.batch_isend_irecv`.
    """
    handle = dist.isend(outgoing, dst)
    dist.recv(incoming, src)
    handle.wait()


everyone()
known = {"dist": dist, "comm": comm, "left": left, "right": right, "team": team,
         "team_comm": team_comm, "sendrecv": sendrecv}
for new, old in (  # newer names of PyTorch, and older ones
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor")):
    known[new] = getattr(dist, new, None) or getattr(dist, old)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def units(a, b):
    """The most units in the last place that two tensors are apart."""
    if a.is_floating_point():
        a, b = a.view(BITS[a.itemsize]), b.view(BITS[b.itemsize])
    return int((a.long() - b.long()).abs().max())


def left_by(call, dtype, op):
    """x, y and part after a call, which always finds the same numbers."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.rand(64 * world_size, generator=generator, dtype=torch.float64)
    x = (1 + 3 * x).to(dtype)
    parts = list(x.chunk(world_size))
    given = {"x": x, "y": x.clone(), "part": parts[rank].clone(), "op": op,
             "parts": parts if rank == 0 else None}
    begun = eval(call, known | given)
    for handle in begun if isinstance(begun, tuple) else ():
        getattr(handle, "Wait", handle.wait)()
    return given["x"], given["y"], given["part"]


def apart(pair, dtype, ops):
    """How many units apart a call and its twin leave their numbers."""
    results = (left_by(call, dtype, op) for call, op in zip(pair, ops))
    return max(map(units, *results))


everyone()
R = dist.ReduceOp
rounded = [(R.SUM, MPI.SUM), (R.PRODUCT, MPI.PROD)]
compared = [(R.MIN, MPI.MIN), (R.MAX, MPI.MAX)]
bitwise = [(R.BAND, MPI.BAND), (R.BOR, MPI.BOR), (R.BXOR, MPI.BXOR)]
floats = [torch.float16, torch.float32, torch.float64]
integers = [torch.int8, torch.uint8, torch.int32, torch.int64]
differ = {}  # name: units, of floats that are added or multiplied, and else
for name, pair in pairs.items():
    here = name.partition(", on ")[2] in ("", str(rank))
    ops = rounded + compared if ", op" in pair[1] else [(None, None)]
    tried = [(dtype, op) for dtype in floats + integers for op in ops]
    more = bitwise if len(ops) > 1 else []
    tried += [(dtype, op) for dtype in integers for op in more]
    differ[name] = [0, 0]
    for dtype, op in tried if here else ():
        exact = dtype in integers or op not in rounded
        count = apart(pair, dtype, op)
        differ[name][exact] = max(count, differ[name][exact])

differ_by_rank = to_rank_0(differ)
pairs_by_rank = to_rank_0(pairs)
if rank == 0:
    play("kernel")
    differ, pairs = differ_by_rank, pairs_by_rank[0]


def worst(name):
    """The most units on any rank; of a reduce, only the root's is promised."""
    return np.max([d[name] for d in differ[:1 if name == "reduce" else n]], 0)


def show(names):
    print(f"{'':23}{'PyTorch, and MPI under it':48}units")
    for name in names:
        call, twin = pairs[name]
        print(f"{name:23}{call:48}{max(apart_by[name])}\n{'':23}{twin}")


if rank == 0:
    apart_by = {name: worst(name) for name in pairs}
    show_(show(("receive, on 1", "start now, wait later", "broadcast", "gather",
          "all-to-all", "all-reduce")))

if rank == 0:
    for name, (count, exact) in apart_by.items():
        assert exact == 0, name
        # all numbers are positive; each library rounds n - 1 times, by one unit
        assert count <= 2 * (n - 1) * ("reduce" in name), name
    assert n > 4 or max(apart_by["all-reduce, in a team"]) == 0
    result("calls", len(apart_by))
    result("most_units", max(map(max, apart_by.values())), varies=True)

# Integers are equal to the bit, whatever the call. So are floats that are only moved or
# compared. Sums and products of floats were at most (most_units) units apart on these
# numbers, which are all positive: with four ranks the libraries add in different
# orders, and each addition rounds. Where terms cancel, it can be far more.
#
# Four things to know:
# - Order. An MPI call that names two buffers names first the one that is sent, and then
#   the one that is filled. So do PyTorch's `gather` and `gather_object`; its other
#   calls, such as `all_to_all_single`, name first the one that is filled.
# - In place. PyTorch's `all_reduce` overwrites its tensor. MPI's takes two buffers, one
#   that goes in and one that is filled. To overwrite one buffer, write
#   `comm.Allreduce(MPI.IN_PLACE, x)`.
# - Tag. Both send with the tag 0, unless told otherwise. Without `tag=` a receive of
#   PyTorch takes messages of the tag 0, and one of mpi4py those of any tag.
# - Progress. After `isend`, or a call with `async_op=True`, Gloo goes on in the
#   background, as it has threads for that. After `Isend` or `Iallreduce` MPI may do
#   nothing until its next call, such as `Test` or `Wait` [mpi]. So do not count on it
#   to hide communication behind computation.

# --- Extra: all the calls, side by side -----------------------------------------------

# To come back to when you translate a program. `sendrecv` and `..._single` are those of
# chapters 6 and 7.

if rank == 0:
    show_(show(pairs))

# - Root. In mpi4py it may be left out, and is 0. In PyTorch it may be left out for
#   scatter and gather only. `comm.Reduce` takes `MPI.IN_PLACE` on the root alone.
# - Groups. The ranks of `comm.Split(color)` are numbered from 0 again, and `root=`,
#   `dest=` and `source=` mean these new numbers. In PyTorch `src=` and `dst=` stay
#   numbers of the default group, whatever `group=` says; `group_src=` and `group_dst=`
#   are the group's own [pytorchdistributed].

# --- What only one of them has --------------------------------------------------------

# Predict: Gradients are often bfloat16. mpi4py has a name for that type,
# `MPI.BFLOAT16_T`. Can MPI move such numbers from rank to rank? Can it add them?

everyone()
if rank == 0:
    print("\n## What only one of them has\n")

play("ranks")
x = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
y = torch.empty_like(x)
comm.Sendrecv(x, right, recvbuf=y, source=left)
moved = (y == left + 1).all().item()
dist.all_reduce(x)
added_by_gloo = x[0].item()

refused = []
for attempt in (lambda: comm.Allreduce(x, y), MPI.BFLOAT16_T.Get_size):
    try:
        attempt()
    except MPI.Exception as error:
        refused.append(str(error))

moved_by_rank = to_rank_0(moved)
if rank == 0:
    play("kernel")
    assert all(moved_by_rank)

added_by_gloo_by_rank = to_rank_0(added_by_gloo)
if rank == 0:
    assert added_by_gloo_by_rank == [n * (n + 1) / 2] * n

play("ranks")
refused_by_rank = to_rank_0(refused)
if rank == 0:
    play("kernel")
    refused = refused_by_rank[0]
    print(*(said.partition(",")[0] for said in refused), sep="\n")
    if mpich.startswith("5.0."):
        assert "Invalid MPI_Op" in refused[0] and "null datatype" in refused[1]

# The numbers have been moved, because mpi4py hands them to MPICH as bytes. But MPICH
# does not add bytes, and says "Invalid MPI_Op". The name does not help: `BFLOAT16_T` is
# a null type in this build, with MPICH (mpich). To add bfloat16, turn it into float32
# first, or bring an operation of your own, as an exercise at the end does. float16 has
# a name that works, `MPI.FLOAT16_T`. PyTorch's mean, chapter 7's `ReduceOp.AVG`, and
# its timeout have no twin in the standard [mpi].
#
# MPI, in turn, has more kinds of messages. A derived type describes numbers that lie
# apart, such as a column of a matrix:

everyone()
play("ranks")
matrix = torch.arange(6.0).reshape(3, 2)
column = MPI.FLOAT.Create_vector(3, 1, 2).Commit()  # 3 blocks of 1, 2 apart
received = torch.zeros(3)
if rank == 0:
    comm.Send([matrix, 1, column], 1)  # 1 item of this type
elif rank == 1:
    comm.Recv(received, 0)

received_by_rank = to_rank_0(received)
if rank == 0:
    play("kernel")
    assert received_by_rank[1].tolist() == [0.0, 2.0, 4.0]

# In one-sided communication a rank puts numbers, by `Put`, into memory that another
# rank has opened beforehand. The other calls no receive, and finds the numbers there
# once all have called `Fence`. There is more, such as `Scan` for prefix sums, and
# `Ineighbor_alltoall`, by which the ranks of a grid start an exchange with their
# neighbors, and wait for it later [mpi].

# --- Buffers and objects --------------------------------------------------------------

# mpi4py has most calls twice. With a capital letter, `Bcast`, a call takes a buffer and
# fills one. In lower case, `bcast`, it takes any object, pickles it, and returns one. A
# buffer must be contiguous: a column of a matrix raises an error, and a transposed
# matrix arrives in the order of its memory, without an error.
#
# Predict: What is in `x` after `comm.allreduce(x)`? And how much longer than a buffer
# does a broadcast of 100,000 numbers take, pickled as array, as tensor, as list?

everyone()
if rank == 0:
    print("\n## Buffers and objects\n")

play("ranks")

x = torch.tensor([rank + 1.0])
total = comm.allreduce(x)  # the result is returned
kept = x.item(), total.item()

note, notes = {"rank": rank}, [None] * world_size
dist.all_gather_object(notes, note)
same_notes = notes == comm.allgather(note)

tensor = torch.rand(100_000, dtype=torch.float64)
array, listed = tensor.numpy(), tensor.tolist()


def timed(call):
    """The times of nine calls, which the ranks begin together."""
    return timeit.repeat(call, setup=comm.Barrier, number=1, repeat=9)


bcast_times = [timed(lambda: comm.Bcast(tensor, 0))]
for thing in (array, tensor, listed):
    bcast_times.append(timed(lambda: comm.bcast(thing, 0)))
lengths = [len(MPI.pickle.dumps(thing)) for thing in (array, tensor)]

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


kept_by_rank = to_rank_0(kept)
if rank == 0:
    play("kernel")
    assert kept_by_rank == [(r + 1.0, n * (n + 1) / 2) for r in range(n)]

same_notes_by_rank = to_rank_0(same_notes)
if rank == 0:
    assert all(same_notes_by_rank)

bcast_times_by_rank = to_rank_0(bcast_times)
if rank == 0:
    medians = np.median(bcast_times_by_rank, axis=2)  # of nine calls
    times = np.max(medians, axis=0)
    if cores_are_free():  # the buffer is the fastest, the list the slowest
        assert times[0] == min(times) and times[3] == max(times)

lengths_by_rank = to_rank_0(lengths)
if rank == 0:
    assert 0 < np.diff(lengths_by_rank[0]) < 1000  # bytes
    for name, seconds in zip(("array", "tensor", "list"), times[1:]):
        result(f"{name}_over_buffer", seconds / times[0], varies=True)

# `x` is what it was: the sum was returned. PyTorch's `all_gather_object` gathers the
# same objects, but fills a list. Compared with the buffer, a pickled array takes
# (array_over_buffer) times as long, a pickled tensor (tensor_over_buffer) times, though
# its pickle is hardly longer; why, we have not measured. A list takes
# (list_over_buffer) times as long. Take objects for names and settings, buffers for
# everything in a loop.
#
# A place to stop.

# --- When it goes wrong ---------------------------------------------------------------

# MPI's standard has no timeout: what hangs, hangs until somebody ends the program.
# MPICH's launcher has one for the whole program: `MPIEXEC_TIMEOUT=600 mpiexec ...` ends
# it after ten minutes. Six faults follow.

# --- Who is the root? -----------------------------------------------------------------

# Predict: Somebody has written `root=rank`: every rank takes itself for the root. Is
# there an error, a hang, or a result? And what does the next broadcast bring, which all
# ranks call with `root=1`?

everyone()
if rank == 0:
    print("\n## When it goes wrong\n")

play("ranks")
aside = comm.Dup()  # the same ranks; its messages meet no others
wrong = np.array([rank])
aside.Bcast(wrong, root=rank)  # the fault
after_it = np.array([10 + rank])
show_(aside.Bcast(after_it, root=1), rank)  # is right

wrong_by_rank = to_rank_0(wrong)
if rank == 0:
    play("kernel")
    print("wrong:   ", *(x.item() for x in wrong_by_rank))

after_it_by_rank = to_rank_0(after_it)
if rank == 0:
    print("after it:", *(x.item() for x in after_it_by_rank))

wrong_by_rank = to_rank_0(wrong)
after_it_by_rank = to_rank_0(after_it)
if rank == 0:
    values = [[x.item() for x in x_of_ranks]
              for x_of_ranks in (wrong_by_rank, after_it_by_rank)]
    assert values == [[0] * n, [1] * n] or not mpich.startswith("5.0.")


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


# No error and no hang. The first call brings rank 0's number, and so looks right. The
# second brings an old one, the 1 that rank 1 had in the first call, though rank 1 has
# 11 by now.
#
# MPICH broadcasts within a host from its first rank, here rank 0. A root that is not
# rank 0 first sends its number to rank 0. Then it receives like all others
# [mpichbcast]. Follow rank 1's messages:

wrong_by_rank = to_rank_0(wrong)
after_it_by_rank = to_rank_0(after_it)
if rank == 0:
    first, second = (wrong_by_rank[1].item(), after_it_by_rank[1].item())
    fig, ax = plt.subplots(num="wrong-root", figsize=(6.4, 2.2))
    for x, call in (0, "the first call, root=rank"), (4, "the next, root=1"):
        ax.axvspan(x, x + 3, color="C7", alpha=0.15)
        ax.text(x + 1.5, 1.6, call, ha="center")
    for tail, head, number in (
            ((0.2, 1), (1.2, 0), 1), ((1.8, 0), (2.8, 1), first),
            ((5.8, 0), (6.8, 1), second), ((4.2, 1), (5.2, 0), 11)):
        color, up = f"C{tail[1]}", tail[1]
        ax.annotate("", head, tail, arrowprops={"arrowstyle": "->", "color": color})
        ax.text(tail[0], 1.1 if up else 0.2, number, color=color)
    for arrived, taken, what in (1.2, 4.6, "1 waits at rank 0"), (5.2, 9, "11 waits"):
        ax.plot((arrived, arrived, taken, taken), (0, -0.6, -0.6, 0), "C1:")
        ax.text(arrived + 0.2, -0.5, what, color="C1")
    ax.text(4.5, -0.5, "taken", color="C1", ha="right")
    ax.set(xlim=(0, 7.8), ylim=(-0.8, 2), xticks=[], xlabel="time",
           yticks=[0, 1], yticklabels=["rank 0", "rank 1"])
    save_figures()

# In the first call rank 0 is a root itself, and receives nothing. The 1 is small, so it
# left eagerly, and it waits at rank 0. In the second call rank 0 does receive from rank
# 1, finds the old 1, and hands that out. Now the 11 waits there, for the next with this
# root.
#
# So one wrong call spoils the right ones after it. All ranks must name one root, says
# the standard [mpi]. MPICH does not check that; MUST [must] is a tool that does. The
# lab cannot see it either, because no rank waits.
#
# That is why we were in `aside`: `Dup` makes a communicator of the same ranks, whose
# messages never meet those of another. Libraries that use MPI duplicate their caller's
# communicator for the same reason.

# --- One rank pickles, the others do not ----------------------------------------------

# `bcast` and `Bcast` differ in one letter. In this program rank 0 calls the one, and
# rank 1 the other:

if rank == 0:
    mixed = """
from array import array
from mpi4py import MPI
comm, x = MPI.COMM_WORLD, array("q", [0])  # an integer of 8 bytes
if comm.rank == 0:
    comm.bcast("hello")
else:
    comm.Bcast(x)
    print(x[0])
"""
    said, ended = mpiexec(mixed)
    print(said.strip(), "exit code", ended)

if rank == 0:
    if mpich.startswith("5.0."):
        assert (said.strip(), ended) == (str(len(pickle.dumps("hello", 5))), 0)

# A number, and the exit code 0. `bcast` first sends the length of the pickle, as an
# integer of eight bytes [mpi4pypickle], and that is what `x` now holds. The pickle
# itself is never received.
#
# And `allreduce` beside `Allreduce`?

# Predict: Rank 0 calls `allreduce`, the others call `Allreduce`. All want the sum. What
# does each of them wait for?

# MPI says nothing. The lab sees which call each rank is in, and that the calls do not
# match. Neither side hears of the other: rank 0 waits for an object, the others for
# rank 0's part in their sum. `allreduce` is made of sends: mpi4py passes pickled
# objects from rank to rank, in a communicator of its own [mpi4pypickle]. `Allreduce` is
# MPI's own operation, in `comm`. There `bcast` makes two broadcasts of MPI's, and rank
# 1's `Bcast` met the first.
#
# mpi4py makes its communicator when all ranks call `allreduce` for the first time, here
# under Buffers and objects. Without such a call the fault may end otherwise.
#
# `ranks.reset()` frees ranks that are stuck in Gloo, but not in MPI. Here
# `ranks.restart()` ends the ranks and starts new ones, without their variables.

# --- Both send first ------------------------------------------------------------------

# Ranks 0 and 1 both send first and then receive, which was a deadlock in chapter 6.
#
# Predict: Is it one with three numbers? And with a million bytes?
#
# The new ranks import MPI again:

everyone()
play("ranks")

comm = MPI.COMM_WORLD


def swap(mine, theirs):
    if rank < 2:
        comm.Send(mine, 1 - rank)
        comm.Recv(theirs, 1 - rank)


theirs = np.zeros(3)
show_(swap(np.full(3, 1.0 + rank), theirs), rank)

theirs_by_rank = to_rank_0(theirs)
if rank == 0:
    play("kernel")
    assert [x.tolist() for x in theirs_by_rank[:2]] == [[2.0] * 3, [1.0] * 3]

# The standard lets `Send` wait or not [mpi]. MPICH goes by the size: small messages
# leave at once, and with a large one `Send` waits for its receiver, a rendezvous, and
# so each rank waits for the other. We look for the border below. Such a program passes
# its tests, and hangs when the arrays grow. To find the fault with small arrays, write
# `Ssend`, which waits at any size [mpi]. To repair it, write `Sendrecv`.

# --- An exception on one rank ---------------------------------------------------------

# In a notebook a rank that has raised an exception lives on. A program ends, or should:

if rank == 0:
    failing = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:
    raise ValueError("nothing to send")
comm.recv(source=1)
"""

# Predict: Rank 1 raises, and prints its error. When does the program end?

if rank == 0:
    plain_said, plain_end = mpiexec(failing, seconds=1.5)
    print("python:          ", plain_end)
    said, guarded_end = mpiexec(failing, "-m", "mpi4py")
    print("python -m mpi4py:", guarded_end)

if rank == 0:
    assert plain_end == "stuck" and guarded_end == 1
    assert "ValueError" in said
    assert "ValueError" in plain_said or not cores_are_free()

# Started plainly, it does not: "stuck" means that we gave up after 1.5 seconds. Before
# rank 1 ends, mpi4py calls `MPI_Finalize`. In MPICH that waits for the other ranks, and
# rank 0 waits for a message. With `python -m mpi4py` an exception that nobody catches
# calls `MPI_Abort`, which ends all ranks [mpi4pyrun]. Start every program by `mpiexec
# -n 4 python -m mpi4py program.py`.

# --- A rank that dies -----------------------------------------------------------------

# What becomes of the others is a matter of the library, and of the launcher. In the
# next program rank 0 sends a word, and waits for one; rank 1 receives it, and kills
# itself. It runs over MPI and over Gloo: `{join}` is replaced by lines that define
# `rank`, `send` and `receive`.

if rank == 0:
    dying = """
import os, signal, time
{join}
if rank == 1:
    receive(0)  # rank 0 is there
    os.kill(os.getpid(), signal.SIGKILL)
try:
    send(1)
    receive(1)
except RuntimeError as error:
    print("an error:", type(error).__name__)
print("rank 0 lives")
"""

if rank == 0:
    over_mpi = """
from mpi4py import MPI
comm, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
send = lambda dst: comm.send("a word", dst)
receive = lambda src: comm.recv(source=src)
"""
    over_gloo = """
import torch
from torch import distributed as dist
rank = 1 if os.fork() == 0 else 0  # saves an import; chapter 5 starts two
file = "file://" + os.environ["MEETING"]
dist.init_process_group("gloo", file, rank=rank, world_size=2)
send = lambda dst: dist.send(torch.zeros(1), dst)
receive = lambda src: dist.recv(torch.zeros(1), src)
"""

# Predict: Rank 1 is killed while rank 0 waits for it. Over MPI, `mpiexec` has started
# both. Over Gloo, rank 0 has forked rank 1, without a launcher. In which of the two
# does rank 0 live on?

if rank == 0:
    said, ended = mpiexec(dying.format(join=over_mpi))
    print("rank 0 lives:", "lives" in said, "exit code:", ended)

if rank == 0:
    if mpich:
        assert "BAD TERMINATION" in said and ended != 0
        assert "lives" not in said

# Over Gloo rank 0 gets an error, as in chapter 5, and goes on. Under `mpiexec` it does
# not live to see one: the launcher sees that a process has died, says "BAD
# TERMINATION", and ends the others. We changed library and launcher at once. Over Gloo,
# too, `torchrun` would have ended the others [torchrun]; our program had no launcher.
#
# | fault | what became of it here | what helps |
# | --- | --- | --- |
# | roots differ | a result that looks right, then old numbers, if they are small | one variable for the root, the same on all |
# | `bcast` and `Bcast` | wrong numbers, in silence | all ranks run the same line |
# | `allreduce` and `Allreduce` | a hang | `where()`; all ranks run the same line |
# | both send first | a hang, for large messages only | `Ssend` in tests, `Sendrecv` |
# | an exception | a hang | `-m mpi4py` |
# | a dead rank | `mpiexec` ends all | checkpoints: chapter 25 |
#
# The first sitting ends here. If you need not choose between the two libraries, go on
# with Which for what.

# --- What a message costs -------------------------------------------------------------

# Chapter 6 said that MPI sends small messages eagerly, and waits with large ones for
# the receiver. Where is the border? If `Test` is true before rank 1 receives, the
# message was eager:

everyone()
if rank == 0:
    print("\n## What a message costs\n")

play("ranks")

comm = MPI.COMM_WORLD


def leaves_at_once(nbytes):
    """Is a message gone although rank 1 has not called Recv?"""
    letter, gone = np.zeros(nbytes, np.uint8), None
    if rank == 0:
        request = comm.Isend(letter, 1)
        gone = request.Test()
    dist.barrier()  # now rank 1 may receive
    if rank < 2:
        request.Wait() if rank == 0 else comm.Recv(letter, 0)
    return comm.bcast(gone)


sizes = sorted([4**k for k in range(1, 12)] + [8000, 8300])
eager = max(nbytes for nbytes in sizes if leaves_at_once(nbytes))

# In this build messages of (eager) bytes are still eager, and those of (waits) are not;
# other builds and networks have other borders.
#
# How does a rank wait? In MPICH it looks again and again whether something has come: it
# spins. Between looks it offers its core to others. With the variable
# `MPIR_CVAR_ENABLE_HEAVY_YIELD=1` it sleeps for a moment after each look. The lab sets
# this variable, because the ranks of a notebook often share cores.
#
# Now chapter 6's ping-pong, over Gloo, and over MPI that sleeps and that spins. Over
# Gloo the ranks of this notebook run it. Over MPI it is a program of its own, because
# the variable is read when a rank starts.
#
# Predict: Gloo sends through TCP, and its ranks sleep until something comes. MPICH's
# ranks on one host share memory. How many times as fast is MPI with small messages,
# when its ranks spin, and when they sleep?

everyone()
if rank == 0:
    play("kernel")
    speed = """
import time
from mpi4py import MPI

comm = MPI.COMM_WORLD

def ping(nbytes):
    ball, seconds = bytearray(nbytes), []
    for _ in range(20 if nbytes < 10_000 else 5):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(ball, 1)
            comm.Recv(ball, 1)
        else:
            comm.Recv(ball, 0)
            comm.Send(ball, 0)
        seconds.append((time.perf_counter() - start) / 2)
    return sorted(seconds)[len(seconds) // 2]  # the median

sizes = sorted([4**k for k in range(1, 12)] + [8000, 8300])
ping(4)  # warms up
rounds = [list(map(ping, sizes)) for _ in range(5)]
if comm.rank == 0:
    print(rounds)
"""

# From ranklab.programs:


def last_line(program, **how):
    """Run a program by `mpiexec`; return what it prints in its last line, read as JSON."""
    return json.loads(mpiexec(program, **how)[0].splitlines()[-1])


# The last line that a program prints is its result. With `sleeps="0"` the variable is
# 0, and the ranks spin:

if rank == 0:
    spinning = last_line(speed, sleeps="0")
    sleeping = last_line(speed, sleeps="1")

# From ranklab.taught.messages:


def ping(nbytes, repeats=10, a=0, b=1):
    """Seconds that one message of `nbytes` bytes takes between ranks a and b.

    Half of a round trip, the fastest of `repeats`: whatever else the machine
    does can only make a message slower. Every rank calls it; ranks other than
    a and b get nan.
    """
    ball = torch.zeros(nbytes, dtype=torch.uint8)
    me, times = dist.get_rank(), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        if me == a:
            dist.send(ball, b)
            dist.recv(ball, b)
        elif me == b:
            dist.recv(ball, a)
            dist.send(ball, a)
        times.append((time.perf_counter() - start) / 2)
    return min(times[1:]) if me in (a, b) else float("nan")  # 0 warms up


# Over Gloo, `ping` is chapter 6's:


def of_size(nbytes):
    repeats = 20 if nbytes < 10_000 else 5
    return float(np.median([ping(nbytes, 1) for _ in range(repeats)]))


everyone()
play("ranks")

of_size(4)  # warms up
rounds = [list(map(of_size, sizes)) for _ in range(5)]

sizes_by_rank = to_rank_0(sizes)
eager_by_rank = to_rank_0(eager)
if rank == 0:
    play("kernel")
    sizes, eager = sizes_by_rank[0], eager_by_rank[0]
    waits = sizes[sizes.index(eager) + 1]

play("ranks")
rounds_by_rank = to_rank_0(rounds)
if rank == 0:
    play("kernel")
    times = 1e6 * np.array([rounds_by_rank[0], sleeping, spinning])
    medians = np.median(times, axis=1)  # of ways x rounds x sizes
    fig, ax = plt.subplots(num="gloo-mpi")
    styles = {"MPI that sleeps": "C1s-", "Gloo": "C0o-", "MPI that spins": "C2v-"}
    for (name, style), i in zip(styles.items(), (1, 0, 2)):
        way = times[i]
        ax.loglog(sizes, medians[i], style, markersize=5, linewidth=1.2, label=name)
        ax.fill_between(sizes, way.min(axis=0), way.max(axis=0),
                        color=style[:2], alpha=0.2)
    marks = {4: "4 B", 1 << 12: "4 KB", 1 << 16: "64 KB", 1 << 22: "4 MB"}
    ax.set_xticks(list(marks), marks.values())
    ax.tick_params(axis="x", which="minor", bottom=False)
    ax.axvline(eager, color="C7", linestyle=":")
    border = f"  MPI: {eager} B are eager,\n  {waits} B are not"
    ax.text(eager, 4 * times.max(), border, fontsize=9)
    ax.legend(loc="upper left", fontsize=9)
    ax.set(xlabel="size", xlim=(sizes[0] / 2, 2 * sizes[-1]),
           ylabel="time, one way (µs)", ylim=(None, 20 * times.max()))
    save_figures()

if rank == 0:
    latency = {}  # of three ways, in seconds
    for name, curve in zip(("gloo", "sleeping", "spinning"), medians):
        latency[name] = np.median(curve[:6]) / 1e6
        result(f"{name}_us", min(curve[:6]), varies=True)  # up to 4 KB
        result(f"{name}_most_us", max(curve[:6]), varies=True)
        result(f"{name}_gb", sizes[-1] / curve[-1] / 1e3, varies=True)
    for name, over in (("sleeping_costs", "sleeping"), ("faster", "gloo")):
        result(name, latency[over] / latency["spinning"], varies=True)
    result("sleeping_faster", latency["gloo"] / latency["sleeping"], varies=True)
    by_round = np.median(times[:, :, :6], axis=2)  # of small messages
    by_round = np.sort(by_round[0] / by_round[2])  # Gloo's over those that spin
    result("faster_least", by_round[0], varies=True)
    result("faster_most", by_round[-1], varies=True)
    result("eager", eager, varies=True)
    result("waits", waits, varies=True)
    free = cores_are_free()
    result("cores_were", "free" if free else "busy with other work", varies=True)
    if mpich and free:
        assert 5 * times[2].min() < times[:2].min()
    save_figures()

# A marker is the median of five rounds, and a band spans them; where it is wide, rounds
# differ. Right of the dotted line MPI's sender waits for its receiver. While this was
# measured the cores were (cores_were); on busy ones the order can be another. The
# latencies in the table are the lowest and the highest marker up to 4 KB, the bandwidth
# is that of 4 MB:
#
# | here | latency | bandwidth |
# | --- | --- | --- |
# | Gloo | (gloo_us) to (gloo_most_us) µs | (gloo_gb) GB/s |
# | MPI that sleeps | (sleeping_us) to (sleeping_most_us) µs | (sleeping_gb) GB/s |
# | MPI that spins | (spinning_us) to (spinning_most_us) µs | (spinning_gb) GB/s |
#
# In the median over messages of up to 4 KB, MPI that spins is (faster) times as fast as
# Gloo here, from round to round (faster_least) to (faster_most) times; MPI that sleeps,
# (sleeping_faster) times. The two runs of MPI differ only in how a rank waits, and that
# is a factor of (sleeping_costs). Ranks of Gloo sleep, too, but the kernel wakes them
# when their message comes; MPI that sleeps looks again only when its moment is over.
# Linux ends a sleep late, as a rule by some 50 µs, the timer slack [prctl]. Why
# bandwidths differ, we have not measured.
#
# A rank that spins keeps a core busy all the while. That is no loss if each rank has a
# core of its own that nothing else needs. What cables between GPUs and between hosts do
# is in chapter 8's table.

# --- Optional: ranks that spin, on busy cores -----------------------------------------

# And where ranks share cores? If each of yours has its own, go on with the next
# section. In the next program three ranks share one core. Ranks 0 and 1 all-reduce an
# integer again and again, in six rounds of 0.2 s. In the first, third and fifth round
# rank 2 computes meanwhile, in the others it sleeps.
#
# Predict: Is it still better to spin? In all rounds?

if rank == 0:
    crowded = """
import os, time
from array import array
from mpi4py import MPI

comm, times = MPI.COMM_WORLD, []
pair = comm.Split(comm.rank < 2)
if hasattr(os, "sched_setaffinity"):  # Linux: all on one core
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

for busy in (True, False) * 3:
    comm.Barrier()
    end, count, x = time.perf_counter() + 0.2, 0, array("i", [0])
    while comm.rank < 2 and x[0] == 0:  # until rank 0 sends a 1
        x[0] = comm.rank == 0 and time.perf_counter() > end
        pair.Allreduce(MPI.IN_PLACE, x)
        count += 1
    times.append(round(0.2e6 / max(1, count)))
    if comm.rank == 2 and not busy:
        time.sleep(0.2)
    while time.perf_counter() < end:
        pass  # computes
if comm.rank == 0:
    print(times)  # microseconds an all-reduce, on average
"""

if rank == 0:
    spin = last_line(crowded, n=3, sleeps="0")
    sleep = last_line(crowded, n=3, sleeps="1")
    print("µs, they spin: ", spin)
    print("µs, they sleep:", sleep)

if rank == 0:
    beside, alone = ([np.median(us[k::2]) for us in (spin, sleep)] for k in (0, 1))
    for name, us in (("crowded", beside), ("alone", alone)):
        result(f"{name}_spin", us[0], varies=True)
        result(f"{name}_sleep", us[1], varies=True)
    if mpich and hasattr(os, "sched_setaffinity") and cores_are_free():
        assert beside[0] > beside[1] and alone[0] < alone[1]
    save_figures()

# By the medians, while rank 2 sleeps, spinning wins: (alone_spin) µs an all-reduce,
# against (alone_sleep). While it computes, sleeping wins: (crowded_sleep) µs against
# (crowded_spin). A spinning rank gives its core away after every look. The process that
# computes then often keeps the core until its turn, its time slice, is over. The kernel
# may give the core sooner to a rank that wakes from sleep. Let ranks of MPI sleep where
# something else computes on their cores.
#
# A place to stop.

# --- One all-reduce, written once -----------------------------------------------------

# Chapter 8's ring asks one thing of a library: to send to the right while it receives
# from the left. Here that is an argument, and so the ring runs over both:


def ring_over(x, me, n, sendrecv):
    """Replace x, flat, by the sum over n ranks; me: this one's number.

    sendrecv(outgoing, dst, incoming, src) is how messages are exchanged.
    """
    left, right = (me - 1) % n, (me + 1) % n
    parts = x.tensor_split(n)
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        outgoing, mine = parts[(me - step) % n], parts[(me - step - 1) % n]
        incoming = box[: len(mine)] if step < n - 1 else mine
        sendrecv(outgoing, right, incoming, left)
        if step < n - 1:
            mine += incoming


# From ranklab.taught.all_reduce:


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
        raise ValueError(f"Ranks on several hosts ({names}) share no memory: it needs one host.")
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
                    raise TimeoutError(f"Rank {r} has not come for {self.timeout} s.")
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


def mpi_sendrecv(outgoing, dst, incoming, src):
    comm.Sendrecv(outgoing.numpy(), dst, recvbuf=incoming.numpy(), source=src)


everyone()
if rank == 0:
    print("\n## One all-reduce, written once\n")

play("ranks")

shared = SharedMemory()
ways = {
    "Gloo": dist.all_reduce,
    "MPI": lambda x: comm.Allreduce(MPI.IN_PLACE, x.numpy()),
    "our ring over Gloo": lambda x: ring_over(x, rank, world_size, sendrecv),
    "our ring over MPI": lambda x: ring_over(x, rank, world_size, mpi_sendrecv),
    "shared memory": shared.all_reduce,
}
sums = {}
for way, all_reduce in ways.items():
    sums[way] = torch.arange(1001) % 7 + rank
    all_reduce(sums[way])

sums_by_rank = to_rank_0(sums)
if rank == 0:
    play("kernel")
    for of_rank in sums_by_rank:
        assert len({tuple(x.tolist()) for x in of_rank.values()}) == 1

# `shared` is chapter 8's way through memory that all ranks see. The lab's ranks of MPI
# sleep while they wait. Four ranks share (cores) cores here.
#
# Predict: Which way is the fastest for 4 bytes, which for 4 MB?

everyone()
play("ranks")

turns = {way: [] for way in ways}
for _ in range(3):
    for way, all_reduce in ways.items():
        for nbytes, repeats in (4, 31), (1 << 22, 5):
            x = torch.zeros(nbytes // 4)  # sums of zeros stay zeros
            seconds = timeit.repeat(
                lambda: all_reduce(x), number=1, repeat=repeats)
            turns[way].append(np.median(seconds))

# The ways take turns, three times. In each turn the slowest rank counts. In the figure
# a dot is the median of the turns, hollow for our ring, and a bar spans them. The black
# ticks are chapter 8's predictions for the two libraries and 4 bytes.

of_ranks = to_rank_0(turns)
if rank == 0:
    play("kernel")
    every = {way: np.max([turns[way] for turns in of_ranks], axis=0).reshape(3, 2)
             for way in of_ranks[0]}  # turns x sizes
    median = {way: np.median(each, axis=0) for way, each in every.items()}
    fig, axes = plt.subplots(1, 2, num="all-reduces", figsize=(6.4, 3),
                             sharey=True)
    for i, (ax, size) in enumerate(zip(axes, ("4 bytes", "4 MB"))):
        for y, way in enumerate(reversed(every)):
            color = "C3" if "shared" in way else "C1" if "MPI" in way else "C0"
            turn = 1e3 * every[way][:, i]
            ax.hlines(y, min(turn), max(turn), color, lw=2.5)
            ax.plot(np.median(turn), y, "o", color=color, markersize=7,
                    markerfacecolor="white" if "ring" in way else color)
        ax.set_title(size)
    models = {"Gloo": (2 * (n - 1), latency["gloo"]),
              "MPI": (np.log2(n), latency["sleeping"])}  # rounds, seconds
    for way, (rounds, seconds) in models.items():
        y = list(reversed(every)).index(way)
        axes[0].plot(1e3 * rounds * seconds, y, "k|", markersize=16)
    axes[0].set(xscale="log", xlabel="time (ms), logarithmic")
    axes[0].set_xticks(ticks := (0.1, 0.3, 1, 3, 10), map(str, ticks))
    axes[0].minorticks_off()
    axes[1].set(xlim=(0, None), xlabel="time (ms), linear")
    axes[0].set_yticks(range(len(every)), reversed(every))
    save_figures()

if rank == 0:
    result("cores", os.cpu_count(), varies=True)
    for i, size in ((0, "4_bytes"), (1, "4_mb")):
        best, *others = sorted(every, key=lambda way: median[way][i])
        touch = [way for way in others
                 if every[way][:, i].min() <= every[best][:, i].max()]
        result(f"fastest_{size}", best, varies=True)
        result(f"touch_{size}", ", ".join(touch) or "none", varies=True)
    for way, (rounds, seconds) in models.items():
        theirs, ours = 1e3 * median[way], 1e3 * median[f"our ring over {way}"]
        figures = {"latency": 1e6 * seconds, "predicted": 1e3 * rounds * seconds,
                   "measured": theirs[0], "ring": ours[0],
                   "ring_over_own": ours[0] / theirs[0],
                   "off": 1e-3 * theirs[0] / (rounds * seconds)}
        for figure, value in figures.items():
            result(f"{way.lower()}_{figure}", value, varies=True)
        assert ours[0] > theirs[0] or not (mpich and cores_are_free()), way
    if mpich and n > 2 and cores_are_free():
        assert median["Gloo"][0] > median["MPI"][0]
    save_figures()

# For 4 bytes (fastest_4_bytes) has the lowest median, and for 4 MB (fastest_4_mb). Bars
# that overlap the fastest one's: for 4 bytes (touch_4_bytes), for 4 MB (touch_4_mb).
#
# For 4 bytes latency decides: how many messages follow one another, and what each
# costs. Chapter 8's model multiplies the rounds by the latency. The latency is the
# median over the small messages of the ping-pong:
#
# | 4 bytes | rounds | latency | predicted | the library's | our ring |
# | --- | --- | --- | --- | --- | --- |
# | Gloo, a ring [gloo] | 2(n − 1) = 6 | (gloo_latency) µs | (gloo_predicted) ms | (gloo_measured) ms | (gloo_ring) ms |
# | MPI, by doubling [thakur2005] | log₂ n = 2 | (mpi_latency) µs | (mpi_predicted) ms | (mpi_measured) ms | (mpi_ring) ms |
#
# The model has the libraries' order right. Measured are (gloo_off) and (mpi_off) times
# the prediction: the ping-pong had two ranks, here four share the cores, and on one
# host MPICH may choose another way than doubling. Shared memory sends no messages, but
# its ranks meet twice at a barrier written in Python. Between these barriers each rank
# adds its part of all tensors. Our ring has six rounds over MPI, too, with Python in
# each. But over Gloo it takes (gloo_ring_over_own) times as long as Gloo's own ring,
# which has as many rounds: most of our messages are empty.

# --- Optional: what empty messages cost -----------------------------------------------

# Predict: One number has no four parts: three of them are empty, and our ring sends
# them, too. How many of its messages carry the number, and what does it take if the
# others are not sent?

everyone()
play("ranks")
sent = []


def lean(outgoing, dst, incoming, src):
    """Chapter 6's sendrecv, without messages that carry nothing."""
    sent.append(len(outgoing))
    handle = dist.isend(outgoing, dst) if len(outgoing) else None
    if len(incoming):
        dist.recv(incoming, src)
    if handle:
        handle.wait()


one, more = torch.zeros(1), torch.zeros(2 * world_size)
small = (lambda: ring_over(one, rank, world_size, sendrecv),
         lambda: ring_over(one, rank, world_size, lean),
         lambda: dist.all_reduce(more))
small_times = [[np.median(timeit.repeat(call, number=1, repeat=31))
                for call in small] for _ in range(5)]

sent_by_rank = to_rank_0(sent)
if rank == 0:
    play("kernel")
    assert np.mean(sent_by_rank) == 1 / n

small_times_by_rank = to_rank_0(small_times)
if rank == 0:
    slowest = np.max(small_times_by_rank, axis=0)  # turns x calls
    all_ms, lean_ms, more_ms = 1e3 * np.median(slowest, axis=0)
    result("gloo_all", all_ms, varies=True)
    result("gloo_lean", lean_ms, varies=True)
    result("gloo_more", more_ms, varies=True)
    if n > max(2, os.cpu_count()) and cores_are_free():
        assert lean_ms < 0.7 * all_ms
        assert lean_ms < more_ms

# Each of the four ranks sends a message in each of the six rounds, and 6 of these 24
# carry the number. Gloo's own does not send empty parts. It cuts a tensor into 2n parts
# [gloo], and one number is in one of them. With 2n numbers no part is empty, and it
# sends them all.
#
# | over Gloo | messages | here, (cores) cores | 16 cores |
# | --- | --- | --- | --- |
# | our ring, one number | 24 | (gloo_all) ms | 0.46 ms |
# | the same without empty messages | 6 | (gloo_lean) ms | 0.26 ms |
# | Gloo's own, one number, measured earlier, in the table above | 6 | (gloo_measured) ms | 0.20 ms |
# | Gloo's own, 2n numbers | 48 | (gloo_more) ms | 0.55 ms |
#
# The first three have six rounds each, so a model that counts rounds alone cannot tell
# them apart. Where ranks share cores, every message costs, probably because it wakes a
# rank up; in Gloo's C++ less than in our Python. On a machine with a core for each rank
# this chapter's script printed the last column (`images/recorded/09_mpi-cores.json`),
# and there they differ far less.

# --- Of many bytes --------------------------------------------------------------------

# For 4 MB bandwidth decides. A ring has 2(n − 1) steps, in each of which every rank
# sends an n-th of the tensor: six of 1 MB. MPICH's own takes 2 log₂ n = 4 for many
# bytes, as published [thakur2005], and sends as many bytes. In the ping-pong one rank
# sends at a time, and has a core for it. In a ring all send at once. So we measure such
# a step, too, each rank with its part of 4 MB:

everyone()
play("ranks")
part, box = torch.zeros(2, (1 << 20) // world_size)
left, right = (rank - 1) % world_size, (rank + 1) % world_size
steps = {"Gloo": [], "MPI": []}
for _ in range(3):
    for name, exchange in ("Gloo", sendrecv), ("MPI", mpi_sendrecv):
        seconds = timeit.repeat(
            lambda: exchange(part, right, box, left), number=1, repeat=15)
        steps[name].append(np.median(seconds))


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


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


everyone()
if rank == 0:
    play("kernel")

for item in in_step(lambda: (("Gloo", medians[0]), ("MPI", medians[1]))):
    if rank == 0:
        play("kernel")
        way, curve = item

    steps_by_rank = to_rank_0(steps)
    if rank == 0:
        play("kernel")
        step = np.median(np.max([each[way] for each in steps_by_rank], axis=0))
        figures = {"pingpong": 2e-3 * (n - 1) * np.interp((1 << 22) / n, sizes, curve),
                   "steps": 2e3 * (n - 1) * step, "measured": 1e3 * median[way][1],
                   "ring": 1e3 * median[f"our ring over {way}"][1]}
        figures["over"] = figures["steps"] / figures["pingpong"]
        off = {name: abs(np.log(figures[name] / figures["measured"]))
               for name in ("pingpong", "steps")}
        nearer = "the steps" if off["steps"] < off["pingpong"] else "the ping-pong"
        for figure, value in (figures | {"nearer": nearer}).items():
            result(f"{way.lower()}_{figure}_4_mb", value, varies=True)
if rank == 0:
    save_figures()

# | 4 MB | six times 1 MB of the ping-pong | six steps of all ranks | the library's | our ring |
# | --- | --- | --- | --- | --- |
# | Gloo | (gloo_pingpong_4_mb) ms | (gloo_steps_4_mb) ms | (gloo_measured_4_mb) ms | (gloo_ring_4_mb) ms |
# | MPI that sleeps | (mpi_pingpong_4_mb) ms | (mpi_steps_4_mb) ms | (mpi_measured_4_mb) ms | (mpi_ring_4_mb) ms |
#
# In the steps four ranks send at once and share the cores: over Gloo they took
# (gloo_over_4_mb) times as long as the ping-pong predicts. Which of the two predicted
# the library's own time better? For Gloo (gloo_nearer_4_mb), for MPI (mpi_nearer_4_mb).
# Another run may say otherwise. Both predictions leave out the additions, and a step
# includes a call from Python.

# --- Which for what -------------------------------------------------------------------

# | you want | take | because |
# | --- | --- | --- |
# | to train with PyTorch | `torch.distributed` | DDP and all that the next chapters build speak it |
# | ranks with GPUs | `torch.distributed` over NCCL | it is ordered with PyTorch's streams; MPI must be built for GPUs, and its standard knows no streams |
# | sums of bfloat16 | `torch.distributed` | mpi4py's name for it is a null type here |
# | an error in place of a hang | `torch.distributed` | its timeout is on by default |
# | small latency, nothing else on its cores | MPI that spins | the lowest latency here, within one host |
# | cores on which others compute | MPI that sleeps, or Gloo | who sleeps leaves the core to them; measured for MPI only |
# | prefix sums, columns, `Put` | mpi4py | `torch.distributed` has none of them on the CPU |
# | to start on a cluster | what its manual says | ranks of `mpiexec` get a group of PyTorch by one `bcast` |

# --- What you can do now --------------------------------------------------------------

# - Read a program in MPI or in `torch.distributed`, and write its twin.
# - Start ranks with `mpiexec`, and form a group of PyTorch among them by one `bcast`.
# - Tell six faults apart, and start programs so that an exception ends all ranks.
# - Say what a message and an all-reduce cost in both, and what a waiting rank costs the
#   others.

# --- Run it on a cluster --------------------------------------------------------------

#     mpiexec -n 4 python scripts/09_mpi.py
#
# `python scripts/09_mpi.py` starts `mpiexec` itself. All ranks must be on one host,
# because some cells share files and memory. It needs no `-m mpi4py`: it calls `Abort`
# itself when an exception is not caught. For programs of your own:
# - Which MPI. The extra `ranklab[mpi]` installs MPICH and mpi4py. A cluster as a rule
#   has an MPI of its own, which knows its network. There, `pip uninstall mpich`, then
#   `MPICC=mpicc pip install --force-reinstall --no-deps --no-binary=mpi4py
#   --no-cache-dir mpi4py`.
# - Which launcher. Under Slurm `srun` often stands for `mpiexec`. If every rank says
#   that it is rank 0 of 1, `mpiexec` and mpi4py belong to two different MPIs, or `srun`
#   starts ranks in a way that the MPI does not know: see `srun --mpi=list`.
# - Which GPU. Rank k of a host, `comm.Split_type(MPI.COMM_TYPE_SHARED).rank`, takes GPU
#   k modulo `torch.cuda.device_count()`, which is 1 where the launcher shows each rank
#   a GPU of its own. Tensors on a GPU need an MPI that was built for GPUs, and
#   `torch.cuda.synchronize()` before each call, as MPI does not know PyTorch's streams.
# - PyTorch's backend `"mpi"` is only there where PyTorch was built from source beside
#   an MPI [pytorchdistributed]; `dist.is_mpi_available()` tells.

# --- Where to read on -----------------------------------------------------------------

# - [dalcin2021]: mpi4py, by its authors. [mpi4pyrun]: exceptions and deadlocks, and the
#   option against them.
# - [mpi]: the standard. Chapter 3 for messages, 5 for derived types, 6 for collectives,
#   12 for one-sided communication.
# - [gropp2014]: MPI by example.
# - [thakur2005]: how MPICH chooses its all-reduce.
# - [nccl]: how a communicator is created from a unique id, with MPI as the carrier.

leave_group()
