# Chapter 16 of Many Ranks, One Model, as one script. Generated from book/16_layers.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 16_layers.py
#     torchrun --standalone --nproc-per-node 4 16_layers.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 16_layers.py
#     mpiexec -n 4 python 16_layers.py
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
from types import SimpleNamespace

import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from matplotlib.patches import Patch, Rectangle
from torch import nn


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
APART = ["kept", "together"]  # the kernel and the ranks have one each
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


# === Model parallelism by layers: one model, several owners ===========================

# A model is too large for any one of your ranks. Can they own it together, a few layers
# each, and still train the same model? And what becomes of the time?
#
# 35 minutes to read, 9 predictions · 20 seconds to run · stands on chapter 2, chapter
# 6, chapter 7 and chapter 10
#
# In data parallelism every rank holds the whole model and a part of the batch. Here it
# is the other way round: every sample passes through every rank, and a rank holds a
# part of the model. That is model parallelism, and in its simplest form the cut runs
# between two layers. The start page has a picture of all the ways.
#
# You first cut a small network by hand, then a GPT, at any place and between any number
# of ranks. The result is the model that one rank would have trained. You measure what a
# cut saves and what it does not, and why the next chapter is needed. PyTorch's own
# stages come together with a schedule, so they are in that chapter, too.

# --- A cut, by hand -------------------------------------------------------------------

# The first network is an MLP with as many layers as there are ranks. Each rank makes
# one of them. So that they fit together, the weights of a layer depend on its number,
# and not on who makes it. `whole` is there only to compare.


def layer(number):
    """Layer `number` of an MLP: the same weights, whoever makes it."""
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh()).double()


if rank == 0:
    print("\n## A cut, by hand\n")

play("ranks")

mine = layer(rank)  # all that this rank owns
whole = nn.Sequential(*[layer(number) for number in range(world_size)])
torch.manual_seed(0)
batch = torch.randn(8, 16, dtype=torch.float64)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# Forward is a relay. Each rank receives the activation that the rank before it has
# computed, applies its own layer, and sends the result on. Only the last rank has a
# loss.


def forward_by_hand(layers, x):
    """This rank's part of forward. x: the inputs, or a box for what comes."""
    if rank > 0:
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = layers(x)
    if rank < world_size - 1:
        dist.send(y.detach(), rank + 1)
    return y


everyone()

x = batch if rank == 0 else torch.empty(8, 16, dtype=torch.float64)
y = forward_by_hand(mine, x)
loss = y.square().mean() if rank == world_size - 1 else None

# Predict: The last rank calls `loss.backward()`. Which layers get a gradient? What
# would the rank before it have to know to go on, and how large is that?
#
# Autograd's graph ends where the process ends. So the last rank's backward reaches its
# own layer, and no other. It computes the gradients of this layer, and that of x, which
# came as a message: for autograd, x is a leaf, and `requires_grad_()` asks for its
# gradient.
#
# Now x is the y of the rank before. With $h_k$ for the output of rank k, which it sends
# on, and $W_k$ for its weights, the chain rule says
#
# $$
# \frac{\partial L}{\partial W_k} = \frac{\partial L}{\partial h_k} \frac{\partial h_k}{\partial W_k},
# \qquad
# \frac{\partial L}{\partial h_{k-1}} =
# \frac{\partial L}{\partial h_k} \frac{\partial h_k}{\partial h_{k-1}}.
# $$
#
# Rank k has everything on the right-hand sides but $\partial L / \partial h_k$. So that
# is what must come back: a tensor exactly as large as the one that was sent.
# `y.backward(gradient)` starts a backward pass in the middle, from a gradient that
# somebody else has computed.


def backward_by_hand(x, y, loss):
    """This rank's part of backward, from the next one's gradient or loss."""
    if rank == world_size - 1:
        loss.backward()
    else:
        gradient = y.new_empty(y.shape)
        dist.recv(gradient, rank + 1)
        y.backward(gradient)
    if rank > 0:
        dist.send(x.grad, rank - 1)


everyone()

mine.zero_grad()
backward_by_hand(x, y, loss)
by_hand = [p.grad.clone() for p in mine.parameters()]

# To run this cell again, first run the one with the forward pass: a graph is good for
# one backward.

everyone()
whole.zero_grad()
whole(batch).square().mean().backward()
pairs = zip(by_hand, whole[rank].parameters())
hand_error = max((g - p.grad).abs().max().item() for g, p in pairs)


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


hand_error_by_rank = to_rank_0(hand_error)
if rank == 0:
    play("kernel")
    assert max(hand_error_by_rank) < 1e-15

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

# Every rank has the gradient of its own layer, as if the whole model were here. That is
# the whole method, and this is its picture:


def draw_chain(layers, bounds, name):
    """Layers as boxes, in their owners' colors, and arrows between them."""
    fig, ax = plt.subplots(num=name, figsize=(5.2, 1.3))
    gap, middle = 0.12 * len(layers) + 0.6, {"ha": "center", "va": "center"}
    for k, (i, j) in enumerate(itertools.pairwise(bounds)):
        d, color = gap * k, pale(RANK_COLORS[k], 0.6)
        for at in range(i, j):
            ax.add_patch(Rectangle((at + d, 0), 0.94, 1, color=color))
            ax.text(at + d + 0.47, 0.5, layers[at], **middle)
        where = (i + j) / 2 + d
        ax.text(where, 1.35, f"rank {k}", color=RANK_COLORS[k], **middle)
        left, right = j + d, j + d + gap - 0.06  # the ends of the arrows
        for a, b, y in ((left, right, 0.8), (right, left, 0.2)):
            ax.annotate("", (b, y), (a, y), arrowprops={"arrowstyle": "->"})
    ax.text(right + 0.1, 0.5, "loss", va="center")
    ax.set(xlim=(0, right + gap), ylim=(-0.1, 1.6))
    ax.axis("off")


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


if rank == 0:
    show(draw_chain(
        [f"$W_{k}$" for k in range(world_size)], range(world_size + 1), "by-hand"
    ))
    save_figures()

# To the right go the activations, and back come their gradients. The next sections make
# this convenient, carry it over to a real model, and ask what it costs.

# --- Messages that autograd knows -----------------------------------------------------

# By hand, each rank has to remember that a send in forward means a receive in backward.
# But these two belong together as a function and its derivative do. Chapter 7 calls
# such a pair adjoint: the adjoint of "send to rank 1" is "receive from rank 1".
#
# Autograd can do the remembering, if both are written as functions with a backward of
# their own. `forward` may note in `ctx` what `backward` will need. `backward` is given
# the gradient of what `forward` has returned, and returns one for each argument of
# `forward`. Such a function is called by its `apply`.
#
# The sender has a difficulty. A rank that has sent its activation has nothing left that
# a loss could be computed from, and yet it must wait for a gradient and start its
# backward. So `Send` returns a stand-in for everything beyond the cut, and
# `stand_in.backward()` reads like `loss.backward()`.


class Send(torch.autograd.Function):
    """Send.apply(x, dst, group): send x; in backward, receive its gradient.

    It returns a stand-in, the number 0, for all that comes after:
    stand_in.backward() waits for the gradient. A factor on it has no effect.
    """

    @staticmethod
    def forward(ctx, x, dst, group=None):
        ctx.dst, ctx.group, ctx.shape = dst, group, x.shape
        dist.send(x.contiguous(), group=group, group_dst=dst)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, unused):
        gradient = unused.new_empty(ctx.shape)
        dist.recv(gradient, group=ctx.group, group_src=ctx.dst)
        return gradient, None, None  # nothing for dst and group


class Receive(torch.autograd.Function):
    """Receive.apply(like, src, group): receive; in backward, send the gradient.

    like: of the shape and type of what comes. It must require a gradient.
    """

    @staticmethod
    def forward(ctx, like, src, group=None):
        ctx.src, ctx.group = src, group
        x = torch.empty_like(like)
        dist.recv(x, group=group, group_src=src)
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.send(gradient.contiguous(), group=ctx.group, group_dst=ctx.src)
        return None, None, None


# A stage is what one rank owns: some consecutive layers. Its forward receives, computes
# and sends. The first stage has nothing to receive, and the last one nothing to send:


def through(layers, inputs, received, group=None):
    """One stage's forward: from the rank before, through `layers`, to the next.

    Stage k is rank k of the group. inputs: what the first stage computes on.
    received: the shape of what each other one receives; its type is that of the
    weights. The last stage returns its outputs, the others a stand-in (`Send`).
    """
    k, n = dist.get_rank(group), dist.get_world_size(group)
    if k > 0:
        weight = next(layers.parameters())  # of its type, on its device
        like = weight.new_empty(received)
        inputs = Receive.apply(like.requires_grad_(), k - 1, group)
    outputs = layers(inputs)
    return outputs if k == n - 1 else Send.apply(outputs, k + 1, group)


# `through` believes the shape that it is told, and takes the type from the stage's own
# weights, so a stage needs at least one. Neither shape nor type travels with the
# message: what comes in another type, or is smaller, is taken for what was expected,
# and nobody says so (chapter 6). With mixed precision on one side of the cut, say, such
# a mistake is easily made.


def mlp_backward():
    """One forward and backward of the MLP, on all ranks together."""
    out = through(mine, batch, (8, 16))
    loss = out.square().mean() if rank == world_size - 1 else out
    loss.backward()


everyone()
if rank == 0:
    print("\n## Messages that autograd knows\n")

play("ranks")

mine.zero_grad()
mlp_backward()
pairs = zip(mine.parameters(), by_hand)
same_gradients = all(torch.equal(p.grad, g) for p, g in pairs)

same_gradients_by_rank = to_rank_0(same_gradients)
if rank == 0:
    play("kernel")
    assert all(same_gradients_by_rank)

# --- A stage that forgets -------------------------------------------------------------

# `Receive` asks for a `like` that requires a gradient. Suppose that somebody leaves the
# `requires_grad_()` out.
#
# Predict: `torch.empty(8, 16)` requires no gradient. Forward is as before, and every
# layer has parameters that are trained. Who notices, and when? Does anybody get an
# error?

# Nobody gets an error, and the lab names a circle. The last rank is in its second step
# already, in forward, and waits for an activation. The rank before it is still in
# backward of the first, and waits for a gradient that has never been sent; each of the
# others waits for the rank behind it.
#
# Why was it not sent? Autograd calls the backward of a function only where one of its
# inputs requires a gradient. `like` is the only tensor that `Receive` is given. So its
# output is a constant, and the graph ends there. The last rank's backward has computed
# the gradient of its own layer, and ends without an error.
#
# Remember how it looks: of two neighbors, one waits for a gradient, and the other is
# past its backward. Then ask which tensor between them requires none: one that was made
# without, a `detach()`, a `no_grad()`. Without the lab it is a job that stands still
# until a timeout ends it. The remedy is that one place makes `like`, and all stages use
# it: `through`.
#
# `ranks.reset()` gives the ranks a new process group, and their variables stay. But
# groups made before it are gone. So if you come back to this section later, also run
# the cells further down again that make the groups `first_ranks` and `ends`.

# --- A GPT ----------------------------------------------------------------------------

# Now a model that is worth cutting. In the three chapters of this part it is a small
# GPT [radford2019]: it reads characters and guesses the next one. What it reads is on
# your disk already: the documentation of Python's own language, which comes with Python
# for `help()`. If you know how a GPT is built, run the cells and go on at The same
# weights on every rank: all that matters for the cut is the shape of what one layer
# hands to the next.


def prose():
    """The text of Python's own documentation: a str of plain ASCII."""
    from pydoc_data.topics import topics  # a large module

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def encode(text):
    """Characters as int64 tokens: 0 ends a line, 1 is a space, 95 a tilde."""
    return torch.tensor([0 if c == "\n" else ord(c) - 31 for c in text])


def decode(tokens):
    """The text of a list of tokens."""
    return "".join("\n" if t == 0 else chr(t + 31) for t in tokens)


def windows(tokens, batch, context, seed):
    """Inputs and targets, (batch, context): windows of text, and one later."""
    g = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):  # where the generator is
        starts = torch.randint(len(tokens) - context, (batch, 1), generator=g)
        rows = tokens[starts + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


everyone()
if rank == 0:
    print("\n## A GPT\n")

play("ranks")
text = prose()
tokens = encode(text)


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


text_by_rank = to_rank_0(text)
if rank == 0:
    play("kernel")
    some_text = text_by_rank[0]
    result("thousands", len(some_text) // 1000)
    print(some_text[20_000:].split("\n\n")[2])

# (thousands) thousand characters, each of them a token, a number from 0 to 95.
# `windows` cuts pieces out of the text, and the target at each place is the token that
# comes next.
#
# The model has layers of three kinds. The first one, the embedding, turns each token
# into a vector of `width` features: one for what it is plus one for where it stands.

everyone()
play("ranks")


@dataclass(frozen=True)
class Shape:
    """The numbers that make a GPT: `width` features a token, `heads` heads."""

    vocabulary: int = 96
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 4


class Embed(nn.Module):
    """Tokens (batch, time) -> (batch, time, width), token plus place."""

    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places.weight[: tokens.shape[1]]


# Then come the blocks, all alike. Each has two parts, and what a part computes is added
# to what came in: a residual connection. In front of each part a LayerNorm brings the
# features of every token to mean 0 and variance 1.
#
# In the first part tokens look at each other, by attention. From its features each
# token makes a query, a key and a value. It compares its query with the keys of all
# tokens up to itself, and gets a mixture of their values, most of those whose keys fit
# best. It is causal: a token that saw a later one would read what it is to guess.
# Several attention heads look for several things at once.


def attend(q, k, v):
    """Causal attention; all (batch, heads, time, size)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


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
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        return self.out(attend(q, k, v).transpose(1, 2).flatten(2))


# The second part, an MLP with the activation function GELU (a smooth ReLU), works on
# each token by itself. The last layer, the output head, turns each vector into logits:
# a number for every token that might come next.


def head_size(shape):
    """The features of a head. ValueError if the heads cannot share evenly."""
    if shape.width % shape.heads:
        what = f"{shape.width} features evenly."
        raise ValueError(f"{shape.heads} heads cannot share {what}")
    return shape.width // shape.heads


class MLP(nn.Module):
    """(..., width) -> the same: up to `hidden` features, GELU, and down."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


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


class Head(nn.Module):
    """(batch, time, width) -> logits (batch, time, vocabulary)."""

    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x):
        return self.logits(self.norm(x))


# The place of a cut is called a seam. All that it needs to know is the shape: every
# block takes (batch, time, width) and returns the same. So the model is a chain, and
# whichever two layers the cut runs between, the message has the same shape.

# --- The same weights on every rank ---------------------------------------------------

# Which weights does the model begin with? Usually one seed is set, and the layers draw
# their weights one after the other.
#
# Predict: Every rank sets the same seed, and makes only its own layers. Do they get the
# weights that they have in the whole model?
#
# Only the first rank's do. Layer 5 depends on how many numbers were drawn before it,
# and a rank that makes only layer 5 has drawn none. Here every parameter has a
# generator of its own, seeded with its name. And a layer keeps its name, whatever slice
# of the model it stands in.


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


def gpt(shape, first=0, last=None, seed=0, dtype=torch.float32):
    """Layers `first` to `last` (excluded) of a GPT, an nn.Sequential.

    Layer 0 embeds, the last one is the head. The names and initial weights of a
    layer are the same in whatever slice it stands.
    """
    blocks = [(f"block{i}", Block) for i in range(shape.blocks)]
    makers = [("embed", Embed), *blocks, ("head", Head)]
    layers = OrderedDict(
        (name, make(shape)) for name, make in makers[first:last]
    )
    model = nn.Sequential(layers).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(drawn(name, p.shape, seed))
    return model


everyone()
small = Shape(context=16, width=32, heads=2, blocks=6)  # eight layers
kept = gpt(small).state_dict()
of_slice = gpt(small, 3, 5).state_dict()  # two of them
slice_names = sorted(of_slice)
from_the_whole = all(torch.equal(kept[name], p) for name, p in of_slice.items())

from_the_whole_by_rank = to_rank_0(from_the_whole)
if rank == 0:
    play("kernel")
    assert all(from_the_whole_by_rank)

slice_names_by_rank = to_rank_0(slice_names)
if rank == 0:
    print(*slice_names_by_rank[0][:4], "...")

# Layer 3 is `block2`, because layer 0 is the embedding.
#
# The model is to give the next character a high probability, at every place of the
# window. Its loss says how far it is from that:


def language_loss(logits, targets):
    """Mean cross-entropy of logits (batch, time, vocabulary)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --- Any cut --------------------------------------------------------------------------

# A cut is a list of bounds: `[0, 2, 5, 8]` means that rank 0 owns layers 0 and 1, rank
# 1 layers 2 to 4, and rank 2 the rest. The parts need not be equal. Below, E is the
# embedding, and H the head.

if rank == 0:
    print("\n## Any cut\n")
    show(draw_chain(["E", *"012345", "H"], [0, 2, 5, 8], "cut"))
    save_figures()

# `gpt_stage` makes the layers of one stage. It refuses bounds that leave a layer
# without an owner, or a stage without layers.


def gpt_stage(shape, bounds, k, seed=0, dtype=torch.float32):
    """Stage k of a GPT cut at `bounds`: layers bounds[k] up to bounds[k + 1].

    Raises ValueError for bounds that leave a stage without layers, or a layer
    without an owner.
    """
    whole, rising = [0, shape.blocks + 2], sorted(set(bounds))
    ends = [*bounds[:1], *bounds[-1:]]
    if list(bounds) != rising or ends != whole or not 0 <= k < len(bounds) - 1:
        raise ValueError(
            f"Stage {k} of {list(bounds)}: the bounds of {whole[1]} layers "
            f"begin with 0, rise, and end with {whole[1]}; the stages of n + 1 "
            f"bounds are 0 to n - 1."
        )
    return gpt(shape, bounds[k], bounds[k + 1], seed, dtype)


# Now a step of training. All ranks run the same lines: the last one has a loss, the
# others have a stand-in, and every rank has an optimizer for what it owns.


def forward_backward(layers, tokens, targets, width, group=None):
    """Add the gradients of one stage of a GPT to its parameters.

    Stage k is rank k of the group. tokens, targets: (batch, time). Returns the
    loss on the last stage, None on the others.
    """
    out = through(layers, tokens, (*tokens.shape, width), group)
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    loss = language_loss(out, targets) if is_last else out
    loss.backward()
    return loss.item() if is_last else None


def train_step(layers, optimizer, tokens, targets, width, group=None):
    """One step of one stage of a GPT; the rest is as for `forward_backward`."""
    optimizer.zero_grad()
    loss = forward_backward(layers, tokens, targets, width, group)
    optimizer.step()
    return loss


# Who needs which data? The first stage needs the inputs, the last one the targets, and
# those between need neither. The windows are drawn from a seed, so that every rank can
# make them itself, and nothing has to be sent.
#
# Predict: A tiny GPT of eight layers is trained for 12 steps in float64: whole, cut
# evenly over all ranks, cut very unevenly, and by two ranks only. How much do the
# weights differ in the end: not at all, in their last digits, or, for the uneven cut,
# visibly?


def even_cut(n):
    """Bounds of eight layers for n owners, as even as can be."""
    return [8 * k // n for k in range(n + 1)]


everyone()
play("ranks")

evenly = even_cut(world_size)
uneven = [0, *range(9 - world_size, 9)]  # [0, 5, 6, 7, 8] for four
first_ranks = {
    n: dist.new_group(list(range(n))) for n in range(1, world_size + 1)
}

# A cut for fewer owners takes a group of the first ranks. The others own nothing.

everyone()
tiny = Shape(context=8, width=8, heads=2, blocks=6)


def trained(bounds, steps=12):
    """This rank's losses and weights after training a GPT cut at `bounds`."""
    n = len(bounds) - 1
    if rank >= n:
        return None
    layers = gpt_stage(tiny, bounds, rank, dtype=torch.float64)
    optimizer = torch.optim.AdamW(layers.parameters(), 3e-3)
    losses = []
    for step in range(steps):
        batch = windows(tokens, 4, tiny.context, step)
        losses.append(
            train_step(layers, optimizer, *batch, tiny.width, first_ranks[n])
        )
    own = layers.state_dict().items()
    return losses, {name: weight.numpy(force=True) for name, weight in own}


twins = [trained(bounds) for bounds in ([0, 8], evenly, uneven, [0, 3, 8])]


def joined(of_ranks):
    """Of a training: the last stage's losses, and the weights of all stages."""
    owners = [of_rank for of_rank in of_ranks if of_rank is not None]
    weights = {}
    for _, of_stage in owners:
        weights |= of_stage
    return owners[-1][0], weights


twins_by_rank = to_rank_0(twins)
if rank == 0:
    play("kernel")
    whole_training, *cut_trainings = map(joined, zip(*twins_by_rank))

if rank == 0:
    losses_0, weights_0 = whole_training
    gaps = []
    for losses_i, weights_i in cut_trainings:
        assert weights_i.keys() == weights_0.keys() and losses_i[-1] < losses_i[0]
        gaps.append(np.abs(np.subtract(losses_i, losses_0)).max())
        gaps += [np.abs(weights_i[k] - w).max() for k, w in weights_0.items()]
    assert max(gaps) < 1e-12
    result("largest_gap", float(max(gaps)), varies=True)


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

# The largest difference is (largest_gap). Nothing is averaged here, and nothing is
# added up in another order: every layer gets the same numbers and does the same with
# them, wherever it is. In data parallelism the order of additions changes, and the
# weights differ in their last digits (chapter 10). `tests/chapters/test_layers.py` does
# 50 steps for every cut of a smaller GPT over 1 to 4 ranks.
#
# This holds under three conditions:
# - The optimizer must treat each parameter by itself, as SGD and Adam do. What looks at
#   all of them together, such as clipping by the norm of the whole gradient, needs an
#   all-reduce: that is one of the exercises.
# - Random numbers, of dropout say, must not depend on the layout.
# - The ranks must compute alike. On another kind of processor, or with another number
#   of threads, a matrix product may add in another order. So the assertion allows the
#   last digits.

# --- What it saves, and what it does not ----------------------------------------------

# Now a model large enough to see where memory and time go. For the picture we take
# `forward_by_hand` and `backward_by_hand`: with `through`, autograd's backward contains
# the receiving, and the picture would show waiting inside of computing.

everyone()
if rank == 0:
    print("\n## What it saves, and what it does not\n")

play("ranks")
shape = Shape(blocks=6)  # 64 characters, 64 features
big_batch = windows(tokens, 16, shape.context, 0)
seam_bytes = 4 * big_batch[0].numel() * shape.width  # an activation, float32

layers = gpt_stage(shape, evenly, rank)
for _ in range(2):  # the first one warms up
    x = big_batch[0] if rank == 0 else torch.empty(16, 64, 64)
    dist.barrier()
    with trace() as t:
        y = forward_by_hand(layers, x)
        loss = (
            language_loss(y, big_batch[1]) if rank == world_size - 1 else None
        )
        backward_by_hand(x, y, loss)
        dist.barrier()  # the step is over when all are done

# Predict: Each rank computes its part forward, and its part backward. Draw the row of
# each rank over time before you look.

t_by_rank = to_rank_0(t)
if rank == 0:
    play("kernel")
    show(timeline(t_by_rank, name="one-at-a-time"))

# At any moment one rank computes, and all others wait. The work goes down through the
# ranks, which is forward, and comes back up, which is backward. What is idle forms
# triangles: the later a rank stands in the chain, the longer it waits before its
# forward and after its backward, and the earlier, the longer it waits in between. Idle
# time of this kind is called the bubble.
#
# What share of all the ranks' time is spent computing?

# One rank after the other, without a gap, would be 1/n of it: no more is possible.
#
# The messages are exactly what the shape at the seams says: batch × time × width
# numbers of 4 bytes, over each seam once forward and once back.

# --- Memory and time ------------------------------------------------------------------

# Predict: Four owners in place of one. What does the fullest rank hold: a quarter, or
# more than a quarter? And how long does a step take: a quarter of the time, as long, or
# longer?
#
# What does a rank have to hold? Its parameters, a gradient for each, and Adam's two
# moments (two running means for each parameter). And what its forward saves for its
# backward, the saved tensors, counted as in chapter 2.


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


def state_bytes(layers):
    """Of weights, gradients and two moments."""
    return 4 * sum(p.nbytes for p in layers.parameters())


def stage_bytes(bounds):
    """Of this rank's stage: (bytes of state, bytes of saved tensors)."""
    if rank >= len(bounds) - 1:
        return 0, 0
    layers = gpt_stage(shape, bounds, rank)
    inputs = (
        big_batch[0]
        if rank == 0
        else torch.zeros(16, 64, 64, requires_grad=True)
    )

    def forward():
        y = layers(inputs)
        return language_loss(y, big_batch[1]) if rank == len(bounds) - 2 else y

    return state_bytes(layers), saved_bytes(layers, forward)


everyone()
play("ranks")
teams = sorted({n for n in (1, 2, 4, world_size) if n <= world_size})
team_bytes = [stage_bytes(even_cut(n)) for n in teams]

teams_by_rank = to_rank_0(teams)
if rank == 0:
    play("kernel")
    owners = np.array(teams_by_rank[0])

team_bytes_by_rank = to_rank_0(team_bytes)
if rank == 0:
    held = np.array(team_bytes_by_rank) / 2**20  # rank, team, (state, saved)
    whole_held = held[0, 0].sum()
    fig, ax = plt.subplots(num="memory", figsize=(5.2, 2.8))
    for i, n in enumerate(owners):
        for r in range(n):
            where, (state, saved) = i + 0.8 * (r + 0.5) / n - 0.4, held[r, i]
            ax.bar(where, state, 0.7 / n, color=RANK_COLORS[r])
            ax.bar(where, saved, 0.7 / n, state, color=pale(RANK_COLORS[r], 0.5))
        ax.hlines(whole_held / n, i - 0.43, i + 0.43, "black", ":", linewidth=1.2)
    ax.set_xticks(range(len(owners)), owners)
    ax.set(xlabel="owners", ylabel="memory of each rank (MiB)")
    grey = "#595959"
    kinds = [Patch(color=pale(grey, 0.5), label="saved by forward")]
    kinds.append(Patch(color=grey, label="parameters, gradients, moments"))
    kinds += ax.plot([], [], "k:", linewidth=1.2, label="1/n of all")
    ax.legend(handles=kinds, fontsize="small")
    show(ax.grid(False, axis="x"))
    save_figures()

if rank == 0:
    assert np.allclose(held.sum(0), held[0, 0])  # team, (state, saved)
    if world_size == 4:  # E and a block, twice two blocks, a block and H
        first, *middle, last = held[:, -1].sum(1)
        assert max(first, last) < min(middle)
    result("owners", int(owners[-1]))
    result("largest_share", round(held.sum(2).max(0)[-1] / whole_held, 2))

# Both kinds are divided: parameters and their state exactly, without anything held
# twice, and activations as well, for each rank keeps those of its own layers only. With
# (owners) owners the fullest rank holds (largest_share) of what one rank would. It is
# not always 1/n: embedding and head hold less than a block here, and six blocks cannot
# be divided evenly by every n. The last stage saves something for the loss, too: batch
# × time × vocabulary numbers. That is little for 96 characters.
#
# Now the time, of forward and backward. The optimizer's steps are left out: most of
# them overlap, for a rank makes its own while the ranks before it are still in
# backward.


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


def stage_pass(bounds, shape):
    """Forward and backward of this rank's stage; without one, nothing."""
    n = len(bounds) - 1
    if rank >= n:
        return lambda: None
    layers = gpt_stage(shape, bounds, rank)
    return lambda: forward_backward(
        layers, *big_batch, shape.width, first_ranks[n]
    )


# From ranklab.taught.messages:


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


everyone()
play("ranks")
team_seconds = timed([stage_pass(even_cut(n), shape) for n in teams], 4)
message_sizes = [16 << 10, 64 << 10, 256 << 10, 1 << 20]
message_seconds = [ping(size) for size in message_sizes]

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


# The model of chapter 6 says what the seams cost. Over each of them, one after the
# other, an activation goes forward and a gradient comes back:
#
# $$
# T(n) = T(1) + 2 (n - 1) \left(\alpha + \frac{S}{\beta}\right),
# \qquad S = 4 \cdot \text{batch} \cdot \text{time} \cdot \text{width} \text{ bytes}.
# $$

team_seconds_by_rank = to_rank_0(team_seconds)
if rank == 0:
    play("kernel")
    by_rank = np.array(team_seconds_by_rank).min(2)  # rank, team
    clock = by_rank[:, :, 0].max(0)

message_sizes_by_rank = to_rank_0(message_sizes)
message_seconds_by_rank = to_rank_0(message_seconds)
if rank == 0:
    alpha, beta = latency_bandwidth(
        message_sizes_by_rank[0], message_seconds_by_rank[0]
    )

seam_bytes_by_rank = to_rank_0(seam_bytes)
if rank == 0:
    by_model = clock[0] + 2 * (owners - 1) * (alpha + seam_bytes_by_rank[0] / beta)

if rank == 0:
    fig, ax = plt.subplots(num="time", figsize=(5.2, 2.6))
    ax.plot(owners, clock / clock[0], "ko", label="measured")
    ax.plot(owners, by_model / clock[0], "k", linewidth=1,
            label="predicted: one's time and messages")
    curve = np.linspace(1, owners[-1])
    ax.plot(curve, 1 / curve, "k:", linewidth=1.2)
    half = (1 + owners[-1]) / 2
    ax.text(half - 0.4, 1 / half + 0.16, "1/n if all computed at once: not reached",
            fontsize="small")
    ax.set(xlabel="owners", ylabel="time, one owner's = 1")
    ax.set(xticks=owners, ylim=(0, None))
    ax.legend(loc="lower left", fontsize="small")
    save_figures()

if rank == 0:
    result("clock_ratio", clock[-1] / clock[0], varies=True)
    result("predicted_ratio", by_model[-1] / clock[0], varies=True)

team_seconds_by_rank = to_rank_0(team_seconds)
if rank == 0:
    alone = np.array(team_seconds_by_rank)[:, 0, :, 0].max(0)  # by repeat
    result("alone_spread", np.median(alone) / alone.min(), varies=True)

# Memory is divided by n, and time is not. With (owners) owners a step takes
# (clock_ratio) times as long as with one, where the model says (predicted_ratio). Each
# point is the least of four repeats; for one owner their median is (alone_spread) times
# the least, so finer differences mean nothing.
#
# The model adds messages to T(1), and nothing else. A point that is off the line by
# more has a cause that the model leaves out.
#
# And the messages? Data parallelism sends the gradients of all parameters in each step;
# this sends an activation and its gradient over each seam, however many parameters lie
# behind it. A rank in the middle sends two such messages a step (an activation on, a
# gradient back), and a rank of a ring about two times the gradients (chapter 8). So it
# is enough to compare one activation with all gradients, once.
#
# Predict: An activation grows with the batch, and the gradients do not. From how many
# windows a step on is the activation at one seam as large as all gradients of our
# model?

if rank == 0:
    state = held[0, 0, 0] * 2**20  # weights, gradients, two moments

seam_bytes_by_rank = to_rank_0(seam_bytes)
if rank == 0:
    a_window = seam_bytes_by_rank[0] / 16  # 16 windows a step
    result("windows_equal", round(state / 4 / a_window))
    save_figures()


@contextmanager
def unsampled(*args, **kwargs):
    """A stand-in for ranklab's sampled: it reads nothing, and its phases only pass."""
    yield SimpleNamespace(phase=nullcontext)


try:
    from ranklab.gpu import sampled, utilization_plot
except ImportError:
    utilization_plot = None
    sampled = unsampled
    if rank == 0:
        print("What ranklab.gpu measures is left out, for it is not installed here")

# From (windows_equal) windows on; we have 16. So cuts between layers are cheap in
# messages where a model is large and the batch is small.

# --- Extra: what a meter shows --------------------------------------------------------

# All owners take part in every step, and each works for its share of the time only.
# `sampled`, of chapter 4, watches while one batch after the other goes through all of
# them: each rank's card, or on a CPU its share of a core.

everyone()
play("ranks")

step = stage_pass(even_cut(world_size), shape)
with sampled(hz=20, device=device) as meter:
    for _ in range(8 if device.type == "cpu" else 200):
        step()

if utilization_plot:
    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        play("kernel")
        utilization_plot(meter_by_rank, name="meters")

    meter_by_rank = to_rank_0(meter)
    if rank == 0:
        on_cpu = [meter for meter in meter_by_rank if not meter.about["uuid"]]
        together = sum(meter.mean("own_percent") for meter in on_cpu)
        result("busy_together", together, varies=True)
        assert together < 130

# Where each rank has a card or a core of its own, no row is near 100 %. On a CPU they
# add up to about one core, here (busy_together) %, for only one owner has something to
# do at a time. Ranks that share a card have one meter: all rows are alike.

# --- Who owns how many layers? --------------------------------------------------------

# In the measurements every rank owned as many layers as the others. Is that fair?
# Layers are not equally expensive. Our head is cheap because there are so few
# characters. Give it a vocabulary more like a tokenizer's, 2048 here (GPT-2's has
# 50,257 [radford2019]), and measure.


def layer_seconds(layers, tokens, targets, repeats=6):
    """The least processor seconds of each layer, on a CPU, both ways."""
    layers, targets = deepcopy(layers).cpu(), targets.cpu()
    times = [[] for _ in layers]
    with torch.device("cpu"):
        for _ in range(repeats + 1):
            x = tokens.cpu()
            for i, layer in enumerate(layers):
                start = time.process_time()  # whatever else the machine does
                y = layer(x)
                y = language_loss(y, targets) if i == len(layers) - 1 else y
                y.backward(torch.ones_like(y))  # any gradient takes as long
                times[i].append(time.process_time() - start)
                x = y.detach().requires_grad_()
    return [min(of_layer[1:]) for of_layer in times]  # the first one warms up


everyone()
if rank == 0:
    print("\n## Who owns how many layers?\n")

play("ranks")
wordy = Shape(vocabulary=2048, blocks=6)
wordy_seconds = None
if rank == 0:
    wordy_seconds = layer_seconds(gpt(wordy), *big_batch, repeats=3)
dist.barrier()  # the others leave it the cores meanwhile

# The best cut is the one whose most expensive stage is cheapest. There are
# $\binom{L-1}{n-1}$ ways to cut L layers for n owners. For eight layers one could try
# all of them; for a hundred it takes a better idea, dynamic programming.
#
# A best cut of the first j layers for k owners can be made of a best cut of the first i
# for k − 1 owners, for some i, and a last stage from i to j. So go from one owner to n,
# and for each k and j try every i:


def balance(costs, n):
    """Bounds that cut a chain of layers for n owners: the largest sum is least.

    Raises ValueError where an owner would be left without a layer.
    """
    if not 1 <= n <= len(costs):
        raise ValueError(
            f"{n} owners for {len(costs)} layers: one each at least."
        )
    ends = range(1, len(costs) + 1)
    best = {j: (sum(costs[:j]), [0, j]) for j in ends}  # for one owner
    for k in range(2, n + 1):
        fewer, best = best, {}  # fewer: for k - 1 owners
        for j in range(k, len(costs) + 1):
            for i in range(k - 1, j):  # the last owner takes layers i to j
                largest, bounds = fewer[i]
                candidate = max(largest, sum(costs[i:j])), [*bounds, j]
                best[j] = min(best.get(j, candidate), candidate)
    return best[len(costs)][1]


def stage_costs(costs, bounds):
    return [sum(costs[i:j]) for i, j in itertools.pairwise(bounds)]


wordy_seconds_by_rank = to_rank_0(wordy_seconds)
if rank == 0:
    play("kernel")
    costs, n = wordy_seconds_by_rank[0], world_size

evenly_by_rank = to_rank_0(evenly)
if rank == 0:
    equal, balanced = evenly_by_rank[0], balance(costs, n)
    equal_most, balanced_most = (
        max(stage_costs(costs, equal)),
        max(stage_costs(costs, balanced)),
    )
    save_figures()

# For eight layers we can try all cuts, too. None is better:

if rank == 0:
    middles = itertools.combinations(range(1, 8), n - 1)
    all_cuts = [[0, *middle, 8] for middle in middles]
    by_trying = min(max(stage_costs(costs, bounds)) for bounds in all_cuts)
    assert np.isclose(balanced_most, by_trying)
    assert stage_costs(costs, equal)[-1] == equal_most > balanced_most
    save_figures()

if rank == 0:
    names = ["E", *"012345", "H"]
    fig, ax = plt.subplots(num="balance", figsize=(5.2, 2.8))
    for group, bounds in enumerate([equal, balanced]):
        for r, cost in enumerate(stage_costs(costs, bounds)):
            where, share = group * (n + 1) + r, 100 * cost / sum(costs)
            color = pale(RANK_COLORS[r], 0.6)
            ax.bar(where, share, 0.85, color=color, edgecolor=RANK_COLORS[r])
            if cost == max(stage_costs(costs, bounds)):
                ax.text(where, share + 1, f"{share:.0f} %", ha="center")
            theirs = " ".join(names[bounds[r] : bounds[r + 1]])
            ax.text(where, 1, theirs, ha="center", va="bottom", fontsize=10)
    ax.axhline(100 / n, color="black", linestyle=":", linewidth=1.2)
    places = (n - 1) / 2, (n - 1) / 2 + n + 1
    ax.set_xticks(places, ["equally many layers", "balanced"])
    ax.set(xlabel="E: embedding, 0 to 5: blocks, H: head", ylabel="of a step (%)")
    ax.margins(y=0.12)
    show(ax.grid(False, axis="x"))
    save_figures()

if rank == 0:
    result("head_in_blocks", costs[-1] / np.median(costs[1:-1]), varies=True)
    result("head_share", 100 * costs[-1] / sum(costs), varies=True)
    result("balance_gain", equal_most / balanced_most, varies=True)
    save_figures()


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play("kernel")
    box = [packed(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return unpacked(box[0], device)


# The head costs as much as (head_in_blocks) blocks. With equally many layers each, the
# last rank computes (balance_gain) times as long as the fullest one of the balanced
# cut.
#
# The dotted line is an even share. The head alone takes (head_share) %: a layer that
# takes more than an even share cannot be balanced by any cut, and has to be split
# itself (chapter 18).
#
# Predict: By how much does the balanced cut shorten a step?

wordy_cuts = from_rank_0(lambda: [equal, balanced, equal])  # one of them twice
if rank == 0:
    save_figures()

everyone()
play("ranks")
by_cut = timed([stage_pass(bounds, wordy) for bounds in wordy_cuts], 6)

# rank, cut, (by the clock, computing)
by_cut_by_rank = to_rank_0(by_cut)
if rank == 0:
    play("kernel")
    by_rank = np.array(by_cut_by_rank).min(2)
    equal_seconds, balanced_seconds, again = by_rank[:, :, 0].max(0)
    equal_work, balanced_work, _ = by_rank[:, :, 1].sum(0)
    result("balanced_over_equal", balanced_seconds / equal_seconds, varies=True)
    result("equal_over_equal", again / equal_seconds, varies=True)
    result("work_ratio", balanced_work / equal_work, varies=True)
    assert 0.7 < balanced_work / equal_work < 1.4

# By little or nothing. The ranks work one after the other, so a step takes the sum of
# the stages, and the sum is the same for every cut.
#
# The balanced cut took (work_ratio) times the processor time of the equal one, and
# (balanced_over_equal) times its time by the clock. What is such a number worth? The
# equal cut was measured a second time, in turns with the others, and took
# (equal_over_equal) times its own time, with nothing changed. Differences of that order
# say nothing about a cut.
#
# It is another matter where several batches are under way, each in another stage:


def seconds_with(batches, stages):
    """Of a chain of stages, where each batch follows the one before."""
    free = [0.0] * len(stages)  # from when on each stage is free
    for _ in range(batches):
        done = 0.0
        for k, cost in enumerate(stages):
            done = free[k] = max(done, free[k]) + cost
    return done


if rank == 0:
    of_both = [stage_costs(costs, bounds) for bounds in (equal, balanced)]
    assert np.isclose(*(seconds_with(1, stages) for stages in of_both))
    equal_many, balanced_many = (seconds_with(16, stages) for stages in of_both)
    assert balanced_many <= equal_many
    result("many_gain", equal_many / balanced_many, varies=True)
    save_figures()

# With 16 batches, by the costs that were measured, equally many layers take (many_gain)
# times as long as the balanced cut: the slowest stage sets the pace for all. Chapter 17
# runs such schedules.
#
# As long as there is one batch at a time, balance is a matter of memory. `balance` does
# not mind: give it bytes in place of seconds.

# --- One weight, two owners -----------------------------------------------------------

# GPT-2, like many others, uses one matrix twice: row c of the embedding is the vector
# that stands for token c, and the head compares its input with these same vectors.
# These tied weights save parameters, and often the model is better [press2017]. In one
# process it is an assignment: `model.head.logits.weight = model.embed.tokens.weight`.
# In ours the first layer is on the first rank and the head is on the last.
#
# Predict: Both ranks start with the same copy, and each trains its own. What is each
# copy's gradient? What becomes of the copies after a few steps?

everyone()
if rank == 0:
    print("\n## One weight, two owners\n")

play("ranks")
ends = dist.new_group([0, world_size - 1])


def tied_stage(sum_gradients):
    """A stage of a tiny GPT, an optimizer, the weight that two ranks share."""
    layers = gpt_stage(tiny, evenly, rank, dtype=torch.float64)
    optimizer = torch.optim.AdamW(layers.parameters(), 3e-3)
    if rank == 0:
        shared = layers.embed.tokens.weight
    elif rank == world_size - 1:
        shared = layers.head.logits.weight
        with torch.no_grad():  # it begins as the other copy does
            shared.copy_(drawn("embed.tokens.weight", shared.shape))
    else:
        return layers, optimizer, None
    if sum_gradients:  # just before each step of the optimizer
        optimizer.register_step_pre_hook(
            lambda *_: dist.all_reduce(shared.grad, group=ends)
        )
    return layers, optimizer, shared


def tied_training(sum_gradients, steps=12):
    """Train; return the shared weight, and all parameters of this rank."""
    layers, optimizer, shared = tied_stage(sum_gradients)
    for step in range(steps):
        train_step(
            layers,
            optimizer,
            *windows(tokens, 4, tiny.context, step),
            tiny.width,
        )
    return shared, list(layers.parameters())


everyone()

drifting, _ = tied_training(False)
together, of_stage = tied_training(True)


def tied_alone(steps=12):
    model = gpt(tiny, dtype=torch.float64)
    model.head.logits.weight = model.embed.tokens.weight
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(steps):
        inputs, targets = windows(tokens, 4, tiny.context, step)
        optimizer.zero_grad()
        language_loss(model(inputs), targets).backward()
        optimizer.step()
    return model.embed.tokens.weight, list(model.parameters())


everyone()

alone, of_whole = tied_alone()
copies = [w if w is None else w.numpy(force=True)
          for w in (drifting, together, alone)]

copies_by_rank = to_rank_0(copies)
if rank == 0:
    play("kernel")
    of_first, *_, of_last = copies_by_rank
    drift, kept, _ = (np.abs(a - b).max() for a, b in zip(of_first, of_last))
    result("copies_apart", round(float(drift), 2))
    assert drift > 0.01 and kept == 0
    assert np.abs(of_first[1] - of_first[2]).max() < 1e-12

# Nothing hangs, nothing is said, and the copies drift apart, by up to (copies_apart)
# after 12 steps. The weight is used in two places, and the gradient of a weight that is
# used twice is the sum of both uses. Autograd does that addition where both uses are in
# its graph. Here each rank has one of the terms: the first one that of looking up, the
# last one that of comparing.
#
# So the two owners add their gradients before each step: an all-reduce in a group of
# two. Then both step alike, and the copies stay equal. It is the sum and not the mean:
# these are not two opinions on one gradient, as in data parallelism, but its two terms.
#
# The next mistake is to count twice. The shared weight is there twice, but it is one
# parameter, and whatever is added up over all ranks has it two times in the sum:


def over_all_ranks(parameters, of_one):
    """The sum of of_one(p) over all parameters of all ranks."""
    total = sum(
        (of_one(p) for p in parameters), torch.zeros((), dtype=torch.float64)
    )
    dist.all_reduce(total)
    return total.item()


everyone()
play("ranks")

counted_once = [p for p in of_stage if rank == 0 or p is not together]
n_parameters = [
    over_all_ranks(those, torch.numel) for those in (of_stage, counted_once)
]
n_alone = sum(map(torch.numel, of_whole))

n_parameters_by_rank = to_rank_0(n_parameters)
if rank == 0:
    play("kernel")
    n_twice, n_once = n_parameters_by_rank[0]

n_alone_by_rank = to_rank_0(n_alone)
if rank == 0:
    assert n_once == n_alone_by_rank[0] < n_twice
    result("parameters_counted", int(n_twice))
    result("parameters_there", int(n_once))

# (parameters_there) parameters are counted as (parameters_counted). The norm of the
# gradient is too large in the same way: clipping by it clips too much, without an
# error.

# --- Extra: a sentence from a model that nobody holds ---------------------------------

# A model that nobody holds can still write. To train it, all ranks own a part:

everyone()
if rank == 0:
    print("\n## Extra: a sentence from a model that nobody holds\n")

play("ranks")
layers = gpt_stage(small, evenly, rank)
optimizer = torch.optim.AdamW(layers.parameters(), 1e-2)
losses = []
for step in range(80):
    inputs, targets = windows(tokens, 16, small.context, step)
    losses.append(train_step(layers, optimizer, inputs, targets, small.width))

losses_by_rank = to_rank_0(losses)
if rank == 0:
    play("kernel")
    loss_by_step = losses_by_rank[-1]  # the last rank has the loss
    first_loss, last_loss = loss_by_step[0], np.mean(loss_by_step[-10:])
    assert last_loss < 0.8 * first_loss
    result("first_loss", round(first_loss, 1))
    result("last_loss", round(last_loss, 1))

# The loss goes from (first_loss) to (last_loss).


def generate(next_logits, prompt, length, seed=0):
    """`prompt`, `length` more characters, by next_logits(tokens (1, time)).

    Of a split model, every rank calls it, and next_logits gives every rank the
    same numbers, one for each token of the vocabulary.
    """
    g, tokens = torch.Generator().manual_seed(seed), encode(prompt)[None]
    for _ in range(length):
        p = torch.softmax(next_logits(tokens).double().cpu(), -1)
        drawn = torch.multinomial(p, 1, generator=g)[None]
        tokens = torch.cat([tokens, drawn.to(tokens)], 1)
    return decode(tokens[0].tolist())


# For a model in one piece `next_logits` is `lambda tokens: model(tokens)[0, -1]`. For
# one in several, a window goes through all stages, and the last one has a number for
# each character. It broadcasts them to all ranks; then everybody draws the next
# character, with the same generator, and so the same one. There is no backward, so
# nothing is kept for it. For each character the whole window is computed anew. Real
# systems keep the keys and values of earlier tokens, the KV cache, and send one token
# over each seam.


def next_logits_of(layers, shape, group=None):
    """The next_logits of a GPT in stages, for `generate`, called by all ranks.

    layers: this rank's stage. Stage k is rank k of the group.
    """
    last = dist.get_world_size(group) - 1
    device = next(layers.parameters()).device

    @torch.no_grad()
    def next_logits(tokens):
        seen = tokens[:, -shape.context :].to(device)
        out = through(layers, seen, (*seen.shape, shape.width), group)
        logits = out.new_empty(shape.vocabulary, dtype=torch.float32)
        if dist.get_rank(group) == last:
            logits.copy_(out[0, -1])
        dist.broadcast(logits, group=group, group_src=last)
        return logits.cpu()

    return next_logits


# Now the same model on fewer ranks. The parts have the names that they have in the
# whole. So a layout is changed by collecting the parts, and taking out what the new
# stage asks for: a checkpoint of one layout opens in every other, as far as weights are
# concerned. An optimizer numbers its state by position, so before its parts are joined
# they must be given names. And here every rank collects the whole model, which is fine
# for a small one; a large one goes through files, of which each rank reads what it
# needs.

everyone()
play("ranks")
parts = [None] * world_size
dist.all_gather_object(parts, layers.state_dict())
trained_weights = {k: w for part in parts for k, w in part.items()}


def sentence(n, seed=0, length=40):
    """What the trained model writes when n ranks own it; None on the others."""
    if rank >= n:
        return None
    stage = gpt_stage(small, even_cut(n), rank)
    names = stage.state_dict()
    stage.load_state_dict({name: trained_weights[name] for name in names})
    next_logits = next_logits_of(stage, small, first_ranks[n])
    return generate(
        lambda tokens: 2 * next_logits(tokens), "The ", length, seed
    )


# Twice the logits make likely characters more likely: a temperature of 1/2.

everyone()
sentences = [sentence(n) for n in teams]

sentences_by_rank = to_rank_0(sentences)
if rank == 0:
    play("kernel")
    alike = {text for of_rank in sentences_by_rank for text in of_rank}
    (the_sentence,) = alike - {None}  # all wrote the same
    print(the_sentence)

# It is not Python's documentation yet. After 80 steps the model knows little more than
# which characters are frequent, and the most frequent one is the space. Words take a
# longer training. But it is one and the same text, from one owner as from all.

# --- When it is worth it --------------------------------------------------------------

# In one process with two GPUs the same cut is a few lines. `.to(other)` is the seam:
# for autograd it is an operation like any other, and in backward the gradient is copied
# back. The targets belong on the last GPU. One optimizer can have all parameters,
# wherever they lie.

everyone()
if rank == 0:
    print("\n## When it is worth it\n")

play("ranks")
two = torch.cuda.device_count() > 1
one, other = ("cuda:0", "cuda:1") if two else ("cpu", "cpu")
front, back = gpt(tiny, 0, 4).to(one), gpt(tiny, 4).to(other)
logits = back(front(tokens[None, :8].to(one)).to(other))
language_loss(logits, tokens[None, 1:9].to(other)).backward()
in_one_piece = gpt(tiny)
show(language_loss(in_one_piece(tokens[None, :8]), tokens[None, 1:9]).backward(), rank)

everyone()
for a, b in zip(front.parameters(), in_one_piece.parameters()):
    assert torch.allclose(a.grad.cpu(), b.grad.cpu(), atol=1e-4)

# One of the two GPUs is idle at any moment, as before. A machine with one GPU, or none,
# runs this cell on the CPU.
#
# Cut between layers, n ranks train at the speed of one. If the model fits on one rank,
# data parallelism is better: the same n ranks, each on a processor of its own, have up
# to n times the speed (chapter 12). What remains is the model that does not fit. How
# soon is that?
#
# GPT-3 has 96 blocks of width 12,288 and a vocabulary of 50,257, and was trained on 3.2
# million tokens a step [brown2020]. A block has 12 · width² parameters, 4 of the 12 in
# attention and 8 in its MLP. Adam in mixed precision needs 16 bytes for each parameter
# [rajbhandari2020], and an H100 has 80 GB [hopper].

everyone()
if rank == 0:
    play("kernel")
    parameters = 12 * 96 * 12_288**2 + 50_257 * 12_288  # attention 4, MLP 8
    result("billions", round(parameters / 1e9))
    result("state_tb", round(16 * parameters / 1e12, 1))
    result("gpus", int(np.ceil(16 * parameters / 80e9)))
    blocks_each = int(80e9 // (16 * 12 * 12_288**2))  # so many fit
    result("blocks_each", blocks_each)
    result("stages", int(np.ceil(96 / blocks_each)))
    result("gradient_gb", round(2 * parameters / 1e9))
    seam = 2 * 3.2e6 * 12_288  # 3.2 million tokens a step, 2 bytes a number
    result("seam_gb", round(seam / 1e9))
    result("million_tokens_equal", round(parameters / 12_288 / 1e6))
    result("seam_seconds", round(2 * seam / 50e9, 1))  # there and back, 50 GB/s
    stages = int(np.ceil(96 / blocks_each))
    result("stage_seconds", round(6 * parameters * 3.2e6 / stages / 989e12))


def training_bytes(parameters, activations, precision="mixed", owners=1):
    """{what: bytes} that each of `owners` holds; activations: how many numbers.

    mixed: bfloat16, but a copy of the weights and Adam's moments in float32."""
    each = 4 if precision == "float32" else 2
    state = {"float32": 8, "mixed": 12, "bfloat16": 4}[precision]
    of_each = {"weights": each, "gradients": each, "optimizer": state}
    held = {what: nbytes * parameters for what, nbytes in of_each.items()}
    held["activations"] = each * activations
    return {what: nbytes / owners for what, nbytes in held.items()}


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


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


def bar_chart(x, y, domain=None):
    """Bars that are made of parts: rows have `x`, a name, `y`, and `which` part."""
    encoding = {
        "x": {"field": "x", "type": "nominal", "sort": None, "title": x, "axis": {"labelAngle": 0}},
        "y": _axis("y", y, False, domain),
        "color": _which(),
        "order": {"field": "part", "type": "quantitative"},
    }
    return {"layer": [{"mark": "bar", "encoding": encoding}]}


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
    models = {"7B": (32, 4096, 32_000), "1.3B": (24, 2048, 50_257)}
    models["GPT-3, 175B"] = 96, 12_288, 50_257  # blocks, width, vocabulary


def bytes_of(model, precision, tokens, owners):
    blocks, width, vocabulary = model
    weights = 12 * blocks * width**2 + vocabulary * width
    saved = 17 * tokens * width * blocks  # 34 bytes a feature in bfloat16
    held = training_bytes(weights, saved, precision, owners)
    whole = sum(held.values()) / 1e9
    fits = "fits" if whole < 80 else "does not fit"
    bars = [
        {"x": "each owner", "y": nbytes / 1e9, "which": what, "part": k}
        for k, (what, nbytes) in enumerate(held.items())
    ]
    says = f"{whole:,.3g} GB on each owner:\nthat {fits} in a card of 80 GB"
    return says, bars


if rank == 0:
    show(playable(
        bytes_of,
        bar_chart(None, "GB"),
        name="play-bytes",
        alt="A bar of weights, gradients, optimizer state and saved activations.",
        model=models,
        precision=["mixed", "float32", "bfloat16"],
        tokens=[4096, 2048, 16_384, 65_536, 262_144],
        owners=[1, 2, 4, 8, 16, 32, 64, 128],
    ))

# Memory. Its (billions) billion parameters need (state_tb) TB, before the first
# activation is saved: at least (gpus) GPUs to hold it. Cut between layers it takes
# more: only (blocks_each) whole blocks fit on one, which makes (stages) stages. One
# batch at a time, all but one of them would be idle at any moment.
#
# Messages. Over each seam go (seam_gb) GB forward, and as much back. The gradients,
# which data parallelism would send, are (gradient_gb) GB, whatever the batch; the two
# are equal at (million_tokens_equal) million tokens. Of the ways to cut a model (this
# one and that of chapter 18), this one sends least, and only to a neighbor. So large
# systems cut between layers where the cut goes from one machine to another
# [narayanan2021].
#
# Worked problem: How long do the messages of one seam take, beside what one stage
# computes? Between hosts a link of 400 Gbit/s carries 50 GB/s [connectx7], and an H100
# computes at most 989 · 10¹² operations a second in bfloat16 [h100]. A step takes 6
# operations for each parameter and token. Answer: the seam, there and back,
# (seam_seconds) s; a stage's share of the operations, (stage_seconds) s. So the
# messages are no obstacle; the idle stages are.
#
# The rule: if the model fits, divide the batch. If it does not, first ask whether it
# can be made to fit (a smaller batch, activations computed twice [chen2016], state that
# is sharded [rajbhandari2020]). If not, divide the model, and cut it between layers
# where the links are slow. And never pass one batch at a time: the next chapter keeps
# the ranks busy.

# --- What you can do now --------------------------------------------------------------

# - Cut a chain of layers between any ranks: activations forward, gradients back, by
#   hand and as autograd functions.
# - Give each parameter initial values that do not depend on the layout, and show that a
#   cut model trains as the whole one does.
# - Recognize a gradient that was never sent back, from where each rank waits.
# - Say what a cut saves and what it costs: memory, time, bytes; and predict it.
# - Balance a cut by measured costs, and say when that gains time and when only memory.
# - Handle a weight with two owners: add its gradients, count it once.
# - Generate from a model that no rank holds, and move it to another number of ranks.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/16_layers.py
#
# With more hosts, the same file under `torchrun --nnodes`. The model, `Send`,
# `Receive`, `through` and `balance` are in `ranklab.taught.layers`. The next chapters
# import the model from there. They send in other ways: chapter 17 by hand again,
# because with `Send` and `Receive` it is autograd that decides when a message goes.

# --- Where to read on -----------------------------------------------------------------

# - [dean2012]: DistBelief, an early framework for one model over many machines, cut
#   through layers as well as between them.
# - [radford2019]: GPT-2, whose architecture this chapter's model has in small (its
#   blocks, their norms in front).
# - [press2017]: why the embedding and the head may share a weight.
# - [narayanan2021]: cuts between layers, in layers and of the batch, together, on
#   thousands of GPUs, and which of them belongs on which links.
# - [huang2019]: GPipe, which makes the bubble small: the next chapter.

leave_group()
