# Chapter 6 of Many Ranks, One Model, as one script. Generated from book/06_messages.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 06_messages.py
#     torchrun --standalone --nproc-per-node 4 06_messages.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 06_messages.py
#     mpiexec -n 4 python 06_messages.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import os
import pickle
import re
import socket
import sys
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
    from ranklab import messages, timeline, trace, traffic
except ImportError:
    messages = left_out("messages")
    timeline = left_out("timeline")
    trace = untraced
    traffic = left_out("traffic")


# === Send and receive: who waits for whom =============================================

# Two processes share no memory. How does a number get from one to the other, who waits
# for whom, and what does it cost?
#
# 35 minutes to read, 16 predictions · 40 seconds to run · stands on chapter 5
#
# At the end you can
# - move a tensor between any two ranks, and say who waits for whom before you run it;
# - find the circle behind a deadlock, and break it;
# - hide a wait behind other work;
# - predict how long a message takes, on your machine and on a cluster.
#
# Whatever many ranks do together, in all the chapters that follow, can be written with
# what stands here.

# --- One message ----------------------------------------------------------------------

# A message has a sender that calls `dist.send(tensor, dst)` and a receiver that calls
# `dist.recv(tensor, src)`. Both must act, and each names the other. This is
# point-to-point communication. That whole programs can be made of such pairs is an old
# idea [hoare1978].

# Predict: Four ranks run the next cell, and rank 1 comes 0.3 seconds late. What is in
# `box` afterwards, on each of them? And does rank 0 wait for rank 1?

if rank == 0:
    print("\n## One message\n")


box = torch.zeros(2)
dist.barrier()  # all start together
with trace() as t:
    if rank == 0:
        dist.send(torch.tensor([1.0, -1.0]), dst=1)
    elif rank == 1:
        time.sleep(0.3)
        dist.recv(box, src=0)


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


box_by_rank = to_rank_0(box)
if rank == 0:
    boxes = [b.tolist() for b in box_by_rank]
    result("boxes", boxes)

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


t_by_rank = to_rank_0(t)
if rank == 0:
    show(messages(t_by_rank[:2], name="late"))

if rank == 0:
    assert boxes[1] == [1.0, -1.0]
    assert all(boxes[r] == [0.0, 0.0] for r in range(world_size) if r != 1)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# Only rank 1 has the numbers. Rank 0 sent a tensor that it never put in its own `box`,
# and the other ranks took neither branch, so for them the block was empty.
#
# And rank 0 waits. The picture is a space-time diagram [lamport1978]: time runs to the
# right, every rank has its line, and an arrow leads from the moment a message leaves to
# the moment it has arrived. The broad pale part of a line is waiting. Rank 0 has called
# `send` at once, and the message leaves when rank 1 is ready for it.
#
# Two details matter. `recv` does not return the tensor: it fills one that is already
# there. The receiver brings the box. And the second branch says `elif rank == 1`, not
# `else`. With `else` the program is right for two ranks, and with four it is not: ranks
# 2 and 3 would wait for a message from rank 0 that nobody sends. The tutorial that many
# start from has this `else`, and starts two ranks [disttuto].
#
# The ranks use Gloo here, on a machine with GPUs, too; where NCCL behaves differently,
# the text says so. A rank that has waited for another one for 5 seconds gives up: some
# cells below are meant to get stuck.

# --- The box has no label -------------------------------------------------------------

# The receiver decides how large the box is and what it holds. What if it decides
# wrongly?
#
# Predict: Rank 0 sends two floats, 1.0 and −1.0. Rank 1 brings a box for two 32-bit
# integers. Do you expect an error, the integers 1 and −1, or something else? Then rank
# 0 sends a 2×3 tensor, and the box is 2×4.

everyone()
if rank == 0:
    print("\n## The box has no label\n")

integers = torch.zeros(2, dtype=torch.int32)
wide = torch.zeros(2, 4)
if rank == 0:
    dist.send(torch.tensor([1.0, -1.0]), dst=1)
    dist.send(torch.arange(6.0).reshape(2, 3), dst=1)
elif rank == 1:
    dist.recv(integers, src=0)
    dist.recv(wide, src=0)

integers_by_rank = to_rank_0(integers)
if rank == 0:
    got_integers = integers_by_rank[1].tolist()

wide_by_rank = to_rank_0(wide)
if rank == 0:
    got_wide = wide_by_rank[1].tolist()
    result("one_as_integer", got_integers[0])
    result("six_in_eight", got_wide)

if rank == 0:
    assert got_integers[0] == np.float32(1.0).view(np.int32)
    assert got_wide == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 0.0, 0.0]]

# No error, and both results are wrong. A message is a row of bytes. The type and the
# shape do not travel with it: the bits of the float 1.0, read as an integer, are
# (one_as_integer); and the six numbers lie in the first six places of the box, whatever
# its shape.
#
# So sender and receiver must agree on shape and type before the message, in the
# program's text. If the receiver cannot know, send the shape first, in a small message
# whose own shape is fixed. The one thing that Gloo does check is that the message fits.
# If it does not, Gloo ends the receiving process, which is why no cell here tries it.

# --- Who waits for whom ---------------------------------------------------------------

# The receiver cannot go on before the message is there. And the sender waited for the
# receiver. Is that so for every size, and in both directions?
#
# Predict: One of the two ranks comes 0.3 seconds late, first the receiver, then the
# sender. How long do `send` and `recv` take, for 4 bytes and for 64 MiB?


def wait_for(latecomer, nbytes):
    """Seconds of send on rank 0, of recv on rank 1; one comes 0.3 s late."""
    message = torch.zeros(nbytes // 4)
    dist.barrier()
    if rank == latecomer:
        time.sleep(0.3)
    start = time.perf_counter()
    if rank == 0:
        dist.send(message, dst=1)
    elif rank == 1:
        dist.recv(message, src=0)
    return time.perf_counter() - start


everyone()
if rank == 0:
    print("\n## Who waits for whom\n")

cases = [(late, nbytes) for late in (1, 0) for nbytes in (4, 64 << 20)]
waits = {case: wait_for(*case) for case in cases}

waits_by_rank = to_rank_0(waits)
if rank == 0:
    send_times, recv_times = waits_by_rank[:2]
    for (late, nbytes), sent in send_times.items():
        who, got = ("sender", "receiver")[late], recv_times[late, nbytes]
        print(f"{who:>8} late, {nbytes:>10,} bytes:", end=" ")
        print(f"send {sent:.2f} s, recv {got:.2f} s")
    result("send_waited", send_times[1, 4], varies=True)

if rank == 0:
    for (late, nbytes), sent in send_times.items():
        assert (sent if late == 1 else recv_times[late, nbytes]) > 0.1


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


# Both calls are blocking: in all four cases, the one that comes first waits for the
# other. `send` took (send_waited) seconds to get rid of 4 bytes. Gloo's sender only
# announces the message; the data leaves when the receiver has said that its box is
# ready [gloo]. This is a rendezvous protocol: here the two ends of one message meet, as
# in chapter 5 all ranks met at the start. It needs no memory besides the sender's and
# the receiver's own.
#
# There is another way. The eager protocol copies the message into a buffer of the
# library and lets the sender go. MPI leaves the choice to the implementation, message
# by message, and calls a program that relies on the buffer unsafe [mpi]. In practice
# small messages are sent eagerly and large ones are not, so an unsafe program passes
# its tests and hangs when the tensors grow. With NCCL, `send` returns as soon as the
# operation stands in the GPU's queue; it is the queue that then waits [nccl].
#
# One rule holds for all of these libraries: write every program as if `send` waited for
# its receiver. Some of them ask for more. NCCL wants sends and receives that need each
# other started as one group, and every backend has its own rules for calls that return
# at once; both come below.

# --- Two ranks that wait for each other -----------------------------------------------

# Predict: Ranks 0 and 1 want to swap their tensors. Each first receives, then sends.
# What happens?

everyone()
if rank == 0:
    print("\n## Two ranks that wait for each other\n")

with may_fail():
    if rank < 2:
        peer = 1 - rank
        dist.recv(box, src=peer)
        dist.send(torch.ones(2), dst=peer)


def fresh_group():
    """Replace the process groups, whatever state they are in; variables live on."""
    everyone()
    dist.destroy_process_group()
    form_groups()


# Nothing, for 5 seconds; then both gave up. Each of the two would have sent as soon as
# it had received. Run the cell yourself, and you need not wait so long: after a second
# the lab says below the cell, while it still runs, where each rank is and what it waits
# for. The error says it again.
#
# This is a deadlock: a circle of processes, each of which waits for the next.
#
# The classic account [coffman1971] is about programs that lock resources. It names four
# conditions, all of them necessary: a resource serves one at a time; whoever waits
# keeps what it has; nothing can be taken away from it; and the waiting closes a circle.
# Ranks in blocking calls meet the first three by what a call is: one message answers
# one call, and a rank that waits in it does nothing else and cannot be called off. The
# circle is in the program's text, and that one is ours to break.
#
# In the error above, PyTorch's own words are one line. On a cluster that line is all
# you get, so read it with care. A rank whose time is up says `Timed out waiting`. It
# then closes its connections, so another rank may say `Connection closed by peer` or
# `Connection reset by peer` instead: that is an echo, not the cause, and which rank
# says what changes from run to run. Look for the timeout, and for the earliest error.
# And be glad of it: without a timeout of your own you would have waited for PyTorch's,
# which is 30 minutes for Gloo and 10 for NCCL [pytorchdistributed].
#
# After a timeout the process group is of no more use. Whoever gave up has closed its
# connections, so whatever needs that rank fails, and so does every call that all ranks
# make. The processes live: `reset` gives them a new group, and their variables stay.

fresh_group()

# In a notebook you need not wait for the timeout. With `--noblock` it is free while the
# ranks run the cell, and `ranks.where()` asks them where they are, stuck or not. Here
# is the same deadlock again. Run the two cells one right after the other: the ranks
# give up after 5 seconds, and then `where()` can only tell how the cell ended.

# First the circle, by name; then for each rank the call it is in, the line of the cell,
# and for how long. Nobody has to stay in it: `reset` frees ranks that are stuck, by
# cutting their connections. And the same two lines in another order are a program:

box = torch.zeros(2)
if rank == 0:
    dist.send(torch.ones(2), dst=1)
    dist.recv(box, src=1)
elif rank == 1:
    dist.recv(box, src=0)
    dist.send(torch.ones(2), dst=0)

box_by_rank = to_rank_0(box)
if rank == 0:
    assert all(b.tolist() == [1.0, 1.0] for b in box_by_rank[:2])

# Try it: run the deadlock once more, without `--noblock`, and press the notebook's stop
# button before the 5 seconds are over. The cell ends, the error says where every rank
# was and what to call next, and the variables are still there.

# --- Wait later -----------------------------------------------------------------------

# `dist.isend` and `dist.irecv` (i for immediate) do not wait. They start the transfer
# and return a handle, whose `wait()` returns when the transfer is complete. In between,
# the rank can do something else.
#
# Predict: The message comes 0.3 seconds late, and rank 1 has 0.3 seconds of other work
# to do. How long does it need with `recv`, then work? And with `irecv`, work, `wait`?


def work(seconds=0.3):
    """Multiply matrices for that long."""
    a, end = torch.ones(64, 64), time.perf_counter() + seconds
    while time.perf_counter() < end:
        a = a @ a / 64


def receive_and_work(overlapped):
    """Seconds until rank 1 has a message that comes late, and has worked."""
    dist.barrier()
    start = time.perf_counter()
    if rank == 0:
        time.sleep(0.3)
        dist.send(torch.ones(2), dst=1)
    elif rank == 1 and overlapped:
        handle = dist.irecv(box, src=0)    # returns at once
        work()
        handle.wait()    # from here on, the box is filled
    elif rank == 1:
        dist.recv(box, src=0)
        work()
    return time.perf_counter() - start


everyone()
if rank == 0:
    print("\n## Wait later\n")

in_turn = receive_and_work(False)
overlapped = min(receive_and_work(True) for _ in range(2))

in_turn_by_rank = to_rank_0(in_turn)
overlapped_by_rank = to_rank_0(overlapped)
if rank == 0:
    first_wait, wait_later = in_turn_by_rank[1], overlapped_by_rank[1]
    assert wait_later + 0.1 < first_wait
    result("first_wait", first_wait, varies=True)
    result("wait_later", wait_later, varies=True)

# The sum of both against the longer of the two: (first_wait) seconds against
# (wait_later). Gloo has a thread of its own that receives while the rank computes
# [gloo]. This is overlap. Hiding communication behind computation is what makes data
# parallelism fast [li2020]; chapter 12 does it.
#
# The price is a new rule. Between the call and the `wait()`, the tensor belongs to the
# transfer.
#
# Predict: Rank 0 starts to send a 1, then overwrites it with 99 before it waits. What
# does rank 1 receive?

everyone()
message = torch.ones(1)
if rank == 0:
    handle = dist.isend(message, dst=1)
    message.fill_(99)  # too early: the transfer is not complete
dist.barrier()
if rank == 1:
    dist.recv(message, src=0)
elif rank == 0:
    handle.wait()

message_by_rank = to_rank_0(message)
if rank == 0:
    received_too_late = message_by_rank[1].item()
    assert received_too_late == 99.0
    result("received_too_late", received_too_late)

# `isend` copied nothing. The data left when the receiver was ready, and by then it was
# (received_too_late). PyTorch's documentation calls the outcome undefined
# [pytorchdistributed]: with an eager backend the same program would have delivered the
# 1. The same holds for the box of `irecv`: do not read it before `wait()`.
#
# The second half of the rule: keep the handle, and call its `wait()`. With Gloo, a
# transfer lives as long as its handle does.
#
# Predict: Rank 0 calls `isend`, gives the handle no name, and goes on. A moment later
# rank 1 calls `recv`. Does the message come?

everyone()
with may_fail():
    if rank == 0:
        dist.isend(torch.ones(1), dst=1)  # nobody keeps the handle
    dist.barrier()
    if rank == 1:
        dist.recv(message, src=0)

# It never left: rank 1 waited in vain, while rank 0 had finished, without an error.
# Nobody held the handle, so Python threw it away, and with it the transfer, which still
# waited for its receiver.
#
# At times such a program works: with Gloo if the receiver was ready first, and with
# NCCL [isendgone], where the operation stands in the GPU's queue. So a program that was
# written on GPUs can fail on CPUs. Keep one handle in a variable, as the cell with the
# 99 did. For several, take a list, and wait for all at the end.

fresh_group()

# --- Order, tags, anyone, oneself -----------------------------------------------------

# Predict: Rank 0 sends 0, 1, 2, 3, 4, 5, one message each. Can rank 1 receive them in
# another order?

if rank == 0:
    print("\n## Order, tags, anyone, oneself\n")

plain, tagged = torch.zeros(6), torch.zeros(6)
numbers = torch.arange(6.0)
if rank == 0:
    for i in range(6):
        dist.send(numbers[i : i + 1], dst=1)
    handles = [
        dist.isend(numbers[i : i + 1], dst=1, tag=i % 2) for i in range(6)
    ]
    for handle in handles:
        handle.wait()
elif rank == 1:
    for i in range(6):
        dist.recv(plain[i : i + 1], src=0)
    for i, tag in enumerate((1, 1, 1, 0, 0, 0)):    # the odd ones first
        dist.recv(tagged[i : i + 1], src=0, tag=tag)

plain_by_rank = to_rank_0(plain)
if rank == 0:
    assert plain_by_rank[1].tolist() == [0, 1, 2, 3, 4, 5]

tagged_by_rank = to_rank_0(tagged)
if rank == 0:
    taken = tagged_by_rank[1].tolist()
    assert taken == [1, 3, 5, 0, 2, 4]
    result("odd_first", taken)

# Between two ranks, messages arrive in the order in which they were sent. No number is
# needed to tell the third from the fourth. A tag makes an exception: it divides the
# messages between two ranks into separate streams, each in order, and the receiver
# chooses the stream. NCCL has no tags [pytorchdistributed].
#
# Note that the tagged messages went out with `isend`. With `send`, rank 0 would wait
# for somebody to take the 0, while rank 1 waits for the 1: a deadlock again.
#
# Order is promised for each pair. Between different senders there is none, and if the
# receiver names no sender, it gets whatever comes first. `recv` returns who it was.
# With NCCL every `recv` names its sender.

everyone()
arrivals = []
if rank == 0:
    letter = torch.zeros(1)
    for _ in range(world_size - 1):
        sender = dist.recv(letter)    # from anyone
        arrivals.append((sender, letter.item()))
else:
    time.sleep(0.02 * (world_size - rank))    # the last rank sends first
    dist.send(torch.tensor([10.0 * rank]), dst=0)

arrivals_by_rank = to_rank_0(arrivals)
if rank == 0:
    arrived = arrivals_by_rank[0]
    assert sorted(arrived) == [(r, 10.0 * r) for r in range(1, world_size)]
    result("arrived", arrived, varies=True)

# The assertion sorts first, and it has to. A program that receives from anyone gives
# results that depend on the timing, unless the order makes no difference to what it
# does with them.
#
# That leaves one partner.
#
# Predict: Every rank sends a message to itself. Does it arrive, hang, or fail? And if
# every rank receives from itself?

everyone()
answers = []
for call in (dist.send, dist.recv):
    try:
        call(box, rank)
    except (ValueError, RuntimeError) as error:
        answers.append(f"{call.__name__}: {type(error).__name__}")

answers_of_all = to_rank_0(answers)
if rank == 0:
    print(*answers_of_all[0], sep="\n")
    assert all(len(some) == 2 for some in answers_of_all)  # nobody succeeded

# Neither works. PyTorch itself refuses the first: a `send` to oneself that waits for
# its receiver could never return. Gloo refuses the second, for it has no connection
# from a rank to itself. MPI has one, and allows it if one of the two calls does not
# block [mpi]. So in a loop in which every rank sends to every rank, a rank must copy
# its own part: `box.copy_(message)`.

# --- What a message costs -------------------------------------------------------------

# How long does a message take? Its departure and its arrival are on two ranks, which in
# general have two clocks. So send a ball there and back, look at one clock, and take
# half: a ping-pong. But half of what? Here rank 1 has something else to do before it
# sends the ball back:

everyone()
if rank == 0:
    print("\n## What a message costs\n")

ball = torch.zeros(1 << 22)  # 16 MiB
square = torch.ones(800, 800)  # something to multiply
dist.barrier()
with trace() as t:
    for _ in range(2):
        if rank == 0:
            dist.send(ball, dst=1)
            dist.recv(ball, src=1)
        elif rank == 1:
            dist.recv(ball, src=0)
            square @ square
            dist.send(ball, dst=0)

t_by_rank = to_rank_0(t)
if rank == 0:
    show(timeline(t_by_rank[:2], name="ball"))

# While rank 1 multiplies, rank 0 waits. A rank computes in the upper half of its row,
# in full color, and communicates in the lower half. An empty box is waiting: the
# partner has not yet made the call that answers. What is hatched in both rows at once
# is the transfer.
#
# The clock of rank 0 cannot tell waiting from transfer. So to measure a message, leave
# nothing to wait for: the partner returns the ball as soon as it has it.


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


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    return pickle.loads(box[0])


# Predict: From 4 bytes to 16 MiB, each size four times the one before. Which sizes will
# take about the same time? From where on does four times the size take four times as
# long?

if rank == 0:
    sizes = [4**k for k in range(1, 13)]
    not_fitted = 2_000_000

asked = from_rank_0(lambda: [*sizes, not_fitted])

everyone()
rounds = [[ping(nbytes) for nbytes in asked] for _ in range(3)]

rounds_by_rank = to_rank_0(rounds)
if rank == 0:
    *times, measured = np.min(rounds_by_rank[0], axis=0)  # the best of three
    for n, seconds in zip(sizes, times):
        print(f"{n:>10,} bytes {1e6 * seconds:8.0f} µs", end=" ")
        print(f"{n / seconds / 1e6:9.1f} MB/s")

if rank == 0:
    few = times[sizes.index(4096)] / times[0]
    many = times[-1] / times[sizes.index(65_536)]
    assert few < 10 and many > 8
    result("small_ones", few, varies=True)
    result("large_ones", many, varies=True)

# Small messages take nearly the same time, whatever their size: 4,096 bytes are a
# thousand times as many as 4, and take (small_ones) times as long. The time of large
# messages grows with the size: 16 MiB are 256 times as much as 64 KiB, and take
# (large_ones) times as long. The simplest model with both properties is Hockney's, the
# latency-bandwidth model [hockney1994]:
#
# $$T(n) = \alpha + \frac{n}{\beta}$$
#
# α is the latency: the time of a message with nothing in it. β is the bandwidth, in
# bytes a second. Both come out of the measurements by least squares, with one
# precaution: an error of 10 % should count as much at 4 bytes as at 16 MiB. So every
# equation $\alpha + n/\beta = T$ is divided by its measured $T$ before it is fitted.


def latency_bandwidth(sizes, seconds):
    """Fit T(n) = alpha + n / beta to measured times.

    Return alpha (s) and beta (bytes/s). Least squares of the relative error,
    so that every size has the same weight.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    equations = np.stack([1 / t, n / t], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(equations, np.ones(len(t)))
    return float(alpha), float(1 / per_byte)


if rank == 0:
    alpha, beta = latency_bandwidth(sizes, times)
    predicted = alpha + not_fitted / beta
    result("alpha_us", 1e6 * alpha, varies=True)
    result("beta_gb_s", beta / 1e9, varies=True)
    result("half_kb", alpha * beta / 1e3, varies=True)
    result("measured_over_predicted", measured / predicted, varies=True)

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
    fig, ax = plt.subplots(num="latency-bandwidth")
    n = np.geomspace(4, sizes[-1], 200)
    ax.loglog(n, 1e6 * (alpha + n / beta), "C7", label="α + n/β")
    ax.loglog(sizes, 1e6 * np.array(times), "C0o", label="measured")
    star = {"markersize": 13, "label": "not in the fit"}
    ax.loglog(not_fitted, 1e6 * measured, "C1*", **star)
    ax.axvline(alpha * beta, color="C7", linestyle=":")
    half = r"$n_{1/2} = \alpha\beta$ "
    ax.text(alpha * beta, 1e6 * alpha / 2, half, ha="right")
    ax.set(xlabel="size of the message (bytes)", ylabel="time (µs)")
    ax.set(ylim=(1e6 * alpha / 3, None))
    ax.legend()
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
    assert 1 / 4 < measured / predicted < 4 or not cores_are_free()

# On the machine that made this page, α = (alpha_us) µs and β = (beta_gb_s) GB/s. At
# $n_{1/2} = \alpha\beta$, here (half_kb) kB, half of the time is latency and the other
# half is transfer. Below it you pay for the message, above it for the bytes. By the
# model, four times the size takes nearly four times as long only far above it; the
# points of a real machine scatter around that.
#
# A model is worth what it predicts. The star is a size that was not fitted, 2,000,000
# bytes: it took (measured_over_predicted) times what the model says. Two numbers for
# all sizes give the order of magnitude, and no more: that is enough to choose between
# one large message and many small ones.

# --- The same two numbers on a cluster ------------------------------------------------

# | link | α | β |
# | --- | --- | --- |
# | NVLink 4, between GPUs of a host | 3.4 µs [nccltuning] | 450 GB/s each way [hopper] |
# | InfiniBand NDR, between hosts | 14 µs [nccltuning] | 50 GB/s [connectx7] |
# | 10 Gbit/s Ethernet, between hosts | 14 µs [nccltuning], and more through TCP | 1.25 GB/s |
#
# The α are what NCCL reckons with for one message from neighbor to neighbor, in its
# protocol for large messages. It starts from the same number for every network, and
# adds what the network itself reports.
#
# Predict: To make good use of a faster link, does a message have to be smaller or
# larger?
#
# Worked problem: How large must a message be so that latency takes at most a tenth of
# its time?
#
# α ≤ T/10 means n/β ≥ 9 α, so n ≥ 9 αβ, nine times $n_{1/2}$. Over NVLink that is
# (enough_nvlink) MB, over InfiniBand (enough_infiniband) MB, over Ethernet
# (enough_ethernet) MB, here (enough_here) MB. Among the three links of the table, the
# faster one needs the larger message: α differs far less than β.
#
# DDP, PyTorch's data parallelism, sends gradients in buckets of 25 MiB [ddpdocs]. Is
# one large enough? For all three links, if it travels as one message. Where ranks add
# it up around a ring, it travels in pieces, one for each rank. With eight ranks a piece
# has (piece_mb) MB, less than NVLink or InfiniBand needs. Chapter 8 reckons with that.
#
# How long does such a bucket take? (bucket_nvlink) ms over NVLink, (bucket_infiniband)
# ms over InfiniBand, (bucket_ethernet) ms over Ethernet.

if rank == 0:
    print("\n## The same two numbers on a cluster\n")
    links = {
        "nvlink": (3.4e-6, 450e9),
        "infiniband": (14e-6, 50e9),
        "ethernet": (14e-6, 1.25e9),
    }
    bucket = 25 * 2**20
    piece = bucket / 8
    for name, (a, b) in links.items():
        enough = 9 * a * b
        assert enough < bucket and np.isclose(a / (a + enough / b), 0.1)
        result(f"enough_{name}", enough / 1e6)
        result(f"bucket_{name}", 1e3 * (a + bucket / b))
        assert piece < enough or name == "ethernet"
    result("piece_mb", piece / 1e6)
    result("enough_here", 9 * alpha * beta / 1e6, varies=True)

# --- A hundred small ones -------------------------------------------------------------

# Predict: A hundred messages of 40 bytes and one of 4,000 bytes carry the same. How
# many times longer do the hundred take?


def answered(count, nbytes, ready):
    """Seconds from the first of `count` messages to the answer.

    ready: all receives have begun before rank 0 sends; or else one by one.
    """
    letters = torch.zeros(count, nbytes, dtype=torch.uint8)
    handles = []
    if rank == 1 and ready:
        handles = [dist.irecv(letter, src=0) for letter in letters]
    dist.barrier()
    start = time.perf_counter()
    if rank == 0:
        for letter in letters:
            dist.send(letter, dst=1)
        dist.recv(letters[0], src=1)    # the answer: all of them are there
    elif rank == 1:
        for i, letter in enumerate(letters):
            handles[i].wait() if ready else dist.recv(letter, src=0)
        dist.send(letters[0], dst=0)
    return time.perf_counter() - start


everyone()
if rank == 0:
    print("\n## A hundred small ones\n")

one_time = min(ping(4000) for _ in range(5))
many_times = [answered(100, 40, ready=False) for _ in range(5)]
posted_times = [answered(100, 40, ready=True) for _ in range(5)]

one_time_by_rank = to_rank_0(one_time)
if rank == 0:
    in_one = one_time_by_rank[0]
    small, large = alpha + 40 / beta, alpha + 4000 / beta
    result("many_predicted", 101 * small / large, varies=True)  # and the answer

many_times_by_rank = to_rank_0(many_times)
if rank == 0:
    result("many_over_one", min(many_times_by_rank[0]) / in_one, varies=True)

posted_times_by_rank = to_rank_0(posted_times)
if rank == 0:
    result("posted_over_one", min(posted_times_by_rank[0]) / in_one, varies=True)

many_times_by_rank = to_rank_0(many_times)
posted_times_by_rank = to_rank_0(posted_times)
if rank == 0:
    many, posted = min(many_times_by_rank[0]), min(posted_times_by_rank[0])
    assert many > 10 * in_one
    assert posted < many or not cores_are_free()

# By the model, (many_predicted) times: a hundred messages and one answer from rank 1 at
# the end, each alone. Received one by one, they took (many_over_one) times as long;
# with all hundred receives started beforehand, (posted_over_one) times.
#
# What matters is whether the boxes are ready. Where they are not, a message has to wait
# until the receiver is back in `recv` and has said so. In the ping-pong the partner is
# back in `recv` before the ball comes, as a rule, so the model knows nothing of that
# wait. Where all boxes are ready, a message can leave while the one before still
# arrives.
#
# So α is the price of one message alone, between two ranks that do nothing else.
#
# In either case, few large messages beat many small ones. That is why data parallelism
# sends its gradients in buckets, not layer by layer.

# --- A token goes around the ring -----------------------------------------------------

# From here on, all ranks take part. Arrange them in a ring: everyone receives from the
# left and sends to the right, and the last one's right neighbor is rank 0. A token
# starts at rank 0, every rank adds its own number, and the sum comes back to rank 0.
#
# Predict: How many of the ranks are busy at the same time? And with the α from above:
# how long does the token travel?

everyone()
if rank == 0:
    print("\n## A token goes around the ring\n")

left, right = (rank - 1) % world_size, (rank + 1) % world_size


def pass_token(n=1):
    """Pass n numbers once around the ring; every rank adds its own."""
    token = torch.zeros(n)
    if rank == 0:
        dist.send(token, right)
        dist.recv(token, left)
    else:
        dist.recv(token, left)
        token += rank
        dist.send(token, right)
    return token[0].item()


def lap_time():
    """Seconds of one lap. Only rank 0's is a whole one."""
    start = time.perf_counter()
    pass_token()
    return time.perf_counter() - start


everyone()
token_value = pass_token()
both = [(ping(4), lap_time()) for _ in range(100)]  # they take turns
fastest_hop, fastest_lap = map(min, zip(*both))
ts = []
for _ in range(5):
    dist.barrier()
    with trace() as t:
        pass_token(1 << 20)    # 4 MiB, so that there is something to see
    ts.append(t)

token_value_by_rank = to_rank_0(token_value)
if rank == 0:
    arrived_token = token_value_by_rank[0]
    assert arrived_token == sum(range(world_size))
    result("token", arrived_token)

fastest_lap_by_rank = to_rank_0(fastest_lap)
fastest_hop_by_rank = to_rank_0(fastest_hop)
if rank == 0:
    hops = fastest_lap_by_rank[0] / fastest_hop_by_rank[0]
    result("lap_in_hops", hops, varies=True)


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


ts_by_rank = to_rank_0(ts)
if rank == 0:
    laps = quietest(ts_by_rank)
    show(messages(laps, name="token"))

if rank == 0:
    assert hops > 0.5 * world_size

# The token makes a staircase: one message is under way at any time, and only its two
# ranks have anything to do with it. A rank's line can end before its arrow arrives:
# `send` returns when the bytes are in the hands of the operating system.
#
# So a lap of one number should take as many α as there are ranks. The fastest of a
# hundred took (lap_in_hops) times the fastest message of a ping-pong. Expect more
# rather than less: α is the price in the best case.
#
# How does the drawing know which receive belongs to which send? It pairs the k-th send
# from one rank to another with the k-th receive there, tag by tag. It may do so because
# order is promised.

# --- Everybody at once ----------------------------------------------------------------

# A ring in which one rank is busy wastes the others. So let all of them pass something
# at the same time: everybody sends to the right, and receives from the left. One number
# each, 4 bytes.
#
# Predict: All ranks run `send`, then `recv`. Nobody receives first this time. Does it
# work?

everyone()
if rank == 0:
    print("\n## Everybody at once\n")

with may_fail():
    with trace() as t:
        waits_for = right    # a note of whom this rank waits for
        dist.send(torch.tensor([float(rank)]), right)
        waits_for = left
        dist.recv(torch.zeros(1), left)
        waits_for = None

fresh_group()
t_by_rank = to_rank_0(t)
if rank == 0:
    show(messages(t_by_rank, name="stuck"))

# `send` waits for its receiver, and every receiver is itself stuck in a `send`. With an
# eager backend this would have worked, up to the size at which the library stops
# copying. In the picture a cross marks a message that nobody received. Every rank has
# one, and no arrow arrives.
#
# In a notebook the lab has named the circle. On a cluster you may have to do it
# yourself. All that it takes is a note from every rank of whom it waits for, made
# before it begins to wait.


def follow(waits, start):
    """The ranks from `start` on, each waiting for the next."""
    path = [start]
    while waits[path[-1]] is not None and path[-1] not in path[:-1]:
        path.append(waits[path[-1]])
    return path


waits_for_by_rank = to_rank_0(waits_for)
if rank == 0:
    circle = follow(waits_for_by_rank, 0)
    assert circle == [*range(world_size), 0]
    result("circle", circle)

# The path ends where it began: a circle, so a deadlock. The lab needs no notes. In each
# rank a second thread reads off the stack of the first one which call it is in, and
# with which arguments.
#
# Not every hang is a circle. Here one rank waits for a message that nobody sends:

if rank == 0:
    in_vain = follow([None, 0], 1)  # rank 0 waits for nobody, rank 1 for rank 0
    assert in_vain == [1, 0]
    result("in_vain", in_vain)

# The path ends at a rank that waits for nobody. Then the question is another one: did
# that rank leave out a send, or is it only slow? As long as each rank waits for one
# other, there is no third case: follow the waits, and you either come around or come to
# an end. A rank that receives from anyone, or waits in a barrier, waits for several;
# then there is more than one path to follow.

# --- Three ways out -------------------------------------------------------------------

# A circle can be broken at one place, at every second place, or by not waiting for the
# send at all.


def in_order(x, y, receive_first):
    """Send x to the right and receive y from the left, one after the other."""
    if receive_first:
        dist.recv(y, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(y, left)


def chain(x, y):
    in_order(x, y, receive_first=rank == 0)


def parity(x, y):
    in_order(x, y, receive_first=rank % 2 == 1)


# The third way is to start the send, receive, and then wait for the send to end. MPI
# has it as one call, `MPI_Sendrecv`, and it is worth a function:


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


# Predict: None of the three has a circle. Draw their space-time diagrams for four
# ranks. In how many steps, one after the other, is each of them over?


def together(x, y):
    sendrecv(x, right, y, left)


def all_ways():
    """One after the other, the three ways."""
    for way in (chain, parity, together):
        theirs.zero_()
        dist.barrier()
        with record_function(way.__name__):    # the trace has its name
            way(mine, theirs)
        assert (theirs == left).all()  # what the left neighbor has


everyone()
if rank == 0:
    print("\n## Three ways out\n")

mine = torch.full((1 << 22,), float(rank))  # 16 MiB
theirs, ts = torch.zeros_like(mine), []
for _ in range(6):
    with trace() as t:
        all_ways()
    ts.append(t)

ts_by_rank = to_rank_0(ts)
if rank == 0:
    ways = quietest(ts_by_rank)
    show(messages(ways, name="ways"))

# A gray band is a barrier, after which all start. Look at where the arrows begin.
#
# The chain works, and it is a staircase again, from the last rank upwards. Rank 0 takes
# the message of the last rank, which only then can receive, and so on backwards: as
# many steps as there are ranks.
#
# With parity there are two rounds, however many ranks there are, and three if their
# number is odd: all even ranks send while all odd ones receive, then the other way
# around.
#
# Together, there is one round, in which every rank sends and receives at the same time.
#
# Fewer steps are not always less time: messages that are under way together may share a
# link, or a core. An arrow can also be long because a rank had to wait for a core.
#
# PyTorch's own form takes a list of operations and starts them all. With NCCL it is not
# a matter of taste: there, sends and receives that need each other must be started as
# one group [nccl].


def batched(outgoing, dst, incoming, src):
    send = dist.P2POp(dist.isend, outgoing, dst)
    receive = dist.P2POp(dist.irecv, incoming, src)
    for handle in dist.batch_isend_irecv([send, receive]):
        handle.wait()


def seconds_each(calls, repeats=5, row=10):
    """Seconds of one call, for each of `calls`: of the fastest row of calls.

    A whole row is timed, so that it does not matter which rank the barrier
    lets go first.
    """
    times = [[] for _ in calls]
    for _ in range(repeats):
        for call, seconds in zip(calls, times):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(row):
                call()
            seconds.append((time.perf_counter() - start) / row)
    return [min(seconds) for seconds in times]


everyone()
ours, pytorchs = torch.zeros_like(mine), torch.zeros_like(mine)
our_time, pytorchs_time = seconds_each([
    lambda: sendrecv(mine, right, ours, left),
    lambda: batched(mine, right, pytorchs, left),
], row=1)
assert torch.equal(ours, pytorchs) and (ours == left).all()

our_time_by_rank = to_rank_0(our_time)
pytorchs_time_by_rank = to_rank_0(pytorchs_time)
if rank == 0:
    ratio = max(our_time_by_rank) / max(pytorchs_time_by_rank)
    result("ours_over_pytorchs", ratio, varies=True)

# The same numbers, in (ours_over_pytorchs) times the time of PyTorch's. Both start the
# same two transfers, so a ratio near 1 favors neither.

# --- Everybody's sum ------------------------------------------------------------------

# Now pass on what came. Everybody sends its own value to the right, then the value that
# it received, then that one's. After world size − 1 steps every value has been
# everywhere.
#
# Predict: Rank r starts with r + 1. What does every rank end with? How many messages
# were sent, by all ranks together?


def ring_sum(x):
    """The sum of all ranks' x, on every rank, in world_size - 1 steps."""
    total, passing = x.clone(), x.clone()
    for _ in range(world_size - 1):
        incoming = torch.empty_like(x)
        sendrecv(passing, right, incoming, left)
        total += incoming
        passing = incoming    # next time, pass on what came
    return total


everyone()
if rank == 0:
    print("\n## Everybody's sum\n")

with trace() as t:
    by_ring = ring_sum(torch.tensor([rank + 1.0]))
by_pytorch = torch.tensor([rank + 1.0])
dist.all_reduce(by_pytorch)  # PyTorch's own, in place

by_ring_by_rank = to_rank_0(by_ring)
if rank == 0:
    ring_sums = [total.item() for total in by_ring_by_rank]
    result("ring_sums", ring_sums)
    result("ring_messages", world_size * (world_size - 1))

# `traffic` counts what was really sent:

t_by_rank = to_rank_0(t)
if rank == 0:
    show(traffic(t_by_rank))

by_pytorch_by_rank = to_rank_0(by_pytorch)
if rank == 0:
    assert ring_sums == [total.item() for total in by_pytorch_by_rank]
    assert ring_sums == [sum(range(1, world_size + 1))] * world_size

# Every rank has the sum, the same that `dist.all_reduce` gives, and it took
# (ring_messages) messages of 4 bytes: every rank sent world size − 1 of them. Each rank
# adds in an order of its own; chapter 8 asks what that does to the last bits.
#
# Is the ring a good way to add? Here it is beside PyTorch's, for one number and for 4
# MiB.


def ratio_to_pytorch(x, row):
    """How many times as long as PyTorch's all-reduce our ring takes for x."""
    zeros = torch.zeros_like(x)    # however often they are summed, zeros
    ring, all_reduce = seconds_each(
        [lambda: ring_sum(x), lambda: dist.all_reduce(zeros)], row=row
    )
    return ring / all_reduce


everyone()

ratio_one = ratio_to_pytorch(torch.ones(1), row=20)
ratio_large = ratio_to_pytorch(torch.ones(1 << 20), row=1)


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


ratio_one_by_rank = to_rank_0(ratio_one)
if rank == 0:
    result("ratio_of_one", ratio_one_by_rank[0], varies=True)

ratio_large_by_rank = to_rank_0(ratio_large)
if rank == 0:
    result("ratio_of_large", ratio_large_by_rank[0], varies=True)

# Our ring takes (ratio_of_one) times as long as PyTorch's all-reduce for the one
# number, (ratio_of_large) times for the 4 MiB. More telling than these two is what was
# counted: every rank sends the whole tensor world size − 1 times. Chapter 8 makes it
# less than twice, however many ranks there are, still with nothing but `sendrecv`.
#
# And look at what it took to write even this: a ring, an order, a function against the
# deadlock, a picture to check it.
#
# Send and receive say what one pair does. A training step needs what all ranks do: give
# everybody the start, add everybody's gradients, share out the batch. Written by hand,
# each of these is one more chance for a circle, and the right way depends on the number
# of ranks, on the size of the tensor, on α and on β. So these patterns have names, and
# calls of their own. They are the subject of chapter 7.

# --- What you can do now --------------------------------------------------------------

# - Send a tensor from rank to rank, in a box that fits, and know that neither type nor
#   shape travels along.
# - Say who waits for whom, and write programs that are right even if every `send`
#   waits.
# - Hide a wait behind work, keep the handle, and leave the tensor alone until `wait()`
#   returns.
# - Ask stuck ranks where they are; tell a circle from a message that nobody sends, with
#   the lab or with a note from every rank; get the ranks back with `reset`.
# - Read a space-time diagram: who waits, what is under way, and what never arrived.
# - Measure α and β, and predict from them what a message takes, here and on a cluster.

# --- Run it on a cluster --------------------------------------------------------------

# ```bash
# torchrun --standalone --nproc-per-node 4 scripts/06_messages.py
# ```
#
# On two hosts (the same line on both, with the first one's name):
#
# ```bash
# torchrun --nnodes 2 --nproc-per-node 1 \
#     --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
#     scripts/06_messages.py
# ```
#
# One rank on each host: ranks 0 and 1, between which the chapter measures, are then on
# different ones, and α and β are the network's. Each host also has its own clock: on
# several hosts `trace` compares the clocks first, and every picture says by how much
# they may be off.

# --- Where to read on -----------------------------------------------------------------

# - [hoare1978]: programs made of processes and messages, before there was MPI. Short.
# - [mpi], chapter 3: what exactly blocking, order, and completion promise.
# - [coffman1971]: the four conditions of a deadlock, and what follows from breaking
#   each.
# - [lamport1978]: what "before" can mean when there is no common clock.
# - [hockney1994]: latency and bandwidth as two numbers, measured on the machines of the
#   day.
# - [pytorchdistributed]: every call, with what each backend supports.

leave_group()
