# Chapter 11 of Many Ranks, One Model, as one script. Generated from book/11_ddp.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 11_ddp.py
#     torchrun --standalone --nproc-per-node 4 11_ddp.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 11_ddp.py
#     mpiexec -n 4 python 11_ddp.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install matplotlib numpy scikit-learn torch  (for mpiexec also: mpich mpi4py)

import io
import os
import random
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler


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
    limit = timedelta(seconds=15)
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
form_groups()


playing = "kernel"
APART = ["alone", "costs", "meters", "name", "outputs", "samples", "step", "weights"]  # the kernel and the ranks have one each
held_by = {"ranks": {}}
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
cards_ = {"ranks": torch.cuda.get_rng_state()} if device.type == "cuda" else {}
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
        if device.type == "cuda":
            torch.set_default_device(device if part == "ranks" else None)
            cards_[before] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(cards_[part])
    return before


# === DistributedDataParallel (DDP): the line that everybody writes ====================

# You wrap the model in `DistributedDataParallel`, change two more lines, and four
# processes train one network. What does the wrapper send, and when? And what is left
# for you to do?
#
# 30 minutes to read, 11 predictions · 30 seconds to run · stands on chapter 10
#
# At the end you can turn a training loop into a data-parallel one, prove that it is the
# same training, and say which messages DDP sends at what moment. You can divide the
# loss correctly when ranks have different numbers of samples, accumulate gradients with
# one all-reduce, and choose batch, learning rate, workers and seeds when ranks are
# added.

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # see "Determinism"


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
    before = play("kernel")
    box = [packed(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return unpacked(box[0], device)


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


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


if rank == 0:
    BATCH = 16 * world_size
    (images, classes), (test_images, test_classes) = digits()
    full = len(classes) // BATCH * BATCH
    images, classes = images[:full].double(), classes[:full]

train_set = from_rank_0(lambda: (images, classes))
batch = from_rank_0(lambda: BATCH)
if rank == 0:
    result("training_samples", full)
    result("n_ranks", world_size)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


everyone()
play("ranks")



cross_entropy = nn.functional.cross_entropy

# From ranklab.taught.training:


class MLP(nn.Module):
    """Linear layers without bias, and tanh between them.

    sizes: of the input, of each hidden layer, and of the output.
    """

    def __init__(self, sizes, seed=0):
        super().__init__()
        self.layers = nn.ModuleList()
        for place, (n_in, n_out) in enumerate(pairwise(sizes)):
            layer = nn.Linear(n_in, n_out, bias=False, device="cpu")
            generator = torch.Generator().manual_seed(1000 * seed + place)
            nn.init.kaiming_uniform_(layer.weight, generator=generator)
            self.layers.append(layer)
        self.to(torch.get_default_device())  # drawn on the CPU, as everywhere

    def forward(self, x):
        """x: (batch, sizes[0]). Returns (batch, sizes[-1]), for each class."""
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.tanh(layer(x))
        return last(x)


# --- Three lines ----------------------------------------------------------------------

# Here is chapter 3's network, on chapter 10's digits, trained by all ranks together.
# Three lines differ from a loop for one process, and they are marked: a sampler that
# deals each rank its share of the samples, the wrapper, and the line that tells the
# sampler which epoch it is.
#
# Each rank takes 16 samples a step, so the batch of all ranks together is 16 times
# their number.


def network(seed=0):
    return MLP([64, 48, 48, 10], seed).double()


everyone()
if rank == 0:
    print("\n## Three lines\n")

X, y = train_set
sampler = DistributedSampler(range(len(X)))  # changed: a share of the samples
model = DDP(network(seed=rank))  # changed: the wrapper
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)  # changed: each epoch has an order of its own
    with torch.device("cpu"):  # where the sampler's generator is
        order = torch.tensor(list(sampler))
    for mine in order.split(16):
        loss = cross_entropy(model(X[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
trained = [p.detach().clone() for p in model.parameters()]

# Predict: Every rank starts with weights of its own and sees other samples. One process
# trains as well, with the whole batches. After three epochs, are the weights of the
# ranks equal? Are they those of the one process? And are the losses that the ranks note
# equal?

everyone()
if rank == 0:
    play("kernel")
    sampler_of_one = DistributedSampler(range(full), num_replicas=1, rank=0)
    alone = MLP([64, 48, 48, 10], seed=0).double()
    losses_alone = []
    for number in range(3):
        sampler_of_one.set_epoch(number)
        for samples in torch.tensor(list(sampler_of_one)).split(BATCH):
            whole_loss = torch.nn.functional.cross_entropy(
                alone(images[samples]), classes[samples]
            )
            alone.zero_grad()
            whole_loss.backward()
            with torch.no_grad():  # a step of SGD, by hand
                for weights in alone.parameters():
                    weights -= 0.2 * weights.grad
            losses_alone.append(whole_loss.item())


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(packed(value), values, group=driver)
    values = values and [unpacked(data, "cpu") for data in values]
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

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


losses_by_rank = to_rank_0(losses)
if rank == 0:
    of_ranks = np.array(losses_by_rank)
    fig, ax = plt.subplots(num="three-lines")
    for r, of_rank in enumerate(of_ranks):
        ax.plot(of_rank, color=f"C{r}", linewidth=0.7, label=f"rank {r}")
    ax.plot(of_ranks.mean(axis=0), color="0.8", linewidth=6, label="their mean")
    ax.plot(losses_alone, "k.", markersize=5, label="one process")
    ax.set(xlabel="step", ylabel="training loss", ylim=(0, None))
    ax.legend(ncols=2)
    save_figures()

trained_by_rank = to_rank_0(trained)
if rank == 0:
    first, *others = trained_by_rank
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other))
    apart = [(a - b).abs().max().item() for a, b in zip(first, alone.parameters())]
    assert max(apart) < 1e-12
    assert np.abs(of_ranks.mean(axis=0) - losses_alone).max() < 1e-12
    assert of_ranks.std(axis=0).min() > 1e-3  # the ranks' own losses differ
    result("steps", len(losses_alone))
    result("weights_apart", max(apart), varies=True)

# From ranklab.taught.sync_sgd:


@torch.no_grad()
def broadcast_parameters(model, src=0, group=None):
    """Give every rank, in place, the parameters and buffers of rank src."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, group_src=src, group=group)


def average_gradients(model, weight=None, group=None):
    """Replace every gradient by the sum over the ranks of weight * gradient.

    weight: this rank's share m_k / n of the batch, by default 1 / world size.
    A parameter must have a gradient on all ranks or on none.
    """
    weight = 1 / dist.get_world_size(group) if weight is None else weight
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= weight
            dist.all_reduce(parameter.grad, group=group)


# The ranks have equal weights, to the last bit. Those of the one process differ by
# (weights_apart) after (steps) steps, which is rounding.
#
# The losses differ from rank to rank, since each rank notes the loss of its own
# samples. Only their mean is the loss of the batch, so a log that has rank 0's loss
# alone has another number.

# --- What the line replaces -----------------------------------------------------------

# Here is a step of chapter 10, and beside it the same with DDP.

everyone()
if rank == 0:
    print("\n## What the line replaces\n")

play("ranks")
mine = slice(rank, batch, world_size)  # this rank's part of a batch

by_hand = network(seed=rank)
broadcast_parameters(by_hand)
cross_entropy(by_hand(X[mine]), y[mine]).backward()
average_gradients(by_hand)

wrapped = DDP(network(seed=rank))
cross_entropy(wrapped(X[mine]), y[mine]).backward()


def all_gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


gap = (all_gradients(by_hand) - all_gradients(wrapped)).abs().max().item()

# Predict: Both average the gradients of the same samples at the same weights. Are the
# gradients equal: to the last bit, nearly, or not?

gaps = to_rank_0(gap)
if rank == 0:
    play("kernel")
    assert max(gaps) < 1e-15
    assert world_size > 2 or max(gaps) == 0
    result("gap", max(gaps), varies=True)


def left_out_(view):
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
    timeline = left_out_("timeline")
    trace = untraced
    traffic = left_out_("traffic")

# Nearly: they differ by at most (gap). Chapter 10 sends one all-reduce for each
# parameter, and DDP one for many at once. With more than two ranks that can change the
# order in which the ranks' numbers are added. With two ranks there is only one order,
# and the bits are equal.
#
# `DDP(model)` takes the place of three things: `broadcast_parameters`,
# `average_gradients`, and the care to call the second one after every `backward`.
#
# On GPUs there is one more argument. The launcher sets `LOCAL_RANK`, as in chapter 5. A
# script of your own calls `init_process_group` before these lines, which `Ranks` has
# done for this page:
#
# ```python
# local_rank = int(os.environ["LOCAL_RANK"])   # which of this host's GPUs
# torch.cuda.set_device(local_rank)
# model = DDP(model.to(local_rank), device_ids=[local_rank])
# ```
#
# `device_ids` is a list of one number, the GPU on which the model already is. Inputs
# and labels go to that GPU, too. On a CPU there is nothing to name, and DDP refuses the
# argument.

# --- When it wraps --------------------------------------------------------------------

# Predict: The ranks come with different weights. Which collectives must `DDP(model)`
# call, before any data has been seen? And how many messages carry the weights of a
# model of three parameters?

everyone()
if rank == 0:
    print("\n## When it wraps\n")

play("ranks")
candidate = network(seed=rank)
with trace() as t:
    replica = DDP(candidate)
first_weights = [p.detach().clone() for p in candidate.parameters()]

first_weights_by_rank = to_rank_0(first_weights)
if rank == 0:
    play("kernel")
    of_rank_0, *of_others = first_weights_by_rank
    for other in of_others:
        assert all(torch.equal(a, b) for a, b in zip(of_rank_0, other))
    expected = MLP([64, 48, 48, 10], seed=0).double().parameters()
    assert all(torch.equal(a, b) for a, b in zip(of_rank_0, expected))
    numbers = sum(weights.numel() for weights in of_rank_0)
    result("bytes_of_the_model", 8 * numbers)

# Three collectives run. First comes an all-gather of one number: how many parameters
# has each rank? Then come rank 0's shapes, which every rank compares with its own
# [pytorchreducer]. Last comes chapter 10's broadcast, packed: the three parameters are
# one message of (bytes_of_the_model) bytes.
#
# The weights are made equal once and never again. If `model` is changed on one rank
# afterwards, by loading a checkpoint on rank 0 alone for instance, the ranks differ for
# good, and there is no error.
#
# Buffers, such as the running means of batch normalization, are another matter. They
# are sent from rank 0 before the first forward pass, and again before each one that
# follows a forward pass with gradients. So we count the broadcasts in four forward
# passes, two with gradients and two without:

everyone()
play("ranks")
replica = DDP(nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)).double())
four_traces = []
for training in (True, True, False, False):
    with torch.set_grad_enabled(training), trace() as t:
        replica(X[mine])
    four_traces.append(t)

# The third forward pass is without gradients and still sends the buffers, for one with
# gradients came before it. So the first evaluation after a training step communicates.
# To evaluate on rank 0 alone, call `replica.module`, the model inside: with `replica`,
# rank 0 may wait for ranks that do not come.

# --- During backward ------------------------------------------------------------------

# Predict: The last layer's gradient is ready first, the first layer's last. When can
# the all-reduce of the last layer's gradient begin? And when does it begin, in the very
# first step and in the second one?
#
# DDP packs gradients into pieces of memory, called buckets, and sends one all-reduce
# for each.
#
# To see what is in a bucket we need a communication hook: a function that DDP calls for
# each bucket in place of its own all-reduce. Ours notes which parameters the bucket
# holds, and then calls PyTorch's hook that sends it.


def watched(model, **options):
    """Wrap a model; return it, and a list to which all-reduces add names."""
    names = {p.data_ptr(): name for name, p in model.named_parameters()}
    calls, replica = [], DDP(model, **options)

    def note(state, bucket):
        held = [names[p.data_ptr()] for p in bucket.parameters()]
        calls.append(" ".join(name.removesuffix(".weight") for name in held))
        return default_hooks.allreduce_hook(None, bucket)

    replica.register_comm_hook(None, note)
    return replica, calls


# The model has four square layers, registered as a, b, c, d and used as d, b, a, c. The
# backward pass goes the other way, so c's gradient comes first, and d's last.


class Crossed(nn.Module):
    def __init__(self, width):
        super().__init__()
        for name in "abcd":
            self.add_module(name, nn.Linear(width, width, bias=False))

    def forward(self, x):
        for layer in (self.d, self.b, self.a, self.c):
            x = torch.tanh(layer(x))
        return x


def two_steps(n_rows=256, **options):
    """The buckets of a first and of a second step, and a trace of both."""
    (replica, calls), buckets = watched(Crossed(768), **options), []
    dist.barrier()
    with trace() as t:
        for which in ("first step", "second step"):
            with torch.profiler.record_function(which):
                replica(torch.ones(n_rows, 768)).sum().backward()
            buckets.append(list(calls))
            calls.clear()
    return buckets, t


everyone()
if rank == 0:
    print("\n## During backward\n")

buckets, t = two_steps(bucket_cap_mb=1)


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
    play("kernel")
    show(timeline(t_by_rank[:2], name="overlap"))

buckets_by_rank = to_rank_0(buckets)
if rank == 0:
    in_first, in_second = buckets_by_rank[0]
    assert len(in_first) == 1 and in_second == ["c", "a", "b", "d"]

buckets_by_rank = to_rank_0(buckets)
if rank == 0:
    assert all(of_rank == [in_first, in_second] for of_rank in buckets_by_rank)
    result("buckets_in_the_second_step", in_second)

# The upper half of a row is computing, with the forward pass lighter. The lower half is
# communication: one all-reduce in the first step, four in the second, and before those
# the order of the buckets. Where one message follows another without a gap, as those
# four may, they look like one bar. In the first step the all-reduce begins only when
# the last matrix product is done. In the second step the first one begins while
# products are still to come.
#
# An all-reduce can begin as soon as the gradients in its bucket are there. In the first
# step DDP does not know yet in which order they will come. It puts all parameters into
# one bucket, which is full only at the end, and watches. Then it makes the buckets
# anew, in the order in which the gradients arrived: (buckets_in_the_second_step). The
# order is rank 0's, which DDP broadcasts to all, since all ranks must make the same
# calls in the same order.
#
# From then on each bucket leaves as soon as it is full and those before it have left,
# while the backward pass goes on, and `backward()` returns when all have arrived. With
# NCCL it returns when all have been put into the GPU's queue. This is what chapter 6
# promised: communication hidden behind computation [li2020].
#
# How large is a bucket if one does not ask for `bucket_cap_mb=1`? A layer has 2.25 MiB.

everyone()
play("ranks")
usual_buckets, _ = two_steps(n_rows=8)
cap = DDP(network()).bucket_bytes_cap

usual_buckets_by_rank = to_rank_0(usual_buckets)
if rank == 0:
    play("kernel")
    usual = usual_buckets_by_rank[0][1]
    assert usual == ["c", "a b d"]
    result("usual_buckets", usual)

cap_by_rank = to_rank_0(cap)
if rank == 0:
    result("default_bucket_mib", cap_by_rank[0] / 2**20)

# The first bucket holds c alone, the second one the rest: (usual_buckets). A bucket
# closes at (default_bucket_mib) MiB [ddpdocs], but the one that is ready first closes
# at 1 MiB, so that the sending begins early [pytorchreducer]. Chapter 12 measures why
# neither tiny nor huge buckets are good.

# --- Gradient accumulation: no_sync ---------------------------------------------------

# A batch too large for the memory is worked through in parts, called micro-batches,
# whose gradients add up in `.grad`. This is gradient accumulation. The global batch is
# then
#
# $$\text{global batch} = \text{micro-batch} \times \text{accumulation} \times \text{ranks}.$$
#
# The other ranks need only the sum, so one all-reduce a step is enough. In a `with`
# block of `no_sync`, a method of the wrapped model, DDP adds up without sending.
#
# Predict: Four parts a step. How many all-reduces are there if DDP is left alone? With
# `no_sync` around the first three parts? And with `no_sync` around only the
# `backward()` of those three?


def accumulate(replica, parts, quiet):
    """Add up gradients; `quiet` says what no_sync is around."""
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        silent = replica.no_sync if i < len(parts) - 1 else nullcontext
        with silent() if quiet == "both" else nullcontext():
            loss = cross_entropy(replica(inputs), labels) / len(parts)
            with silent() if quiet == "backward" else nullcontext():
                loss.backward()
    return all_gradients(replica)


everyone()
if rank == 0:
    print("\n## Gradient accumulation: no_sync\n")

play("ranks")

replica, calls = watched(network())
parts = list(zip(X[mine].chunk(4), y[mine].chunk(4)))
accumulate(replica, parts, "nothing")  # after this, the buckets are made
counts, gradients = {}, {}
for quiet in ("nothing", "both", "backward"):
    calls.clear()
    with trace() as t:
        gradients[quiet] = accumulate(replica, parts, quiet)
    counts[quiet] = len(calls)
sizes = len(parts[0][1]), len(parts), world_size

everyone()
if rank == 0:
    play("kernel")
    of_batch = MLP([64, 48, 48, 10], seed=0).double()
    outputs = of_batch(images[:BATCH])
    torch.nn.functional.cross_entropy(outputs, classes[:BATCH]).backward()
    of_batch = torch.cat([p.grad.flatten() for p in of_batch.parameters()])

counts_by_rank = to_rank_0(counts)
if rank == 0:
    all_reduces_of_four_parts = counts_by_rank[0]
    expected_counts = {"nothing": 4, "both": 1, "backward": 4}
    assert all_reduces_of_four_parts == expected_counts
    for quiet in ("nothing", "both", "backward"):
        result(f"all_reduces_{quiet}", all_reduces_of_four_parts[quiet])

gradients_by_rank = to_rank_0(gradients)
if rank == 0:
    one, *others = [of_rank["both"] for of_rank in gradients_by_rank]
    assert all(torch.equal(one, other) for other in others)

gradients_by_rank = to_rank_0(gradients)
if rank == 0:
    for gradient in gradients_by_rank[0].values():
        assert torch.allclose(gradient, of_batch, rtol=0, atol=1e-14)

sizes_by_rank = to_rank_0(sizes)
if rank == 0:
    micro_batch, accumulation, n_ranks = sizes_by_rank[0]
    assert micro_batch * accumulation * n_ranks == BATCH
    result("global_batch", f"{micro_batch} × {accumulation} × {n_ranks} = {BATCH}")

# Four, one, and four again: `no_sync` around `backward()` alone changes nothing, and no
# error says so. DDP decides in the forward pass whether the backward pass to come will
# communicate, so the forward pass has to be inside.
#
# All three give the same gradient, that of the global batch (global_batch). They differ
# only in what is sent, so only a count can show this mistake. `traffic` counts for any
# program. Here it has counted the last of the three ways, with its four all-reduces:

# --- Unequal shards: the mean of means ------------------------------------------------

# DDP adds up the ranks' gradients and divides by the number of ranks. Chapter 10 has
# shown that this plain mean is wrong where the shards have different sizes. For a
# language model they nearly always have: the loss is a mean over tokens, and four texts
# are not equally long.
#
# Predict: Rank 0 has 8 samples, rank 1 has 16, rank 2 has 24, and so on. All take the
# mean of their own losses, as usual. Which samples count too much, and by how much?

everyone()
if rank == 0:
    print("\n## Unequal shards: the mean of means\n")

play("ranks")
count = 8 * (rank + 1)
before = 4 * rank * (rank + 1)  # samples of the ranks before
own = slice(before, before + count)
n_total = 4 * world_size * (world_size + 1)

whole = network()
cross_entropy(whole(X[:n_total]), y[:n_total]).backward()

plain = DDP(network())
show(cross_entropy(plain(X[own]), y[own]).backward(), rank)  # a mean on each rank

# The repair takes into account that DDP divides by the number of ranks. Let every rank
# take the sum of its losses, ask all ranks how many samples there are, divide by that,
# and multiply by the number of ranks, which DDP will divide out again.


def backward_of_mean(loss_sum, count, group=None):
    """Backward so that DDP's average is the gradient of the mean of all ranks.

    loss_sum: the sum of this rank's losses. count: how many they are, which may
    be 0 on some ranks. Returns the number of all ranks together.
    """
    n_total = torch.tensor(count, device=loss_sum.device)
    dist.all_reduce(n_total, group=group)
    (loss_sum * dist.get_world_size(group) / n_total).backward()
    return n_total.item()


everyone()
right = DDP(network())
loss_sum = cross_entropy(right(X[own]), y[own], reduction="sum")
counted = backward_of_mean(loss_sum, count)


def miss(model):
    expected = all_gradients(whole)
    return ((all_gradients(model) - expected).norm() / expected.norm()).item()


misses = [miss(plain), miss(right)]

misses_by_rank = to_rank_0(misses)
if rank == 0:
    play("kernel")
    plain_miss, right_miss = np.max(misses_by_rank, axis=0)
    assert plain_miss > 0.01 and right_miss < 1e-12

counted_by_rank = to_rank_0(counted)
if rank == 0:
    assert counted_by_rank == [4 * n_ranks * (n_ranks + 1)] * n_ranks
    result("plain_miss", round(100 * plain_miss, 1))
    result("right_miss", right_miss, varies=True)

if rank == 0:
    n_total = 4 * n_ranks * (n_ranks + 1)
    counts_for = [n_total / n_ranks / (8 * (r + 1)) for r in range(n_ranks)]
    fig, ax = plt.subplots(num="mean-of-means", figsize=(5.2, 0.45 * n_ranks + 0.9))
    for r, counts_as in enumerate(counts_for):
        ax.barh(r, counts_as, 0.7, color=f"C{r}")
        label = {"ha": "right", "va": "center", "color": "white"}
        ax.text(counts_as, r, f"{counts_as:.3g} ", **label)
    ax.axvline(1, color="C7", linestyle="--", zorder=0)
    ax.set(yticks=range(n_ranks), xlim=(0, 1.2 * max(counts_for)))
    ax.set_yticklabels([f"rank {r}, {8 * (r + 1)} samples" for r in range(n_ranks)])
    ax.set_xlabel("weight of one sample in the plain mean, 1 is right")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    result("rank_0_counts", round(counts_for[0], 2))
    save_figures()

# The smaller its shard, the more a sample counts. One of rank 0 counts (rank_0_counts)
# times what it should, and the gradient is wrong by (plain_miss) %. The recipe is right
# to (right_miss). It costs one all-reduce of a single number.
#
# With gradient accumulation, count the tokens of all parts of the step first, on all
# ranks, and divide every part by that one number. Here are the same samples in two
# parts of unequal length:

everyone()
play("ranks")
in_parts = DDP(network())
places = torch.arange(before, before + count)


def add_part(part):
    loss = cross_entropy(in_parts(X[part]), y[part], reduction="sum")
    (loss * world_size / counted).backward()


with in_parts.no_sync():
    add_part(places[:3])
add_part(places[3:])
miss_in_parts = miss(in_parts)

miss_in_parts_by_rank = to_rank_0(miss_in_parts)
if rank == 0:
    play("kernel")
    assert max(miss_in_parts_by_rank) < 1e-12

# Libraries that divided part by part had to be repaired in 2024 [unsloth2024].

# --- Padding --------------------------------------------------------------------------

# `DistributedSampler` never gives you unequal shards: it pads. Where the ranks do not
# divide the number of samples, it deals the first ones again, so that all ranks have
# equally many. This padding keeps the ranks in step, and in training it hardly matters.
# In an evaluation it does. We take one test sample more than the ranks can share out
# equally:


def dealt(n, **how):
    """The samples of all ranks together, as the sampler deals them."""
    how |= {"num_replicas": n_ranks, "shuffle": False}
    each_rank = range(n_ranks)
    hands = [DistributedSampler(range(n), rank=r, **how) for r in each_rank]
    return [sample for hand in hands for sample in hand]


if rank == 0:
    n_test = (len(test_classes) - 1) // n_ranks * n_ranks + 1  # one too many
    hits = alone(test_images[:n_test].double()).argmax(1) == test_classes[:n_test]
    true_accuracy = hits.double().mean().item()
    padded_accuracy = hits[dealt(n_test)].double().mean().item()

if rank == 0:
    assert len(dealt(n_test)) == n_test + n_ranks - 1
    assert set(dealt(n_test)) == set(range(n_test))
    assert len(dealt(n_test, drop_last=True)) == n_test - 1
    assert padded_accuracy != true_accuracy
    result("n_test", n_test)
    result("padded", len(dealt(n_test)) - n_test)
    result("true_accuracy", round(100 * true_accuracy, 3))
    result("padded_accuracy", round(100 * padded_accuracy, 3))

# Of (n_test) test samples, (padded) are dealt twice, and the accuracy is
# (padded_accuracy) % in place of (true_accuracy) %. With another number of ranks it is
# another number. To evaluate, let the shards be unequal, add up hits and counts over
# the ranks, and divide once. `drop_last=True` is no way out: it leaves the last samples
# out. If some ranks have more steps than others, see `join` in chapter 12.

# --- A parameter that takes no part ---------------------------------------------------

# Predict: A model has two heads, output layers on a common body, and this training
# never calls the second one. DDP waits for the gradient of every parameter. What
# happens: an error, a hang, or nothing? And in which step?


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.digit, self.parity = nn.Linear(8, 10), nn.Linear(8, 2)
        self.double()

    def forward(self, x, heads=("digit",)):
        hidden = torch.tanh(self.body(x))
        return [getattr(self, head)(hidden) for head in heads]


everyone()
if rank == 0:
    print("\n## A parameter that takes no part\n")

play("ranks")

replica, steps_done, refusal = DDP(TwoHeads()), 0, None
try:
    for _ in range(3):
        cross_entropy(replica(X[mine])[0], y[mine]).backward()
        steps_done += 1
except RuntimeError as error:
    refusal = str(error)
left_in_body = replica.module.body.weight.grad.clone()

refusal_by_rank = to_rank_0(refusal)
if rank == 0:
    play("kernel")
    print(fill(refusal_by_rank[0].replace("\n", " "), 80))

left_in_body_by_rank = to_rank_0(left_in_body)
if rank == 0:
    first_body, *other_bodies = left_in_body_by_rank

steps_done_by_rank = to_rank_0(steps_done)
if rank == 0:
    assert steps_done_by_rank == [1] * n_ranks
    assert not any(torch.equal(first_body, other) for other in other_bodies)

steps_done_by_rank = to_rank_0(steps_done)
if rank == 0:
    result("steps_before_the_error", steps_done_by_rank[0])

# An error, in the second forward pass. In the first step the bucket was never full, so
# nothing was sent: after it, each rank holds the gradients of its own samples alone. An
# `optimizer.step()` there makes the replicas differ.
#
# The message counts parameters from 0, in order of registration: 4 and 5 are those of
# `parity`. With `TORCH_DISTRIBUTED_DEBUG=INFO` in the environment it has their names.

# --- The cure, and its price ----------------------------------------------------------

# `find_unused_parameters=True` lets DDP look at the graph after each forward pass and
# count as ready whatever is not in it.

everyone()
play("ranks")
replica, calls = watched(TwoHeads(), find_unused_parameters=True)
for step in range(3):
    replica.zero_grad()
    both = step == 2 and rank == 0  # one rank, in one step, uses both heads
    heads = ("digit", "parity") if both else ("digit",)
    outputs = replica(X[mine], heads=heads)
    loss = cross_entropy(outputs[0], y[mine])
    if both:
        loss = loss + cross_entropy(outputs[1], y[mine] % 2)
    with trace() as t:
        loss.backward()
    if step == 1:
        used_nowhere = replica.module.parity.weight.grad
used_on_rank_0 = replica.module.parity.weight.grad

everyone()
parity = replica.module(X[mine], heads=("parity",))[0]
(own_part,) = torch.autograd.grad(
    cross_entropy(parity, y[mine] % 2), replica.module.parity.weight)

used_nowhere_by_rank = to_rank_0(used_nowhere)
if rank == 0:
    play("kernel")
    assert all(gradient is None for gradient in used_nowhere_by_rank)

own_part_by_rank = to_rank_0(own_part)
if rank == 0:
    by_number = own_part_by_rank[0] / n_ranks

used_on_rank_0_by_rank = to_rank_0(used_on_rank_0)
if rank == 0:
    for gradient in used_on_rank_0_by_rank:
        assert torch.allclose(gradient, by_number, rtol=0, atol=1e-15)
    assert by_number.norm() > 0

# Now there is no error. In the third step rank 0 alone used the second head, and all
# ranks got its gradient, divided by their number: a mean in which the others count as
# zero. Where a parameter was used nowhere, its gradient stays `None` on all ranks.
#
# To know whether any rank used a parameter, the ranks must ask each other: one more
# all-reduce in every step, and a walk through the graph. So the option is off by
# default.
#
# It has a second price. To see it, we take the four layers from above, whose order of
# use is not that of registration:

everyone()
play("ranks")
buckets, t = two_steps(8, bucket_cap_mb=1, find_unused_parameters=True)

buckets_by_rank = to_rank_0(buckets)
if rank == 0:
    play("kernel")
    fixed = buckets_by_rank[0][1]
    assert fixed == ["d", "c", "b", "a"]
    result("buckets_with_find_unused", fixed)

# The buckets are (buckets_with_find_unused), from the last one registered to the first,
# and they stay so: with this option DDP cannot rely on one order of arrival. They also
# leave in this order. Here d's gradient is the last to arrive, so all others wait for
# it, and nothing overlaps.
#
# Where the same parameters are used in every step, `static_graph=True` finds out once
# which they are:

everyone()
play("ranks")
replica, calls = watched(TwoHeads(), static_graph=True)
for step in range(3):
    calls.clear()
    cross_entropy(replica(X[mine])[0], y[mine]).backward()
gradient = replica.module.body.weight.grad
static = len(calls), replica.module.parity.weight.grad, gradient.norm().item()

static_by_rank = to_rank_0(static)
if rank == 0:
    play("kernel")
    all_reduces_a_step, unused_gradient, _ = static_by_rank[0]
    assert all_reduces_a_step == 1
    assert unused_gradient is None or unused_gradient.abs().max() == 0

static_by_rank = to_rank_0(static)
if rank == 0:
    assert len({norm for _, _, norm in static_by_rank}) == 1
    result("static_all_reduces", all_reduces_a_step)


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


# There is no error, and (static_all_reduces) all-reduce a step. And if a head is never
# trained, say so plainly: call `requires_grad_(False)` on it before DDP wraps.

# --- Names with a prefix --------------------------------------------------------------

# Predict: A checkpoint was made with `DDP(model).state_dict()`. Does a plain model load
# it?

everyone()
if rank == 0:
    print("\n## Names with a prefix\n")

play("ranks")
with may_fail():
    plain = network()
    show(plain.load_state_dict(DDP(network(seed=1)).state_dict()), rank)

# It does not. The wrapper is a module that holds yours under the name `module`, so
# every name in its `state_dict` begins with it and fits no model that is not wrapped.
# Save what is inside: `replica.module.state_dict()`. Where you are given a file with
# the prefix:

everyone()

given = DDP(network(seed=1)).state_dict()
names_inside = list(given)
consume_prefix_in_state_dict_if_present(given, "module.")  # in place
matched = str(plain.load_state_dict(given))

names_inside_by_rank = to_rank_0(names_inside)
if rank == 0:
    play("kernel")
    result("a_name_inside", names_inside_by_rank[0][0])

matched_by_rank = to_rank_0(matched)
if rank == 0:
    result("matched", matched_by_rank[0])

# --- More ranks: batch, learning rate, workers ----------------------------------------

# Predict:
#
# 1, 2 and all ranks train with the same global batch. Then, the other way: each rank
# keeps its batch of 16, so the global batch grows with the ranks. Which of the two
# trainings is another one?

everyone()
if rank == 0:
    print("\n## More ranks: batch, learning rate, workers\n")

play("ranks")
counts = sorted({1, 2, world_size})
groups = {n: dist.new_group(list(range(n))) for n in counts}


def losses_with(n, batch, steps, lr):
    """Train on the first n ranks; return the loss of each global batch."""
    losses = []
    if rank >= n:
        return losses
    model = DDP(network(), process_group=groups[n])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    sampler = DistributedSampler(range(len(X)), n, rank)
    while len(losses) < steps:
        sampler.set_epoch(len(losses) * batch // len(X))
        with torch.device("cpu"):
            order = torch.tensor(list(sampler))
        for mine in order.split(batch // n):
            loss = cross_entropy(model(X[mine]), y[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total, group=groups[n])
            losses.append(total.item() / n)
    return losses[:steps]


everyone()
kept = {n: losses_with(n, batch, 12, 0.2) for n in counts}
samples = 48 * batch  # in each of these
alone = losses_with(1, 16, samples // 16, 0.05)
grown = losses_with(world_size, batch, samples // batch, 0.05)
scaled = losses_with(world_size, batch, samples // batch, 0.05 * world_size)

kept_by_rank = to_rank_0(kept)
if rank == 0:
    play("kernel")
    of_kept = kept_by_rank[0]
    for losses_of_n in of_kept.values():
        assert np.allclose(losses_of_n, of_kept[1], rtol=0, atol=1e-12)
    ends = [round(losses_of_n[-1], 6) for losses_of_n in of_kept.values()]
    result("last_losses_same_batch", ends)
    curves = {name: [] for name in ("alone", "grown", "scaled")}

play("ranks")
alone_by_rank = to_rank_0(alone)
if rank == 0:
    play("kernel")
    curves["alone"] = alone_by_rank[0]

grown_by_rank = to_rank_0(grown)
if rank == 0:
    curves["grown"] = grown_by_rank[0]

scaled_by_rank = to_rank_0(scaled)
if rank == 0:
    curves["scaled"] = scaled_by_rank[0]
    last = {}
    for name, curve in curves.items():
        last[name] = float(np.mean(curve[-len(curve) // 12 :]))
        result(f"steps_{name}", len(curve))
        result(f"last_loss_{name}", round(last[name], 3))
    assert last["grown"] > last["alone"]
    missed = abs(last["scaled"] - last["alone"])
    assert missed < 0.5 * abs(last["grown"] - last["alone"])

if rank == 0:
    fig, ax = plt.subplots(num="batch")
    labels = {
        "alone": "1 rank, batch of 16",
        "grown": f"{n_ranks} ranks, same rate",
        "scaled": f"{n_ranks} ranks, rate × {n_ranks}",
    }
    for style, (name, curve) in zip(("C0-", "C1-", "C2--"), curves.items()):
        many = len(curve) // 24  # 24 points on each curve
        points = np.mean(np.reshape(curve[: 24 * many], (24, many)), axis=1)
        seen = (np.arange(24) + 0.5) * 2 * BATCH
        ax.plot(seen, points, style, label=labels[name])
    ax.set(xlabel="samples seen, of all ranks together", ylabel="training loss")
    ax.set_ylim(0, None)
    ax.legend()
    save_figures()

# With the global batch kept, the last of 12 losses is (last_losses_same_batch): it is
# the same training on 1, 2 and all ranks, for this model without dropout and batch
# normalization. Begin with that.
#
# With the batch of each rank kept, it is another training: the same samples are seen in
# (steps_grown) steps in place of (steps_alone). At the same learning rate the loss,
# averaged over the last twelfth of the steps, ends at (last_loss_grown) and not at
# (last_loss_alone), for fewer steps of the same length do not come as far.
#
# The linear scaling rule makes the steps longer, as many times as the batch is larger
# [goyal2017]. With it the loss ends at (last_loss_scaled). It is a rule of thumb, found
# with SGD. It holds up to a limit, and needs a warm-up: a small rate in the first
# steps, which grows. DDP averages whatever it is given, and changes no learning rate.
#
# Three numbers change by themselves when you add ranks, and are worth a line in every
# log:
# - the global batch;
# - the steps of an epoch, with every schedule that counts in them;
# - the workers, the processes that prepare samples for the loaders.
#
# With `num_workers=8` on each of 8 ranks, one host runs 64 workers. Divide the workers
# that a host can run by the ranks of this host, and round up. Divide the batch by all
# ranks, and round down:


def share_of_a_rank(batch, workers, world_size, local_world_size):
    """What a rank's loader is given: (batch_size, num_workers)."""
    return batch // world_size, -(-workers // local_world_size)


if rank == 0:
    of_8_ranks = share_of_a_rank(100, 12, 8, 4)  # two hosts of four ranks
    assert of_8_ranks == (12, 3)
    result("share_of_a_rank", of_8_ranks)
    result("global_batch_left", 8 * of_8_ranks[0])

# The rounding is not free: of a batch of 100, eight ranks take (global_batch_left).
#
# Worked problem: How many tokens must each rank have, so that its backward pass hides
# the all-reduce? A model has $N$ parameters, and gradients of 2 bytes. In a ring of $n$
# ranks each rank sends $2\frac{n-1}{n} \cdot 2N$ bytes over a link of $B$ bytes/s.
# Backward takes $4N$ operations a token, at $F$ per second. Both last equally long at
# $T = \frac{n-1}{n}\cdot\frac{F}{B}$ tokens: $N$ has canceled. An H100 does 989 TFLOP/s
# [h100], say 40 % of it in practice; it sends 450 GB/s over NVLink [hopper], or 50 GB/s
# over 400 Gbit/s InfiniBand [connectx7].


def tokens_to_hide(n, bandwidth, flops=0.4 * 989e12):
    return (n - 1) / n * flops / bandwidth


if rank == 0:
    result("tokens_nvlink", round(tokens_to_hide(8, 450e9)))
    result("tokens_infiniband", round(tokens_to_hide(64, 50e9)))

# Each of the 8 GPUs that NVLink joins in one host needs (tokens_nvlink) tokens. Each of
# 64 GPUs with InfiniBand between their hosts needs (tokens_infiniband), if both links
# reach the full rate. With fewer, the ranks wait for the network, whatever the size of
# the model.
#
# Then accumulate. The all-reduce still hides behind the backward pass of the last part
# alone, but it comes once for all parts, so the wait is a smaller share of the step. On
# this machine's four processes the numbers are others, and chapter 12 measures them.

# --- Seeds: what differs, what is equal -----------------------------------------------

# Predict: A program calls `manual_seed(0)` on every rank. What is wrong with that? And
# what goes wrong if the rank is the seed, for the sampler as well?


def draws(seed):
    """Which of 12 activations dropout drops, and this rank's samples."""
    torch.manual_seed(seed)
    dropped = nn.functional.dropout(torch.ones(12)) == 0
    sampler = DistributedSampler(range(96), world_size, rank, seed=seed)
    with torch.device("cpu"):
        return dropped.tolist(), list(sampler)


everyone()
if rank == 0:
    print("\n## Seeds: what differs, what is equal\n")

play("ranks")

same_seed, own_seed = draws(0), draws(rank)


def different(masks):
    return len(set(map(tuple, masks)))


def left_out(hands):
    return 96 - len({sample for hand in hands for sample in hand})


same_seed_by_rank = to_rank_0(same_seed)
if rank == 0:
    play("kernel")
    masks, hands = zip(*same_seed_by_rank)

own_seed_by_rank = to_rank_0(own_seed)
if rank == 0:
    own_masks, own_hands = zip(*own_seed_by_rank)
    assert left_out(hands) == 0 < left_out(own_hands)
    assert different(masks) == 1 and different(own_masks) == n_ranks
    result("different_masks_same_seed", different(masks))
    result("different_masks_own_seed", different(own_masks))
    result("never_dealt_own_seed", left_out(own_hands))

# From ranklab.taught.training:


def now():
    """The time, once the GPU, if one is used, has done all it was asked."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


# With the same seed there is (different_masks_same_seed) dropout mask: all ranks drop
# the same activations. It works, but the noise of the masks is the same on all ranks,
# so the mean over the ranks does not average it out. With a seed of its own, each rank
# has a mask of its own.
#
# But a sampler needs the same seed on all ranks. Each rank shuffles the whole list, and
# takes its places in it. If the lists differ, two ranks can take the same sample, and
# another sample is taken by no rank: (never_dealt_own_seed) of 96 are left out.
#
# | | on the ranks | who sees to it |
# | --- | --- | --- |
# | first weights | equal | DDP's broadcast, or one seed |
# | order of the samples | equal, then dealt | the sampler's seed, `set_epoch` |
# | dropout, noise, augmentation | different | you: `seed * world_size + rank` |
# | workers of a loader | different | PyTorch, if the ranks' seeds differ |
# | what is drawn for all ranks | equal | you: a generator with one seed |
#
# Why not `seed + rank`? Seed 0 on rank 1 is then the same number as seed 1 on rank 0,
# and two runs that you compare share their noise.

# --- Determinism, and what it costs ---------------------------------------------------

# A seed makes a run repeatable only if the operations are repeatable. Some GPU kernels
# add in whatever order their threads finish. These lines ask for kernels that do not:
#
# ```python
# os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA is used
# torch.use_deterministic_algorithms(True)  # or an error: which operation
# torch.backends.cudnn.benchmark = False  # choose by rule, not by the clock
# ```
#
# The second line includes `torch.backends.cudnn.deterministic = True`, which older
# programs set, and which is about cuDNN's convolutions alone. The same programs often
# set `benchmark = True`, to be faster: cuDNN then times its algorithms for each new
# shape of a convolution's input, and keeps the fastest. So the first step of each shape
# takes longer, and two runs may choose differently.
#
# The settings of determinism cost twice. Deterministic kernels can be slower. And
# memory that nobody has written is filled with NaN, so that a forgotten initialization
# shows. We time `torch.empty` with and without, by the clock of chapter 3, which waits
# for a GPU:

# Filling takes longer: all 4 MiB are written, where `torch.empty` usually writes
# nothing at all. If it hurts, switch
# `torch.utils.deterministic.fill_uninitialized_memory` off.
#
# What the kernels cost depends on the model. On a GPU the next cells train a small
# convolutional network with each setting, three times from the same weights, and see
# how far apart the weights of the three end:


def train_cnn(deterministic=False, benchmark=False, steps=60):
    """The seconds of each training step, and all weights after the last."""
    torch.manual_seed(0)
    layers = []
    for c, d in (3, 64), (64, 128), (128, 256):
        layers += [nn.Conv2d(c, d, 3, 2, 1), nn.BatchNorm2d(d), nn.ReLU()]
    cnn = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 10))
    X, y = torch.rand(512, 3, 32, 32), torch.arange(512) % 10
    opt, ends = torch.optim.SGD(cnn.parameters(), 0.01), [now()]
    torch.use_deterministic_algorithms(deterministic)
    with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
        for _ in range(steps):
            opt.zero_grad()
            nn.functional.cross_entropy(cnn(X), y).backward()
            opt.step()
            ends.append(now())
    torch.use_deterministic_algorithms(False)
    seconds = torch.tensor(ends, dtype=torch.float64).diff()
    return seconds, nn.utils.parameters_to_vector(cnn.parameters())


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
play("ranks")

settings = {"as usual": {}, "deterministic": {"deterministic": True},
            "benchmark": {"benchmark": True}}
meters, costs = {}, {}
for name, options in settings.items() if rank == 0 else ():
    if device.type == "cuda":
        train_cnn()  # warms up
        with sampled(device=device) as meters[name]:
            of_runs = [train_cnn(**options) for _ in range(3)]
        seconds, weights = map(torch.stack, zip(*of_runs))
        costs[name] = {
            "apart": (weights - weights[0]).abs().max().item(),
            "first_step_ms": 1e3 * seconds[0, 0].item(),
            "step_ms": 1e3 * seconds[:, 9:].median().item()}

if recorded:
    meters_by_rank = to_rank_0(meters)
    costs_by_rank = to_rank_0(costs)
    if rank == 0:
        play("kernel")
        meters, costs = meters_by_rank[0], costs_by_rank[0]
        for name, s in meters.items():
            s.about |= costs[name]
        for name, s in recorded("11_ddp-deterministic", meters).items():
            first, step, apart = map(
                s.about.get, ("first_step_ms", "step_ms", "apart"))
            print(f"{name:14}{first:6.1f} ms the first step, {step:.2f} ms the others, "
                  f"{apart:.1e} apart")
        save_figures()

# On the H200 of the recording a deterministic step takes about an eighth longer, and
# the first one several times as long. Without the setting the three trainings end some
# 10⁻⁴ apart; with it they are equal to the bit. `benchmark = True` gains 2 % here.
# PyTorch's notes promise only that deterministic operations are often slower, and that
# no setting brings equal bits on another kind of GPU or with another version
# [reproducibility]. Nor does any of this make a restarted run go on with the same bits.
# That takes chapter 25.

# --- The whole program, a GPU for each process ----------------------------------------

# This is how it all looks in a file. There is one process for each GPU of each host,
# and without a GPU there are two. `main_worker` is a name that many programs have from
# PyTorch's own example [imagenetexample]. First what the program can be told:

# Then the training. A checkpoint remembers on which device each tensor lay.
# `map_location` brings it to this rank's; without it, what rank 0 has saved goes to GPU
# 0 on every rank of a host, where it may not fit so many times.

# The last lines start it. `mp.spawn` puts `local_rank` in front of the other arguments.

# The same file starts in five ways. chapter 5 explains the three kinds of addresses.
#
# | started by | where the ranks meet |
# | --- | --- |
# | `torchrun --nproc-per-node 8 train_ddp.py` | `env://`: the launcher tells everything |
# | `python -m torch.distributed.launch --use-env --nproc-per-node 8 train_ddp.py` | the same, by an older name |
# | `python train_ddp.py` | `tcp://127.0.0.1:29500`: on this host |
# | on each host H of two, `python train_ddp.py --meet tcp://FIRST_HOST:29500 --hosts 2 --host H` | where rank 0 is; the hosts have equally many GPUs |
# | the same with `--meet file:///shared/new` | a file that all hosts see, and that was not there before |
#
# `torch.distributed.launch` is deprecated [torchrun]. Without `--use-env` it hands each
# process an argument `--local-rank` as well, which programs of its time read, and which
# ours would refuse. `torchrun` tells it in `LOCAL_RANK` alone. With `--max-restarts` it
# also starts all ranks again after one has failed.
#
# Which GPUs does a program see? With `CUDA_VISIBLE_DEVICES=2,3` in its environment only
# these two, which it then calls `cuda:0` and `cuda:1`; with an empty value none
# [cudaenvironment]. Set it before the program starts. Each of these programs needs
# `set_device`: until it is called, `"cuda"` without a number is GPU 0, on every rank.

# --- Extra: DataParallel, threads or processes ----------------------------------------

# PyTorch has an older wrapper, `DataParallel`: one process, a thread for each GPU, the
# model copied to all of them in each step. The documentation recommends DDP, even on
# one host [ddpdocs]. Why? On a CPU `DataParallel` only calls the model, so it cannot
# answer:

everyone()
if rank == 0:
    print("\n## Extra: DataParallel, threads or processes\n")
    play("kernel")
    layer, few_images = torch.nn.Linear(64, 2), images[:8].float()
    if torch.cuda.is_available():
        layer, few_images = layer.to("cuda:0"), few_images.to("cuda:0")
    data_parallel = torch.nn.DataParallel(layer)
    assert torch.allclose(data_parallel(few_images), layer(few_images), atol=1e-5)
    result("gpus_of_data_parallel", len(data_parallel.device_ids), varies=True)

# So let us build the core of what it does. The work is a forward and a backward pass of
# two replicas, in three ways:
# - one thread of rank 0 works on one replica after the other;
# - two threads of rank 0 have a replica each;
# - two processes, ranks 0 and 1, have a replica each.
#
# There are two models: one of many small layers, whose products are tiny, and one of a
# few large products.


def chain(layers, width):
    parts = [(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*(part for pair in parts for part in pair))


def forward_backward(replica, inputs):
    replica(inputs).sum().backward()


def three_ways(pool, layers, width, samples):
    """Two replicas: how many ranks work, and what each of them does."""
    replicas = [chain(layers, width) for _ in range(2)]
    halves = [torch.ones(samples, width) for _ in range(2)]
    return {
        "one by one": (1, lambda: [*map(forward_backward, replicas, halves)]),
        "two threads": (
            1, lambda: [*pool.map(forward_backward, replicas, halves)]),
        "two processes": (2, lambda: forward_backward(replicas[0], halves[0])),
    }


def in_turns(ways, repeats):
    return [[seconds(*way) for way in ways.values()] for _ in range(repeats)]


def seconds(n, work):
    """How long the first n ranks do the work; 0 on the others."""
    dist.barrier()
    start = now()
    if rank >= n:
        return 0.0
    work()
    return now() - start


everyone()
play("ranks")

pool = ThreadPoolExecutor(2)
ways = three_ways(pool, 100, 8, 8)
small = in_turns(ways, 15)
large = in_turns(three_ways(pool, 3, 512, 256), 5)

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


# Predict: With two free cores, two processes need about half the time. Can two threads
# be as fast, for the small layers and for the large ones? Think of the lock in chapter
# 5.


def speedups(seconds_of_ranks):
    """Best of the rounds: how much faster threads are, and processes."""
    slowest = np.max(seconds_of_ranks, axis=0)  # of the ranks, in each round
    one_by_one, threads, processes = slowest.min(axis=0)
    return [one_by_one / threads, one_by_one / processes]


small_by_rank = to_rank_0(small)
large_by_rank = to_rank_0(large)
if rank == 0:
    play("kernel")
    of_small, of_large = speedups(small_by_rank), speedups(large_by_rank)
    assert of_small[0] < 1.1 * of_small[1] or not cores_are_free()
    result("small_layers_threads", of_small[0], varies=True)
    result("small_layers_processes", of_small[1], varies=True)
    result("large_layers_threads", of_large[0], varies=True)
    result("large_layers_processes", of_large[1], varies=True)

if rank == 0:
    fig, ax = plt.subplots(num="threads", figsize=(5.2, 2.6))
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for place, (threads, processes) in enumerate((of_small, of_large)):
        ax.barh(place - 0.2, threads, 0.36, color="C0", hatch="..", ec="white")
        ax.barh(place + 0.2, processes, 0.36, color="C1")
        for end, row, label in ((threads, -0.2, "two threads"),
                                (processes, 0.2, "two processes")):
            ax.text(end + 0.03, place + row, label, va="center", bbox=white)
    ax.axvline(1, color="C7", linestyle=":")
    longest = max(*of_small, *of_large)
    ax.set(xlabel="times as fast as one by one", xlim=(0, 1.5 * longest))
    ax.set(yticks=[0, 1], yticklabels=["many small\nlayers", "few large\nones"])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    save_figures()

# For small layers much of the time is Python, and the GIL lets only one thread at a
# time run Python: two threads are (small_layers_threads) times as fast as one, two
# processes (small_layers_processes) times.
#
# PyTorch lets go of the lock while it multiplies, as chapter 5 shows, so large products
# of two threads can run at the same time. The whole step need not be faster for it: in
# this run two threads were (large_layers_threads) times as fast as one, and two
# processes (large_layers_processes) times. On two free cores the ideal is twice as
# fast. Other programs disturb a measurement this short, in both directions.
#
# What does a meter show of it? Here the small layers are worked on again, for a moment
# in each of the three ways, and `sampled` watches (chapter 4). Each of the two ranks
# has a row: its card, or on a CPU its share of one core.

everyone()
play("ranks")

with sampled(hz=20, device=device) as meter:
    for name, way in ways.items():
        with meter.phase(name):
            in_turns({name: way}, 15 if device.type == "cpu" else 300)

if recorded:
    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        play("kernel")
        show(utilization_plot(meter_by_rank[:2], name="meters"))

# Rank 0 is at work all the time, and rank 1 only when there are two processes. Where
# other programs share the cores, all readings are lower. On a CPU those of rank 0 would
# be near 200 % if its two threads computed at the same time. On cards both threads use
# rank 0's. And with NCCL a rank that waits for the others does so in a kernel, which a
# card's meter counts as work.

if recorded:
    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        play("kernel")
        cards = recorded("11_ddp-cards", meter_by_rank[:2])
        show(utilization_plot([*cards.values()]) if cards else print("None yet."))

# Here two ranks shared one card, so that they have one row, and each way made the same
# number of steps. Two threads are hardly faster than one after the other, and two
# processes nearly twice as fast. The layers are so small that Python, which starts the
# kernels, sets the pace, and each process has a Python of its own.
#
# `DataParallel` has further costs: it copies the model from the first GPU to all others
# in every forward pass, and gathers all outputs on the first.

# --- Extra: options that you may meet -------------------------------------------------

# | option | what it does |
# | --- | --- |
# | `gradient_as_bucket_view=True` | `.grad` lies in the bucket: one copy of the gradients less |
# | `static_graph=True` | the same parameters in every step: found out once |
# | `broadcast_buffers=False` | buffers stay each rank's own |
# | `process_group=` | average over some of the ranks |
# | `register_comm_hook` | another all-reduce, a compressed one for instance |
#
# From PyTorch 2.13 on, `broadcast_buffers` is deprecated. `forward_sync_buffers=False`
# takes its place, but with it the buffers are still sent once, when DDP wraps.
#
# The first option can be seen:


def memories_of_gradients(**options):
    """In how many pieces of memory the three gradients lie."""
    replica = DDP(network(), **options)
    for _ in range(2):
        cross_entropy(replica(X[mine]), y[mine]).backward()
    grads = [p.grad.untyped_storage().data_ptr() for p in replica.parameters()]
    return len(set(grads))


everyone()
if rank == 0:
    print("\n## Extra: options that you may meet\n")

play("ranks")

as_view = memories_of_gradients(gradient_as_bucket_view=True)
memories = memories_of_gradients(), as_view


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


memories_by_rank = to_rank_0(memories)
if rank == 0:
    play("kernel")
    own_memories, in_the_bucket = memories_by_rank[0]
    assert (own_memories, in_the_bucket) == (3, 1)
    result("memories_of_gradients", [own_memories, in_the_bucket])

# `torch.compile` works with DDP, too. A compiled backward pass is one function, whose
# gradients come at its end. Then nothing would overlap. So the compiler's DDPOptimizer
# cuts the graph where the buckets end, and compiles piece by piece [ddpcompile].
# Compile the wrapped model, `torch.compile(DDP(model))`, so that it knows the buckets.

# --- What you can do now --------------------------------------------------------------

# - Turn a loop for one process into a data-parallel one, and prove that it is the same
#   training.
# - Say which messages DDP sends: when it wraps, in its first backward pass, and in
#   those that follow.
# - Divide the loss by the global count where shards are unequal, and keep padding out
#   of an evaluation.
# - Accumulate gradients with one all-reduce, and count that it is one.
# - Read the error of unused parameters, and know what its cure costs.
# - Choose batch, learning rate, workers and seeds when ranks are added.
# - Write the whole program, and start it with `torchrun` or `mp.spawn`, on one host or
#   on several.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/11_ddp.py
#
# The whole program alone, on all GPUs of a host:
#
#     torchrun --standalone --nproc-per-node gpu scripts/11_train_ddp.py

# --- Where to read on -----------------------------------------------------------------

# - [li2020]: DDP, by those who built it: buckets, overlap, `no_sync`, and what each
#   brings.
# - [ddpdocs]: every option, with the warnings.
# - [goyal2017]: large batches, the linear scaling rule, the warm-up.
# - [unsloth2024]: the mean of means in libraries that train language models.
# - [reproducibility]: what makes a run repeatable, and what nothing does.

leave_group()
