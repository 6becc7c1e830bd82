# Chapter 10 of Many Ranks, One Model, as one script. Generated from book/10_sync_sgd.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 10_sync_sgd.py
#     torchrun --standalone --nproc-per-node 4 10_sync_sgd.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 10_sync_sgd.py
#     mpiexec -n 4 python 10_sync_sgd.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install matplotlib numpy scikit-learn torch  (for mpiexec also: mpich mpi4py)

import functools
import io
import os
import random
import re
import socket
import sys
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from torch import nn
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
    torch.set_default_device(device if rank else None)  # rank 0 begins as the kernel
if device.type == "cuda" and backend == "gloo":
    send_over_host()
form_groups()


playing = "kernel"
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
cards = {"ranks": torch.cuda.get_rng_state()} if device.type == "cuda" else {}
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
        if device.type == "cuda":
            torch.set_default_device(device if part == "ranks" else None)
            cards[before] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(cards[part])
    return before


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# === Synchronous SGD: one batch, many ranks ===========================================

# Four ranks take a quarter of every batch each. Do they train the same network that one
# rank alone would have trained, and to which digit?
#
# 30 minutes to read, 12 predictions · 30 seconds to run · stands on chapter 3 and
# chapter 7
#
# At the end you can share a batch out in any way and get the gradient of the whole,
# prove it to twelve digits, and say why the last digits differ. You know what breaks
# it, mostly without any error: shares of unequal size, a sum that should be a mean,
# another start, the same data twice, a sampler that nobody told of the epoch, batch
# normalization.

if rank == 0:
    n_ranks = world_size
    result("n_ranks", n_ranks)

# From ranklab.taught.training:


def split(X, y, share=0.1, seed=0):
    """Return (train X, train y) and (test X, test y): a random share to test.

    Every sample is in exactly one of the two.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator, device="cpu")
    test, train = order.tensor_split([round(share * len(X))])
    return (X[train], y[train]), (X[test], y[test])


# --- A batch, shared out --------------------------------------------------------------

# Data parallelism: every rank has the whole model, its replica, and a part of the
# batch, its shard. Each computes the gradient of its own shard, the gradients are
# averaged, and every replica makes the same step. As all wait for all in every step,
# this is synchronous SGD [chen2016sgd]. The start page has a picture of this beside the
# other ways to share a training.
#
# The data are real ones this time, and small: 1797 digits that people wrote by hand, 8
# × 8 pixels each [alpaydin1998]. They come with scikit-learn. A fifth of them is for
# testing.


def digits(seed=0):
    """Return (X, y) to train on and (X, y) to test: 1797 handwritten digits.

    X (n, 64), float32: 8 x 8 pixels, 0 to 1. y (n,), int64: the digit. A random
    fifth, drawn with `seed`, is for testing.
    """
    from sklearn.datasets import load_digits  # slow to import: only if wanted

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32)
    return split(X, torch.tensor(y), share=0.2, seed=seed)


# The network has four weight tensors: two convolutions and two linear layers, with tanh
# between. The same seed gives the same start.


class DigitsNet(nn.Module):
    """A small convolutional network for 8 x 8 pixels, seeded."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)  # as before outside
            self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False)
            self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False)
            self.hidden = nn.Linear(16 * 4 * 4, 64, bias=False)
            self.last = nn.Linear(64, 10, bias=False)
        self.to(torch.get_default_device())

    def forward(self, x):
        """x: (batch, 64) pixels. Returns (batch, 10), a number for a digit."""
        x = torch.tanh(self.first(x.view(-1, 1, 8, 8)))
        x = nn.functional.avg_pool2d(torch.tanh(self.second(x)), 2)
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


# The data set is so small that every rank gets all of it. What a rank must know is
# which part of a batch is its own. The order of the samples is that of chapter 3: a
# function of the step's number, the same on every rank. So a rank cuts its slice out of
# it, and asks nobody.


def shard(n, rank, world_size):
    """Return `rank`'s slice of n samples; two sizes differ by one at most."""
    return slice(n * rank // world_size, n * (rank + 1) // world_size)


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


if rank == 0:
    print("\n## A batch, shared out\n")

data = from_rank_0(lambda: digits())

# From ranklab.taught.training:


@functools.lru_cache(maxsize=2)  # every step asks; it holds for an epoch
def order_of_epoch(epoch, n, seed):
    """Return the numbers of n samples, in the random order of an epoch."""
    generator = torch.Generator().manual_seed(1000003 * seed + epoch)
    return torch.randperm(n, generator=generator, device="cpu")


def samples_of_step(step, n, batch_size, seed=0):
    """Return which of n samples step number `step` trains on: (batch_size,).

    Every epoch goes through the samples in a new random order, in full
    batches; what does not fill a batch is left out, other samples in each
    epoch. The result depends on the arguments alone, so every process can ask,
    in any order.
    """
    epoch, place = divmod(step, n // batch_size)
    order = order_of_epoch(epoch, n, seed)
    return order[place * batch_size : (place + 1) * batch_size]


play("ranks")

(X, y), (X_test, y_test) = data
batch = samples_of_step(0, len(X), batch_size=64)
mine = batch[shard(64, rank, world_size)]
share = mine.tolist()
a_few = X[mine[:6]].view(-1, 8, 8)
counts = len(X), len(X_test), sum(p.numel() for p in DigitsNet().parameters())


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(packed(value), values, group=driver)
    values = values and [unpacked(data, "cpu") for data in values]
    return values


SCRIPT = Path(__file__)
pictures_ = []


def file_beside(name):
    """The path of an SVG file beside this script, for a picture of this name."""
    name = first = re.sub(r"[^\w.-]+", "-", str(name))
    number = 1
    while name in pictures_:
        number += 1
        name = f"{first}-{number}"
    pictures_.append(name)
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


everyone()
if rank == 0:
    play("kernel")
    size = 5.2, 0.88 * n_ranks
    fig, axes = plt.subplots(n_ranks, 6, num="shards", figsize=size)

a_few_by_rank = to_rank_0(a_few)
if rank == 0:
    for r, pictures in enumerate(a_few_by_rank):
        for ax, picture in zip(axes[r], pictures):
            ax.imshow(picture, cmap="gray_r")
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set(visible=True, color=f"C{r}", linewidth=3)
        axes[r][0].set_ylabel(f"rank {r}", color=f"C{r}")
    fig.suptitle("the first six samples of each shard", fontsize=11)
    save_figures()

counts_by_rank = to_rank_0(counts)
if rank == 0:
    n_train, n_test, n_weights = counts_by_rank[0]

shares = to_rank_0(share)
if rank == 0:
    assert len({sample for share in shares for sample in share}) == 64
    result("n_train", n_train)
    result("n_test", n_test)
    result("n_weights", n_weights)
    result("shard_sizes", [len(share) for share in shares])

# There are (n_train) digits to learn from, and (n_weights) weights in four tensors. Of
# a batch of 64, the ranks have (shard_sizes).

# --- Why it can be the same -----------------------------------------------------------

# The loss of a batch is a mean over its $n$ samples, $L = \frac{1}{n}\sum_i l_i$, where
# $l_i$ is the loss of sample $i$. Cut the batch into shards $S_1, \dots, S_K$ of $m_1,
# \dots, m_K$ samples, and write $L_k$ for the mean loss of shard k. The derivative of a
# sum is the sum of the derivatives:
#
# $$\frac{\partial L}{\partial w}
# = \frac{1}{n} \sum_{k=1}^{K} \sum_{i \in S_k} \frac{\partial l_i}{\partial w}
# = \sum_{k=1}^{K} \frac{m_k}{n}\,\frac{\partial L_k}{\partial w},
# \qquad L_k = \frac{1}{m_k} \sum_{i \in S_k} l_i .$$
#
# That is all of the theory, and it is exact: no limit, no approximation. The right-hand
# side is what ranks can do. Each computes $\partial L_k / \partial w$ without hearing
# of the others, weights it by its share $m_k/n$, and one all-reduce adds them up. If
# all shards are equal, every weight is $1/K$, and the sum is a plain mean.
#
# A proof on paper says nothing about a program. So one rank, then two, and so on to all
# of them compute the gradient of one batch, in float64, and each time we look how far
# it is from that of the whole batch. `dist.new_group` makes a process group of some of
# the ranks, as in chapter 7.
#
# The batch has 840 samples, which every number up to 8 divides. First the shards are
# equal; then their sizes are as 1 : 2 : 3 and so on. Each group adds up in three ways:
# - plain mean: the gradients of the shards' mean losses, each divided by $K$;
# - weighted mean: the same gradients, each times $m_k/n$;
# - sum over n: the gradient of the sum of a shard's losses, divided by $n$.
#
# Predict: float64 has about 16 digits. How many of them will agree with the gradient of
# the whole batch, for equal shards? And for unequal ones, if one takes the plain mean?

everyone()
if rank == 0:
    print("\n## Why it can be the same\n")

play("ranks")

# the first k ranks
teams = {k: dist.new_group(range(k)) for k in range(1, world_size + 1)}


def cut(n, parts):
    """The slices that cut n samples in proportion to `parts`."""
    ends = [n * sum(parts[:k]) // sum(parts) for k in range(len(parts) + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def gradient(model, x, labels, divisor):
    """The gradient of the summed loss over `divisor`, in one tensor."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), labels, reduction="sum")
    (loss / divisor).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# Each rank computes its part in the three ways, and an all-reduce over the group adds
# the parts up:

everyone()
large = samples_of_step(0, len(X), batch_size=840)
inputs, labels = X[large].double(), y[large]
model = DigitsNet().double()
whole = gradient(model, inputs, labels, 840)


def misses(k, parts):
    """How far from `whole` k ranks with such shards come, in three ways."""
    own = cut(840, parts)[rank]
    m = own.stop - own.start
    of_shard = gradient(model, inputs[own], labels[own], m)
    ways = {
        "plain mean": of_shard / k,
        "weighted mean": of_shard * m / 840,
        "sum over n": gradient(model, inputs[own], labels[own], 840),
    }
    for summed in ways.values():
        dist.all_reduce(summed, group=teams[k])
    largest = whole.abs().max()
    return {way: ((g - whole).abs().max() / largest).item()
            for way, g in ways.items()}


equal = {k: misses(k, [1] * k) for k in teams if rank < k}
unequal = {k: misses(k, range(1, k + 1)) for k in teams if rank < k}

equal_by_rank = to_rank_0(equal)
unequal_by_rank = to_rank_0(unequal)
if rank == 0:
    play("kernel")
    equal_shards, unequal_shards = equal_by_rank[0], unequal_by_rank[0]
    for k in equal_shards:
        for way in ("plain mean", "weighted mean", "sum over n"):
            assert equal_shards[k][way] < 1e-12
            assert way == "plain mean" or unequal_shards[k][way] < 1e-12
        assert k == 1 or unequal_shards[k]["plain mean"] > 0.01
        misses_of_k = (f"{w} {e:.0e}  " for w, e in unequal_shards[k].items())
        print(f"ranks: {k}, unequal shards:", *misses_of_k)
    result("plain_miss", round(100 * unequal_shards[n_ranks]["plain mean"], 1))
    worst_right = max(of_k["plain mean"] for of_k in equal_shards.values())
    result("largest_right_miss", worst_right, varies=True)

if rank == 0:
    fig, ax = plt.subplots(num="misses")
    k = list(equal_shards)[1:]
    ax.semilogy(k, [unequal_shards[j]["plain mean"] for j in k], "C1X", ms=11)
    ax.annotate("plain mean,\nunequal shards",
                (k[-1], unequal_shards[k[-1]]["plain mean"]), xytext=(-16, -4),
                textcoords="offset points", ha="right", va="top", color="C1")
    for beside, shards, kind, way, style in (
        (-0.07, equal_shards, "equal", "plain mean", "C2o"),
        (0, unequal_shards, "unequal", "weighted mean", "C0s"),
        (0.07, unequal_shards, "unequal", "sum over n", "C4^"),
    ):
        ax.semilogy(np.array(k) + beside, [max(shards[j][way], 1e-17) for j in k],
                    style, label=f"{way}, {kind} shards")
    ax.axhline(1e-12, color="C7", linestyle=":")
    ax.text(k[0], 2e-12, "asserted: below this line", va="bottom", fontsize=9)
    ax.set(xlabel="ranks", ylabel="relative distance\nfrom the whole batch",
           xticks=k, ylim=(1e-17, 10))
    ax.legend(loc="center left", bbox_to_anchor=(0, 0.6), fontsize=9)
    save_figures()

# With equal shards the plain mean agrees to about 14 digits ((largest_right_miss) is
# the worst of all groups). With unequal ones it is wrong by (plain_miss) % of the
# largest gradient for (n_ranks) ranks, and no precision will help: it is the gradient
# of another loss. In a plain mean a sample of shard $k$ counts $\frac{1}{K m_k}$
# instead of $\frac{1}{n}$, so one in the smallest shard counts (n_ranks) times as much
# as one in the largest.
#
# Weighting with $m_k/n$ repairs it. So does dividing the sum over the shard by the size
# of the whole batch, which comes to the same.
#
# Where do unequal shards come from? From the last batch of an epoch, from a number of
# ranks that does not divide the batch, and from texts: shards of equally many sentences
# have different numbers of tokens, and the loss is a mean over tokens.
#
# Several libraries that train language models had this mistake, over pieces of a batch
# that one rank computes in turn (gradient accumulation), and over ranks. It was
# reported in 2021, and repaired in 2024, when losses had been compared with those of
# whole batches [unsloth2024].
#
# A shard can also be empty, where the batch has fewer samples than there are ranks.
# Then the two repairs are not quite the same:

everyone()
play("ranks")
nobody = slice(0, 0)
losses_of_none = [
    nn.functional.cross_entropy(
        model(inputs[nobody]), labels[nobody], reduction=how).item()
    for how in ("mean", "sum")
]
of_nobody = gradient(model, inputs[nobody], labels[nobody], 840)
gradient_of_none = of_nobody.abs().max().item()

losses_of_none_by_rank = to_rank_0(losses_of_none)
if rank == 0:
    play("kernel")
    mean_of_none, sum_of_none = losses_of_none_by_rank[0]

gradient_of_none_by_rank = to_rank_0(gradient_of_none)
if rank == 0:
    of_none = gradient_of_none_by_rank[0]
    assert np.isnan(0 * mean_of_none) and sum_of_none == of_none == 0
    result("mean_of_none", str(mean_of_none))
    result("sum_of_none", sum_of_none)

# The mean over nothing is (mean_of_none), not a number, and no weight makes it one, not
# even 0: with one such rank the loss of the whole batch is not a number either, on
# every rank. The sum is (sum_of_none). It takes part in the all-reduce and adds
# nothing, and so does its gradient.

# --- The same start -------------------------------------------------------------------

# The derivation has one $w$, so all replicas must start with the same. Ranks that draw
# their own start do not: below each has another seed. The first way to repair that:
# rank 0 sends every parameter to every other rank.


def send_parameters(model):
    """Rank 0 sends every parameter to every other rank, one after the other."""
    for parameter in model.parameters():
        if rank == 0:
            for other in range(1, world_size):
                dist.send(parameter.detach(), dst=other)
        else:
            dist.recv(parameter.detach(), src=0)  # into the same memory


# How do we know that it worked? We measure it. The drift is the largest distance of any
# replica from rank 0's:

everyone()
if rank == 0:
    print("\n## The same start\n")

play("ranks")


@torch.no_grad()
def drift(model, group=None):
    """Return the largest distance of any rank's parameters and buffers from
    rank 0's, a float; inf where a number is not finite."""
    tensors = [*model.parameters(), *model.buffers()]
    mine = torch.cat([tensor.double().flatten() for tensor in tensors])
    first = mine.clone()
    dist.broadcast(first, group_src=0, group=group)
    distance = (mine - first).abs().max()
    distance.nan_to_num_(nan=torch.inf, posinf=torch.inf)  # MAX may lose a nan
    dist.all_reduce(distance, op=dist.ReduceOp.MAX, group=group)
    return distance.item()


# Predict: The network gets a batch normalization at its end, and has seen one batch.
# After `send_parameters`, what is the drift?

everyone()
model = nn.Sequential(DigitsNet(seed=rank), nn.BatchNorm1d(10))
model(X[mine])
drifts = [drift(model)]
send_parameters(model)
drifts.append(drift(model))
still_apart = [name for name, b in model.named_buffers()
               if b.is_floating_point()]

drifts_by_rank = to_rank_0(drifts)
if rank == 0:
    play("kernel")
    at_first, after_sending = drifts_by_rank[0]
    assert at_first > after_sending > 0
    result("drift_at_first", round(at_first, 2))
    result("drift_after_sending", round(after_sending, 2))

still_apart_by_rank = to_rank_0(still_apart)
if rank == 0:
    result("still_apart", still_apart_by_rank[0])

# It fell from (drift_at_first) to (drift_after_sending), not to 0. A model has more
# memory than its parameters: buffers, which no gradient reaches. Batch normalization
# keeps (still_apart) there, and its forward pass changes them. So buffers belong to the
# start, too.
#
# There is a second thing to mend. Rank 0 sends each tensor $n - 1$ times, to one rank
# after the other. The broadcast of chapter 7 is the collective for it:

everyone()
play("ranks")


@torch.no_grad()
def broadcast_parameters(model, src=0, group=None):
    """Give every rank, in place, the parameters and buffers of rank src."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, group_src=src, group=group)


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


everyone()
broadcast_parameters(model)
show(drifts.append(drift(model)), rank)

drifts_by_rank = to_rank_0(drifts)
if rank == 0:
    play("kernel")
    assert drifts_by_rank[0][-1] == 0

drifts_by_rank = to_rank_0(drifts)
if rank == 0:
    result("drift_after_broadcast", drifts_by_rank[0][-1])

# Now the drift is (drift_after_broadcast). The hyperparameters, such as the learning
# rate and the size of the batch, must agree among the ranks, too. They stand in the
# program that all ranks run, so nobody sends them.

# --- One step -------------------------------------------------------------------------

# chapter 3 kept two lines apart, `loss_and_gradients` and `optimizer.step()`, because
# "data parallelism will put something between them". Here it is:


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


# From ranklab.taught.training:


def loss_and_gradients(model, x, y):
    """Return a batch's loss; leave its gradients in the parameters' .grad."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


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
    from ranklab import timeline, trace
except ImportError:
    timeline = left_out_("timeline")
    trace = untraced

# The optimizer never learns that there are other ranks. In `.grad` it finds what it
# would find on one rank with the whole batch. So momentum, weight decay, Adam and a
# schedule of the learning rate all stay as they were: same weights, same gradient, same
# state of the optimizer, so the same step, on every rank.
#
# Predict: The network has four weight tensors. How many all-reduces are there in a
# step? And what does a rank compute while they run?

everyone()
if rank == 0:
    print("\n## One step\n")

play("ranks")

model = DigitsNet()
broadcast_parameters(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(2):  # the second is the one to look at
    dist.barrier()
    with trace() as t:
        loss_and_gradients(model, X[mine], y[mine])
        average_gradients(model, len(mine) / 64)
        optimizer.step()

t_by_rank = to_rank_0(t)
if rank == 0:
    play("kernel")
    show(timeline(t_by_rank, name="step"))

# The upper half of a row is computing, the lower half communication. Each rank computes
# its gradient. Then come four all-reduces, one for each weight tensor; the first one
# cannot end before the slowest rank has come. The thin lines between them multiply a
# gradient by its weight. The last bar of each rank, early or late, is the optimizer's
# step.
#
# While the ranks communicate they compute nothing, and they could: the gradient of the
# last layer is there before that of the first. chapter 12 fills that gap. Here we only
# want to be right.

# --- One curve ------------------------------------------------------------------------


def sync_sgd(model, X, y, *, steps, batch_size, learning_rate, momentum=0.9,
             seed=0, group=None):
    """Train all replicas of a group together; return each whole batch's loss.

    Every rank gives the same X and y, and uses its shard of each batch, which
    has at least one sample. The model of the group's rank 0 is the start.
    """
    me, n = dist.get_rank(group), dist.get_world_size(group)
    broadcast_parameters(model, group=group)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=momentum)
    losses = []
    for step in range(steps):
        batch = samples_of_step(step, len(X), batch_size, seed)
        mine = batch[shard(batch_size, me, n)]
        weight = len(mine) / batch_size
        losses.append(weight * loss_and_gradients(model, X[mine], y[mine]))
        average_gradients(model, weight, group)
        optimizer.step()
    losses = torch.stack(losses)
    dist.all_reduce(losses, group=group)  # a weighted mean as well
    return losses.tolist()


# From ranklab.taught.training:


@torch.no_grad()
def evaluate(model, X, y):
    """Return the mean cross-entropy over X (n, features) and y (n,), a float,
    and the share of samples whose class is found. Nothing is trained."""
    model.eval()  # for layers that train otherwise, such as dropout
    outputs = model(X)
    model.train()
    loss = nn.functional.cross_entropy(outputs, y).item()
    return loss, (outputs.argmax(1) == y).float().mean().item()


# The losses are added up over the ranks once, at the end: nobody needs them earlier,
# and each collective costs its latency.
#
# Predict: The same training three times, with one rank, with two, and with all: 5
# epochs, batches of 128. How far apart are the losses at most, in float32? And in
# float64, in the first 20 steps?


def train(make, k, dtype=torch.float32, steps=55, rate=0.2):
    """Train with the first k ranks: (losses, accuracy, drift)."""
    if rank >= k:
        return None
    model = make().to(dtype)
    losses = sync_sgd(model, X.to(dtype), y, steps=steps, batch_size=128,
                      learning_rate=rate, group=teams[k])
    accuracy = evaluate(model, X_test.to(dtype), y_test)[1]
    return losses, accuracy, drift(model, teams[k])


everyone()
if rank == 0:
    print("\n## One curve\n")

play("ranks")

sizes = sorted({1, 2, world_size})
in_float32 = {k: train(DigitsNet, k) for k in sizes}
in_float64 = {k: train(DigitsNet, k, torch.float64, 20) for k in sizes}

in_float32_by_rank = to_rank_0(in_float32)
in_float64_by_rank = to_rank_0(in_float64)
if rank == 0:
    play("kernel")
    float32s, float64s = in_float32_by_rank[0], in_float64_by_rank[0]
    found = {k: accuracy for k, (_, accuracy, _) in float32s.items()}
    assert min(found.values()) > 0.95
    assert all(of_k[2] == 0 for of_k in [*float32s.values(), *float64s.values()])


def distances(of_all):
    """For each number of ranks, how far each loss is from that of one rank."""
    one = np.array(of_all[1][0])
    return {k: np.abs(np.array(of_all[k][0]) - one) for k in of_all if k > 1}


if rank == 0:
    apart32, apart64 = distances(float32s), distances(float64s)
    assert max(apart.max() for apart in apart32.values()) < 1e-3
    assert max(apart.max() for apart in apart64.values()) < 1e-12
    *few, most = found
    result("numbers_of_ranks", f"{', '.join(map(str, few))} and {most}")
    percents = sorted({f"{100 * accuracy:.1f}" for accuracy in found.values()})
    result("percent_found", " or ".join(percents))
    largest32, largest64 = (max(map(np.max, apart.values()))
                            for apart in (apart32, apart64))
    result("apart_float32", largest32, varies=True)
    result("apart_float64", largest64, varies=True)

# From ranklab.plots:


def pale(color, share=0.25):
    """Return `color` mixed with white, as an opaque color: `share` of it is the color.

    Transparent colors and hatching do not go together in an SVG.
    """
    rgb = matplotlib.colors.to_rgb(color)
    return tuple(1 - share * (1 - part) for part in rgb)


if rank == 0:
    fig, ax = plt.subplots(num="one-curve")
    looks = (9, pale("C0", 0.4)), (4.5, "C1"), (1.2, "black")
    for k, (width, color) in zip(float32s, looks):
        ax.plot(float32s[k][0], color=color, linewidth=width,
                label=f"{k} rank{'s' * (k > 1)}")
    ax.set(xlabel="step", ylabel="loss of the batch")
    ax.legend()
    save_figures()

# One curve. With (numbers_of_ranks) ranks the network finds (percent_found) % of the
# (n_test) digits that no rank has seen. The losses are at most (apart_float32) apart,
# in float64 (apart_float64). The difference shrinks with the precision, so by the rule
# of chapter 3 it is rounding and not a mistake. And the drift is 0 in all trainings, to
# the last bit.

# --- When curves part -----------------------------------------------------------------

# Do not expect the difference to stay so small in every training. Each step hands on
# the difference that the one before left, and a large step can enlarge it. Kinks can,
# too: ReLU has one at 0, and max pooling takes one of four numbers. There a last bit
# can decide which way a part of the gradient goes.
#
# Here is the same training at five times the rate, and one with kinks, 8 epochs each:


class WithKinks(DigitsNet):
    """The same weights, with ReLU for tanh and the maximum for the average."""

    def forward(self, x):
        x = torch.relu(self.first(x.view(-1, 1, 8, 8)))
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 2)
        return self.last(torch.relu(self.hidden(x.flatten(1))))


everyone()
play("ranks")

fast = {k: train(DigitsNet, k, steps=88, rate=1.0) for k in (1, 2)}
kinked = {k: train(WithKinks, k, steps=88) for k in (1, 2)}

fast_by_rank = to_rank_0(fast)
kinked_by_rank = to_rank_0(kinked)
if rank == 0:
    play("kernel")
    of_fast, of_kinked = fast_by_rank[0], kinked_by_rank[0]
    apart_fast, apart_kinked = distances(of_fast)[2], distances(of_kinked)[2]
    result("apart_fast", apart_fast.max(), varies=True)
    result("apart_kinked", apart_kinked.max(), varies=True)

if rank == 0:
    fig, ax = plt.subplots(num="distances")
    for name, apart, color in (("with kinks", apart_kinked, "C3"),
                               ("rate 1.0", apart_fast, "C4"),
                               ("float32", apart32[2], "C1"),
                               ("float64", apart64[2], "C2")):
        ax.semilogy(np.where(apart > 0, apart, np.nan), color + ".", label=name)
    ax.set(xlabel="step", ylabel="loss, 2 ranks from 1 rank", ylim=(1e-17, 1e2))
    ax.legend(ncols=3, columnspacing=0.8, handletextpad=0.2, fontsize=9)
    save_figures()

# Each begins with the rounding of its precision. Then the distance can grow: in this
# run to (apart_fast) at the high rate and to (apart_kinked) with kinks, in another to
# much less, or more. A distance of 0 has no point here, and the trainings in float64
# and float32 end with steps 20 and 55.
#
# It is still rounding, but after many steps in float32 nobody can tell it from a
# mistake. Compare gradients, after one step, in float64.

# --- The last bits --------------------------------------------------------------------

# Why do the last digits differ? Floating-point addition rounds, and how it rounds
# depends on who is added to whom first. Here is one batch, and four ways to add up its
# gradient, in float32:
# - the whole batch at once, on one rank;
# - Gloo's order: each shard on its rank, and then Gloo's all-reduce;
# - the order of ranks: each shard on its rank, and then everyone gets all of them and
#   adds rank 0's first, rank 1's next, and so on;
# - one rank in that order: one rank alone computes shard after shard, and adds them in
#   the order of ranks.
#
# Predict: Which of the four will have the same bits?

everyone()
if rank == 0:
    print("\n## The last bits\n")

play("ranks")
model = DigitsNet()
inputs, labels = X[batch], y[batch]


def gradient_of(part):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        return gradient(model, inputs[part], labels[part], 64)


slices = [shard(64, r, world_size) for r in range(world_size)]
shards_of_all = [torch.zeros(counts[2]) for _ in slices]
own = gradient_of(slices[rank])
dist.all_gather(shards_of_all, own)

by_gloo, again = own.clone(), own.clone()
dist.all_reduce(by_gloo)
dist.all_reduce(again)
by_rank = sum(shards_of_all[1:], shards_of_all[0].clone())
alone = sum(gradient_of(part) for part in slices)
at_once = gradient_of(slice(64))


def differing(a, b):
    """In how many places two tensors differ, be it by one bit."""
    return int((a != b).sum())


everyone()

places = {
    "Gloo's order and the whole batch at once": differing(by_gloo, at_once),
    "Gloo's order and the order of ranks": differing(by_gloo, by_rank),
    "Gloo's order, twice": differing(by_gloo, again),
    "order of ranks, and one rank in that order": differing(by_rank, alone),
}

places_by_rank = to_rank_0(places)
if rank == 0:
    play("kernel")
    for pair, differ in places_by_rank[0].items():
        print(f"{pair:>43}: {differ:6} of {n_weights} places differ")

places_by_rank = to_rank_0(places)
if rank == 0:
    places_of_0 = places_by_rank[0]
    assert places_of_0["Gloo's order, twice"] == 0
    assert places_of_0["order of ranks, and one rank in that order"] == 0
    assert places_of_0["Gloo's order and the whole batch at once"] > 0
    assert n_ranks > 2 or places_of_0["Gloo's order and the order of ranks"] == 0

# The last two have the same bits, although all ranks computed the one and a single rank
# the other. Same numbers in the same order give the same bits, whichever rank adds
# them. So the ranks are not to blame. What differs is the order. A matrix product over
# a whole batch adds its samples up in one order, products over its shards in another.
# And Gloo's ring begins each part of the tensor at another rank (chapter 8). With two
# ranks there is only a + b or b + a, and those are equal.
#
# On a GPU that takes `deterministic=True`. Without it cuDNN may take convolutions whose
# threads add in whatever order they finish. On an H100 it did, and the last two
# differed.
#
# A fixed order is one way to equal bits. The other is sums that never round. Whole
# numbers up to $2^{24}$ have all their digits in float32, and dividing by a power of
# two only moves the point. So we take a linear layer with whole weights, pixels from 0
# to 16, and the squared error as its loss:

everyone()
play("ranks")
pixels = 16 * X[batch]
generator = torch.Generator(device).manual_seed(0)
weights = torch.randint(-2, 3, (64, 10), generator=generator).float()
targets = 16 * nn.functional.one_hot(y[batch], 10).float()


def whole_number_gradient(part):
    """Its part of the gradient of half the mean squared error, by hand."""
    return pixels[part].T @ (pixels[part] @ weights - targets[part]) / 64


exact = {}
for many, team in teams.items():
    if rank < many:
        total = whole_number_gradient(shard(64, rank, many))
        dist.all_reduce(total, group=team)
        exact[many] = differing(total, whole_number_gradient(slice(64)))

exact_by_rank = to_rank_0(exact)
if rank == 0:
    play("kernel")
    places_exact = exact_by_rank[0]
    assert set(places_exact.values()) == {0}
    result("exact_ranks", max(places_exact))
    result("exact_places", sum(places_exact.values()))

# For 1 to (exact_ranks) ranks, equal shards or not: (exact_places) places differ. That
# is the test to write first for anything that adds over ranks: whole numbers, and no
# tolerance at all.
#
# So, which bits must be equal?
# - The replicas of one run: always, for nobody compares them again. The drift of 0 says
#   that they were.
# - The same program, again, on the same number of ranks: it adds in the same order, and
#   had the same bits here.
# - The same program on another number of ranks: it adds in another order, and is only
#   close.
#
# Whoever needs the same bits on 4 ranks and on 8 does as the last line printed above,
# one rank in that order: fix the pieces that are computed, and the order in which they
# are added, and pay for it.

# --- Who gets which sample ------------------------------------------------------------

# Until now a rank found its samples by itself, from the step's number. Most programs
# leave it to PyTorch's loader, with a sampler that deals an epoch's samples out like
# cards: the first to rank 0, the second to rank 1, and around again.
#
# Predict: Nine samples, four ranks, no shuffling. Who gets how many? And why can the
# hands not be 3, 2, 2, 2?


def hands(n, world, epoch=None, **how):
    """What DistributedSampler deals of n samples: a list for each rank."""
    dealt = []
    for r in range(world):
        sampler = DistributedSampler(range(n), world, r, **how)
        if epoch is not None:
            sampler.set_epoch(epoch)
        dealt.append(list(sampler))
    return dealt


if rank == 0:
    print("\n## Who gets which sample\n")
    nine = 2 * n_ranks + 1
    dealt = hands(nine, n_ranks, shuffle=False)
    fig, ax = plt.subplots(num="dealt", figsize=(5.2, 0.55 * n_ranks + 0.4))
    for r, hand in enumerate(dealt):
        for place, sample in enumerate(hand):
            repeated = place * n_ranks + r >= nine
            ax.add_patch(Rectangle(
                (place, r), 0.92, 0.86, facecolor=pale(f"C{r}", 0.45),
                edgecolor=f"C{r}", hatch="///" * repeated, linewidth=1.5))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            ax.text(place + 0.46, r + 0.43, sample, ha="center", va="center",
                    bbox=box if repeated else None)
    ax.text(3.15, n_ranks - 0.57, "hatched:\ndealt twice", va="center", fontsize=9)
    ax.set(xlim=(0, 4.3), ylim=(n_ranks, 0), xticks=[])
    ax.set_yticks([r + 0.43 for r in range(n_ranks)],
                  [f"rank {r}" for r in range(n_ranks)])
    ax.spines[:].set_visible(False)
    ax.grid(False)
    save_figures()

if rank == 0:
    twice = sorted(sample for hand in dealt for sample in hand)
    twice = [sample for sample in set(twice) if twice.count(sample) > 1]
    kept = hands(nine, n_ranks, shuffle=False, drop_last=True)
    left_out = sorted(set(range(nine)) - {s for hand in kept for s in hand})
    for hands_of_all in (dealt, kept):
        assert len({len(hand) for hand in hands_of_all}) == 1
    result("samples", nine)
    result("dealt_twice", twice)
    result("left_out", left_out)

# Every rank is dealt equally many. It must make as many steps as the others, for each
# step has collectives in it: a rank with one batch more would wait for the others
# forever. There are two ways to make the hands equal. The default is padding: the
# sampler goes on dealing from the start of the list. Of (samples) samples it deals
# (dealt_twice) twice. The other is `drop_last=True`, which leaves out (left_out).
#
# In training neither matters much, as long as it hits other samples in each epoch. In a
# test it does matter. A sample that counts twice makes the accuracy wrong, by little,
# and by another amount for another number of ranks. To test, cut with `shard`, let the
# hands be unequal, add up counts, and divide once.

# --- The line that everybody forgets --------------------------------------------------

# The sampler shuffles by a seed and the number of the epoch. Both must be the same on
# all ranks, or one sample would come to two of them. But nobody tells the sampler which
# epoch it is, except you: `sampler.set_epoch(epoch)`.
#
# Predict: What happens if the line is missing? An error, another order on every rank,
# or what?
#
# In the figure a row is an epoch, a column is a sample, and the color is that of the
# rank that gets it.


def owners(n, epochs, told):
    """The color of the rank that gets a sample (column) in an epoch (row)."""
    rows = []
    for epoch in range(epochs):
        owner = {s: r for r, hand in enumerate(hands(n, n_ranks, epoch * told))
                 for s in hand}
        rows.append([to_rgb(RANK_COLORS[owner[s]]) for s in range(n)])
    return rows


if rank == 0:
    fig, axes = plt.subplots(1, 2, num="set-epoch", figsize=(5.2, 2.4), sharey=True)
    for ax, told in zip(axes, (False, True)):
        ax.imshow(owners(4 * n_ranks, 8, told), aspect="auto")
        ax.set_title("set_epoch called" if told else "forgotten")
        ax.set(xlabel="sample", xticks=[])
        ax.grid(False)
    axes[0].set_ylabel("epoch")
    save_figures()

# No error. Every epoch is the first one again: each rank gets the same samples, in the
# same order, in the same batches, as long as you train. And if the loader leaves out
# what does not fill a batch (`drop_last=True` there), it leaves out the same ones in
# every epoch:


def never_seen(told, epochs=10, batch_size=64):
    """How many samples are in no batch of any epoch, if the loader drops the
    last one."""
    seen, size = set(), batch_size // n_ranks
    for epoch in range(epochs):
        for hand in hands(n_train, n_ranks, epoch * told):
            seen.update(hand[: len(hand) // size * size])
    return n_train - len(seen)


if rank == 0:
    assert never_seen(told=True) == 0 < never_seen(told=False)
    result("never_seen", never_seen(told=False))

# Without the line, (never_seen) samples of (n_train) are never trained on, in ten
# epochs. With it, every sample is trained on.
#
# Why deal, rather than cut the epoch into one piece for each rank? The first cards of
# all hands are the first cards of the deck. So every full batch of an epoch is the same
# set of samples, whatever the number of ranks:

if rank == 0:
    size = 16 * n_ranks
    for place in range(n_train // size):
        batches = []
        for world in (1, 2, n_ranks):
            part = slice(place * size // world, (place + 1) * size // world)
            batches.append(sorted(
                s for hand in hands(n_train, world, epoch=3) for s in hand[part]))
        assert batches[0] == batches[1] == batches[2]
        assert len(set(batches[0])) == size
    save_figures()

# So one can go from 4 ranks to 2 in the middle of an epoch, if the size of the whole
# batch and the place in the epoch are kept: chapter 25 takes a training up on another
# number of ranks.

# --- Batch normalization --------------------------------------------------------------

# The derivation has one assumption, and it was in the first line: the loss of a batch
# is a mean of $l_i$, and $l_i$ is about sample $i$ alone. Batch normalization
# [ioffe2015] breaks it. In training it subtracts from every feature the mean of the
# batch, and divides by its standard deviation, so that the output for one sample
# depends on all the others.
#
# $$\hat x_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \varepsilon}}, \qquad
# \mu = \frac{1}{n}\sum_j x_j, \quad \sigma^2 = \frac{1}{n}\sum_j (x_j - \mu)^2$$
#
# A rank sees its shard, so it has a $\mu$ and a $\sigma$ of its own. We compare a
# network with PyTorch's batch normalization, on shards, with the same network on the
# whole batch, in float64.
#
# Predict: Equal shards, 16 samples on each rank, each weighted as it should be. Is the
# averaged gradient nearly right, or as wrong as the plain mean over unequal shards?


def normalized(norm):
    """A small network with a normalization, the same start for each."""
    torch.manual_seed(0)
    with torch.device("cpu"):  # a GPU would draw other weights
        layers = nn.Linear(64, 32), norm(32), nn.Tanh(), nn.Linear(32, 10)
    return nn.Sequential(*layers).to(inputs)  # its type, its device


def outcome(norm, samples):
    """Outputs, this rank's part of the gradient, and running variance."""
    model = normalized(norm)
    model[1].momentum = 1.0  # running statistics of this batch alone
    part = gradient(model, inputs[samples], labels[samples], 64)
    variance = model[1].running_var.clone()
    return model(inputs[samples]).detach(), part, variance


def norm_miss(norm, own):
    outputs, summed, variance = outcome(norm, own)
    dist.all_reduce(summed)
    of_whole = outcome(nn.BatchNorm1d, slice(0, 64))
    pairs = zip((outputs, summed, variance), (of_whole[0][own], *of_whole[1:]))
    return [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]


everyone()
if rank == 0:
    print("\n## Batch normalization\n")

play("ranks")
inputs, labels = X[batch].double(), y[batch]
own = shard(64, rank, world_size)
miss_of_each = norm_miss(nn.BatchNorm1d, own)

miss_of_each_by_rank = to_rank_0(miss_of_each)
if rank == 0:
    play("kernel")
    worst_miss = np.max(miss_of_each_by_rank, axis=0)
    assert min(worst_miss[:2]) > 0.01
    result("batch_norm_miss", round(100 * worst_miss[1]))

# The averaged gradient is wrong by (batch_norm_miss) %, and so not nearly right: each
# shard was normalized in its own way. The plain mean over unequal shards was wrong by
# (plain_miss) %.
#
# The repair is to add up over all ranks before dividing: the sum of the $x_j$, the sum
# of their squares, and how many there are, since $\sigma^2 = \frac{1}{n}\sum x_j^2 -
# \mu^2$. One all-reduce is enough for the three.
#
# PyTorch has a synchronized batch normalization, `nn.SyncBatchNorm`, and its
# `convert_sync_batchnorm(model)` puts it in the place of every `BatchNorm` of a model.
# Here, as it is:

everyone()
play("ranks")
if torch.cuda.is_available():
    inputs, labels = inputs.cuda(), labels.cuda()
try:
    pytorchs, refusal = norm_miss(nn.SyncBatchNorm, own), None
except ValueError as error:
    pytorchs, refusal = None, str(error)

pytorchs_by_rank = to_rank_0(pytorchs)
refusal_by_rank = to_rank_0(refusal)
if rank == 0:
    play("kernel")
    its_misses, refusal_of_0 = pytorchs_by_rank[0], refusal_by_rank[0]
    assert refusal_of_0 or max(its_misses) < 1e-10
    said = refusal_of_0 or f"ran, wrong by {its_misses}"
    result("sync_batch_norm", said, varies=True)

# It says: (sync_batch_norm). In PyTorch 2.13 it refuses the CPU; with a GPU this cell
# runs it and compares.
#
# Should one synchronize? Equality has its price: a wait in every such layer, forward
# and backward. And it is not always wanted. With a shard large enough for good
# statistics, people keep them per rank on purpose, so that the loss that is optimized
# stays the same when ranks are added, each with as many samples as before [goyal2017].
# For normalizations that look at one sample alone, such as layer normalization
# [ba2016], there is no question.
#
# The extra writes one that is right on the CPU, too. Its difficult part is the way back
# through the all-reduce.

# --- Extra: a batch normalization over all ranks --------------------------------------

# Adding up over the ranks is part of the forward pass, and the gradient must come back
# through that all-reduce. `dist.all_reduce` writes into its tensor and tells autograd
# nothing. What belongs there? Every rank's loss depends on the total, and the total
# depends on every rank's part. So the gradient of a part is the sum of what all ranks'
# losses say about the total: an all-reduce again. In the words of chapter 7, the
# all-reduce is its own adjoint.


class AllReduce(torch.autograd.Function):
    """The sum of all ranks' tensors; its gradient is that of all gradients."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None  # nothing for the group


class SyncedBatchNorm(nn.BatchNorm1d):
    """Batch normalization over the samples of all ranks, in shards of any size.

    x: (samples, features), float32 or float64, its means not much larger than
    its spread. All ranks call it, forward and backward, the same times.
    """

    group = None  # all ranks

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        parts = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([len(x)])])
        sums, squares, n = self.over_all_ranks(parts).split(
            [x.shape[1], x.shape[1], 1])
        mean, of_squares = sums / n, squares / n
        variance = of_squares - mean * mean
        with torch.no_grad():  # for evaluation, as nn.BatchNorm1d does it
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return x * self.weight + self.bias

    def over_all_ranks(self, parts):
        return AllReduce.apply(parts, self.group)


# Now we compare three networks with one that has PyTorch's batch normalization and the
# whole batch, in float64:
# - BatchNorm1d: PyTorch's batch normalization on each rank, as above;
# - OneWay: ours without the backward half, as one would write it at first;
# - SyncedBatchNorm: ours.
#
# Predict: Equal shards, 16 samples on each rank, each weighted as it should be. Which
# of the three has the outputs of the whole batch? Which has its gradient?


class OneWay(SyncedBatchNorm):
    """The right statistics forward; backward knows nothing of them."""

    def over_all_ranks(self, parts):
        dist.all_reduce(parts := parts.detach().clone())
        return parts


everyone()
play("ranks")
inputs, labels = X[batch].double(), y[batch]
norms = nn.BatchNorm1d, OneWay, SyncedBatchNorm
own = shard(64, rank, world_size)
norm_misses = {norm.__name__: norm_miss(norm, own) for norm in norms}
of_unequal = cut(64, range(2, world_size + 2))[rank]
unequal_miss = max(norm_miss(SyncedBatchNorm, of_unequal))

norm_misses_by_rank = to_rank_0(norm_misses)
unequal_miss_by_rank = to_rank_0(unequal_miss)
if rank == 0:
    play("kernel")
    of_ranks, worst_unequal = norm_misses_by_rank, unequal_miss_by_rank
    worst = {kind: np.max([of_r[kind] for of_r in of_ranks], axis=0)
             for kind in of_ranks[0]}
    print(f"{'':>16}  output  gradient  running variance")
    for kind in ("BatchNorm1d", "OneWay", "SyncedBatchNorm"):
        output, of_gradient, running = worst[kind]
        print(f"{kind:>16} {output:7.0e} {of_gradient:9.0e} {running:17.0e}")
    assert max(*worst["SyncedBatchNorm"], *worst_unequal) < 1e-12
    assert worst["OneWay"][0] < 1e-12 and worst["OneWay"][1] > 0.01
    assert min(worst["BatchNorm1d"][:2]) > 0.01
    result("one_way_miss", round(100 * worst["OneWay"][1]))
    result("synced_miss", worst["SyncedBatchNorm"][1], varies=True)
    save_figures()

# With ours, outputs, gradient and running variance are those of the whole batch, the
# gradient to (synced_miss), and with unequal shards as well.
#
# The one in the middle is the dangerous one. Its outputs are right, so its loss is
# right, and a look at the loss says that all is well. Its gradient is wrong by
# (one_way_miss) %.
#
# With unequal shards the weight must be in the loss before `backward`. Here it is: each
# loss is the sum over a shard, divided by 64. A weight that `average_gradients` gives
# afterwards comes too late, for the backward pass of this layer has then added up what
# all ranks' losses say about the total. How wrong is that?


def late_miss(own):
    """The same layer, with the weight given after backward."""
    m = own.stop - own.start
    model = normalized(SyncedBatchNorm)
    late = gradient(model, inputs[own], labels[own], m) * m / 64
    dist.all_reduce(late)
    right = outcome(nn.BatchNorm1d, slice(0, 64))[1]
    return ((late - right).abs().max() / right.abs().max()).item()


everyone()
play("ranks")

late_misses = late_miss(own), late_miss(of_unequal)

late_misses_by_rank = to_rank_0(late_misses)
if rank == 0:
    play("kernel")
    late_equal, late_unequal = late_misses_by_rank[0]
    assert late_equal < 1e-12 and late_unequal > 0.01
    result("late_miss", round(100 * late_unequal))

# With unequal shards the gradient is wrong by (late_miss) %. So `sync_sgd`, which
# weights afterwards, is right with this layer only if the shards are equal.

# --- Four mistakes --------------------------------------------------------------------

# Three of them train, and nothing complains. The fourth one waits.

# --- Three that train -----------------------------------------------------------------

# - Summed, not averaged. PyTorch's tutorial averages with two lines [disttuto]: an
#   all-reduce that sums, and then `param.grad.data /= size`. Leave out the second one,
#   and everything runs.
# - Another start on every rank. Nobody called `broadcast_parameters`.
# - The same data on every rank. Nobody called `shard`; or the loader has no sampler,
#   and every rank has the same seed.
#
# To see what they do we take a short training of which any part can be replaced. The
# batch is 16 samples for each rank.

everyone()
if rank == 0:
    print("\n## Four mistakes\n")

play("ranks")

with_momentum = functools.partial(torch.optim.SGD, momentum=0.9)


def short_training(model, *, start=broadcast_parameters, share=shard,
                   average=average_gradients, make=with_momentum, rate=0.05):
    """Train 20 steps in float64: (losses, drift, accuracy, weights)."""
    model, n, losses = model.double(), 16 * world_size, []
    start(model)
    optimizer = make(model.parameters(), lr=rate)
    for step in range(20):
        own = samples_of_step(step, len(X), n)[share(n, rank, world_size)]
        loss = loss_and_gradients(model, X[own].double(), y[own])
        losses.append(loss / world_size)
        average(model)
        optimizer.step()
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    accuracy = evaluate(model, X_test.double(), y_test)[1]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return losses.tolist(), drift(model), accuracy, weights


# Predict: What does each of them do to the training? Which of them does the drift find?


def leave(model):
    """Do nothing to the model."""


def first_shard(n, rank, world_size):
    """The share of rank 0, whoever asks."""
    return shard(n, 0, world_size)


everyone()

summing = functools.partial(average_gradients, weight=1)
adam = {"make": torch.optim.Adam, "rate": 0.003}
trainings = {
    "right": short_training(DigitsNet()),
    "summed": short_training(DigitsNet(), average=summing),
    "larger rate": short_training(DigitsNet(), rate=0.05 * world_size),
    "other starts": short_training(DigitsNet(seed=rank), start=leave),
    "same data": short_training(DigitsNet(), share=first_shard),
    "alone": short_training(DigitsNet(), share=first_shard, average=leave),
    "Adam": short_training(DigitsNet(), **adam),
    "Adam, summed": short_training(DigitsNet(), average=summing, **adam),
}

everyone()
start_drift = drift(DigitsNet(seed=rank).double())
numbers = {kind: of_kind[:3] for kind, of_kind in trainings.items()}
pairs = [("summed", "larger rate"), ("same data", "alone"), ("right", "summed")]
pairs += [("Adam", "Adam, summed")]
apart_in_the_end = [(trainings[a][3] - trainings[b][3]).abs().max().item()
                    for a, b in pairs]

numbers_by_rank = to_rank_0(numbers)
if rank == 0:
    play("kernel")
    numbers_of_0 = numbers_by_rank[0]
    print(f"{'':>12}   last loss   digits found     drift")
    for kind in ("right", "summed", "other starts", "same data", "Adam",
                 "Adam, summed"):
        of_steps, apart, share_found = numbers_of_0[kind]
        print(f"{kind:>12} {of_steps[-1]:11.3f} {share_found:14.1%} {apart:9.2g}")
    save_figures()

apart_in_the_end_by_rank = to_rank_0(apart_in_the_end)
if rank == 0:
    summed_larger, same_alone, by_sgd, by_adam = apart_in_the_end_by_rank[0]
    assert summed_larger < 1e-9 and same_alone < 1e-9
    assert by_adam < 0.01 < by_sgd
    assert numbers_of_0["summed"][1] == numbers_of_0["same data"][1] == 0

start_drift_by_rank = to_rank_0(start_drift)
if rank == 0:
    drift_before = start_drift_by_rank[0]
    drift_after = numbers_of_0["other starts"][1]
    assert abs(drift_before - drift_after) < 1e-9
    result("right_loss", round(numbers_of_0["right"][0][-1], 2))
    result("summed_loss", round(numbers_of_0["summed"][0][-1], 2))
    result("drift_before", round(drift_before, 3))
    result("drift_after", round(drift_after, 3))
    result("summed_by_sgd", round(by_sgd, 2))
    result("summed_by_adam", by_adam, varies=True)

# Summed is the right training at (n_ranks) times the learning rate, and ends with that
# one's weights. It need not look bad: here its last loss is (summed_loss), and the
# right training's is (right_loss), for 0.05 was a cautious rate. Had it been nearly too
# large, the sum would have made it too large. In any case the rate that was tuned is
# not the rate that is used, and it changes with the number of ranks.
#
# Adam divides each gradient by a mean of its recent sizes, so a factor hardly matters
# to it: the weights differ by (summed_by_adam), and with SGD by (summed_by_sgd). With
# Adam the mistake stays hidden until somebody changes the optimizer, or clips
# gradients.
#
# Other starts: the drift was (drift_before) at first, and after 20 steps it is
# (drift_after), to nine digits. All ranks make the same step, from different places.
# Averaging gradients brings nobody together; it only keeps together those who are. And
# each step is a mean of gradients that belong to different networks, so it is right for
# none of them.
#
# The same data: all gradients are equal, and so is their mean. It is the training of
# one rank alone with batches of 16, to the same weights, and the other ranks compute it
# once more. The loss falls, the drift is 0, and nothing says that the batch is
# (n_ranks) times smaller than you think.
#
# So the drift finds one of the three. What finds all of them is the comparison from the
# top of the chapter: one step's gradient beside that of one process that has the whole
# batch.

everyone()
play("ranks")
first = samples_of_step(0, len(X), 16 * world_size)
inputs, labels = X[first].double(), y[first]
whole = gradient(DigitsNet().double(), inputs, labels, len(first))


def first_miss(seed=0, start=broadcast_parameters, share=shard,
               average=average_gradients):
    """How far a first step's gradient is from that of the whole batch."""
    model, own = DigitsNet(seed).double(), share(len(first), rank, world_size)
    start(model)
    loss_and_gradients(model, inputs[own], labels[own])
    average(model)
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    return ((ours - whole).abs().max() / whole.abs().max()).item()


first_misses = {
    "right": first_miss(seed=rank),
    "summed": first_miss(average=summing),
    "other starts": first_miss(seed=rank, start=leave),
    "same data": first_miss(share=first_shard),
}

first_misses_by_rank = to_rank_0(first_misses)
if rank == 0:
    play("kernel")
    found_by = first_misses_by_rank[0]
    for kind in ("right", "summed", "other starts", "same data"):
        print(f"{kind:>12}: wrong by {found_by[kind]:.0e}")
        assert (found_by[kind] < 1e-12) if kind == "right" else found_by[kind] > 0.1
    save_figures()

# --- A collective in a branch ---------------------------------------------------------

# The fourth mistake does not train. A batch with a broken picture makes a loss that is
# not a number, so one leaves such a batch out. It is good sense, on one rank:
#
# Predict: The broken picture is in rank 0's shard. Where is rank 0 a second later, and
# where are the others?

# Rank 0 has left the batch out and is done with the cell, and all others wait for it,
# in the all-reduce of the first weight tensor. So a rank must not decide by itself,
# from its own data, whether it calls a collective. All ranks must know first, and then
# decide alike.
#
# `reset` gives the same processes a fresh group; the groups in `teams` are gone with
# the old one.

everyone()
play("ranks")
model = DigitsNet()
pictures = X[mine].clone()
if rank == 0:
    pictures[3, 20] = float("nan")
loss = loss_and_gradients(model, pictures, y[mine])
broken = (~torch.isfinite(loss)).float()
dist.all_reduce(broken, op=dist.ReduceOp.MAX)  # is it broken anywhere?
if not broken:
    average_gradients(model)
left_out_by_all = bool(broken)

left_out_by_all_by_rank = to_rank_0(left_out_by_all)
if rank == 0:
    play("kernel")
    assert all(left_out_by_all_by_rank)

# One more all-reduce in each step, of one number. Cheaper is to decide after the
# gradients are averaged: a NaN of one rank is in every rank's sum, so all see it and
# decide alike. Gradients are clipped after the all-reduce, too: only then have all
# ranks the same norm to clip by.
#
# In a loop the mistake is worse. Rank 0 goes on to its next step, whose all-reduce the
# others take for this one's, and nothing hangs until the loop ends. Here rank 0 leaves
# out its first batch. The others leave out their last, so that the number of calls is
# the same and nobody hangs at all:

everyone()
play("ranks")
summed_steps = []
for step in (1, 2, 3):
    skipped = 1 if rank == 0 else 3
    if step != skipped:
        number = torch.tensor([10.0**rank * step])  # whose, and of which step
        dist.all_reduce(number)
        summed_steps.append(int(number))

everyone()
if rank == 0:
    play("kernel")
    others = sum(10**r for r in range(1, n_ranks))

summed_steps_by_rank = to_rank_0(summed_steps)
if rank == 0:
    assert summed_steps_by_rank[0] == [2 + others, 3 + 2 * others]

summed_steps_by_rank = to_rank_0(summed_steps)
if rank == 0:
    result("summed_steps", summed_steps_by_rank[0])


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


# The two sums are (summed_steps). Each digit is of one rank, rank 0's on the right, and
# says of which step its number is. Rank 0 is a step ahead in both sums, and no error
# says so.

# --- On real machines -----------------------------------------------------------------

# With the ring of chapter 8, a replica sends and receives $2(n-1)/n$ times the size of
# its gradients in each step. For how long does that keep an H100 waiting, which does
# 989 TFLOP/s with bfloat16 at most [h100]? We look at two links: NVLink 4 with 450 GB/s
# [hopper], and InfiniBand with 50 GB/s [connectx7].
#
# Predict: Computing takes a second, and 16 GB of gradients are to be averaged. Is
# waiting a few percent of a step, or a third? On which link?
#
# Worked problem: A model of 8 · 10⁹ parameters in bfloat16, 8 GPUs, 8,192 tokens on
# each. Computing: 6 FLOP for each parameter and token, at an assumed 40 % of the peak.
# Sending: 2 · 7/8 · 16 GB over the link, after computing, as in this chapter.
#
# Computing takes (h100_seconds) s; sending (nvlink_seconds) s over NVLink and
# (infiniband_seconds) s over InfiniBand. So (nvlink_share) % and (infiniband_share) %
# of each step go by in waiting, latencies not counted. For your own machine, put the
# bandwidth that chapter 6 measures there into the same formula. How such a model and
# its optimizer's state fit into a GPU is another question: ZeRO spreads them over the
# ranks [rajbhandari2020].

if rank == 0:
    print("\n## On real machines\n")
    computing = 6 * 8e9 * 8192 / (0.4 * 989e12)
    sending = {name: 2 * 7 / 8 * 16e9 / bandwidth
               for name, bandwidth in (("nvlink", 450e9), ("infiniband", 50e9))}
    shares = {name: 100 * s / (s + computing) for name, s in sending.items()}
    result("h100_seconds", round(computing, 2))
    result("nvlink_seconds", round(sending["nvlink"], 3))
    result("infiniband_seconds", round(sending["infiniband"], 2))
    result("nvlink_share", round(shares["nvlink"]))
    result("infiniband_share", round(shares["infiniband"]))

# --- What you can do now --------------------------------------------------------------

# - Derive the gradient of a batch from those of its shards, of any size, and check it
#   in float64.
# - Give all ranks the same start, buffers included, average the gradients, and train as
#   one rank would.
# - Tell rounding from a mistake, say why the last bits differ, and make them agree
#   where that is wanted.
# - Say what `DistributedSampler` deals, which samples come twice, and what is missing
#   if `set_epoch` is.
# - Say why batch normalization is no mean over samples, and what repairs it.
# - Find a sum that should be a mean, another start, the same data: by one gradient
#   beside that of the whole batch.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/10_sync_sgd.py
#
# On two hosts (the same line on both, with the first one's name):
#
#     torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 scripts/10_sync_sgd.py
#
# Where the processors differ, the assertions on equal bits may fail, and those on a
# drift of 0. The averaged gradient is the same everywhere, but two processors need not
# round the optimizer's step in the same way. So give all replicas the same kind of
# processor.

# --- Where to read on -----------------------------------------------------------------

# - [chen2016sgd]: synchronous against asynchronous SGD, and why it pays to wait for all
#   but the slowest few.
# - [goyal2017]: large batches on 256 GPUs. What can go wrong there: two of this
#   chapter's mistakes (a sum or a mean, one shuffle for all ranks) and two more, of
#   weight decay and of momentum when the rate changes.
# - [ioffe2015]: batch normalization.
# - [unsloth2024]: a mean of means that went unnoticed, found with the comparison of
#   this chapter.
# - [pytorchdistributed]: the calls of this chapter.

leave_group()
