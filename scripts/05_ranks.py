# Chapter 5 of Many Ranks, One Model, as one script. Generated from book/05_ranks.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 05_ranks.py
#     torchrun --standalone --nproc-per-node 4 05_ranks.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 05_ranks.py
#     mpiexec -n 4 python 05_ranks.py
#
# pip install matplotlib numpy psutil torch  (for mpiexec also: mpich mpi4py)

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import distributed


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
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
torch.seed()  # the kernel's streams begin somewhere else
np.random.seed()
random.seed()


def play(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        streams[before] = torch.get_rng_state(), np.random.get_state(), random.getstate()
        ours, numpys, pythons = streams[part]
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
    return before


# === Processes and ranks: one program, run many times =================================

# What exactly is a rank, and what must be true for four copies of one program to behave
# as one?
#
# 25 minutes to read, 15 predictions · 30 seconds to run · stands on chapter 1
#
# To train on many processors, you start one program many times. This chapter shows what
# makes its copies a group. At the end you can
# - name the three things that every launcher must provide, and start one program by
#   hand, with `mp.spawn`, with `torchrun`, and in a notebook;
# - say what belongs to one rank alone, and move a value in and out of it;
# - read the error of a group that is not complete, and look for the missing rank in the
#   right place;
# - find out which rank the others wait for, and bring a group back after one of its
#   ranks has failed or died;
# - say why ranks are processes and not threads, with a measurement.

# --- One program, four ranks ----------------------------------------------------------

# A process is a running program: a text, the place in that text where it is now, and a
# memory of its own, which no other process touches unless both have arranged it. Many
# processes can run one text. `ranklab`, the lab of this book, starts four for this
# notebook:

# Each of them was told two numbers: its rank, a number from 0 to n − 1 that no other
# process has, and the world size n. They stand in the variables `rank` and
# `world_size`, beside `torch` and `dist`, which is `torch.distributed`. Gloo is the
# library that will carry messages between the four, as NCCL does between GPUs.
#
# A cell that begins with `%%px` runs on every rank, and not in the notebook itself.
#
# Predict: Four ranks run one line, and there are ten tasks. Which tasks does rank 1
# get?

if rank == 0:
    print("\n## One program, four ranks\n")

play("ranks")
mine = list(range(rank, 10, world_size))  # dealt out like cards
print(f"My rank is {rank}, my tasks are {mine}")


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


# The word in brackets says who printed. To have a variable of the ranks here, pull it:
# `ranks["mine"]` is a list with the `mine` of every rank, in the order of the ranks.

shares = to_rank_0(mine)
if rank == 0:
    play("kernel")
    result("tasks_of_rank_1", shares[1])

if rank == 0:
    assert sorted(task for share in shares for task in share) == list(range(10))

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

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    height = 0.45 * len(shares) + 0.9
    fig, ax = plt.subplots(num="tasks", figsize=(5.2, height))
    for r, share in enumerate(shares):
        for task in share:
            where = (task - 0.45, r - 0.45)
            ax.add_patch(plt.Rectangle(where, 0.9, 0.9, color=f"C{r}"))
    names = [f"rank {r}" for r in range(len(shares))]
    ax.set(xlabel="task", xlim=(-0.6, 9.6), ylim=(len(shares) - 0.4, -0.6))
    ax.set(xticks=range(10), yticks=range(len(shares)), yticklabels=names)
    ax.grid(False)
    save_figures()


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# Rank 1 has (tasks_of_rank_1), and every task has exactly one owner. Nobody handed the
# tasks out: each copy worked out its own part. That is why ranks are numbers without a
# gap, and not names: you compute with them.
#
# One text, run by all, in which the rank makes all the difference: this is called
# single program, multiple data, or SPMD [darema1988]. Nearly every program that trains
# on several GPUs is written this way.

# --- Separate memory ------------------------------------------------------------------

# There is one `mine` in the text, and there are four in memory.
#
# Predict: Every rank makes a list `x`. Then rank 1, and only rank 1, appends to `x`.
# What does `ranks["x"]` hold?

everyone()
if rank == 0:
    print("\n## Separate memory\n")

play("ranks")

x = [0, 0]
address = f"process {os.getpid()} on {socket.gethostname()}"


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


# A cell can also run on some ranks alone: `--targets` names them.

everyone()
if rank in (1,):
    show(x.append(7), rank)

xs = to_rank_0(x)

if rank == 0:
    play("kernel")
    height = 0.55 * len(xs) + 0.5
    fig, ax = plt.subplots(num="memory", figsize=(5.2, height))
    for r, values in enumerate(xs):
        ax.text(-0.7, r, f"rank {r}:  x =", ha="right", va="center")
        for i, value in enumerate(values):
            place = (i - 0.4, r - 0.35)
            ax.add_patch(plt.Rectangle(place, 0.8, 0.7, color=f"C{r}", alpha=0.4))
            ax.text(i, r, value, ha="center", va="center")
    ax.set(xlim=(-3.5, 4), ylim=(len(xs) - 0.4, -0.6))
    ax.axis("off")
    save_figures()

if rank == 0:
    n = world_size
    assert xs == [[0, 0, 7] if r == 1 else [0, 0] for r in range(n)]

homes = to_rank_0(address)
if rank == 0:
    result("processes_are_different", len(set(homes)) == n)
    xs[1].append("written in the kernel")

x_by_rank = to_rank_0(x)
if rank == 0:
    assert x_by_rank[1] == [0, 0, 7]

# Rank 1 alone has the 7: one name, and as many lists as there are ranks. What we pulled
# is one more copy. Changing it here changes nothing there.
#
# The other way, `ranks["n"] = value` pushes a copy of a value to every rank. And
# `ranks.run(f, ...)` calls a function on every rank and returns the results, in the
# order of the ranks.
#
# Predict: `my_tasks` is defined here, where there is no `rank`. What does the next cell
# return? What would it return with 1 in place of the world size?


def my_tasks(stride):
    return list(range(rank, 10, stride))  # rank: found where it runs


everyone()
play("ranks")
dealt = to_rank_0(my_tasks(world_size))
if rank == 0:
    play("kernel")
    result("dealt", dealt)

if rank == 0:
    assert dealt == shares

everyone()
play("ranks")
repeated = to_rank_0(my_tasks(1))
if rank == 0:
    play("kernel")
    assert repeated == [list(range(r, 10)) for r in range(world_size)]


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


# The same tasks as before: a name in a function is looked up where the function runs,
# and there each rank has a `rank` of its own. With 1, rank r does every task from r on,
# so most tasks are done several times. Nothing complains.
#
# The cells without `%%px` run in the notebook's kernel, which is one more process with
# a memory of its own. The kernel is not a rank. Everybody forgets this once:

# A `NameError` on every rank: the name is in the kernel's memory, and was never pushed.
#
# Separate processes also fail separately. In the next cell only rank 1 fails.
#
# Predict: Which values of `done` do the ranks hold afterwards?

everyone()
play("ranks")
with may_fail():
    done = False
    if rank == 1:
        raise ValueError(f"rank {rank} has no file to read")
    done = True

done_by = to_rank_0(done)
if rank == 0:
    play("kernel")
    assert done_by == [r != 1 for r in range(world_size)]
    result("done_by", done_by)

# The error names the rank, the line, and the reason. The others have finished the cell,
# for none of them was waiting for rank 1.

# --- Started by hand ------------------------------------------------------------------

# What has the lab done to make ranks of processes? Let us do it without the lab, with
# nothing but Python's standard library. Two tools first: an environment, which is the
# set of named strings that a process inherits from the one that starts it, and a
# function that starts one process in each of several environments.

if rank == 0:
    print("\n## Started by hand\n")
    workshop = tempfile.TemporaryDirectory(prefix="ranks-")
    folder = Path(workshop.name)  # gone when this notebook ends

    told_by_launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")
    told_by_launchers += ("MASTER_", "TORCH", "PMI", "OMPI_", "PYTHONUNBUFFERED")
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith(told_by_launchers)
    }


def start(command, environments):
    """Run the command in all environments at once; return the printed lines."""
    with tempfile.TemporaryFile("w+") as out:
        processes = [
            subprocess.Popen(command, env=env, stdout=out, stderr=out)
            for env in environments
        ]
        try:
            for process in processes:
                process.wait(timeout=120)
        finally:
            for process in processes:
                process.kill()    # does nothing to one that has ended
        out.seek(0)
        return out.read().splitlines()


# We tell each copy its rank and the world size through the environment, under the names
# that PyTorch's own launcher uses.

if rank == 0:
    (folder / "share.py").write_text("""
import os
rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
print(f"My rank is {rank}, my tasks are {list(range(rank, 10, world_size))}")
""")


def by_hand(n, **more):
    """Return n environments, each with its rank; `more` is the same for all."""
    told = [{"RANK": str(r), "WORLD_SIZE": str(n)} for r in range(n)]
    return [environment | one | more for one in told]


# Predict: Four copies of `share.py` print a line each. Are the lines in the order of
# the ranks? If you start the program five times, how many different orders do you
# expect?

if rank == 0:
    share = [sys.executable, folder / "share.py"]
    runs = [start(share, by_hand(4)) for _ in range(5)]
    print(*runs[0], sep="\n")

    orders = [[int(line[len("My rank is ")]) for line in lines] for lines in runs]
    result("different_orders", len(set(map(tuple, orders))), varies=True)
    save_figures()

if rank == 0:
    four = {
        f"My rank is {r}, my tasks are {list(range(r, 10, 4))}" for r in range(4)
    }
    assert all(set(lines) == four and len(lines) == 4 for lines in runs)
    save_figures()

if rank == 0:
    fig, ax = plt.subplots(num="orders", figsize=(5.2, 2.6))
    for column, order in enumerate(orders):
        for row, r in enumerate(order):
            where = (column - 0.45, row - 0.45)
            ax.add_patch(plt.Rectangle(where, 0.9, 0.9, color=f"C{r}"))
            ax.text(column, row, r, ha="center", va="center", color="white")
    ax.set(xlabel="run", ylabel="line", xlim=(-0.6, 4.6), ylim=(3.6, -0.6))
    ax.set(xticks=range(5), xticklabels=range(1, 6))
    ax.set(yticks=range(4), yticklabels=range(1, 5))
    ax.grid(False)
    save_figures()

# In five runs the same four lines came in (different_orders) orders. That each rank
# prints its line is in the text. When the line gets out, Python and the operating
# system decide. Python, writing to a file, keeps what is printed until its buffer is
# full or the process ends. The system gives the processors now to one process and now
# to another.
#
# What each rank does is promised. The order between ranks is not, unless one waits for
# another. If you need an order, collect the lines in one place and sort them there, as
# `ranks["mine"]` does. If one line is enough, let one rank print it: `if rank == 0:
# print(...)`.

# --- Extra: is a line always whole? ---------------------------------------------------

# How many times does one `print` write?

if rank == 0:
    writes = []

    class Recorder:
        write = staticmethod(writes.append)

    print("My rank is", 1, file=Recorder())
    print(writes)
    result("writes_of_one_print", len(writes))

# It writes (writes_of_one_print) times: each argument, the space between, the end of
# the line. As a rule Python gathers the pieces and passes them on together. With
# `python -u`, or with `PYTHONUNBUFFERED` set, it does not; then the pieces of two ranks
# can mix, and a log reads `My rank is 0My rank is 1`. With many ranks, make the line
# one string, newline included, and print that: `print(f"…\n", end="")`.

# --- Where do we meet? ----------------------------------------------------------------

# So far no copy knows how to reach another. To exchange addresses, they need a place
# that all of them know beforehand. Meeting there is called the rendezvous. Any shared
# place will do; ours is a folder, a fresh one for every meeting, so that nobody finds
# the cards of the last one. Each copy leaves a card with its address, waits until every
# card is there, and reads them all.

if rank == 0:
    print("\n## Where do we meet?\n")
    (folder / "meet.py").write_text("""
import os, sys, time
from pathlib import Path

rank = int(os.environ["RANK"])                # who am I?
world_size = int(os.environ["WORLD_SIZE"])    # how many are we?
place = Path(os.environ["PLACE"])             # where do we meet?

draft = place / f"draft {rank}"
draft.write_text(str(os.getpid()))            # my address: my process's number
draft.rename(place / f"rank {rank}")          # now it is there, all of it

cards = [place / f"rank {r}" for r in range(world_size)]
give_up = time.monotonic() + float(os.environ["PATIENCE"])
while missing := [card.name for card in cards if not card.exists()]:
    if time.monotonic() > give_up:
        sys.exit(f"rank {rank} gives up: no sign of {', '.join(missing)}")
    time.sleep(0.001)
print(f"rank {rank} knows", [int(card.read_text()) for card in cards])
""")

if rank == 0:
    meet = [sys.executable, folder / "meet.py"]
    place = tempfile.mkdtemp(dir=folder)
    lines = start(meet, by_hand(4, PLACE=place, PATIENCE="20"))
    print(*lines, sep="\n")

    address_books = {line.split("knows ")[1] for line in lines}
    result("different_address_books", len(address_books))
    save_figures()

# Four processes, and (different_address_books) list: entry r is the address of rank r.
# From here on "send this to rank 2" means something. Processes that can address each
# other like this form a process group.
#
# Predict: Now rank 3 does not come: the same four environments, but only the first
# three are started. What do the other three do?

if rank == 0:
    place = tempfile.mkdtemp(dir=folder)
    lines = start(meet, by_hand(4, PLACE=place, PATIENCE="1")[:3])
    print(*sorted(lines), sep="\n")
    assert len(lines) == 3 and all(line.endswith("rank 3") for line in lines)
    save_figures()

# They wait, for each was told that they are four. Without the line that gives up they
# would wait forever, and say nothing. When a job hangs at its start, suspect this
# first: somebody is not there.

# --- PyTorch's rendezvous -------------------------------------------------------------

# PyTorch meets at a store: a dictionary that all ranks can reach. Its `TCPStore` is
# kept by one process, as a rule rank 0, and the others connect to it over the network.
# "Where do we meet" becomes an address and a port: the name of a computer, and the
# number under which one program on it can be reached. `init_process_group` takes the
# place as its `init_method` [pytorchdistributed]:
#
# | `init_method` | where we meet |
# | --- | --- |
# | `"env://"`, the default | at a `TCPStore`, whose place is in `MASTER_ADDR` and `MASTER_PORT`; rank and world size are in the environment, too |
# | `"tcp://HOST:PORT"` | at the same store, its place written out; rank and world size are arguments |
# | `"file:///PATH"` | in a file that all can reach, and that was not there before |
#
# Predict: The next cell keeps a store for two, and the other one never comes. It has
# one second of patience. What will the error say, and what will it not say?

if rank == 0:
    print("\n## PyTorch's rendezvous\n")
    with may_fail():
        from datetime import timedelta

        import torch

        show(torch.distributed.TCPStore(
            "127.0.0.1", 0, world_size=2, is_master=True, timeout=timedelta(seconds=1)
        ))

# `1/2 clients joined`: it says how many came, the one who complains included, and not
# who is missing. It counts whole seconds, hence the 2. When you start ranks by hand,
# `init_process_group` begins with this very call on rank 0, and fails with this very
# line. The other ranks have words of their own:
# - `wait timeout after …ms, keys: …` comes from a rank that reached the store, and
#   waits for somebody's card;
# - `The client socket has timed out … while trying to connect to …` comes from all the
#   others if rank 0 is missing, since nobody keeps the store then: look at rank 0, or
#   at the address.
#
# Look for the missing rank where it can be found:
# - in its own output: it may have started, and crashed before it came to the
#   rendezvous;
# - in what each rank was told: a `WORLD_SIZE` larger than the number of processes, or
#   an address that leads somewhere else from another computer.

if rank == 0:
    patience = torch.distributed.constants.default_pg_timeout
    result("minutes_until_the_error", patience / timedelta(minutes=1))

# With Gloo, PyTorch waits (minutes_until_the_error) minutes before it says even that.
# While you look for an error, ask for less: `init_process_group(...,
# timeout=timedelta(seconds=20))`.

# --- Extra: who else can reach the store? ---------------------------------------------

# A store made with the address 127.0.0.1, which only this computer can reach: from
# where can one connect to it?

if rank == 0:
    keeper = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    doors = [
        c.laddr.ip for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == keeper.port
    ]
    assert doors and set(doors) <= {"::", "0.0.0.0"}
    result("listens_on", doors, varies=True)
    del keeper

# From everywhere: `::` stands for every network interface. The name that we gave is
# where the others would look for it. The store itself listens to all the world, and
# asks for no password. On a laptop in a café, or on a cluster shared with strangers,
# that matters. Where all ranks are on one computer, a file can be the store
# (`init_method="file:///…"`), and no store listens. Gloo itself still opens a port on
# every rank, through which the others connect; the variable `GLOO_SOCKET_IFNAME` keeps
# that port on the interface that never leaves the computer, the loopback. The lab does
# both.

# --- Four launchers, one program ------------------------------------------------------

# Who am I, how many are we, where do we meet: a launcher starts the copies and tells
# each one the three. Here is one program, and three ways to launch it; the lab is the
# fourth.

if rank == 0:
    print("\n## Four launchers, one program\n")
    (folder / "hello.py").write_text("""
import os
import torch.distributed as dist
import torch.multiprocessing as mp

def do_work(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}
    told = " ".join(sorted(names & set(os.environ)))
    print(f"My rank is {dist.get_rank()} | was told {told}\\n", end="")
    dist.barrier()    # nobody leaves while another is still coming
    dist.destroy_process_group()

if __name__ == "__main__":
    if "RANK" in os.environ:         # a launcher started me, as one of many
        do_work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:                            # you started me, alone: I am the launcher
        mp.spawn(do_work, args=(2,), nprocs=2, join=True)
""")

# `init_process_group` is PyTorch's `meet.py`. It finds the store, waits for everybody,
# and, with Gloo, connects everybody with everybody; NCCL as a rule connects only at the
# first communication. It returns on each rank as soon as that rank is connected. Hence
# the barrier, a call that nobody leaves before all have come. Without it, a quick rank
# can be gone while a slow one is still connecting, and the slow one then fails, now and
# then, with `Connection closed by peer`.


def meeting_point():
    """Return where ranks on this computer can meet, at a port that is free."""
    while True:
        port = random.randrange(10_000, 30_000)    # the system hands out others
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue    # somebody has it
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


if rank == 0:
    loopback = next(
        name for name, addresses in psutil.net_if_addrs().items()
        if any(a.address == "127.0.0.1" for a in addresses)
    )
    environment |= {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}

# By hand, we start both ranks, each with an environment of its own. Then we start one
# process, which starts the ranks with `mp.spawn`: it calls the function in `nprocs` new
# processes and puts the rank in front of its other arguments. Last, `torchrun`, which
# is `python -m torch.distributed.run`: it starts the whole file n times and tells each
# copy everything through the environment.

if rank == 0:
    hello = [sys.executable, folder / "hello.py"]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    torchrun += ["--standalone", "--nproc-per-node", "2", folder / "hello.py"]

    said = {}
    said["by hand"] = start(hello, by_hand(2, **meeting_point()))

if rank == 0:
    said["mp.spawn"] = start(hello, [environment | meeting_point()])

if rank == 0:
    said["torchrun"] = start(torchrun, [environment])

# Predict: Disregard what comes after the `|`. Are the three outputs equal as lists? As
# sets?

if rank == 0:
    for launcher, lines in said.items():
        print(f"{launcher}:", *lines, sep="\n    ")
    save_figures()

if rank == 0:
    for launcher, lines in said.items():
        spoken = [line.split(" |")[0] for line in lines if "My rank" in line]
        assert sorted(spoken) == ["My rank is 0", "My rank is 1"], (launcher, lines)
    told = [line for line in said["torchrun"] if "My rank" in line]
    assert all("LOCAL_RANK" in line and "MASTER_PORT" in line for line in told)
    result("launchers_that_agree", list(said))
    save_figures()

# As sets they are equal. As lists they need not be. `do_work` does not know who started
# it, and need not. What each launcher provides:
#
# | | who am I, how many are we? | where do we meet? |
# | --- | --- | --- |
# | by hand | `RANK`, `WORLD_SIZE`: set by you | `MASTER_ADDR`, `MASTER_PORT`: set by you |
# | `mp.spawn` | arguments of your function | the same, set by you |
# | `torchrun` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK` | `MASTER_ADDR`, `MASTER_PORT`: all set for you |
# | `mpiexec`, the launcher of MPI, not run here | asked of MPI | arranged by MPI; for Gloo and NCCL, rank 0 tells an address |
# | the lab | `rank`, `world_size` | a file in a private folder |
#
# When the function fails on one rank, `mp.spawn` ends the others, and raises.
#
# Which GPU is mine? A rank is the number of a process, not of a computer. `LOCAL_RANK`
# counts the processes of one host, that is, of one computer. A program on GPUs begins
# with `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`; without it, all the ranks
# of a host work on its GPU 0. A whole program is in chapter 11, with
# `CUDA_VISIBLE_DEVICES` and the older `torch.distributed.launch`.
#
# With the same number of processes on every host, and the ranks dealt out host by host,
# as `torchrun` does,
#
# $$\text{RANK} = \text{number of the host} \times \text{processes per host} + \text{LOCAL\_RANK}.$$

# --- Extra: fork, spawn, and functions that nobody finds ------------------------------

# Python has several ways to begin a new process [multiprocessing]; two matter here.
# Fork makes a copy of the one that asks, with all its memory, but without its other
# threads. The copy has every function already. CUDA does not work in it if the original
# has used CUDA.
#
# Spawn starts a fresh Python, which imports the file and looks for the function there
# by its name. That is what `mp.spawn` does, and the reason for `if __name__ ==
# "__main__"`: without that line, each new process, importing the file, would try to
# start processes of its own.
#
# The next program is in no file: Python gets it as a string, as a notebook's kernel
# gets a cell. Its function is spawned. What does the new process say?

if rank == 0:
    program = """
import multiprocessing as mp

def work():
    print("at work")

process = mp.get_context("spawn").Process(target=work)
process.start()
process.join()
"""
    lines = start([sys.executable, "-c", program], [environment])
    print(lines[-1])
    assert "AttributeError" in lines[-1] and "work" in lines[-1]
    save_figures()

# It does not find `work`. A function travels as its name and the name of its module,
# and the fresh process has no file to import it from. So `mp.spawn` fails on a function
# that was defined in a notebook. The repair is to put the function into a file and
# import it, or to have processes that take code as it comes, such as the engines of
# this notebook.

# --- Who carries the messages ---------------------------------------------------------

# The first argument of `init_process_group` names the backend: the library that moves
# the tensors. Which ones you have was settled when your PyTorch was built.
#
# Predict: Three backends that PyTorch knows are Gloo, NCCL and MPI. Which of them does
# it have on your machine?

if rank == 0:
    print("\n## Who carries the messages\n")
    here = {
        "gloo": distributed.is_gloo_available(),
        "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
    }
    assert here["gloo"]
    backends = [name for name, there in here.items() if there]
    result("backends_here", backends, varies=True)

# | backend | moves | use it for |
# | --- | --- | --- |
# | Gloo [gloo] | tensors on the CPU, over the network; in some calls also those on a GPU | training on CPUs, learning on a laptop, what stays on the CPU beside NCCL |
# | NCCL [nccl] | tensors on NVIDIA's GPUs, from one to another | all training on those GPUs |
# | MPI [mpi] | what the host's MPI library can move | clusters whose own MPI knows their network best |
#
# The PyTorch that made this page has (backends_here). A build for NVIDIA's GPUs has
# NCCL, too. MPI is missing as a rule, and old examples that say `backend="mpi"` stop at
# that line: PyTorch must be built from source next to an MPI [pytorchdistributed].
#
# One group can have two backends: with `"cpu:gloo,cuda:nccl"`, Gloo carries the tensors
# on the CPU, and NCCL those on GPUs [pytorchdistributed].
#
# The ranks of this notebook are engines: Python processes that wait for code, run it,
# keep their variables, and wait again [ipyparallel]. The lab starts them and does for
# each what `hello.py` does. With `timeout=5`, a rank that waits for another gives up
# after five seconds.

# --- Extra: a rank is told, not drawn -------------------------------------------------

# Could the ranks not number themselves, as they arrive? The store where the group of
# this notebook met is still open. Each rank draws a ticket: `add` adds to a number in
# the store and returns the sum, to one rank at a time. `set` leaves a card, as
# `meet.py` did, and `get` waits until a card is there.

everyone()
play("ranks")
# PyTorch has no public name for this:
meeting = dist.distributed_c10d._get_default_store()
ticket = meeting.add("arrived", 1) - 1

meeting.set(f"address of rank {rank}", address)
cards = [meeting.get(f"address of rank {r}") for r in range(world_size)]
address_book = [card.decode() for card in cards]

# Is the address book the same on all ranks? Is a rank's ticket equal to its rank?

address_book_by_rank = to_rank_0(address_book)
if rank == 0:
    play("kernel")
    assert address_book_by_rank == [homes] * world_size

tickets = to_rank_0(ticket)
if rank == 0:
    first = min(tickets)
    assert sorted(tickets) == list(range(first, first + world_size))
    result("tickets", tickets, varies=True)

# The address books agree. The tickets of ranks 0, 1, … were (tickets): each number
# once, but in the order of arrival, which is up to the operating system. Run the two
# cells again, and the tickets count on. ipyparallel's engine ids are tickets: an engine
# started later gets the next number, not the one that has become free. A rank must not
# depend on such things, since it decides who does what. So it is told, once, by the
# launcher; and the lab makes sure that `ranks["x"][2]` and `%%px --targets 2` mean rank
# 2.

# --- Why not threads? -----------------------------------------------------------------

# Several threads can run in one process and share its memory. Nothing would have to be
# sent. But in CPython only one thread at a time runs Python code, the one that holds
# the global interpreter lock, or GIL [beazley2010]. What does that cost? To see it, we
# need work that notes the time after every piece.


def count_up(pieces):
    """Count in Python; return the time at the start and after each piece."""
    moments = [time.monotonic()]
    for _ in range(pieces):
        for _ in range(10_000):
            pass
        moments.append(time.monotonic())
    return moments


def two_threads(work, pieces):
    """Do `work` twice at the same time, in two threads of this process."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, [pieces, pieces]))


def timed(work, *arguments):
    """Return the CPU seconds of this process, begin, end, and the result."""
    began, cpu_began = time.monotonic(), time.process_time()
    moments = work(*arguments)
    cpu_seconds = time.process_time() - cpu_began
    return cpu_seconds, began, time.monotonic(), moments


# The same work is done twice at the same time: first by two threads of rank 0, then by
# two processes, rank 0 and rank 1. Then two threads of rank 0 multiply matrices in
# place of counting. CPU time is the time for which a process had a core, summed over
# its threads. Divided by the time that went by, it is the number of cores that were
# kept busy.
#
# Predict: How many cores do the two counting threads keep busy? The two processes? The
# two threads that multiply?

everyone()
if rank == 0:
    print("\n## Why not threads?\n")

play("ranks")
square = torch.rand(384, 384)


def multiply(pieces):
    """Multiply matrices; return the times, as `count_up` does."""
    moments = [time.monotonic()]
    for _ in range(pieces):
        torch.mm(square, square)
        moments.append(time.monotonic())
    return moments


multiply(3)  # the first products are slower
threads, processes, products = [], [], []
for _ in range(16):
    dist.barrier()    # everybody waits here for everybody
    threads.append(timed(two_threads, count_up, 100) if rank == 0 else None)
    dist.barrier()
    processes.append(timed(count_up, 100) if rank < 2 else None)
    dist.barrier()
    products.append(timed(two_threads, multiply, 10) if rank == 0 else None)

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


def busy_cores(attempt):
    """Return the CPU seconds of an attempt over the seconds that it took."""
    cpu_seconds, began, ended, _ = attempt
    return cpu_seconds / (ended - began)


def together(one, other):
    """The attempts of two processes at the same time, as one."""
    began, ended = min(one[1], other[1]), max(one[2], other[2])
    return one[0] + other[0], began, ended, [one[3], other[3]]


processes_by_rank = to_rank_0(processes)
if rank == 0:
    play("kernel")
    pairs = zip(*processes_by_rank[:2], strict=True)

threads_by_rank = to_rank_0(threads)
products_by_rank = to_rank_0(products)
if rank == 0:
    attempts = {
        "two threads\ncount": threads_by_rank[0],
        "two processes\ncount": [together(*pair) for pair in pairs],
        "two threads\nmultiply": products_by_rank[0],
    }
    # Other programs want the cores, too: the attempt that got most of them.
    best = {name: max(tries, key=busy_cores) for name, tries in attempts.items()}
    counting, separate, multiplying = map(busy_cores, best.values())
    result("cores_of_counting_threads", counting, varies=True)
    result("cores_of_counting_processes", separate, varies=True)
    result("cores_of_multiplying_threads", multiplying, varies=True)
    result("switch_ms", 1e3 * sys.getswitchinterval())

    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert not has_lock or counting < 1.3
    assert separate < 1.8 or multiplying > 1.1 or not cores_are_free()


def stretches(moments):
    """Return (start, length) of each piece without a pause."""
    lengths = [b - a for a, b in pairwise(moments)]
    pause = 3 * sorted(lengths)[len(lengths) // 2]
    return [(a, b - a) for a, b in pairwise(moments) if b - a < pause]


if rank == 0:
    fig, ax = plt.subplots(num="threads", figsize=(5.2, 3.4))
    for group, (name, (*_, workers)) in enumerate(best.items()):
        origin = min(w[0] for w in workers)
        for worker, moments in enumerate(workers):
            row = 2.6 * group + worker
            color = "C1" if "processes" in name and worker else "C0"
            parts = stretches(moments)
            bars = [(1e3 * (a - origin), 1e3 * length) for a, length in parts]
            ax.broken_barh(bars, (row - 0.4, 0.8), color=color)
        end = 1e3 * (max(w[-1] for w in workers) - origin)
        cores = f" {busy_cores(best[name]):.1f} cores"
        ax.text(end, 2.6 * group + 0.5, cores, va="center", fontweight="bold")
    ax.margins(x=0.3)
    title = "One lock: by turns. Else: side by side, on two free cores"
    if not cores_are_free():
        title += "\n(other programs had a part of them here)"
    ax.set_title(title, fontsize=10)
    ax.set(xlabel="time since the start (ms)", yticks=[0.5, 3.1, 5.7])
    ax.set(xlim=(0, None))
    ax.set_yticklabels(best)
    ax.invert_yaxis()
    save_figures()

# Blue is rank 0, orange is rank 1; of sixteen attempts we see the one that got most of
# the cores. Two threads that count take turns. When one has waited (switch_ms) ms for
# the lock, CPython asks the other to let go. Together they keep
# (cores_of_counting_threads) cores busy, and never much more than one, however many are
# free.
#
# The two processes have a lock each, and run side by side:
# (cores_of_counting_processes) cores. So do the two threads that multiply, as PyTorch
# lets go of the lock for that: (cores_of_multiplying_threads) cores. These two numbers
# come near 2 only where other programs leave two cores free.
#
# The second check shows that it is the lock. When no thread is asked to let go of it,
# one counting thread ends before the other begins, while two that multiply still
# overlap. A training step also runs Python between its products, and for that part
# threads take turns.
#
# There are builds of Python without the lock [gross2023]. Ranks would stay processes
# even so: a thread cannot live on another computer, and it takes the whole process with
# it when it crashes.

# --- As one: the first call that all make ---------------------------------------------

# What ranks still lack is messages. The next chapters are about them; here is one ahead
# of time. `all_reduce` replaces a tensor on every rank by the sum over all the ranks.
#
# Predict: Rank r starts with r + 1. What does rank 0 hold afterwards, and what the last
# rank?

everyone()
if rank == 0:
    print("\n## As one: the first call that all make\n")

play("ranks")
total = torch.tensor(rank + 1)
dist.all_reduce(total)

total_by_rank = to_rank_0(total)
if rank == 0:
    play("kernel")
    totals = [int(value) for value in total_by_rank]
    n = world_size
    assert totals == [n * (n + 1) // 2] * n
    result("totals", totals)


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
    from ranklab import timeline, trace
except ImportError:
    timeline = left_out("timeline")
    trace = untraced

# Each rank brought one number, and each now holds the sum of all. Nobody can have that
# sum before the last one has brought its number. So let the ranks be unequal: rank r
# computes for r times 0.2 seconds, and then all make the call. `trace` records what a
# rank does in its `with` block, and when.
#
# Predict: Which rank spends the most time in `all_reduce`, and which the least?


def multiply_for(seconds):
    """Multiply matrices until the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        multiply(5)


everyone()
play("ranks")

dist.barrier()  # all begin together
with trace() as t:
    multiply_for(0.2 * rank)
    arrived = time.monotonic()
    dist.all_reduce(total)
    left = time.monotonic()

t_by_rank = to_rank_0(t)
if rank == 0:
    play("kernel")
    show(timeline(t_by_rank))

arrived_by_rank = to_rank_0(arrived)
left_by_rank = to_rank_0(left)
if rank == 0:
    arrivals, departures = arrived_by_rank, left_by_rank
    in_call = [b - a for a, b in zip(arrivals, departures, strict=True)]
    longest, shortest = in_call.index(max(in_call)), in_call.index(min(in_call))
    assert (longest, shortest) == (0, n - 1)
    hosts = {home.split(" on ")[1] for home in homes}
    on_one_host = len(hosts) == 1  # and so by one clock
    assert max(arrivals) <= min(departures) or not on_one_host

# Rank 0, which has nothing to compute, waits longest; the last rank, for which all
# wait, waits least. Nobody leaves before the last one has come: a group is as fast as
# its slowest rank, the straggler, and what the others save they spend waiting. With
# NCCL the call itself returns at once; it is the GPU that then waits.
#
# Worked problem: A job has 16 hosts with 8 GPUs each, of the type H100: 989 TFLOP/s in
# bf16, and 3,350 GB/s from its own memory [h100]. A step takes 1 s. Where is rank 77,
# and what is lost if it alone takes 10 % longer?
#
# Rank 77 is on host ⌊77 / 8⌋ = (host_of_77), counted from 0, and its `LOCAL_RANK` is 77
# mod 8 = (local_rank_of_77). The world size is 128, so 127 ranks wait 0.1 s in every
# step: (idle_gpu_seconds) GPU-seconds, which is (share_lost) of all that the job pays
# for, and the time of (lost_pflop) PFLOP at the peak.
#
# And how far away is another rank's memory? NVLink 4 carries 450 GB/s each way to a GPU
# of the same host [hopper], a 400 Gbit/s InfiniBand card 50 GB/s to another host
# [connectx7]. A GPU's own memory is (times_nvlink) times as fast as the first and
# (times_infiniband) times as fast as the second. So the program says what moves, and
# when.

if rank == 0:
    host, local_rank = divmod(77, 8)
    assert host * 8 + local_rank == 77
    waiting = (16 * 8 - 1) * 0.1  # GPU-seconds a step
    result("host_of_77", host)
    result("local_rank_of_77", local_rank)
    result("idle_gpu_seconds", waiting)
    result("share_lost", waiting / (16 * 8 * 1.1))
    result("lost_pflop", waiting * 989 / 1000)
    result("times_nvlink", 3350 / 450)
    result("times_infiniband", 3350 / 50)

# Nothing is wrong with a rank that waits. But it looks the same when the one that it
# waits for will never come.

# --- When one does not come -----------------------------------------------------------

# A rank can miss a call because its program leads elsewhere, because it has failed, or
# because it has died. Here is each of the three, live.
#
# First, the program leads elsewhere. With `--noblock` the notebook does not wait for
# the cell, so that we can ask where the ranks are while they are stuck. A script has
# nobody who could ask; it leaves this out.
#
# Predict: Rank 1 leaves the barrier out. Each of the others knows only that it waits in
# a barrier. What would you look at to learn for whom?

# The first sentence is the one that you need, and no rank could have said it alone: the
# lab has looked at all of them. Two things can be seen of a rank from outside, even
# while it is stuck. One is its stack, that is, in which line of which function it is:
# another thread of its process can read that. The other is PyTorch's own record of the
# collectives that the rank has made.

# Rank 1 is one call behind. Look for the one that is behind; those that complain have
# come. On a cluster, `py-spy dump` prints the stack of any process [pyspy], and the
# record is known as the flight recorder [flightrecorder].
#
# `reset` frees the stuck ranks, and gives the same processes a new group.

# Second, a rank has failed. You have seen rank 1 fail alone; now the others wait for
# it.
#
# Predict: Of an exception on rank 1 the others learn nothing: they have memories of
# their own. How long do they wait?

everyone()
if rank == 0:
    print("\n## When one does not come\n")

play("ranks")
with may_fail():
    if rank == 1:
        raise ValueError(f"rank {rank} has no file to read")
    dist.barrier()


def fresh_group():
    """Replace the process groups, whatever state they are in; variables live on."""
    everyone()
    dist.destroy_process_group()
    form_groups()


# By themselves they wait until their patience ends: five seconds here,
# (minutes_until_the_error) minutes with Gloo where nobody sets it, and 10 with NCCL
# [pytorchdistributed]. The process of rank 1 lives on, and so do its connections. The
# script of this chapter catches the exception, and does wait. In a program of your own
# an exception that nobody catches ends the process, too, which is the third case below.
#
# In the notebook the lab keeps watch. It breaks the connections of ranks that wait for
# one that has failed, and its message begins with the cause. The logs of a cluster give
# no such order: look there for the rank that did not time out.
#
# The group is broken now, and the processes are well.

everyone()
if rank == 0:
    play("kernel")
    before_reset = time.monotonic()

fresh_group()
if rank == 0:
    seconds_to_reset = time.monotonic() - before_reset
    result("seconds_to_reset", seconds_to_reset, varies=True)


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


everyone()
play("ranks")
assert address == f"process {os.getpid()} on {socket.gethostname()}"
assert x[:2] == [0, 0]  # the same process, and its variables
total = torch.tensor(rank + 1)
dist.all_reduce(total)  # and a group that works

# Third, a rank has died. SIGKILL ends a process at once, and none of its own code runs
# after it. When memory runs out, Linux sends it to a process that holds much of it. A
# script cannot go on without one of its ranks: this too is for the notebook alone.
#
# Predict: Do the others wait longer for a rank that is dead than for one that has
# failed, or shorter?

# Shorter: nobody's time was up. When a process ends, its connections end with it, and
# the system tells those at the other end. Their errors say that the connection was
# closed or reset by a peer.
#
# This takes a connection, and a computer that lives on when the process dies. When a
# whole host or a cable fails, nobody is left to tell. Then the others wait until their
# time is up. Do not count on the quick error with NCCL either, where GPUs of one host
# may exchange data without any such connection [nccl].
#
# `torchrun` lets nobody wait: when one rank fails, it ends all the others [torchrun].
#
# The survivors still have their variables:

# But a group has no place for a newcomer. `restart` starts everybody anew, and the
# variables go with the old processes.

# | | `ranks.reset()` | `ranks.restart()` |
# | --- | --- | --- |
# | the processes | are the same | are fresh |
# | their variables | live on | are gone |
# | call it when | a communication failed, timed out or was interrupted | a rank has died, or does not answer |
# | it takes | (seconds_to_reset) seconds here | longer: every process starts anew |

# --- So what is a rank? ---------------------------------------------------------------

# In this book, a process that was told its number. For NCCL it is a device with a
# number in a communicator, as its groups are called. As a rule each process has one
# device, and then the two are the same. Four copies of one program behave as one if
# 1. each has a rank of its own, from 0 to n − 1, and all agree on n;
# 2. all know one place to meet, and all come;
# 3. what one needs from another's memory is sent, since nothing is shared;
# 4. where one waits for another, the other does its part.
#
# The launcher sees to the first two. The other two are up to the program.

# --- What you can do now --------------------------------------------------------------

# - Start ranks by hand, with `mp.spawn`, with `torchrun` and in a notebook, and say for
#   each who provides rank, world size and meeting place.
# - Tell what one rank has from what all have; push, pull and run.
# - Read `1/2 clients joined`, and look for the missing rank where it can be found.
# - Ask stuck ranks where they are; choose between `reset` and `restart`.
# - Say why a rank is a process, and back it with a measurement.

# --- Run it on a cluster --------------------------------------------------------------

# On each of two hosts, where `HOST` is the name of one of them:
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 4 \
#     --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
#     scripts/05_ranks.py
# ```
#
# Both are told the same place to meet, and there `torchrun` deals out the ranks.

# --- Where to read on -----------------------------------------------------------------

# - [darema1988]: SPMD as a way to program, by those who built one of its first
#   environments. The name is a few years older.
# - [hoare1978]: processes that share nothing and speak by messages, as a way of
#   thinking.
# - [torchrun]: every variable that `torchrun` sets, and how hosts find each other.
# - [pytorchdistributed]: which backend has which call, for CPU and GPU.
# - [beazley2010]: the lock, measured from the inside.
# - [pyspy] and [flightrecorder]: stacks and records of ranks that hang, on a cluster.
# - [ipyparallel]: the engines under this notebook.
#
# Next, two ranks talk: chapter 6.

leave_group()
