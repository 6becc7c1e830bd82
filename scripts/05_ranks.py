# Chapter 5 of Many Ranks, One Model, as one script. Generated from book/05_ranks.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 05_ranks.py
#     torchrun --standalone --nproc-per-node 4 05_ranks.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 05_ranks.py
#     mpiexec -n 4 python 05_ranks.py
#
# pip install matplotlib numpy psutil torch  (for mpiexec also: mpich mpi4py)

import json
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
device, backend = choose_device(device='cpu', backend='gloo')
store = next(dist.rendezvous("env://"))[0]
form_groups()


playing = "kernel"
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
torch.seed()  # the kernel's streams begin somewhere else
np.random.seed()
random.seed()


def play(part):
    """Rank 0 is also the kernel; give each part a stream of random numbers of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        streams[before] = torch.get_rng_state(), np.random.get_state(), random.getstate()
        ours, numpys, pythons = streams[part]
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
    return before


# === One program, many processes ======================================================

# What exactly is a rank, and what must be true for four copies of one program to behave
# as one?
#
# 35 minutes to read, with the code · 25 seconds to run · stands on chapter 1
#
# To train on many processors, you start the same program many times. That alone gives
# many programs that know nothing of each other. This chapter adds what is missing, one
# piece at a time: first with the standard library alone, then with PyTorch. At the end
# you can
# - name the three things that every launcher must provide, and start one program by
#   hand, with `mp.spawn`, with `torchrun`, and as the engines of a notebook;
# - say what belongs to one rank alone, and move a value in and out of it;
# - read the error of a group that is not complete, and look for the missing one in the
#   right place;
# - find out which rank the others wait for, and bring a group back after one of its
#   ranks has failed or died;
# - say why ranks are processes and not threads, with a measurement.

# --- One program, four processes ------------------------------------------------------

# A process is a running program: a text, a place in that text where it is now, and a
# memory that no other process can see. Many processes can run one text. Here is a text.

if rank == 0:
    print("\n## One program, four processes\n")
    workshop = tempfile.TemporaryDirectory(prefix="ranks-")  # gone when this notebook ends
    folder = Path(workshop.name)

    (folder / "same.py").write_text("""
import os
count = 0
count += 1
print(f"process {os.getpid()}: count is {count}")
""")

# To start it, we need a command and an environment: named strings that a process
# inherits from the one that starts it. We pass ours on, without what a launcher may
# have told us (this chapter can be run by one, too), and without `PYTHONUNBUFFERED`, of
# which more below.

if rank == 0:
    told_by_launchers = (
        "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCH", "PMI", "OMPI_",
    )
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith((*told_by_launchers, "PYTHONUNBUFFERED"))
    }


def start(command, environments):
    """Start one process in each environment, all at once; return the lines that they print."""
    with tempfile.TemporaryFile("w+") as printed:
        processes = [
            subprocess.Popen(command, env=env, stdout=printed, stderr=subprocess.STDOUT)
            for env in environments
        ]
        try:
            for process in processes:
                process.wait(timeout=120)
        finally:
            for process in processes:
                process.kill()    # does nothing to one that has ended
        printed.seek(0)
        return printed.read().splitlines()


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# Predict: Four processes run `same.py` at the same time. Each adds 1 to `count`. Which
# values of `count` are printed?

if rank == 0:
    lines = start([sys.executable, folder / "same.py"], [environment] * 4)
    print(*lines, sep="\n")
    assert all(line.endswith("count is 1") for line in lines)
    result("different_processes", len({line.split(":")[0] for line in lines}))

# Four lines, (different_processes) different process numbers, and `count` is 1 in every
# one. There is one `count` in the text, and there are four in memory.
#
# All four did the same work. Start a training program like this, and it trains four
# models, each on all the data. To share the work, the copies must differ in something.

# --- Who am I, and how many are we? ---------------------------------------------------

# Two numbers are enough. Each copy is told its rank, a number from 0 to n − 1 that no
# other copy has, and the world size n, the number of copies. We tell them through the
# environment, under the names that PyTorch's own launcher uses.

if rank == 0:
    print("\n## Who am I, and how many are we?\n")
    (folder / "share.py").write_text("""
import os
rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])

mine = list(range(rank, 10, world_size))    # tasks 0 to 9, dealt out like cards
print(f"My rank is {rank}, my tasks are {mine}")
""")


def by_hand(n, **more):
    """Return n environments, each with a rank of its own; `more` is the same for all."""
    return [environment | {"RANK": str(r), "WORLD_SIZE": str(n)} | more for r in range(n)]


# Predict: Four copies, ten tasks. Which tasks does rank 1 get?

if rank == 0:
    lines = start([sys.executable, folder / "share.py"], by_hand(4))
    print(*lines, sep="\n")

    shares = [json.loads(line.split("are ")[1]) for line in sorted(lines)]
    assert sorted(task for share in shares for task in share) == list(range(10))
    result("tasks_of_rank_1", shares[1])

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

# Rank 1 has (tasks_of_rank_1), and together the four have every task exactly once.
# Nobody handed the tasks out: each copy worked out its own part. That is why ranks are
# numbers without a gap, and not names: you compute with them.
#
# One text, run by all, in which the rank makes all the difference: this is called
# single program, multiple data, or SPMD [darema1988]. Nearly every program that trains
# on several GPUs is written this way.

# --- In which order? ------------------------------------------------------------------

# Predict: The four lines above may be in the order of the ranks, or not. If you start
# the program ten times, how many different orders do you expect?

if rank == 0:
    print("\n## In which order?\n")
    orders = []
    for _ in range(10):
        lines = start([sys.executable, folder / "share.py"], by_hand(4))
        orders.append([int(line.split(",")[0].removeprefix("My rank is ")) for line in lines])

    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    result("different_orders", len(set(map(tuple, orders))), varies=True)

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


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    fig, ax = plt.subplots(num="orders", figsize=(5.2, 2.6))
    for column, order in enumerate(orders):
        for row, r in enumerate(order):
            ax.add_patch(plt.Rectangle((column - 0.45, row - 0.45), 0.9, 0.9, color=f"C{r}"))
            ax.text(column, row, r, ha="center", va="center", color="white", weight="bold")
    ax.set(xlabel="run", ylabel="line on the screen", xlim=(-0.6, 9.6), ylim=(3.6, -0.6))
    ax.set(xticks=range(10), xticklabels=range(1, 11), yticks=range(4), yticklabels=range(1, 5))
    ax.grid(False)
    save_figures()

# Ten runs, (different_orders) different orders, and in every run the same four lines.
# That each rank prints its line is in the text. When the line gets out, Python and the
# operating system decide: Python, writing to a file, keeps it until the process ends,
# and the system gives the processors now to one process and now to another. So this,
# from two ranks, is no error:
#
# ```text
# My rank is 1
# My rank is 0
# ```
#
# What each rank does is promised. The order between ranks is not, unless one waits for
# another.
#
# If you need an order, collect the lines in one place and sort them there, as the cell
# with the tasks did. If one line is enough, let one rank print it: `if rank == 0:
# print(...)`. To let the ranks take turns is not enough: `mpiexec` and the schedulers
# of most clusters carry each rank's output through a pipe of its own, and nothing keeps
# two pipes in step.
#
# Predict: Is at least a line always whole? How many times does one `print` write?

if rank == 0:
    writes = []

    class Recorder:
        write = staticmethod(writes.append)

    print("My rank is", 1, file=Recorder())
    print(writes)
    result("writes_of_one_print", len(writes))

# It writes (writes_of_one_print) times: each argument, the space between, the end of
# the line. As a rule Python gathers the pieces and passes them on together. Where it
# does not (`python -u`, or with `PYTHONUNBUFFERED` set, which is why we did not pass it
# on), the pieces of two ranks can mix, and a log reads `My rank is 0My rank is 1`. With
# many ranks, make the line one string, newline included, and print that: `print(f"…\n",
# end="")`.

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
draft.write_text(str(os.getpid()))            # my address: the number of my process
draft.rename(place / f"rank {rank}")          # now it is there, all of it at once

cards = [place / f"rank {r}" for r in range(world_size)]
give_up = time.monotonic() + float(os.environ["PATIENCE"])
while missing := [card.name for card in cards if not card.exists()]:
    if time.monotonic() > give_up:
        sys.exit(f"rank {rank} gives up: no sign of {', '.join(missing)}")
    time.sleep(0.001)
print(f"rank {rank} knows", [int(card.read_text()) for card in cards])
""")

if rank == 0:
    copies = by_hand(4, PLACE=tempfile.mkdtemp(dir=folder), PATIENCE="20")
    lines = start([sys.executable, folder / "meet.py"], copies)
    print(*lines, sep="\n")

    address_books = {line.split("knows ")[1] for line in lines}
    result("different_address_books", len(address_books))

# Four processes, and (different_address_books) list: entry r is the address of rank r.
# From here on "send this to rank 2" means something. Processes that can address each
# other like this form a process group.
#
# Predict: Now rank 3 does not come: the same four environments, but only the first
# three are started. What do the other three do?

if rank == 0:
    copies = by_hand(4, PLACE=tempfile.mkdtemp(dir=folder), PATIENCE="1")
    lines = start([sys.executable, folder / "meet.py"], copies[:3])
    print(*sorted(lines), sep="\n")
    assert len(lines) == 3 and all(line.endswith("rank 3") for line in lines)


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        print(f"rank {rank} failed, as it may here: {type(error).__name__}: {first_line}")


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


# They wait, for each was told that they are four. Without the line that gives up they
# would wait forever, and say nothing. When a job hangs at its start, suspect this
# first: somebody is not there.

# --- PyTorch's rendezvous -------------------------------------------------------------

# PyTorch meets at a store: a dictionary that all ranks can reach. Its `TCPStore` is
# kept by one process, as a rule rank 0, and the others connect to it over the network.
# "Where do we meet" becomes an address and a port: the name of a computer, and the
# number under which one program on it can be reached.
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
# who is missing. (It counts whole seconds; one became two.) When you start ranks by
# hand, `init_process_group` begins with this very call on rank 0, and fails with this
# very line. The other ranks have words of their own:
# - `wait timeout after …ms, keys: …` says a rank that came, and waits for somebody's
#   card;
# - `The client socket has timed out … while trying to connect to …` say all the others
#   if it is rank 0 that is missing, since nobody keeps the store then: look at rank 0,
#   or at the address.
#
# Look for the missing rank where it can be found:
# - in its own output: it may have started, and crashed before it came to the
#   rendezvous;
# - in what each rank was told: a `WORLD_SIZE` larger than the number of processes, or
#   an address that leads somewhere else from another computer.
#
# How long does a rank wait, if nobody says otherwise?

if rank == 0:
    patience = torch.distributed.constants.default_pg_timeout
    result("minutes_until_the_error", patience / timedelta(minutes=1))

# With Gloo, PyTorch waits (minutes_until_the_error) minutes before it says even that.
# While you look for an error, ask for less: `init_process_group(...,
# timeout=timedelta(seconds=20))`.
#
# Predict: The next store is made with the address 127.0.0.1, which only this computer
# can reach. From where can one connect to it?

if rank == 0:
    place = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    doors = [
        c.laddr.ip for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == place.port
    ]
    assert doors and set(doors) <= {"::", "0.0.0.0"}
    result("listens_on", doors, varies=True)
    del place

# From everywhere: `::` stands for every network interface. The name that we gave is
# where the others would look for it. The store itself listens to all the world, and
# asks for no password. On a laptop in a café, or on a cluster shared with strangers,
# that matters. Where all ranks are on one computer, a file can be the store
# (`init_method="file:///…"`), and no store listens. Gloo itself still opens a port on
# every rank, through which the others connect; `GLOO_SOCKET_IFNAME`, of which more
# below, keeps that port on the interface that never leaves the computer. The lab does
# both.

# --- Three launchers, one program -----------------------------------------------------

# Who am I, how many are we, where do we meet: these are the three things that every
# copy must be told. A launcher starts the copies and tells each one the three. Here is
# a small program, and three launchers for it: our own, `mp.spawn`, and `torchrun`.
# (`"gloo"` names the library that will carry the messages; more of it below.)

if rank == 0:
    print("\n## Three launchers, one program\n")
    (folder / "hello.py").write_text("""
import os
import sys
import torch.distributed as dist
import torch.multiprocessing as mp

def do_work(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
    told = " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    gathers = not sys.stdout.write_through    # does Python gather what it prints?
    print(f"My rank is {dist.get_rank()} | gathers={gathers} {told}\\n", end="")
    dist.barrier()    # waits for everybody: nobody leaves while another is still coming
    dist.destroy_process_group()

if __name__ == "__main__":
    if "RANK" in os.environ:    # a launcher started me, as one of many
        do_work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:                       # you started me, alone: I am the launcher
        mp.spawn(do_work, args=(2,), nprocs=2, join=True)
""")

# `init_process_group` is PyTorch's `meet.py`. It takes the rank and the world size,
# finds the store at `MASTER_ADDR` and `MASTER_PORT`, waits for everybody, and, with
# Gloo, connects everybody with everybody. (NCCL as a rule connects only at the first
# communication.) It returns on each rank as soon as that rank is connected. Hence the
# barrier: without it, a quick rank can be gone while a slow one is still connecting,
# and on a busy computer the slow one then fails, now and then, with `Connection closed
# by peer`.
#
# All our ranks are on this computer, so they are to talk through the network interface
# that never leaves it, the loopback. And each gets one thread to compute with, since
# they share the cores.

if rank == 0:
    loopback = next(
        name for name, addresses in psutil.net_if_addrs().items()
        if any(a.address == "127.0.0.1" for a in addresses)
    )
    environment |= {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}

# First by hand. The port must be free: with a fixed one, such as the 29500 of many
# examples, two jobs on one computer meet each other.


def meeting_point():
    """Return where ranks on this computer can meet: its address, and a port that is free now."""
    while True:
        port = random.randrange(10_000, 30_000)    # the system hands out higher ones by itself
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue    # somebody has it
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


if rank == 0:
    hello = [sys.executable, folder / "hello.py"]
    said = {"by hand": start(hello, by_hand(2, **meeting_point()))}
    print(*said["by hand"], sep="\n")

# Then `mp.spawn`. We start one process, which starts the ranks: `nprocs` new processes,
# in each of which it calls the function, with the rank put in front of the other
# arguments.

if rank == 0:
    said["mp.spawn"] = start(hello, [environment | meeting_point()])
    print(*said["mp.spawn"], sep="\n")

# Then `torchrun`, which is `python -m torch.distributed.run`. It starts the whole file
# n times and tells each copy everything through the environment.

if rank == 0:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    said["torchrun"] = start([*command, folder / "hello.py"], [environment])
    print(*said["torchrun"], sep="\n")
    assert all("gathers=False" in line for line in said["torchrun"] if line.startswith("My rank"))

# `torchrun` starts Python with `-u`, as `gathers=False` shows: each rank's words come
# out at once, even the last ones before a crash. It also means that they can mix.
#
# Predict: Disregard what comes after the `|`. Are the three outputs equal as lists? As
# sets?

if rank == 0:
    for launcher, lines in said.items():
        spoken = {line.split(" |")[0] for line in lines if line.startswith("My rank")}
        assert spoken == {"My rank is 0", "My rank is 1"}, (launcher, lines)
    result("launchers_that_agree", list(said))

# As sets they are equal. `do_work` does not know who started it, and need not; only the
# last lines of the file ask, to learn whether they are to launch. This is what each
# launcher provides:
#
# | | who am I? | how many are we? | where do we meet? |
# | --- | --- | --- | --- |
# | by hand | `RANK`, set by you | `WORLD_SIZE`, set by you | `MASTER_ADDR`, `MASTER_PORT`, set by you |
# | `mp.spawn` | the first argument | an argument, passed by you | `MASTER_ADDR`, `MASTER_PORT`, set by you |
# | `torchrun` | `RANK` | `WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT`: all set for you |
# | `mpiexec` | asked of MPI | asked of MPI | arranged by MPI for its own messages; for Gloo and NCCL, rank 0 chooses an address and tells the others |
# | the lab | `rank` | `world_size` | a file in a private folder |
#
# A rank is the number of a process, not of a computer. `LOCAL_RANK`, which only
# `torchrun` set, counts the processes of one host, that is, of one computer, and a
# program uses it to pick its GPU. With as many processes on every host, and the ranks
# dealt out host by host (as `torchrun` does; `mpiexec` and Slurm can also deal them in
# turn),
#
# $$\text{RANK} = \text{number of the host} \times \text{processes per host} + \text{LOCAL\_RANK}.$$
#
# And the names are upper case [torchrun]: `os.environ["rank"]`, as some examples have
# it, is a `KeyError` on Linux.

# --- Who carries the messages ---------------------------------------------------------

# The first argument of `init_process_group` names the backend: the library that moves
# the tensors. Which ones you have was settled when your PyTorch was built.

if rank == 0:
    print("\n## Who carries the messages\n")
    here = {
        "gloo": distributed.is_gloo_available(),
        "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
    }
    assert here["gloo"]
    result("backends_here", [name for name, there in here.items() if there], varies=True)

# | backend | moves | use it for |
# | --- | --- | --- |
# | Gloo [gloo] | tensors on the CPU, over the network | training on CPUs, learning on a laptop, what stays on the CPU beside NCCL |
# | NCCL [nccl] | tensors on NVIDIA's GPUs, from one to another | all training on those GPUs |
# | MPI [mpi] | what the host's MPI library can move | clusters whose own MPI knows their network best |
#
# The program stays the same, whatever the backend. Old examples that say
# `backend="mpi"` stop at that line, because PyTorch as you install it comes without; it
# must be built from source next to an MPI [pytorchdistributed].

# --- Ranks in this notebook -----------------------------------------------------------

# The last launcher is the one that the rest of this book uses. An engine is a Python
# process that waits for code, runs it, keeps its variables, and waits again
# [ipyparallel]. The lab starts engines and makes each of them a rank.


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# The backend is named, so that the chapter does the same on a machine with GPUs. With
# `timeout=5`, a rank that waits for another gives up after five seconds.
#
# A cell that begins with `%%px` runs on every rank, and not here. Each rank has `rank`,
# `world_size`, `torch` and `dist` in its memory already.
#
# Predict: Every rank makes a variable `line` and prints it. Where are these variables
# when the cell is done?

everyone()
if rank == 0:
    print("\n## Ranks in this notebook\n")

play("ranks")

line = f"My rank is {dist.get_rank()}"
assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
print(line)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


# On the engines, one in each, where they stay. The word in brackets says who printed.
# To have the variables here, pull them: `ranks["line"]` is a list with the `line` of
# every rank, always in the order of the ranks.

lines = to_rank_0(line)
if rank == 0:
    play("kernel")
    assert lines == [f"My rank is {r}" for r in range(world_size)]
    show(lines)

# Here is the order that printing could not promise: collected in one place, and sorted.
#
# The other way, `ranks["tasks"] = value` pushes a copy of a value to every rank. And
# `ranks.run(f, ...)` calls a function on every rank and returns the results, in the
# order of the ranks.

tasks = 10


def my_tasks(stride):
    return list(range(rank, tasks, stride))  # rank and tasks: found where it runs


# Predict: `my_tasks` is defined here, where there is no `rank`. What does the next cell
# return? What would it return with 1 in place of the world size?

everyone()
play("ranks")
dealt = to_rank_0(my_tasks(world_size))
if rank == 0:
    play("kernel")
    assert sorted(task for share in dealt for task in share) == list(range(10))
    result("dealt", dealt)

# It is `share.py` again. A name in a function is looked up where the function runs, and
# there each rank has a `rank` of its own. (With 1, rank r would do every task from r
# on, and most tasks would be done several times. Nothing would complain.)

# --- Separate memory, shown -----------------------------------------------------------

# Predict: Every rank makes a list `x`. Then rank 1, and only rank 1, appends to `x`.
# What does `ranks["x"]` hold?

everyone()
if rank == 0:
    print("\n## Separate memory, shown\n")

play("ranks")
x = [0, 0]
address = f"process {os.getpid()} on {socket.gethostname()}"

# A cell can also run on some ranks alone: `--targets` names them.

everyone()
if rank in (1,):
    show(x.append(7), rank)

xs = to_rank_0(x)

if rank == 0:
    play("kernel")
    fig, ax = plt.subplots(num="memory", figsize=(5.2, 0.55 * len(xs) + 0.5))
    for r, values in enumerate(xs):
        ax.text(-0.7, r, f"rank {r}:  x =", ha="right", va="center")
        for i, value in enumerate(values):
            ax.add_patch(plt.Rectangle((i - 0.4, r - 0.35), 0.8, 0.7, color=f"C{r}", alpha=0.4))
            ax.text(i, r, value, ha="center", va="center")
    ax.set(xlim=(-3.5, 4), ylim=(len(xs) - 0.4, -0.6))
    ax.axis("off")
    save_figures()

homes = to_rank_0(address)
if rank == 0:
    assert xs == [[0, 0, 7] if r == 1 else [0, 0] for r in range(world_size)]
    result("processes_are_different", len(set(homes)) == world_size)

# One name, and as many lists as there are ranks. What we pulled is one more copy: to
# change it here changes nothing there.

if rank == 0:
    xs[1].append("written in the kernel")

x_by_rank = to_rank_0(x)
if rank == 0:
    assert x_by_rank[1] == [0, 0, 7]

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
# and all are ready for the next one. That is because nobody was waiting for rank 1.
# When somebody is, one rank's error becomes everybody's, as the end of this chapter
# shows.

# --- A rank is told, not drawn --------------------------------------------------------

# Could the ranks not number themselves, as they arrive? Let us see. The store where
# this group met is still open. Each rank draws a ticket: `add` adds to a number in the
# store and returns the sum, to one rank at a time.

everyone()
if rank == 0:
    print("\n## A rank is told, not drawn\n")

play("ranks")
meeting = dist.distributed_c10d._get_default_store()  # PyTorch has no public name for it
ticket = meeting.add("arrived", 1) - 1

meeting.set(f"address of rank {rank}", address)
address_book = [meeting.get(f"address of rank {r}").decode() for r in range(world_size)]

# `set` leaves a card, as `meet.py` did, and `get` waits until a card is there.
#
# Predict: Is the address book the same on all ranks? Is a rank's ticket equal to its
# rank?

address_book_by_rank = to_rank_0(address_book)
if rank == 0:
    play("kernel")
    assert address_book_by_rank == [homes] * world_size

tickets = to_rank_0(ticket)
if rank == 0:
    assert sorted(tickets) == list(range(min(tickets), min(tickets) + world_size))
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
    """Count in Python; return the time at the start and after each piece, in seconds."""
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
    """Return the work's CPU seconds in this process, when it began and ended, and its result."""
    began, cpu_began = time.monotonic(), time.process_time()
    moments = work(*arguments)
    return time.process_time() - cpu_began, began, time.monotonic(), moments


# The same work is done twice at the same time: first by two threads of rank 0, then by
# two processes, rank 0 and rank 1. CPU time is the time for which a process had a core.
# Divided by the time that went by, it is the number of cores that were kept busy.
#
# Predict: How many cores do the two threads keep busy? And the two processes?

everyone()
if rank == 0:
    print("\n## Why not threads?\n")

play("ranks")
threads, processes = [], []
for _ in range(10):
    dist.barrier()    # everybody waits here for everybody
    threads.append(timed(two_threads, count_up, 200) if rank == 0 else None)
    dist.barrier()
    processes.append(timed(count_up, 200) if rank < 2 else None)

# Then two threads of rank 0 once more, with matrix products in place of counting.

everyone()
square = torch.rand(384, 384)


def multiply(pieces):
    """Multiply matrices; return the time at the start and after each product, in seconds."""
    moments = [time.monotonic()]
    for _ in range(pieces):
        torch.mm(square, square)
        moments.append(time.monotonic())
    return moments


multiply(3)  # the first products are slower
products = [timed(two_threads, multiply, 20) if rank == 0 else None for _ in range(10)]

# Other programs want the cores too. Of ten attempts we take the one that got most of
# them.


def busy_cores(attempt):
    """Return the CPU seconds of an attempt over the seconds that it took."""
    cpu_seconds, began, ended, _ = attempt
    return cpu_seconds / (ended - began)


processes_by_rank = to_rank_0(processes)
if rank == 0:
    play("kernel")
    in_processes = [
        (one[0] + other[0], min(one[1], other[1]), max(one[2], other[2]), [one[3], other[3]])
        for one, other in zip(*processes_by_rank[:2], strict=True)
    ]

threads_by_rank = to_rank_0(threads)
products_by_rank = to_rank_0(products)
if rank == 0:
    best = {
        "two threads\ncount": max(threads_by_rank[0], key=busy_cores),
        "two processes\ncount": max(in_processes, key=busy_cores),
        "two threads\nmultiply": max(products_by_rank[0], key=busy_cores),
    }

if rank == 0:
    counting, separate, multiplying = [busy_cores(attempt) for attempt in best.values()]
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()  # False in a free-threaded Python
    assert not has_lock or counting < 1.3

    result("cores_of_counting_threads", counting, varies=True)
    result("cores_of_counting_processes", separate, varies=True)
    result("cores_of_multiplying_threads", multiplying, varies=True)
    result("switch_ms", 1e3 * sys.getswitchinterval())


def stretches(moments):
    """Return (start, length) of each piece during which the worker was not made to pause."""
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
            bars = [(1e3 * (a - origin), 1e3 * length) for a, length in stretches(moments)]
            ax.broken_barh(bars, (row - 0.4, 0.8), color=color)
    ax.set(xlabel="time since the start (ms)", yticks=[0.5, 3.1, 5.7], yticklabels=best)
    ax.invert_yaxis()
    save_figures()

# Blue is rank 0, orange is rank 1. While one of the counting threads runs, the other
# waits. They hand the lock over every few milliseconds (CPython asks the one that has
# it to let go after (switch_ms) ms), and together keep (cores_of_counting_threads)
# cores busy. The two processes have a lock each, and neither waits for the other:
# (cores_of_counting_processes) cores, near 2 if two cores were free. The last pair
# shows what threads are good for. PyTorch lets go of the lock while it multiplies, so
# two threads of one process need not wait for each other:
# (cores_of_multiplying_threads) cores, and here, too, near 2 only if two were free.
# (Where all three numbers are about 1, other programs had the rest of the machine, and
# the picture says more than they do.) But a training step also runs Python between such
# calls, and for that part the threads take turns.
#
# There are builds of Python without the lock [gross2023]; there the first pair looks
# like the second. Ranks would stay processes even so. A thread cannot live on another
# computer, and it takes the whole process with it when it crashes.

# --- As one ---------------------------------------------------------------------------

# What ranks still lack is messages. The next chapters are about nothing else; here is
# one ahead of time. `all_reduce` replaces a tensor on every rank by the sum over all
# the ranks.
#
# Predict: Rank r starts with r + 1. What does rank 0 hold afterwards, and what the last
# rank?

everyone()
if rank == 0:
    print("\n## As one\n")

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
# multiplies r times as many matrices, and then all make the call. `trace` records what
# a rank does in its `with` block, and when. The barrier comes first: nobody begins
# before all are there.
#
# Predict: Which rank spends the most time in `all_reduce`?

everyone()
play("ranks")

with trace() as t:
    dist.barrier()
    multiply(20 * rank)    # the products from above
    arrived = time.monotonic()
    dist.all_reduce(total)
    left = time.monotonic()

ts = to_rank_0(t)
if rank == 0:
    play("kernel")
    show(timeline(ts))

arrived_by_rank = to_rank_0(arrived)
left_by_rank = to_rank_0(left)
if rank == 0:
    arrivals, departures = arrived_by_rank, left_by_rank
    on_one_host = len({home.split(" on ")[1] for home in homes}) == 1  # and so by one clock
    assert max(arrivals) <= min(departures) or not on_one_host

# Rank 0, which had nothing to multiply. Nobody leaves before the last one has come: a
# group is as fast as its slowest rank, and what the others save they spend waiting.
# (Where cores are fewer than ranks, the ranks share them, and the bars are not as 1 : 2
# : 3.) Nothing is wrong with a rank that waits. But it looks the same when the one that
# it waits for will never come.

# --- When one does not come -----------------------------------------------------------

# A rank can miss a call because its program leads elsewhere, because it has failed, or
# because it has died. Here is each of the three, live.
#
# First, the program leads elsewhere. With `--noblock` the notebook does not wait for
# the cell, so that we can ask where the ranks are while they are stuck. (A script has
# nobody who could ask; it leaves this out.)
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


# By themselves, until their patience ends: five seconds here, (minutes_until_the_error)
# minutes where nobody sets it. The script of this chapter does wait. In the notebook
# the lab keeps watch; it breaks the connections of ranks that wait for one that has
# failed, and within three seconds all are free. The message begins with the cause. (The
# logs of a cluster give no such order: look for the rank that did not time out.)
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
assert address == f"process {os.getpid()} on {socket.gethostname()}"  # the same process
assert x[:2] == [0, 0]  # its variables
total = torch.tensor(rank + 1)
dist.all_reduce(total)  # and a group that works

# Third, a rank has died. SIGKILL ends a process at once, and none of its own code runs
# after it. When memory runs out, Linux sends it to a process that holds much of it. (A
# script cannot go on without one of its ranks: this too is for the notebook alone.)
#
# Predict: Do the others wait longer for a rank that is dead than for one that has
# failed, or shorter?

# Shorter: nobody's time was up. With a process its connections end, and the system
# tells those at the other end, in whose words the connection was reset or closed by a
# peer. A rank that lives and does not come is worse, for nothing tells it from a slow
# one. (`torchrun` lets nobody wait: when one rank fails, it ends all the others
# [torchrun].)
#
# The survivors still have their variables:

# But a group has no place for a newcomer. `restart` starts everybody anew.

# | | `ranks.reset()` | `ranks.restart()` |
# | --- | --- | --- |
# | the processes | are the same | are fresh |
# | their variables | live on | are gone |
# | call it when | a communication failed, timed out or was interrupted | a rank has died, or does not answer |
# | it takes | a fraction of a second | no longer than the first start |

# --- So what is a rank? ---------------------------------------------------------------

# A process that was told its number. And four copies of one program behave as one if
# 1. each has a rank of its own, from 0 to n − 1, and all agree on n;
# 2. all know one place to meet, and all come;
# 3. what one needs from another's memory is sent, since nothing is shared;
# 4. where one waits for another, the other does its part.
#
# The launcher sees to the first two. The other two are up to the program.

# --- What you can do now --------------------------------------------------------------

# - Start ranks in four ways, and say for each who provides rank, world size and meeting
#   place.
# - Tell what one rank has from what all have; push, pull and run.
# - Read `1/2 clients joined`, and look for the missing rank where it can be found.
# - Ask stuck ranks where they are; choose between `reset` and `restart`.
# - Say why a rank is a process, and back it with a measurement.

# --- Run it on a cluster --------------------------------------------------------------

# On each of two hosts, where `HOST` is the name of one of them:
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 scripts/05_ranks.py
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
