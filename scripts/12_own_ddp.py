# Chapter 12 of Many Ranks, One Model, as one script. Generated from book/12_own_ddp.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 12_own_ddp.py
#     torchrun --standalone --nproc-per-node 4 12_own_ddp.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 12_own_ddp.py
#     mpiexec -n 4 python 12_own_ddp.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install matplotlib numpy pygraphviz torch vl-convert-python  (for mpiexec also: mpich mpi4py)

import contextlib
import functools
import html
import io
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import weakref
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

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
        name, fits = choose_device(*mine, torch.cuda.device_count())
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
    torch.set_default_device(device)  # what a rank makes lies on its card
if device.type == "cuda" and backend == "gloo":
    send_over_host()
form_groups()


playing = "kernel"
APART = ["dealt", "link", "path", "what"]  # the kernel and the ranks have one each
held_by = {"ranks": {}}
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
torch.seed()  # the kernel's streams begin somewhere else
np.random.seed()
random.seed()


def play(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
        streams[before] = torch.get_rng_state(), np.random.get_state(), random.getstate()
        ours, numpys, pythons = streams[part]
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
    return before


# From ranklab.taught.training:


def now():
    """The time, once the GPU, if one is used, has done all it was asked."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


# === Your own DDP: communication behind backward ======================================

# With PyTorch's `DistributedDataParallel`, data parallelism is one line. What happens
# behind that line, and how much code does it take to write one that you would trust
# with a training of your own?
#
# 35 minutes to read, 14 predictions · 30 seconds to run · stands on chapter 8, chapter
# 10 and chapter 11
#
# The gradient of the whole batch is the mean of the ranks' gradients: chapter 10 has
# proven it. What is left is when to send what. You write four versions, each of which
# mends what is wrong with the one before, and then `OwnDDP`, which comes to the same
# weights as PyTorch's wrapper. At the end you can read a timeline for overlap, choose
# the size of a bucket, and predict what a faster link or more ranks will bring.

# --- One message for each parameter ---------------------------------------------------

# Something to train: a deep network of small layers that are all alike. Its loss is the
# mean of its squared outputs. `backward` computes the gradients, and `gradient_of` puts
# them all into one flat tensor.


def deep(layers=16, width=224, dtype=torch.float32):
    """A deep network, the same on every rank: 3.2 MB unless told otherwise."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers)
             for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts).to(dtype)


def backward(model, x):
    """Leave the gradients of a batch in .grad, and note when backward began."""
    model.zero_grad()
    loss = model(x).square().mean()
    backward.began = now()
    loss.backward()
    backward.ended = now()


def gradient_of(model):
    """All gradients of a model in one flat tensor."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


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


def wrong_by(make_step):
    """The largest error of an averaged gradient, in float64."""
    model, alone = (deep(6, 8, torch.float64) for _ in range(2))
    batch = torch.randn(5 * world_size, 8, dtype=torch.float64)
    backward(alone, batch)
    make_step(model)(batch[5 * rank : 5 * (rank + 1)])
    return (gradient_of(model) - gradient_of(alone)).abs().max().item()


def traced(make_step):
    """Of four steps of the deep model, the trace of the fastest."""
    step, x, traces, seconds = make_step(deep()), torch.randn(128, 224), [], []
    for _ in range(4):
        dist.barrier()
        began = now()
        with trace() as t:
            step(x)
        seconds.append(now() - began)
        traces.append(t)
    of_slowest = torch.tensor(seconds)
    dist.all_reduce(of_slowest, op=dist.ReduceOp.MAX)
    return traces[int(of_slowest.argmin())]


# The first version is chapter 10's: compute all gradients, then average one after the
# other.


def one_a_parameter(model):
    def step(x):
        backward(model, x)
        for p in model.parameters():  # chapter 10's average_gradients
            p.grad /= world_size
            dist.all_reduce(p.grad)
    return step


if rank == 0:
    print("\n## One message for each parameter\n")

play("ranks")

error_1, t_1 = wrong_by(one_a_parameter), traced(one_a_parameter)
many_tensors = len(list(deep().parameters()))


def packed(value):
    """The bytes of a value."""
    with io.BytesIO() as file:
        torch.save(value, file)
        return file.getvalue()


def unpacked(data, place):
    """The value of these bytes, its tensors on the device `place`."""
    return torch.load(io.BytesIO(data), map_location=place, weights_only=False)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(packed(value), values, group=driver)
    values = values and [unpacked(data, "cpu") for data in values]
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
        return plt.close(value)
    if hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


# Predict:
#
# 16 layers, each with a weight and a bias. How many all-reduces is that in a step? And
# what does a rank compute while they are under way?

many_tensors_by_rank = to_rank_0(many_tensors)
if rank == 0:
    play("kernel")
    result("messages_1", many_tensors_by_rank[0])

t_1_by_rank = to_rank_0(t_1)
if rank == 0:
    show(timeline(t_1_by_rank, name="one-a-parameter"))


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# (messages_1) all-reduces: a long row of hatched pieces after the backward pass.
# Meanwhile a rank computes next to nothing: the thin lines are the divisions by the
# world size. A rank whose backward ends before the others' waits for them, drawn in
# white. Half of the messages carry a bias, 224 numbers, and pay the same latency as a
# weight of 50,176.
#
# This chapter shortens the hatched part, and then moves it under the full color.

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

# Predict: What is better now in the timeline? What is not?

error_1_by_rank = to_rank_0(error_1)
error_2_by_rank = to_rank_0(error_2)
if rank == 0:
    play("kernel")
    assert max(error_1_by_rank + error_2_by_rank) < 1e-14

t_2_by_rank = to_rank_0(t_2)
if rank == 0:
    show(timeline(t_2_by_rank, name="one-for-all"))

# Better: one latency in place of (messages_1). And what became of `.grad`? It is no
# longer a tensor of its own but a view, a window into the flat one. That saves copying
# everything back.
#
# Two things are still bad. There is a second copy of all gradients, made anew in every
# step. And the message cannot leave before the last gradient is there, that of the
# first layer. All others are ready and wait for it.

# --- Buckets --------------------------------------------------------------------------

# The middle way: several tensors, made once and used in every step. Such a tensor is a
# bucket. A bucket knows how many of its gradients are `missing`; when none is, it can
# be sent.


class Bucket:
    """Gradients that travel together: a buffer, and a view for each of them."""

    def __init__(self, parameters):
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        # Behind the gradients, a number for each: how many ranks have it.
        self.buffer = parameters[0].detach().new_zeros(sum(sizes) + len(sizes))
        *parts, self.present = self.buffer.split([*sizes, len(sizes)])
        self.views = [part.view(p.shape) for part, p in zip(parts, parameters)]

    def begin(self):
        self.missing, self.work = len(self.parameters), None
        self.present.fill_(1)

    def put(self, i, n):
        """Put 1 / n of parameter i's gradient in; .grad is then a view."""
        p = self.parameters[i]
        self.missing -= 1
        if p.grad is None:
            self.views[i].zero_()
            self.present[i] = 0
        else:
            torch.mul(p.grad, 1 / n, out=self.views[i])
            p.grad = self.views[i]


# `begin` starts a step: all gradients are missing, and nothing has been sent. `put`
# copies a gradient to its place and divides it by the number of ranks, so that the sum
# over the ranks will be the mean. Its last line makes `.grad` a view, as before.
#
# You can pass over `present` for now. It counts for each parameter how many ranks have
# a gradient, and is of use only when one is missing. It lies in the same tensor, so it
# needs no message of its own.
#
# Into which bucket does a parameter go? The first bucket should be the one that is full
# first. chapter 2 has shown that backward goes through the layers from the last to the
# first, and modules are mostly registered in the order in which they are used. So go
# through the parameters in reverse, and close a bucket when it is large enough. A
# bucket is one tensor, so each type of number and each device has buckets of its own.


def in_buckets(parameters, bucket_bytes, first_bytes=None):
    """Deal parameters into Buckets, in order, each of one type and device.

    A bucket is closed as soon as it has `bucket_bytes` bytes, the first one
    with `first_bytes`.
    """
    full, filling = [], {}
    for p in parameters:
        some = filling.setdefault((p.dtype, p.device), [])
        some.append(p)
        limit = bucket_bytes if full or first_bytes is None else first_bytes
        if sum(q.nbytes for q in some) >= limit:
            full.append(filling.pop((p.dtype, p.device)))
    return [Bucket(some) for some in [*full, *filling.values()]]


# Predict: The 3.2 MB go into buckets of 512 KiB. How many buckets are there, and which
# layers' gradients are in the first one?

everyone()
if rank == 0:
    print("\n## Buckets\n")

play("ranks")
some_model = deep()
parameter_names = [f"{int(name.split('.')[0]) // 2 + 1}.{name.split('.')[1]}"
                   for name, _ in some_model.named_parameters()][::-1]
some_buckets = in_buckets([*some_model.parameters()][::-1], 512 << 10)
in_each = [len(bucket.parameters) for bucket in some_buckets]
bucket_kb = [bucket.buffer.nbytes >> 10 for bucket in some_buckets]

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


plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


parameter_names_by_rank = to_rank_0(parameter_names)
if rank == 0:
    play("kernel")
    rest = (name.replace(".", "\n") for name in parameter_names_by_rank[0])
    fig, ax = plt.subplots(num="layout", figsize=(5.2, 2.6))

in_each_by_rank = to_rank_0(in_each)
if rank == 0:
    for row, many in enumerate(in_each_by_rank[0]):
        ax.barh([row] * many, 0.94, left=range(many), height=0.84,
                color=pale("C0", 0.4), edgecolor="C0")
        ax.barh(row, 0.94, left=many, height=0.84, hatch="////",
                color=pale("C0", 0.75), edgecolor="C0")
        for place, text in zip(range(many), rest):
            ax.text(place + 0.47, row, text, ha="center", va="center", fontsize=8)
    ax.set(ylim=(row + 0.5, -0.5), xticks=[], yticks=range(row + 1))
    ax.set_ylabel("bucket")
    ax.grid(False)
    result("n_buckets", row + 1)

bucket_kb_by_rank = to_rank_0(bucket_kb)
if rank == 0:
    result("bucket_kb", bucket_kb_by_rank[0])
    save_figures()

# (n_buckets) buckets, of (bucket_kb) KiB: with the third layer a bucket has 512 KiB or
# more, and is closed. The first one holds the last three layers. The hatched end of
# each holds `present`.
#
# From here to the wrapper the code is a ladder: each class is the one before, and one
# thing more.
#
# | class | what it adds |
# | --- | --- |
# | `Dealt` | a place in a bucket for every trained parameter |
# | `InBuckets` | a bucket that is full is sent |
# | `Overlapped` | gradients are put in while backward computes |
# | `InOrder` | all ranks send their buckets in the same order |
# | `Complete` | backward waits for all messages, and sends zeros for gradients that did not come |
# | `Armed` | not every backward averages |
# | `Reducer` | buckets in the order in which gradients arrive |
# | `Replicated` | the same start on all ranks, and when to arm |
# | `Shared`, `OwnDDP` | `no_sync`, buffers; and `join` |
#
# The first two rungs deal the parameters, and send each bucket when it is full:


class Dealt:
    """The trained parameters of a model, dealt into buckets."""

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


class InBuckets(Dealt):
    """Averages gradients in buckets, each of which is sent when it is full."""

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
        bucket.work = self.all_reduce(
            bucket.buffer, group=self.group, async_op=True)

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
play("ranks")

error_3 = wrong_by(lambda model: in_several(model, 1000))
t_3 = traced(in_several)

# This is the third version. It makes its buckets once, and not in every step. But as
# long as all of it happens after backward, no message is hidden. Now one can be.

# --- While backward computes ----------------------------------------------------------

# Autograd offers a hook that it calls when the gradient of a parameter is complete, in
# the middle of backward: `register_post_accumulate_grad_hook`. All that has to be done
# is to put the gradient into its bucket and, if it was the last one missing there, to
# send the bucket off.
#
# `put` and `send` are as they were; they are only called earlier. With `async_op=True`
# an all-reduce returns at once, with a handle to wait on (chapter 7). Backward goes on,
# and another thread, Gloo's, carries the bytes.


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

error_4 = wrong_by(lambda model: during_backward(model, 1000))
t_4 = traced(during_backward)

# Predict: What will be different in the timeline? Will the step be shorter on a machine
# with as many cores as ranks? And on one where the ranks share too few cores?

error_3_by_rank = to_rank_0(error_3)
error_4_by_rank = to_rank_0(error_4)
if rank == 0:
    play("kernel")
    assert max(error_3_by_rank + error_4_by_rank) < 1e-14

t_4_by_rank = to_rank_0(t_4)
if rank == 0:
    show(timeline(t_4_by_rank, name="overlapped"))

# Hatching under the full color: gradients are on their way while others are still being
# computed. Where one message follows another without a gap, they look like one bar. Is
# the step shorter, too, on this machine or on another? A picture of one step cannot
# say. A clock can.

# --- What overlap gains ---------------------------------------------------------------

# All four versions take turns, and after them a step that averages nothing, for
# comparison.


def turns(steps, x, repeats=5, group=None):
    """Seconds of each of `steps` (rows) in turns; nan outside of `group`."""
    seconds = torch.full((len(steps), repeats), torch.nan).double()
    for k in range(-1 if dist.get_rank(group) >= 0 else repeats, repeats):
        for step, row in zip(steps, seconds):
            dist.barrier(group)
            start = now()
            step(x)
            if k >= 0:  # the first turn warms up
                row[k] = now() - start
    return seconds.tolist()


everyone()
if rank == 0:
    print("\n## What overlap gains\n")

play("ranks")

versions = one_a_parameter, one_for_all, in_several, during_backward
steps = [make(deep()) for make in versions]
steps.append(functools.partial(backward, deep()))
version_seconds = turns(steps, torch.randn(128, 224))


def of_slowest(seconds):
    return 1e3 * np.nanmax(seconds, axis=0)


version_seconds_by_rank = to_rank_0(version_seconds)
if rank == 0:
    play("kernel")
    version_ms = of_slowest(version_seconds_by_rank)
    median_ms = np.median(version_ms, axis=1)
    names = "message for each", "one for all", "buckets", "in backward", "none sent"
    for what, median, ms in zip(names, median_ms, version_ms):
        print(f"{what:>16}: {median:5.1f} ms ({min(ms):.1f} to {max(ms):.1f})")
    result("first_over_second", median_ms[0] / median_ms[1], varies=True)
    result("fourth_over_third", median_ms[3] / median_ms[2], varies=True)
    result("message_ms", (median_ms[0] - median_ms[1]) / 31, varies=True)

# The first version takes (first_over_second) times as long as the second, for the same
# bytes. Each additional message costs it about (message_ms) ms, as a rank waits for
# each before it starts the next. The third sends only (n_buckets). Compared with the
# second it pays a few more latencies. In return it copies into tensors that it already
# has, and a bucket travels while the next one is filled. But filling is only copying,
# and short. The fourth sends during backward, which lasts longer than filling. Is its
# step shorter? Here it takes (fourth_over_third) times as long as the third. If the
# ranges printed for these two overlap, that ratio says little.
#
# Here the cores carry the bytes themselves, and a core that sends does not compute.
# Where no core is to spare, whatever is sent earlier takes its time from backward:
# overlap fills waiting, and removes no work. A spare core could send, but shares its
# memory with those that compute. So what overlap gains here says little about a
# cluster.
#
# There a network card sends by itself, and it is slower than memory. So let two of the
# ranks have the machine to themselves, and give them such a network, a `Link`. Their
# all-reduce is the real one, but its handle is not done before a slower link would have
# been done. In the meantime the rank sleeps and needs no core.

everyone()
play("ranks")
pair = dist.new_group([0, 1])
nbytes = sum(p.nbytes for p in deep().parameters())  # of all gradients


class Link:
    """A network for two ranks: latency (s), bandwidth (bytes/s)."""

    def __init__(self, latency, bandwidth):
        self.latency, self.bandwidth = latency, bandwidth
        self.free, self.log = 0.0, []

    def all_reduce(self, x, group=None, async_op=True):
        begin = max(now(), self.free)  # one after the other
        self.free = begin + self.latency + x.nbytes / self.bandwidth
        self.log.append((begin, self.free))
        real = dist.all_reduce(x, group=pair, async_op=True)
        return Transfer(real, self.free)


class Transfer:
    """The handle: done when the real one is, and not before its time."""

    def __init__(self, work, until):
        self.work, self.until = work, until

    def wait(self):
        self.work.wait()
        time.sleep(max(0, self.until - time.perf_counter()))


# How slow? Its bandwidth sends all gradients in half the time that the two ranks
# compute. Its latency is a fortieth of that time, so that (n_buckets) messages are
# noticeable. With such a link overlap can gain much. As computing never lasts equally
# long, each turn begins with a step that sends nothing, and the link is set by that.
#
# Predict: Sending takes more than half as long as computing. What share of the step can
# overlap save? And can it hide anything behind forward?

everyone()
x, links = torch.randn(256, 224), [Link(0, 1) for _ in range(2)]
ways = [make_step(deep(), all_reduce=each.all_reduce) for make_step, each
        in zip((in_several, during_backward), links)]


def timed(step, log):
    """When a step, its forward and its backward ended, and its messages."""
    log.clear()
    dist.barrier(pair)
    start = now()
    step(x)
    marks = now(), backward.began, backward.ended
    return ([1e3 * (mark - start) for mark in marks],
            [(1e3 * (a - start), 1e3 * (b - a)) for a, b in log])


def turn():
    """A step each way on a link that is set just before: (ms, steps, link)."""
    computing = torch.tensor(timed(steps[-1], [])[0][0]) / 1e3
    dist.all_reduce(computing, op=dist.ReduceOp.MAX, group=pair)
    link = computing.item() / 40, nbytes / (0.5 * computing.item())
    for each in links:
        each.latency, each.bandwidth = link
    after, during = (timed(way, each.log) for way, each in zip(ways, links))
    return after[0][0] + during[0][0], (after, during), link


found = [turn() for _ in range(7 if rank < 2 else 0)]


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play("kernel")
    box = [packed(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return unpacked(box[0], device)


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


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


# The two rows are the third and the fourth version on that link, rank 0, in the turn in
# which both together were fastest. Below the bars of computing are the messages under
# way. A gray line is the end of a step, and beside it stands how long the rank has
# waited after backward.

found_by_rank = to_rank_0(found)
if rank == 0:
    play("kernel")
    _, after_and_during, link = min(found_by_rank[0])

push("link", lambda: link)
if rank == 0:
    fig, ax = plt.subplots(num="overlap", figsize=(5.2, 2.6))
    for row, ((end, forward, ended), sent) in enumerate(after_and_during):
        ax.broken_barh([(0, forward), (forward, ended - forward)],
                       (row - 0.35, 0.35),
                       facecolors=(pale(RANK_COLORS[0], 0.4), RANK_COLORS[0]))
        for a, b, what in ((0, forward, "forward"), (forward, ended, "backward")):
            fits = b - a > 0.13 * end
            ax.text((a + b) / 2, row - 0.175, what * fits, ha="center",
                    va="center", fontsize=8, color="white" if a else "black")
        ax.broken_barh(sent, (row + 0.02, 0.3), facecolor=pale(RANK_COLORS[0]),
                       edgecolor=RANK_COLORS[0], hatch="//////", linewidth=0.6)
        ax.text(sent[0][0], row + 0.35, "messages", va="top", fontsize=8)
        ax.vlines(end, row - 0.42, row + 0.42, color="#595959", linewidth=1.5)
        ax.text(end, row, f" waited\n {end - ended:.0f} ms", va="center", size=8)
    ax.set_yticks([0, 1], ["after\nbackward", "during\nbackward"])
    ax.set(xlabel="time since the step began (ms)", ylim=(1.55, -0.5),
           xlim=(0, 1.2 * max(marks[0] for marks, _ in after_and_during)))
    ax.grid(False, axis="y")
    after, during = (end - ended for (end, _, ended), _ in after_and_during)
    assert during < after or not cores_are_free()
    result("link_gain", during / after, varies=True)
    result("link_step", end / after_and_during[0][0][0], varies=True)
    result("link_most", 1 - 1 / (1.5 + len(sent) / 40))  # as the link is set
    save_figures()


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

# In the lower row messages hide behind backward. What is left to wait for after it is
# (link_gain) of what it was in the upper row. That is not all gain: its bars of
# computing may be longer, as a message needs a core, too, which the next section
# counts. The whole step takes (link_step) of the upper one's time.
#
# If all of the sending could hide, that would save (link_most) of the upper step, by
# the numbers of the link. But behind forward nothing can hide: while it runs there is
# no gradient to send. So overlap saves at most the smaller of the two, the sending and
# backward, and somewhat less: nothing leaves before the first bucket is full, and the
# last bucket is full only when backward ends.

# --- Extra: overlap, as a card's meter sees it ----------------------------------------

# Does a meter show whether messages are hidden? On cards the next cell makes 500 steps
# of the third version and 500 of the fourth, while `sampled` watches (chapter 4). On a
# CPU it makes none: steps that are so short take too many for a meter that looks ten
# times a second.

everyone()
play("ranks")

with sampled(device=device) as meter:
    for way, step in zip(("after", "during"), steps[2:4]):
        with meter.phase(f"{way} backward"):
            for _ in range(500 * (device.type == "cuda")):
                step(x)

if recorded:
    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        play("kernel")
        mine = [each for each in meter_by_rank if each.about["uuid"]]
        stored = recorded("12_own_ddp-cards", mine)
        cards = mine or [*stored.values()]
        show(utilization_plot(cards, name="cards") if cards else print("None yet."))

# Compare how long the two phases last, rather than how high the readings are. With NCCL
# an all-reduce is a kernel itself, so a card that waits in one counts as busy. With
# Gloo the host sends, and the readings fall while a card waits. The recording is of
# four ranks that share a card, with Gloo: with messages during backward the same steps
# take about a sixth less time, and the readings are higher.

# --- How large a bucket? --------------------------------------------------------------

# Small buckets leave early, but every one of them pays the latency. Large ones save
# latencies, but the first one leaves late, and the last one ends long after backward.
#
# Which size is best? Chapter 8's model of a message, α + bytes / β, can say it. In the
# code below `full` is when a bucket is full, and `free` is when the link has sent it: a
# bucket leaves when it is full and the link is free.
#
# `busy` is a correction. A message also keeps the core that computes from its work for
# a moment, to start it and to copy and add.


def overlapped_seconds(bucket_bytes, forward, backward, alpha, beta,
                       core=(0.0, float("inf"))):
    """Seconds of a step in which such buckets are sent during backward.

    forward, backward: seconds of computing; gradients arrive evenly during
    backward. An all-reduce takes alpha + bytes / beta seconds. core: the same
    two numbers for what it takes of the core that computes.
    """
    there, free, busy = 0, 0.0, 0.0
    for nbytes in bucket_bytes:
        there += nbytes
        full = forward + backward * there / sum(bucket_bytes) + busy
        free = max(full, free) + alpha + nbytes / beta
        busy += core[0] + nbytes / core[1]
    return max(free, forward + backward + busy)


# The link's α and β are what we made them. The cost on the cores is measured by itself:
# the operating system counts how long all threads of a process have kept a core busy,
# those of Gloo included. We count all of it against the core that computes, which is
# too much where cores are to spare.
#
# Predict: Between one bucket for all and one for each tensor: where is the step
# shortest? And with one for each, what takes longer, the link or the core?


def core_seconds(nbytes, rounds=10, messages=5):
    """Seconds for which an all-reduce keeps a core busy: the best round."""
    box, found = torch.zeros(nbytes // 4), []
    for _ in range(rounds):
        dist.barrier(pair)
        start = time.process_time()
        for _ in range(messages):
            dist.all_reduce(box, group=pair)
        found.append((time.process_time() - start) / messages)
    return min(found)


everyone()
if rank == 0:
    print("\n## How large a bucket?\n")

play("ranks")

fit_sizes = [4 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20]
costs = [core_seconds(n) if rank < 2 else float("nan") for n in fit_sizes]

# Then the steps: over the same link, with buckets of six sizes. In the figure the line
# is computed, and the points are measured.

everyone()
limits = [1, 150 << 10, 300 << 10, 600 << 10, 1500 << 10, 4 << 20]
order = [*deep().parameters()][::-1]
dealt = [[b.buffer.nbytes for b in in_buckets(order, each)] for each in limits]
by_bucket = turns(
    [deep(), during_backward(deep(), all_reduce=lambda *_, **how: None),
     *(during_backward(deep(), limit, all_reduce=Link(*link).all_reduce)
       for limit in limits)], x, 7, pair)

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
    ahead, computing, *by_link = of_slowest(by_bucket_by_rank).min(axis=1)

fit_sizes_by_rank = to_rank_0(fit_sizes)
costs_by_rank = to_rank_0(costs)
if rank == 0:
    core = latency_bandwidth(fit_sizes_by_rank[0], np.nanmax(costs_by_rank, 0))

play("ranks")
dealt_by_rank = to_rank_0(dealt)
if rank == 0:
    play("kernel")
    dealt = dealt_by_rank[0]
    parts = ahead / 1e3, (computing - ahead) / 1e3

    predicted = np.array([1e3 * overlapped_seconds(b, *parts, *link, core)
                          for b in dealt])

if rank == 0:
    fig, ax = plt.subplots(num="bucket-size")
    n_messages = [len(each) for each in dealt]
    ax.semilogx(n_messages, predicted, "C0", label="predicted")
    ax.semilogx(n_messages, by_link, "C1o", label="measured")
    ax.axhline(computing, color="#595959", linestyle=":", label="computing alone")
    ax.set_xticks(n_messages, n_messages)
    ax.minorticks_off()
    ax.set(xlabel="buckets, and so messages, in a step",
           ylabel="time of a step (ms)", ylim=(0, None))
    ax.legend(ncols=2)
    save_figures()

if rank == 0:
    best = int(np.argmin(by_link))
    off = np.abs(np.log(by_link / predicted))

device_by_rank = to_rank_0(device)
if rank == 0:
    if device_by_rank[0].type == "cpu" and cores_are_free():
        assert by_link[best] < min(by_link[0], by_link[-1])
        assert link[0] > core[0]  # a message keeps the link longer than a core
        assert max(off) < np.log(2), by_link / predicted
    result("whole_over_best", by_link[-1] / by_link[best], varies=True)
    result("single_over_best", by_link[0] / by_link[best], varies=True)
    result("predicted_single", predicted[0] / by_link[0], varies=True)
    result("alpha_us", round(1e6 * link[0]), varies=True)
    result("core_us", round(1e6 * core[0]), varies=True)
    result("fit_off", np.exp(max(off)), varies=True)

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


def line_chart(x, y, log="", domain=None):
    """Lines through points: rows have `x`, `y` and, for several lines, `which`.

    x, y: what the axes say, with units. log: "x", "y" or "xy". domain: of y, (from, to).
    """
    encoding = {
        "x": _axis("x", x, "x" in log),
        "y": _axis("y", y, "y" in log, domain),
        "color": _which(),
    }
    dash = {"field": "which", "type": "nominal", "sort": None, "legend": None}
    line = {"mark": {"type": "line", "clip": True}, "encoding": encoding | {"strokeDash": dash}}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 50, "clip": True},
        "encoding": encoding,
    }
    return {"layer": [line, dots]}


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


# On the link both ends lose: one bucket for everything takes (whole_over_best) times as
# long as the best number, and a message for each tensor (single_over_best) times. On
# the left nothing overlaps. On the right you pay for every tensor: the link takes α for
# it, here (alpha_us) µs, and the core (core_us) µs, each with a little for every byte.
# The line counts both. No point is off it by more than a factor of (fit_off); for 32
# messages it says (predicted_single) of the measured time.
#
# PyTorch's choice is 25 MiB [li2020], after a first bucket of 1 MiB, so that something
# is under way early, as chapter 11 has said.
#
# For another link or another model, another number is best. The extra says how to
# compute it.


def by_bucket_size(gradient_MB, backward_ms, link, microseconds_a_message):
    total, backward, lines = gradient_MB * 1e6, backward_ms / 1e3, []
    for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256):
        seconds = overlapped_seconds([total / k] * k, backward / 2, backward,
                                     microseconds_a_message / 1e6, link / 2)
        lines.append({"x": k, "y": seconds / 1.5 / backward, "which": "a step"})
    alone = [{"x": k, "y": 1, "which": "computing alone"} for k in (1, 256)]
    best = min(lines, key=lambda point: point["y"])
    ms = [1.5 * backward_ms * point["y"] for point in (best, lines[0])]
    says = (f"shortest with {best['x']} buckets of "
            f"{gradient_MB / best['x']:.3g} MB: {ms[0]:.3g} ms;\n"
            f"with one for all {ms[1]:.3g} ms")
    return says, lines + alone


if rank == 0:
    show(playable(
        by_bucket_size,
        line_chart("buckets", "time of a step, computing = 1", log="x"),
        name="play-buckets",
        alt="Time of a step against the number of buckets, beside computing "
        "alone. It falls at first and rises again where latencies add up.",
        gradient_MB=[400, 100, 1600],
        backward_ms=[40, 10, 160],
        link={"Ethernet, 12.5 GB/s": 12.5e9, "InfiniBand, 50 GB/s": 50e9,
              "NVLink, 450 GB/s": 450e9},
        microseconds_a_message=[100, 10, 1000],
    ))

# --- Extra: the best number of buckets ------------------------------------------------

# Take k equal buckets of a gradient of S bytes, T seconds of backward, and a link that
# sends by itself.
# - The link keeps up if it has sent each bucket before the next one is full. Then only
#   the last bucket is left when backward ends, α + S/(kβ) seconds. More buckets are
#   better, by less and less. It keeps up with at most (T − S/β)/α of them.
# - Beyond that it never rests. It begins after T/k, when the first bucket is full, and
#   is done kα + S/β later. The sum is least for k = √(T/α).
#
# Call the first number a = (T − S/β)/α, the second b = √(T/α). Up to a, more buckets
# help; beyond a, only up to b. So the best number is the larger of the two:
# `tests/chapters/test_seconds_predicted.py` holds it against the best of 400, for four
# networks.

# --- Three ways to get it wrong -------------------------------------------------------

# The fourth version is the one to keep, and it is dangerous. Three mistakes follow. The
# first two give wrong weights without a word; the third one stops the training. Each
# has a remedy, and two of the remedies are the next rungs.

# --- Reading too early ----------------------------------------------------------------

# Predict: The last rank is late. Rank 0 has finished its backward and reads `.grad`
# before it has called `finish`. What is in it?
#
# So that rank 0 is sure to read first, the last rank waits for a word from it before it
# computes.

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
in_the_end = gradient_of(model)

in_the_end_by_rank = to_rank_0(in_the_end)
if rank == 0:
    play("kernel")
    first, *others = in_the_end_by_rank

early_by_rank = to_rank_0(early)
if rank == 0:
    assert not (early_by_rank[0] == first).all()
    assert all((grads == first).all() for grads in others)

# Something that is not yet the mean: `.grad` is a view into a bucket, and the bucket
# belongs to the all-reduce until its `wait()`. An optimizer that steps now leaves the
# ranks with different weights. The remedy: a wrapper must wait by itself, before
# `backward()` returns. How it can comes with the third mistake.

# --- In another order -----------------------------------------------------------------

# Here are two layers of the same shape, and the data decide which of them comes first.
# On rank 0 it is the other one. With a limit of 1 byte, each layer has a bucket of its
# own.
#
# Predict: Every rank computes both gradients, of the right shapes, and sends both
# buckets. What can go wrong?


def two_layers():
    torch.manual_seed(0)
    return [nn.Linear(4, 4, bias=False).double() for _ in range(2)]


def forked(kind):
    """Gradients of left and of right, averaged; rank 0 uses right first."""
    left, right = two_layers()
    average = kind([left.weight, right.weight], (1,))
    average.begin()
    x = torch.full((1, 4), 1.0 + rank, dtype=torch.float64)
    one, other = (right, left) if rank == 0 else (left, right)
    torch.tanh(other(torch.tanh(one(x)))).sum().backward()
    average.finish()
    return left.weight.grad.clone(), right.weight.grad.clone()


everyone()
play("ranks")

mixed = forked(Overlapped)

mixed_by_rank = to_rank_0(mixed)
if rank == 0:
    play("kernel")
    left, right = zip(*mixed_by_rank)
    assert (left[0] == right[1]).all() and (left[0] != left[1]).any()

# Rank 0's gradient of left is rank 1's gradient of right, to the last bit. On rank 0
# the buckets were full in another order, so its first all-reduce was about left and the
# others' was about right. The shapes agree, and nothing else is looked at (chapter 7).
# There is no error, only wrong gradients in every step.
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

unmixed = forked(InOrder)

unmixed_by_rank = to_rank_0(unmixed)
if rank == 0:
    play("kernel")
    assert all((g == of[0]).all() for of in zip(*unmixed_by_rank) for g in of)

# --- A gradient that never comes ------------------------------------------------------

# Predict: One rank does not use a layer in this step: no sample of its batch asked for
# it. Who notices, and when?

# Rank 1 has gone on to the next step and waits in its barrier. The others wait in
# `finish`, for the sum of a bucket that rank 1 never filled. With PyTorch's wrapper the
# others wait, too, and rank 1 is told at its next forward pass (chapter 11), unless
# `find_unused_parameters=True` lets the wrapper look for such parameters.

# The remedy: at the end of backward, fill what is missing with zeros, and send it. For
# that, somebody must say that backward has ended. Autograd can: a hook may queue a
# callback for the end of the backward that it is called in. The call, `queue_callback`,
# is not in PyTorch's documentation, but PyTorch's own sharding uses it.
#
# So the first hook of a backward queues `finish`. With that, the first mistake is
# mended, too: `finish` waits for all messages before `backward()` returns.
#
# But is a zero the same as no gradient? For the mean it is. For an optimizer with
# momentum or weight decay it is not: it moves a weight whose gradient is zero, and
# skips one that has none [zerograd]. So a parameter that no rank used must keep `None`.
# One that some rank used must have the mean everywhere.
#
# No rank can know by itself which of the two it is. Here `present` is of use: it has
# been summed along with the gradients, and says how many ranks have one.


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


# The last loop is about the parameters that this rank did not use. If some other rank
# did, `.grad` becomes the view, and so the mean; if none did, it stays as it was.

# --- The reducer ----------------------------------------------------------------------

# PyTorch calls this part the reducer. One thing is missing in ours: not every backward
# is to average. Gradients may be accumulated over several of them first (gradient
# accumulation), and whoever evaluates or debugs calls the model, too.
#
# So the reducer has three states. While it is idle, gradients pass it by. A forward
# makes it armed. The first gradient after that makes it averaging, and the end of that
# backward makes it idle again.
#
# Predict: All ranks find a NaN in their loss and skip the backward. In which state is
# the reducer, and what should the next forward do with it? And if a backward fails
# halfway, with messages under way?


def refuse_after_failure():
    raise RuntimeError(
        "A backward failed while its gradients were averaged, and its "
        "messages may be under way. Wrap the model again, on all ranks.")


def refuse_late_gradient():
    raise RuntimeError(
        "A gradient came after its averaging, and would stay this rank's own. "
        "With checkpoint(), use use_reentrant=False.")


class Armed(Complete):
    """Averages in the backward that it is armed for, and in no other."""

    state, absent = "idle", ()

    def arm(self):
        """Make the next backward average: on all ranks of the group."""
        if self.state == "averaging":
            refuse_after_failure()
        self.begin()
        self.state, self.absent = "armed", ()

    def on_gradient(self, p):
        again = self.state == "averaging" and p in self.arrived
        if again or p in self.absent:
            refuse_late_gradient()
        if self.state != "idle":
            self.state = "averaging"
            super().on_gradient(p)

    def finish(self):
        super().finish()
        self.state = "idle"


everyone()
if rank == 0:
    print("\n## The reducer\n")

play("ranks")
model, x = deep(2, 4), torch.ones(3, 4)
reducer = Armed(model.parameters())
path = [("", reducer.state)]
backward(model, x)  # not armed: it passes by
model[0].bias.register_post_accumulate_grad_hook(
    lambda _: path.append(("first gradient", reducer.state)))
for what, act in (("arm", reducer.arm), ("arm", reducer.arm),
                  ("finish", lambda: backward(model, x)), ("arm", reducer.arm)):
    act()
    path.append((what, reducer.state))
model[0].weight.register_hook(lambda _: 1 / 0)
refused = []
for attempt in (lambda: backward(model, x), reducer.arm):
    try:
        attempt()
    except (ZeroDivisionError, RuntimeError) as error:
        refused.append(str(error))

# From ranklab.plots:

# torch and Graphviz in one process crash, so Graphviz gets a process of its own.
_RENDER = """
import sys, pygraphviz
sys.stdout.buffer.write(pygraphviz.AGraph(sys.stdin.read()).draw(format="svg", prog="dot"))
"""


class Drawing:
    """An SVG picture that a notebook shows below a cell."""

    def __init__(self, svg, name):
        self.svg = svg
        self.name = name

    def _repr_svg_(self):
        return self.svg

    def __repr__(self):
        return f"<drawing {self.name}>"


def drawing(dot, name, alt):
    """Lay out a graph with Graphviz and return it as a picture.

    dot: the graph in Graphviz's DOT language (a string).
    name: the picture's name, from which a script makes its file name.
    alt: what is to be seen, for those who cannot see it.

    Raises ValueError if Graphviz cannot read the graph.
    """
    run = subprocess.run(
        [sys.executable, "-c", _RENDER], input=dot.encode(), capture_output=True, timeout=60
    )
    if run.returncode:
        raise ValueError(f"Graphviz could not draw {name!r}: {run.stderr.decode().strip()}")
    return Drawing(_labeled(run.stdout.decode(), alt), name)


def _labeled(svg, alt):
    """The <svg> element alone, with a description for those who cannot see it."""
    svg = svg[svg.index("<svg") :]
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)


refused_by_rank = to_rank_0(refused)
if rank == 0:
    play("kernel")
    assert all("Wrap the model again" in said[-1] for said in refused_by_rank)

play("ranks")
path_by_rank = to_rank_0(path)
if rank == 0:
    play("kernel")
    path = path_by_rank[0]
    edges = dict.fromkeys((a, *step) for (_, a), step in zip(path, path[1:]))
    show(drawing(
        "digraph {rankdir=LR; node [style=rounded shape=box fontname=Helvetica]; "
        "edge [fontname=Helvetica]; "
        + "".join(f'{a} -> {b} [label=" {by} "];' for a, by, b in edges)
        + 'averaging -> refused [label=" arm " style=dashed]; '
        "refused [shape=plaintext]}",
        name="states",
        alt="arm leads from idle to armed and from armed to armed, a gradient to "
        "averaging, finish back to idle; arm while averaging to the word refused.",
    ))

# Whoever skips a backward leaves it armed, and the next forward arms it again: nothing
# is lost.
#
# A backward that fails leaves it averaging, with messages under way into the very
# buckets that a second try would fill. So `arm` refuses, in a sentence, and the model
# has to be wrapped again.
#
# A gradient can also come too late. Chapter 2 named activation checkpointing: keep less
# and compute it again. A reentrant checkpoint runs a backward inside the backward, and
# `finish` comes at the end of the inner one. What arrives after it would stay the
# rank's own, so `on_gradient` refuses that.

# --- The order of arrival -------------------------------------------------------------

# Reverse order of registration is a guess. This model registers its layers in another
# order than it uses them, as code that grew over time often does:

everyone()
play("ranks")
layers = nn.ModuleDict({
    "head": nn.Linear(8, 2), "stem": nn.Linear(8, 8), "body": nn.Linear(8, 8)})


def crossed(x):
    return layers["head"](torch.tanh(layers["body"](layers["stem"](x))))


# Predict: In which order are its gradients put into buckets? In which order do they
# arrive? What does the bucket do that has the head's?
#
# The remedy: the first backward is used to take notes. When it ends, `learn` deals the
# buckets again, in the order of arrival. It has to be the same on all ranks, so rank
# 0's is broadcast. `send_zeros` is for ranks that run out of batches; you can pass over
# it.


class Reducer(Armed):
    """Averages, in buckets in the order of arrival: after Li et al. (2020)."""

    learning = True

    def finish(self):
        super().finish()
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
        """Take part in a backward of the others, without gradients."""
        self.arm()
        for p in self.trained:
            p.grad = None
        self.finish()


# In which order does it send, before and after one step?

everyone()
name_of = {p: name for name, p in layers.named_parameters()}
reducer, orders = Reducer(layers.parameters(), (1,)), []
for _ in range(2):
    orders.append([name_of[b.parameters[0]] for b in reducer.buckets])
    reducer.arm()
    crossed(torch.randn(3, 8)).sum().backward()

orders_by_rank = to_rank_0(orders)
if rank == 0:
    play("kernel")
    guess, came = orders_by_rank[0]
    print("guessed:", *guess, "\narrived:", *came)

orders_by_rank = to_rank_0(orders)
if rank == 0:
    assert all(orders == [guess, came] for orders in orders_by_rank)
    assert guess[0].startswith("body") and came[0].startswith("head")

# The guess has the body first, and what arrives first is the head. As no bucket
# overtakes another, the head's gradients, there first, would wait until all others are,
# in every step. PyTorch learns the order, too [pytorchreducer], as chapter 11 has seen.

# --- The wrapper ----------------------------------------------------------------------

# The reducer averages. What is left is everything around it, and that is the wrapper's:
# the same start on all ranks, and the decision when to arm.
#
# All ranks must begin with the same weights, and so with the same model. A broadcast
# trusts the order of the parameters, as the buckets do. If a rank has built its layers
# in another order, weights and gradients of one layer go into another; and if only the
# shapes agree, nothing is said. So there are two helpers. `demand_equal` compares
# names, shapes and types, and `broadcast_all` gives everyone rank 0's tensors, a
# message for each type.


def demand_equal(module, group=None):
    """Raise ValueError, on every rank, where a rank's model is not rank 0's.

    Compared are the names, shapes and types of its tensors, their order, and
    which are trained; one at least must be.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    mine = [f"{name} {tuple(t.shape)} {t.dtype}" + ", trained" * t.requires_grad
            for name, t in tensors]
    of_rank = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_rank, mine, group=group)
    for r, theirs in enumerate(of_rank):
        for k, (a, b) in enumerate(zip([*of_rank[0], "missing"],
                                       [*theirs, "missing"])):
            if a != b:
                raise ValueError(
                    f"The ranks' models differ. Tensor {k} is {a} on rank 0, "
                    f"and {b} on rank {r}. Build the same model on every rank, "
                    "its layers in the same order.")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("No parameter of this model is trained: there is "
                         "nothing to average.")


def broadcast_all(tensors, src=0, group=None):
    """Give all ranks the tensors of rank src of the group, in place."""
    kinds = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t.detach())
    for same in kinds.values():
        flat = torch.cat([t.flatten() for t in same])
        dist.broadcast(flat, group_src=src, group=group)
        if dist.get_rank(group) != src:
            for t, values in zip(same, flat.split([t.numel() for t in same])):
                t.copy_(values.view_as(t))


def remove_all(hooks):
    """Hooks go with their wrapper: else they live as long as the model."""
    for hook in hooks:
        hook.remove()


# The wrapper compares, broadcasts, and makes a reducer. The forward pass arms it once
# it has its result. So all ranks decide the same, if all call their model; and a
# forward that fails leaves the reducer as it was.


class Replicated(nn.Module):
    """A replica of `module` on each rank, whose backward averages."""

    def __init__(self, module, group=None, all_reduce=dist.all_reduce,
                 bucket_bytes=25 << 20, first_bytes=1 << 20):
        super().__init__()
        self.module, self.group, self.sync = module, group, True
        demand_equal(module, group)
        broadcast_all([*module.parameters(), *module.buffers()], 0, group)
        limits = bucket_bytes, first_bytes
        self.reducer = Reducer(module.parameters(), limits, group, all_reduce)
        weakref.finalize(self, remove_all, self.reducer.hooks)

    def forward(self, *inputs, **named):
        """Call the module. Its backward averages, if gradients are wanted."""
        averages = self.sync and torch.is_grad_enabled()
        self.before(averages)
        output = self.module(*inputs, **named)
        if averages:
            self.reducer.arm()
        elif torch.is_grad_enabled():
            self.reducer.absent = ()  # whatever comes now is welcome
        return output


# Two things come next. A forward under `no_sync()` does not arm: its backward only
# accumulates. It also empties `absent`, for a gradient that is not to be averaged is
# never late.
#
# And `before` sees to the buffers, tensors of a model that are not trained, such as the
# running means of a batch norm: rank 0's are given to all. `ahead` is the rank whose
# buffers they are: 0, unless in a `join`.


class Shared(Replicated):
    """With no_sync(), and with buffers that are rank 0's on all ranks."""

    ahead, buffers_due = 0, True

    def before(self, averages):
        """Give all the buffers, if the forward before was to average."""
        if self.buffers_due:
            broadcast_all(self.module.buffers(), self.ahead, self.group)
        self.buffers_due = averages

    @contextlib.contextmanager
    def no_sync(self):
        """Forwards in here leave their gradients, to be added to later ones."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


# Only one part is left: `join`, for ranks that have fewer batches than others. It is
# folded here, and an extra below says how it is used.


class OwnDDP(Shared):
    """Data parallelism: a replica of `module` on each rank of a group.

    All start with rank 0's weights. After backward() each .grad is the mean
    over the ranks (untouched, unless one used its parameter) and a view into a
    bucket: clone it to keep it. all_reduce: called as dist.all_reduce is, with
    async_op; behind the gradients stands how many ranks have each. Raises
    ValueError where models differ or nothing is trained.
    """

    joining = False

    def before(self, averages):
        if self.joining:
            self._anyone_goes_on(1 + averages)
        super().before(averages)

    @contextlib.contextmanager
    def join(self, throw_on_early_termination=False):
        """Who has no more batches goes on with zeros; all end with the weights
        of one that went on longest. Or, to throw, all raise RuntimeError then.
        """
        self.joining, self.throw = True, throw_on_early_termination
        try:
            yield
            while what := self._anyone_goes_on(0):
                super().before(what == 2)
                if what == 2:
                    self.reducer.send_zeros()
            everything = [*self.module.parameters(), *self.module.buffers()]
            broadcast_all(everything, self.ahead, self.group)
        finally:
            self.joining, self.ahead = False, 0

    def _anyone_goes_on(self, mine):
        """Tell what I do: 2, a step that averages; 1, a forward; 0, no more.
        Return what those do who go on; the last of them is `ahead`.
        """
        doing = next(self.module.parameters()).new_zeros(self.reducer.n)
        doing[dist.get_rank(self.group)] = mine
        dist.all_reduce(doing, group=self.group)
        there = [r for r, what in enumerate(doing.tolist()) if what]
        done = [r for r, what in enumerate(doing.tolist()) if not what]
        if self.throw and there and done:
            raise RuntimeError(
                f"No more batches on ranks {done}, but on {there}.")
        self.ahead = max(there, default=self.ahead)
        return int(max(doing))


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


# Predict: On rank 0 the same three layers are built in another order. All have the same
# shape. What would happen without the comparison, and what happens with it?

everyone()
if rank == 0:
    print("\n## The wrapper\n")

play("ranks")
with may_fail():
    # in another order on rank 0, as a loop over a set may do
    names = sorted(["left", "right", "middle"], reverse=rank == 0)
    show(OwnDDP(nn.ModuleDict({name: nn.Linear(4, 4) for name in names})), rank)

# Without it nobody would have noticed, as with the fork above. With it, every rank says
# which tensor it is.

# --- Extra: five decisions of the wrapper ---------------------------------------------

# In `tests/chapters/`, `test_wrappers.py` and `test_wrappers_survive.py` run all but
# the third with PyTorch's wrapper, too.
# - The forward decides. Not backward: `no_sync` is about the forwards in it, and the
#   backward of such a forward leaves its gradients to be added to the next one's.
# - One forward, one averaging. After two forwards, one backward of both losses together
#   is right, for a model without buffers. With batch norm the second forward overwrites
#   what the first one has saved: every rank but rank 0 gets autograd's error of chapter
#   2, and rank 0 waits. PyTorch's wrapper hides that write from autograd. Two backwards
#   are not: the first one uses up the averaging, and what the second one adds stays the
#   rank's own. Neither wrapper notices; chapter 10's `drift` does, after the step.
# - A backward that fails is final. A retry is refused, and never writes into a buffer
#   that is under way.
# - Buffers are given to all by rank 0, before a forward that follows one that averages.
#   They are not averaged.
# - The hooks go with the wrapper. A model that is wrapped again, as happens to whoever
#   runs a cell twice, would else be averaged by both.

# --- The same weights -----------------------------------------------------------------

# Is it right? There are two judges: PyTorch's wrapper, and a training without any
# ranks. The model has what wrappers stumble over: a layer used twice, tied weights,
# frozen ones, some that are never used, a layer that is used on some ranks only, and an
# output that is a dict. Every fourth step adds up two batches under `no_sync`.
#
# Predict: After 20 steps in float64, how far are the weights from PyTorch's? How far
# are the ranks' weights from each other?


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
    generator = torch.Generator(device).manual_seed(1000 * batch + r)
    x = torch.randn(5, 8, dtype=torch.float64, generator=generator)
    return model(x, detour=(batch + r) % 3 == 0)["y"].square().mean()


def train(wrap=None):
    """The weights after 20 steps; without `wrap`, of one process alone."""
    torch.manual_seed(rank if wrap else 0)  # the wrapper must make them equal
    model = wrap(Awkward().double()) if wrap else Awkward().double()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for step in range(20):
        optimizer.zero_grad()
        for batch in [20 + step, step] if step % 4 == 3 else [step]:
            later = wrap and batch >= 20
            with model.no_sync() if later else contextlib.nullcontext():
                for r in [rank] if wrap else range(world_size):
                    share = 1 if wrap else world_size
                    (loss_of(model, batch, r) / share).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


everyone()
if rank == 0:
    print("\n## The same weights\n")

small = {"bucket_bytes": 600, "first_bytes": 100}
owns = train(lambda model: OwnDDP(model, **small))
pytorchs = train(lambda model: DistributedDataParallel(
    model, find_unused_parameters=True))
gaps = [(owns - other).abs().max().item() for other in (pytorchs, train())]

owns_by_rank = to_rank_0(owns)
if rank == 0:
    play("kernel")
    first, *others = owns_by_rank
    assert all((weights == first).all() for weights in others)

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    for other, gap in zip(("pytorch", "alone"), np.max(gaps_by_rank, axis=0)):
        assert gap < 1e-12
        result(f"gap_to_{other}", gap, varies=True)

# After 20 steps in float64 the largest difference is (gap_to_pytorch) from PyTorch's
# and (gap_to_alone) from the training without ranks: last bits. Among the ranks there
# is none at all. `tests/chapters/test_wrappers.py` does 60 steps for 1, 2, 3 and 4
# ranks. It is a test suite for such wrappers: what PyTorch's promises is tested on
# both.
#
# And as fast? PyTorch's reducer is written in C++. `benchmarks/ddp.py` compares the two
# in many turns, on three models.

# --- Extra: ranks with fewer batches --------------------------------------------------

# A rank that has one batch less than the others leaves its loop, and the others wait
# for its gradients forever. Inside `with replica.join():` it answers with zeros
# instead, until all are done. All end with the same weights: those of a rank that went
# on longest, which the wrapper calls `ahead`. The mean still divides by the world size,
# so the late steps are shorter ones. And only the model is equal: a rank that stopped
# early has missed updates of its optimizer's momentum. So with momentum the ranks
# differ after the next ordinary step, with PyTorch's `join`, too
# (`tests/chapters/test_wrappers_join.py`), and nobody says so. Whoever goes on training
# with momentum must broadcast the optimizer's state as well. With
# `join(throw_on_early_termination=True)` every rank gets an error as soon as one has no
# more data. Which is better? If the data are cut into equal parts anyway, an error.

# --- What do more ranks bring? --------------------------------------------------------

# Two questions go by the name of scaling. Strong scaling: the batch stays as it is, and
# the more ranks there are, the smaller is the part of each. Weak scaling: every rank
# keeps as many samples as before, so that all together have a larger batch. Perfect is
# a step in which nobody waits for gradients.
#
# `overlapped_seconds` can answer both for machines whose links send by themselves.
# These are its links:
#
# | link | one direction | latency, assumed |
# | --- | --- | --- |
# | Ethernet, 10 Gbit/s | 1.25 GB/s | 50 µs |
# | InfiniBand NDR, 400 Gbit/s [connectx7] | 50 GB/s | 5 µs |
# | NVLink 4, up to 256 GPUs [hopper] | 450 GB/s | 5 µs |
#
# And this is what runs on them:
# - An H100 does at most 989 TFLOP/s with bfloat16 [h100]; we assume that it reaches 40
#   % of that.
# - A model of 10⁹ parameters takes 6 · 10⁹ FLOP for each token, a third of them
#   forward. Its gradients are 2 GB in bfloat16, in buckets of 25 MB.
# - Each GPU has 16,384 tokens a step, however many GPUs there are: weak scaling.
# - All GPUs are on one ring over one kind of link, and sending takes nothing of their
#   processors.
#
# The last one is the boldest. A real cluster has NVLink within a machine and InfiniBand
# between machines, and NCCL's sums keep a part of each GPU busy. So take the shapes of
# the curves, not their digits.


def ring_of(size, alpha, beta):
    """Latency and bandwidth of an all-reduce around a ring of `size` ranks.

    alpha (s), beta (bytes/s): those of a message between two neighbors.
    """
    rounds = 2 * (size - 1)
    return rounds * alpha, beta * size / rounds if rounds else float("inf")


if rank == 0:
    print("\n## What do more ranks bring?\n")
    BUCKETS, FLOPS = [25e6] * 80, 0.4 * 989e12
    NETWORKS = {"Ethernet": (50e-6, 1.25e9), "InfiniBand": (5e-6, 50e9),
                "NVLink": (5e-6, 450e9)}

    def efficiency(size, network, tokens=16384, overlap=True, buckets=BUCKETS):
        """The share of a step that is spent computing, with so many GPUs."""
        alpha, beta = ring_of(int(size), *NETWORKS[network])
        forward, backward = 2e9 * tokens / FLOPS, 4e9 * tokens / FLOPS
        if overlap:
            seconds = overlapped_seconds(buckets, forward, backward, alpha, beta)
        else:
            sending = sum(alpha + nbytes / beta for nbytes in buckets)
            seconds = forward + backward + sending
        return (forward + backward) / seconds

# Predict: With which links is 90 % of perfect scaling to be had on 8 GPUs? On 1024?
# Where does it matter that the all-reduce is a ring?

if rank == 0:
    many, far = 2 ** np.arange(0, 11), {"NVLink": 256}
    fig, ax = plt.subplots(num="elsewhere")
    for label, style in (("with overlap", "-"), ("without", "--")):
        ax.plot([], [], style, color="#595959", label=label)
        for name, color in zip(NETWORKS, ("C0", "C1", "C2")):
            sizes = many[many <= far.get(name, 1024)]
            shares = [efficiency(n, name, overlap=style == "-") for n in sizes]
            ax.semilogx(sizes, shares, color + style)
    for name, at, color in zip(NETWORKS, (4, 512, 256), ("C0", "C1", "C2")):
        ax.text(1.15 * at, efficiency(at, name) + 0.02, name, color=color)
    ax.set_xticks(many[::2], many[::2])
    ax.minorticks_off()
    ax.set(xlabel="GPUs", ylabel="share of perfect scaling", xlim=(0.8, 3000),
           ylim=(0, 1.05))
    ax.legend(loc="center left", bbox_to_anchor=(0.14, 0.42))
    save_figures()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


if rank == 0:
    four, link = [500e6] * 4, "InfiniBand"
    result("ethernet_8", round(efficiency(8, "Ethernet"), 2))
    result("infiniband_8", round(efficiency(8, link), 2))
    result("infiniband_8_after", round(efficiency(8, link, overlap=False), 2))
    result("infiniband_1024", round(efficiency(1024, link), 2))
    result("in_four_1024", round(efficiency(1024, link, buckets=four), 2))
    result("strong_64", round(efficiency(64, link, tokens=16384 // 8), 2))
    result("weak_64", round(efficiency(64, link), 2))
    assert efficiency(8, link, buckets=four) < efficiency(8, link)
    assert efficiency(8, "NVLink", overlap=False) > 0.9

# 8 GPUs. On Ethernet (ethernet_8) of perfect scaling is left: sending takes more than
# ten times as long as computing, and little can be hidden behind what is so short. Then
# only less communication helps: fewer bits, or fewer steps that need it. On InfiniBand
# overlap lifts (infiniband_8_after) to (infiniband_8), rounded. NVLink is above 0.9
# even without.
#
# 1024 GPUs. With these buckets no link reaches 90 %: NVLink ends at 256, and InfiniBand
# is at (infiniband_1024). Here the ring matters: its latency grows with the ranks, 2 ·
# 1023 rounds, and each of the buckets pays it. With four buckets of 500 MB it is
# (in_four_1024), though on 8 GPUs the small buckets are better. Where even one ring's
# latency is too much, libraries change to trees, whose rounds grow with the logarithm
# [nccltuning].
#
# Weak and strong. Go from 8 GPUs to 64 on InfiniBand. In the weak question the share is
# (weak_64). In the strong one, with an eighth of the tokens on each, it is (strong_64).
# The gradients are as large as before, and there is less computing to hide them behind:
# a part that does not shrink, as in Amdahl's law (chapter 1).
#
# How many tokens a GPU needs for its gradients to hide, chapter 11 has computed:
# whether the model is large or small does not matter.

# --- What you can do now --------------------------------------------------------------

# - Average gradients in four ways, and say of each how many messages it sends, when,
#   and what the rest of the machine does meanwhile.
# - Read a timeline for overlap, and say whether it can gain anything on the machine at
#   hand.
# - Choose the size of a bucket from α, β, the time that backward takes, and what a
#   message costs the cores.
# - Keep ranks in step: the same model, the same order of messages, a message for every
#   gradient that does not come, and nothing read before it is there.
# - Test a wrapper against a training without ranks and against PyTorch's.
# - Predict what more ranks bring, and on which link.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/12_own_ddp.py
#
# With more hosts, the same file under `torchrun --nnodes`. `OwnDDP` is in
# `ranklab.taught.own_ddp`. What it lacks beside PyTorch's: two forwards of a batch norm
# before one backward, sparse gradients, `static_graph`, care for the streams of a GPU,
# and a way out where a rank's loss depends on no parameter at all: the others wait for
# it. Averaging happens where gradients are accumulated: `torch.autograd.grad`
# accumulates none, so nothing is averaged. A reentrant checkpoint is refused.
# `create_graph=True` and `torch.compile` are untested; PyTorch's has a DDPOptimizer
# that cuts a compiled graph where its buckets end. And `OwnDDP` sums in the gradients'
# own type, where trainings in bfloat16 often sum in float32. For a training that
# matters, take PyTorch's. You know now what it does.

# --- Where to read on -----------------------------------------------------------------

# - [li2020]: why PyTorch's wrapper is as it is, by those who wrote it, with
#   measurements on 256 GPUs.
# - [sergeev2018]: Horovod, which brought ring all-reduce and one buffer for many
#   tensors to everybody's training.
# - [pytorchddpnotes]: the same design in PyTorch's documentation, with the names of the
#   files.
# - [amdahl1967]: the part that does not shrink.

leave_group()
