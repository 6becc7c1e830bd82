# Chapter 8 of Many Ranks, One Model, as one script. Generated from book/08_all_reduce.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 08_all_reduce.py
#     torchrun --standalone --nproc-per-node 4 08_all_reduce.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 08_all_reduce.py
#     mpiexec -n 4 python 08_all_reduce.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import functools
import mmap
import os
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
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
device, backend = choose_device(device='cpu', backend='gloo')
store = next(dist.rendezvous("env://"))[0]
form_groups()


# === How fast can an all-reduce be? ===================================================

# Every training step ends with the same sum over all ranks. What is the least that it
# can cost, and who gets near that?
#
# 40 minutes to read · 20 seconds to run · stands on chapter 6 and chapter 7
#
# Data parallelism adds up every gradient over all ranks, in every step. Whatever that
# takes comes on top of the computing, so people have looked for the fastest way for
# forty years, and found more than one. You know one of them: a ring that
# reduce-scatters, then all-gathers. New are the others, in pieces and through shared
# memory too, and what decides between them. At the end you can say of each how many
# bytes and rounds it takes, what a wrong one looks like, and which size asks for which.

# --- One collects, one gives back -----------------------------------------------------

# The first way to an all-reduce that comes to mind: all send their tensors to rank 0,
# which adds, and sends the sum to all.
#
# Every algorithm below is written for the simplest case: `x` is flat, it lies in memory
# in one piece, `members` are the ranks that take part, and `me` is our own place among
# them. One wrapper makes of each of them an all-reduce of any tensor among the ranks of
# any process group:


def on_flat(algorithm):
    """Make `algorithm(flat, members, me)` an all-reduce: any tensor, any group, in place."""

    @functools.wraps(algorithm)
    def all_reduce(x, group=None):
        flat = x.contiguous().view(-1)  # x itself, if it lies in one piece; else a copy
        algorithm(flat, dist.get_process_group_ranks(group), dist.get_rank(group))
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))

    del all_reduce.__wrapped__  # else help() would show the arguments of `algorithm`
    return all_reduce


if rank == 0:
    print("\n## One collects, one gives back\n")


@on_flat
def gather_all_reduce(x, members, me):
    """Rank 0 receives from all, adds, and sends the sum to all."""
    if me == 0:
        incoming = torch.empty_like(x)
        for other in members[1:]:
            dist.recv(incoming, other)
            x += incoming
        for other in members[1:]:
            dist.send(x, other)
    else:
        dist.send(x, members[0])
        dist.recv(x, members[0])


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


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

# Predict: Rank r holds a tensor full of r + 1. What does every rank hold afterwards?
# How many tensors does rank 0 send, and how many does rank 3?


def counted(all_reduce, n):
    """All-reduce n numbers, each r + 1 on rank r; return the result and the trace."""
    x = torch.full((n,), rank + 1.0)
    with trace() as t:
        all_reduce(x)
    return x, t


everyone()

x, t = counted(gather_all_reduce, 1 << 18)  # 1 MB


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
        plt.close(value)
    elif hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


everyone()
if rank == 0:
    total = sum(range(1, world_size + 1))

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all((y == total).all() for y in x_by_rank)
    result("total", total)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(traffic(t_by_rank))

# Everybody has the sum, (total). Rank 0 received world size − 1 tensors one after the
# other, added each of them, and sent as many. The others waited. With twice the ranks
# it takes twice as long.

# --- A tree ---------------------------------------------------------------------------

# Chapter 7's reduce, then its broadcast: two pairs can add at the same time, then their
# sums are added, and so on, and the total goes down the same tree.

everyone()
if rank == 0:
    print("\n## A tree\n")


@on_flat
def tree_all_reduce(x, members, me):
    """Sums go up a binomial tree to rank 0, and the total comes down the same tree."""
    incoming = torch.empty_like(x)
    distance = 1
    while distance < len(members) and me % (2 * distance) == 0:  # up: collect, while I may
        if me + distance < len(members):
            dist.recv(incoming, members[me + distance])
            x += incoming
        distance *= 2
    if me > 0:  # hand mine to the parent, and wait for the total
        dist.send(x, members[me - distance])
        dist.recv(x, members[me - distance])
    while distance > 1:  # down: to those that I collected from, the farthest first
        distance //= 2
        if me + distance < len(members):
            dist.send(x, members[me + distance])


# From ranklab.taught.collectives:


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


# This takes $2 \lceil \log_2 n \rceil$ rounds of messages for n ranks instead of 2(n −
# 1).

# --- Everybody swaps ------------------------------------------------------------------

# Near the root only two ranks have something to do. Recursive doubling has no root: in
# each round, every rank swaps what it has with a partner, and both add. The partners
# are at distance 1, then 2, then 4, and after $\log_2 n$ rounds everybody has
# everything.
#
# Predict: That needs a power of two. What would you do with rank 4 of five, or with
# ranks 4, 5 and 6 of seven?

everyone()
if rank == 0:
    print("\n## Everybody swaps\n")


@on_flat
def doubling_all_reduce(x, members, me):
    """Recursive doubling. Ranks beyond the largest power of two are represented by a partner."""
    core = 1 << (len(members).bit_length() - 1)  # the largest power of two that is not above n
    if me >= core:
        dist.send(x, members[me - core])
        dist.recv(x, members[me - core])
        return
    incoming = torch.empty_like(x)
    represents = members[me + core] if me + core < len(members) else None
    if represents is not None:
        dist.recv(incoming, represents)
        x += incoming
    distance = 1
    while distance < core:
        partner = members[me ^ distance]  # the rank whose number differs in this one bit
        sendrecv(x, partner, incoming, partner)
        x += incoming
        distance *= 2
    if represents is not None:
        dist.send(x, represents)


# Those beyond the largest power of two hand their tensor to a partner, who swaps on
# their behalf, and get the total in the end: two rounds more.
#
# One picture of all three, 1 MB on each rank:


def recorded(algorithms, n):
    """One trace of all of them, one after the other, each under its name."""
    x = torch.ones(n)
    dist.barrier()
    with trace() as t:
        for way, all_reduce in algorithms.items():
            dist.barrier()
            with record_function(way):
                all_reduce(x)
    return t


everyone()

first_three = {
    "gather": gather_all_reduce, "tree": tree_all_reduce, "doubling": doubling_all_reduce
}
recorded(first_three, 1 << 18)  # the first time, connections and memory are still cold
t = recorded(first_three, 1 << 18)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(messages(t_by_rank, name="three"))

# The grey bands are barriers, after which all start. In the first part every arrow
# begins or ends at rank 0. In the second there are fewer rounds, but the nearer to the
# root, the fewer ranks have something to do. In the third everybody sends all the time,
# and there are the fewest rounds. Now count what each rank sends:

everyone()
sent_by = {way: counted(first_three[way], 1 << 18)[1] for way in first_three}

# With gathering, one rank sends many times what the others do, and the slowest decides.
# With recursive doubling the work is shared out evenly, but everybody's share is
# $\log_2 n$ whole tensors.

# --- Around a ring --------------------------------------------------------------------

# Less than two tensors a rank is enough, as chapter 7's all-reduce showed: nobody needs
# to add all of it. Cut into n parts, the reduce-scatter leaves each rank with the total
# of one, and the all-gather carries the totals around. Here are both in one loop, and
# both to the right: in step s, counted from 0 to 2(n − 1) − 1, rank r sends part r − s
# and gets part r − s − 1. So after n − 1 steps it has the total of part r + 1, with
# which the second half begins.
#
# Predict: Four ranks, 1 MB each. How much of the tensor does every rank send, and with
# a thousand ranks? Why can no all-reduce by messages do with less?

everyone()
if rank == 0:
    print("\n## Around a ring\n")


@on_flat
def ring_all_reduce(x, members, me):
    """A ring: each part's sum travels once around and is added to, then its total is copied."""
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    parts = x.tensor_split(n)  # as equal as can be; the first ones are the longer ones
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        outgoing, mine = parts[(me - step) % n], parts[(me - step - 1) % n]
        if step < n - 1:  # what comes is a sum under way: add mine to it
            incoming = box[: len(mine)]
            sendrecv(outgoing, right, incoming, left)
            mine += incoming
        else:  # what comes is a total
            sendrecv(outgoing, right, mine, left)


everyone()
x, t = counted(ring_all_reduce, world_size << 16)

everyone()
if rank == 0:
    n = world_size

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all((y == total).all() for y in x_by_rank)
    result("n_ranks", n)
    result("ring_sends", 2 * (n - 1) / n)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(traffic(t_by_rank))

# Counted, every rank sent 2(n − 1) parts of the n, (ring_sends) times the tensor. With
# a thousand ranks it is 1.998. As long as it is ranks that add, the busiest of them
# cannot do with less. Somebody is the first to know the total of one number, and for
# that the n − 1 other ranks must each have sent something. From there the total must
# reach n − 1 ranks. That is 2(n − 1) numbers sent for each number of the tensor, on
# average $2\frac{n-1}{n}$ tensors a rank [patarasuk2009]. (Some networks add in their
# switches. Then one tensor each is enough.)
#
# The price of this way is 2(n − 1) rounds, one after the other. With a small tensor and
# many ranks nearly all of the time is latency. For n a power of two there is one that
# sends as little in $2\log_2 n$ rounds, recursive halving and doubling: swap halves
# with one partner and add, then quarters with another, until every rank has the total
# of one part, and go the same way back. It is Rabenseifner's, and what MPICH does with
# large tensors [thakur2005]. The ring asks less of the wiring: it only ever sends to a
# neighbor.

# --- One step too few -----------------------------------------------------------------

# Predict: This one stops a step early. Does it hang? Does it fail? Which ranks have
# wrong numbers, and where?

everyone()
if rank == 0:
    print("\n## One step too few\n")


@on_flat
def short_ring(x, members, me):
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    parts = x.tensor_split(n)
    for step in range(2 * (n - 1) - 1):  # range() ends before its end, does it not?
        outgoing, mine = parts[(me - step) % n], parts[(me - step - 1) % n]
        incoming = torch.empty_like(mine)
        sendrecv(outgoing, right, incoming, left)
        mine.copy_(mine + incoming if step < n - 1 else incoming)


y = torch.full((world_size,), rank + 1.0)
show(short_ring(y), rank)

y_by_rank = to_rank_0(y)
if rank == 0:
    ys = [y.tolist() for y in y_by_rank]
    for r, y_of_r in enumerate(ys):
        print(f"rank {r}:", *(f"{number:5.1f}" for number in y_of_r))
    stale = [[i for i in range(n) if y_of_r[i] != total] for y_of_r in ys]
    assert stale == [[(r + 2) % n] for r in range(n)]
    result("stale_on_rank_0", stale[0][0])

# It ends, in good order and without a word. All ranks made the same mistake, so every
# send had its receive. But one part of each rank was never overwritten, and it is a
# partial sum (on rank 0, part (stale_on_rank_0)). In a training nothing would tell you:
# gradients that are too small in one quarter of the weights, different ones on each
# rank, still go downhill. A collective that is wrong does not crash; it trains worse.
# It happens to the best: until 2020 the ring all-reduce in PyTorch's own tutorial
# received into one buffer and added another one [wrongring].
#
# What finds it is a comparison with something that is simple enough to be right. Two
# habits: compare with PyTorch's own on numbers whose sum is exact, such as small whole
# ones; and use lengths that no part divides, empty ones too.
# `tests/chapters/test_all_reduce.py` in this book's repository does so for all that you
# see here, on 1 to 8 ranks.

# --- A copy thrown away ---------------------------------------------------------------

# A tensor that does not lie in memory in one piece, a column of a matrix for instance,
# must be copied before it can be sent. `on_flat` copies back what came out (`x.copy_`).
# The second classic is to forget that:


def forgetful_all_reduce(x):
    flat = x.contiguous().view(-1)
    ring_all_reduce(flat)


everyone()
if rank == 0:
    print("\n## A copy thrown away\n")

matrix = torch.full((3, 2), rank + 1.0)
forgetful_all_reduce(matrix)
whole = matrix[0, 0].item()
matrix = torch.full((3, 2), rank + 1.0)
forgetful_all_reduce(matrix[:, 0])
column = matrix[0, 0].item()
show(ring_all_reduce(matrix[:, 0]), rank)

whole_by_rank = to_rank_0(whole)
column_by_rank = to_rank_0(column)
if rank == 0:
    wholes, columns = whole_by_rank, column_by_rank
    assert wholes == [total] * n and columns == [r + 1.0 for r in range(n)]
    result("columns", columns)

matrix_by_rank = to_rank_0(matrix)
if rank == 0:
    assert all((m[:, 0] == total).all() for m in matrix_by_rank)

# For the matrix it works, for its column nothing happens, and the ranks keep (columns):
# the sum went into a copy that nobody looks at again. So an all-reduce that works in
# place should either copy back, as ours does, or refuse. And PyTorch's own? A matrix
# full of r + 1, and the all-reduce of its first column:

everyone()
matrix = torch.full((3, 2), rank + 1.0)
dist.all_reduce(matrix[:, 0])

matrix_by_rank = to_rank_0(matrix)
if rank == 0:
    for r, m in enumerate(matrix_by_rank):
        assert m.flatten().tolist() == [total] * 3 + [r + 1.0] * 3

matrix_by_rank = to_rank_0(matrix)
if rank == 0:
    show(matrix_by_rank[0])

# On Gloo it does neither. It takes the column's three numbers for the first three of
# the matrix in memory: two of the column are added up, the third is not, one of the
# column beside it is overwritten, and nothing is said. So give it what `x.contiguous()`
# returns, and copy that back. And ask for tests with a tensor that has holes.

# --- In pieces ------------------------------------------------------------------------

# In one step of the ring a rank first receives all of a part, then adds, then sends.
# While it adds, its connections are idle. Cut each part into pieces, and a piece can go
# on as soon as it has been added, while the next one arrives: a pipeline.


def pipelined_all_reduce(x, group=None, piece=2 << 20):
    """The ring, in pieces of `piece` bytes: each one goes on as soon as it has been added."""
    on_flat(functools.partial(_pipelined, piece=piece))(x, group)


def _pipelined(x, members, me, piece):
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    count = max(1, x.nbytes // n // piece)
    pieces = [part.tensor_split(count) for part in x.tensor_split(n)]
    boxes = [torch.empty_like(longest) for longest in pieces[0]]

    def receive(step, i):
        """Start to receive piece i of this step: into a box to add it, or where it belongs."""
        mine = pieces[(me - step - 1) % n][i]
        return dist.irecv(boxes[i][: len(mine)] if step < n - 1 else mine, left)

    steps = range(2 * (n - 1))
    sends = [dist.isend(mine, right) for mine in pieces[me] if steps]
    arriving = [receive(0, i) for i in range(count) if steps]
    for step in steps:
        for i, mine in enumerate(pieces[(me - step - 1) % n]):
            arriving[i].wait()
            if step < n - 1:
                mine += boxes[i][: len(mine)]
            if step + 1 in steps:  # pass it on, and make room for what comes next
                sends.append(dist.isend(mine, right))
                arriving[i] = receive(step + 1, i)
    for handle in sends:
        handle.wait()


# The receives of the next step are posted as soon as a box is free, so no sender waits
# for Python. The bytes are the same:

everyone()
if rank == 0:
    print("\n## In pieces\n")

x, t = counted(functools.partial(pipelined_all_reduce, piece=1 << 14), world_size << 16)

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all((y == total).all() for y in x_by_rank)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(traffic(t_by_rank))

# Whether it is faster depends on whether adding and sending can go on at the same time,
# so on cores to spare, or on a network card that sends by itself. The table of
# bandwidths below compares the two.

# --- Through memory that all can see --------------------------------------------------

# On one machine, why send at all? A message between two processes of one host is copied
# into the operating system and out of it. Processes share no memory, but they may ask
# for some that they do. The operating system can put the same pages into several
# processes, and then a number that one writes is there for the others to read.


def this_host():
    """Its name, and (on Linux) what tells it from others of that name."""
    name = socket.gethostname()
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:  # drawn at each start of a machine
            return name, boot.read(), os.readlink("/proc/self/ns/pid")  # containers differ here
    except OSError:
        return (name,)


def shared_bytes(nbytes, group=None):
    """Return `nbytes` bytes of memory that all ranks of the group see. All must call it.

    It has no name, so it goes with the last process that has it, however that one ends.
    Raises ValueError if the ranks are not all on one host.
    """
    members, hosts = dist.get_process_group_ranks(group), [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, this_host(), group=group)
    if len(set(hosts)) > 1:
        names = ", ".join(sorted(host[0] for host in set(hosts)))
        raise ValueError(f"Ranks on several hosts ({names}) share no memory: it needs one host.")
    file, where = None, [None]
    if members[0] == dist.get_rank():
        if hasattr(os, "memfd_create"):  # Linux: a file in memory, which never has a name
            file = os.memfd_create("all-reduce")
            where = [f"/proc/{os.getpid()}/fd/{file}"]
        else:
            file, where[0] = tempfile.mkstemp()
        os.ftruncate(file, nbytes)
    dist.broadcast_object_list(where, src=members[0], group=group)
    file = os.open(where[0], os.O_RDWR) if file is None else file
    memory = mmap.mmap(file, nbytes)
    dist.barrier(group)  # rank 0 keeps its file open until everybody has it
    os.close(file)
    if members[0] == dist.get_rank() and not where[0].startswith("/proc/"):
        os.remove(where[0])
    return memory


# Two things a message gave us for free are now missing. A receive waits; here nobody
# says when the numbers are there. And nobody keeps a rank from overwriting what another
# one still reads. Both need a barrier. Gloo has one, made of messages, and it takes
# longer than adding a few kilobytes. With shared memory we can have a faster one: each
# rank counts how many barriers it has come to, where all can see it, and waits until
# nobody's count is behind.


class SharedBarrier:
    """A barrier for `n` ranks that share `memory`, of which it uses the first 64 n bytes."""

    def __init__(self, memory, me, n, timeout=20.0):
        self.counts = memoryview(memory)[: 64 * n].cast("q")  # 8 numbers a rank: a cache line
        self.me, self.n, self.timeout, self.count = me, n, timeout, 0
        self.fence = threading.Lock()
        self.fence.acquire()  # it stays taken, but for a moment in _in_order

    def wait(self):
        """Return when all ranks have called it as often as this one. Raises TimeoutError."""
        self.count += 1
        self._in_order()  # what was written before can be seen before the count can
        self.counts[8 * self.me] = self.count
        deadline, looks = time.monotonic() + self.timeout, 0
        for r in range(self.n):
            while self.counts[8 * r] < self.count:
                looks += 1
                self._let_others_work(looks)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"Rank {r} has not come for {self.timeout} s.")
        self._in_order()  # what is read from now on is no older than the counts

    def _in_order(self):
        """A fence: nothing from before it and nothing from after it can change places."""
        self.fence.release()  # nothing from before this line can take effect after it,
        self.fence.acquire()  # and nothing from after this line before it

    def _let_others_work(self, looks):
        """Offer the core to others; after a while of that, sleep."""
        if looks < 100 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(2e-5)


# Three details make it right and fast.
#
# Nobody writes what another one writes. Each count has one writer, and it is one
# aligned machine word, so a reader sees the old or the new one. Counts that two ranks
# write would have to be added to in one indivisible step, which Python cannot do. Each
# stands on a cache line of its own, so that a write disturbs nobody who reads another.
#
# The order of writes. A rank writes its numbers and then its count. If another one
# could see the new count first, it would go on and read old numbers. On x86 it cannot.
# Elsewhere it may, unless a fence forbids it; `_in_order` makes one out of a lock, as
# Python has none.
#
# Why a lock, and why released first? ARM processors may let a later write be seen first
# [mckenney2010]. Each call of a lock is half a fence: nothing from before a release can
# be seen after it, nothing from after an acquire before it. Taken and then released, a
# lock is no fence: both sides may slip in between and change places there
# [memorybarriers]. Released first and taken again, nothing gets past: ARMv8 keeps a
# release and the acquire after it in order [pulte2018]. That is the processor's
# promise, for locks made of its own release and acquire instructions, as those of
# CPython on Linux are. Neither Python nor POSIX promises it, and we have run it on x86
# only. Whoever writes C takes `atomic_thread_fence`.
#
# Waiting costs. Whoever waits in a loop keeps a core busy, and with more ranks than
# cores that core is missed by those who are waited for. `sched_yield` offers the core
# to them. To sleep at once would be kinder, but on Linux the shortest sleep takes 50
# µs, longer than a whole barrier on cores that have nothing else to do. So we sleep
# only when it lasts:


class SleepingBarrier(SharedBarrier):
    def _let_others_work(self, looks):
        time.sleep(1e-6)


def each(call, rows=10, row=30):
    """Microseconds of one call, in the fastest of several rows of calls."""
    times = []
    for _ in range(rows):
        start = time.perf_counter()
        for _ in range(row):
            call()
        times.append(1e6 * (time.perf_counter() - start) / row)
    return min(times)


everyone()
if rank == 0:
    print("\n## Through memory that all can see\n")

barriers = [
    kind(shared_bytes(4096), rank, world_size).wait for kind in (SharedBarrier, SleepingBarrier)
]
barrier_us = [each(wait) for wait in (*barriers, dist.barrier)]

barrier_us_by_rank = to_rank_0(barrier_us)
if rank == 0:
    yielding, sleeping, gloo = np.max(barrier_us_by_rank, axis=0)
    result("yielding_us", yielding, varies=True)
    result("sleeping_us", sleeping, varies=True)
    result("gloo_barrier_us", gloo, varies=True)

# (yielding_us) µs with yielding, (sleeping_us) µs with sleeping, and (gloo_barrier_us)
# µs for Gloo's, with messages. When the ranks have the machine to themselves, expect
# yielding to take the least. On a busy one it can lose: whoever offers the core may get
# it back late.
#
# Now the all-reduce. Every rank puts its numbers into a row of its own; after a barrier
# each rank adds one part of all the others' rows to its own numbers, and shows the sum
# in a row for sums; after another barrier everybody takes the sums. Who adds what is
# the ring's idea again: nobody adds all of it.
#
# So as not to need room for any size, and to stay in the processors' caches, it works
# on pieces of 2 MB, one after the other, in two halves of the memory by turns. Three
# things are done between one barrier and the next: take the sums of the last piece, add
# this one, put the next.


class SharedMemory:
    """All-reduce for ranks of one host, through memory that all of them see.

    All ranks of the group make it together, once: it may then be used for any tensor. After an
    error in the middle of an all-reduce it is of no more use; make another one.
    """

    def __init__(self, group=None, piece=1 << 21, timeout=20.0):
        self.me, self.n, self.piece = dist.get_rank(group), dist.get_world_size(group), piece
        head = 4096 * (1 + self.n // 64)  # for the barrier's counts
        memory = shared_bytes(head + 2 * (self.n + 1) * piece, group)
        self.barrier = SharedBarrier(memory, self.me, self.n, timeout)
        self.halves = torch.frombuffer(memory, dtype=torch.uint8, offset=head)
        self.halves = self.halves.view(2, self.n + 1, piece)  # a row for each rank, one for sums

    def all_reduce(self, x):
        """Replace x by the sum of all ranks' x. All must have the same shape and type."""
        flat = x.contiguous().view(-1)
        pieces = flat.split(self.piece // x.element_size())
        for k in range(-1, len(pieces) + 1):
            if k > 0:  # take the sums of the piece before
                self._copy(self._rows(k - 1, pieces)[self.n], pieces[k - 1])
            if 0 <= k < len(pieces):
                self._add(pieces[k], self._rows(k, pieces))
            if k + 1 < len(pieces):  # put the next piece
                self._copy(pieces[k + 1], self._rows(k + 1, pieces)[self.me])
            if k < len(pieces):
                self.barrier.wait()
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))

    def _rows(self, k, pieces):
        """The n + 1 rows for piece k, of its length and type."""
        return self.halves[k % 2].view(pieces[k].dtype)[:, : len(pieces[k])]

    def _mine(self, length):
        """The part that this rank adds: where it begins, where it ends."""
        return length * self.me // self.n, length * (self.me + 1) // self.n

    def _add(self, piece, rows):
        """Add the others' rows to my part of the piece, and show the sum to all."""
        first, end = self._mine(len(piece))
        mine = piece[first:end]
        for r in range(self.n):
            if r != self.me:
                mine += rows[r, first:end]
        rows[self.n, first:end].copy_(mine)

    def _copy(self, source, target):
        """Copy all but my part, which need not travel."""
        first, end = self._mine(len(source))
        target[:first].copy_(source[:first])
        target[end:].copy_(source[end:])


everyone()
shared = SharedMemory()
x, t = counted(shared.all_reduce, 1 << 18)

x_by_rank = to_rank_0(x)
if rank == 0:
    assert all((y == total).all() for y in x_by_rank)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(traffic(t_by_rank))

# The sum is right, and not one message was sent. Why are two halves enough? Between two
# barriers a rank takes from the half of piece k − 1 the sums, in the other half it adds
# piece k, and into its own row of the first it puts piece k + 1. Sums of piece k + 1
# are written only after the next barrier, which everybody reaches when it has taken
# those of piece k − 1.

# --- The same bits? -------------------------------------------------------------------

# Floating-point addition rounds, so its result depends on the order. Each way adds in
# another order. Do all ranks at least get the same? Here are all of them on the same
# random numbers, and the ring of chapter 6 beside them, in which whole tensors go
# around and everybody adds what comes, as it comes.
#
# Predict: Which ways give every rank the same, to the last bit? Think of recursive
# doubling: rank 0 adds rank 1's numbers to its own, and rank 1 adds rank 0's.

everyone()
if rank == 0:
    print("\n## The same bits?\n")


@on_flat
def everybody_adds(x, members, me):
    n = len(members)
    passing, incoming = x.clone(), torch.empty_like(x)
    for _ in range(n - 1):
        sendrecv(passing, members[(me + 1) % n], incoming, members[(me - 1) % n])
        x += incoming
        passing, incoming = incoming, passing


ways = {
    "everybody adds": everybody_adds, **first_three,
    "ring": ring_all_reduce, "pieces": pipelined_all_reduce, "shared": shared.all_reduce,
}
sums = {}
for way, all_reduce in ways.items():
    sums[way] = torch.randn(10_000, generator=torch.Generator().manual_seed(rank))
    all_reduce(sums[way])

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

sums_of_all = to_rank_0(sums)
if rank == 0:
    print(f"{'places that differ':>20}: from rank 0   from gather")
    for key in ("everybody adds", "gather", "tree", "doubling", "ring", "pieces", "shared"):
        first, *others = (of_r[key] for of_r in sums_of_all)
        from_rank_0 = sum(int((other != first).sum()) for other in others)
        from_gather = int((first != sums_of_all[0]["gather"]).sum())
        print(f"{key:>20}: {from_rank_0:>11}   {from_gather:>11}")
        assert key == "everybody adds" or from_rank_0 == 0

# In six of the seven all ranks agree. (The first column counts over all other ranks,
# the second is of 10,000 numbers.) Ways that add in the same order, such as tree and
# doubling with four ranks, agree with each other, too. Each number is added up in one
# order, by one rank or (with recursive doubling) by several in mirror images of one
# another, and a + b is b + a to the last bit. Only where everybody adds for itself do
# the ranks end up with different sums.
#
# For a replica this matters. Copies of one model stay equal because each of them adds
# the same gradient to the same weights. Nobody ever compares them. If the sums differ
# in their last bits, so do the weights after the first step, the next gradients differ
# a little more, and after some thousand steps there are four models. An all-reduce must
# give all ranks the same bits, and the good ones do. That it gives the same bits as
# another algorithm nobody promises, nor with another number of ranks: a training on
# eight ranks is not bit for bit the one on four.

# --- What should it take? -------------------------------------------------------------

# Chapter 6 measured one message of S bytes, between two ranks that had the machine to
# themselves: α + S/β. An all-reduce needs two more things. Messages here travel several
# at a time, and share what there is. And adding takes time: a third constant, γ, in
# bytes a second. With n ranks:
#
# | way | time |
# | --- | --- |
# | gather | $2(n-1)\,(\alpha + S/\beta) + (n-1)\, S/\gamma$ |
# | tree | $2\lceil\log_2 n\rceil\,(\alpha + S/\beta) + \lceil\log_2 n\rceil\, S/\gamma$ |
# | doubling | $\log_2 n\,(\alpha + S/\beta + S/\gamma)$ |
# | ring | $2(n-1)\,(\alpha + \frac{S}{n\beta}) + (n-1)\frac{S}{n\gamma}$ |
# | pieces | the ring's, less what overlaps |
# | halving | $2\log_2 n\,\alpha + 2\frac{n-1}{n}\frac{S}{\beta} + \frac{n-1}{n}\frac{S}{\gamma}$ |
#
# Thakur and others [thakur2005] used such a table to choose for MPICH: doubling for
# small tensors, halving (its row holds for n a power of two, and has no code here) for
# large ones. The ring never wins in it against halving. What speaks for the ring is
# left out: neighbors are near, others share links, and any n will do. In the table
# every rank has a processor and a link of its own. Ours share two cores or four, so α,
# β and γ depend on how many are busy at once, and we measure them twice: one rank at a
# time, and all together. For a number of messages in between, as in a tree, we take
# what lies in between.


def medians(calls, repeats, row=1):
    """Median seconds of one of `row` calls, for each of `calls`; they take turns."""
    times = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, seconds in zip(calls, times):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(row):
                call()
            if repeat > 0:  # the first time warms up
                seconds.append((time.perf_counter() - start) / row)
    return [statistics.median(each) for each in times]


def parts_of_the_bill(nbytes):
    """What all-reduces are made of: calls that send, add and copy `nbytes` bytes."""
    x, y = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    left, right = (rank - 1) % world_size, (rank + 1) % world_size

    def there_and_back():
        if rank == 0:
            dist.send(x, 1)
            dist.recv(y, 1)
        elif rank == 1:
            dist.recv(y, 0)
            dist.send(x, 0)

    def add_alone():
        if rank == 0:
            y.add_(x)

    return [
        there_and_back, lambda: sendrecv(x, right, y, left), add_alone, lambda: y.add_(x),
        lambda: shared.all_reduce(y), lambda: y.copy_(x),
    ]


everyone()
if rank == 0:
    print("\n## What should it take?\n")

other_sizes = [2 * 4**k for k in range(1, 13)]  # 8 bytes to 32 MB
bill = [
    medians(parts_of_the_bill(nbytes), *((5, 4) if nbytes < 1 << 20 else (3, 2)))
    for nbytes in other_sizes
]

# From ranklab.taught.messages:


def latency_bandwidth(sizes, seconds):
    """Fit T(n) = alpha + n / beta to measured times; return alpha (s) and beta (bytes/s).

    Least squares of the relative error, so that every size has the same weight.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    equations = np.stack([1 / t, n / t], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(equations, np.ones(len(t)))
    return float(alpha), float(1 / per_byte)


# The model is to be tested on other sizes than those it was made from: these are 8, 32,
# 128 bytes and so on, and the all-reduces will be timed at 4, 16, 64.


def line(sizes, seconds):
    """Two numbers for all sizes: alpha + nbytes / beta."""
    alpha, beta = latency_bandwidth(sizes, seconds)
    return lambda nbytes: alpha + nbytes / beta


def curve(sizes, seconds):
    """What was measured, and between two sizes a straight line on a log-log plot."""
    logs = np.log(sizes), np.log(seconds)
    return lambda nbytes: (
        np.exp(np.interp(np.log(nbytes), *logs)) * np.maximum(1, nbytes / sizes[-1])
    )


def cost_models(n, message, add, shared):
    """Return {way: function from bytes to seconds} for n ranks.

    message(nbytes, m), add(nbytes, m): the seconds of m messages or additions at the same time;
    shared(nbytes): those of an all-reduce through shared memory.
    """
    def around(s):
        return 2 * (n - 1) * message(s / n, n) + (n - 1) * add(s / n, n)

    core = 1 << (n.bit_length() - 1)
    # Round k of the tree: ranks 2^k, 3 * 2^k, 5 * 2^k, ... send; how many of them are there?
    levels = [len(range(1 << k, n, 2 << k)) for k in range((n - 1).bit_length())]
    beyond = [n - core] * (n > core)
    return {
        "gather": lambda s: 2 * (n - 1) * message(s, 1) + (n - 1) * add(s, 1),
        "tree": lambda s: sum(2 * message(s, m) + add(s, m) for m in levels),
        "doubling": lambda s: (
            (core.bit_length() - 1) * (message(s, core) + add(s, core))
            + sum(2 * message(s, m) + add(s, m) for m in beyond)
        ),
        "ring": around,
        "pieces": around,  # what they save by adding and sending at once is not in the model
        "shared": shared,
    }


everyone()
if rank == 0:
    other = np.array([2 * 4**k for k in range(1, 13)])

bill_by_rank = to_rank_0(bill)
if rank == 0:
    there_back, all_at_once, one_adds, all_add, by_memory, all_copy = np.max(bill_by_rank, axis=0).T


def models_from(fit):
    """The models, with every cost fitted by `fit`: a line or a curve."""
    def between(one, many):
        one, many = fit(other, one), fit(other, many)
        return lambda s, m: one(s) + (many(s) - one(s)) * (m - 1) / max(1, n - 1)

    message = between(there_back / 2, all_at_once)
    return cost_models(n, message, between(one_adds, all_add), fit(other, by_memory))


if rank == 0:
    alpha, beta = latency_bandwidth(other, there_back / 2)
    alpha_all, beta_all = latency_bandwidth(other, all_at_once)
    result("alpha_us", 1e6 * alpha, varies=True)
    result("alpha_all_us", 1e6 * alpha_all, varies=True)
    result("beta_gb_s", beta / 1e9, varies=True)
    result("beta_all_gb_s", beta_all / 1e9, varies=True)
    gamma = latency_bandwidth(other, all_add)[1]
    result("gamma_gb_s", gamma / 1e9, varies=True)

# A message alone takes (alpha_us) µs of latency, at (beta_gb_s) GB/s. When all ranks
# send and receive at once, it is (alpha_all_us) µs, and (beta_all_gb_s) GB/s for each:
# they share the cores that carry the bytes. And all at once add (gamma_gb_s) GB/s each.

# --- What does it take? ---------------------------------------------------------------

# Predict: For 4 bytes, 64 KB and 64 MB: which of our six will be the fastest, and which
# the slowest?

everyone()
if rank == 0:
    print("\n## What does it take?\n")

timed = {way: call for way, call in ways.items() if way != "everybody adds"}
timed["Gloo"] = dist.all_reduce
seconds = []
for nbytes in [4**k for k in range(1, 14)]:  # 4 bytes to 64 MB
    x = torch.zeros(nbytes // 4)  # sums of zeros stay zeros
    calls = [functools.partial(all_reduce, x) for all_reduce in timed.values()]
    seconds.append(medians(calls, *((5, 4) if nbytes < 1 << 20 else (3, 1))))

everyone()
if rank == 0:
    sizes = np.array([4**k for k in range(1, 14)])
    names = ["gather", "tree", "doubling", "ring", "pieces", "shared", "Gloo"]

seconds_by_rank = to_rank_0(seconds)
if rank == 0:
    measured = dict(zip(names, np.max(seconds_by_rank, axis=0).T))  # the slowest rank's
    lines, curves = models_from(line), models_from(curve)
    print(f"{'milliseconds':>12}:     4 bytes       64 KB       64 MB")
    for key in names:
        print(f"{key:>12}:", *(f"{1e3 * measured[key][k]:11.3f}" for k in (0, 7, 12)))


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    fig, ax = plt.subplots(num="all-reduces", figsize=(5.2, 4.4))
    for i, key in enumerate(names):
        ax.loglog(sizes, 1e3 * measured[key], f"C{i}" + "osv^D*P"[i], markersize=5, label=key)
        if key in curves:
            ax.loglog(sizes, 1e3 * curves[key](sizes), f"C{i}", linewidth=1)
    ax.set(xlabel="size of the tensor (bytes)", ylabel="time (ms)")
    ax.legend(ncols=2)
    save_figures()

# Points are measured, lines predicted, from sizes that lie between the points. The way
# through shared memory sends no message. For the others the model says: on the left all
# is latency, and what counts is the number of rounds, of which recursive doubling has
# the fewest, gathering and the ring the most; on the right all is bytes, and the order
# turns around. Ranks that wait for a core upset this order, at the left most of all.
# How well do the models do?

if rank == 0:
    large = sizes >= 1 << 16
    print("predicted / measured")
    print(f"{'KB':>10}:", *(f"{size >> 10:5}" for size in sizes[large]))
    for how, models in (("alpha, beta, gamma", lines), ("measured curves", curves)):
        print(f"{how}:")
        for key in models:
            print(f"{key:>10}:", *(f"{q:5.2f}" for q in (models[key](sizes) / measured[key])[large]))
    save_figures()

if rank == 0:
    misses = [np.abs(np.log(models[key](sizes) / measured[key]))[large]
              for models in (lines, curves) for key in names[:5]]
    within = [float(np.mean(np.concatenate(half) < np.log(1.3))) for half in (misses[:5], misses[5:])]
    result("lines_within_30", 100 * within[0], varies=True)
    result("curves_within_30", 100 * within[1], varies=True)

# (Shared memory sends no messages. Its model is no more than its own times at the other
# sizes, and we leave it out of the count.) Of the points by messages from 64 KB on,
# (lines_within_30) % are within 30 % of what the constants predict. With a curve for
# each cost it is (curves_within_30) %. The finer model need not be the better one: it
# follows every measurement, its noise and its cache too, where a line averages. Take
# either for the trend: a single time can be several times off. Three things are in
# neither.
#
# Caches. One β cannot be right for 64 KB and for 64 MB, if the first fits a core's
# cache and the second fits none. The curves know of this, but from one tensor used
# again and again, while the ring walks through all of its parts.
#
# Fresh memory. Doubling, the tree and gathering ask for a box as large as the tensor.
# At 64 MB the allocator gets it from the operating system each time, page by page and
# filled with zeros. No constant stands for that.
#
# Other work. Each rank has a second thread, Gloo's, that moves the bytes. When one of
# them waits for a core, all wait, and the more rounds, the more often.

# --- The bandwidth of the bus ---------------------------------------------------------

# Seconds cannot be compared between machines, sizes, and numbers of ranks. GB/s can, if
# we agree on what to divide. Bytes of the tensor over seconds is the algorithm's
# bandwidth; it must fall with n even on perfect links. So the tests of NCCL multiply it
# by what the best algorithm sends, $2\frac{n-1}{n}$, and call it bus bandwidth
# [nccltests]: on perfect hardware it equals the speed of a link, whatever n is (with
# switches that add, it can exceed it).

if rank == 0:
    print("\n## The bandwidth of the bus\n")
    bus = {key: 2 * (n - 1) / n * sizes / measured[key] / 1e9 for key in names}
    for key in names:
        print(f"{key:>10}:", *(f"{bus[key][k]:6.2f}" for k in (7, 9, 11, 12)), "GB/s")
    print(f"{'for':>10} ", *(f"{sizes[k] >> 10:>6}" for k in (7, 9, 11, 12)), "KB")
    result("ring_of_link", bus["ring"][-1] / (beta_all / 1e9), varies=True)
    adding = (n - 1) / n * sizes[-1] / gamma
    result("adding_of_ring", 100 * adding / measured["ring"][-1], varies=True)
    save_figures()

# The ring gets (ring_of_link) times the bandwidth that each rank has when all send.
# Adding is (adding_of_ring) % of its time. What is missing beyond that is waiting: in
# every round each rank waits for its left neighbor, and so the slowest one decides.

# --- Why libraries switch -------------------------------------------------------------

# No way wins everywhere. So every library keeps several and chooses by size, number of
# ranks and wiring: Open MPI and MPICH by tables, NCCL by a model like ours
# [nccltuning]. Where should ours switch? From the first size on at which the ring wins,
# and goes on winning: by the model, and as measured.


def ring_wins_from(sizes, doubling, ring):
    """The first size from which on the ring is faster, in words."""
    doubling_wins = np.flatnonzero(doubling <= ring)
    first = doubling_wins[-1] + 1 if len(doubling_wins) else 0
    return f"from {sizes[first] / 1024:,.0f} KB on" if first < len(sizes) else "at no size"


if rank == 0:
    print("\n## Why libraries switch\n")
    grid = np.geomspace(4, 1 << 26, 400)
    by_model = ring_wins_from(grid, lines["doubling"](grid), lines["ring"](grid))
    as_measured = ring_wins_from(sizes, measured["doubling"], measured["ring"])
    result("ring_wins_by_model", by_model, varies=True)
    result("ring_wins_as_measured", as_measured, varies=True)

# Up to 64 MB the ring wins, by the model, (ring_wins_by_model); as measured,
# (ring_wins_as_measured). Where the two disagree, believe the clock. The class below
# takes 1 MB unless told otherwise: give it the `crossover` that you measure. Whoever
# asks that all ranks are on one host may take the way without messages:


class FastAllReduce:
    """The best way for each size: through shared memory on one host, else by messages."""

    def __init__(self, group=None, crossover=1 << 20):
        self.group, self.crossover = group, crossover
        try:
            self.shared = SharedMemory(group)
        except ValueError:  # several hosts
            self.shared = None

    def __call__(self, x):
        """Replace x by the sum of all ranks' x."""
        if self.shared:
            self.shared.all_reduce(x)
        elif x.nbytes < self.crossover:
            doubling_all_reduce(x, self.group)
        else:
            ring_all_reduce(x, self.group)


if rank == 0:
    over_gloo = measured["shared"] / measured["Gloo"]
    for nbytes, ratio in zip(sizes, over_gloo):
        print(f"{nbytes:>10,} bytes: {ratio:5.2f} of Gloo's time")
    result("shared_over_gloo", over_gloo[-1], varies=True)
    result("ring_over_gloo", measured["ring"][-1] / measured["Gloo"][-1], varies=True)


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


# For 64 MB our ring, in Python, takes (ring_over_gloo) times as long as Gloo's, in C++:
# both send the same bytes. Through shared memory it is (shared_over_gloo) times. Gloo
# does not do this, as it is made for several hosts. NCCL does: within a host its ranks
# reach into each other's memory, and between hosts they send.

# --- The floor ------------------------------------------------------------------------

# How much faster could it be? Count what the way through shared memory must read and
# write, for each rank, in tensors: to put and to take all but its own part, $2 \cdot
# 2\frac{n-1}{n}$; to add, it reads n parts and writes one twice, $1 + \frac{2}{n}$. A
# plain copy reads one and writes one. So the floor is
#
# $$\frac{1}{2}\left(4\,\frac{n-1}{n} + 1 + \frac{2}{n}\right)$$
#
# times what it takes to copy the tensor once, with all ranks copying at the same time,
# as they do here.

if rank == 0:
    print("\n## The floor\n")
    traffic_in_copies = (4 * (n - 1) / n + 1 + 2 / n) / 2
    floor = traffic_in_copies * all_copy[-1]  # at 32 MB
    over_floor = by_memory[-1] / floor
    result("traffic_in_copies", traffic_in_copies)
    result("over_floor", over_floor, varies=True)

# (traffic_in_copies) copies for (n_ranks) ranks, and the measurement is (over_floor)
# times that. The floor leaves out Python, the barriers, and that what one core has just
# written must come to another one out of its cache. To get far below, one would have to
# let go of the copying: keep the tensors themselves in memory that all can see, from
# the start. Then each rank adds its part and writes it back, and nobody puts or takes.
# Libraries offer that under the name of registered buffers.

# --- What you can do now --------------------------------------------------------------

# - Write an all-reduce of any tensor among any ranks by gathering, with a tree, by
#   recursive doubling and with a ring, and say for each how many rounds it takes and
#   what each rank sends.
# - Say why nobody needs to send more than two tensors, and why the busiest rank sends
#   nearly as many.
# - Find out what is wrong with a collective that neither hangs nor fails.
# - Share memory between the ranks of one host: order the writes, wait at a barrier,
#   leave nothing behind.
# - Estimate times from α, β and γ, say where that fails, and choose the way by the
#   size.
# - Read bus bandwidth, and compare a time with the floor under it.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/08_all_reduce.py
#
# On one host this is what you have seen. `ranklab.taught.all_reduce` has all of it to
# import.

# --- Where to read on -----------------------------------------------------------------

# - [patarasuk2009]: the ring, and the proof that somebody must send as much.
# - [thakur2005]: how MPICH chooses, with the same models; recursive halving, also where
#   n is no power of two.
# - [nccltests]: bus bandwidth, and what its factor is for every collective.
# - [mckenney2010]: why writes are seen in another order, and what fences do about it.
#   [memorybarriers]: what locks do about it, and what they do not.
# - [gloo]: its ring, in C++, with two pieces under way at a time.
# - [li2020]: what data parallelism does with all this.

leave_group()
