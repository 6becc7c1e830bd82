# Chapter 12 of Many Ranks, One Model, as one script. Generated from book/12_own_ddp.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 12_own_ddp.py
#     torchrun --standalone --nproc-per-node 4 12_own_ddp.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 12_own_ddp.py
#     mpiexec -n 4 python 12_own_ddp.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import contextlib
import functools
import os
import pickle
import random
import re
import socket
import statistics
import sys
import time
import weakref
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel


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


# === Written by you ===================================================================

# With PyTorch's `DistributedDataParallel`, data parallelism is one line. What happens
# behind that line, and how much code does it take to write one that you would trust
# with a training of your own?
#
# 50 minutes to read · 25 seconds to run · stands on chapter 8, chapter 10 and chapter
# 11
#
# The gradient of the whole batch is the mean of the ranks' gradients; that is all the
# mathematics there is, and chapter 10 has proven it. What is left is when to send what.
# You write four versions, and each one mends what is wrong with the one before. Then
# all of it becomes `OwnDDP`: a wrapper of fewer than 150 lines around the buckets, for
# models that it has never seen. Put in the place of PyTorch's, it comes to the same
# weights.

# Something to train: many small layers, all alike. What it learns does not matter here,
# so its loss is the mean of its squared outputs.


def deep(layers=16, width=224, dtype=torch.float32):
    """A deep network, the same on every rank: 16 layers and 3.2 MB unless told otherwise."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts).to(dtype)


def backward(model, x):
    """Leave the gradients of a batch in .grad, and note when backward began and ended."""
    model.zero_grad()
    loss = model(x).square().mean()
    backward.began = time.perf_counter()
    loss.backward()
    backward.ended = time.perf_counter()


# Each version must first be right: on every rank, the gradient of the whole batch,
# which every rank computes by itself here to compare.


def gradient_of(model):
    """All gradients of a model in one flat tensor."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def wrong_by(make_step):
    """The largest error of an averaged gradient, in float64. make_step(model) gives step(x)."""
    model, alone = deep(6, 8, torch.float64), deep(6, 8, torch.float64)
    batch = torch.randn(5 * world_size, 8, dtype=torch.float64)
    backward(alone, batch)
    make_step(model)(batch[5 * rank : 5 * (rank + 1)])
    return (gradient_of(model) - gradient_of(alone)).abs().max().item()


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
    from ranklab import timeline, trace, traffic
except ImportError:
    timeline = left_out("timeline")
    trace = untraced
    traffic = left_out("traffic")

# --- One message a parameter ----------------------------------------------------------

# The first version is chapter 10's: compute all gradients, then average one after the
# other.


def one_a_parameter(model):
    def step(x):
        backward(model, x)
        for p in model.parameters():  # chapter 10's average_gradients
            p.grad /= world_size
            dist.all_reduce(p.grad)
    return step


def traced(make_step):
    """A trace of one step of the deep model, after two that warm up."""
    step, x = make_step(deep()), torch.randn(256, 224)
    for _ in range(2):
        step(x)
    dist.barrier()
    with trace() as t:
        step(x)
    return t


if rank == 0:
    print("\n## One message a parameter\n")

play("ranks")

error_1, t_1 = wrong_by(one_a_parameter), traced(one_a_parameter)


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


# Predict:
#
# 16 layers, each with a weight and a bias. How many all-reduces is that in a step? What
# is the size of every second one, and what does it cost, compared with the one before?

error_1_by_rank = to_rank_0(error_1)
if rank == 0:
    play("kernel")
    assert max(error_1_by_rank) < 1e-14

t_1_by_rank = to_rank_0(t_1)
if rank == 0:
    show(timeline(t_1_by_rank, name="one-a-parameter"))


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


everyone()
play("ranks")
many_tensors = len(list(deep().parameters()))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


many_tensors_by_rank = to_rank_0(many_tensors)
if rank == 0:
    play("kernel")
    result("messages_1", many_tensors_by_rank[0])

# (messages_1) all-reduces, one after the other, and nobody computes meanwhile. Half of
# them carry a bias, 224 numbers. Chapter 8 has told us what that costs: nearly as much
# as a weight of 50,176, for it is nearly all latency. In the picture: a long row of
# hatched pieces behind the backward pass, and next to nothing computed in between.

# --- One message for all --------------------------------------------------------------

# So put all gradients into one tensor, send that, and take it apart again.


def one_for_all(model):
    def step(x):
        backward(model, x)
        flat = gradient_of(model) / world_size
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts):
            p.grad = part.view(p.shape)
    return step


everyone()
if rank == 0:
    print("\n## One message for all\n")

play("ranks")

error_2, t_2 = wrong_by(one_for_all), traced(one_for_all)

error_2_by_rank = to_rank_0(error_2)
if rank == 0:
    play("kernel")
    assert max(error_2_by_rank) < 1e-14

t_2_by_rank = to_rank_0(t_2)
if rank == 0:
    show(timeline(t_2_by_rank, name="one-for-all"))

# One latency in place of (messages_1). Note what became of `.grad`: it is no longer a
# tensor of its own but a view, a window into the flat one. That saves copying
# everything back.
#
# Two things are still bad. There is a second copy of all gradients, made anew in every
# step. And the one message cannot leave before the last gradient is there, and that is
# the gradient of the first layer. All others are ready and wait for it, while the
# network is idle. Then the network works, and the cores are idle.

# --- Buckets --------------------------------------------------------------------------

# The middle way: several tensors, made once and used in every step. Such a tensor is a
# bucket.


class Bucket:
    """Gradients that travel together: a flat buffer, and in it a view for each parameter."""

    def __init__(self, parameters):
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        # Behind the gradients, a number for each of them: how many ranks have it.
        self.buffer = parameters[0].detach().new_zeros(sum(sizes) + len(sizes))
        *pieces, self.present = self.buffer.split([*sizes, len(sizes)])
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, parameters)]

    def begin(self):
        """Before a backward: nothing is in it yet."""
        self.missing, self.work = len(self.parameters), None
        self.present.fill_(1)

    def put(self, i, n):
        """Put 1 / n of parameter i's gradient in. From now on its .grad is a view of the buffer."""
        p = self.parameters[i]
        if p.grad is None:
            self.views[i].zero_()
            self.present[i] = 0
        else:
            torch.mul(p.grad, 1 / n, out=self.views[i])
            p.grad = self.views[i]
        self.missing -= 1


# One detail of it, `present`, is of use only later: a number for each parameter that
# counts how many of the ranks have a gradient for it. It lies in the same tensor, so it
# travels for nothing.
#
# Into which bucket does a parameter go? In the order in which they are filled, the
# first bucket should be the one that is full first. chapter 2 has shown that backward
# goes through the layers from the last to the first, and modules are mostly registered
# in the order in which they are used. So go through the parameters in reverse, and
# close a bucket when it is large enough.


def in_buckets(parameters, bucket_bytes, first_bytes=None):
    """Deal parameters into Buckets, in their order, each of one type and device.

    A bucket is closed as soon as it has `bucket_bytes` bytes, the first one with `first_bytes`.
    """
    full, filling = [], {}
    for p in parameters:
        some = filling.setdefault((p.dtype, p.device), [])
        some.append(p)
        limit = bucket_bytes if full or first_bytes is None else first_bytes
        if sum(q.nbytes for q in some) >= limit:
            full.append(filling.pop((p.dtype, p.device)))
    return [Bucket(some) for some in [*full, *filling.values()]]


# Predict: The 3.2 MB go into buckets of 512 KB. How many buckets are there, and which
# layer's gradient is in the first one?


class InBuckets:
    """Averages gradients in buckets, each of which is sent when it is full."""

    def __init__(self, parameters, limits=(512 << 10,), group=None,
                 all_reduce=dist.all_reduce):
        self.trained = [p for p in parameters if p.requires_grad][::-1]
        self.limits, self.group, self.all_reduce = limits, group, all_reduce
        self.n = dist.get_world_size(group)
        self.deal(self.trained)

    def deal(self, order):
        """Deal the parameters into buckets, in this order."""
        self.buckets = in_buckets(order, *self.limits)
        self.place = {p: (bucket, i) for bucket in self.buckets
                      for i, p in enumerate(bucket.parameters)}

    def begin(self):
        for bucket in self.buckets:
            bucket.begin()

    def put(self, p):
        """Put p's gradient in, and send its bucket if that was the last."""
        bucket, i = self.place[p]
        bucket.put(i, self.n)
        if not bucket.missing:
            self.send(bucket)

    def send(self, bucket):
        bucket.work = self.all_reduce(bucket.buffer, group=self.group,
                                      async_op=True)

    def finish(self):
        for bucket in self.buckets:
            if bucket.work:
                bucket.work.wait()


def in_several(model, bucket_bytes=512 << 10, **how):
    average = InBuckets(model.parameters(), (bucket_bytes,), **how)

    def step(x):
        backward(model, x)
        average.begin()
        for p in average.trained:
            average.put(p)
        average.finish()
    return step


everyone()
if rank == 0:
    print("\n## Buckets\n")

play("ranks")

error_3 = wrong_by(functools.partial(in_several, bucket_bytes=1000))
t_3 = traced(in_several)
some_buckets = in_buckets([*deep().parameters()][::-1], 512 << 10)
bucket_kb = [bucket.buffer.nbytes >> 10 for bucket in some_buckets]

error_3_by_rank = to_rank_0(error_3)
if rank == 0:
    play("kernel")
    assert max(error_3_by_rank) < 1e-14

bucket_kb_by_rank = to_rank_0(bucket_kb)
if rank == 0:
    bucket_sizes = bucket_kb_by_rank[0]
    result("n_buckets", len(bucket_sizes))
    result("bucket_kb", bucket_sizes)

t_3_by_rank = to_rank_0(t_3)
if rank == 0:
    show(timeline(t_3_by_rank, name="buckets"))

# (n_buckets) messages of (bucket_kb) KB: with the third layer a bucket has 512 KB or
# more, and is closed. The first one holds the last three layers. It is no faster than
# one message for all, for it pays several latencies, and everything still happens after
# backward. But now it need not.

# --- While backward computes ----------------------------------------------------------

# Autograd offers a hook that it calls when the gradient of a parameter is complete, in
# the middle of backward: `register_post_accumulate_grad_hook`. All that has to be done
# is to put the gradient into its bucket and, if it was the last one missing there, to
# send the bucket off. `async_op=True` returns at once (chapter 7); backward goes on
# computing, and another thread of Gloo's carries the bytes.


class Overlapped(InBuckets):
    """Puts every gradient in while backward computes the others."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.hooks = [p.register_post_accumulate_grad_hook(self.on_gradient)
                      for p in self.trained]

    def on_gradient(self, p):
        """Autograd calls it: the gradient of p is complete."""
        self.put(p)


def during_backward(model, bucket_bytes=512 << 10, **how):
    average = Overlapped(model.parameters(), (bucket_bytes,), **how)

    def step(x):
        average.begin()
        backward(model, x)
        average.finish()
    return step


everyone()
if rank == 0:
    print("\n## While backward computes\n")

play("ranks")

error_4 = wrong_by(lambda model: during_backward(model, 1000))
t_4 = traced(during_backward)

# Predict: What will be different in the timeline? Will the step be shorter on a machine
# with as many cores as ranks? And on one where the ranks share too few cores?

error_4_by_rank = to_rank_0(error_4)
if rank == 0:
    play("kernel")
    assert max(error_4_by_rank) < 1e-14

t_4_by_rank = to_rank_0(t_4)
if rank == 0:
    show(timeline(t_4_by_rank, name="overlapped"))

# Hatching under the full color: gradients are on their way while others are still being
# computed. The trace can say it exactly. In version 3 no message begins before backward
# has ended; in version 4 one does, on every rank:

# --- What overlap gains ---------------------------------------------------------------

# Now the clock. All four take turns, and after them a step that averages nothing, for
# comparison.


def medians(steps, x, repeats=5, group=None):
    """Median seconds of each of `steps`, which take turns; nan on ranks outside of the group."""
    times = [[] for _ in steps]
    if dist.get_rank(group) < 0:
        return [float("nan")] * len(steps)
    for repeat in range(repeats + 1):
        for step, seconds in zip(steps, times):
            dist.barrier(group)
            start = time.perf_counter()
            step(x)
            if repeat > 0:  # the first time warms up
                seconds.append(time.perf_counter() - start)
    return [statistics.median(of_step) for of_step in times]


def nothing_sent(model):
    return functools.partial(backward, model)


everyone()
if rank == 0:
    print("\n## What overlap gains\n")

play("ranks")

versions = [one_a_parameter, one_for_all, in_several, during_backward, nothing_sent]
version_seconds = medians([make(deep()) for make in versions], torch.randn(256, 224))

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

version_seconds_by_rank = to_rank_0(version_seconds)
if rank == 0:
    play("kernel")
    seconds_of = np.max(version_seconds_by_rank, axis=0)  # the slowest rank's
    version_names = ["a message a parameter", "one message", "buckets", "buckets in backward"]
    for what, seconds in zip([*version_names, "nothing sent"], seconds_of):
        print(f"{what:>22}: {1e3 * seconds:6.1f} ms")
    result("cores", os.cpu_count(), varies=True)
    result("first_over_second", seconds_of[0] / seconds_of[1], varies=True)
    result("fourth_over_third", seconds_of[3] / seconds_of[2], varies=True)
    result("fourth_over_second", seconds_of[3] / seconds_of[1], varies=True)

# The first version takes (first_over_second) times as long as the second. And overlap?
# The fourth takes (fourth_over_third) times as long as the third, and
# (fourth_over_second) times as long as the second, on (cores) cores. Where that is
# above 1, one message is still the fastest here, and the machine is the reason: it is
# the cores themselves that carry the bytes. If all of them compute, nobody is left to
# send, and several messages pay several latencies. Overlap hides waiting, and moves no
# work away.
#
# In a cluster it is different: a network card sends by itself, and is slower than
# memory. So let two of the ranks have the machine to themselves, and give them such a
# network. Their all-reduce is the real one, but its handle is not done before a slower
# link would have been done; in the meantime the rank sleeps and needs no core.

everyone()
play("ranks")
pair = dist.new_group([0, 1])


class Link:
    """The all-reduce of two ranks on a network of their own: latency (s), bandwidth (bytes/s)."""

    def __init__(self, latency, bandwidth):
        self.latency, self.bandwidth, self.free, self.log = latency, bandwidth, 0.0, []

    def all_reduce(self, x, group=None, async_op=True):
        begin = max(time.perf_counter(), self.free)  # one after the other
        self.free = begin + self.latency + x.nbytes / self.bandwidth
        self.log.append((begin, self.free))
        return Transfer(dist.all_reduce(x, group=pair, async_op=True), self.free)


class Transfer:
    """The handle: done when the real one is, and not before its time."""

    def __init__(self, work, until):
        self.work, self.until = work, until

    def wait(self):
        self.work.wait()
        time.sleep(max(0, self.until - time.perf_counter()))


# How slow? So slow that it needs about as long for all gradients as these two ranks for
# their backward. That is where overlap can gain the most.

everyone()
pair_seconds = medians([nothing_sent(deep())], torch.randn(256, 224), group=pair)[0]


def from_rank_0(make):
    """What make() returns on rank 0, in the kernel, on every rank: a copy for each."""
    before = play("kernel")
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return pickle.loads(box[0])


pair_seconds_by_rank = to_rank_0(pair_seconds)
if rank == 0:
    play("kernel")
    compute_seconds = float(np.nanmax(pair_seconds_by_rank))

compute_seconds = from_rank_0(lambda: compute_seconds)

everyone()
play("ranks")
nbytes = sum(p.nbytes for p in deep().parameters())
link_latency, link_bandwidth = compute_seconds / 40, nbytes / (0.5 * compute_seconds)


def on_the_link(make_step, bucket_bytes=512 << 10):
    """A step over a new link, and that link."""
    link = Link(link_latency, link_bandwidth)
    return make_step(deep(), bucket_bytes, all_reduce=link.all_reduce), link


def recorded(*ways):
    """The fastest of some steps of each way, which take turns: when the step, its forward and its
    backward ended, and when each message was under way, in seconds since the step began."""
    x, found = torch.randn(256, 224), [[] for _ in ways]
    pairs = [on_the_link(make_step) for make_step in ways]
    for _ in range(9 if rank < 2 else 0):
        for (step, link), steps in zip(pairs, found):
            link.log.clear()
            dist.barrier(pair)
            start = time.perf_counter()
            step(x)
            end = time.perf_counter() - start
            sent = [(a - start, b - start) for a, b in link.log]
            steps.append((end, backward.began - start, backward.ended - start, sent))
    return [min(steps, default=None) for steps in found]


after_and_during = recorded(in_several, during_backward)

# From ranklab.plots:


def pale(color, share=0.25):
    """Return `color` mixed with white, as an opaque color: `share` of it is the color.

    Transparent colors and hatching do not go together in an SVG.
    """
    rgb = matplotlib.colors.to_rgb(color)
    return tuple(1 - share * (1 - part) for part in rgb)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


def draw_step(ax, row, end, forward, computed, sent):
    """A step of rank 0: computing above, its messages below, and a line where it ends."""
    parts = [(0, 1e3 * forward), (1e3 * forward, 1e3 * (computed - forward))]
    colors = pale(RANK_COLORS[0], 0.4), RANK_COLORS[0]
    ax.broken_barh(parts, (row - 0.35, 0.35), facecolors=colors)
    bars = [(1e3 * a, 1e3 * (b - a)) for a, b in sent]
    look = {"facecolor": pale(RANK_COLORS[0]), "edgecolor": RANK_COLORS[0], "hatch": "//////"}
    ax.broken_barh(bars, (row + 0.02, 0.3), linewidth=0.6, **look)
    ax.vlines(1e3 * end, row - 0.42, row + 0.42, color="#595959", linewidth=1.5)


after_and_during_by_rank = to_rank_0(after_and_during)
if rank == 0:
    play("kernel")
    after, during = after_and_during_by_rank[0]
    fig, ax = plt.subplots(num="overlap", figsize=(5.2, 2.2))
    draw_step(ax, 0, *after)
    draw_step(ax, 1, *during)
    ax.set_yticks([0, 1], ["after\nbackward", "during\nbackward"])
    ax.set(xlabel="time since the step began (ms)", ylim=(1.5, -0.5), xlim=(0, None))
    ax.grid(False, axis="y")
    save_figures()

if rank == 0:
    result("link_gain", during[0] / after[0], varies=True)

# Rank 0, the fastest of nine steps of each kind. The light bar is forward, the full one
# backward; the hatched bars are messages under way, and the grey line is where the step
# ends. In the lower row the messages hide behind backward as far as they can, and the
# step takes (link_gain) of the time. They cannot begin earlier: forward comes first,
# and then a bucket has to be filled. (Where computing takes longer in the lower row, it
# shares its cores with the real messages.)

# --- How large a bucket? --------------------------------------------------------------

# Small buckets leave early, but every one of them pays the latency. Large ones save
# latencies, but the first one leaves late, and the last one ends long after backward.
# So where overlap can gain, both ends must lose. By how much, chapter 8's model can
# say, together with one more line: a bucket is sent when it is full and the link is
# free.


def overlapped_seconds(bucket_bytes, forward, backward, alpha, beta):
    """Seconds of a step in which buckets of so many bytes each are sent during backward.

    forward, backward: seconds of computing; gradients arrive evenly during backward. An
    all-reduce of so many bytes takes alpha + bytes / beta seconds.
    """
    there, free = 0, 0.0
    for nbytes in bucket_bytes:
        there += nbytes
        full = forward + backward * there / sum(bucket_bytes)
        free = max(full, free) + alpha + nbytes / beta
    return max(free, forward + backward)


# For the link, α and β of an all-reduce are what we made them. For Gloo they must be
# measured.


def all_reduce_seconds(sizes, group):
    """Median seconds of an all-reduce of each of these numbers of bytes."""
    def call(nbytes):
        x = torch.zeros(nbytes // 4)
        return lambda _: dist.all_reduce(x, group=group)
    return medians([call(nbytes) for nbytes in sizes], None, 9, group)


everyone()
if rank == 0:
    print("\n## How large a bucket?\n")

play("ranks")

fit_sizes = [4 << (2 * k) for k in range(2, 11)]  # 64 bytes to 4 MB
fit_seconds = all_reduce_seconds(fit_sizes, pair)

everyone()
limits = [1, 150 << 10, 300 << 10, 600 << 10, 1500 << 10, 4 << 20]
dealt = [
    [b.buffer.nbytes for b in in_buckets([*deep().parameters()][::-1], limit)] for limit in limits
]
gloo_steps = [during_backward(deep(), limit, group=pair) for limit in limits]
link_steps = [on_the_link(during_backward, limit)[0] for limit in limits]
no_messages = [deep(), nothing_sent(deep())]  # forward alone, and all of the computing
by_bucket = medians([*no_messages, *gloo_steps, *link_steps], torch.randn(256, 224), group=pair)

# From ranklab.taught.messages:


def latency_bandwidth(sizes, seconds):
    """Fit T(n) = alpha + n / beta to measured times.

    Return alpha (s) and beta (bytes/s). Least squares of the relative error,
    so that every size has the same weight.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    equations = np.stack([1 / t, n / t], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(equations, np.ones(len(t)))
    return float(alpha), float(1 / per_byte)


by_bucket_by_rank = to_rank_0(by_bucket)
if rank == 0:
    play("kernel")
    ahead, computing_alone, *by_limit = np.nanmax(by_bucket_by_rank, axis=0)
    by_gloo, by_link = np.reshape(by_limit, (2, -1))

fit_sizes_by_rank = to_rank_0(fit_sizes)
fit_seconds_by_rank = to_rank_0(fit_seconds)
if rank == 0:
    gloo_fit = latency_bandwidth(fit_sizes_by_rank[0], np.nanmax(fit_seconds_by_rank, axis=0))

link_latency_by_rank = to_rank_0(link_latency)
link_bandwidth_by_rank = to_rank_0(link_bandwidth)
if rank == 0:
    link_fit = link_latency_by_rank[0], link_bandwidth_by_rank[0]

dealt_by_rank = to_rank_0(dealt)
if rank == 0:
    dealt_bytes = dealt_by_rank[0]
    predicted = {
        what: [overlapped_seconds(each, ahead, computing_alone - ahead, *fit) for each in dealt_bytes]
        for what, fit in (("Gloo", gloo_fit), ("link", link_fit))
    }

if rank == 0:
    fig, ax = plt.subplots(num="bucket-size")
    n_messages = [len(each) for each in dealt_bytes]
    for color, what, seconds in (("C1", "link", by_link), ("C0", "Gloo", by_gloo)):
        ax.semilogx(n_messages, 1e3 * np.array(predicted[what]), color, linewidth=1)
        ax.semilogx(n_messages, 1e3 * seconds, f"{color}o", label=what)
    ax.axhline(1e3 * computing_alone, color="#595959", linestyle=":")
    ax.text(1, 1e3 * computing_alone, "computing alone", va="top", fontsize=9)
    ax.set_xticks(n_messages, n_messages)
    ax.minorticks_off()
    ax.set(xlabel="buckets, and so messages, in a step", ylabel="time of a step (ms)", ylim=(0, None))
    ax.legend(title="points: measured\nlines: predicted", ncols=2)
    save_figures()

if rank == 0:
    best = int(np.argmin(by_link))
    result("single_over_best", by_link[0] / by_link[best], varies=True)
    result("predicted_single", predicted["link"][0] / min(predicted["link"]), varies=True)
    result("whole_over_best", by_link[-1] / by_link[best], varies=True)
    result("gloo_single_over_whole", by_gloo[0] / by_gloo[-1], varies=True)

# On the link both ends lose: one bucket for everything takes (whole_over_best) times as
# long as the best number, and a message for each tensor (single_over_best) times. On
# the left nothing overlaps; on the right you pay α for every tensor. By the model, that
# would be (predicted_single) times; the rest is what each message costs the cores.
# Gloo's points pay that without any link: on the right they are
# (gloo_single_over_whole) times as high as on the left, and its best may well be one
# bucket. Its line says what its α and β would do if it sent by itself, without a core:
# all but the last bucket would be hidden.
#
# PyTorch's choice is 25 MB [li2020], after a first bucket of 1 MB, so that something is
# under way early (chapter 11 reads both off its wrapper).
#
# Where is the optimum in general? Take k equal buckets of a gradient of S bytes, and T
# seconds of backward. While the link keeps up, only the last bucket is left when
# backward ends, α + S/(kβ): more buckets are better, by less and less. It keeps up with
# at most (T − S/β)/α of them. Beyond that the link is the bottleneck: it begins after
# T/k, when the first bucket is full, and is done kα + S/β later, which is least for k =
# √(T/α). The best number is the larger of the two. The model's own best, by trying, for
# four networks:


def seconds_with(k, alpha, beta):
    """Seconds of a backward of 67 ms, of which 400 MB of gradients leave in k equal buckets."""
    return overlapped_seconds([400e6 / k] * k, 0, 0.067, alpha, beta)


if rank == 0:
    for alpha, beta in ((1e-3, 1e9), (1e-4, 1e10), (1e-3, 5e10), (1e-2, 5e10)):
        by_formula = round(max((0.067 - 400e6 / beta) / alpha, (0.067 / alpha) ** 0.5))
        best_seconds = min(seconds_with(k, alpha, beta) for k in range(1, 400))
        assert seconds_with(by_formula, alpha, beta) < 1.02 * best_seconds

# --- Three ways to get it wrong -------------------------------------------------------

# The fourth version is the one to keep, and it is dangerous. Three mistakes, of which
# the first two say nothing at all.

# --- Reading too early ----------------------------------------------------------------

# Predict: The last rank is late. Rank 0 has finished its backward and reads `.grad`
# before it has called `finish`. What is in it?

everyone()
if rank == 0:
    print("\n## Three ways to get it wrong\n")

play("ranks")
model = deep(2, 4, torch.float64)
average = Overlapped(model.parameters())
average.begin()
gate = torch.zeros(1)
if rank == world_size - 1:
    dist.recv(gate, src=0)  # late: it computes when rank 0 has read
backward(model, torch.full((3, 4), 1.0 + rank, dtype=torch.float64))
early = gradient_of(model).clone()
if rank == 0:
    dist.send(gate, dst=world_size - 1)
average.finish()
too_early = not torch.equal(early, gradient_of(model))

too_early_by_rank = to_rank_0(too_early)
if rank == 0:
    play("kernel")
    assert too_early_by_rank[0]

# Some sum or other: `.grad` is a view into a bucket, and the bucket belongs to the
# all-reduce until its `wait()`. An optimizer that steps then trains on numbers that
# differ by rank and from run to run. A wrapper must wait by itself, before `backward()`
# returns. We come back to how.

# --- In another order -----------------------------------------------------------------

# Here is a network with two layers of the same shape, and the data decide which of them
# comes first. On rank 0 it is the other one.
#
# Predict: Every rank computes both gradients, of the right shapes, and each layer has a
# bucket of its own. What can go wrong?


class Fork(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x, swap=False):
        for layer in (self.right, self.left) if swap else (self.left, self.right):
            x = torch.tanh(layer(x))
        return x


def forked(average_of):
    """Gradients of left, and of right, averaged; rank 0 uses right first."""
    model = Fork().double()
    average = average_of(model)
    average.begin()
    model(torch.full((1, 4), 1.0 + rank, dtype=torch.float64), swap=rank == 0).sum().backward()
    average.finish()
    return model.left.weight.grad.clone(), model.right.weight.grad.clone()


everyone()
play("ranks")

mixed = forked(lambda model: Overlapped(model.parameters(), (1,)))

mixed_by_rank = to_rank_0(mixed)
if rank == 0:
    play("kernel")
    left_grads, right_grads = zip(*mixed_by_rank)
    result("left_is_right", bool((left_grads[0] == right_grads[1]).all()))
    assert (left_grads[0] == right_grads[1]).all() and (left_grads[0] != left_grads[1]).any()

# Rank 0's gradient of left is rank 1's gradient of right (equal to the last bit:
# (left_is_right)). On rank 0 the buckets were full in another order, so its first
# all-reduce was about left and the others' was about right. The shapes agree, and
# nothing else is looked at (chapter 7). No error, and a training that is a little worse
# every day.
#
# The remedy: all ranks send the buckets in the same order. A bucket that is full too
# early waits for those before it. With that, the order in which the gradients arrive
# may differ, and only time is lost.


class InOrder(Overlapped):
    """A bucket that is full leaves when all before it have left."""

    def begin(self):
        super().begin()
        self.next = 0

    def send(self, _):
        while (self.next < len(self.buckets)
               and not self.buckets[self.next].missing):
            super().send(self.buckets[self.next])
            self.next += 1


everyone()
play("ranks")
unmixed = forked(lambda model: InOrder(model.parameters(), (1,)))

unmixed_by_rank = to_rank_0(unmixed)
if rank == 0:
    play("kernel")
    left_grads, right_grads = zip(*unmixed_by_rank)
    assert all((grad == left_grads[0]).all() for grad in left_grads)
    assert all((grad == right_grads[0]).all() for grad in right_grads)

# --- A gradient that never comes ------------------------------------------------------

# Predict: One rank does not use a layer in this step: no sample of its batch asked for
# it. Who notices, and when?

# Rank 1 has gone on to the next step and waits in its barrier. The others wait in
# `finish`, for the sum of a bucket that rank 1 never filled. With PyTorch's wrapper the
# others wait, too, and rank 1 is told at its next forward pass (chapter 11), unless
# `find_unused_parameters=True` lets the wrapper look for such parameters.

# The remedy: at the end of backward, fill what is missing with zeros, and send it. For
# that, somebody must say that backward has ended. Autograd can: whoever is called by it
# may queue a callback for the end of this backward. The call for that is not in
# PyTorch's documentation, but PyTorch's own sharding uses it.
#
# But is a zero the same as no gradient? For the mean it is. For an optimizer with
# momentum or weight decay it is not: it moves a weight whose gradient is zero, and
# leaves one alone that has none. So a parameter that no rank used must keep `None`. One
# that some rank used must have the mean everywhere. No rank can know that by itself;
# here the numbers behind the gradients, `present`, are of use. After the all-reduce
# they say how many ranks have one.


class Complete(InOrder):
    """Sends zeros for gradients that did not come until backward ended."""

    def begin(self):
        super().begin()
        self.arrived = {}

    def on_gradient(self, p):
        if not self.arrived:  # the first: let autograd call finish at the end
            Variable._execution_engine.queue_callback(self.finish)
        self.arrived[p] = True
        self.put(p)

    def finish(self):
        self.absent = {p for p in self.trained if p not in self.arrived}
        for p in self.absent:
            self.put(p)
        super().finish()
        for bucket, i in map(self.place.get, self.absent):
            if bucket.present[i]:  # some rank has one
                bucket.parameters[i].grad = bucket.views[i]


# --- The reducer ----------------------------------------------------------------------

# PyTorch calls this part the reducer. One thing is missing in ours: not every backward
# is to average. Gradients may be accumulated over several of them first, and whoever
# evaluates or debugs calls the model, too. So the reducer has three states. It is idle,
# and gradients pass it by. A forward makes it armed. The first gradient after that
# makes it averaging, and the end of that backward makes it idle again.


class Reducer(Complete):
    """Averages in the backward it is armed for: after Li et al. (2020)."""

    state, learning, absent = "idle", True, ()

    def arm(self):
        """Make the next backward average: on all ranks of the group."""
        if self.state == "averaging":
            raise RuntimeError(
                "A backward failed while its gradients were averaged, and its "
                "messages may be under way. Wrap the model again, on all ranks."
            )
        self.begin()
        self.state, self.absent = "armed", ()

    def on_gradient(self, p):
        if p in self.absent or (self.state == "averaging" and p in self.arrived):
            raise RuntimeError(
                "A gradient came after its averaging, and would stay this rank's own. "
                "With checkpoint(), use use_reentrant=False."
            )
        if self.state != "idle":
            self.state = "averaging"
            super().on_gradient(p)

    def finish(self):
        super().finish()
        self.state = "idle"
        if self.learning:
            self.learn()

    def learn(self):
        """Deal anew, in the order in which rank 0's gradients arrived."""
        number = {p: i for i, p in enumerate(self.trained)}
        order = [[number[p] for p in self.arrived]]
        dist.broadcast_object_list(order, group_src=0, group=self.group)
        arrived = [self.trained[i] for i in order[0]]
        self.deal(dict.fromkeys([*arrived, *self.trained]))
        self.learning = False

    def send_zeros(self):
        """Take part in a backward of the others, with no gradients of one's own."""
        self.arm()
        for p in self.trained:
            p.grad = None
        self.finish()


# The forward pass arms it once it has its result. So all ranks decide the same, if all
# call their model; and a forward that fails leaves the reducer as it was.

# --- The wrapper ----------------------------------------------------------------------

# Three more parts, and it is whole. All ranks must begin with the same weights, and so
# with the same model. Chapter 10's broadcast gives everyone the weights of rank 0; ours
# puts all tensors of a type into one message, since it will be called in every step for
# the buffers.


def broadcast_all(tensors, src=0, group=None):
    """Give all ranks the tensors of rank src of the group, in place; a message for each type."""
    kinds = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t.detach())
    flats = [torch.cat([t.flatten() for t in same]) for same in kinds.values()]
    works = [dist.broadcast(flat, group_src=src, group=group, async_op=True) for flat in flats]
    for same, flat, work in zip(kinds.values(), flats, works):
        work.wait()
        if dist.get_rank(group) != src:
            for t, values in zip(same, flat.split([t.numel() for t in same])):
                t.copy_(values.view_as(t))


# But a broadcast trusts the order of the parameters, as the buckets do. If a rank has
# built its layers in another order, weights and gradients of one layer go into another;
# and if only the shapes agree, nothing is said. So compare first, with names. It costs
# one exchange of lists, once.


def demand_equal(module, group=None):
    """Raise ValueError, on every rank, where a rank's model is not that of rank 0 of the group.

    Compared are the names, shapes and types of its tensors, their order, and which are trained;
    one at least must be.
    """
    mine = [
        f"{name} {tuple(t.shape)} {t.dtype}" + ", trained" * t.requires_grad
        for name, t in [*module.named_parameters(), *module.named_buffers()]
    ]
    of_rank = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_rank, mine, group=group)
    for r, theirs in enumerate(of_rank):
        for k, (a, b) in enumerate(zip([*of_rank[0], "missing"], [*theirs, "missing"])):
            if a != b:
                raise ValueError(
                    f"The ranks' models differ. Tensor {k} is {a} on rank 0, and {b} on rank {r}. "
                    "Build the same model on every rank, its layers in the same order."
                )
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("No parameter of this model is trained: there is nothing to average.")


class OwnDDP(nn.Module):
    """Data parallelism: a replica of `module` on each rank of a group.

    All start with rank 0's weights. When the backward() after a forward returns, each
    .grad is the mean over the ranks (untouched, unless one of them used its parameter)
    and a view into a bucket: clone it to keep it. all_reduce: called as dist.all_reduce
    is, with async_op; behind the gradients stands how many ranks have each. Raises
    ValueError where models differ or nothing is trained.
    """

    def __init__(self, module, group=None, all_reduce=dist.all_reduce,
                 bucket_bytes=25 << 20, first_bytes=1 << 20):
        super().__init__()
        self.module, self.group = module, group
        self.sync, self.joining, self.ahead, self.buffers_due = True, False, 0, True
        demand_equal(module, group)
        broadcast_all([*module.parameters(), *module.buffers()], 0, group)
        self.reducer = Reducer(
            module.parameters(), (bucket_bytes, first_bytes), group, all_reduce
        )
        weakref.finalize(self, remove_all, self.reducer.hooks)

    def forward(self, *inputs, **named):
        """Call the module. If gradients are wanted, its backward will average them."""
        averages = self.sync and torch.is_grad_enabled()
        if self.joining:
            self._anyone_goes_on(1 + averages)
        self._share_buffers(averages)
        output = self.module(*inputs, **named)
        if averages:
            self.reducer.arm()
        elif torch.is_grad_enabled():
            self.reducer.absent = ()  # whatever comes now is welcome
        return output

    def _share_buffers(self, averages):
        """Give all the buffers, if the forward before was to average: as PyTorch does."""
        if self.buffers_due:
            broadcast_all(self.module.buffers(), self.ahead, self.group)
        self.buffers_due = averages

    @contextlib.contextmanager
    def no_sync(self):
        """Forwards in here leave their gradients as they are, to be added to later ones."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    @contextlib.contextmanager
    def join(self, throw_on_early_termination=False):
        """For ranks with different numbers of batches: who is done goes on with zeros.

        In the end all have the weights of one that went on longest. With
        throw_on_early_termination, all raise RuntimeError as soon as one has no more.
        """
        self.joining, self.throw = True, throw_on_early_termination
        try:
            yield
            while what := self._anyone_goes_on(0):
                self._share_buffers(what == 2)
                if what == 2:
                    self.reducer.send_zeros()
            everything = [*self.module.parameters(), *self.module.buffers()]
            broadcast_all(everything, self.ahead, self.group)
        finally:
            self.joining, self.ahead = False, 0

    def _anyone_goes_on(self, mine):
        """Tell what I do: 2, a step that averages; 1, another forward; 0, nothing more.

        Return what those do who go on. The last of them is `ahead`: its buffers count.
        """
        doing = next(self.module.parameters()).new_zeros(self.reducer.n)
        doing[dist.get_rank(self.group)] = mine
        dist.all_reduce(doing, group=self.group)
        there = [r for r, what in enumerate(doing.tolist()) if what]
        done = [r for r, what in enumerate(doing.tolist()) if not what]
        if self.throw and there and done:
            raise RuntimeError(f"No more batches on ranks {done}, but on {there}.")
        self.ahead = max(there, default=self.ahead)
        return int(max(doing))


def remove_all(hooks):
    """A reducer would live as long as its model: hooks go with their wrapper."""
    for hook in hooks:
        hook.remove()


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        print(f"rank {rank} failed, as it may here: {type(error).__name__}: {first_line}")


# That is all. Five decisions in it are worth a second look.
# - The forward decides. Not backward: `no_sync` is about the forwards in it, and the
#   backward of such a forward leaves its gradients to be added to the next one's.
#   PyTorch's does the same.
# - One forward, one averaging. After two forwards, one backward of both losses together
#   is right. Two backwards are not: the first one uses up the averaging, and what the
#   second one adds stays the rank's own. Neither PyTorch's wrapper nor ours notices;
#   that the ranks drift apart, chapter 10's comparison of weights does.
# - A backward that fails may have messages under way, into the very buckets that a
#   second try would fill. So it is refused, and the model has to be wrapped again.
# - Buffers (the running means of a batch norm) are given to all by rank 0, before a
#   forward that follows one that averages, as PyTorch does. They are not averaged.
# - The hooks go with the wrapper. A model that is wrapped again, as happens to whoever
#   runs a cell twice, would else be averaged by both.

# --- Models that differ ---------------------------------------------------------------

everyone()
if rank == 0:
    print("\n## The wrapper\n")

play("ranks")
with may_fail():
    names = sorted(["left", "right", "middle"], reverse=rank == 0)  # as a loop over a set may do
    show(OwnDDP(nn.ModuleDict({name: nn.Linear(4, 4) for name in names})), rank)

# Without the comparison nobody would have noticed: all shapes agree.

# --- The order of arrival -------------------------------------------------------------

# Reverse order of registration is a guess. This model registers its layers in another
# order than it uses them:


class Crossed(nn.Module):
    """The last layer is registered first, as code that grew over time often does."""

    def __init__(self):
        super().__init__()
        self.head, self.stem, self.body = nn.Linear(8, 2), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.head(torch.tanh(self.body(torch.tanh(self.stem(x)))))


def names_in_buckets(replica):
    name_of = {p: name for name, p in replica.module.named_parameters()}
    return [name_of[p] for bucket in replica.reducer.buckets for p in bucket.parameters]


# Predict: In which order are its gradients put into buckets? In which order do they
# arrive? What does the bucket do that has the head's?

everyone()
if rank == 0:
    print("\n## The order of arrival\n")

replica = OwnDDP(Crossed(), bucket_bytes=1, first_bytes=1)
guessed = names_in_buckets(replica)
replica(torch.randn(3, 8)).sum().backward()  # deals anew when it ends
as_they_came = names_in_buckets(replica)

guessed_by_rank = to_rank_0(guessed)
as_they_came_by_rank = to_rank_0(as_they_came)
if rank == 0:
    play("kernel")
    guess, came = guessed_by_rank[0], as_they_came_by_rank[0]
    print("guessed:", *guess)
    print("arrived:", *came)

as_they_came_by_rank = to_rank_0(as_they_came)
if rank == 0:
    assert all(names == came for names in as_they_came_by_rank)
    assert {name.split(".")[0] for name in came[:2]} == {"head"}
    result("guessed_first", guess[0].split(".")[0])
    result("arrived_first", came[0].split(".")[0])

# The guess has (guessed_first) first, and what arrives first is (arrived_first). As no
# bucket overtakes another, the head's gradients, there first, would wait until all
# others are, in every step. So the first backward is used to take notes, and when it
# ends, `learn` deals the buckets again, in the order of arrival. It has to be the same
# on all ranks, so rank 0's is broadcast. PyTorch does this, too [pytorchreducer], as
# chapter 11 has seen.

# --- The same weights -----------------------------------------------------------------

# Is it right? The judge is PyTorch's wrapper, and a training without any ranks, on a
# model that has what wrappers stumble over: a layer used twice, tied weights, frozen
# ones, some that are never used, a layer that is used on some ranks only, and an output
# that is a dict. Every fourth step adds up two batches under `no_sync`.


class Awkward(nn.Module):
    """A model that has what wrappers stumble over. It returns a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Linear(8, 16), nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.sometimes, self.unused = nn.Linear(16, 16), nn.Linear(3, 3)
        self.tied, self.last = nn.Linear(16, 16), nn.Linear(16, 8, bias=False)
        self.tied.weight = self.twice.weight

    def forward(self, x, detour=False):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = torch.tanh(self.tied(self.frozen(x)))
        return {"y": self.last(x + self.sometimes(x) if detour else x)}


def loss_of(model, batch, r):
    """The loss of batch number `batch` of rank r, which may take the detour."""
    generator = torch.Generator().manual_seed(1000 * batch + r)
    x = torch.randn(5, 8, dtype=torch.float64, generator=generator)
    return model(x, detour=(batch + r) % 3 == 0)["y"].square().mean()


def train(wrap, steps=30):
    """The weights after some steps of all ranks; each comes with weights of its own."""
    torch.manual_seed(rank)
    replica = wrap(Awkward().double())
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        if step % 4 == 3:
            with replica.no_sync():
                loss_of(replica, steps + step, rank).backward()
        loss_of(replica, step, rank).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in replica.parameters()])


def train_alone(steps=30):
    """The same without ranks: one process computes all losses, from rank 0's weights."""
    torch.manual_seed(0)
    model = Awkward().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        for batch in [steps + step] * (step % 4 == 3) + [step]:
            for r in range(world_size):
                (loss_of(model, batch, r) / world_size).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


everyone()
if rank == 0:
    print("\n## The same weights\n")

play("ranks")

owns = train(functools.partial(OwnDDP, bucket_bytes=600, first_bytes=100))
pytorchs = train(functools.partial(DistributedDataParallel, find_unused_parameters=True))
alones = train_alone()
gaps = [(owns - other).abs().max().item() for other in (pytorchs, alones)]

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    play("kernel")
    gap_to_pytorch, gap_to_alone = np.max(gaps_by_rank, axis=0)
    assert gap_to_pytorch < 1e-12 and gap_to_alone < 1e-12

owns_of_all = to_rank_0(owns)
if rank == 0:
    assert all((weights == owns_of_all[0]).all() for weights in owns_of_all)
    result("gap_to_pytorch", gap_to_pytorch, varies=True)
    result("gap_to_alone", gap_to_alone, varies=True)

# After 30 steps in float64 the largest difference is (gap_to_pytorch) from PyTorch's
# and (gap_to_alone) from the training without ranks: last bits. Among the ranks there
# is none at all. `tests/chapters/test_wrappers.py` does 200 steps for 1, 2, 3 and 4
# ranks. It is a test suite for such wrappers: whatever PyTorch's promises, too, is
# tested on both.
#
# And as fast? Both are given the deep model, in turns.


def training_step(replica):
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)

    def step(x):
        backward(replica, x)
        optimizer.step()
    return step


everyone()
play("ranks")

own_and_pytorch = medians(
    [training_step(OwnDDP(deep())), training_step(DistributedDataParallel(deep()))],
    torch.randn(128, 224), repeats=9,
)

own_and_pytorch_by_rank = to_rank_0(own_and_pytorch)
if rank == 0:
    play("kernel")
    own_seconds, pytorch_seconds = np.max(own_and_pytorch_by_rank, axis=0)
    result("own_over_pytorch", own_seconds / pytorch_seconds, varies=True)

# It takes (own_over_pytorch) times as long as with PyTorch's, whose reducer is written
# in C++. (On a busy machine that moves by a tenth from run to run; `benchmarks/ddp.py`
# compares them in many turns, on three models.) C++ has little to win here: Python's
# part is a few microseconds for each parameter, and ours copies each gradient once,
# into the bucket. PyTorch's copies it back, too, unless it is made with
# `gradient_as_bucket_view=True`.

# --- Unequal data ---------------------------------------------------------------------

# A rank that has one batch less than the others leaves its loop, and the others wait
# for its gradients forever. With `join` it answers with zeros instead, until all are
# done:

everyone()
if rank == 0:
    print("\n## Unequal data\n")

play("ranks")
replica = OwnDDP(deep(2, 4, torch.float64))
optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
with replica.join():
    for k in range(2 + rank):  # rank r has 2 + r batches
        optimizer.zero_grad()
        replica(torch.full((3, 4), 1.0 + k, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
joined = torch.cat([p.detach().flatten() for p in replica.parameters()])

joined_of_all = to_rank_0(joined)
if rank == 0:
    play("kernel")
    assert all((weights == joined_of_all[0]).all() for weights in joined_of_all)

# All end with the same weights: those of a rank that went on longest, which the wrapper
# calls `ahead`. The mean still divides by the world size, so the late steps are shorter
# ones. And only the weights are equal: a rank that stopped early has missed updates of
# its optimizer's momentum. After the next ordinary step the ranks differ, with
# PyTorch's `join`, too, and nobody says so. Whoever needs that must broadcast the
# optimizer's state as well. With `join(throw_on_early_termination=True)` every rank
# gets an error as soon as one has no more data. Which is better? If the data are cut
# into equal parts anyway, an error.

# --- What do more ranks bring? --------------------------------------------------------

# Two questions go by the name of scaling. Strong: the batch stays as it is, and every
# rank takes a part of it. Weak: every rank has a batch of its own, so that all together
# have a larger one. We train with the first rank, the first two, and all, and lay the
# model over it. What one rank computes is measured; ranks that outnumber the cores take
# turns; and the rest is `overlapped_seconds`, with chapter 8's ring, its α and β from
# the two ranks above.
#
# Predict: Your machine's cores, this chapter's model, a batch of 512. What will two
# ranks bring, and what four? In which of the two questions is more to be had, and why?

everyone()
if rank == 0:
    print("\n## What do more ranks bring?\n")

play("ranks")
teams = sorted({1, 2, 4, world_size} & set(range(1, world_size + 1)))
groups = [dist.new_group(range(size)) for size in teams]  # everyone makes all of them


def scaling_steps(which, samples):
    """Median seconds of a step of the ranks in a team, for each number of samples."""
    group = groups[which]
    if rank >= teams[which]:
        return [float("nan")] * len(samples)
    step = training_step(OwnDDP(deep(), group))
    batches = [torch.randn(many, 224) for many in samples]
    return medians([lambda _, x=x: step(x) for x in batches], None, 5, group)


alone_on_parts = scaling_steps(0, [512 // size for size in teams])
scaling = []
for which, size in list(enumerate(teams))[1:]:
    dist.barrier()  # the others wait until this team is done
    scaling.append(scaling_steps(which, [512 // size, 512]))  # strong, weak
scaling_buckets = [bucket.buffer.nbytes for bucket in OwnDDP(deep()).reducer.buckets]


def ring_of(size, alpha, beta):
    """Latency (s) and bandwidth (bytes/s) of an all-reduce around a ring of `size` ranks.

    alpha, beta: those of a message between two neighbors.
    """
    rounds = 2 * (size - 1)
    return rounds * alpha, (beta * size / rounds if rounds else float("inf"))


teams_by_rank = to_rank_0(teams)
if rank == 0:
    play("kernel")
    team_sizes = np.array(teams_by_rank[0])

alone_on_parts_by_rank = to_rank_0(alone_on_parts)
scaling_buckets_by_rank = to_rank_0(scaling_buckets)
if rank == 0:
    parts_seconds, bucket_bytes = alone_on_parts_by_rank[0], scaling_buckets_by_rank[0]

scaling_by_rank = to_rank_0(scaling)
if rank == 0:
    of_teams = np.nanmax(scaling_by_rank, axis=0)
    strong_seconds, weak_seconds = np.concatenate([[parts_seconds[:1] * 2], of_teams]).T
    cores = os.cpu_count()


def predicted_step(size, computing):
    """A step of so many ranks on these cores; backward is two thirds of computing."""
    computing = computing * max(1, size / cores)
    fit = ring_of(size, gloo_fit[0] / 2, gloo_fit[1])  # with two ranks, a ring has two rounds
    return overlapped_seconds(bucket_bytes, computing / 3, computing * 2 / 3, *fit)


if rank == 0:
    strong_model = [predicted_step(size, c) for size, c in zip(team_sizes, parts_seconds)]
    weak_model = [predicted_step(size, parts_seconds[0]) for size in team_sizes]

if rank == 0:
    fig, axes = plt.subplots(1, 2, num="scaling", figsize=(5.2, 2.8), sharey=True)
    for ax, title, samples, seconds, by_model in (
        (axes[0], "strong", 1, strong_seconds, strong_model),
        (axes[1], "weak", team_sizes, weak_seconds, weak_model),
    ):
        ax.plot(team_sizes, np.minimum(team_sizes, cores), color="#595959", linestyle=":", linewidth=1)
        ax.plot(team_sizes, samples * seconds[0] / np.array(by_model), "C0", linewidth=1)
        ax.plot(team_sizes, samples * seconds[0] / seconds, "C0o")
        ax.set(title=title, xlabel="ranks", xticks=team_sizes, ylim=(0, None))
    axes[0].set_ylabel("samples/s, relative to 1 rank")
    save_figures()

if rank == 0:
    strong_gain, weak_gain = strong_seconds[0] / strong_seconds, weak_seconds[0] / weak_seconds
    result("strong_of_two", strong_gain[1], varies=True)
    result("weak_of_two", 2 * weak_gain[1], varies=True)
    result("strong_of_all", strong_gain[-1], varies=True)
    result("weak_of_all", team_sizes[-1] * weak_gain[-1], varies=True)

# Points are measured, lines predicted; the dotted line is the best that (cores) cores
# can do. (On a machine that is busy with other things, points can come out anywhere.)
# In samples a second, two ranks bring (strong_of_two) times as much in the strong
# question and (weak_of_two) times in the weak one; all ranks (strong_of_all) and
# (weak_of_all) times.
#
# The model says why weak is easier. The gradients are as large as before, whatever the
# batch is. Computing shrinks with the ranks in the strong question, and what it does
# not hide any more stays: a part that does not shrink, as in Amdahl's law [amdahl1967].
# In the weak one there is as much computing as before to hide behind. And where ranks
# share cores, nothing is to be had in either, as no model is needed to see. The lines
# are above the points where the cores that compute should send as well: the model's
# link sends by itself.

# --- Machines that you do not have ----------------------------------------------------

# Then let it predict machines whose links do. A model of 100 million parameters, its
# gradients 400 MB in float32, and 100 ms of computing on each rank; weak scaling,
# buckets of 25 MB. Three networks, each with its nominal speed in one direction:
# Ethernet with 10 Gbit/s, InfiniBand NDR with 400 Gbit/s [connectx7], and NVLink of the
# fourth generation with 450 GB/s [hopper]. (NVIDIA counts both directions and says 900;
# it connects 256 GPUs at most.) For the latency we assume 50 µs on Ethernet and 5 µs on
# the other two. A prediction is as good as its assumptions: take the shapes, not the
# digits.
#
# Predict: With which of them is 90 % of perfect scaling to be had on 8 ranks? On 1024?
# Where does it matter that the all-reduce is a ring?

if rank == 0:
    print("\n## Machines that you do not have\n")
    GRADIENT = [25e6] * 16  # bytes
    NETWORKS = {"Ethernet": (50e-6, 1.25e9), "InfiniBand": (5e-6, 50e9), "NVLink": (5e-6, 450e9)}
    many_ranks = 2 ** np.arange(0, 11)

    def efficiency(size, network, overlap=True, buckets=GRADIENT):
        """The share of a step that is spent computing, with so many ranks."""
        fit, computing = ring_of(int(size), *network), (0.033, 0.067)
        if overlap:
            return 0.1 / overlapped_seconds(buckets, *computing, *fit)
        return 0.1 / (0.1 + sum(fit[0] + nbytes / fit[1] for nbytes in buckets))

if rank == 0:
    fig, ax = plt.subplots(num="elsewhere")
    for i, (name, network) in enumerate(NETWORKS.items()):
        for overlap, style in ((True, "-"), (False, "--")):
            sizes_there = many_ranks[many_ranks <= (256 if name == "NVLink" else 1024)]
            shares = [efficiency(size, network, overlap) for size in sizes_there]
            ax.semilogx(sizes_there, shares, f"C{i}{style}", label=name if overlap else None)
    ax.set_xticks(many_ranks[::2], many_ranks[::2])
    ax.minorticks_off()
    ax.set(xlabel="ranks", ylabel="share of perfect scaling", ylim=(0, 1.05))
    ax.legend(title="dashed: no overlap", loc="center", bbox_to_anchor=(0.5, 0.45))
    save_figures()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


if rank == 0:
    result("ethernet_8", round(efficiency(8, NETWORKS["Ethernet"]), 2))
    result("infiniband_8", round(efficiency(8, NETWORKS["InfiniBand"]), 2))
    result("infiniband_8_after", round(efficiency(8, NETWORKS["InfiniBand"], overlap=False), 2))
    result("infiniband_1024", round(efficiency(1024, NETWORKS["InfiniBand"]), 2))
    in_four = efficiency(1024, NETWORKS["InfiniBand"], buckets=[100e6] * 4)
    result("infiniband_1024_in_four", round(in_four, 2))

# On Ethernet (ethernet_8) of perfect scaling is left with 8 ranks: sending takes
# several times as long as computing, and little can be hidden behind what is so short.
# Then only less communication helps (chapter 14). On InfiniBand overlap lifts
# (infiniband_8_after) to (infiniband_8); NVLink hardly needs it there. And on 1024
# ranks it is (infiniband_1024): a ring's latency grows with the ranks, 2 · 1023 rounds,
# and each of the buckets pays it. With four buckets of 100 MB it is
# (infiniband_1024_in_four): the size that is good on 8 ranks is bad on 1024. Where even
# one ring's latency is too much, libraries change to trees, whose rounds grow with the
# logarithm [nccltuning].

# --- What you can do now --------------------------------------------------------------

# - Average gradients in four ways, and say of each how many messages it sends, when,
#   and what the rest of the machine does meanwhile.
# - Read a timeline for overlap, and say whether it can gain anything on the machine at
#   hand.
# - Choose the size of a bucket from α, β and the time that backward takes.
# - Keep ranks in step: the same model, the same order of messages, a message for every
#   gradient that does not come, and nothing read before it is there.
# - Test a wrapper against a training without ranks and against PyTorch's.
# - Predict how a training scales, and say what the prediction leaves out.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/12_own_ddp.py
#
# With more hosts, the same file under `torchrun --nnodes`. `OwnDDP` is in
# `ranklab.taught.own_ddp`. What it lacks beside PyTorch's: several forwards before one
# backward, sparse gradients, a care for the streams of a GPU, and a way out where a
# rank's loss depends on no parameter at all (the others wait for it). For a training
# that matters, take PyTorch's. You know now what it does.

# --- Where to read on -----------------------------------------------------------------

# - [li2020]: why PyTorch's wrapper is as it is, by those who wrote it, with
#   measurements on 256 GPUs.
# - [sergeev2018]: Horovod, which brought ring all-reduce and one buffer for many
#   tensors to everybody's training.
# - [pytorchddpnotes]: the same design in PyTorch's documentation, with the names of the
#   files.
# - [amdahl1967]: the part that does not shrink.

leave_group()
