# Chapter 18 of Many Ranks, One Model, as one script. Generated from book/18_tensor.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 18_tensor.py
#     torchrun --standalone --nproc-per-node 4 18_tensor.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 18_tensor.py
#     mpiexec -n 4 python 18_tensor.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install matplotlib numpy torch vl-convert-python  (for mpiexec also: mpich mpi4py)

import html
import io
import itertools
import json
import os
import random
import re
import socket
import sys
import time
import zlib
from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
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
from torch.autograd import gradcheck
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.flop_counter import FlopCounterMode


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
store = next(dist.rendezvous("env://"))[0]
device, backend = choose_together()
if device.type == "cuda":
    torch.cuda.set_device(device)
    torch.set_default_device(device)  # what a rank makes lies on its card
if device.type == "cuda" and backend == "gloo":
    send_over_host()
form_groups()


playing = "kernel"
APART = ["narrow", "one", "width"]  # the kernel and the ranks have one each
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


# === Tensor parallelism: one layer, several owners ====================================

# A layer is too large for one rank, or too slow. How can several ranks own it together,
# and compute what the whole layer would have computed?
#
# 35 minutes to read, 14 predictions · 20 seconds to run · stands on chapter 8 and
# chapter 16
#
# Chapter 16 cuts a model between its layers. Here the cut goes through every layer:
# each rank has some columns of this matrix and some rows of that one, and no rank
# multiplies by a whole matrix. That is tensor parallelism.
#
# At the end all of a GPT is split in this way, from the embedding to the loss, and it
# trains to the weights of the whole model. You can say how many bytes a step sends
# before you run it, and whether the messages take longer than the products.

if rank == 0:
    n_ranks = world_size


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# --- A product, cut two ways ----------------------------------------------------------

# A layer is a product of matrices, X A. X has a row for each token, and A holds the
# layer's weights. There are two ways to share A.
#
# By columns. A = [A₀ A₁ …], side by side. Then X A = [X A₀, X A₁, …]: every rank needs
# all of X and computes some columns of the product. No message. An elementwise
# function, such as the tanh below, can be applied to the columns where they are.
#
# By rows. A₀ above A₁ above …, and X cut by columns to match. Then X A = X₀ A₀ + X₁ A₁
# + …: every rank needs only the columns of X that meet its rows. What it computes has
# the shape of the product, but is one term of a sum. The sum is an all-reduce.
#
# Predict: An MLP multiplies, applies a nonlinear function, and multiplies again: H =
# tanh(X A), Z = H B. A is cut by columns, and B by rows. How many messages are needed
# in between?

everyone()
if rank == 0:
    print("\n## A product, cut two ways\n")

play("ranks")
torch.manual_seed(0)  # all ranks draw the same matrices
sizes = (3, 8), (8, 24), (24, 8)
X, A, B = (torch.randn(size, dtype=torch.float64) for size in sizes)
mine = slice(24 * rank // world_size, 24 * (rank + 1) // world_size)

H_mine = torch.tanh(X @ A[:, mine])  # by columns: some columns of H
term = H_mine @ B[mine]  # by rows: just the columns that they need
Z = term.clone()
dist.all_reduce(Z)
product_error = (Z - torch.tanh(X @ A) @ B).abs().max().item()

# None. The columns of H that a rank has computed are exactly those that its rows of B
# wait for. Column, then row: two layers, and one sum at the end.
#
# With A by rows the sum would be needed in the middle: tanh(a + b) is not tanh a + tanh
# b, so the terms must be added up before the tanh.

everyone()
assert product_error < 1e-12
rows = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
too_late = torch.tanh(X[:, rows] @ A[rows])
dist.all_reduce(too_late)
assert (too_late - torch.tanh(X @ A)).abs().max() > 0.1


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


def bands(ax, x, width, height, slices, upright):
    """A matrix at x, cut into a band for each rank."""
    n = slices[-1].stop
    for r, each in enumerate(slices):
        a, b = each.start / n, (each.stop - each.start) / n
        at = x + a * width, -height / 2
        size = b * width, height
        if not upright:
            at = x, height / 2 - (a + b) * height
            size = width, b * height
        color = pale(RANK_COLORS[r], 0.6)
        ax.add_patch(Rectangle(at, *size, fc=color, ec="white"))


def copies(ax, x):
    """The same shape once in each rank's color, one behind the other."""
    for r in reversed(range(n_ranks)):
        d, color = 0.9 * r / n_ranks, pale(RANK_COLORS[r], 0.6)
        ax.add_patch(Rectangle((x + d, d - 1), 1.3, 1.2, fc=color, ec="white"))


mine_by_rank = to_rank_0(mine)
if rank == 0:
    play("kernel")
    slices, middle = mine_by_rank, {"ha": "center", "va": "center"}
    fig, ax = plt.subplots(num="column-then-row", figsize=(5.2, 2.1))
    for at in (0, 18.2):
        ax.add_patch(Rectangle((at, -0.6), 1.3, 1.2, facecolor="#c8c8c8"))
    for at in (2.6, 14.75):
        copies(ax, at)
    for at, wide, high in ((5.3, 2.8, 1.3), (9.2, 2.8, 1.2), (12.6, 1.3, 2.8)):
        bands(ax, at, wide, high, slices, upright=at < 12)
    for at, sign in zip((1.95, 5.0, 8.65, 12.3, 14.3, 17.5), "→·→·=→"):
        ax.text(at, 0, sign, fontsize=14, **middle)
    for at, what in ((1.95, "f"), (8.65, "tanh"), (17.5, "g")):
        ax.text(at, 0.9, what, fontsize=12, style="italic", **middle)
    names = ("X\n", "copies\nof X", "A, by\ncolumns", "H\n", "B, by\nrows",
             "terms\n", "Z, the\nsum")
    for at, what in zip((0.65, 3.6, 6.7, 10.6, 13.25, 15.6, 18.85), names):
        ax.text(at, -2.05, what, **middle)
    ax.set(xlim=(-0.2, 19.7), ylim=(-2.4, 1.8))
    ax.set_title("a rank's columns of H meet its own rows of B", size=11)
    ax.set_axis_off()
    save_figures()

# In color is what one rank computes with, in gray what all ranks have alike. Two steps
# have names: f copies X to every rank, and g adds up the ranks' terms.

# --- f and g --------------------------------------------------------------------------

# That was the forward pass. In backward, the gradient of a matrix that a rank owns
# needs the gradient of Z, which every rank has: they all compute the same loss from the
# same Z. So there is nothing to send for the weights. But X comes from an earlier
# layer, which waits for the gradient of X.
#
# Predict: Every rank lets autograd compute the gradient of X from its term. Is it the
# gradient of the whole?


def branch(x):
    """This rank's term of the MLP."""
    return torch.tanh(x @ A[:, mine]) @ B[mine]


everyone()
if rank == 0:
    print("\n## f and g\n")

play("ranks")

X_whole, X_mine = (X.clone().requires_grad_() for _ in range(2))
(torch.tanh(X_whole @ A) @ B).square().sum().backward()  # the loss: Z's squares
branch(X_mine).backward(2 * Z)  # its gradient, the same on all ranks
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
# ends. So f and g, named in Megatron-LM [shoeybi2019], each send in one direction:
#
# | | forward | backward |
# | --- | --- | --- |
# | f, where x goes into the parts | as it is | all-reduce |
# | g, where the terms come together | all-reduce | as it is |
#
# Read f's row from the right: it is g's row. That is no accident. Take one number and
# two ranks. To copy it is to multiply by the column (1, 1); to add two numbers up is to
# multiply by the row (1, 1). One matrix is the other's transpose, and backward
# multiplies by the transpose.
#
# The same without matrices: f makes n parts of one tensor, by copying; g makes one
# tensor of n parts, by adding. Both are linear, and backward goes through the adjoint
# f*, the map for which ⟨f(x), y⟩ = ⟨x, f*(y)⟩:
#
# $$ \langle f(x), y\rangle = \sum_r \langle x, y_r\rangle = \Big\langle x, \sum_r y_r \Big\rangle
# = \langle x, g(y)\rangle . $$
#
# So f* = g, and g* = f. In the code each one's backward is the other one's forward.


class Copied(torch.autograd.Function):
    """f: x goes into the parts. Backward: the sum of what comes out of them."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return Summed.apply(gradient, ctx.group), None


class Summed(torch.autograd.Function):
    """g: the parts are added up. Backward: the gradient, to every part."""

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


# `Summed` adds up a clone, so that nobody's input is changed. The clone is contiguous,
# because an all-reduce adds memory to memory: a transposed tensor has its numbers in
# another order, and a plain `clone()` keeps that order.

everyone()
play("ranks")
x = torch.randn(5, dtype=torch.float64)  # all ranks draw on from the same seed
own = torch.Generator(device).manual_seed(100 + rank)
y = torch.randn(5, dtype=torch.float64, generator=own)
over_parts = summed((copied(x) * y).sum())  # <f(x), y>, a sum over all ranks
over_one = (x * summed(y)).sum()  # <x, g(y)>
assert torch.allclose(over_parts, over_one, rtol=1e-12)

# The second check is of derivatives: `gradcheck` moves each number of x a little up and
# down, sees what becomes of the result, and compares that with backward. All ranks move
# the same number at the same time, for they have the same x. So the whole function is
# checked, x in, Z out.
#
# Predict: Does the check notice if f is left out? And if g is? And what if g is
# replaced by an all-reduce whose backward is an all-reduce, too?


def passes(function):
    start = X[:1].clone().requires_grad_()
    return gradcheck(function, start, raise_exception=False)


everyone()

with_both = passes(lambda x: summed(branch(copied(x))))
without_f = passes(lambda x: summed(branch(x)))
without_g = passes(lambda x: branch(copied(x)))


class AsInChapter7(Summed):
    @staticmethod
    def backward(ctx, gradient):
        return Summed.apply(gradient, ctx.group), None


everyone()

assert with_both and not without_f and not without_g
x = X.clone().requires_grad_()
AsInChapter7.apply(branch(copied(x)), None).square().sum().backward()
assert torch.allclose(x.grad, world_size * X_whole.grad)

# From ranklab.taught.layers:


def timed(passes, repeats):
    """Of each of `passes` and repeat: seconds (by the clock, of computing).

    All ranks call it together. The passes take turns; the first turn warms up.
    """
    took = [[] for _ in passes]
    for _ in range(repeats + 1):
        for run, seconds in zip(passes, took):
            dist.barrier()
            clock, computing = time.perf_counter(), time.process_time()
            run()
            torch.cuda.is_initialized() and torch.cuda.synchronize()
            computing = time.process_time() - computing
            dist.barrier()
            seconds.append((time.perf_counter() - clock, computing))
    return [seconds[1:] for seconds in took]


# It notices both. Without f the forward pass is right, to the last digit, and a
# training would run, with wrong gradients for every layer below. Without g every rank
# has its own term for a result, and backward is the derivative of a function that no
# rank has computed.
#
# The other all-reduce multiplies whatever goes back through it by n, once in each pair
# of layers. It is the one in the table of chapter 7, and PyTorch's
# `torch.distributed.nn.functional.all_reduce`. There n results belong to n losses, and
# each counts. Here all n results are one Z, and the n losses are one loss, computed n
# times.

# --- Is it faster? --------------------------------------------------------------------

# One rank computes an MLP, forward and backward. Then two ranks share it, half of the
# hidden features each. Once more two ranks do, and leave the two all-reduces out: the
# result is wrong, but the time says what the messages cost. Each way is run several
# times, in turns, while the other ranks wait.
#
# Predict: Two ranks on two cores have half of the work each. By how much are they
# faster than one, for an MLP of width 96? And for one of width 768?

everyone()
if rank == 0:
    print("\n## Is it faster?\n")

pair, rows = dist.new_group([0, 1]), 128


def mlp_pass(width, owners, send=True):
    """Forward and backward of an MLP whose hidden features are dealt out."""
    up = torch.randn(width, 4 * width // owners, requires_grad=True)
    down = torch.randn(4 * width // owners, width, requires_grad=True)
    x = torch.randn(rows, width, requires_grad=True)
    f, g = (copied, summed) if send else (lambda x, _: x,) * 2
    def run():
        g(torch.tanh(f(x, pair) @ up) @ down, pair).sum().backward()
    return run if rank < owners else lambda: None


ways = (1, False), (2, False), (2, True)  # owners; do they send?
widths, repeats = (96, 768), (20, 5)
took = [timed([mlp_pass(w, *way) for way in ways], k)
        for w, k in zip(widths, repeats)]


def seconds_of(of_width):
    """(way, repeat): by the clock, of the slowest rank."""
    return np.array(of_width)[..., 0].max(0)


took_by_rank = to_rank_0(took)
if rank == 0:
    play("kernel")
    by_width = [seconds_of(each) for each in zip(*took_by_rank)]
    fig, axes = plt.subplots(1, 2, num="two-against-one", figsize=(5.2, 2.8),
                             sharey=True)
    for ax, width, seconds in zip(axes, (96, 768), by_width):
        one, silent, both = seconds.min(1) / seconds[0].min()
        silent = min(silent, both)
        done = ax.bar((0, 1), (one, silent), 0.6, color="#909090")
        sent = ax.bar(1, both - silent, 0.6, silent, fc="w", ec="k", hatch="//")
        ax.bar_label(sent, [f"{both:.2f}"])
        ax.set_xticks((0, 1), ("one rank", "two ranks"))
        ax.set_title(f"width {width}: {1 - silent / both:.0%} messages", size=11)
        ax.margins(y=0.12)
    axes[0].set_ylabel("time, one rank's = 1")
    words = "computing", "messages"
    fig.legend((done, sent), words, loc="outside lower center", ncols=2)
    save_figures()


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


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
    narrow, wide = (seconds.min(1) for seconds in by_width)
    shares = [1 - silent / both for _, silent, both in (narrow, wide)]
    sent_share = np.maximum(shares, 0)
    if cores_are_free() and wide[0] / wide[1] > 1.5:  # two ranks do have two cores
        assert sent_share[1] < sent_share[0] and wide[0] / wide[2] > 1.1
    result("narrow_speedup", narrow[0] / narrow[2], varies=True)
    result("wide_speedup", wide[0] / wide[2], varies=True)
    result("wide_silent", wide[0] / wide[1], varies=True)
    result("narrow_sent", 100 * sent_share[0], varies=True)
    result("wide_sent", 100 * sent_share[1], varies=True)
    result("cores", os.cpu_count(), varies=True)
    save_figures()

# The hatched parts are the point. Of the two ranks' time, the messages, waiting
# included, take (narrow_sent) % for the narrow layer, and (wide_sent) % for the wide
# one. Twice the width is twice the bytes, but four times the operations: below, that
# becomes a formula.
#
# A bar is the best of the repeats. At width 768, on (cores) cores, two ranks are
# (wide_speedup) times as fast as one, where (wide_silent) is what the cores give when
# nothing is sent. At width 96 it is (narrow_speedup). Below 1 means slower.
#
# More ranks than cores would gain nothing, so the rest of this chapter asks what four
# ranks compute and send, and not how fast.

# --- Layers that know their part ------------------------------------------------------

# Now as modules. They must begin with the weights of the whole model, whatever the
# number of ranks, or there is nothing to compare them with. Chapter 16's `drawn(name,
# shape)` gives the whole matrix of that name, always the same one; a rank keeps its
# piece, drops the rest, and goes on to the next.
#
# Four short tools do this. A `Piece` is a parameter that remembers which slice of the
# whole it is. `share` says which slice is this rank's, `own_part` cuts it out of a
# whole tensor, and `fill` does so for every parameter of a model.


class Piece(nn.Parameter):
    """A parameter that is slice `part` along `dim` of one of shape `whole`."""

    def __deepcopy__(self, memo):  # or a copy of a model would forget it
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


def is_split(p):
    """Is p a piece, and not a replica that every rank has?"""
    return hasattr(p, "part")  # torch.load gives it back, but no Piece


# From ranklab.taught.layers:


def drawn(name, sizes, seed=0):
    """A parameter's first value, float64; name, sizes and seed alone decide."""
    if name.endswith("bias"):
        return torch.zeros(sizes, dtype=torch.float64)
    if "norm" in name:
        return torch.ones(sizes, dtype=torch.float64)
    number = zlib.crc32(f"{seed} {name}".encode())  # hash() differs by process
    g = torch.Generator().manual_seed(number)
    value = torch.randn(sizes, dtype=torch.float64, generator=g, device="cpu")
    return value * sizes[-1] ** -0.5  # outputs about as large as inputs


def share(n, group=None, what="features"):
    """This rank's slice of n. ValueError where a rank would get nothing."""
    r, size = dist.get_rank(group), dist.get_world_size(group)
    if n < size:
        raise ValueError(f"{n} {what} cannot be dealt to {size} ranks.")
    return slice(n * r // size, n * (r + 1) // size)


def own_part(p, whole):
    """What a rank's p is, of a tensor that belongs to the whole parameter."""
    size = p.shape[p.dim] if is_split(p) else None
    return whole.narrow(p.dim, p.part.start, size) if is_split(p) else whole


def fill(model, seed=0):
    """Give every parameter its part of what the whole model begins with."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            sizes = p.whole if is_split(p) else p.shape
            p.copy_(own_part(p, drawn(name, sizes, seed)))
    return model


# The way back is needed for a checkpoint: a tensor of zeros takes each rank's part, and
# a sum makes it whole.


def joined(p, part, group=None):
    """The whole, on every rank, of which `part` is own_part(p, whole)."""
    if not is_split(p):
        return part.detach().clone()
    whole = part.new_zeros(p.whole)
    own_part(p, whole).copy_(part.detach())
    dist.all_reduce(whole, group=group)  # a number and zeros: exact
    return whole


# Now the two layers. A column layer deals out its outputs, a row layer its inputs.
# PyTorch's `nn.Linear` stores its matrix as (outputs, inputs): the columns of A are the
# rows of `weight`. `enter` is f and `leave` is g; sequence parallelism, further below,
# puts others there.


class ColumnLinear(nn.Module):
    """A linear layer of whose outputs this rank has a part; see `fill`.

    enter: what is done to x before; None: nothing, x has been through it.
    part: which outputs are this rank's, a slice.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None,
                 enter=copied):
        super().__init__()
        self.group, self.enter = group, enter
        part = part or share(n_out, group)
        self.weight = piece((n_out, n_in), 0, part)
        self.bias = piece((n_out,), 0, part) if bias else None

    def forward(self, x):
        x = self.enter(x, self.group) if self.enter else x
        return nn.functional.linear(x, self.weight, self.bias)


# The row layer is the mirror image: nothing before the product, and g behind it.


class RowLinear(nn.Module):
    """A linear layer of whose inputs this rank has a part; see `fill`.

    leave: how the ranks' outputs are added up.
    """

    def __init__(self, n_in, n_out, group=None, bias=True, part=None,
                 leave=summed):
        super().__init__()
        self.group, self.leave = group, leave
        self.weight = piece((n_out, n_in), 1, part or share(n_in, group))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x):
        y = nn.functional.linear(x, self.weight)  # the bias comes later
        y = self.leave(y, self.group)
        return y if self.bias is None else y + self.bias


# The bias is added after the sum. Added to each term, it would count n times, and with
# n = 1, where one tests first, it would be right.


class SplitMLP(nn.Module):
    """A block's MLP, its hidden features dealt out; width in, width out."""

    def __init__(self, width, hidden, group=None, enter=copied, leave=summed):
        super().__init__()
        self.up = ColumnLinear(width, hidden, group, enter=enter)
        self.down = RowLinear(hidden, width, group, leave=leave)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


# From ranklab.taught.layers:


class MLP(nn.Module):
    """(..., width) -> the same: up to `hidden` features, GELU, and down."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


# Is it right? We compare it with its twin, the whole layer: all outputs and all
# gradients, piece by piece, with a number of hidden features that the ranks do not
# divide.


def errors(split, whole, x):
    """The largest error of a split layer: outputs, and all gradients."""
    xs = [x.clone().requires_grad_() for _ in range(2)]
    outs = [layer(each) for layer, each in zip((split, whole), xs)]
    for out in outs:
        out.square().sum().backward()
    pairs = [outs, [each.grad for each in xs]]
    for p, q in zip(split.parameters(), whole.parameters()):
        pairs.append((p.grad, own_part(p, q.grad)))
    return max((a - b).abs().max().item() for a, b in pairs)


everyone()
if rank == 0:
    print("\n## Layers that know their part\n")

play("ranks")

some = torch.randn(2, 6, 8, dtype=torch.float64)
sizes = 8, 4 * world_size + 3
split_mlp, mlp = (fill(kind(*sizes).double()) for kind in (SplitMLP, MLP))
mlp_error = errors(split_mlp, mlp, some)
whole_again = joined(split_mlp.up.weight, split_mlp.up.weight)

everyone()
assert mlp_error < 1e-11
assert torch.equal(whole_again, mlp.up.weight)


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


# --- Column after column --------------------------------------------------------------

# Predict: Somebody splits both layers by columns: it is the simpler one, it sends
# nothing. What happens?

everyone()
with may_fail():
    up, down = (fill(ColumnLinear(*n).double()) for n in ((8, 32), (32, 8)))
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


def attend(q, k, v):
    """Causal attention; all (batch, heads, time, size)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


# Now it runs, and every rank has another result, each computed from its own features
# alone. No shape, no error tells. To find it, compare the ranks: what should be the
# same on all of them, is it? What went in is, what came out is not. The right repair is
# to split the second layer by rows. Only where a layer must see all features at once,
# as a LayerNorm over the hidden features would, gather them first, and pay a message
# for it.

# --- Attention by heads ---------------------------------------------------------------

# Attention looks at all features of a head at once, and at nothing of the others. So
# deal out heads, whole ones: query, key and value by columns, the output by rows.
#
# Predict: Query, key and value are three column layers. How many all-reduces does
# attention make in backward? And must the ranks divide the number of heads?


class SplitAttention(nn.Module):
    """Attention whose heads are dealt out: (batch, time, width) -> the same."""

    def __init__(self, width, heads, size, group=None, enter=copied,
                 leave=summed):
        super().__init__()
        mine = share(heads, group, "heads")
        part = slice(mine.start * size, mine.stop * size)
        self.size, self.group, self.enter = size, group, enter
        kinds = {"bias": False, "part": part, "enter": None}
        self.query, self.key, self.value = (
            ColumnLinear(width, heads * size, group, **kinds) for _ in range(3)
        )
        self.out = RowLinear(heads * size, width, group, part=part, leave=leave)

    def forward(self, x):
        x = self.enter(x, self.group)  # f once for all three
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


# From ranklab.taught.layers:


class Attention(nn.Module):
    """(batch, time, width) -> the same; `heads` heads of `size` features."""

    def __init__(self, width, heads, size):
        super().__init__()
        self.size = size
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, heads * size, bias=False)
        self.value = nn.Linear(width, heads * size, bias=False)
        self.out = nn.Linear(heads * size, width)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


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
    from ranklab import trace, traffic
except ImportError:
    trace = untraced
    traffic = left_out("traffic")

everyone()
if rank == 0:
    print("\n## Attention by heads\n")

play("ranks")

heads = world_size + 1
sizes = 8, heads, 4
unequal, attention = (
    fill(kind(*sizes).double()) for kind in (SplitAttention, Attention)
)
with trace() as t_attention:
    assert errors(unequal, attention, some) < 1e-11
own_heads = unequal.query.weight.shape[0] // 4


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


# One, because x goes through f once, and autograd adds up the three gradients before f
# sends their sum. And the ranks need not divide the heads: here is one head more than
# there are ranks. One rank has two heads, and the others wait for it in g.
#
# Fewer heads than ranks are refused:

everyone()
with may_fail():
    show(SplitAttention(8, world_size - 1, 4), rank)

# A head could be cut, by its features, but then each score is a sum of terms on several
# ranks. It must be added up before the softmax: an all-reduce of time × time numbers
# for each head, where a whole head needs none. So the number of heads is the first
# limit of tensor parallelism.
#
# In grouped-query attention [ainslie2023] several query heads share one key and value
# head. There the limit is the number of those. Beyond it, ranks hold replicas and must
# add up their gradients.

everyone()
q, k = torch.randn(2, 6, 4 * world_size, dtype=torch.float64)
scores = summed(q[:, rank::world_size] @ k[:, rank::world_size].T)
assert torch.allclose(scores, q @ k.T)
assert scores.numel() == 6 * 6  # time x time, for one head

# --- The vocabulary -------------------------------------------------------------------

# The embedding is a table, a row for each token. Deal out the rows. A rank looks up the
# tokens that it has and puts zeros for all others; the sum, g, has each row once.


class VocabularyEmbedding(nn.Module):
    """An embedding whose rows, one for each token, are dealt out.

    A token outside of the vocabulary is nobody's: it gets zeros, and no error.
    """

    def __init__(self, vocabulary, width, group=None, leave=summed):
        super().__init__()
        self.part = share(vocabulary, group, "tokens")
        self.group, self.leave = group, leave
        self.weight = piece((vocabulary, width), 0, self.part)

    def forward(self, tokens):
        mine = (self.part.start <= tokens) & (tokens < self.part.stop)
        at = (tokens - self.part.start).where(mine, 0)
        rows = nn.functional.embedding(at, self.weight)
        return self.leave(rows.where(mine[..., None], 0), self.group)


# The last layer, which makes the logits, is split by columns: every rank computes the
# logits of its tokens. The cross-entropy needs, for each place, the logarithm of a sum
# over all tokens, and the logit of the right one:
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
    """Mean cross-entropy, on all ranks, of logits with their tokens dealt out.

    logits (batch, time, this rank's part), targets (batch, time), not checked.
    """
    part = share(vocabulary, group, "tokens")
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    shifted = logits - largest[..., None]
    mine = (part.start <= targets) & (targets < part.stop)
    column = (targets - part.start).where(mine, 0)[..., None]
    at_target = shifted.gather(-1, column)[..., 0].where(mine, 0)
    two = torch.stack([shifted.exp().sum(-1), at_target])
    total, of_target = summed(two, group)  # two numbers for each place
    return (total.log() - of_target).mean()


# From ranklab.taught.layers:


def head_size(shape):
    """The features of a head. ValueError if the heads cannot share evenly."""
    if shape.width % shape.heads:
        what = f"{shape.width} features evenly."
        raise ValueError(f"{shape.heads} heads cannot share {what}")
    return shape.width // shape.heads


class Block(nn.Module):
    """(batch, time, width) -> the same: attention and MLP, each added to x."""

    def __init__(self, shape):
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads, head_size(shape))
        self.mlp = MLP(shape.width, 4 * shape.width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


# Three numbers for each place, m and the two sums, instead of one for each token of the
# vocabulary [shoeybi2019]. The gradient is free: in backward g sends nothing, and each
# rank has the gradient of its own logits. And m may be a constant to autograd: it is in
# both terms and cancels.

# --- A GPT that no rank holds ---------------------------------------------------------

# A block is two pairs, a column and a row layer each, between an f and a g. What lies
# between the pairs, the LayerNorms and the residual additions, every rank computes
# alike, on the whole width: those are replicas. Skip `sequence`, `gathered` and
# `scattered`: they come further below.


class SplitBlock(Block):
    """Chapter 16's block, attention and MLP split; norms are on every rank."""

    def __init__(self, shape, group=None, enter=copied, leave=summed):
        nn.Module.__init__(self)  # not Block's, which makes the whole layers
        width, heads = shape.width, shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        how = group, enter, leave
        self.attention = SplitAttention(width, heads, head_size(shape), *how)
        self.mlp = SplitMLP(width, 4 * width, *how)


class SplitEmbed(nn.Module):
    """Tokens (batch, time) -> vectors; of a part of the time if `sequence`."""

    def __init__(self, shape, group=None, sequence=False):
        super().__init__()
        self.group, self.sequence = group, sequence
        leave = scattered if sequence else summed
        sizes = shape.vocabulary, shape.width
        self.tokens = VocabularyEmbedding(*sizes, group, leave)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        part = slice(tokens.shape[1])
        if self.sequence:
            part = share(part.stop, self.group, "places in time")
        return self.tokens(tokens) + self.places.weight[part]


class SplitHead(nn.Module):
    """Vectors -> this rank's logits, (batch, time, part of the vocabulary)."""

    def __init__(self, shape, group=None, enter=copied):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        sizes = shape.width, shape.vocabulary
        self.logits = ColumnLinear(*sizes, group, bias=False, enter=enter)

    def forward(self, x):
        return self.logits(self.norm(x))


def tensor_gpt(shape, group=None, seed=0, dtype=torch.float32, sequence=False):
    """Chapter 16's GPT, its layers split over the group: same names, weights.

    It gives this rank's part of the logits. sequence: between split layers a
    rank has a part of the time. ValueError where something cannot be dealt out.
    """
    n = dist.get_world_size(group)
    if sequence and shape.context % n:
        what = f"A context of {shape.context}"
        raise ValueError(f"{what} cannot be dealt to {n} ranks equally.")
    enter, leave = (gathered, scattered) if sequence else (copied, summed)
    layers = {"embed": SplitEmbed(shape, group, sequence)}
    for i in range(shape.blocks):
        layers[f"block{i}"] = SplitBlock(shape, group, enter, leave)
    layers |= {"head": SplitHead(shape, group, enter)}
    model = nn.Sequential(OrderedDict(layers)).to(dtype)
    return fill(model, seed)


# From ranklab.taught.layers:


def prose():
    """The text of Python's own documentation: a str of plain ASCII."""
    from pydoc_data.topics import topics  # a large module

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def encode(text):
    """Characters as int64 tokens: 0 ends a line, 1 is a space, 95 a tilde."""
    return torch.tensor([0 if c == "\n" else ord(c) - 31 for c in text])


def windows(tokens, batch, context, seed):
    """Inputs and targets, (batch, context): windows of text, and one later."""
    g = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):  # where the generator is
        starts = torch.randint(len(tokens) - context, (batch, 1), generator=g)
        rows = tokens[starts + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


@dataclass(frozen=True)
class Shape:
    """The numbers that make a GPT: `width` features a token, `heads` heads."""

    vocabulary: int = 96
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 4


# Now the twin. Groups of two ranks, of three, and of all train the same GPT in float64
# on Python's documentation, and the whole model trains beside them. It has 8 heads,
# which 3 ranks do not share equally.
#
# Predict: The ranks add in another order than the whole model does. After some steps of
# SGD, how large will the difference be: bits, percent?

everyone()
if rank == 0:
    print("\n## A GPT that no rank holds\n")

context = 24 // world_size * world_size  # the ranks can share it, further below
shape, batch = Shape(width=32, heads=8, context=context, blocks=2), 4
tokens = encode(prose()[:50_000])


def train(model, loss_of, steps=3, first=0):
    """Train; the loss of each step. first: the seed of the first batch."""
    losses = []
    for step in range(first, first + steps):
        inputs, targets = windows(tokens, batch, shape.context, step)
        loss = loss_of(model(inputs), targets)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.3 * p.grad
        losses.append(loss.item())
    return losses


def loss_over(group):
    """The loss of logits that are dealt out to a group."""
    return lambda z, y: split_cross_entropy(z, y, shape.vocabulary, group)


# From ranklab.taught.layers:


class Embed(nn.Module):
    """Tokens (batch, time) -> (batch, time, width), token plus place."""

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
    """Layers `first` to `last` (excluded) of a GPT, an nn.Sequential.

    Layer 0 embeds, the last one is the head. The names and initial weights of a
    layer are the same in whatever slice it stands.
    """
    blocks = [(f"block{i}", Block) for i in range(shape.blocks)]
    makers = [("embed", Embed), *blocks, ("head", Head)]
    layers = OrderedDict((name, make(shape)) for name, make in makers[first:last])
    model = nn.Sequential(layers).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(drawn(name, p.shape, seed))
    return model


def language_loss(logits, targets):
    """Mean cross-entropy of logits (batch, time, vocabulary)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


everyone()
sizes = sorted(n for n in {2, 3, world_size} if n <= world_size)
teams = {n: dist.new_group(range(n)) for n in sizes}  # the first n ranks


def distance(split, whole):
    """The largest difference of a weight of a split model from the whole's."""
    pairs = zip(split.parameters(), whole.parameters())
    return max((p - own_part(p, q)).abs().max().item() for p, q in pairs)


whole = gpt(shape, dtype=torch.float64)
whole_losses, twin_gaps = train(whole, language_loss), {}
for n, group in teams.items():
    if rank < n:
        split = tensor_gpt(shape, group, dtype=torch.float64)
        losses = train(split, loss_over(group))
        loss_gap = max(abs(a - b) for a, b in zip(losses, whole_losses))
        twin_gaps[n] = loss_gap, distance(split, whole)
        weights_held = sum(p.numel() for p in split.parameters())
weights_whole = sum(p.numel() for p in whole.parameters())

twin_gaps_by_rank = to_rank_0(twin_gaps)
if rank == 0:
    play("kernel")
    gaps = np.array([g for of in twin_gaps_by_rank for g in of.values()])
    assert gaps.max() < 1e-6

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("first_loss", round(whole_losses_by_rank[0][0], 6))

whole_losses_by_rank = to_rank_0(whole_losses)
if rank == 0:
    result("last_loss", round(whole_losses_by_rank[0][-1], 6))
    result("twin_gap", gaps[:, 1].max(), varies=True)

weights_whole_by_rank = to_rank_0(weights_whole)
if rank == 0:
    result("weights_in_all", weights_whole_by_rank[0])

weights_held_by_rank = to_rank_0(weights_held)
if rank == 0:
    result("weights_split", weights_held_by_rank[0])

weights_held_by_rank = to_rank_0(weights_held)
weights_whole_by_rank = to_rank_0(weights_whole)
if rank == 0:
    assert weights_held_by_rank[0] > weights_whole_by_rank[0] / n_ranks

# Last bits: the largest difference of a weight is (twin_gap), while the loss has gone
# from (first_loss) to (last_loss).
#
# And what does a rank hold? The whole model has (weights_in_all) numbers, and rank 0
# has (weights_split) of them where all ranks share it. That is more than an nth because
# of the replicas: LayerNorms, biases of the row layers, and the places in time.
#
# In chapter 16 a weight that embedding and head share has two owners, far apart. Here
# both matrices are dealt out by tokens, so that each rank has the same rows of both.
# Tied weights are one assignment, and no message.

everyone()
play("ranks")
tied, alone = (make(shape, dtype=torch.float64) for make in (tensor_gpt, gpt))
for model in (tied, alone):
    model.head.logits.weight = model.embed.tokens.weight
train(tied, loss_over(None))
train(alone, language_loss)
assert distance(tied, alone) < 1e-6

# --- A batch for each rank ------------------------------------------------------------

# Predict: Somebody gives every rank a batch of its own, as data parallelism does. Is
# there an error? Is there anything in the losses?

everyone()
mixed_losses = train(tensor_gpt(shape), loss_over(None), first=100 * rank)
inputs, _ = windows(tokens, batch, shape.context, 100 * rank)
batches_alike = is_alike(inputs)

mixed_losses_by_rank = to_rank_0(mixed_losses)
if rank == 0:
    play("kernel")
    mixed = mixed_losses_by_rank[0]

mixed_losses_by_rank = to_rank_0(mixed_losses)
if rank == 0:
    assert all(losses == mixed for losses in mixed_losses_by_rank)
    assert mixed[-1] < mixed[0]

batches_alike_by_rank = to_rank_0(batches_alike)
if rank == 0:
    assert not any(batches_alike_by_rank)
    result("mixed_first", round(mixed[0], 6))
    result("mixed_last", round(mixed[-1], 6))

# No error, and the losses are the same on every rank, to the last bit: every sum mixes
# the ranks' different sentences, and behind it all have the same mixture. The loss even
# falls, from (mixed_first) to (mixed_last). Comparing results finds nothing here.
# Compare what goes in, once, before a long training: `is_alike(inputs)` says no.

# --- What it sends --------------------------------------------------------------------

# Two counts must be kept apart. A rank hands over tensors to all-reduces. What it sends
# are the bytes that leave it: around a ring, 2(n − 1)/n times what it hands over
# (chapter 8).
#
# Each block has two f and two g. In forward g hands over an activation, in backward f
# does: four times T · w numbers, for T tokens (batch × time) and the width w, however
# many ranks there are. Then g of the embedding and f of the head, and three numbers a
# token for the loss:


def tensor_numbers(shape, tokens):
    """Numbers that a rank of a split GPT hands to all-reduces in a step."""
    return (4 * shape.blocks + 2) * tokens * shape.width + 3 * tokens


# Predict: Twice as many ranks: what becomes of the bytes that each rank sends in a
# step? What would become of them with a batch twice as large? And what with data
# parallelism?
#
# `traffic` counts:


def step_of(model):
    """Forward and backward of a batch."""
    inputs, targets = windows(tokens, batch, shape.context, 0)
    loss_over(None)(model(inputs), targets).backward()


everyone()
if rank == 0:
    print("\n## What it sends\n")

play("ranks")

split = tensor_gpt(shape)
with trace() as t_step:
    step_of(split)
n_tokens = batch * shape.context
handed_over = 4 * tensor_numbers(shape, n_tokens)  # bytes

handed_over_by_rank = to_rank_0(handed_over)
shape_by_rank = to_rank_0(shape)
if rank == 0:
    play("kernel")
    n_bytes, blocks = handed_over_by_rank[0], shape_by_rank[0].blocks
    result("bytes_handed_over", n_bytes)
    result("all_reduces", 4 * blocks + 4)  # two are the loss's

# Each rank hands over (bytes_handed_over) bytes, in (all_reduces) all-reduces.
# - Twice the ranks: little more. Each of 4 ranks sends 1.5 times that, each of 8 sends
#   1.75 times, and none ever more than twice.
# - Twice the batch: twice as much, for these are activations. Data parallelism sends
#   the gradients of weights: there it does not change with the batch.
#
# In chapter 12 messages hide behind backward. As written here, these cannot: the next
# product needs each sum. In forward there is nothing else to do with the same batch,
# unless a product is cut into pieces. In backward there is: the gradient of a layer's
# weights does not need f's sum, and can be computed while it is under way.

# --- How wide must a layer be? --------------------------------------------------------

# All-reduces that nothing hides are added to the time of the products. Which of the two
# is longer?
#
# Products. A block has 12 w² weights, 4 w² in attention and 8 w² in the MLP. Each token
# costs a multiplication and an addition for each, forward once, and backward twice, for
# two gradients: 72 w² operations. The scores of attention, a small part in a wide
# layer, are left out. On n ranks of F operations a second, T tokens take 72 T w² / (n
# F) seconds.
#
# Messages. Four all-reduces of T · w numbers of b bytes, around a ring of bandwidth β,
# take 8 (n − 1)/n · T w b/β seconds. So
#
# $$ \frac{\text{messages}}{\text{products}} = \frac{(n - 1)\, b\, F}{9\, w\, \beta} . $$
#
# Predict: Messages take as long as products. Which helps: a larger batch, longer
# sequences, a wider layer, fewer ranks?


def cost(rows, width):
    """(operations, bytes handed over) of a split block, forward and back."""
    flops, nbytes = FlopCounterMode(display=False), []

    def counted(x, *args, all_reduce=dist.all_reduce, **named):
        nbytes.append(x.nbytes)
        return all_reduce(x, *args, **named)

    layer = fill(SplitBlock(Shape(width=width, heads=world_size)))
    x = torch.randn(rows, 16, width, requires_grad=True)
    counting = flops if rank == 0 else nullcontext()  # one rank is enough
    with counting, patch.object(dist, "all_reduce", counted):
        layer(x).sum().backward()
    return flops.get_total_flops(), sum(nbytes)


everyone()
if rank == 0:
    print("\n## How wide must a layer be?\n")

play("ranks")

width = 16 * world_size
costs = [cost(*sizes) for sizes in ((2, width), (4, width), (2, 2 * width))]

costs_by_rank = to_rank_0(costs)
if rank == 0:
    play("kernel")
    (flops, nbytes), of_batch, of_width = costs_by_rank[0]
    assert of_batch == (2 * flops, 2 * nbytes)

play("ranks")
width_by_rank = to_rank_0(width)
if rank == 0:
    play("kernel")
    width = width_by_rank[0]  # 32 tokens
    assert nbytes == 4 * 4 * 32 * width and of_width[1] == 2 * nbytes
    products = 72 * 32 * width**2 / n_ranks  # of the projections and the MLP
    assert products <= flops < 1.5 * products
    assert 3 < of_width[0] / flops <= 4
    save_figures()

# A wider layer helps, and fewer ranks. The batch is not in the formula, nor is the
# length of a sequence: more tokens are more products, and as many more bytes. What
# decides is the width, the link, and the number of ranks.
#
# Now with real numbers. An H100 computes 989 · 10¹² operations a second in bfloat16,
# two bytes a number, at most [h100]. Within a host NVLink carries 450 GB/s each way
# [hopper]; between hosts, InfiniBand of 400 Gbit/s carries 50 GB/s [connectx7].


def messages_over_products(width, n, beta, flops=989e12, nbytes=2):
    """Of a block that n ranks share: time of messages over that of products."""
    return (n - 1) * nbytes * flops / (9 * width * beta)


if rank == 0:
    NVLINK, INFINIBAND = 450e9, 50e9  # bytes a second
    for name, beta in {"nvlink": NVLINK, "infiniband": INFINIBAND}.items():
        result(f"{name}_ratio", messages_over_products(12_288, 8, beta))
        result(f"{name}_width", round(messages_over_products(1, 8, beta)))

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


if rank == 0:
    links = {"InfiniBand": INFINIBAND, "NVLink": NVLINK}


def ratios(number_of_ranks, percent_of_peak):
    how = {"flops": percent_of_peak / 100 * 989e12}
    lines = [
        {"x": w, "which": which, "y": messages_over_products(
            w, number_of_ranks, beta, **how)}
        for which, beta in links.items() for w in (1024, 4096, 12_288, 32_768)
    ]
    lines += [{"x": w, "y": 1, "which": "as long"} for w in (1024, 32_768)]
    equal = [messages_over_products(1, number_of_ranks, beta, **how)
             for beta in links.values()]
    says = ("as long as products at a width of\n"
            "{:,.0f} on InfiniBand, {:,.0f} on NVLink")
    return says.format(*equal), lines


if rank == 0:
    show(playable(
        ratios,
        line_chart("width of the layer", "messages' time / products'", log="xy",
                   domain=(0.001, 300)),
        name="play-width",
        alt="The time of messages over that of products against the width, both "
        "logarithmic. Both lines fall; NVLink's is nine times lower.",
        number_of_ranks=[8, 2, 4, 16, 32],
        percent_of_peak=[100, 75, 50, 25],
    ))

# For the products to take longer, with 8 ranks on NVLink a layer must be (nvlink_width)
# wide, on InfiniBand (infiniband_width). GPT-3, with a width of 12,288 [brown2020], has
# a ratio of (nvlink_ratio) on NVLink and (infiniband_ratio) between hosts. So tensor
# parallelism stays within a host.
#
# Where a program computes at half of that peak, each ratio is half as large, if the
# link still reaches its own.

# --- Between the layers: sequence parallelism -----------------------------------------

# After g every rank has all activations. It computes LayerNorms and residual additions
# on all of them, the same numbers n times, and keeps them all for backward. Sequence
# parallelism [korthikanti2023] avoids both.
#
# An all-reduce is a reduce-scatter and an all-gather (chapter 7). So pull the two
# apart: after the reduce-scatter every rank has a part of the time, and computes the
# LayerNorms for that part; before the next split layer comes the all-gather.


def strip(ax, title, words, by_time):
    """Half a block: boxes, and what is sent between them."""
    for x, what in ((0, "norm"), (3.2, "heads"), (6.4, "+")):
        if what == "heads" or by_time:
            bands(ax, x, 1.6, 2, slices, upright=what != "heads")
        else:
            ax.add_patch(Rectangle((x, -1), 1.6, 2, facecolor="#c8c8c8"))
        ax.text(x + 0.8, -1.5, what, **middle)
    for x, word in zip((2.4, 5.6), words):
        ax.text(x, 0.3, word, **middle)
        ax.text(x, -0.4, "→", fontsize=16, **middle)
    ax.set(xlim=(-0.1, 8.1), ylim=(-1.9, 1.2))
    ax.set_title(title, fontsize=11)
    ax.set_axis_off()


if rank == 0:
    print("\n## Between the layers: sequence parallelism\n")
    fig, axes = plt.subplots(2, num="sequence", figsize=(5.2, 3.2))
    strip(axes[0], "tensor parallelism: norm and + whole on every rank",
          ("f: copy", "g: all-\nreduce"), False)
    words = "all-\ngather", "reduce-\nscatter"
    show(strip(axes[1], "sequence parallelism: norm and + split by time", words, True))
    save_figures()

# From ranklab.taught.collectives:


def recv(box, src, group=None):
    """Fill `box`, any view, with what rank src of the group sends."""
    packed = box.contiguous()  # box itself, if it is contiguous
    dist.recv(packed, group=group, group_src=src)
    if packed is not box:
        box.copy_(packed)


def sendrecv(outgoing, dst, incoming, src, group=None):
    """Send `outgoing` to rank dst, fill `incoming` from rank src, at once.

    For Gloo and MPI; NCCL wants both started by dist.batch_isend_irecv.
    """
    handle = dist.isend(outgoing.contiguous(), group=group, group_dst=dst)
    recv(incoming, src, group)
    handle.wait()


def all_gather(boxes, x, group=None):
    """Fill each rank's boxes with every rank's x, around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    boxes[me].copy_(x)
    for step in range(n - 1):
        mine, next_one = boxes[(me - step) % n], boxes[(me - step - 1) % n]
        sendrecv(mine, right, next_one, left, group)


# Half a block, left to right; the half with the MLP looks the same. In each box time
# runs to the right, and features run down. What was gray, on every rank, is now split
# by time. g becomes a reduce-scatter, f an all-gather, and each is again the other's
# adjoint.
#
# Both collectives are chapter 7's, made of messages, since Gloo's own reduce-scatter is
# an all-reduce in disguise.


class Gathered(torch.autograd.Function):
    """All ranks' parts of dimension 1, joined. Backward: reduce-scatter."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, x = group, x.contiguous()
        boxes = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        all_gather(boxes, x, group)
        return torch.cat(boxes, 1)

    @staticmethod
    def backward(ctx, gradient):
        return Scattered.apply(gradient, ctx.group), None


# From ranklab.taught.collectives:


def reduce_scatter(box, parts, group=None):
    """Fill each rank's box with the sum of its part of all lists."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    sums = [part.clone() for part in parts]
    for step in reversed(range(n - 1)):
        staying, leaving = sums[(me - step) % n], sums[(me - step - 1) % n]
        incoming = torch.empty_like(staying)
        sendrecv(leaving, left, incoming, right, group)
        staying += incoming
    box.copy_(sums[me])


class Scattered(torch.autograd.Function):
    """Each rank's part of dimension 1 of the sum. Backward: all-gather."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, parts = group, x.chunk(dist.get_world_size(group), 1)
        layout = torch.contiguous_format
        box = torch.empty_like(parts[0], memory_format=layout)
        reduce_scatter(box, list(parts), group)
        return box

    @staticmethod
    def backward(ctx, gradient):
        return Gathered.apply(gradient, ctx.group), None


def gathered(x, group=None):
    """x (batch, part of the time, ...) of all ranks -> (batch, time, ...)."""
    return Gathered.apply(x, group)


def scattered(x, group=None):
    """Of the sum of all ranks' x (batch, time, ...), this rank's part of time.

    Raises ValueError where the time cannot be dealt out in equal parts.
    """
    n = dist.get_world_size(group)
    if x.shape[1] % n:
        what = f"{x.shape[1]} places in time"
        raise ValueError(f"{what} cannot be dealt to {n} ranks equally.")
    return Scattered.apply(x, group)


# Predict: How many bytes does it send, compared with before? And what about the
# gradient of a norm's weights, which every rank computes from its own part of the time?
#
# First the norms' gradient, for it is the trap. The LayerNorms' weights, the row
# layers' biases and the places are on all ranks, and each rank's gradient is of its
# part of the time only. Without a sum there is again no error, only replicas whose
# gradients differ from rank to rank.
#
# They must be added up, in one message before the optimizer's step:


def sum_replicas(model, group=None):
    """Add up the gradients of replicas: each rank's is of its part of the time.

    Once in a step, after its last backward: a second call would add up again.
    """
    replicas = (p for p in model.parameters() if not is_split(p))
    grads = [p.grad for p in replicas if p.grad is not None]
    if not grads:
        return  # on all ranks, for they train the same replicas
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    for grad, total in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(total.view_as(grad))


def gradient_gap(model):
    pairs = zip(model.parameters(), alone.parameters())
    return max((p.grad - own_part(p, q.grad)).abs().max() for p, q in pairs)


everyone()
play("ranks")

model, alone = tensor_gpt(shape, sequence=True), gpt(shape)
inputs, targets = windows(tokens, batch, shape.context, 0)
loss_over(None)(model(inputs), targets).backward()
language_loss(alone(inputs), targets).backward()
norm_gradient = model.block0.norm_1.weight.grad
assert gradient_gap(model) > 1e-3 and not is_alike(norm_gradient)
sum_replicas(model)
assert gradient_gap(model) < 1e-5 and is_alike(norm_gradient)

# From ranklab.taught.layers:


def saved_bytes(layers, forward):
    """Bytes that forward() saves for backward, the layers' weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in layers.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = forward()
    del outputs  # not before: it holds all that is saved
    return sum(found.values())


# And the bytes are the same number, to the last one, but for the one message of
# `sum_replicas`. What changes is what a rank keeps. `saved_bytes` of chapter 16 counts
# it.

everyone()

split, by_sequence = tensor_gpt(shape), tensor_gpt(shape, sequence=True)
with trace() as t_sequence:
    step_of(by_sequence)


def kept_by(block, time):
    """What a block keeps for backward, in units of T x width numbers."""
    x = torch.randn(batch, time, shape.width, requires_grad=True)
    one = 4 * batch * shape.context * shape.width
    return saved_bytes(block, lambda: block(x)) / one


part = shape.context // world_size
kept = [kept_by(model.block0, time) for model, time in
        ((alone, shape.context), (split, shape.context), (by_sequence, part))]

kept_by_rank = to_rank_0(kept)
if rank == 0:
    play("kernel")
    of_whole, of_split, of_sequence = np.mean(kept_by_rank, axis=0)
    expected = 16, 4 + 12 / n_ranks, 2 + 14 / n_ranks
    assert np.allclose((of_whole, of_split, of_sequence), expected, atol=0.5)
    result("kept_whole", of_whole)
    result("kept_split", of_split)
    result("kept_sequence", of_sequence)

# What goes into the two norms and out of them is 4 units of T · w numbers; queries,
# keys, values and their mixture are 4; the hidden features before and after gelu are 8.
# Tensor parallelism divides the last two by n. Sequence parallelism divides what goes
# into the norms, too; what comes out is gathered, and kept whole.
#
# | a block keeps, in units of T · w numbers | with n ranks | here, counted |
# | --- | --- | --- |
# | whole | 16 | (kept_whole) |
# | tensor parallelism | 4 + 12/n | (kept_split) |
# | with sequence parallelism | 2 + 14/n | (kept_sequence) |
# | and gathered again in backward | 16/n | |
#
# The last line is how it is used [korthikanti2023]: a rank keeps its part of what it
# gathers, and gathers once more where backward needs it. Then everything that a block
# keeps is divided by n. The price is one gather more for each of the two pairs: ten
# halves of an all-reduce in a block instead of eight, so 5/4 of the ratio above, unless
# the gather hides behind other products.

# --- The norm of the gradient ---------------------------------------------------------

# Gradients are clipped by the norm of all of them. Each rank has some pieces, and a
# replica of the rest.
#
# Predict: Three ways: every rank clips by its own norm; by the root of the sum of all
# ranks' squares; or something else. Which is right?


def split_norm(parameters, group=None, device=None):
    """The norm of the whole gradient: every piece once, and every replica once.

    With sequence parallelism: after `sum_replicas`. A rank without parameters
    calls it, too; device: where it is on a GPU.
    """
    parameters = list(parameters)
    device = device or (parameters[0].device if parameters else None)
    squares = torch.zeros(2, dtype=torch.float64, device=device)
    for p in parameters:
        if p.grad is not None:
            kind = 0 if is_split(p) else 1
            squares[kind] += p.grad.double().square().sum()
    dist.all_reduce(squares[:1], group=group)  # a view: of the pieces only
    return squares.sum().sqrt()


everyone()
if rank == 0:
    print("\n## The norm of the gradient\n")

play("ranks")
split, alone = (make(shape, dtype=torch.float64) for make in (tensor_gpt, gpt))
loss_over(None)(split(inputs), targets).backward()
language_loss(alone(inputs), targets).backward()
total_norm = torch.nn.utils.get_total_norm
own_norm = total_norm([p.grad for p in split.parameters()])
naive_norm = own_norm.square()
dist.all_reduce(naive_norm)
naive_norm = naive_norm.sqrt().item()
true_norm = total_norm([p.grad for p in alone.parameters()]).item()
assert abs(split_norm(split.parameters()).item() - true_norm) < 1e-12
assert not is_alike(own_norm) and naive_norm > 1.001 * true_norm

own_norm_by_rank = to_rank_0(own_norm)
if rank == 0:
    play("kernel")
    norms = [norm.item() for norm in own_norm_by_rank]
    result("least_norm", round(min(norms), 6))
    result("most_norm", round(max(norms), 6))

naive_norm_by_rank = to_rank_0(naive_norm)
if rank == 0:
    result("naive_norm", round(naive_norm_by_rank[0], 6))

true_norm_by_rank = to_rank_0(true_norm)
if rank == 0:
    result("true_norm", round(true_norm_by_rank[0], 6))

# Something else: pieces are added up over the ranks, replicas counted once. The ranks'
# own norms go from (least_norm) to (most_norm), and each rank would scale its replicas
# by another number: they drift apart. The sum of all squares is the same everywhere,
# and too large, (naive_norm) for (true_norm): it counts every replica once for each
# rank.
#
# The same care is due wherever something is added up over "all parameters": weight
# decay that is logged, a count of parameters, a checksum. And where an optimizer looks
# at a whole matrix: AdamW looks at each number by itself; Adafactor or Muon, given a
# piece, computes something else.

# --- Extra: one seed for all ----------------------------------------------------------

# Many programs give every rank the same seed, so that all start alike. Dropout draws
# from it, too. The hidden features are dealt out, and every rank drops a quarter of its
# own ones.

everyone()
if rank == 0:
    print("\n## Extra: one seed for all\n")

play("ranks")
mask_of, features = [], torch.ones(2000, 6, device="cpu")
for seed in (0, 1 + rank):  # one seed for all; one for each rank
    torch.manual_seed(seed)
    mask_of.append(nn.functional.dropout(features, 0.25) == 0)


def spread(masks):
    """The variance of how many are dropped, over that of independent ones."""
    dropped = np.concatenate([mask.numpy() for mask in masks], axis=1)
    return dropped.sum(1).var() / (dropped.shape[1] * 0.25 * 0.75)


mask_of_by_rank = to_rank_0(mask_of)
if rank == 0:
    play("kernel")
    same, own = zip(*mask_of_by_rank)
    assert spread(same) > 0.8 * n_ranks and spread(own) < 1.3
    result("spread_same", spread(same))
    result("spread_own", spread(own))

# One mask, n times. So the variance of the number of dropped features is n times what
# it should be, measured (spread_same) times (with seeds of their own: (spread_own)). No
# error tells, and no loss.
#
# What of seeds of their own for all dropouts? Behind g every rank has a replica, and
# there the masks must be alike. With sequence parallelism each rank has its own part of
# the time behind g, and must have its own masks there, too. So there are two streams of
# random numbers: one that all share, for what is replicated, and one of each rank's
# own, for what is split. Or, since a layout should not change a training at all, draw
# the whole mask from the shared stream, and let each rank use its part:


def split_dropout(x, p, generator, whole=None, group=None):
    """Dropout of features that are dealt out: x is a rank's share of `whole`.

    All ranks must have drawn alike from the generator: then the mask is that of
    the whole. Without `whole`, x has all features. It drops in any mode.
    Raises ValueError unless 0 <= p < 1.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}. It is a probability, from 0 to below 1.")
    part = share(whole, group) if whole else slice(None)
    size = (*x.shape[:-1], whole or x.shape[-1])
    kept = torch.empty(size, dtype=x.dtype, device=x.device)
    kept.bernoulli_(1 - p, generator=generator)
    return x * kept[..., part] / (1 - p)


everyone()
play("ranks")
n_features = 6 * world_size
one, two = (torch.Generator(device).manual_seed(3) for _ in range(2))
whole_mask = split_dropout(torch.ones(50, n_features), 0.1, one)
part_mask = split_dropout(torch.ones(50, 6), 0.1, two, n_features)
assert torch.equal(part_mask, whole_mask[:, share(n_features)])

# It draws n times as many numbers as it needs, and gives the same mask for every number
# of ranks.

# --- PyTorch's own --------------------------------------------------------------------

# PyTorch keeps the pieces in a DTensor: a tensor that knows the group, its whole shape
# and how it is dealt out. `parallelize_module` takes the whole model and a plan, which
# says by name what is split how [pytorchtp]. What the plan does not name stays a plain
# tensor, a replica on every rank. The model's code stays as it is; f and g come from
# what the plan says of inputs and outputs.


def plan_of(shape):
    """The same split, in PyTorch's words."""
    one, plan = Replicate(), {}
    plan["embed.tokens"] = RowwiseParallel(input_layouts=one)  # rows are tokens
    plan["head.logits"] = ColwiseParallel(use_local_output=False)  # a DTensor
    for i in range(shape.blocks):
        at = f"block{i}.attention"  # its x goes through one f, and not three
        plan[at] = PrepareModuleInput(
            input_layouts=one, desired_input_layouts=one)
        columns = [f"{at}.{name}" for name in ("query", "key", "value")]
        columns.append(f"block{i}.mlp.up")
        plan |= {name: ColwiseParallel() for name in columns}
        rows = f"{at}.out", f"block{i}.mlp.down"
        plan |= {name: RowwiseParallel() for name in rows}
    return plan


# Predict: The plan and our layers say the same. Are the gradients equal? And which of
# the two takes longer?

everyone()
if rank == 0:
    print("\n## PyTorch's own\n")

n_tokens = -(-96 // world_size) * world_size  # 96, or more: the ranks divide it
sizes = {"width": 16 * world_size, "heads": 2 * world_size, "blocks": 2}
even = Shape(n_tokens, context=32, **sizes)
mesh = init_device_mesh("cpu", (world_size,))
with torch.device("cpu"):  # as the mesh: Gloo has no DTensors on a GPU
    ours = tensor_gpt(even)
    pytorchs = parallelize_module(gpt(even), mesh, plan_of(even))
x, y = windows(tokens.cpu(), 8, even.context, 0)


def own_step():
    ours.zero_grad()
    loss = split_cross_entropy(ours(x), y, n_tokens)
    loss.backward()
    return loss.item()


def pytorch_step():
    pytorchs.zero_grad()
    with loss_parallel():  # cross-entropy of split logits
        loss = language_loss(pytorchs(x), y)
        loss.backward()
    return loss.full_tensor().item()


everyone()
assert abs(own_step() - pytorch_step()) < 1e-5
for p, q in zip(ours.parameters(), pytorchs.parameters()):
    gradient = getattr(q.grad, "full_tensor", q.grad.detach)()
    assert (p.grad - own_part(p, gradient)).abs().max() < 1e-5
took = timed([own_step, pytorch_step], 4)

took_by_rank = to_rank_0(took)
if rank == 0:
    play("kernel")
    own_seconds, pytorch_seconds = np.median(seconds_of(took_by_rank), axis=1)
    result("own_over_pytorch", own_seconds / pytorch_seconds, varies=True)


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


# Equal. On this small model ours takes (own_over_pytorch) of the time; a DTensor also
# has to find out, at every operation, how its result is dealt out.
# `benchmarks/model_parallel.py` has larger models.
#
# What a DTensor gives in return: the model is written once, without a word about ranks,
# the plan can change without it, and a checkpoint knows what is whose.
# `SequenceParallel` in the plan splits the norms by time. For a model of your own,
# begin there; now you know what the plan must say.

# --- When to use which ----------------------------------------------------------------

# What can tensor parallelism do that the two other ways cannot? It divides the work of
# a single sequence. Data parallelism deals out sequences, and every rank holds all
# weights, unless they are sharded [rajbhandari2020]. A pipeline needs many
# micro-batches to hide its bubble. Where the batch is given, and the ranks are many,
# neither has enough sequences.
#
# Worked problem: GPT-3 has 96 blocks of width 12,288 [brown2020]. Let it be trained on
# 1,536 H100, in hosts of 8, with 1,536 sequences a step. 96 GPUs hold one model, and 16
# such models share the sequences: 96 for each, one sequence a micro-batch.
#
# Is it better to cut the model into 96 stages of one block, or into 12 stages of 8
# blocks, each shared by the 8 GPUs of a host? The bubble of p stages and m
# micro-batches makes a step 1 + (p − 1)/m times as long (chapter 17), and the messages
# of tensor parallelism make every stage 1 + the ratio from above times as long.

if rank == 0:
    print("\n## When to use which\n")
    m = 96  # micro-batches: 1,536 sequences for 16 models
    only_stages = 1 + (96 - 1) / m
    for name, beta in {"nvlink": NVLINK, "infiniband": INFINIBAND}.items():
        sums = messages_over_products(12_288, 8, beta)
        result(f"{name}_step", (1 + (12 - 1) / m) * (1 + 5 / 4 * sums))
    result("stages_step", only_stages)
    result("state_gb", 16 * 12 * 96 * 12_288**2 / 96 / 1e9)  # of each GPU
    within_hosts = messages_over_products(12_288, 8, NVLINK)
    assert (1 + (12 - 1) / m) * (1 + 5 / 4 * within_hosts) < only_stages

# The 12 stages of shared blocks are better.
#
# Time. 96 stages take (stages_step) times the ideal step, and no interleaving can help,
# for a stage has one block only. 12 stages of shared blocks take (nvlink_step), the
# second gather included. With InfiniBand instead of NVLink it would be
# (infiniband_step).
#
# Memory. Both hold (state_gb) GB of state on a GPU, at 16 bytes a weight
# [rajbhandari2020]. Of one micro-batch's activations both keep a 96th, but in 1F1B the
# first of 96 stages holds up to 96 micro-batches, and the first of 12 only 12.
#
# So tensor parallelism within a host, and the pipeline between hosts, is what large
# trainings use [narayanan2021]. In rules:
# - Does everything fit on one rank, and are there sequences enough? Data: a message for
#   each bucket, hidden behind backward.
# - Is one layer too large for a rank? Tensor: of the three, only it cuts a layer.
# - Are there too few sequences for the ranks? Tensor, as many ranks as a host has,
#   where the layer is wide enough for the link, and not more than there are heads.
# - Across slow links: pipeline, which sends least, or data.

# --- What you can do now --------------------------------------------------------------

# - Split a product by columns and by rows, and say which follows which, and why.
# - Write f and g, prove that each is the other's adjoint, and test them without a
#   model.
# - Split attention, an embedding and a cross-entropy, and say where it ends: at the
#   number of heads.
# - Say the bytes of a step before you run it, and what sequence parallelism changes and
#   what it does not.
# - Find what is wrong where nothing fails: ranks with batches of their own, replicas
#   that drift, masks that repeat, a norm that counts twice.
# - Say from a width, a link and the speed of a rank whether messages or products take
#   longer, and when tensor parallelism is the way to use the ranks.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/18_tensor.py
#
# With more hosts, the same file under `torchrun --nnodes`. Try it: put 2 ranks on each
# of two hosts, and see what the slow link does to a block. The layers are in
# `ranklab.taught.tensor`. For NCCL, take its own reduce-scatter and all-gather in place
# of chapter 7's, and give the reduce-scatter contiguous parts, which the chunks in
# `Scattered` are not unless the batch is one.

# --- Where to read on -----------------------------------------------------------------

# - [shoeybi2019]: Megatron-LM, where column, row, f and g come from, with all that this
#   chapter leaves out for GPUs.
# - [korthikanti2023]: sequence parallelism, and a count of activations, byte by byte.
#   It writes f and f̄ for our f and g, and g and ḡ for the new pair.
# - [narayanan2021]: tensor, pipeline and data parallelism together on thousands of
#   GPUs, with rules for which goes where.
# - [pytorchtp]: PyTorch's `parallelize_module` and its plans.

leave_group()
