# Generated from book/11_ddp.md by `make forms`: edit the manuscript, not this file.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 11_ddp.py
#     torchrun --standalone --nproc-per-node 4 11_ddp.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 11_ddp.py
#     mpiexec -n 4 python 11_ddp.py
#
# pip install matplotlib numpy scikit-learn torch  (for mpiexec also: mpich mpi4py)

import inspect
import io
import os
import pickle
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import record_function
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
device, backend = choose_device(device='cpu', backend='gloo')
store = next(dist.rendezvous("env://"))[0]
form_groups()


def from_rank_0(make):
    """What make() returns on rank 0, in the kernel, on every rank: a copy for each."""
    before = play("kernel")
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return pickle.loads(box[0])


APART = ["place"]  # the kernel and the ranks have one each
playing, held_by = "kernel", {"ranks": {}}
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
torch.seed()  # the kernel's streams begin somewhere else
np.random.seed()
random.seed()


def play(part):
    """Rank 0 is also the kernel; give each part its own of the names that are apart, and a stream
    of random numbers of its own."""
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


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# From ranklab.taught.training:


def split(X, y, share=0.1, seed=0):
    """Return (train X, train y) and (test X, test y): a random share of the samples is for testing.

    Every sample is in exactly one of the two.
    """
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
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


# === PyTorch's own ====================================================================

# Everybody wraps the model in `DistributedDataParallel` and goes on. What does that
# line do, and when? And what does it leave to you?
#
# 55 minutes to read · 30 seconds to run · stands on chapter 10_sync_sgd
#
# At the end you can say which messages DDP sends and at what moment, use `no_sync` and
# `find_unused_parameters` for what they are for, choose batch size, learning rate and
# seeds as ranks are added, and write a training that can be killed at any moment, on
# any rank, and still ends with the same bits.

# The data are chapter 10's handwritten digits, in float64, so that rounding can be told
# from a mistake. The kernel reads them once and pushes them to the ranks. The global
# batch is 16 samples for each rank, and the few samples that do not fill a last batch
# are left out: then every number of ranks that divides the batch deals the same
# batches.

if rank == 0:
    BATCH = 16 * world_size
    (images, classes), _ = digits()
    full = len(classes) // BATCH * BATCH

train_set = from_rank_0(lambda: (images[:full].double(), classes[:full]))
batch = from_rank_0(lambda: BATCH)
if rank == 0:
    result("training_samples", full)

# --- One line -------------------------------------------------------------------------

# Here is a step of chapter 10: everybody starts equal, computes on a part of the batch,
# and the gradients are averaged. And here is the same with PyTorch's wrapper, DDP.


def network(dropout=0.0, seed=0):
    """A small network for 8 x 8 pixels, in float64. The same seed, the same first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(64, 48), nn.Tanh(), nn.Dropout(dropout), nn.Linear(48, 10)
        return nn.Sequential(*layers).double()


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


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


everyone()
play("ranks")
X, y = train_set
mine = slice(rank, batch, world_size)  # this rank's part of the first batch
cross_entropy = nn.functional.cross_entropy

by_hand = network(seed=rank)  # every rank starts differently
broadcast_parameters(by_hand)
cross_entropy(by_hand(X[mine]), y[mine]).backward()
average_gradients(by_hand)

wrapped = DDP(network(seed=rank))
cross_entropy(wrapped(X[mine]), y[mine]).backward()

gap = max(
    (a.grad - b.grad).abs().max().item()
    for a, b in zip(by_hand.parameters(), wrapped.parameters())
)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


# Predict: Both average the gradients of the same samples at the same weights. Are the
# gradients equal: to the last bit, nearly, or not?

gap_by_rank = to_rank_0(gap)
if rank == 0:
    play("kernel")
    assert max(gap_by_rank) < 1e-15

gap_by_rank = to_rank_0(gap)
if rank == 0:
    result("gap", max(gap_by_rank), varies=True)


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

# They differ by at most (gap). Chapter 10 sends one all-reduce for each parameter and
# DDP one for many at once, so with more than two ranks the numbers are added in another
# order. With two ranks there is only one order.
#
# So `DDP(model)` takes the place of three things: `broadcast_parameters`,
# `average_gradients`, and the care to call the second one after every `backward`. The
# loop stays a loop for one process.
#
# On GPUs there is one more argument, and the names in the environment are in capitals
# (chapter 05_ranks; `os.environ["rank"]` is a KeyError):
#
# ```python
# local_rank = int(os.environ["LOCAL_RANK"])   # which of this host's GPUs
# torch.cuda.set_device(local_rank)
# model = DDP(model.to(local_rank), device_ids=[local_rank])
# ```
#
# `device_ids` is a list of one GPU (not a list in a list), the one on which the model
# already is. On a CPU there is nothing to name, and DDP refuses the argument.

# --- When it wraps --------------------------------------------------------------------

# Predict: The ranks come with different weights. Which collectives must `DDP(model)`
# call, before any data has been seen? And how often, for a model of four parameters?

everyone()
play("ranks")
candidate = network(seed=rank)
with trace() as t:
    replica = DDP(candidate)
first_weights = [parameter.detach().clone() for parameter in candidate.parameters()]

first_weights_by_rank = to_rank_0(first_weights)
if rank == 0:
    play("kernel")
    of_rank_0, *of_others = first_weights_by_rank
    assert all(torch.equal(a, b) for other in of_others for a, b in zip(of_rank_0, other))
    numbers = sum(weights.numel() for weights in of_rank_0)
    result("bytes_of_the_model", 8 * numbers)

# First the ranks compare what they have: an all-gather of one number, how many
# parameters there are, then rank 0's shapes. A rank whose parameters have other shapes
# says so here, and not in the middle of a training. Then comes chapter 10's broadcast,
# packed: the four parameters are one message of (bytes_of_the_model) bytes. Afterwards
# all ranks have the weights of rank 0. (Parameters only once. Buffers, such as the
# running means of batch norm, are sent from rank 0 again before a forward pass, as long
# as the one before it was one of training. So whoever evaluates on rank 0 alone calls
# `replica.module`: with `replica` it may wait for ranks that do not come.)
#
# That equality is made once and never again. Whoever changes `model` on one rank
# afterwards, loads a checkpoint on rank 0 alone, say, has ranks that differ for good,
# and no error.

# --- During backward ------------------------------------------------------------------

# Predict: The last layer's gradient is ready first, the first layer's last. When can
# its all-reduce begin? And when does it begin, in the very first step and in the second
# one?
#
# A communication hook is called for each bucket in place of DDP's own all-reduce. Ours
# notes what the bucket holds and calls PyTorch's.


def watched(model, **options):
    """Wrap a model; return it with a list, to which every all-reduce adds its parameters' names."""
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    calls, replica = [], DDP(model, **options)

    def note(state, bucket):
        calls.append([names[parameter.data_ptr()] for parameter in bucket.parameters()])
        return allreduce_hook(None, bucket)

    replica.register_comm_hook(None, note)
    return replica, calls


class Crossed(nn.Module):
    """Four square layers, registered as a, b, c, d and used as d, b, a, c."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        for layer in (self.d, self.b, self.a, self.c):
            x = torch.tanh(layer(x))
        return x


everyone()
play("ranks")
x = torch.ones(256, 768)
replica, calls = watched(Crossed(768), bucket_cap_mb=1)
buckets = []
dist.barrier()
with trace() as t:
    for which in ("first step", "second step"):
        with record_function(which):
            replica(x).sum().backward()
        buckets.append(list(calls))
        calls.clear()
caps = replica.bucket_bytes_cap, DDP(network()).bucket_bytes_cap, dist._DEFAULT_FIRST_BUCKET_BYTES

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


t_by_rank = to_rank_0(t)
if rank == 0:
    play("kernel")
    show(timeline(t_by_rank[:2], name="overlap"))

buckets_by_rank = to_rank_0(buckets)
if rank == 0:
    in_first, in_second = buckets_by_rank[0]
    result("buckets_in_the_first_step", [" ".join(names) for names in in_first])
    result("buckets_in_the_second_step", [" ".join(names) for names in in_second])

buckets_by_rank = to_rank_0(buckets)
if rank == 0:
    assert all(buckets_of_rank == [in_first, in_second] for buckets_of_rank in buckets_by_rank)

# Upper half of a row: computing, the forward pass lighter. Lower half: all-reduces. In
# the first step the lower half begins where the upper one ends, in the second it begins
# under it.
#
# In the first step there is a single all-reduce, after everything: DDP does not know
# yet in which order the gradients will come, puts all parameters into one bucket, and
# watches. After that step it makes the buckets anew, in the order in which the
# gradients arrived: (buckets_in_the_second_step). (The layers are used as d, b, a, c,
# so c's gradient comes first.) From then on each bucket leaves as soon as it is full,
# while the backward pass goes on below it, and `backward()` returns when all have
# arrived (with NCCL: when all stand in the GPU's queue). This is what chapter 6
# promised: communication hidden behind computation [li2020]. The order is rank 0's,
# sent to all, and from then on fixed, since all ranks must make the same calls in the
# same order.
#
# How large is a bucket, if one does not ask for `bucket_cap_mb=1` to see several?

caps_by_rank = to_rank_0(caps)
if rank == 0:
    asked, default, first_one = caps_by_rank[0]
    result("default_bucket_mib", default / 2**20)
    result("first_bucket_mib", first_one / 2**20)
    assert asked == 2**20

# (default_bucket_mib) MiB, but for the bucket that is ready first, which closes at
# (first_bucket_mib) MiB, so that the sending begins early. Chapter 12 measures why
# neither tiny nor huge buckets are good.

# --- Not yet: no_sync -----------------------------------------------------------------

# A batch too large for the memory is worked through in parts, whose gradients add up in
# `.grad`. Only their sum is needed on the other ranks.
#
# Predict: Four parts a step. How many all-reduces are there if DDP is left alone? With
# `no_sync` around the first three parts? And with `no_sync` around only the
# `backward()` of those three?


def accumulate(replica, parts, quiet):
    """Add up the gradients of the mean loss, part by part; `quiet` says what no_sync is around."""
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        silent = replica.no_sync if i < len(parts) - 1 else nullcontext
        with silent() if quiet == "both" else nullcontext():
            loss = cross_entropy(replica(inputs), labels) / len(parts)
            with silent() if quiet == "backward" else nullcontext():
                loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in replica.parameters()])


everyone()
play("ranks")

replica, calls = watched(network())
parts = list(zip(X[mine].chunk(4), y[mine].chunk(4)))
accumulate(replica, parts, "nothing")  # the first step, after which the buckets are made
counts, gradients = {}, {}
for quiet in ("nothing", "both", "backward"):
    calls.clear()
    with trace() as t:
        gradients[quiet] = accumulate(replica, parts, quiet)
    counts[quiet] = len(calls)

counts_by_rank = to_rank_0(counts)
if rank == 0:
    play("kernel")
    all_reduces_of_four_parts = counts_by_rank[0]
    assert all_reduces_of_four_parts == {"nothing": 4, "both": 1, "backward": 4}
    for quiet in ("nothing", "both", "backward"):
        result(f"all_reduces_{quiet}", all_reduces_of_four_parts[quiet])

gradients_by_rank = to_rank_0(gradients)
if rank == 0:
    one, *others = [of_rank["both"] for of_rank in gradients_by_rank]
    assert all(torch.equal(one, other) for other in others)  # still the same on every rank

gradients_by_rank = to_rank_0(gradients)
if rank == 0:
    assert all(torch.allclose(g, one, rtol=0, atol=1e-14) for g in gradients_by_rank[0].values())

# Four, one, and four again: `no_sync` around `backward()` alone changes nothing,
# without a word. DDP decides in the forward pass whether the backward pass to come will
# communicate, so the forward pass has to be inside. All three give the same gradient.
# They differ only in the bill, and this mistake is one that only a count can show.
# (`traffic(ranks["t"])` counts for any program. Here is the last of the three ways.
# Messages that a program sends itself are counted apart from collectives, and here are
# none:)

# --- A parameter that takes no part ---------------------------------------------------

# Predict: A model has a second head that this training never calls. DDP waits for the
# gradient of every parameter. What happens: an error, a hang, or nothing? And in which
# step?


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.digit, self.parity = nn.Linear(64, 8), nn.Linear(8, 10), nn.Linear(8, 2)
        self.double()

    def forward(self, x, heads=("digit",)):
        hidden = torch.tanh(self.body(x))
        return [getattr(self, head)(hidden) for head in heads]


everyone()
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
    print(refusal_by_rank[0])

left_in_body_by_rank = to_rank_0(left_in_body)
if rank == 0:
    first_body, *other_bodies = left_in_body_by_rank

steps_done_by_rank = to_rank_0(steps_done)
if rank == 0:
    assert steps_done_by_rank == [1] * world_size
    assert not any(torch.equal(first_body, other) for other in other_bodies)  # nothing was averaged

steps_done_by_rank = to_rank_0(steps_done)
if rank == 0:
    result("steps_before_the_error", steps_done_by_rank[0])

# The first step seems to work, and the second forward pass complains. In the first, the
# bucket was never full, so nothing was ever sent: after it, each rank holds the
# gradients of its own samples alone. Had the program stopped after one step, or had it
# called `optimizer.step()` in between (as all do), the replicas would by now be
# different. The message counts parameters from 0, in order of registration: 4 and 5 are
# those of `parity`. With `TORCH_DISTRIBUTED_DEBUG=INFO` in the environment it has their
# names.
#
# `find_unused_parameters=True` lets DDP look at the graph after each forward pass and
# count as ready whatever is not in it.

everyone()
play("ranks")
replica, calls = watched(TwoHeads(), find_unused_parameters=True)
for step in range(3):
    calls.clear()
    replica.zero_grad()
    if step == 2 and rank == 0:  # one rank, in one step, uses both heads
        digit, parity = replica(X[mine], heads=("digit", "parity"))
        loss = cross_entropy(digit, y[mine]) + cross_entropy(parity, y[mine] % 2)
    else:
        loss = cross_entropy(replica(X[mine])[0], y[mine])
    with trace() as t:
        loss.backward()
    if step == 1:
        used_nowhere = replica.module.parity.weight.grad
used_on_rank_0 = replica.module.parity.weight.grad

used_nowhere_by_rank = to_rank_0(used_nowhere)
if rank == 0:
    play("kernel")
    assert all(gradient is None for gradient in used_nowhere_by_rank)

used_on_rank_0_by_rank = to_rank_0(used_on_rank_0)
if rank == 0:
    assert len({gradient.norm().item() for gradient in used_on_rank_0_by_rank}) == 1

used_on_rank_0_by_rank = to_rank_0(used_on_rank_0)
if rank == 0:
    assert used_on_rank_0_by_rank[-1].norm() > 0

# Now the steps go on, and more: in the third one rank 0 alone used the second head, and
# all ranks got its gradient (the mean, in which the others' counts as zero). Where a
# parameter was used nowhere, its gradient stays `None` everywhere. To know which of the
# two it is, the ranks must ask each other: one more all-reduce in every step, of one
# integer a parameter, and a walk through the graph. So it is off by default.
#
# It has a second price. What if the order of use is not that of registration?

everyone()
play("ranks")
replica, calls = watched(Crossed(64), bucket_cap_mb=0.001, find_unused_parameters=True)
for _ in range(3):
    calls.clear()
    replica(torch.ones(4, 64)).sum().backward()
fixed_order = list(calls)

fixed_order_by_rank = to_rank_0(fixed_order)
if rank == 0:
    play("kernel")
    fixed = [" ".join(names) for names in fixed_order_by_rank[0]]
    result("buckets_with_find_unused", fixed)

# The buckets are (buckets_with_find_unused), from the last one registered to the first,
# and they stay so: with this option DDP cannot rely on one order of arrival, and makes
# no new buckets. They also leave in this order. Here d's gradient is the last to
# arrive, so everything waits for it, and nothing overlaps. Where the same parameters
# are used in every step, `static_graph=True` finds out once which they are. And if a
# head is never trained, `requires_grad_(False)`, before DDP wraps, is the plain way to
# say so.

# --- What it is called inside ---------------------------------------------------------

everyone()
play("ranks")
plain = network()
names_inside = list(DDP(plain).state_dict())


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        print(f"rank {rank} failed, as it may here: {type(error).__name__}: {first_line}")


everyone()
with may_fail():
    show(plain.load_state_dict(DDP(network(seed=1)).state_dict()), rank)

# The wrapper is a module that holds yours under the name `module`, so every name in its
# `state_dict` begins with it and fits no model that is not wrapped. Save what is
# inside: `replica.module.state_dict()`. Where you are given a file with the prefix:

everyone()

given = DDP(network(seed=1)).state_dict()
consume_prefix_in_state_dict_if_present(given, "module.")  # in place
matched = plain.load_state_dict(given)

names_inside_by_rank = to_rank_0(names_inside)
if rank == 0:
    play("kernel")
    result("names_inside", names_inside_by_rank[0])

# --- Threads or processes -------------------------------------------------------------

# PyTorch has an older wrapper, `DataParallel`: one process, a thread for each GPU, the
# model copied to all of them in each step. The documentation recommends the other one,
# even on one host [ddpdocs]. Why? On a CPU it can be asked only in part, for there
# `DataParallel` does nothing:

if rank == 0:
    shape_only = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[])
    result("devices_of_data_parallel_on_a_cpu", len(shape_only.device_ids))

# So let us build what it does: two replicas in two threads of rank 0. Against it, the
# same two replicas in two processes, ranks 0 and 1, and, as the unit, one thread that
# does both, one after the other. Two models: one of many small layers, where a step is
# mostly Python, and one of a few large products.


def chain(layers, width):
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts)


def forward_backward(replica, inputs):
    replica(inputs).sum().backward()


def seconds_of(work, who, repeats):
    """The fastest of several times in which the ranks in `who` do the work."""
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        if rank in who:
            work()
            times.append(time.perf_counter() - start)
    return min(times, default=0.0)


def in_three_ways(layers, width, samples, repeats=5):
    """Seconds for two shares: one after the other, in two threads, in two processes."""
    replicas = [chain(layers, width) for _ in range(2)]
    halves = [torch.ones(samples, width) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return [
            seconds_of(lambda: list(map(forward_backward, replicas, halves)), (0,), repeats),
            seconds_of(lambda: list(pool.map(forward_backward, replicas, halves)), (0,), repeats),
            seconds_of(lambda: forward_backward(replicas[0], halves[0]), (0, 1), repeats),
        ]


everyone()
play("ranks")

small, large = in_three_ways(150, 8, 8), in_three_ways(3, 512, 256)

# Predict: With two free cores, two processes need about half the time. And two threads,
# for the small layers and for the large ones? Chapter 5 has what you need.


def speedups(seconds_of_ranks):
    """How many times faster than one after the other: in threads, and in processes."""
    alone, threads, processes = np.max(seconds_of_ranks, axis=0)
    return [alone / threads, alone / processes]


small_by_rank = to_rank_0(small)
large_by_rank = to_rank_0(large)
if rank == 0:
    play("kernel")
    of_small, of_large = speedups(small_by_rank), speedups(large_by_rank)
    result("small_layers_threads", of_small[0], varies=True)
    result("small_layers_processes", of_small[1], varies=True)
    result("large_layers_threads", of_large[0], varies=True)
    result("large_layers_processes", of_large[1], varies=True)

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
    fig, ax = plt.subplots(num="threads", figsize=(5.2, 2.6))
    for place, (threads, processes) in enumerate((of_small, of_large)):
        ax.barh(place - 0.2, threads, 0.36, color="C0", hatch="..", edgecolor="white")
        ax.barh(place + 0.2, processes, 0.36, color="C1")
        ax.text(threads, place - 0.2, " two threads", va="center")
        ax.text(processes, place + 0.2, " two processes", va="center")
    ax.axvline(1, color="C7", linestyle=":")
    longest = max(*of_small, *of_large)
    ax.set(xlabel="times as fast as one after the other", xlim=(0, 1.5 * longest))
    ax.set(yticks=[0, 1], yticklabels=["many small\nlayers", "few large\nones"])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    save_figures()

# (Two processes can be at most twice as fast. Where the bars say otherwise, something
# else was busy here.) For large products the lock hardly matters: PyTorch lets go of it
# while it multiplies. For small layers most of the time is Python, and only one thread
# at a time runs Python (the backward pass is run by PyTorch's own engine, without the
# lock, so threads can still gain a little there). GPUs make it worse, not better: the
# faster the products, the larger the share of Python. And `DataParallel` has costs that
# ours has not: it copies the model from the first GPU to all others in every forward
# pass, and gathers all outputs there. (The bars are of forward and backward alone.
# Averaging the gradients is extra, in both.)
#
# Where this page finds two GPUs, it measures both.

everyone()
play("ranks")
gpus = torch.cuda.device_count()


def seconds_a_step(replica, inputs, repeats=20):
    for step in range(repeats + 5):
        if step == 5:  # the first ones warm up
            torch.cuda.synchronize()
            start = time.perf_counter()
        replica(inputs).sum().backward()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


pair = dist.new_group([0, 1], backend="nccl" if gpus >= 2 else "gloo")
dp_seconds = ddp_seconds = None
if gpus >= 2 and rank == 0:
    inputs, replica = torch.ones(512, 1024, device="cuda:0"), chain(24, 1024).to("cuda:0")
    dp_seconds = seconds_a_step(nn.DataParallel(replica, device_ids=[0, 1]), inputs)
dist.barrier()
if gpus >= 2 and rank < 2:
    torch.cuda.set_device(rank)
    inputs, replica = torch.ones(256, 1024, device="cuda"), chain(24, 1024).cuda()
    wrapped = DDP(replica, device_ids=[rank], process_group=pair)
    ddp_seconds = seconds_a_step(wrapped, inputs)

dp_seconds_by_rank = to_rank_0(dp_seconds)
ddp_seconds_by_rank = to_rank_0(ddp_seconds)
if rank == 0:
    play("kernel")
    by_threads, by_processes = dp_seconds_by_rank[0], ddp_seconds_by_rank[0]
    if by_threads is None:
        print("No two GPUs here: DataParallel could not be measured.")
    else:
        print(f"DataParallel takes {by_threads / by_processes:.2f} times as long as DDP.")

# --- A loop that can be stopped -------------------------------------------------------

# The rest of the chapter trains, so here is the training. It is written so that it can
# be left and taken up again, and for that it must say what it is at any moment. Before
# you read on:
#
# Predict: The power goes off in the middle of an epoch. You have the weights. What else
# is needed to go on as if nothing had happened, so that the final weights have the same
# bits?
#
# First the samples. chapter 10_sync_sgd has shown `DistributedSampler`. Its order
# follows from the seed and the number of the epoch alone (`set_epoch`), so a position
# is two numbers: which epoch, and how many batches of it are done.


def shares(n, epoch, batch, group=None):
    """This rank's part of each batch of an epoch: lists of the numbers of samples, of n."""
    sampler = DistributedSampler(
        range(n), dist.get_world_size(group), dist.get_rank(group), drop_last=True
    )
    sampler.set_epoch(epoch)
    mine, share = list(sampler), batch // dist.get_world_size(group)
    return [mine[i : i + share] for i in range(0, len(mine) - share + 1, share)]


def augmented(inputs):
    """Shift 8 x 8 pixels sideways, Python draws how far, and add noise, which NumPy draws."""
    shifted = inputs.view(-1, 8, 8).roll(random.choice((-1, 0, 1)), dims=2).flatten(1)
    return shifted + torch.from_numpy(0.1 * np.random.standard_normal(shifted.shape))


# Then chance. Dropout draws from PyTorch's generator, the noise from NumPy's, the shift
# from Python's: three generators on each rank, whose states are all part of the run.


def seed_all(seed):
    """Seed all generators of this process."""
    torch.manual_seed(seed)  # of its GPUs, too
    np.random.seed(seed)
    random.seed(seed)


def random_states():
    """Where all generators of this process stand, as numbers, tuples, lists and tensors."""
    name, keys, *rest = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    states["numpy"] = [name, keys.tolist(), *rest]
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states):
    """Put all generators of this process where they stood."""
    torch.set_rng_state(states["torch"].cpu())
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


# And the loop. (What `warm_up` is for, a later section finds out.) Its state is what
# `parts` holds (the weights, the momentum of the optimizer, the step of the schedule),
# the number of batches dealt, the losses so far, and the random states of every rank.
# `save_checkpoint` and `load_checkpoint` come below; until then there is no folder.


def warm_up(replica, inputs):
    """One backward pass for nothing: after it, DDP makes its final buckets."""
    replica.eval()  # batch norm keeps its statistics
    replica(inputs).sum().backward()
    replica.train()
    replica.zero_grad()


def resume(folder, parts, forget=(), group=None):
    """Restore parts from the newest checkpoint; return (batches dealt, losses), or (0, [])."""
    found = load_checkpoint(folder, group)
    if found is None:
        return 0, []
    shared, own = found["shared"], found["own"]
    for name in sorted(parts.keys() - set(forget)):
        parts[name].load_state_dict(shared[name])
    if "random states" not in forget and len(own) == dist.get_world_size(group):
        set_random_states(own[dist.get_rank(group)])
    return 0 if "position" in forget else shared["dealt"], shared["losses"]


def train(model, data, steps, batch, *, lr=0.1, horizon=24, noisy=True, group=None,
          folder=None, every=None, forget=(), before_step=None):
    """Train up to step `steps`; return the loss of every step, the mean over all ranks.

    batch: samples a step, of all ranks of the group together; the same after a stop. horizon: steps
    until the learning rate is 0. folder: where checkpoints are; the training goes on from the
    newest, and leaves one after each `every` steps. forget: names of what is not restored, to see
    what comes of it. before_step(step) is called before each step.
    """
    (X, y), n = data, dist.get_world_size(group)
    replica = DDP(model, process_group=group)
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, horizon)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if "warm-up" not in forget:
        warm_up(replica, X[:1])
    seed_all(dist.get_rank(group))  # not the same noise on every rank
    dealt, losses = resume(folder, parts, forget, group) if folder else (0, [])
    while len(losses) < steps:
        if before_step:
            before_step(len(losses))
        epoch, place = divmod(dealt, len(y) // batch)
        chosen = shares(len(y), epoch, batch, group)[place]
        inputs = augmented(X[chosen]) if noisy else X[chosen]
        loss = nn.functional.cross_entropy(replica(inputs), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        losses.append(total.item() / n)
        dealt += 1
        if every and len(losses) % every == 0:
            shared = {name: part.state_dict() for name, part in parts.items()}
            shared |= {"dealt": dealt, "losses": losses}
            save_checkpoint(folder, len(losses), shared, random_states(), group)
    return losses


# --- More ranks: batch, learning rate, workers ----------------------------------------

# Predict:
#
# 1, 2 and all ranks train with the same global batch. Then, the other way: each rank
# keeps its batch of 16, so the global batch grows with the ranks. Which of the two
# trainings is another one?

everyone()
play("ranks")
counts = sorted({1, 2, world_size})
groups = {n: dist.new_group(list(range(n))) for n in counts}  # every rank takes part in making them


def trained(n, batch, steps, lr):
    """The losses of a training on the first n ranks; the others wait."""
    model, losses = network(), []
    if rank < n:
        how = {"lr": lr, "horizon": 2 * steps, "noisy": False, "group": groups[n]}
        losses = train(model, train_set, steps, batch, **how)
    dist.barrier()
    return losses


kept = {n: trained(n, batch, 24, 0.1) for n in counts}
samples = 48 * batch  # in each of these
alone = trained(1, 16, samples // 16, 0.02)
grown = trained(world_size, batch, samples // batch, 0.02)
scaled = trained(world_size, batch, samples // batch, 0.02 * world_size)

kept_by_rank = to_rank_0(kept)
if rank == 0:
    play("kernel")
    of_kept = kept_by_rank[0]
    assert all(np.allclose(of_kept[n], of_kept[1], rtol=0, atol=1e-12) for n in of_kept)
    result("last_losses_same_batch", [round(losses[-1], 6) for losses in of_kept.values()])

alone_by_rank = to_rank_0(alone)
grown_by_rank = to_rank_0(grown)
scaled_by_rank = to_rank_0(scaled)
if rank == 0:
    curves = {"alone": alone_by_rank[0], "grown": grown_by_rank[0], "scaled": scaled_by_rank[0]}
    for name, losses in curves.items():
        of_an_end = losses[-len(losses) // 12 :]  # as many samples in each of the three
        result(f"steps_{name}", len(losses))
        result(f"last_loss_{name}", round(float(np.mean(of_an_end)), 3))

if rank == 0:
    fig, ax = plt.subplots(num="batch")
    labels = {
        "alone": "1 rank, batch of 16",
        "grown": f"{world_size} ranks, same rate",
        "scaled": f"{world_size} ranks, rate × {world_size}",
    }
    for style, (name, losses) in zip(("C0-", "C1-", "C2--"), curves.items()):
        many = len(losses) // 24  # 24 points on each curve
        points = np.mean(np.reshape(losses[: 24 * many], (24, many)), axis=1)
        ax.plot((np.arange(24) + 0.5) * 2 * BATCH, points, style, label=labels[name])
    ax.set(xlabel="samples seen, of all ranks together", ylabel="training loss", ylim=(0, None))
    ax.legend()
    save_figures()

# With the global batch kept, the last of 24 losses is (last_losses_same_batch): only
# the time changes. That is the thing to do first; each rank's loader then takes
# `batch_size // world_size` samples. With the batch of each rank kept, the same samples
# are seen in (steps_grown) steps in place of (steps_alone). At the same learning rate
# the loss ends at (last_loss_grown) and not at (last_loss_alone), for fewer steps of
# the same length do not come as far. The linear scaling rule makes the steps longer, as
# many times as the batch is larger [goyal2017]: (last_loss_scaled). It is a rule of
# thumb, which has a limit and wants a warm-up at the start; chapter 15 is about it. The
# choice is yours: DDP averages whatever it is given, and changes no learning rate.
#
# Three numbers change by themselves when you add ranks, and are worth a line in every
# log:
# - the global batch, if the loader's `batch_size` is not divided. And a division rounds
#   down: a batch of 100 on 3 ranks is `3 * (100 // 3)` = 99.
# - the loader's workers: `num_workers=8` on each of 8 ranks is 64 processes on one
#   host. Divide them, too (chapter 04_feeding has how to find the knee).
# - the steps of an epoch, and so everything that counts in steps: warm-up, schedule,
#   evaluation, checkpoints.

# --- Seeds: what differs, what is equal -----------------------------------------------

# Predict: Every program begins with `seed(0)`, on every rank the same. What is wrong
# with it? And if it is `seed(rank)` instead, with the sampler's seed as well?


def draws(seed):
    """Which of 12 activations dropout drops, and the first samples that this rank is dealt."""
    seed_all(seed)
    dropped = nn.functional.dropout(torch.ones(12)) == 0
    sampler = DistributedSampler(range(100), world_size, rank, seed=seed)
    return dropped.tolist(), list(sampler)


everyone()
play("ranks")

same_seed, own_seed = draws(0), draws(rank)


def different(masks):
    return len(set(map(tuple, masks)))


def left_out(hands):
    return 100 - len({sample for hand in hands for sample in hand})


same_seed_by_rank = to_rank_0(same_seed)
if rank == 0:
    play("kernel")
    masks, hands = zip(*same_seed_by_rank)

own_seed_by_rank = to_rank_0(own_seed)
if rank == 0:
    own_masks, own_hands = zip(*own_seed_by_rank)
    assert left_out(hands) == 0 and left_out(own_hands) > 0
    result("different_masks_same_seed", different(masks))
    result("different_masks_own_seed", different(own_masks))
    result("never_dealt_same_seed", left_out(hands))
    result("never_dealt_own_seed", left_out(own_hands))

# The same seed gives (different_masks_same_seed) mask for all ranks: every rank drops
# the same activations, and shifts its images the same way. It works, and has less noise
# in it than it pretends. With a seed of its own, each rank has its own mask
# ((different_masks_own_seed)). But a sampler with a seed of its own shuffles the deck
# differently on each rank, and then deals from it: (never_dealt_own_seed) of 100
# samples are never seen in this epoch, others several times. (And `seed + rank` is the
# same number for seed 0 on rank 1 and for seed 1 on rank 0: two runs that share their
# chance. `seed * world_size + rank` is not.) So:
#
# | | on the ranks | who sees to it |
# | --- | --- | --- |
# | first weights | equal | DDP's broadcast; or one seed |
# | order of the samples | equal, then dealt | the sampler's seed and `set_epoch` |
# | dropout, noise, augmentation | different | you: `seed * world_size + rank` |
# | workers of the loader | different in each | PyTorch, from the rank's own generator: so the same again |
# | what is drawn for all, such as a layer to skip | equal | you: a generator of its own, with one seed |
#
# A seed makes a run repeatable only if the operations are. Some GPU kernels add in
# whatever order their threads arrive. `torch.use_deterministic_algorithms(True)` (or
# its debug mode "error", which is the same) chooses others, or raises an error where
# there is none; it also fills fresh memory, so that a forgotten initialization shows.
# `cudnn.benchmark = True` lets cuDNN time its algorithms and take the fastest of the
# day, so it does not go with that. What determinism costs depends on the operations.
# Measure a step of your own: PyTorch's notes promise only that it is slower as a rule
# [reproducibility]. They also say what no setting brings: equal bits on another kind of
# GPU, or with another version of PyTorch.

# --- A file that is whole or not there ------------------------------------------------

# Now the checkpoint. A run that is killed while it writes one leaves half a file.
# Worse, if the new one has the name of the old one, it has destroyed the old one first.
# So write under another name, make sure that the bytes are on the disk, and only then
# rename: the operating system changes a name in one step [osreplace].


def write_whole(path, write):
    """Let write(file) make the file `path`. At any moment it is what it was, or all of the new."""
    path = Path(path)
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())  # the bytes are on the disk, and not only on their way
    os.replace(draft, path)
    if os.name == "posix":  # and so is the name
        entry = os.open(path.parent, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)


# A process of its own tries it, and a plain `open`. It writes one half, sends itself a
# SIGKILL, which nobody can catch, and never comes to the second.

everyone()
play("ranks")

source_of_write_whole = inspect.getsource(write_whole)

everyone()
if rank == 0:
    play("kernel")
    workshop = tempfile.TemporaryDirectory(prefix="checkpoints-")  # gone when this notebook ends
    folder = Path(workshop.name)

    killed_while_writing = "import os, signal, sys\nfrom pathlib import Path\n\n"

source_of_write_whole_by_rank = to_rank_0(source_of_write_whole)
if rank == 0:
    killed_while_writing += source_of_write_whole_by_rank[0]
    killed_while_writing += """
def half(file):
    file.write(b"new " * 500)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    file.write(b"new " * 500)

if sys.argv[1] == "plain":
    with open(sys.argv[2], "wb") as file:
        half(file)
else:
    write_whole(sys.argv[2], half)
"""
    (folder / "killed.py").write_text(killed_while_writing)

# Predict: Before, each file holds the word `old` a thousand times. What do they hold
# afterwards?

if rank == 0:
    after = {}
    for how in ("plain", "whole"):
        target = folder / f"{how}.txt"
        target.write_bytes(b"old " * 1000)
        subprocess.run([sys.executable, folder / "killed.py", how, target], timeout=60)
        words = target.read_text().split()
        after[how] = f"{words.count('old')} old, {words.count('new')} new"
        result(f"after_a_kill_{how}", after[how])
    assert after == {"plain": "0 old, 500 new", "whole": "1000 old, 0 new"}


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


# Plain writing leaves (after_a_kill_plain): neither the one nor the other. With
# `write_whole` the old file is still there, (after_a_kill_whole), and beside it a draft
# that nobody reads. (SIGKILL alone does not lose what was handed to the operating
# system; a power cut does. That is what the two `fsync` are for.)

# --- All ranks save at once -----------------------------------------------------------

# Which rank writes? All have the same weights, so why not all of them?
#
# Predict: Ranks 0 and 1 both write to the same name, with a plain `open`, both the same
# number of bytes. What can be in the file?
#
# The barriers make happen what otherwise happens only now and then: rank 1 opens the
# file when rank 0 is halfway.

if rank == 0:
    place = str(folder)

push("place", lambda: place)
if rank == 0:
    save_figures()


def as_bytes(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


play("ranks")

data = as_bytes(network().state_dict())
half = len(data) // 2
path = Path(place, "everybody.pt")
if rank == 0:
    file = open(path, "wb")
    file.write(data[:half])
    file.flush()
dist.barrier()
if rank == 1:
    late = open(path, "wb")  # empties what is there
dist.barrier()
if rank == 0:
    file.write(data[half:])  # goes on at its own place
    file.close()
dist.barrier()
if rank == 1:  # it has not written a byte so far
    size, empty_bytes = path.stat().st_size, path.read_bytes()[:half].count(0)
    late.close()
dist.barrier()

everyone()
if rank in (0,):
    with may_fail():
        show(torch.load(path), rank)

everyone()
state_of_file = (size == len(data), empty_bytes == half) if rank == 1 else None

state_of_file_by_rank = to_rank_0(state_of_file)
if rank == 0:
    play("kernel")
    has_the_size, first_half_is_empty = state_of_file_by_rank[1]
    assert has_the_size and first_half_is_empty
    result("size_is_right", has_the_size)
    result("first_half_is_zeros", first_half_is_empty)

# The file has the right size, and its first half is zeros: a look at the folder shows
# nothing wrong. Nor does the error: it speaks of a legacy format, and advises to load
# with `weights_only=False`. Do not follow it; a checkpoint that worked yesterday and
# asks for this today is a broken file. If rank 1 then writes, too, the file is whole
# again, and nobody ever learns how close it was. With `write_whole` the two would fight
# over one draft. So one rank writes, and the others wait until it has: here is all of
# it.


def checkpoints(folder):
    """The whole checkpoints in a folder, the newest last."""
    return sorted(Path(folder).glob("step-*.pt"))


def latest_checkpoint(folder):
    """The newest whole checkpoint in a folder, or None."""
    return (checkpoints(folder) or [None])[-1]


def save_checkpoint(folder, step, shared, own, group=None, keep=2):
    """Write the checkpoint of a step, on rank 0 alone; keep that many. Every rank calls it.

    shared: what all ranks have alike, of which rank 0's is written. own: what each has for itself.
    On return it is there, for all ranks to see. Raises OSError, on all, if it cannot be written.
    """
    rank, problem = dist.get_rank(group), [None]
    all_own = [None] * dist.get_world_size(group) if rank == 0 else None
    dist.gather_object(own, all_own, group=group, group_dst=0)
    if rank == 0:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            state = {"step": step, "shared": shared, "own": all_own}
            write_whole(Path(folder, f"step-{step:08}.pt"), partial(torch.save, state))
            for old in checkpoints(folder)[:-keep]:
                old.unlink()
        except (OSError, RuntimeError) as error:  # torch.save has a RuntimeError for a full disk
            problem = [OSError(f"The checkpoint of step {step} cannot be written: {error}")]
    dist.broadcast_object_list(problem, group=group, group_src=0)  # nobody goes on before
    if problem[0]:
        raise problem[0]


def load_checkpoint(folder, group=None):
    """Return the newest checkpoint that can be read, on every rank the same; None if there is none.

    Rank 0 reads it and sends it to the others, who need not see the folder. Raises RuntimeError
    where there are checkpoints, and none can be read.
    """
    found, lost = None, False
    if dist.get_rank(group) == 0:
        there = checkpoints(folder)
        for path in reversed(there):
            try:
                found = torch.load(path, map_location="cpu", weights_only=True)
                break
            except Exception as error:
                warnings.warn(f"{path} cannot be read: {error}", stacklevel=2)
        lost = bool(there) and found is None
    box = [found, lost]
    dist.broadcast_object_list(box, group=group, group_src=0)
    found, lost = box
    if lost:
        raise RuntimeError(f"No checkpoint in {folder} can be read. To begin anew, move them away.")
    return found


# Each line that is not obvious is there against something that goes wrong:
# - `gather_object` brings the random states of all ranks into the one file: rank 0's
#   alone would be wrong for the others.
# - Two are kept, as disks fail too: if the newest cannot be read, the one before it is
#   taken, with a warning. If none can, that is an error: a training that silently began
#   anew would soon delete what was left. (What cannot be read is noticed. A flipped bit
#   is read as another weight: `torch.load` checks no sums. Whoever fears that stores
#   one.)
# - `torch.load(weights_only=True)` reads tensors and plain values only. Without it,
#   loading a file runs whatever code its author put there. (That is why the random
#   states are stored as lists and tuples.)
# - The broadcast at the end: nobody goes on before rank 0 has written, and if it could
#   not, all hear of it.
# - One rank looks for the newest, and tells the others. Here is what happens without:

everyone()
play("ranks")
hasty = Path(place, "hasty")
save_checkpoint(hasty, 1, {}, None)


def newest_step():
    return torch.load(latest_checkpoint(hasty))["step"]


if rank > 0:
    found = newest_step()  # nobody has told them to wait
dist.barrier()  # rank 0 is slow: by now, the others have looked
if rank == 0:
    write_whole(hasty / "step-00000002.pt", partial(torch.save, {"step": 2}))
    found = newest_step()
dist.barrier()

hasty_steps = to_rank_0(found)
if rank == 0:
    play("kernel")
    assert hasty_steps[0] == 2 and set(hasty_steps[1:]) == {1}
    result("resumed_from_step", hasty_steps)

# Rank 0 goes on from step 2 and the others from step 1, with different weights, and the
# training runs on without an error: DDP compares shapes, not numbers, and that only at
# its start.

# --- What must be in it ---------------------------------------------------------------

# Twelve steps, a checkpoint, and then twelve more, several times: with everything
# restored, and each time with one thing left out. Next to it runs the twin, 24 steps
# without a stop.
#
# Predict: Which omission does the most harm, and which one nearly none?


def run(steps, **options):
    """Train the same small network, with dropout; return the losses and all weights in a row."""
    model = network(dropout=0.2)
    losses = train(model, train_set, steps, batch, **options)
    return losses, torch.cat([weights.detach().flatten() for weights in model.parameters()])


everyone()
play("ranks")

twin = run(24)
run(12, folder=Path(place, "half"), every=12)
omitted = ("nothing", "random states", "position", "schedule", "optimizer", "model")
resumed = {name: run(24, folder=Path(place, "half"), forget=(name,)) for name in omitted}

twin_by_rank = to_rank_0(twin)
resumed_by_rank = to_rank_0(resumed)
if rank == 0:
    play("kernel")
    twins, resumed_runs = twin_by_rank, resumed_by_rank
    for (losses, weights), of_rank in zip(twins, resumed_runs):
        assert of_rank["nothing"][0] == losses and torch.equal(of_rank["nothing"][1], weights)
    whole_run = np.array(twins[0][0])
    misses = {
        name: float(np.abs(np.array(losses) - whole_run)[12:].max())
        for name, (losses, _) in resumed_runs[0].items()
    }
    misses = dict(sorted(misses.items(), key=lambda item: item[1]))  # the smallest first
    for name, miss in misses.items():
        result(f"largest_miss_without_{name.replace(' ', '_')}", round(miss, 4))
    assert min(miss for name, miss in misses.items() if name != "nothing") > 1e-4
    save_figures()

if rank == 0:
    fig, ax = plt.subplots(num="left-out", figsize=(5.2, 2.6))
    assert list(misses)[0] == "nothing"
    ax.barh(list(misses), list(misses.values()), color="C0")
    ax.text(0, 0, f" {misses['nothing']:g}: the same bits", va="center")
    ax.set(xlabel="largest difference from the run never stopped", ylabel="left out")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    save_figures()

# With everything, the losses and the weights of all ranks are those of the twin, to the
# last bit. Every omission can be seen. Without the model the training starts anew (the
# largest difference in a loss is (largest_miss_without_model)). Without the schedule
# the rate goes on from where it was, for the optimizer's state holds it, but falls as
# slowly as at the beginning ((largest_miss_without_schedule)). Without the optimizer,
# the momentum must gather again, and the rate, which lay in its state, is twice the
# twin's to the end ((largest_miss_without_optimizer)). Without the position the batches
# of the epoch's beginning come twice and those of its end never
# ((largest_miss_without_position)); without the random states the noise is another one
# ((largest_miss_without_random_states)).
#
# The rates can be seen without any training:


def rates(*restored):
    """The rates of steps 12 to 23 after a stop, when these have been restored."""
    lives = []
    for _ in range(2):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
        parts, seen = {"optimizer": optimizer, "schedule": schedule}, []
        for name in restored if lives else ():
            parts[name].load_state_dict(lives[0][name].state_dict())
        for _ in range(12):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        lives.append(parts)
    return np.array(seen)


if rank == 0:
    of_both = rates("optimizer", "schedule")
    assert rates("optimizer")[0] == of_both[0] and rates("optimizer")[-1] > 10 * of_both[-1]
    assert np.allclose(rates("schedule"), 2 * of_both)
    assert rates()[0] == 0.1  # without both, that of step 0

# The runs without position and without random states are as good as the twin: their
# losses differ because they are losses of other batches, or of other noise. What these
# two omissions cost is the proof: only a run that can be repeated to the last bit tells
# a harmless difference from a bug.

# --- The last bit ---------------------------------------------------------------------

# One thing that decides about bits is in no state at all. Here is the same again,
# without the line `warm_up(...)` in `train`: twelve steps and a checkpoint, twelve
# more, and a twin, none of them warmed up.
#
# Predict: Everything is restored. What is different in the first step after a start?
# Think of the section "During backward". And would it matter with two ranks?

everyone()
play("ranks")
cold = {"forget": ("warm-up",)}
run(12, folder=Path(place, "cold"), every=12, **cold)
cold_twin, cold_resumed = run(24, **cold), run(24, folder=Path(place, "cold"), **cold)
cold_gap = (cold_twin[1] - cold_resumed[1]).abs().max().item()

cold_gap_by_rank = to_rank_0(cold_gap)
if rank == 0:
    play("kernel")
    largest_gap = max(cold_gap_by_rank)
    assert largest_gap < 1e-12
    assert world_size > 2 or largest_gap == 0  # with two ranks there is only one order
    result("gap_without_warm_up", largest_gap, varies=True)

# The weights differ by (gap_without_warm_up). In its first step DDP has the parameters
# in its bucket in the order of registration, afterwards in that of arrival (and, in a
# larger model, in several buckets). Where a number lies in the buffer decides at which
# rank the ring begins to add it. The resumed run makes step 12 with the first layout,
# the twin with the second. With two ranks there is only one order, and nobody would
# notice. `warm_up` runs one backward pass for nothing, and throws its gradients away:
# from then on every start has the buckets that it will keep.
#
# A gap of this size harms no training. It harms the test: "equal, bit for bit" is
# easily checked, while "nearly equal" hides every bug that is small at first.
#
# One trap is left, for those who use a `DataLoader`. Its iterator draws from the
# generator when it is made:

if rank == 0:
    loader = torch.utils.data.DataLoader(range(10))
    before = torch.get_rng_state()
    iterator = iter(loader)
    drawn = not torch.equal(before, torch.get_rng_state())
    assert drawn
    result("an_iterator_draws", drawn)

# A run that goes on makes an iterator in the middle of an epoch, which the twin did
# not. So restore the random states after making it, or give the loader a generator of
# its own.

# --- Three launchers, one kill --------------------------------------------------------

# Does it depend on how the ranks were started? The functions of this page now go into a
# file, as they stand, with a few lines around them. Started alone it uses `mp.spawn`;
# under `torchrun` it finds its rank in the environment, as in chapter 05_ranks. And it
# can be told to kill one rank before one step, unless it has found a checkpoint to go
# on from. (So let it be a step after the first checkpoint: before it, the rank would be
# killed again after each restart.)

everyone()
play("ranks")
taken = [network, shares, augmented, seed_all, random_states, set_random_states, warm_up, resume]
taken += [train, write_whole, checkpoints, latest_checkpoint, save_checkpoint, load_checkpoint]
program_text = "\n\n".join(inspect.getsource(function) for function in taken)

everyone()
if rank == 0:
    play("kernel")
    beginning = """
import os, random, signal, sys, warnings
from functools import partial
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

"""
    end = """

def main(rank, world_size, meet, name):
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world_size)
    victim = [int(number) for number in os.environ.get("KILL", "-1 -1").split()]
    newest = latest_checkpoint(name)

    def die_here(step):
        if [rank, step] == victim and not newest:
            print(f"rank {rank} dies before step {step}\\n", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == 0 and newest:
        print(f"resumed at step {torch.load(newest)['step']}\\n", end="", flush=True)
    model, data = network(dropout=0.2), torch.load("data.pt")
    losses = train(model, data, 24, 32, folder=name, every=4, before_step=die_here)
    if rank == 0:
        torch.save((losses, model.state_dict()), f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    name = sys.argv[1]
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", name)
    else:
        mp.spawn(main, args=(2, f"file://{os.getcwd()}/meet-{name}", name), nprocs=2)
"""

program_text_by_rank = to_rank_0(program_text)
if rank == 0:
    (folder / "training.py").write_text(beginning + program_text_by_rank[0] + end)
    show(torch.save((images[:full].double(), classes[:full]), folder / "data.pt"))

if rank == 0:
    launchers_own = "RANK WORLD_SIZE LOCAL_ GROUP_ ROLE_ MASTER_ TORCH PMI OMPI_".split()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(tuple(launchers_own))
    }
    environment["OMP_NUM_THREADS"] = "1"
    environment["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see below


def launch(name, *launcher, **told):
    """Start the program; it will run on two ranks, started by mp.spawn or by the launcher."""
    shutil.rmtree(folder / name, ignore_errors=True)  # if this cell has run before
    command = [sys.executable, *launcher, "training.py", name]
    with open(folder / f"{name}.log", "w") as said:
        return subprocess.Popen(
            command, cwd=folder, env=environment | told, stdout=said, stderr=subprocess.STDOUT
        )


def end_well(**programs):
    """Wait for the end of programs; say what one printed if it failed. None is left behind."""
    until = time.monotonic() + 200
    try:
        for name, program in programs.items():
            ended = program.wait(timeout=max(1, until - time.monotonic()))
            assert ended == 0, (folder / f"{name}.log").read_text()
    finally:
        for program in programs.values():
            program.terminate()  # and its ranks with it; nothing, if it has ended


if rank == 0:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

# Predict: `torchrun` is to restart all ranks if one fails (`--max-restarts=3`: three
# times at most, as a start may fail for other reasons, too). Rank 1 is killed before
# step 14, and there is a checkpoint after every fourth step. How many steps are
# computed twice? How far is the result from that of `mp.spawn`, where nobody was
# killed?

if rank == 0:
    by_spawn = launch("spawned")
    by_torchrun = launch("killed", *torchrun, "--max-restarts=3", KILL="1 14")
    end_well(spawned=by_spawn, killed=by_torchrun)

    log = (folder / "killed.log").read_text().splitlines()
    said = [line for line in log if line.startswith(("rank 1 dies", "resumed"))]
    print(*said, sep="\n")
    assert said == ["rank 1 dies before step 14", "resumed at step 12"], "\n".join(log)

# And the engines of this notebook, ranks 0 and 1 of them:

everyone()
play("ranks")
on_engines = None
if rank < 2:
    model = network(dropout=0.2)
    as_two = {"group": groups[2], "folder": Path(place, "engines"), "every": 4}
    on_engines = train(model, train_set, 24, 32, **as_two), model.state_dict()

everyone()
if rank == 0:
    play("kernel")
    ends = {name: torch.load(folder / f"{name}.pt") for name in ("spawned", "killed")}

on_engines_by_rank = to_rank_0(on_engines)
if rank == 0:
    ends["engines"] = on_engines_by_rank[0]
    expected_losses, expected_weights = ends["spawned"]
    for name, (losses_there, weights_there) in ends.items():
        assert losses_there == expected_losses, name
        assert all(torch.equal(weights_there[key], expected_weights[key]) for key in expected_weights)
    result("launchers_with_the_same_bits", list(ends))
    result("files_kept", [path.name for path in sorted((folder / "killed").glob("*"))])
    save_figures()

# (launchers_with_the_same_bits): the same losses and the same weights, bit for bit, of
# three launchers, one of which lost a rank in the middle. Steps 12 and 13 were computed
# twice, and lost nothing but time. The program does not know that it was killed: it
# looks for a checkpoint whenever it starts, and so `torchrun` need do no more than
# start it again. On a cluster the scheduler does the same, after the whole host has
# died.
#
# The last line of `environment` is a scar. Without it most restarts failed here, with
# `Gloo connectFullMesh failed … Connection refused`: `torchrun` keeps one store for all
# lives of the ranks, and after a restart a rank may find in it the address that a dead
# one has left [rdzvstore]. With `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` each life has a
# store of its own. Whoever tries a restart for the first time when a host has failed
# meets this then: a resume that was never tried does not work.
#
# How often to save? A checkpoint costs $C$ seconds, and a failure comes every $M$
# seconds on average and destroys half an interval. The sum of both is least at an
# interval of about $\sqrt{2 C M}$ [young1974].
#
# The tests of the book do this many times, with ranks and steps drawn at random, and in
# the middle of writing. (Schedulers usually send a SIGTERM some time before the
# SIGKILL: catch it, and save then. And a training with mixed precision, averaged
# weights or early stopping has more state than this one: the scaler, the averages, the
# best score.)

# --- Four ranks stop, two go on -------------------------------------------------------

# Predict: A checkpoint of all ranks is taken up by half as many, with the same global
# batch. What is the same, what is close, and what is gone?

everyone()
play("ranks")
half_of_us = next(n for n in range(world_size // 2, 0, -1) if batch % n == 0)  # or nearly half
half_group = dist.new_group(list(range(half_of_us)))
quiet = {"noisy": False, "horizon": 24}
reference = train(network(), train_set, 24, batch, **quiet)
train(network(), train_set, 12, batch, folder=Path(place, "four"), every=12, **quiet)
fewer = None
if rank < half_of_us:
    quiet |= {"folder": Path(place, "four"), "group": half_group}
    fewer = train(network(), train_set, 24, batch, **quiet)
dist.barrier()

reference_by_rank = to_rank_0(reference)
fewer_by_rank = to_rank_0(fewer)
if rank == 0:
    play("kernel")
    of_all, of_half = np.array(reference_by_rank[0]), np.array(fewer_by_rank[0])
    assert np.abs(of_all - of_half).max() < 1e-12
    result("largest_difference", float(np.abs(of_all - of_half).max()), varies=True)

# The batches are the same, since the sampler deals one shuffled deck, however many
# there are; so the losses agree to (largest_difference), rounding. This training had no
# noise. With noise, there is no right answer: the random states of some ranks have
# nowhere to go. `train` then starts again with those of step 0, and the losses agree as
# two seeds do. (Noise that is drawn for each sample, from a seed, the epoch and the
# sample's number, would not depend on the ranks at all.)

# --- PyTorch's own checkpoint ---------------------------------------------------------

# `torch.distributed.checkpoint`, DCP, is made for models that no single rank can hold:
# every rank writes a part, all at once, into one folder [dcp]. A name that differs
# between the ranks is how each adds something of its own.

everyone()
play("ranks")

model = network(seed=rank)
broadcast_parameters(model)
state = {"model": model.state_dict(), "step": 1, f"random states of rank {rank}": random_states()}


def milliseconds(save, repeats=3):
    """The median of several saves, from when all begin to when this rank is done."""
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        save()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns that the folder is there, the second time
    dcp_save = milliseconds(lambda: dcp.save(state, checkpoint_id=Path(place, "dcp")))
our_save = milliseconds(lambda: save_checkpoint(Path(place, "ours"), 1, state, random_states()))
dcp_files = sorted(os.listdir(Path(place, "dcp")))

# Predict: All ranks have the same weights. Are they in the folder once, or once for
# each rank? And can half of the ranks read what all have written?

everyone()
loaded_on_half = None
if rank < half_of_us:
    fresh = network(seed=5)
    to_fill = {"model": fresh.state_dict(), "step": 0, "random states of rank 1": random_states()}
    dcp.load(to_fill, checkpoint_id=Path(place, "dcp"), process_group=half_group)  # in place
    loaded_on_half = to_fill["step"], [weights.clone() for weights in fresh.parameters()]
weights_saved = list(model.parameters())
dist.barrier()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


loaded_on_half_by_rank = to_rank_0(loaded_on_half)
if rank == 0:
    play("kernel")
    step_read, weights_read = loaded_on_half_by_rank[0]
    assert step_read == 1

weights_saved_by_rank = to_rank_0(weights_saved)
if rank == 0:
    assert all(torch.equal(a, b) for a, b in zip(weights_read, weights_saved_by_rank[0]))
    in_folder = sum(part.stat().st_size for part in (folder / "dcp").iterdir())
    in_file = sum(part.stat().st_size for part in (folder / "ours").glob("step-*"))
    assert in_folder < 2 * in_file

dcp_files_by_rank = to_rank_0(dcp_files)
if rank == 0:
    result("dcp_files", dcp_files_by_rank[0])
    result("dcp_bytes_over_ours", round(in_folder / in_file, 1), varies=True)

dcp_save_by_rank = to_rank_0(dcp_save)
our_save_by_rank = to_rank_0(our_save)
if rank == 0:
    result("dcp_time_over_ours", max(dcp_save_by_rank) / max(our_save_by_rank), varies=True)

# A file for each rank, and `.metadata`, which says what lies where; it is written last,
# as a draft that is renamed, so a folder without it is no checkpoint. (Into a folder
# that holds an older one, the new parts are written over the old: take a new folder
# each time.) The weights are there once, shared out among the files: all together have
# (dcp_bytes_over_ours) times the bytes of our one. Loading fills a state that is there
# already, tensor by tensor, and reads no more than each rank asks for: any number of
# ranks may ask.
#
# For a model this small it takes (dcp_time_over_ours) times as long as the file of
# ours: planning what everybody writes costs a few collectives. It pays when the state
# is large: then ours has one rank write everything, while the others wait, and must fit
# into its memory. What DCP leaves to you is the same as before: what belongs into the
# state, the random states of each rank, the position; which folder is the newest, and
# which are deleted.

# --- What you can do now --------------------------------------------------------------

# - Say which messages DDP sends: when it wraps, in its first backward pass, and in
#   those that follow.
# - Accumulate gradients with one all-reduce, and count that it is one.
# - Read the error of unused parameters, and know what its cure costs.
# - Choose batch, learning rate, workers and seeds when ranks are added.
# - Save and resume a training so that a kill costs time and nothing else, and prove it,
#   bit for bit.
# - Move a run from four ranks to two, and say what then is equal, what is close and
#   what is gone.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/11_ddp.py
#
# On several hosts the cells that write need a folder that all of them see: set `TMPDIR`
# to one.

# --- Where to read on -----------------------------------------------------------------

# - [li2020]: DDP, by those who built it: buckets, overlap, `no_sync`, and what each
#   brings.
# - [ddpdocs]: every option, with the warnings.
# - [goyal2017]: large batches, the linear scaling rule, the warm-up.
# - [mohan2021checkfreq]: checkpoints often and cheaply, and what is forgotten in them.
# - [young1974]: two pages on how often to save.
# - [dcp]: PyTorch's checkpoints of models that no rank can hold.

leave_group()
