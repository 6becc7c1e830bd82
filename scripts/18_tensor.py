# Generated from book/18_tensor.md by `make forms`: edit the manuscript, not this file.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 18_tensor.py
#     torchrun --standalone --nproc-per-node 4 18_tensor.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 18_tensor.py
#     mpiexec -n 4 python 18_tensor.py
#
# pip install matplotlib numpy torch  (for mpiexec also: mpich mpi4py)

import contextlib
import functools
import itertools
import os
import random
import re
import socket
import statistics
import sys
import time
import weakref
import zlib
from collections import OrderedDict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.patches import Rectangle
from torch import nn
from torch.autograd import Variable, gradcheck
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
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
    limit = timedelta(seconds=30)
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


# === One layer, several owners ========================================================

# A layer is too large for one rank. How can several ranks own it together, and compute
# what the whole layer would have computed?
#
# 65 minutes to read · 20 seconds to run · stands on chapter 08_all_reduce, chapter
# 16_layers and chapter 17_pipeline
#
# Chapters 16 and 17 cut a model between its layers. Here the cut goes through every
# layer: each rank has some columns of this matrix and some rows of that one, and no
# rank ever multiplies by a whole matrix. That is tensor parallelism. At the end you
# have split all of a GPT in this way, from the embedding to the loss, and it trains to
# the weights of the whole model. You can say how many bytes each step sends, before you
# run it, and, for a machine whose latency, bandwidth and speed you have measured,
# whether to share out the batch, the layers or the matrices.

if rank == 0:
    n_ranks = world_size


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# --- A product, cut two ways ----------------------------------------------------------

# A layer is a product of matrices, X A. There are two ways to share A.
#
# By columns. A = [A₀ A₁ …], side by side. Then X A = [X A₀, X A₁, …]: every rank needs
# all of X and computes some columns of the product. No message. A function of each
# number by itself, such as the tanh below, can be applied to the columns where they
# are.
#
# By rows. A₀ above A₁ above …, and X cut by columns to match. Then X A = X₀ A₀ + X₁ A₁
# + …: every rank needs only the columns of X that meet its rows. What it computes has
# the shape of the product, but is one term of a sum. The sum is an all-reduce.
#
# Predict: An MLP multiplies, applies a nonlinear function, and multiplies again: H =
# tanh(X A), Z = H B. A is cut by columns, and B by rows. How many messages are needed
# in between?

everyone()
play("ranks")
torch.manual_seed(0)  # all ranks draw the same matrices
X, A, B = (torch.randn(size, dtype=torch.float64) for size in ((3, 8), (8, 24), (24, 8)))
mine = slice(24 * rank // world_size, 24 * (rank + 1) // world_size)  # as chapter 10 shares out

H_mine = torch.tanh(X @ A[:, mine])  # by columns: some columns of H
term = H_mine @ B[mine]  # by rows: they are just what these rows need
Z = term.clone()
dist.all_reduce(Z)
product_error = (Z - torch.tanh(X @ A) @ B).abs().max().item()


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


product_error_by_rank = to_rank_0(product_error)
if rank == 0:
    play("kernel")
    assert max(product_error_by_rank) < 1e-12

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


# None. The columns of H that a rank has computed are exactly those that its rows of B
# wait for. Column, then row: two layers, and one sum at the end. The other order needs
# its sum in the middle: tanh(a + b) is not tanh a + tanh b, so terms must be added up
# before the tanh. And at its end each rank would have some columns of Z only.


def bands(ax, x, width, height, slices, upright):
    """A matrix at x, cut into a band for each rank."""
    n = slices[-1].stop
    for r, each in enumerate(slices):
        a, b = each.start / n, (each.stop - each.start) / n
        at = (x + a * width, -height / 2) if upright else (x, height / 2 - (a + b) * height)
        size = (b * width, height) if upright else (width, b * height)
        ax.add_patch(Rectangle(at, *size, facecolor=pale(RANK_COLORS[r], 0.6), edgecolor="white"))


def copies(ax, x):
    """The same shape once in each rank's color, one behind the other."""
    for r in reversed(range(n_ranks)):
        step = 0.9 * r / n_ranks
        look = {"facecolor": pale(RANK_COLORS[r], 0.6), "edgecolor": "white"}
        ax.add_patch(Rectangle((x + step, -1.0 + step), 1.3, 1.2, **look))


slices = to_rank_0(mine)
if rank == 0:
    fig, ax = plt.subplots(num="column-then-row", figsize=(5.2, 2.1))
    for at in (0, 18.2):
        ax.add_patch(Rectangle((at, -0.6), 1.3, 1.2, facecolor="#c8c8c8"))
    copies(ax, 2.6)
    bands(ax, 5.3, 2.8, 1.3, slices, upright=True)
    bands(ax, 9.2, 2.8, 1.2, slices, upright=True)
    bands(ax, 12.6, 1.3, 2.8, slices, upright=False)
    copies(ax, 14.75)
    for at, sign in ((1.95, "→"), (5.0, "·"), (8.65, "→"), (12.3, "·"), (14.3, "="), (17.5, "→")):
        ax.text(at, 0, sign, ha="center", va="center", fontsize=14)
    ax.text(8.65, 0.95, "tanh", ha="center", va="center", fontsize=10)
    for at, what in ((1.95, "f"), (17.5, "g")):
        ax.text(at, 0.75, what, ha="center", va="center", fontsize=14, style="italic")
    names = ((0.65, "X"), (3.6, "X"), (6.7, "A"), (10.6, "H"), (13.25, "B"), (15.6, "terms"))
    for at, what in (*names, (18.85, "Z")):
        ax.text(at, -2.05, what, ha="center", va="center")
    ax.set(xlim=(-0.2, 19.7), ylim=(-2.4, 1.8))
    ax.set_axis_off()
    save_figures()

# X goes to every rank, f; the ranks' terms are added up, g. In color is what one rank
# computes with, in gray what comes in and out, alike on all of them.

# --- f and g --------------------------------------------------------------------------

# That was the forward pass. The gradient of a matrix that a rank owns needs the
# gradient of Z, which every rank has: they all compute the same loss from the same Z.
# So there is nothing to send for the weights. But X?
#
# Predict: Every rank lets autograd compute the gradient of X from its term. Is it the
# gradient of the whole?


def branch(x):
    """This rank's term of the MLP."""
    return torch.tanh(x @ A[:, mine]) @ B[mine]


everyone()
play("ranks")

X_whole, X_mine = (X.clone().requires_grad_() for _ in range(2))
(torch.tanh(X_whole @ A) @ B).square().sum().backward()  # the loss: the sum of Z's squares
branch(X_mine).backward(2 * Z)  # its gradient, the same on every rank
of_one = (X_mine.grad - X_whole.grad).abs().max().item()
dist.all_reduce(X_mine.grad)
of_all = (X_mine.grad - X_whole.grad).abs().max().item()

of_one_by_rank = to_rank_0(of_one)
if rank == 0:
    play("kernel")
    assert min(of_one_by_rank) > 0.1

of_all_by_rank = to_rank_0(of_all)
if rank == 0:
    assert max(of_all_by_rank) < 1e-11

# No: X has gone into every term, so its gradient is the sum of what comes out of all of
# them. One all-reduce again, at the beginning of the layer this time, where backward
# ends.
#
# So there is a place where X goes into the parts, and a place where the terms come
# together. Megatron-LM [shoeybi2019] has named them:
#
# | | forward | backward |
# | --- | --- | --- |
# | f, where x goes into the parts | as it is | all-reduce |
# | g, where the terms come together | all-reduce | as it is |
#
# It is no accident that f's row, read from the right, is g's row. Call a tensor that
# all ranks have alike one tensor, and n tensors that differ from rank to rank a tensor
# of n parts. Then f makes n parts of one tensor, by copying; g makes one tensor of n
# parts, by adding. Both are linear, and backward goes through the adjoint f*, the map
# for which ⟨f(x), y⟩ = ⟨x, f*(y)⟩:
#
# $$ \langle f(x), y\rangle = \sum_r \langle x, y_r\rangle = \Big\langle x, \sum_r y_r \Big\rangle
# = \langle x, g(y)\rangle . $$
#
# So f* = g, and g* = f. In the code each one's backward is the other one's forward.
#
# The table of chapter 07_collectives has another pair: the backward of an all-reduce is
# an all-reduce. Both are right. There every rank's tensor counts for itself, n results
# and n losses; here all n results are one Z, and the n losses are one loss, computed n
# times. PyTorch's `torch.distributed.nn.functional.all_reduce` is of chapter 7's kind:
# in the place of g it multiplies by n whatever goes back through it, once for each
# layer.


class Copied(torch.autograd.Function):
    """f: x, the same on every rank, goes into the parts. Backward adds up what comes out."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return Summed.apply(gradient, ctx.group), None


class Summed(torch.autograd.Function):
    """g: the parts' outputs are added up. Backward hands every part the same gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return Copied.apply(gradient, ctx.group), None


def copied(x, group=None):
    """f: x itself; in backward, the sum over the ranks of its gradients."""
    return Copied.apply(x, group)


def summed(x, group=None):
    """g: the sum of all ranks' x; in backward, the gradient as it is."""
    return Summed.apply(x, group)


# The sum of `Summed` is a tensor of its own, so that nobody's input is changed. It is
# contiguous, because an all-reduce adds memory to memory: a transposed tensor has its
# numbers in another order, a plain `clone()` keeps that order, and if one rank's
# differs, the sum is wrong, and nothing says so. Now the identity in numbers. On every
# rank x is the same, and y is another one:

everyone()
play("ranks")
x = torch.randn(5, dtype=torch.float64)  # all ranks draw on from the same seed
y = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(100 + rank))
over_parts = summed((copied(x) * y).sum()).item()  # <f(x), y>, a sum over all ranks
over_one = (x * summed(y)).sum().item()  # <x, g(y)>

over_parts_by_rank = to_rank_0(over_parts)
over_one_by_rank = to_rank_0(over_one)
if rank == 0:
    play("kernel")
    assert np.allclose(over_parts_by_rank, over_one_by_rank, rtol=1e-12)

# And as derivatives: `gradcheck` moves each number of x a little up and down, sees what
# becomes of the result, and compares that with backward. All ranks must move the same
# number at the same time, as they do here: they have the same x. So it is the whole
# function that is checked, x in, Z out.
#
# Predict: Does the check notice if f is left out? And if g is?


def passes(function):
    return gradcheck(function, X[:1].clone().requires_grad_(), raise_exception=False)


everyone()
play("ranks")

with_both = passes(lambda x: summed(branch(copied(x))))
without_f = passes(lambda x: summed(branch(x)))
without_g = passes(lambda x: branch(copied(x)))


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


with_both_by_rank = to_rank_0(with_both)
if rank == 0:
    play("kernel")
    assert all(with_both_by_rank)

without_f_by_rank = to_rank_0(without_f)
if rank == 0:
    assert not any(without_f_by_rank)

without_g_by_rank = to_rank_0(without_g)
if rank == 0:
    assert not any(without_g_by_rank)

with_both_by_rank = to_rank_0(with_both)
if rank == 0:
    result("gradcheck_with_both", all(with_both_by_rank))

without_f_by_rank = to_rank_0(without_f)
if rank == 0:
    result("gradcheck_without_f", any(without_f_by_rank))

without_g_by_rank = to_rank_0(without_g)
if rank == 0:
    result("gradcheck_without_g", any(without_g_by_rank))

# It notices both. Without f the forward pass is right, to the last digit, and a
# training would run, with wrong gradients for every layer below. Without g every rank
# has its own term for a result, and f still adds up the gradients of all: backward is
# the derivative of a function that no rank has computed. (The gradients of the weights
# are not looked at here; the twins below do that.)

# --- Layers that know their part ------------------------------------------------------

# Now as modules. Their first weights must be those of the whole model, whatever the
# number of ranks; but no rank should ever need room for the whole model. Chapter 16's
# `drawn(name, shape)` gives the whole matrix of that name, always the same one; a rank
# keeps its piece, drops the rest, and goes on to the next.


def share(n, group=None, what="features"):
    """The slice of n that this rank owns. Raises ValueError where a rank would get nothing."""
    r, size = dist.get_rank(group), dist.get_world_size(group)
    if n < size:
        raise ValueError(f"{n} {what} cannot be dealt to {size} ranks: each must get one at least.")
    return slice(n * r // size, n * (r + 1) // size)


class Piece(nn.Parameter):
    """A parameter that is `part` (a slice) along `dim` of one of shape `whole`."""

    def __deepcopy__(self, memo):  # or a copy of a model, for an average say, would forget it
        copy = super().__deepcopy__(memo)
        copy.whole, copy.dim, copy.part = self.whole, self.dim, self.part
        return copy


def piece(whole, dim, part):
    """A piece, not yet filled."""
    shape = list(whole)
    shape[dim] = part.stop - part.start
    p = Piece(torch.empty(shape))
    p.whole, p.dim, p.part = tuple(whole), dim, part
    return p


# From ranklab.taught.layers:


def drawn(name, sizes, seed=0):
    """The initial value of a parameter, float64: its name, its sizes and the seed alone decide."""
    if name.endswith("bias"):
        return torch.zeros(sizes, dtype=torch.float64)
    if "norm" in name:
        return torch.ones(sizes, dtype=torch.float64)
    number = zlib.crc32(f"{seed} {name}".encode())  # hash() would differ from process to process
    g = torch.Generator().manual_seed(number)
    scale = sizes[-1] ** -0.5  # so that outputs are about as large as inputs
    return torch.randn(sizes, dtype=torch.float64, generator=g) * scale


def is_split(p):
    """Is p a piece, and not a replica that every rank has?"""
    return hasattr(p, "part")  # what torch.load gives has it, but is no Piece any more


def own_part(p, whole):
    """What a rank's parameter p is, of a tensor that belongs to the whole parameter."""
    return whole.narrow(p.dim, p.part.start, p.shape[p.dim]) if is_split(p) else whole


def fill(model, seed=0):
    """Give every parameter its part of what the whole model begins with. Returns the model."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(own_part(p, drawn(name, p.whole if is_split(p) else p.shape, seed)))
    return model


# What is dealt out are the outputs of a column layer and the inputs of a row layer.
# Note that PyTorch's `nn.Linear` stores its matrix as (outputs, inputs): the columns of
# A are the rows of `weight`. `enter` and `leave` are f and g; sequence parallelism,
# further below, puts others there. `part` is for attention, which has its own way of
# dealing out.


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are dealt out: of (..., n_in) this rank's part of (..., n_out).

    Not filled when it is made: see `fill`.
    enter: what is done to x before, f unless told otherwise; None: nothing, x has been through it.
    part: which outputs are this rank's, a slice.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None, enter=copied):
        super().__init__()
        self.group, self.enter = group, enter
        part = part or share(n_out, group)
        self.weight = piece((n_out, n_in), 0, part)
        self.bias = piece((n_out,), 0, part) if bias else None

    def forward(self, x):
        x = self.enter(x, self.group) if self.enter else x
        return nn.functional.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose inputs are dealt out: this rank's part of (..., n_in) -> (..., n_out).

    Not filled when it is made: see `fill`.
    leave: how the ranks' outputs are added up, g unless told otherwise.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None, leave=summed):
        super().__init__()
        self.group, self.leave = group, leave
        self.weight = piece((n_out, n_in), 1, part or share(n_in, group))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x):
        y = self.leave(nn.functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias  # once, and not once on every rank


# One detail of `RowLinear` would be a mistake in its other order: the bias is added
# after the sum. Added to each term, it would count n times, and with n = 1, where one
# tests first, it would be right.


class SplitMLP(nn.Module):
    """The MLP of a block, its hidden features dealt out: (..., width) -> the same.

    enter, leave: what x goes through before, and the ranks' outputs after; f and g.
    """

    def __init__(self, width, hidden, group=None, enter=copied, leave=summed):
        super().__init__()
        self.up = ColumnLinear(width, hidden, group, enter=enter)
        self.down = RowLinear(hidden, width, group, leave=leave)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


# From ranklab.taught.layers:


class MLP(nn.Module):
    """(..., width) -> the same: up to `hidden` features, GELU, and down again."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


# Is it right? A twin says so: the whole layer, with all outputs and all gradients,
# piece by piece.


def errors(split, whole, x):
    """The largest error of a split layer: outputs, the gradient of x, those of the weights."""
    xs = [x.clone().requires_grad_() for _ in range(2)]
    outs = [layer(each) for layer, each in zip((split, whole), xs)]
    for out in outs:
        out.square().sum().backward()
    pairs = [outs, [each.grad for each in xs]]
    for p, q in zip(split.parameters(), whole.parameters()):
        pairs.append((p.grad, own_part(p, q.grad)))
    return max((a - b).abs().max().item() for a, b in pairs)


everyone()
play("ranks")

some = torch.randn(2, 6, 8, dtype=torch.float64)
hidden = 4 * world_size + 3  # does not divide
mlp_error = errors(fill(SplitMLP(8, hidden).double()), fill(MLP(8, hidden).double()), some)

mlp_error_by_rank = to_rank_0(mlp_error)
if rank == 0:
    play("kernel")
    assert max(mlp_error_by_rank) < 1e-11


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        print(f"rank {rank} failed, as it may here: {type(error).__name__}: {first_line}")


# --- Column after column --------------------------------------------------------------

# Predict: Somebody splits both layers by columns: it is the simpler one, it sends
# nothing. What happens?

everyone()
play("ranks")
with may_fail():
    up, down = fill(ColumnLinear(8, 32).double()), fill(ColumnLinear(32, 8).double())
    wrong = down(torch.tanh(up(some)))

# An error, and a good one: `mat1 and mat2 shapes cannot be multiplied`. The second
# layer wants all 32 features, and this rank has its own ones only. Nobody had sent
# anything yet, so the ranks are usable at once. The tempting repair is to make the
# second layer smaller, so that the shapes agree:


def is_alike(x):
    """Has every rank the same x?"""
    least, most = x.clone(), x.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return torch.equal(least, most)


everyone()

narrow = fill(nn.Linear(up.weight.shape[0], 8, bias=False).double())
fits = narrow(torch.tanh(up(some))).detach()
alike = is_alike(some), is_alike(fits)

alike_by_rank = to_rank_0(alike)
if rank == 0:
    play("kernel")
    assert alike_by_rank == [(True, False)] * n_ranks

alike_by_rank = to_rank_0(alike)
if rank == 0:
    result("alike", alike_by_rank[0])

# From ranklab.taught.layers:


def attend(query, key, value):
    """Causal attention; all (batch, heads, time, size). A token sees itself and those before it."""
    return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


# Now it runs, and every rank has another result, each computed from its own features
# alone. No shape, no error tells. To find it, compare the ranks: what should be the
# same on all of them, is it? What went in is, what came out is not. The right repair is
# to split the second layer by rows. Only where a layer must see all features at once,
# as a LayerNorm over the hidden features would, gather them first, and pay a message
# for it.

# --- Attention by heads ---------------------------------------------------------------

# Attention looks at all features of a head at once, and at nothing of the others. So
# deal out heads, whole ones: query, key and value by columns, the output by rows. x
# goes through f once, and not three times, or backward would make three all-reduces out
# of one.


class SplitAttention(nn.Module):
    """Attention whose heads are dealt out, whole ones: (batch, time, width) -> the same.

    enter, leave: what x goes through before, and the ranks' outputs after; f and g.
    Raises ValueError for fewer heads than ranks.
    """

    def __init__(self, width, heads, size, group=None, enter=copied, leave=summed):
        super().__init__()
        mine = share(heads, group, "heads")
        part = slice(mine.start * size, mine.stop * size)
        self.size, self.group, self.enter = size, group, enter
        self.query, self.key, self.value = (
            ColumnLinear(width, heads * size, group, bias=False, part=part, enter=None)
            for _ in range(3)
        )
        self.out = RowLinear(heads * size, width, group, part=part, leave=leave)

    def forward(self, x):
        x = self.enter(x, self.group)  # once for all three
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


# From ranklab.taught.layers:


class Attention(nn.Module):
    """(batch, time, width) -> the same; `heads` heads of `size` features each."""

    def __init__(self, width, heads, size):
        super().__init__()
        self.size = size
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, heads * size, bias=False)
        self.value = nn.Linear(width, heads * size, bias=False)
        self.out = nn.Linear(heads * size, width)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (-1, self.size)).transpose(1, 2)  # (batch, heads, time, size)
            for f in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


# The heads need not be a multiple of the ranks (nor heads × size be the width). Here is
# one head more than there are ranks:

everyone()
play("ranks")
heads = world_size + 1
unequal = fill(SplitAttention(8, heads, 4).double())
attention_error = errors(unequal, fill(Attention(8, heads, 4).double()), some)
own_heads = unequal.query.weight.shape[0] // 4

attention_error_by_rank = to_rank_0(attention_error)
if rank == 0:
    play("kernel")
    assert max(attention_error_by_rank) < 1e-11

own_heads_by_rank = to_rank_0(own_heads)
if rank == 0:
    result("own_heads", own_heads_by_rank)


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


# One rank has two heads: it works longest, and the others wait for it in g. But a head
# cannot be cut, so there is an end to it:

everyone()
play("ranks")
with may_fail():
    show(SplitAttention(8, world_size - 1, 4), rank)

# That is the first limit of tensor parallelism. The whole group learns of it, when the
# layer is made and before any message: all ranks can compute it from the same numbers.

# --- The vocabulary -------------------------------------------------------------------

# The largest matrices of a small model are often its first and its last one. A GPT with
# 50,000 tokens and 1,000 features has 50 million numbers in its embedding, and 50
# million in the layer that makes the logits.
#
# The embedding is a table, a row for each token. Deal out the rows. A rank looks up the
# tokens that it has and puts zeros for all others; the sum, g, has each row once.


class VocabularyEmbedding(nn.Module):
    """An embedding whose rows, one for each token, are dealt out.

    A token outside of the vocabulary is nobody's: it gets zeros, and no error.
    """

    def __init__(self, vocabulary, width, group=None, leave=summed):
        super().__init__()
        self.group, self.leave, self.part = group, leave, share(vocabulary, group, "tokens")
        self.weight = piece((vocabulary, width), 0, self.part)

    def forward(self, tokens):
        mine = (self.part.start <= tokens) & (tokens < self.part.stop)
        rows = nn.functional.embedding((tokens - self.part.start).where(mine, 0), self.weight)
        return self.leave(rows.where(mine[..., None], 0), self.group)  # 0 for what others have


# The last layer is split by columns: every rank computes the logits of its tokens. The
# cross-entropy needs, for each place, the logarithm of a sum over all tokens, and the
# logit of the right one:
#
# $$ -\log p_y = \log \sum_v e^{z_v} - z_y = \log \sum_v e^{z_v - m} - (z_y - m),
# \qquad m = \max_v z_v . $$
#
# A sum over all is a sum over each rank's, and then over ranks. The right token is on
# one rank; all others put a zero. And m, which keeps the exponentials from overflowing,
# is an all-reduce with MAX.
#
# Predict: For each place in time, how many numbers are sent? And without the trick, if
# the ranks gathered all logits?


def split_cross_entropy(logits, targets, vocabulary, group=None):
    """Mean cross-entropy of logits whose last dimension, the vocabulary, is dealt out.

    logits (batch, time, this rank's part), targets (batch, time), all within the
    vocabulary (that is not checked). Every rank gets the same number.
    """
    part = share(vocabulary, group, "tokens")
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    mine = (part.start <= targets) & (targets < part.stop)
    column = (targets - part.start).where(mine, 0)[..., None]
    shifted = logits - largest[..., None]
    at_target = shifted.gather(-1, column)[..., 0].where(mine, 0)
    two = torch.stack([shifted.exp().sum(-1), at_target])  # numbers for each place, and no logits
    total, of_target = summed(two, group)
    return (total.log() - of_target).mean()


# Three numbers for each place, instead of all logits, however large the vocabulary is
# [shoeybi2019]. The gradient is free: in backward g sends nothing, and each rank has
# the gradient of its own logits. And m? It is in both terms and cancels: the loss does
# not depend on it, so it may be a constant to autograd. Large logits, to see that
# nothing overflows:

everyone()
torch.manual_seed(1)  # all ranks draw the same logits
vocabulary = 96
logits = 1e4 * torch.randn(2, 6, vocabulary, dtype=torch.float64)
targets = torch.randint(vocabulary, (2, 6))
part = share(vocabulary)


def loss_whole(z):
    return nn.functional.cross_entropy(z.flatten(0, 1), targets.flatten())


z, z_own = logits.clone().requires_grad_(), logits[..., part].clone().requires_grad_()
loss, loss_own = loss_whole(z), split_cross_entropy(z_own, targets, vocabulary)
loss.backward()
loss_own.backward()
loss_gap = abs(loss.item() - loss_own.item())
loss_gradient_gap = (z.grad[..., part] - z_own.grad).abs().max().item()

loss_gap_by_rank = to_rank_0(loss_gap)
if rank == 0:
    play("kernel")
    assert max(loss_gap_by_rank) < 1e-9

loss_gradient_gap_by_rank = to_rank_0(loss_gradient_gap)
if rank == 0:
    assert max(loss_gradient_gap_by_rank) < 1e-12

# From ranklab.taught.layers:


def head_size(shape):
    """The features of one attention head. Raises ValueError if the heads cannot share evenly."""
    if shape.width % shape.heads:
        raise ValueError(f"{shape.heads} heads cannot share {shape.width} features evenly.")
    return shape.width // shape.heads


class Block(nn.Module):
    """(batch, time, width) -> the same: attention, then an MLP, each added to what came in."""

    def __init__(self, shape):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads, head_size(shape))
        self.mlp = MLP(shape.width, 4 * shape.width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


# --- A GPT that no rank holds ---------------------------------------------------------

# A block is two such pairs, each between an f and a g. What lies between the pairs, the
# LayerNorms and the residual additions, every rank computes alike, on the whole width:
# those are replicas, and cost little to compute.


class SplitBlock(Block):
    """A block as chapter 16's, its attention and its MLP split; the norms are on every rank.

    Raises ValueError where the heads cannot share the features, or the ranks the heads.
    """

    def __init__(self, shape, group=None, enter=copied, leave=summed):
        nn.Module.__init__(self)  # not Block's, which would make the whole layers
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        heads = shape.heads, head_size(shape)
        self.attention = SplitAttention(shape.width, *heads, group, enter, leave)
        self.mlp = SplitMLP(shape.width, 4 * shape.width, group, enter, leave)


# The two ends, and all of it together. (What `sequence` does comes below, with
# `gathered` and `scattered`. Until then it is False.)


class SplitEmbed(nn.Module):
    """Tokens (batch, time) -> vectors, for this rank's part of the time if `sequence`."""

    def __init__(self, shape, group=None, sequence=False):
        super().__init__()
        self.group, self.sequence = group, sequence
        leave = scattered if sequence else summed
        self.tokens = VocabularyEmbedding(shape.vocabulary, shape.width, group, leave)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        time = tokens.shape[1]
        part = share(time, self.group, "places in time") if self.sequence else slice(time)
        return self.tokens(tokens) + self.places.weight[part]


class SplitHead(nn.Module):
    """Vectors -> this rank's part of the logits, (batch, time, part of the vocabulary)."""

    def __init__(self, shape, group=None, enter=copied):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = ColumnLinear(shape.width, shape.vocabulary, group, bias=False, enter=enter)

    def forward(self, x):
        return self.logits(self.norm(x))


def tensor_gpt(shape, group=None, seed=0, dtype=torch.float32, sequence=False):
    """Chapter 16's GPT, each of its layers split over the group; names and weights are the same.

    It returns this rank's part of the logits. sequence: between the split layers every rank
    has a part of the time only (call `sum_replicas` once, after the last backward of a step).
    Raises ValueError where something cannot be dealt out.
    """
    if sequence and shape.context % dist.get_world_size(group):
        n = dist.get_world_size(group)
        raise ValueError(f"A context of {shape.context} cannot be dealt to {n} ranks equally.")
    enter, leave = (gathered, scattered) if sequence else (copied, summed)
    layers = [("embed", SplitEmbed(shape, group, sequence))]
    layers += [(f"block{i}", SplitBlock(shape, group, enter, leave)) for i in range(shape.blocks)]
    layers += [("head", SplitHead(shape, group, enter))]
    return fill(nn.Sequential(OrderedDict(layers)).to(dtype), seed)


# From ranklab.taught.layers:


def prose():
    """The text of Python's own documentation, which comes with Python: a str of plain ASCII."""
    from pydoc_data.topics import topics  # a large module: only when it is wanted

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def encode(text):
    """Characters as tokens, an int64 tensor: 0 is the end of a line, 1 a space, 95 a tilde."""
    return torch.tensor([0 if c == "\n" else ord(c) - 31 for c in text])


def windows(tokens, batch, context, seed):
    """Inputs and targets, (batch, context) each: windows drawn from the text, and one later."""
    g = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - context, (batch, 1), generator=g)
    rows = tokens[starts + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


@dataclass(frozen=True)
class Shape:
    """The numbers that make a GPT: `width` features a token, in `heads` attention heads."""

    vocabulary: int = 96
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 4


# Now the twin. Groups of two ranks, of three, and of all train the same GPT in float64
# on Python's documentation, as chapter 16 does, and the whole model trains beside them.
# It has 8 heads, which 3 ranks do not share equally.
#
# Predict: The ranks add in another order than the whole model does. After some steps of
# AdamW, how large will the difference be: bits, percent?

everyone()
play("ranks")

context = 24 // world_size * world_size  # so that time can be dealt out, further below
shape, batch = Shape(width=32, heads=8, context=context, blocks=2), 4
tokens = encode(prose()[:50_000])
sizes = sorted(n for n in {2, 3, world_size} if n <= world_size)
teams = {n: dist.new_group(range(n)) for n in sizes}  # the first n ranks


def train(model, loss_of, steps=3, first=0):
    """Train; return the loss of each step. first: the seed of the first batch."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for step in range(first, first + steps):
        inputs, targets = windows(tokens, batch, shape.context, step)
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# From ranklab.taught.layers:


class Embed(nn.Module):
    """Tokens (batch, time) -> (batch, time, width): a vector for the token, plus its place's."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places.weight[: tokens.shape[1]]


class Head(nn.Module):
    """(batch, time, width) -> logits (batch, time, vocabulary)."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x):
        return self.logits(self.norm(x))


def gpt(shape, first=0, last=None, seed=0, dtype=torch.float32):
    """Layers `first` to `last` (excluded; negative counts from the end) of a GPT.

    An nn.Sequential: layer 0 embeds, the last one is the head, between them are the blocks. The
    names and initial weights of a layer are the same in whatever slice it stands.
    """
    blocks = [(f"block{i}", Block) for i in range(shape.blocks)]
    makers = [("embed", Embed), *blocks, ("head", Head)]
    model = nn.Sequential(OrderedDict((name, make(shape)) for name, make in makers[first:last]))
    model = model.to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(drawn(name, p.shape, seed))
    return model


def language_loss(logits, targets):
    """Mean cross-entropy of logits (batch, time, vocabulary) over all targets (batch, time)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def distance(split, whole):
    """The largest difference of any weight of a split model from the whole one's."""
    pairs = zip(split.parameters(), whole.parameters())
    return max((p - own_part(p, q)).abs().max().item() for p, q in pairs)


everyone()

whole = gpt(shape, dtype=torch.float64)
whole_losses, twin_gaps, weights_held = train(whole, language_loss), {}, {}
for n, group in teams.items():
    if rank < n:
        split = tensor_gpt(shape, group, dtype=torch.float64)
        losses = train(split, lambda z, y: split_cross_entropy(z, y, shape.vocabulary, group))
        loss_gap = max(abs(a - b) for a, b in zip(losses, whole_losses))
        twin_gaps[n] = loss_gap, distance(split, whole)
        weights_held[n] = sum(p.numel() for p in split.parameters())
weights_whole = sum(p.numel() for p in whole.parameters())

twin_gaps_by_rank = to_rank_0(twin_gaps)
if rank == 0:
    play("kernel")
    loss_gaps, weight_gaps = np.array([g for of in twin_gaps_by_rank for g in of.values()]).T
    assert loss_gaps.max() < 1e-6 and weight_gaps.max() < 1e-6

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("first_loss", round(whole_losses_by_rank[0][0], 6))

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("last_loss", round(whole_losses_by_rank[0][-1], 6))
    result("twin_gap", weight_gaps.max(), varies=True)

weights_whole_by_rank = to_rank_0(weights_whole)
if rank == 0:
    result("weights_in_all", weights_whole_by_rank[0])

weights_held_by_rank = to_rank_0(weights_held)
if rank == 0:
    result("weights_split", weights_held_by_rank[0][n_ranks])

# Last bits: the largest difference of a weight is (twin_gap), while the loss has gone
# from (first_loss) to (last_loss). (The tests do 50 steps. In low precision, terms are
# rounded before they are added: compare in float64.) The whole model has
# (weights_in_all) numbers, and rank 0 holds (weights_split) of them where all ranks
# share it. That is more than an nth because of the replicas: LayerNorms, biases of the
# row layers, and the places in time.

# --- A batch for each rank ------------------------------------------------------------

# Predict: Somebody gives every rank a batch of its own, as data parallelism does. Is
# there an error? Is there anything in the losses?


def split_loss(logits, targets):
    return split_cross_entropy(logits, targets, shape.vocabulary)


everyone()
play("ranks")

mixed_losses = train(tensor_gpt(shape), split_loss, first=100 * rank)

mixed_losses_by_rank = to_rank_0(mixed_losses)
if rank == 0:
    play("kernel")
    mixed = mixed_losses_by_rank[0]

mixed_losses_by_rank = to_rank_0(mixed_losses)
if rank == 0:
    assert all(losses == mixed for losses in mixed_losses_by_rank)
    assert mixed[-1] < mixed[0]
    result("mixed_first", round(mixed[0], 6))
    result("mixed_last", round(mixed[-1], 6))

# No error, and the losses are the same on every rank, to the last bit: every sum mixes
# the ranks' different sentences, and behind it all have the same mixture. The loss even
# falls, from (mixed_first) to (mixed_last). So here comparing results finds nothing.
# Compare what goes in, once, before a long training:

everyone()
play("ranks")
inputs, _ = windows(tokens, batch, shape.context, 100 * rank)
batches_alike = is_alike(inputs), is_alike(windows(tokens, batch, shape.context, 0)[0])

batches_alike_by_rank = to_rank_0(batches_alike)
if rank == 0:
    play("kernel")
    assert batches_alike_by_rank == [(False, True)] * n_ranks

batches_alike_by_rank = to_rank_0(batches_alike)
if rank == 0:
    result("batches_alike", batches_alike_by_rank[0])

# --- What it sends --------------------------------------------------------------------

# Each block has two f and two g. In forward g sends, in backward f does: four
# all-reduces of the activations, E = batch × time × width numbers each, however many
# ranks there are. Then g of the embedding and f of the head, and three numbers a place
# for the loss:


def tensor_numbers(shape, places):
    """How many numbers a rank of a split GPT hands over to all-reduces in a step.

    places: batch x time. Without sequence parallelism; however many ranks there are.
    """
    activations = places * shape.width
    return (4 * shape.blocks + 2) * activations + 3 * places


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


# From ranklab.taught.all_reduce:


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


# Predict: Twice as many ranks: what becomes of the bytes that each rank sends in a
# step? What would become of them with a batch twice as large? And what with data
# parallelism?
#
# `traffic` counts: what the program hands over to collectives, and then what really
# leaves the ranks, message by message, with chapter 8's ring in the place of Gloo's
# all-reduce.


def step_of(model, sequence=False):
    """Forward and backward of a batch; all that a step sends."""
    inputs, targets = windows(tokens, batch, shape.context, 0)
    split_loss(model(inputs), targets).backward()
    if sequence:
        sum_replicas(model)


def by_ring(x, op=dist.ReduceOp.SUM, group=None, gloos=dist.all_reduce):
    """Sums go around chapter 8's ring; a maximum is Gloo's."""
    return ring_all_reduce(x, group) if op == dist.ReduceOp.SUM else gloos(x, op, group)


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

everyone()
play("ranks")
split = tensor_gpt(shape)
dist.barrier()
with trace() as t_gloo:
    step_of(split)
with patch.object(dist, "all_reduce", by_ring), trace() as t_ring:
    step_of(split)

places = batch * shape.context
formula_bytes = 4 * tensor_numbers(shape, places)
maximum_bytes, n_sums = 4 * places, 4 * shape.blocks + 3  # one of them is the loss's

formula_bytes_by_rank = to_rank_0(formula_bytes)
maximum_bytes_by_rank = to_rank_0(maximum_bytes)
if rank == 0:
    play("kernel")
    n_bytes, n_max = formula_bytes_by_rank[0], maximum_bytes_by_rank[0]
    result("bytes_handed_over", n_bytes)
    result("bytes_around", 2 * (n_ranks - 1) * (n_bytes - n_max))

n_sums_by_rank = to_rank_0(n_sums)
if rank == 0:
    result("sums", n_sums_by_rank[0])
    result("messages_of_a_sum", 2 * (n_ranks - 1))

# The table is the ring's: (sums) sums, (messages_of_a_sum) messages each. What is left
# under collectives is the maximum. Both counts are as foretold, to the byte: each rank
# hands over (bytes_handed_over) bytes, and around the ring all of them together send
# (bytes_around), which is 2(n − 1) times that (without the maximum).
#
# So a rank sends 2(n − 1)/n times what it hands over. Twice as many ranks: nearly the
# same, and never more than twice what it hands over. Twice the batch: twice as much,
# for these are activations. Data parallelism sends weights: there it does not change
# with the batch.
#
# One block in a picture: the fastest of four.

everyone()
play("ranks")

block, x_block = fill(SplitBlock(Shape(width=128, heads=8))), torch.randn(4, 64, 128)


def traced_block():
    """Seconds of a block's forward and backward on the slowest rank, and a trace of it."""
    dist.barrier()
    with trace() as t:
        start = time.perf_counter()
        block(x_block.requires_grad_()).square().mean().backward()
        seconds = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item(), t


t_block = min((traced_block() for _ in range(4)), key=lambda pair: pair[0])[1]

t_block_by_rank = to_rank_0(t_block)
if rank == 0:
    play("kernel")
    show(timeline(t_block_by_rank, name="one-block"))

# Each rank makes four all-reduces, two in forward and two in backward. While it sends
# it computes nothing: the next product needs the sum. (Where messages take longer than
# products, that is this machine's doing, whose ranks share their cores.) In chapter
# 12_own_ddp messages could hide behind backward. As written here, these cannot. In
# forward there is nothing else to do with the same batch. In backward there is: the
# gradient of a layer's weights does not need the sum, and Megatron-LM's code computes
# it while f's all-reduce is under way.

# --- Between the layers: sequence parallelism -----------------------------------------

# After g every rank has all activations, and computes LayerNorms and residual additions
# on all of them, the same numbers n times. And it keeps them, all of them, for
# backward. Sequence parallelism [korthikanti2023] does not. An all-reduce is a
# reduce-scatter and an all-gather (chapter 07_collectives). So put something between
# the two: after the reduce-scatter every rank has a part of the time, and computes the
# LayerNorms for that part; before the next split layer, an all-gather.


def strip(ax, title, words, by_time):
    """Half a block, twice: boxes from left to right, and what is sent between them."""
    for start, middle in ((0, "heads"), (9.4, "up, down")):
        for at, name in ((0, "norm"), (3.2, middle), (6.4, "+")):
            where = ax, start + at, 1.6, 2, slices
            if name == middle:
                bands(*where, upright=False)
            elif by_time:
                bands(*where, upright=True)
            else:
                ax.add_patch(Rectangle((start + at, -1), 1.6, 2, facecolor="#c8c8c8"))
            ax.text(start + at + 0.8, -1.5, name, ha="center", va="center", fontsize=10)
        for at, word in zip((2.4, 5.6), words):
            ax.text(start + at, 0.6, word, ha="center", va="center", fontsize=8)
            ax.text(start + at, -0.3, "→", ha="center", va="center", fontsize=14)
    ax.set(xlim=(-0.2, 17.6), ylim=(-1.9, 1.2))
    ax.set_title(title, fontsize=11)
    ax.set_axis_off()


if rank == 0:
    fig, axes = plt.subplots(2, num="sequence", figsize=(5.2, 3.2))
    strip(axes[0], "tensor parallelism", ("f", "g\nall-\nreduce"), by_time=False)
    show(strip(axes[1], "and sequence parallelism", ("all-\ngather", "reduce-\nscatter"), by_time=True))
    save_figures()

# From ranklab.taught.collectives:


def all_gather(boxes, x, group=None):
    """Fill every rank's boxes, one for each rank, with every rank's x, around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    boxes[me].copy_(x)
    for step in range(n - 1):
        mine, next_one = boxes[(me - step) % n], boxes[(me - step - 1) % n]
        sendrecv(mine, right, next_one, left, group)


def reduce_scatter(box, parts, group=None):
    """Fill every rank's box with the sum of its part of all ranks' lists, around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    sums = [part.clone() for part in parts]
    for step in reversed(range(n - 1)):
        staying, leaving = sums[(me - step) % n], sums[(me - step - 1) % n]
        incoming = torch.empty_like(staying)
        sendrecv(leaving, left, incoming, right, group)
        staying += incoming
    box.copy_(sums[me])


# A block, left to right; in each box time runs to the right, and features run down.
# What is split by features stays so. What was gray, on every rank, is now split by
# time. g becomes a reduce-scatter, f an all-gather, and each is again the other's
# adjoint, as chapter 7 has seen. (In that paper f is written f, g is f̄, and the new
# pair is called g and ḡ.)


class Gathered(torch.autograd.Function):
    """All ranks' parts of dimension 1, one after the other. Backward: reduce-scatter."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, x = group, x.contiguous()
        boxes = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        all_gather(boxes, x, group)
        return torch.cat(boxes, 1)

    @staticmethod
    def backward(ctx, gradient):
        return Scattered.apply(gradient, ctx.group), None


class Scattered(torch.autograd.Function):
    """The sum of all ranks' x, of which each gets its part of dimension 1. Backward: all-gather."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, parts = group, x.chunk(dist.get_world_size(group), 1)
        box = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        reduce_scatter(box, list(parts), group)
        return box

    @staticmethod
    def backward(ctx, gradient):
        return Gathered.apply(gradient, ctx.group), None


def gathered(x, group=None):
    """x (batch, part of the time, ...) of all ranks -> (batch, time, ...)."""
    return Gathered.apply(x, group)


def scattered(x, group=None):
    """The sum of all ranks' x (batch, time, ...), of it this rank's part of the time.

    Raises ValueError where the time cannot be dealt out in equal parts.
    """
    n = dist.get_world_size(group)
    if x.shape[1] % n:
        raise ValueError(f"{x.shape[1]} places in time cannot be dealt to {n} ranks equally.")
    return Scattered.apply(x, group)


# These are chapter 7's, made of messages, since Gloo's own reduce-scatter is an
# all-reduce in disguise.
#
# Predict: How many bytes does it send, compared with before? And what about the
# gradient of a norm's weights, which every rank computes from its own part of the time?
#
# The second one is the trap. The LayerNorms' weights, the row layers' biases and the
# places are on all ranks, and each rank's gradient is of its part of the time only.
# They must be added up, in one message before the optimizer's step:


def sum_replicas(model, group=None):
    """Add up the gradients of what every rank has a replica of, in one message.

    Only where each rank saw a part of the time: otherwise every rank has the whole sum already.
    Once in a step, after its last backward: what has been added up would be added up again.
    """
    grads = [p.grad for p in model.parameters() if not is_split(p) and p.grad is not None]
    if not grads:
        return  # on all ranks, for they train the same replicas
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    for grad, total in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(total.view_as(grad))


# Without it there is again no error, only gradients of a replica that differ from rank
# to rank:


def gradient_gap(model):
    """The largest error of a gradient."""
    pairs = zip(model.parameters(), alone.parameters())
    return max((p.grad - own_part(p, q.grad)).abs().max().item() for p, q in pairs)


everyone()
play("ranks")

model, alone = tensor_gpt(shape, sequence=True), gpt(shape)
inputs, targets = windows(tokens, batch, shape.context, 0)
split_loss(model(inputs), targets).backward()
language_loss(alone(inputs), targets).backward()
norm_gradient, gaps = model.block0.norm_1.weight.grad, []
gaps.append((gradient_gap(model), is_alike(norm_gradient)))
sum_replicas(model)
show(gaps.append((gradient_gap(model), is_alike(norm_gradient))), rank)

gaps_by_rank = to_rank_0(gaps)
if rank == 0:
    play("kernel")
    for (gap_without, alike_without), (gap_with, alike_with) in gaps_by_rank:
        assert gap_without > 1e-3 and not alike_without
        assert gap_with < 1e-5 and alike_with

# And the bytes, and what is kept for backward?


def kept_by(layer, x):
    """Bytes of what autograd keeps for the backward of layer(x), weights excepted."""
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = layer(x.requires_grad_())
    del y  # not before: it holds all that is kept
    return sum(kept.values())


everyone()
play("ranks")
split, by_sequence = tensor_gpt(shape), tensor_gpt(shape, sequence=True)
dist.barrier()
with patch.object(dist, "all_reduce", by_ring), trace() as t_sequence:
    step_of(by_sequence, sequence=True)
n_replicas = sum(p.numel() for p in by_sequence.parameters() if not is_split(p))

x_all = torch.randn(batch, shape.context, shape.width)
kept = [kept_by(each.block0, x_all) for each in (alone, split)]
show(kept.append(kept_by(by_sequence.block0, x_all[:, share(shape.context)].clone())), rank)

kept_by_rank = to_rank_0(kept)
if rank == 0:
    play("kernel")
    of_whole, of_split, of_sequence = np.mean(kept_by_rank, axis=0)
    assert of_sequence < of_split < of_whole
    result("kept_split_share", of_split / of_whole)
    result("kept_sequence_share", of_sequence / of_whole)
    assert abs(of_split / of_whole - (4 + 12 / n_ranks) / 16) < 0.02
    assert abs(of_sequence / of_whole - (2 + 2 / n_ranks + 12 / n_ranks) / 16) < 0.02

# The same number of bytes to the last one, but for the one message of `sum_replicas`.
# What a block keeps can be counted, in units of E = batch × time × width numbers.
# Replicated are the inputs and the outputs of two LayerNorms: 4 E. Split are query,
# key, value and the attention's output, 4 E, and the hidden features before and after
# the GELU, 4 E each: 12 E. So of the whole block's 16 E, tensor parallelism keeps 4 +
# 12/n, (kept_split_share) of it here. With sequence parallelism it is 2 + 2/n + 12/n,
# (kept_sequence_share). The 2 are the gathered inputs of the split layers; Megatron-LM
# gathers them a second time in backward rather than keep them [korthikanti2023].

# --- Two more mistakes ----------------------------------------------------------------

# --- The same seed --------------------------------------------------------------------

# Many programs give every rank the same seed, so that all start alike. Dropout draws
# from it, too.
#
# Predict: The hidden features are dealt out, and every rank drops a quarter of its own
# ones. All have the same seed. What is wrong with the masks, and how would you notice?

everyone()
play("ranks")
torch.manual_seed(0)
mask_same = nn.functional.dropout(torch.ones(2000, 6), 0.25) > 0
torch.manual_seed(1 + rank)
mask_own = nn.functional.dropout(torch.ones(2000, 6), 0.25) > 0

everyone()
if rank == 0:
    play("kernel")
    fig, axes = plt.subplots(2, num="masks", figsize=(5.2, 3.4), sharex=True)

mask_same_by_rank = to_rank_0(mask_same)
mask_own_by_rank = to_rank_0(mask_own)
if rank == 0:
    masks_of = {"same seed": mask_same_by_rank, "own seeds": mask_own_by_rank}
    for ax, (title, masks) in zip(axes, masks_of.items()):
        dropped = [~mask[:16].numpy() for mask in masks]
        picture = np.ones((16, 6 * n_ranks, 3))
        for r, each in enumerate(dropped):
            picture[:, 6 * r : 6 * r + 6] = pale(RANK_COLORS[r], 0.15)
            picture[:, 6 * r : 6 * r + 6][each] = pale(RANK_COLORS[r], 1.0)
        ax.imshow(picture, aspect="auto")
        ax.grid(False)
        ax.set(ylabel="place", yticks=[], title=title)
    axes[1].set_xlabel("hidden feature, in its rank's color; full color: dropped")
    axes[1].set_xticks([])
    save_figures()


def spread_of(masks):
    """The variance of how many features of a place are dropped, over that of independent ones."""
    dropped = np.concatenate([~mask.numpy() for mask in masks], axis=1)
    return dropped.sum(1).var() / (dropped.shape[1] * 0.25 * 0.75)


if rank == 0:
    same_masks = masks_of["same seed"]
    assert all((mask == same_masks[0]).all() for mask in same_masks)
    spread_same, spread_own = map(spread_of, masks_of.values())
    result("spread_same", spread_same)
    result("spread_own", spread_own)
    assert spread_same > 0.8 * n_ranks and spread_own < 1.3

# One mask, n times. Feature 0 of rank 0 is dropped whenever feature 0 of every other
# rank is: n equal masks add up. So the variance of the number of dropped features is n
# times what it should be, measured (spread_same) times (with seeds of their own:
# (spread_own)). Only a picture or a count like this one tells.
#
# And seeds of their own for all dropouts? Then what is replicated, behind g, is dropped
# differently on each rank, and the replicas are none any more. There must be two
# streams: one of each rank's own for what is split, one that all share for what is not.
# Or, since a layout should not change a training at all, draw the whole mask from the
# shared stream, and let each rank use its part:


def split_dropout(x, p, generator, whole=None, group=None):
    """Dropout of features that are dealt out: x is this rank's share of `whole` features.

    All ranks must have drawn alike from the generator so far: then the mask is that of the whole.
    Without `whole`, x has all features. For training: it always drops. Raises ValueError unless
    0 <= p < 1.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}. It is a probability, 0 or more and less than 1.")
    part = share(whole, group) if whole else slice(None)
    size = (*x.shape[:-1], whole or x.shape[-1])
    kept = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=generator)
    return x * kept[..., part] / (1 - p)


everyone()
play("ranks")
n_features, both = 6 * world_size, [torch.Generator().manual_seed(3) for _ in range(2)]
whole_mask = split_dropout(torch.ones(50, n_features), 0.1, both[0])
part_mask = split_dropout(torch.ones(50, 6), 0.1, both[1], n_features)
same_mask = torch.equal(part_mask, whole_mask[:, share(n_features)])

same_mask_by_rank = to_rank_0(same_mask)
if rank == 0:
    play("kernel")
    assert all(same_mask_by_rank)

# It draws n times as many numbers as it needs, and gives the same mask for every number
# of ranks.

# --- The norm of the gradient ---------------------------------------------------------

# Gradients are clipped by the norm of all of them. Each rank has some pieces, and a
# replica of the rest.
#
# Predict: Three ways: every rank clips by its own norm; by the root of the sum of all
# ranks' squares; or something else. Which is right?

everyone()
play("ranks")
split, alone = tensor_gpt(shape, dtype=torch.float64), gpt(shape, dtype=torch.float64)
split_loss(split(inputs), targets).backward()
language_loss(alone(inputs), targets).backward()

norm_of_rank = torch.nn.utils.get_total_norm([p.grad for p in split.parameters()])
norm_of_sum = norm_of_rank.square()
dist.all_reduce(norm_of_sum)
norm_of_sum = norm_of_sum.sqrt().item()
norm_of_whole = torch.nn.utils.get_total_norm([p.grad for p in alone.parameters()]).item()

norm_of_rank_by_rank = to_rank_0(norm_of_rank)
if rank == 0:
    play("kernel")
    own_norms = [norm.item() for norm in norm_of_rank_by_rank]

norm_of_whole_by_rank = to_rank_0(norm_of_whole)
norm_of_sum_by_rank = to_rank_0(norm_of_sum)
if rank == 0:
    true_norm, naive_norm = norm_of_whole_by_rank[0], norm_of_sum_by_rank[0]
    assert len({round(norm, 9) for norm in own_norms}) == n_ranks
    assert naive_norm > 1.001 * true_norm
    result("least_norm", round(min(own_norms), 6))
    result("most_norm", round(max(own_norms), 6))
    result("naive_norm", round(naive_norm, 6))
    result("true_norm", round(true_norm, 6))

# The ranks' own norms go from (least_norm) to (most_norm), and each rank would scale
# its replicas by another number: they drift apart. The sum of all squares is the same
# everywhere, and too large, (naive_norm) for (true_norm): it counts every replica once
# for each rank. Pieces must be added up over the ranks, replicas counted once.


def split_norm(parameters, group=None, device=None):
    """The norm of the whole model's gradient: every piece once, and every replica once.

    With sequence parallelism call it after `sum_replicas`: before, replicas' gradients differ.
    A rank without parameters calls it, too. device: where it is on a GPU.
    """
    parameters = list(parameters)
    device = device or (parameters[0].device if parameters else "cpu")
    squares = torch.zeros(2, dtype=torch.float64, device=device)  # of the pieces, of the replicas
    for p in parameters:
        if p.grad is not None:
            squares[0 if is_split(p) else 1] += p.grad.double().square().sum()
    dist.all_reduce(squares[:1], group=group)  # a view: the replicas' sum stays as it is
    return squares.sum().sqrt()


everyone()
play("ranks")
norm_gap = abs(split_norm(split.parameters()).item() - norm_of_whole)

norm_gap_by_rank = to_rank_0(norm_gap)
if rank == 0:
    play("kernel")
    assert max(norm_gap_by_rank) < 1e-12

# The same care is due wherever something is added up over "all parameters": weight
# decay that is logged, a count of parameters, a checksum. And where an optimizer looks
# at a whole matrix: AdamW looks at each number by itself; Adafactor or Muon, given a
# piece, computes something else.

# --- PyTorch's own --------------------------------------------------------------------

# PyTorch keeps the pieces in a DTensor: a tensor that knows the group, its whole shape
# and how it is dealt out. `parallelize_module` takes the whole model and a plan, which
# says by name what is split how [pytorchtp]. What the plan does not name stays a plain
# tensor, a replica on every rank. The model's code stays as it is; f and g come from
# what the plan says of inputs and outputs.


def plan_of(shape):
    """The same split, in PyTorch's words."""
    replicated = PrepareModuleInput(  # x goes into query, key and value: one f for all three
        input_layouts=Replicate(), desired_input_layouts=Replicate()
    )
    plan = {
        "embed.tokens": RowwiseParallel(input_layouts=Replicate()),  # its rows are tokens
        "head.logits": ColwiseParallel(use_local_output=False),  # a DTensor, for loss_parallel
    }
    for i in range(shape.blocks):
        columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
        plan[f"block{i}.attention"] = replicated
        plan |= {f"block{i}.{name}": ColwiseParallel() for name in columns}
        plan |= {f"block{i}.{name}": RowwiseParallel() for name in ("attention.out", "mlp.down")}
    return plan


def own_step(shape, model, inputs, targets):
    model.zero_grad()
    loss = split_cross_entropy(model(inputs), targets, shape.vocabulary)
    loss.backward()
    return loss.item()


def pytorch_step(shape, model, inputs, targets):
    model.zero_grad()
    with loss_parallel():  # cross-entropy of split logits
        loss = language_loss(model(inputs), targets)
        loss.backward()
    return loss.full_tensor().item()


def side_by_side(calls, repeats=4):
    """Median seconds of each call; they take turns."""
    times = [[] for _ in calls]
    for repeat in range(repeats + 1):
        for call, seconds in zip(calls, times):
            dist.barrier()
            start = time.perf_counter()
            call()
            if repeat > 0:  # the first time warms up
                seconds.append(time.perf_counter() - start)
    return [statistics.median(of_call) for of_call in times]


everyone()
play("ranks")
tokens_of_all = -(-96 // world_size) * world_size  # 96 or more, and the ranks divide it
wide = Shape(tokens_of_all, context=32, width=16 * world_size, heads=2 * world_size, blocks=2)
mesh = init_device_mesh("cpu", (world_size,))
own_gpt, pytorch_gpt = tensor_gpt(wide), parallelize_module(gpt(wide), mesh, plan_of(wide))
wide_batch = windows(tokens, 8, wide.context, 0)
calls = [
    lambda: own_step(wide, own_gpt, *wide_batch),
    lambda: pytorch_step(wide, pytorch_gpt, *wide_batch),
]
both_losses = [call() for call in calls]
own_and_pytorch = side_by_side(calls, repeats=3)

pairs = [(own_gpt.block0.norm_1.weight.grad, pytorch_gpt.block0.norm_1.weight.grad)]
pairs.append((own_gpt.block0.mlp.up.weight.grad, pytorch_gpt.block0.mlp.up.weight.grad.to_local()))
grads_apart = max((a - b).abs().max().item() for a, b in pairs)

both_losses_by_rank = to_rank_0(both_losses)
if rank == 0:
    play("kernel")
    own_loss, pytorch_loss = both_losses_by_rank[0]
    assert abs(own_loss - pytorch_loss) < 1e-5

grads_apart_by_rank = to_rank_0(grads_apart)
if rank == 0:
    assert max(grads_apart_by_rank) < 1e-5

own_and_pytorch_by_rank = to_rank_0(own_and_pytorch)
if rank == 0:
    own_seconds, pytorch_seconds = np.max(own_and_pytorch_by_rank, axis=0)
    result("own_over_pytorch", own_seconds / pytorch_seconds, varies=True)

# (The numbers of heads, features and tokens are multiples of the ranks here: a DTensor
# deals out features, and knows nothing of heads.) The same loss, and the same gradients
# of a piece and of a LayerNorm below it. Ours takes (own_over_pytorch) of the time: it
# does less. A DTensor asks at every operation how its result is dealt out, which
# matters less where the matrices are large (`benchmarks/model_parallel.py` has both).
# What a DTensor gives in return: the model is written once, without a word about ranks,
# the plan can change without it, and a checkpoint knows what is whose. For a model of
# your own, begin there; now you know what the plan must say.

# --- Writing with all ranks -----------------------------------------------------------

# To generate, every rank must see the next token, so all need all logits, but of one
# place only. Whoever has them writes them into zeros, and a sum makes them whole. An
# all-reduce gives every rank the same bits, and all draw with the same generator: they
# get the same token, and nobody needs to be told.


def all_logits(logits, vocabulary, group=None):
    """The whole vocabulary's logits from every rank's part of them, on every rank."""
    whole = logits.new_zeros(*logits.shape[:-1], vocabulary)
    whole[..., share(vocabulary, group, "tokens")] = logits
    dist.all_reduce(whole, group=group)  # a number and zeros: nothing is rounded
    return whole


def next_logits_of(model, shape, group=None, sequence=False):
    """What chapter 16's `generate` asks for: a function from tokens (1, time) to (vocabulary,)."""
    n = dist.get_world_size(group)

    def next_logits(tokens):
        with torch.no_grad():
            tokens = tokens[:, -shape.context :]
            last = tokens.shape[1] - 1
            if sequence:  # tokens behind the last one change nothing before them
                tokens = nn.functional.pad(tokens, (0, -tokens.shape[1] % n))
            return all_logits(model(tokens)[0, last], shape.vocabulary, group)

    return next_logits


# From ranklab.taught.layers:


def decode(tokens):
    """The text of a list of tokens."""
    return "".join("\n" if t == 0 else chr(t + 31) for t in tokens)


def generate(next_logits, prompt, length, seed=0):
    """`prompt` (str) and `length` more characters. next_logits(tokens (1, time)) -> (vocabulary,).

    Of a split model, every rank calls it, and next_logits gives every rank the same numbers.
    """
    g, tokens = torch.Generator().manual_seed(seed), encode(prompt)[None]
    for _ in range(length):
        p = torch.softmax(next_logits(tokens).double(), -1)
        tokens = torch.cat([tokens, torch.multinomial(p, 1, generator=g)[None]], 1)
    return decode(tokens[0].tolist())


# From ranklab.taught.own_ddp:


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


# Rank 0 trains the whole model for a while. Then all take their pieces of it and write,
# first together, and then each one alone with the whole model.

everyone()
play("ranks")

writer = gpt(shape, dtype=torch.float64)
if rank == 0:
    train(writer, language_loss, steps=30)
broadcast_all(writer.parameters())

model = tensor_gpt(shape, dtype=torch.float64)
with torch.no_grad():
    for p, q in zip(model.parameters(), writer.parameters()):
        p.copy_(own_part(p, q))


def of_whole_model(tokens):
    """The next logits of the model that nobody has split."""
    return writer(tokens[:, -shape.context :])[0, -1].detach()


both_ways = next_logits_of(model, shape), of_whole_model
sentences = [generate(next_logits, "The ", 12) for next_logits in both_ways]

sentences_by_rank = to_rank_0(sentences)
if rank == 0:
    play("kernel")
    written = {sentence for of_rank in sentences_by_rank for sentence in of_rank}
    assert len(written) == 1
    result("sentence", written.pop())

# Not literature yet ((sentence)), but the same letters on every rank, with the pieces
# and with the whole model.

# --- When to use which ----------------------------------------------------------------

# Three ways to use n ranks, now all of them your own. What does each one cost? Let W be
# the seconds that a step of the whole batch takes on one rank, P the parameters, L the
# blocks, T the tokens of the batch, w the width and E = T w. A message of b bytes takes
# M(b) = α + b/β, an all-reduce around the ring R(b) = 2(n − 1) M(b/n). The pipeline is
# GPipe, with m micro-batches.
#
# | way | seconds of a step | numbers sent by all ranks | weights a rank | activations a rank |
# | --- | --- | --- | --- | --- |
# | data | W/n + R(4 P) | 2(n − 1) P | all | 1/n |
# | pipeline | (m + n − 1)/m · W/n + 2(m + n − 2) M(4 E/m) | 2(n − 1) E | 1/n | 1/n |
# | tensor | W/n + (4 L + 2) R(4 E) | 2(n − 1)(4 L + 2) E | 1/n, and replicas | (4 + 12/n)/16 |
#
# A pipeline works in m + n − 1 beats, of which each rank is idle in n − 1, and between
# every two beats, forward and back, there is a message. That is the most that it can
# wait for: where a message travels while its receiver computes, as chapter 17's posted
# receives let it, less is left. A number has 4 bytes; with AdamW a weight needs 16, for
# itself, its gradient and two averages. In code, with the few terms that the table
# leaves out:


@dataclass(frozen=True)
class Machine:
    """Ranks and what joins them: latency alpha (s), bandwidth beta (bytes/s), operations/s."""

    alpha: float
    beta: float
    flops: float

    def message(self, nbytes):
        """Seconds of a message."""
        return self.alpha + nbytes / self.beta

    def all_reduce(self, nbytes, n):
        """Seconds of chapter 8's ring."""
        return 2 * (n - 1) * self.message(nbytes / n)


def parameters_of(shape):
    """Numbers in a GPT: those that tensor parallelism splits, and those that it replicates."""
    w = shape.width
    split = shape.blocks * (12 * w * w + 4 * w) + 2 * shape.vocabulary * w
    return split, shape.blocks * 6 * w + shape.context * w + 2 * w


def operations(shape, batch):
    """Of a step: a multiplication and an addition for each weight and token, three times over."""
    w, places = shape.width, batch * shape.context
    products = shape.blocks * 12 * w * w + shape.vocabulary * w
    attention = 2 * shape.blocks * shape.context * w  # for each token: scores, and mixed values
    return 3 * 2 * places * (products + attention)


def kept_numbers(shape, batch):
    """What the blocks keep for backward: numbers that are split, and numbers that are not."""
    places = batch * shape.context
    split = places * (12 * shape.width + shape.heads)
    return shape.blocks * split, shape.blocks * places * (4 * shape.width + 4)


def predicted(machine, shape, batch, n, micro_batches, buckets=1):
    """{way: seconds of a step}. buckets: in how many messages data parallelism sends."""
    work = operations(shape, batch) / n / machine.flops
    places, m = batch * shape.context, micro_batches
    nbytes = 4 * places * shape.width  # of the activations between two blocks
    gradients = 4 * sum(parameters_of(shape)) / buckets
    sums = (4 * shape.blocks + 2) * machine.all_reduce(nbytes, n)
    of_loss = machine.all_reduce(4 * places, n) + machine.all_reduce(8 * places, n)
    return {
        "data": work + buckets * machine.all_reduce(gradients, n),
        "pipeline": (m + n - 1) / m * work + 2 * (m + n - 2) * machine.message(nbytes / m),
        "tensor": work + sums + of_loss,
    }


def memory(shape, batch, n):
    """{way: (bytes of what belongs to a rank's weights, bytes of what it keeps for backward)}."""
    split, replicas = parameters_of(shape)
    kept_split, kept_alike = kept_numbers(shape, batch)
    kept = 4 * (kept_split + kept_alike) / n
    return {
        "data": (16 * (split + replicas), kept),
        "pipeline": (16 * (split + replicas) / n, kept),
        "tensor": (16 * (split / n + replicas), 4 * (kept_split / n + kept_alike)),
    }


# Predict: Which of the three sends least, for a small model and a batch of some hundred
# tokens? For a batch 32 times as large? And for a model ten times as wide?

if rank == 0:
    big = Shape(width=96, heads=8, context=32, blocks=max(4, n_ranks))
    big_batch, n_micro = 4 * n_ranks, 4
    wider = Shape(width=960, heads=8, context=32, blocks=big.blocks)
    settings = {
        "this page's model": (big, big_batch),
        "batch × 32": (big, 32 * big_batch),
        "10 × wider": (wider, big_batch),
        "10 × wider, batch ÷ 4": (wider, n_ranks),
    }
    print("MB sent                   data  pipeline   tensor")
    for what, (each, n_batch) in settings.items():
        n_parameters, n_tokens = sum(parameters_of(each)), n_batch * each.context
        through_a_cut = n_tokens * each.width
        added_up = (4 * each.blocks + 2) * through_a_cut
        sent = [8 * (n_ranks - 1) * k / 1e6 for k in (n_parameters, through_a_cut, added_up)]
        print(f"{what:22}" + "".join(f"{megabytes:9.1f}" for megabytes in sent))
        assert (added_up < n_parameters) == (n_tokens < 3 * each.width)
        assert (through_a_cut < n_parameters) == (n_tokens < 12 * each.blocks * each.width)
    save_figures()

# From ranklab.taught.messages:


def ping(nbytes, repeats=10, a=0, b=1):
    """Seconds that one message of `nbytes` bytes takes between ranks a and b.

    Half of a round trip, the fastest of `repeats`: whatever else the machine does can only
    make a message slower. Every rank calls it; ranks other than a and b get nan.
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
    return min(times[1:]) if me in (a, b) else float("nan")  # the first one warms up


# Data parallelism sends weights, P ≈ 12 L w², however large the batch is. The other two
# send activations, E = T w, however many weights there are: a pipeline E at each cut,
# forward and back, tensor parallelism 4 L + 2 times as many. So tensor parallelism
# sends less than data parallelism where T < 3 w: the tokens of the batch are fewer than
# three times the width. A pipeline does where T < 12 L w, and it pays with the bubble.
# All four cases agree.
#
# Now the times, of this page's model. α and β are chapter 6's, of two ranks while the
# others rest.

everyone()
play("ranks")


case_shape = Shape(width=96, heads=8, context=32, blocks=max(4, world_size))
case_batch, case_micro = 4 * world_size, 4
tokens_in, tokens_out = windows(tokens, case_batch, case_shape.context, 0)
ping_sizes = [4 << (2 * k) for k in range(2, 10)]
ping_seconds = [ping(nbytes, 5) for nbytes in ping_sizes]

# From ranklab.taught.messages:


def latency_bandwidth(sizes, seconds):
    """Fit T(n) = alpha + n / beta to measured times; return alpha (s) and beta (bytes/s).

    Least squares of the relative error, so that every size has the same weight.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    equations = np.stack([1 / t, n / t], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(equations, np.ones(len(t)))
    return float(alpha), float(1 / per_byte)


ping_sizes_by_rank = to_rank_0(ping_sizes)
ping_seconds_by_rank = to_rank_0(ping_seconds)
if rank == 0:
    play("kernel")
    alpha, beta = latency_bandwidth(ping_sizes_by_rank[0], ping_seconds_by_rank[0])
    result("alpha_us", 1e6 * alpha, varies=True)
    result("beta_gb", beta / 1e9, varies=True)
    result("tensor_hops", 2 * (n_ranks - 1) * (4 * big.blocks + 4))

# From ranklab.taught.own_ddp:


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


class Dealt:
    """The trained parameters of a model, dealt into buckets."""

    def __init__(self, parameters, limits=(512 << 10,), group=None, all_reduce=dist.all_reduce):
        self.trained = [p for p in parameters if p.requires_grad][::-1]
        self.limits, self.group, self.all_reduce = limits, group, all_reduce
        self.n = dist.get_world_size(group)
        self.deal(self.trained)

    def deal(self, order):
        """Deal the parameters into buckets, in this order."""
        self.buckets = in_buckets(order, *self.limits)
        self.place = {
            p: (bucket, i) for bucket in self.buckets for i, p in enumerate(bucket.parameters)
        }


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
        bucket.work = self.all_reduce(bucket.buffer, group=self.group, async_op=True)

    def finish(self):
        for bucket in self.buckets:
            if bucket.work:
                bucket.work.wait()


class Overlapped(InBuckets):
    """Puts every gradient in while backward computes the others."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.hooks = [p.register_post_accumulate_grad_hook(self.on_gradient) for p in self.trained]

    def on_gradient(self, p):
        """Autograd calls it: the gradient of p is complete."""
        self.put(p)


class InOrder(Overlapped):
    """A bucket that is full leaves when all before it have left."""

    def begin(self):
        super().begin()
        self.next = 0

    def send(self, _):
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            super().send(self.buckets[self.next])
            self.next += 1


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


def refuse_after_failure():
    raise RuntimeError(
        "A backward failed while its gradients were averaged, and its "
        "messages may be under way. Wrap the model again, on all ranks."
    )


def refuse_late_gradient():
    raise RuntimeError(
        "A gradient came after its averaging, and would stay this rank's own. "
        "With checkpoint(), use use_reentrant=False."
    )


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


def demand_equal(module, group=None):
    """Raise ValueError, on every rank, where a rank's model is not rank 0's.

    Compared are the names, shapes and types of its tensors, their order, and
    which are trained; one at least must be.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    mine = [
        f"{name} {tuple(t.shape)} {t.dtype}" + ", trained" * t.requires_grad for name, t in tensors
    ]
    of_rank = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_rank, mine, group=group)
    for r, theirs in enumerate(of_rank):
        for k, (a, b) in enumerate(zip([*of_rank[0], "missing"], [*theirs, "missing"])):
            if a != b:
                raise ValueError(
                    f"The ranks' models differ. Tensor {k} is {a} on rank 0, "
                    f"and {b} on rank {r}. Build the same model on every rank, "
                    "its layers in the same order."
                )
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("No parameter of this model is trained: there is nothing to average.")


class Replicated(nn.Module):
    """A replica of `module` on each rank, whose backward averages."""

    def __init__(
        self,
        module,
        group=None,
        all_reduce=dist.all_reduce,
        bucket_bytes=25 << 20,
        first_bytes=1 << 20,
    ):
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


def remove_all(hooks):
    """Hooks go with their wrapper: else they live as long as the model."""
    for hook in hooks:
        hook.remove()


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
            raise RuntimeError(f"No more batches on ranks {done}, but on {there}.")
        self.ahead = max(there, default=self.ahead)
        return int(max(doing))


# Predict: Here α is (alpha_us) µs and β (beta_gb) GB/s. In a step of tensor parallelism
# there are (tensor_hops) hops, one after the other. Which way will be the fastest, and
# which the slowest? And will α and β have foretold it?
#
# All three for real: chapter 12's wrapper, chapter 17's GPipe, and this chapter's
# split.

everyone()
play("ranks")

replica, mine = OwnDDP(gpt(case_shape)), share(case_batch)


def data_case():
    language_loss(replica(tokens_in[mine]), tokens_out[mine]).backward()


data_case()  # after this one, the first, it deals its buckets anew
n_buckets = len(replica.reducer.buckets)

# From ranklab.taught.layers:


def balance(costs, n):
    """Bounds that cut a chain of layers for n owners, so that the largest sum of costs is least.

    Raises ValueError where an owner would be left without a layer.
    """
    if not 1 <= n <= len(costs):
        raise ValueError(f"{n} owners for {len(costs)} layers: each needs at least one.")
    best = {j: (sum(costs[:j]), [0, j]) for j in range(1, len(costs) + 1)}  # for one owner
    for k in range(2, n + 1):
        fewer, best = best, {}  # fewer: what is best for k - 1 owners
        for j in range(k, len(costs) + 1):
            for i in range(k - 1, j):  # the last owner takes layers i to j
                largest, bounds = fewer[i]
                candidate = max(largest, sum(costs[i:j])), [*bounds, j]
                best[j] = min(best.get(j, candidate), candidate)
    return best[len(costs)][1]


# From ranklab.taught.pipeline:


def gpipe(stages, micro_batches):
    """A schedule: for each stage a list of instructions. All forwards, then all backwards."""
    numbers = range(micro_batches)
    return [[(kind, k, 0) for kind in "FB" for k in numbers] for _ in range(stages)]


def name(instruction):
    """An instruction's name, "F0"; the chunk is named if it is not chunk 0: "B2.1"."""
    kind, micro_batch, chunk = instruction
    space = " " * (len(kind) > 1)  # "send activation 0"
    return f"{kind}{space}{micro_batch}" + f".{chunk}" * (chunk > 0)


def size(schedule):
    """(stages, micro-batches, chunks of a stage) of a schedule."""
    _, micro_batches, chunks = zip(*itertools.chain(*schedule))
    return len(schedule), max(micro_batches) + 1, max(chunks) + 1


def computing(program):
    """Without the messages."""
    return [i for i in program if i[0] in {"F", "B", "I", "W"}]


def with_messages(schedule):
    """The schedule with a receive before whatever needs one, and a send after what makes one."""
    stages, _, chunks = size(schedule)
    full = [[] for _ in schedule]
    for stage, program in enumerate(schedule):
        for kind, k, chunk in computing(program):
            piece = chunk * stages + stage  # of the model, whose pieces go round the stages
            first, last = piece == 0, piece == stages * chunks - 1
            if kind == "F" and not first:
                full[stage].append(("receive activation", k, chunk))
            if kind in "BI" and not last:
                full[stage].append(("receive gradient", k, chunk))
            full[stage].append((kind, k, chunk))
            if kind == "F" and not last:
                full[stage].append(("send activation", k, chunk))
            if kind in "BI" and not first:
                full[stage].append(("send gradient", k, chunk))
    return full


def neighbor(kind, stage, stages):
    """The other stage of a message: activations go to the next one, gradients to the one before."""
    return (stage + (1 if kind in ("send activation", "receive gradient") else -1)) % stages


def demand_like(tensor, like, instruction):
    """Raise ValueError for a tensor that the other side has no room for."""
    found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, like))
    if found != wanted:
        raise ValueError(
            f"`{name(instruction)}` has a tensor of shape {found[0]} and {found[1]}, and "
            f"`like`, what a receive makes room for, is of shape {wanted[0]} and {wanted[1]}."
        )


class Messenger:
    """A rank as a stage of a pipeline: what it sends and receives, by instructions."""

    ahead = 8  # so many receives are posted at a time

    def __init__(self, like, group=None):
        self.like, self.group = like, group
        self.stage, self.stages = dist.get_rank(group), dist.get_world_size(group)
        whats = ("activation", "gradient")
        self.does = {f"send {what}": self.send for what in whats}
        self.does |= {f"receive {what}": self.receive for what in whats}

    def begin(self, program):
        """Before a step: nothing is there, and the first messages may come."""
        if self.ahead < 1:
            raise ValueError("`ahead` must be at least 1: what a stage waits for has to be posted.")
        self.box, self.under_way, self.posted = {}, {}, {}
        self.to_post = deque(i for i in program if i[0].startswith("receive"))
        for _ in range(self.ahead):
            self.post()

    def send(self, instruction):
        to = neighbor(instruction[0], self.stage, self.stages)
        tensor, tag = self.box.pop(instruction).contiguous(), int("gradient" in instruction[0])
        demand_like(tensor, self.like, instruction)
        self.end_send(to, tag)  # the one before it
        self.under_way[to, tag] = dist.isend(tensor, group=self.group, group_dst=to, tag=tag)

    def end_send(self, to, tag):
        """Wait for what is under way on a link, and forget it."""
        if (to, tag) in self.under_way:
            self.under_way.pop((to, tag)).wait()

    def post(self):
        """Make room for the message of the next receive, if there is one, and let it come."""
        if self.to_post:
            instruction = self.to_post.popleft()
            source = neighbor(instruction[0], self.stage, self.stages)
            tensor, tag = torch.empty_like(self.like), int("gradient" in instruction[0])
            work = dist.irecv(tensor, group=self.group, group_src=source, tag=tag)
            self.posted[instruction] = tensor, work

    def receive(self, instruction):
        tensor, work = self.posted.pop(instruction)
        work.wait()
        self.box[instruction] = tensor.requires_grad_("activation" in instruction[0])
        self.post()


class Worker(Messenger):
    """A rank as a stage of a pipeline: it carries out one instruction after the other.

    chunks: this stage's pieces of the model; chunk c of stage s is piece c * stages + s.
    like: what the pieces hand on for a micro-batch is of this tensor's shape, type and device.
    loss: called with the last piece's output and a micro-batch's targets; the mean over it.
    """

    def __init__(self, chunks, like, loss=None, group=None):
        super().__init__(like, group)
        self.parts, self.loss = [[chunk] for chunk in chunks], loss
        self.does |= {"F": self.forward, "B": self.backward}

    def begin(self, program, inputs, targets):
        """Before a step. Each stage uses what it needs of the micro-batches."""
        super().begin(program)
        self.inputs, self.targets = inputs, targets
        self.kept, self.losses, self.log = {}, [], []

    def ends(self, chunk):
        """Is this chunk the model's first piece? Its last one?"""
        piece = chunk * self.stages + self.stage
        return piece == 0, piece == self.stages * len(self.parts) - 1

    def forward(self, instruction):
        _, micro_batch, chunk = instruction
        which, (first, last) = instruction[1:], self.ends(chunk)
        y = self.inputs[micro_batch] if first else self.box.pop(("receive activation", *which))
        self.kept[which] = []
        for part in self.parts[chunk]:
            x = y.detach().requires_grad_(y.requires_grad)
            y = part(x)
            self.kept[which].append((part, x, y))
        if last:
            loss = self.loss(y, self.targets[micro_batch])
            self.losses.append(loss.item())
            self.kept[which][-1] = part, x, loss / len(self.targets)  # there backward begins
        else:
            self.box["send activation", *which] = y.detach()

    def backward(self, instruction):
        which = instruction[1:]
        gradient = self.box.pop(("receive gradient", *which), None)  # a loss needs none
        for _, x, y in reversed(self.kept.pop(which)):
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
            gradient = x.grad
        self.hand_back(gradient, *which)

    def hand_back(self, gradient, *which):
        """The gradient of a piece's input is for the stage before, if there is one."""
        if not self.ends(which[1])[0]:
            self.box["send gradient", *which] = gradient


def demand_parts(program, parts, what):
    """Raise ValueError unless there are as many micro-batches as in the program, of one size."""
    many, shapes = 1 + max(k for _, k, _ in program), {tuple(part.shape) for part in parts}
    if len(parts) != many or len(shapes) > 1:
        raise ValueError(
            f"The program has {many} micro-batch{'es' * (many > 1)}, and needs as many {what}, all "
            f"of one shape; there are {len(parts)}, of shapes {sorted(shapes)}."
        )


def demand_known(program, worker):
    """Raise ValueError for an instruction that a worker does not know, before it sends anything."""
    for i in program:
        if i[0] not in worker.does:
            raise ValueError(f"A {type(worker).__name__} cannot do `{name(i)}`.")


def run(program, worker, inputs, targets):
    """Forward and backward of a step: carry out a stage's program, messages included.

    inputs, targets: lists of micro-batches, of equal size; the first ones are needed on the stage
    of the first piece, the others on that of the last one. Gradients of the mean loss are added to
    .grad. Returns the losses of the micro-batches, in the program's order, on the rank of the last
    piece, [] on others. worker.log: (instruction, start, end), in seconds since the step's start.
    After an error in a step the group is of no more use: receives are still posted in it.
    """
    demand_known(program, worker)
    if worker.ends(0)[0]:
        demand_parts(program, inputs, "inputs")
    if worker.ends(len(worker.parts) - 1)[1]:
        demand_parts(program, targets, "targets")
    worker.begin(program, inputs, targets)
    zero = time.perf_counter()
    for instruction in program:
        start = time.perf_counter() - zero
        with record_function(name(instruction)):  # its name in a profile
            worker.does[instruction[0]](instruction)
        worker.log.append((instruction, start, time.perf_counter() - zero))
    for link in list(worker.under_way):
        worker.end_send(*link)
    return worker.losses


everyone()

bounds = balance([0.1] + [1.0] * case_shape.blocks + [0.1], world_size)
stage, per_micro = gpt(case_shape, *bounds[rank : rank + 2]), case_batch // case_micro
handed_on = torch.empty(per_micro, case_shape.context, case_shape.width)
worker = Worker([stage], handed_on, language_loss)
program = with_messages(gpipe(world_size, case_micro))[rank]


def pipeline_case():
    run(program, worker, tokens_in.split(per_micro), tokens_out.split(per_micro))


everyone()
tensor_model = tensor_gpt(case_shape)


def tensor_case():
    split_cross_entropy(tensor_model(tokens_in), tokens_out, case_shape.vocabulary).backward()


# Beside them two smaller things are measured, while all ranks compute: the step of one
# rank's share, for its speed; and a rehearsal, one split block with and without its
# four all-reduces. What these add is the price of a hop where it is paid: in the middle
# of a program.

everyone()
whole_case, x_case = gpt(case_shape), torch.randn(case_batch, 32, 96)


def share_of_step():
    """What a rank computes in data parallelism."""
    language_loss(whole_case(tokens_in[:4]), tokens_out[:4]).backward()


def rehearsal():
    """One split block, forward and back."""
    tensor_model.block0(x_case.requires_grad_()).sum().backward()


def silent():
    """The same, and nothing is sent."""
    with patch.object(dist, "all_reduce", lambda *args, **named: None):
        rehearsal()


def from_zero(case, model):
    model.zero_grad()
    case()


everyone()

models = replica, stage, tensor_model
cases = [partial(from_zero, *each) for each in zip((data_case, pipeline_case, tensor_case), models)]
parts = [partial(from_zero, share_of_step, whole_case), silent, rehearsal]
seconds_of = side_by_side([*parts, *cases])

seconds_of_by_rank = to_rank_0(seconds_of)
if rank == 0:
    play("kernel")
    slowest = np.max(seconds_of_by_rank, axis=0)
    (share_seconds, silent_seconds, block_seconds), measured = slowest[:3], slowest[3:]
    hop = (block_seconds - silent_seconds) / 4 / (2 * (n_ranks - 1))
    flops = operations(big, 4) / share_seconds
    at_rest, at_work = Machine(alpha, beta, flops), Machine(hop, beta, flops)
    result("hop_us", 1e6 * hop, varies=True)
    result("hop_over_alpha", hop / alpha, varies=True)
    result("gflops", flops / 1e9, varies=True)

n_buckets_by_rank = to_rank_0(n_buckets)
if rank == 0:
    sizes_of = big, big_batch, n_ranks, n_micro, n_buckets_by_rank[0]
    guesses = [predicted(machine, *sizes_of) for machine in (at_rest, at_work)]
    ways = list(guesses[0])
    resting, working = (np.array([guess[way] for way in ways]) for guess in guesses)
    fig, ax = plt.subplots(num="three-cases", figsize=(5.2, 2.8))
    bars = {"predicted, α at rest": resting, "predicted, α at work": working, "measured": measured}
    for k, ((what, seconds), color) in enumerate(zip(bars.items(), ("#d0d0d0", "#909090", "#303030"))):
        ax.bar(np.arange(3) + 0.27 * (k - 1), 1e3 * seconds, 0.25, color=color, label=what)
    ax.set_xticks(range(3), ways)
    ax.set(ylabel="time of a step (ms)")
    ax.grid(False, axis="x")
    ax.legend()
    save_figures()

if rank == 0:
    for way, rest, work in zip(ways, measured / resting, measured / working):
        result(f"{way}_at_rest", rest, varies=True)
        result(f"{way}_at_work", work, varies=True)
        assert 1 / 3 < work < 3
    result("cores", os.cpu_count(), varies=True)

# With α at rest, measured over predicted is (data_at_rest) for data parallelism,
# (pipeline_at_rest) for the pipeline and (tensor_at_rest) for tensor parallelism, which
# waits for the most messages. The hop of the rehearsal takes (hop_us) µs,
# (hop_over_alpha) times α. With it in the place of α, and nothing else changed, the
# three are (data_at_work), (pipeline_at_work) and (tensor_at_work). (For tensor
# parallelism that is the step from one block to the whole model; the other two have no
# such block in them. The pipeline does not wait for every message that the formula
# counts.) Here (cores) cores carry all ranks and all messages: each hop waits for a
# rank that has no core just now, which two ranks that play ping-pong alone do not see.
# A latency measured at rest is not the latency of a program. Measure it where it is
# paid.
#
# What still differs is in no formula: copies into buckets; the LayerNorms and residual
# additions, which tensor parallelism computes on every rank; in a pipeline, messages
# behind a computation; and on shared cores a rank in the bubble leaves its core to the
# others, so that the bubble costs less.
#
# With α, β and the speed of this machine at work, the formulas say for other models of
# this width what a step takes, and what a rank has to hold. The fastest way and the
# smallest have a star.


def starred(numbers, unit):
    """Numbers in columns, the least of them with a star."""
    least = min(numbers)
    return "".join(f"{x / unit:10.1f}{'*' if x == least else ' '}" for x in numbers)


if rank == 0:
    print(f"{f'{n_ranks} ranks':13}" + "".join(f"{way:>10} " for way in ways))
    for blocks, rows in itertools.product((big.blocks, 4 * big.blocks), (big_batch, 8 * big_batch)):
        deep = Shape(width=96, heads=8, context=32, blocks=blocks)
        seconds = predicted(at_work, deep, rows, n_ranks, n_micro)
        in_all = {way: sum(parts) for way, parts in memory(deep, rows, n_ranks).items()}
        print(f"{blocks} blocks, {rows} sequences")
        print("  step (ms)  " + starred(seconds.values(), 1e-3))
        print("  a rank (MB)" + starred(in_all.values(), 1e6))
        assert min(in_all, key=in_all.get) == "pipeline"
    save_figures()

# A rank holds least in a pipeline, an nth of everything, whatever the model. With few
# sequences data parallelism holds most, all weights; with many, tensor parallelism may,
# which keeps a quarter of each block's activations on every rank. Which way is the
# fastest, the hop and the speed decide. More sequences give all three more to compute;
# what data parallelism sends stays as it is. More blocks give tensor parallelism more
# sums to wait for.
#
# And the memory, is it foretold as well?

everyone()
play("ranks")
kept_of_rank = kept_by(tensor_model.block0, x_case.detach())
state_bytes = []
for model in models:
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()  # here it makes its averages
    averages = [t for of_p in optimizer.state.values() for t in of_p.values() if t.ndim]
    everything = [*averages, *model.parameters(), *(p.grad for p in model.parameters())]
    state_bytes.append(sum(t.nbytes for t in everything))

everyone()
if rank == 0:
    play("kernel")
    kept_split, kept_alike = kept_numbers(big, big_batch)

kept_of_rank_by_rank = to_rank_0(kept_of_rank)
if rank == 0:
    assert sum(kept_of_rank_by_rank) == 4 * (kept_split + n_ranks * kept_alike) / big.blocks
    foretold = [memory(big, big_batch, n_ranks)[way][0] for way in ways]

state_bytes_by_rank = to_rank_0(state_bytes)
if rank == 0:
    over_foretold = dict(zip(ways, np.max(state_bytes_by_rank, axis=0) / foretold))
    assert over_foretold["data"] == 1
    assert over_foretold["tensor"] < (1.02 if big.heads % n_ranks == 0 else 1.3)
    result("stage_over_foretold", float(over_foretold["pipeline"]))

# What a split block keeps for backward is what the formula says, to the byte. So are
# weights, gradients and averages in data parallelism, and nearly so in tensor
# parallelism where the ranks divide the heads. The pipeline's largest stage has
# (stage_over_foretold) times an nth: layers cannot be dealt out evenly. Not in the
# formula are the logits, which are large where the vocabulary is, and buffers.
#
# Now a larger model on machines that are not here: (billions) billion parameters, a
# batch of 16 × 1024 tokens, and 8 ranks of 10¹⁴ operations a second, with α = 10 µs. On
# which links is which way the fastest?

if rank == 0:
    large = Shape(vocabulary=96, context=1024, width=2048, heads=16, blocks=24)
    many, rows = 8, 16  # ranks, sequences in the batch


def on_link(bandwidth, micro_batches=8):
    """{way: time of a step over that of an nth of the operations}."""
    seconds = predicted(Machine(1e-5, bandwidth, 1e14), large, rows, many, micro_batches)
    return {way: s * many * 1e14 / operations(large, rows) for way, s in seconds.items()}


if rank == 0:
    links = np.geomspace(1e9, 1e12, 60)
    lines = {way: [on_link(b)[way] for b in links] for way in ways}
    lines["pipeline, m = 16"] = [on_link(b, 16)["pipeline"] for b in links]
    fig, ax = plt.subplots(num="by-bandwidth")
    styles = zip(("#222222", "#888888", "#222222", "#888888"), ("-", "-", "--", "--"))
    for (what, times), (color, style) in zip(lines.items(), styles):
        ax.semilogx(links / 1e9, times, style, color=color)
        what = "pipeline, m = 8" if what == "pipeline" else what
        ax.text(1100, times[-1], what, va="center", fontsize=10)
    for at, what, side in ((1.25, "10 Gbit Ethernet", "left"), (300, "within one host", "center")):
        ax.axvline(at, color="#c8c8c8", linewidth=6, zorder=0)
        ax.text(at, 4.06, what, ha=side, fontsize=9, color="#595959")
    ax.set(xlabel="bandwidth of a link (GB/s)", ylabel="time of a step / ideal")
    ax.set(xlim=(1, 1000), ylim=(1, 4), xticks=(1, 10, 100, 1000), xticklabels=(1, 10, 100, 1000))
    save_figures()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


if rank == 0:
    slow, fast, finer = on_link(1.25e9), on_link(3e11), on_link(3e11, 16)
    assert slow["pipeline"] < slow["data"] < slow["tensor"]
    assert fast["data"] < finer["pipeline"] < fast["tensor"] < fast["pipeline"]
    result("billions", sum(parameters_of(large)) / 1e9)
    result("slow_tensor_over_pipeline", slow["tensor"] / slow["pipeline"])
    result("fast_tensor_over_pipeline", fast["tensor"] / fast["pipeline"])
    result("fast_tensor_over_finer", fast["tensor"] / finer["pipeline"])
    for way, parts in memory(large, rows, many).items():
        result(f"gb_{way}", sum(parts) / 1e9)
    save_figures()

# On Ethernet of 10 Gbit/s, tensor parallelism takes (slow_tensor_over_pipeline) times
# as long as the pipeline, far above this picture. At 300 GB/s, within one host, it
# takes (fast_tensor_over_pipeline) of the time of a pipeline with 8 micro-batches, for
# it has no bubble, but (fast_tensor_over_finer) of that of one with 16. And data
# parallelism is faster than both, where the model fits. Of memory a rank needs
# (gb_data) GB with data parallelism, (gb_tensor) with tensor parallelism, and
# (gb_pipeline) in the pipeline. (Tensor parallelism has an nth of the weights, but of
# each block's activations a quarter on every rank, of the whole batch. With sequence
# parallelism that quarter becomes (2 + 2/n)/16. Logits are left out here, too. In
# bfloat16 all ways send half as much.)
#
# So for this batch neither time nor memory speaks for tensor parallelism. It is for
# small batches, and for large layers. With one row, as in writing a sentence, there is
# nothing to deal out to replicas, and in a pipeline all ranks but one wait at any
# moment; tensor parallelism still shares every product. In rules:
# - Is one layer too large for a rank? Tensor: of the three, only it cuts a layer.
# - Does everything fit on one rank? Data: one message a step, and it can hide behind
#   backward.
# - Does it not? Pipeline, across slow links, too: with T < 12 L w it sends least. It
#   wants a batch that can be cut into many micro-batches, and a schedule.
# - Is the batch too small for that? Tensor, between ranks that are joined as fast as
#   within one host, and not more of them than there are heads: forward waits for each
#   all-reduce.
# - In practice all three at once, each where its messages are cheap [narayanan2021].

# --- What you can do now --------------------------------------------------------------

# - Split a product by columns and by rows, and say which follows which, and why.
# - Write f and g, prove that each is the other's adjoint, and test them without a
#   model.
# - Split attention, an embedding and a cross-entropy, and say where it ends: heads are
#   whole.
# - Say the bytes of a step before you run it, and what sequence parallelism changes and
#   what it does not.
# - Find what is wrong where nothing fails: ranks with batches of their own, replicas
#   that drift, masks that repeat, a norm that counts twice.
# - Compute from α, β and the speed of a rank which way to use n ranks, and measure α
#   where it is paid.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/18_tensor.py
#
# With more hosts, the same file under `torchrun --nnodes`. Try it: put 2 ranks on each
# of two hosts, and see what the slow link does to tensor parallelism, and what to the
# pipeline. The layers are in `ranklab.taught.tensor`. For NCCL, take its own
# reduce-scatter and all-gather in place of chapter 7's.

# --- Where to read on -----------------------------------------------------------------

# - [shoeybi2019]: Megatron-LM, where column, row, f and g come from, with all that this
#   chapter leaves out for GPUs.
# - [korthikanti2023]: sequence parallelism, and a count of activations, byte by byte.
# - [narayanan2021]: tensor, pipeline and data parallelism together on thousands of
#   GPUs, with rules for which goes where.
# - [pytorchtp]: PyTorch's `parallelize_module` and its plans.

leave_group()
