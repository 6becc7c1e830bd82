# Chapter 13 of Many Ranks, One Model, as one script. Generated from book/13_own_framework.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 13_own_framework.py
#     mpiexec -n 4 python 13_own_framework.py
#
# pip install matplotlib mpi4py mpich numpy pillow pygraphviz scikit-image scikit-learn threadpoolctl torch

import atexit
import functools
import html
import math
import os
import pickle
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import tracemalloc
from datetime import timedelta
from importlib.util import find_spec
from itertools import islice
from math import prod
from pathlib import Path
from time import process_time
from timeit import timeit
from types import SimpleNamespace


def start_ranks():
    """Started by hand: become mpiexec, which starts this file once for each rank."""
    beside = os.path.dirname(sys.executable)
    mpiexec = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if not mpiexec or not find_spec("mpi4py"):
        missing = "mpi4py" if mpiexec else "mpiexec"
        sys.exit(f"The ranks talk through MPI, and {missing} is missing: pip install mpich mpi4py")
    if "RANK" in os.environ:  # torchrun has started some, of which one says so
        words = f"The ranks talk through MPI. Start them with: mpiexec -n N python {sys.argv[0]}"
        sys.exit(words if os.environ["RANK"] == "0" else 0)
    n = os.environ.get("RANKLAB_RANKS", "4")
    # The ranks share the processor: one thread each, and who waits gives it away (in MPICH).
    for name in ("OMP_NUM_THREADS", "MPIR_CVAR_ENABLE_HEAVY_YIELD"):
        os.environ.setdefault(name, "1")
    os.execv(mpiexec, [mpiexec, "-n", n, sys.executable, *sys.argv])


if not os.environ.keys() & {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} or not find_spec("mpi4py"):
    start_ranks()

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from numpy.lib.stride_tricks import as_strided
from threadpoolctl import threadpool_limits


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
    limit = timedelta(seconds=20)
    defaults = dist.distributed_c10d  # what dist.new_group() goes by, if not told otherwise
    defaults.default_pg_timeout = limit
    if defaults.default_pg_nccl_timeout is not None:  # there is NCCL in this build of torch
        defaults.default_pg_nccl_timeout = limit
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=limit)
    driver = dist.new_group(backend="gloo", timeout=timedelta(hours=1))


def end_all_(*error):
    """An error that nobody catches ends all ranks: they would wait for this one for ever."""
    from mpi4py import MPI

    sys.stderr = sys.__stderr__  # torch would keep the text until this function returns
    sys.__excepthook__(*error)
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.2)  # mpiexec, which ends now, is to show it first
    MPI.COMM_WORLD.Abort(1)


signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank also while it waits
sys.excepthook = end_all_
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


playing = "kernel"
APART = ["averaged", "curves", "k", "left", "p", "right", "sent"]  # the kernel and the ranks have one each
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


# === Your own framework: a training with nothing behind it ============================

# A training with PyTorch rests on some million lines that you have not written. Which
# few of them does it need? And do they give the same numbers when you write them
# yourself?
#
# 35 minutes to read, 14 predictions · 30 seconds to run · stands on chapter 2, chapter
# 8, chapter 9, chapter 10 and chapter 12
#
# Chapter 2 ended with an autograd of a few operations. Here it grows until it trains a
# ResNet-9 on images, with NumPy alone. Every operation is compared with PyTorch's. Then
# the framework becomes data parallel over MPI, and one process or four come to the same
# weights.
#
# At the end you can write an operation with its gradient and test it, make a
# convolution a matrix product, write Adam, and share a training among ranks of MPI.

# --- An operation and its rules -------------------------------------------------------

# The whole framework rests on one convention. An operation is a function of arrays. It
# returns its value and, for each of its inputs, a rule: a function that turns the
# gradient of the value into the gradient of that input.


def add(a, b):
    """a + b, and a rule for each of them."""
    return a + b, (
        lambda grad: unbroadcast(grad, a.shape),
        lambda grad: unbroadcast(grad, b.shape),
    )


def mul(a, b):
    """a * b, and a rule for each of them."""
    return a * b, (
        lambda grad: unbroadcast(grad * b, a.shape),
        lambda grad: unbroadcast(grad * a, b.shape),
    )


# In chapter 2 one rule gave all gradients. With a rule for each input, those that
# nobody needs, such as an image's, are never computed.
#
# NumPy broadcasts: it repeats a smaller array along the axes that it lacks, and along
# those in which it has length 1. An entry that was used many times gets the sum of the
# gradients from all its uses. So a rule sums over what was repeated.


def unbroadcast(grad, shape):
    """Sum a gradient over what was repeated: back to `shape`."""
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    ones = tuple(i for i, n in enumerate(shape) if n != grad.shape[i])
    return grad.sum(axis=ones, keepdims=True)


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

# Now the smallest example that has everything in it: $y = xw + x$, in which `x` is used
# twice and `w` is repeated for both rows of `x`. The gradients are those of the sum of
# all entries of $y$.
#
# Predict: What is the gradient of `x`, an array of four, and that of `w`, an array of
# two?

if rank == 0:
    print("\n## An operation and its rules\n")
    x, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 100.0])
    product, rules_of_product = mul(x, w)
    y, rules_of_y = add(product, x)

    grad_y = np.ones_like(y)
    grad_product, one_part = (rule(grad_y) for rule in rules_of_y)
    other_part, grad_w = (rule(grad_product) for rule in rules_of_product)
    grad_x = one_part + other_part

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


# From ranklab.framework.graph_in_dot:

GRAY, ORANGE = 'color="gray60" fontname=Helvetica', 'color="#B34E00"'


def both_ways(nodes, arrows):
    """The graph. nodes: name -> (value, gradient); arrows: (later, earlier) -> what goes up."""
    dot = [f"nodesep=0.6; ranksep=0.5; node [shape=box style=rounded {GRAY}]"]
    for name, (value, grad) in nodes.items():
        inside = f"{name}<br/>{_text_of(value)}<br/><font {ORANGE}>{_text_of(grad)}</font>"
        dot.append(f'"{name}" [label=<{inside}>]')
    for (later, earlier), part in arrows.items():
        edge, up = f'"{earlier}" -> "{later}"', f"dir=back style=dashed {ORANGE} font{ORANGE}"
        label = f'label="{_text_of(part, end=chr(92) + "n")}" fontname=Helvetica'
        dot += [f"{edge} [color=gray60]", f"{edge} [{up} {label}]"]
    return f"digraph {{{'; '.join(dot)}}}"


def _text_of(array, end="<br/>"):
    rows = np.atleast_2d(array.astype(int)).tolist()
    return end.join("  ".join(map(str, row)) for row in rows)


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
    assert grad_x.tolist() == 2 * [[11, 101]] and grad_w.tolist() == [4, 6]
    nodes = {"w": (w, grad_w), "x": (x, grad_x),
             "x w": (product, grad_product), "y": (y, grad_y)}
    arrows = {("x w", "w"): grad_w, ("x w", "x"): other_part, ("y", "x"): one_part,
              ("y", "x w"): grad_product}
    show(drawing(
        both_ways(nodes, arrows),
        name="values-and-gradients",
        alt="A graph with four boxes. Gray arrows go down: w and x lead to their "
        "product, the product and x to y. Beside each an orange arrow goes up, "
        "with its part of the gradient. In x, the two parts are added.",
    ))

# Black are values, and they go down; orange are gradients, and they go up, each rule
# called once. `x` was used twice, so two parts meet in it, and are added. `w` was
# repeated for both rows, so its gradient is a sum over them.
#
# Matrix products, ReLU, log-sum-exp and some others have the same form. What the page
# does not show is in `ranklab/framework/`: its `operations.py` has functions like these
# two.


def matmul(a, b):
    """The product of matrices, or of stacks of them."""
    return a @ b, (
        lambda grad: unbroadcast(grad @ b.swapaxes(-1, -2), a.shape),
        lambda grad: unbroadcast(a.swapaxes(-1, -2) @ grad, b.shape),
    )


# From ranklab.framework.operations:


def exp(x):
    """e ** x, entry by entry."""
    value = np.exp(x)
    return value, (lambda grad: grad * value,)


def log(x):
    """The natural logarithm, entry by entry."""
    return np.log(x), (lambda grad: grad / x,)


def log_sum_exp(x, axis=-1, keepdims=False):
    """log(sum(exp(x))) over one axis or several, without overflow."""
    largest = x.max(axis=axis, keepdims=True)
    largest[np.isneginf(largest)] = 0  # inf - inf would be nan
    shares = np.exp(x - largest)
    sums = shares.sum(axis=axis, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # where all are -inf
        shares /= sums  # the softmax
        value = np.log(sums) + largest

    def rule(grad):
        return (grad if keepdims else np.expand_dims(grad, axis)) * shares

    return value if keepdims else value.squeeze(axis), (rule,)


def permute(x, axes):
    """The axes in another order."""
    return x.transpose(axes), (lambda grad: grad.transpose(np.argsort(axes)),)


def pick(x, index):
    """x[index], for any index that NumPy takes."""

    def rule(grad):
        spread = np.zeros_like(x)
        np.add.at(spread, index, grad)  # an entry that was picked twice gets both
        return spread

    return x[index], (rule,)


def power(x, exponent):
    """x ** exponent, entry by entry; the exponent is a number."""

    def rule(grad):
        return grad * (exponent * x ** (exponent - 1)) if exponent else 0 * grad

    return x**exponent, (rule,)


def relu(x):
    """x where it is positive, else 0."""
    value = np.maximum(x, 0)
    return value, (lambda grad: grad * (value > 0),)


def reshape(x, shape):
    """The same entries in another shape; one length may be -1."""
    return x.reshape(shape), (lambda grad: grad.reshape(x.shape),)


def tanh(x):
    """The hyperbolic tangent, entry by entry."""
    value = np.tanh(x)
    return value, (lambda grad: grad * (1 - value * value),)


def total(x, axis=None, keepdims=False):
    """The sum over one axis, several, or all."""
    value = x.sum(axis=axis, keepdims=keepdims)

    def rule(grad):
        if axis is not None and not keepdims:
            grad = np.expand_dims(grad, axis)
        return np.broadcast_to(grad, x.shape)

    return value, (rule,)


# From ranklab.framework.operators:


class Operators:
    """Methods of a tensor that has an `array`, and an `apply`, which records an operation."""

    __array_priority__ = 1000  # array * tensor asks the tensor, not NumPy

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)
    T = property(lambda self: self.permute(*reversed(range(self.ndim))))
    data = property(lambda self: type(self)(self.array), doc="The same array, without its past.")

    @property
    def requires_grad(self):
        """Whether backward shall compute a gradient for it."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted):
        if wanted and self.dtype.kind != "f":
            raise RuntimeError("Only Tensors of floating point dtype can require gradients")
        self._requires_grad = wanted

    def tensor(self, other):
        """A tensor as it is; a number or an array as one that needs no gradient."""
        if isinstance(other, Operators):
            return other
        return type(self)(np.asarray(other, np.result_type(self.dtype, other)))

    def numpy(self):
        """The array itself, not a copy."""
        return self.array

    def item(self):
        """The only entry, as a number."""
        return self.array.item()

    def __len__(self):
        return len(self.array)

    def __repr__(self):
        note = ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({np.array2string(self.array, separator=', ', prefix='Tensor(')}{note})"

    def __radd__(self, other):
        return self + other

    def __rmul__(self, other):
        return self * other

    def __neg__(self):
        return self * -1

    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    def __truediv__(self, other):
        return self * other**-1

    def __rtruediv__(self, other):
        return self**-1 * other

    def __pow__(self, exponent):
        return self.apply(power, exponent=exponent)

    def __getitem__(self, index):
        return self.apply(pick, index=index)

    def exp(self):
        return self.apply(exp)

    def log(self):
        return self.apply(log)

    def tanh(self):
        return self.apply(tanh)

    def relu(self):
        return self.apply(relu)

    def sum(self, axis=None, keepdims=False):
        return self.apply(total, axis=axis, keepdims=keepdims)

    def mean(self, axis=None, keepdims=False):
        added = self.sum(axis, keepdims)
        return added * (added.size / self.size)

    def logsumexp(self, axis=-1, keepdims=False):
        return self.apply(log_sum_exp, axis=axis, keepdims=keepdims)

    def reshape(self, *shape):
        return self.apply(reshape, shape=shape)

    def flatten(self, start_dim=0):
        return self.reshape(*self.shape[:start_dim], -1)

    def permute(self, *axes):
        return self.apply(permute, axes=axes)


# From ranklab.framework.grad_mode:

_nested = []


def recording():
    """Whether a tensor shall remember what it was computed from."""
    return not _nested


# --- A tensor that remembers ----------------------------------------------------------

# By hand we have kept the rules, and called them in the right order. A tensor does the
# first: it remembers its sources, and the rule of each.


class Tensor(Operators):
    """An array that remembers what it was computed from."""

    def __init__(self, array, requires_grad=False, sources=(), rules=()):
        self.array = np.asarray(array)
        self.requires_grad = requires_grad
        self.sources, self.rules = sources, rules
        self.grad, self.into, self.hooks = None, None, []

    def apply(self, operation, *others, **options):
        """operation(self, *others) as a Tensor that remembers it."""
        sources = self, *map(self.tensor, others)
        value, rules = operation(*(s.array for s in sources), **options)
        if recording() and any(s.requires_grad for s in sources):
            return Tensor(value, True, sources, rules)
        return Tensor(value)

    def __add__(self, other):
        return self.apply(add, other)

    def __mul__(self, other):
        return self.apply(mul, other)

    def __matmul__(self, other):
        return self.apply(matmul, other)

    def backward(self):
        backward(self)


# From ranklab.taught.graphs:


def in_order(output):
    """All Tensors behind `output`, itself included, each after its sources."""
    order, seen = [], set()

    def visit(node):
        if id(node) not in seen:
            seen.add(id(node))
            for source in node.sources:
                visit(source)
            order.append(node)

    visit(output)
    return order


# `Operators` has the other methods: `x.relu()` is `x.apply(relu)`. `self.tensor` makes
# a tensor of a number, and `recording()` is false within `no_grad()`. With
# `requires_grad=True` a leaf says that it wants a gradient. A result that depends on no
# such leaf remembers nothing. `into` and `hooks` are for the second half of the
# chapter.
#
# The second thing is the order: a node's rules may be called once everything that used
# the node has handed on its part. Chapter 2 has such an order, `in_order`, a function
# that calls itself for each source.
#
# Predict: A chain of 10,000 additions. Does `in_order` get through it?

if rank == 0:
    print("\n## A tensor that remembers\n")
    chain = Tensor(np.zeros(1), requires_grad=True)
    for _ in range(10_000):
        chain = chain + 1.0
    try:
        in_order(chain)
    except RecursionError as error:
        print(type(error).__name__)

# It does not: Python lets calls nest about 1,000 deep. A list of what is to be done has
# no such limit. A node goes back on it below its sources; when it comes off again, they
# are done.


def topological(output):
    """All Tensors behind `output` that want gradients, sources first."""
    order, seen, todo = [], set(), [(output, False)]
    while todo:
        node, sources_are_done = todo.pop()
        if sources_are_done:
            order.append(node)
        elif node.requires_grad and id(node) not in seen:
            seen.add(id(node))
            todo.append((node, True))  # again, when its sources are done
            todo += [(source, False) for source in reversed(node.sources)]
    return order


# From ranklab.framework.grad_mode:


def checked(order):
    """The tensors that a backward goes through, the output last; RuntimeError if it cannot."""
    if not order:
        raise RuntimeError("this Tensor does not require grad and has no graph: nothing to do")
    if order[-1].size != 1:
        raise RuntimeError("grad can be created only for scalar outputs, such as a loss")
    if any(node.rules is None for node in order):
        raise RuntimeError(
            "Trying to backward through the graph a second time: the first time used it up"
        )
    return order


# Backward takes that order from its end. When a node's turn comes, its gradient is
# complete.


def backward(output):
    """Add the gradient of `output`, one number, to each leaf's `.grad`."""
    order = checked(topological(output))
    grads = {id(output): np.ones_like(output.array)}
    while order:
        node = order.pop()
        grad = grads.pop(id(node))
        if not node.sources:
            accumulate(node, grad)
            continue
        for source, rule in zip(node.sources, node.rules):
            if source.requires_grad:
                part, known = rule(grad), grads.get(id(source))
                grads[id(source)] = part if known is None else known + part
        node.sources, node.rules = (), None  # the graph is used up


# The last line frees the graph while it is gone through: what the rules remember, the
# activations, is memory that the next step needs. `checked` refuses, in words, what
# cannot be done, such as a second backward. A leaf keeps what arrives, in an array of
# its own.


def accumulate(leaf, grad):
    """Add to a leaf's gradient, which is complete now."""
    if leaf.grad is not None:
        leaf.grad += grad
    elif leaf.into is not None:
        leaf.into[...] = grad
        leaf.grad = leaf.into
    else:  # `grad` may be somebody else's, too
        leaf.grad = np.array(grad, leaf.dtype, order="C")
    for hook in leaf.hooks:
        hook(leaf)


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# The methods have PyTorch's names where they can, so one function runs on both.


def formula(x, w, b):
    return (((x @ w + b).relu() - 0.5) * x).logsumexp(-1).mean()


if rank == 0:
    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=shape) for shape in ((4, 4), (4, 4), 4)]
    ours = [Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    formula(*ours).backward()
    formula(*theirs).backward()
    off = max(np.abs(a.grad - b.grad.numpy()).max() for a, b in zip(ours, theirs))
    result("autograd_off", float(off), varies=True)
    assert off < 1e-14

# The gradients agree to (autograd_off). In the tests each operation is compared in this
# way.

# --- Something goes wrong: a node visited twice ---------------------------------------

# Why an order at all? When a part of a gradient arrives, what the node has so far could
# be handed on at once.


def hasty(node, grad):
    """A backward without an order: hand on the sum so far, at once."""
    node.grad = grad if node.grad is None else node.grad + grad
    for source, rule in zip(node.sources, node.rules):
        if source.requires_grad:
            hasty(source, rule(node.grad))


# On a chain of layers this gives the right gradients, so the first tests pass. Now a
# block in which the input is used twice, as in every residual network: $x \leftarrow
# \frac12 x + \frac12 x$. The output is the input, however many blocks there are, and so
# the gradient is 1.
#
# Predict: What does `hasty` say after one block, after two, after ten?


def gradient_by(go_back, blocks):
    leaf = x = Tensor(np.ones(()), requires_grad=True)
    for _ in range(blocks):
        x = x * 0.5 + x * 0.5
    go_back(x)
    return float(leaf.grad)


if rank == 0:
    hasty_gradients = [gradient_by(lambda x: hasty(x, np.ones(())), blocks)
                       for blocks in (1, 2, 3, 10)]
    print(hasty_gradients)

if rank == 0:
    assert hasty_gradients[:2] == [1, 2] and hasty_gradients[-1] > 1e14
    assert gradient_by(backward, 10) == 1

# After one block it is right. After two it is doubled. The node between the blocks
# should hand on 1, once. It hands on ½ when the first part arrives, and 1, in which
# that ½ is contained, when the second does: 1½ in all. The two products behind it make
# the same mistake with what they are given, and the input ends at 2. To hand on the
# part alone, `rule(grad)`, would repair the numbers, as rules are linear, but not the
# visits: through ten blocks lead $2^{10}$ paths, and it would walk them all. With the
# order each node is visited once. The test with one block is green, a network with two
# trains on wrong gradients, and nothing says so.
#
# What finds it is a check that knows nothing of graphs. Change one entry of an input by
# a little, up and down, and see how much the value changes: a central difference.


def slope(f, array, at, step=1e-6):
    """The derivative of f(array) with respect to array[at], measured."""
    up, down = array.copy(), array.copy()
    up[at] += step
    down[at] -= step
    return (f(up) - f(down)) / (2 * step)


if rank == 0:
    slopes = [slope(lambda x: formula(Tensor(x), *ours[1:]).item(), arrays[0], at)
              for at in np.ndindex(4, 4)]
    assert np.allclose(slopes, ours[0].grad.ravel(), rtol=0, atol=1e-8)

# It is slow, two forward passes for a single entry, and rounding and the step cost it a
# third of the digits or more. But it shares no code with what it tests. Whoever writes
# an operation writes this test, too.

# --- A convolution is a matrix product ------------------------------------------------

# A convolution multiplies each window of an image by the same filters and sums. Put the
# windows into the rows of a matrix and the filters into the columns of another one, and
# it is one matrix product. The rearrangement is called im2col [chellapilla2006]. It
# moves the work into BLAS, which is the fastest thing that NumPy has (chapter 1).
#
# The windows need not be copied to be seen. An array is memory and, for each axis, a
# stride: the bytes from one entry to the next. `as_strided` invents axes over the same
# memory. It checks nothing: a wrong shape reads memory that is not the array's.


def windows(x, k, stride):
    """All k x k windows of x (n, h, w, c): (n, rows, columns, k, k, c)."""
    n, h, w, c = x.shape
    by_n, by_h, by_w, by_c = x.strides
    shape = n, (h - k) // stride + 1, (w - k) // stride + 1, k, k, c
    steps = by_n, by_h * stride, by_w * stride, by_h, by_w, by_c
    return as_strided(x, shape, steps, writeable=False)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    print("\n## A convolution is a matrix product\n")
    view = windows(image := np.arange(16.0).reshape(1, 4, 4, 1), 3, stride=1)
    assert np.shares_memory(view, image) and view.size == 4 * 9
    tables = {"image": image[0, :, :, 0], "windows": view.reshape(4, 9)}
    style = {"num": "im2col", "figsize": (5.2, 2.3), "width_ratios": [4, 9]}
    fig, axes = plt.subplots(1, 2, **style)
    for ax, (title, table) in zip(axes, tables.items()):
        ax.pcolormesh(table == 5, cmap="Oranges", vmax=2, edgecolor="gray")
        for (i, j), value in np.ndenumerate(table):
            ax.text(j + 0.5, i + 0.5, int(value), ha="center", va="center")
        ax.set(aspect="equal", xticks=[], yticks=[], title=title, ylim=(4, 0))
    assert (table == 5).sum() == 4
    save_figures()

# Backward goes from right to left. A pixel that lies in several windows was used
# several times, so its gradient is a sum over those windows: for the orange pixel, over
# all four.


def add_windows(parts, shape, stride):
    """Add up windows where they lie: what `windows` has read, backward."""
    x = np.zeros(shape, parts.dtype)
    _, rows, columns, k, _, _ = parts.shape
    for i, j in np.ndindex(k, k):
        down = slice(i, i + stride * rows, stride)
        right = slice(j, j + stride * columns, stride)
        x[:, down, right] += parts[:, :, :, i, j]
    return x


# For one of the k × k places within a window, all windows have different pixels, so one
# `+=` on a slice adds them all.
#
# Everything else is shapes. Outside, images are (n, channels, h, w) and filters (out,
# channels, k, k), as in PyTorch; inside, the channels come last, so that a window's
# rows are contiguous. With p windows of q numbers `patches` is (p, q), `filters` (out,
# q) and `value` (p, out). Then `flat(grad)` is (p, out) as well, the gradient of the
# windows (p, out) @ (out, q), and that of the filters (out, p) @ (p, q).


def conv(x, weight, bias, stride=1, padding=0):
    """Convolve images x (n, c, h, w) with filters (out, c, k, k)."""
    around = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    padded = np.pad(x.transpose(0, 2, 3, 1), around)
    view = windows(padded, weight.shape[2], stride)
    patches = view.reshape(-1, prod(view.shape[3:]))  # copies each window
    filters = weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)
    value = patches @ filters.T
    value += bias
    value = value.reshape(*view.shape[:3], -1)

    def flat(grad):
        return grad.transpose(0, 2, 3, 1).reshape(len(patches), -1)

    def to_x(grad):
        parts = (flat(grad) @ filters).reshape(view.shape)
        back = add_windows(parts, padded.shape, stride).transpose(0, 3, 1, 2)
        h, w = x.shape[2:]
        return back[:, :, padding : padding + h, padding : padding + w]

    def to_weight(grad):
        product = (flat(grad).T @ patches).reshape(-1, *view.shape[3:])
        return product.transpose(0, 3, 1, 2)

    rules = to_x, to_weight, lambda grad: flat(grad).sum(axis=0)
    return value.transpose(0, 3, 1, 2), rules


# Three products, as in a linear layer.
#
# Predict: The windows are copied before they are multiplied, and every pixel up to nine
# times. How much of the time is left for the product?

if rank == 0:
    shapes = (64, 32, 16, 16), (64, 32, 3, 3), 64, (64 * 16 * 16, 288), (288, 64)
    *inputs, left, right = (draw.random(shape, "float32") for shape in shapes)
    as_torch = [torch.tensor(a) for a in inputs]
    three = (lambda: conv(*inputs, padding=1), lambda: left @ right,
             lambda: torch.conv2d(*as_torch, padding=1))
    torch.set_num_threads(1)
    with threadpool_limits(1):  # they take turns
        seconds = np.array([[timeit(f, timer=process_time, number=1)
                             for f in three] for _ in range(6)])[1:]
    for what, ms in zip(("ours", "product", "PyTorch's"), 1e3 * seconds.T):
        print(f"{what:>9}: {min(ms):5.1f} to {max(ms):5.1f} ms")
    of_conv, of_product, of_torchs = np.median(seconds, axis=0)
    result("product_share", round(of_product / of_conv, 2), varies=True)
    result("conv_over_torchs", round(of_conv / of_torchs, 1), varies=True)
    result("patches_over_image", left.size // inputs[0].size)

# From ranklab.framework.modules:


class Module:
    """What has parameters (tensors that require gradients), buffers (arrays) and modules.

    All three are found among its attributes, in the order in which they were set.
    """

    training = True

    def __call__(self, *inputs):
        return self.forward(*inputs)

    def named_modules(self, prefix=""):
        """Pairs of name and module: itself, and all below it."""
        yield prefix, self
        for name, part in self.named_children():
            yield from part.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_children(self):
        """Pairs of name and module, one level down."""
        return [(name, part) for name, part in vars(self).items() if isinstance(part, Module)]

    def _named(self, is_wanted):
        seen = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if is_wanted(value) and id(value) not in seen:  # shared ones count once
                    seen.add(id(value))
                    yield f"{prefix}.{name}" if prefix else name, value

    def named_parameters(self):
        """Pairs of name and parameter, always in the same order."""
        return list(self._named(_is_parameter))

    def named_buffers(self):
        """Pairs of name and array, of what is kept and not trained."""
        return list(self._named(lambda v: isinstance(v, np.ndarray)))

    def parameters(self):
        return [parameter for _, parameter in self.named_parameters()]

    def buffers(self):
        return [buffer for _, buffer in self.named_buffers()]

    def state_dict(self):
        """Name -> array, of parameters and buffers; the arrays themselves, not copies."""
        kept = self._named(lambda v: _is_parameter(v) or isinstance(v, np.ndarray))
        return {name: value.array if _is_parameter(value) else value for name, value in kept}

    def load_state_dict(self, state):
        """Copy the arrays of a state dict into this module's."""
        own = self.state_dict()
        wrong = [f"Missing key: {name}" for name in own if name not in state]
        wrong += [f"Unexpected key: {name}" for name in state if name not in own]
        wrong += [
            f"Size mismatch for {name}: the state has {np.shape(state[name])}, "
            f"the module {array.shape}"
            for name, array in own.items()
            if name in state and np.shape(state[name]) != array.shape
        ]
        if wrong:
            lines = "\n    ".join(wrong)
            raise RuntimeError(f"Cannot load this state into {type(self).__name__}:\n    {lines}")
        for name, array in own.items():
            array[...] = state[name]

    def train(self, mode=True):
        """From now on statistics are those of the batch; with mode=False the running ones."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self):
        return self.train(False)


def _is_parameter(value):
    return isinstance(value, Operators) and value.requires_grad


# From ranklab.framework.initial:

_GAINS = {"linear": 1.0, "conv2d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2)}


def calculate_gain(nonlinearity, param=0.01):
    """By how much weights must be larger, so that what follows keeps the variance."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + param**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return _GAINS[nonlinearity]


def fans(shape):
    """How many inputs and how many outputs a weight (out, in, ...) has for each."""
    if len(shape) < 2:
        raise ValueError("A weight with fewer than 2 axes has no fan in and no fan out.")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def kaiming_uniform_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu"):
    """Fill a weight, uniformly, so that variance is kept forward (fan_in) or backward."""
    bound = math.sqrt(3) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def uniform_(tensor, a=0.0, b=1.0):
    tensor.array[...] = np.random.uniform(a, b, tensor.shape)
    return tensor


def _kaiming(tensor, a, mode, nonlinearity):
    """The standard deviation (He et al. 2015)."""
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of fan_in, fan_out")
    fan = fans(tensor.shape)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


# The product is (product_share) of the time here. The whole takes (conv_over_torchs)
# times as long as PyTorch's own convolution. The price is memory: `patches` is
# (patches_over_image) times the image, and is kept until backward.

# --- Layers, and ResNet-9 -------------------------------------------------------------

# A layer is an operation with parameters. `Module` finds them: among the attributes of
# an object, the tensors that want gradients are its parameters, the arrays are its
# buffers, such as the running statistics of batch norm, and the modules are its parts.
# From the names of the attributes come those in `state_dict`.


class Linear(Module):
    """x @ weight.T + bias"""

    def __init__(self, in_features, out_features, device=None, dtype="float32"):
        shape, bound = (out_features, in_features), in_features**-0.5
        self.weight = kaiming_uniform_(parameter(shape, dtype), 5**0.5)
        self.bias = uniform_(parameter(out_features, dtype), -bound, bound)

    def forward(self, x):
        return x @ self.weight.T + self.bias


# From ranklab.framework.batch_norm:


def _alone(sums, gradients=False):
    """The sums of all ranks, where there is one."""
    return sums


def batch_statistics(x, synchronize=None):
    """Mean and variance of each channel (axis 1), and over how many entries they were taken.

    synchronize: adds an array up over all ranks, and returns the sums; `gradients` says whether
        what it is given are sums of gradients.
    """
    synchronize = synchronize or _alone
    rows = _rows(x)
    sums = synchronize(np.append(_added(rows), rows.dtype.type(len(rows))))
    mean, n = sums[:-1] / sums[-1], float(sums[-1])
    centered = rows - mean
    return mean, synchronize(_added(centered, centered)) / n, n


def batch_norm(x, weight, bias, mean=None, var=None, n=None, eps=1e-5, synchronize=None):
    """weight * (x - mean) / sqrt(var + eps) + bias for each channel (axis 1).

    n: over how many entries mean and variance were taken, on all ranks together; None: they do
    not depend on x.
    """
    synchronize = synchronize or _alone
    scale = 1 / np.sqrt(var + var.dtype.type(eps))
    normal = (_rows(x) - mean) * scale
    known = []

    def sums(grad):
        """The sums of grad * normal and of grad over the rows of this rank."""
        if not known:
            rows = _rows(grad)
            known[:] = _added(rows, normal), _added(rows)
        return known

    def to_x(grad):
        rows, by = _rows(grad), weight * scale
        if n is None:
            return _like(rows * by, x)
        both = synchronize(np.concatenate(sums(grad)), gradients=True) * (np.tile(by, 2) / n)
        along, shift = np.split(both.astype(x.dtype, copy=False), 2)
        spread = rows * by
        spread -= normal * along
        spread -= shift
        return _like(spread, x)

    value = _like(normal * weight + bias, x)
    return value, (to_x, lambda grad: sums(grad)[0], lambda grad: sums(grad)[1])


def _rows(x):
    """The entries of each channel in a column: a view, where channels are last in memory."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def _like(rows, x):
    """Rows in the shape of x again, a view."""
    return np.moveaxis(rows.reshape(x.shape[0], *x.shape[2:], x.shape[1]), -1, 1)


def _added(rows, times=None):
    """The sum of each column, or of each column of a product.

    In two stages: one long sum in float32 loses digits.
    """
    parts = rows.reshape(-1, np.gcd(len(rows), 64), rows.shape[1])
    if times is None:
        some = parts.sum(axis=1)
    else:
        some = np.einsum("kbc,kbc->kc", parts, times.reshape(parts.shape))
    return some.sum(axis=0, dtype="f8").astype(rows.dtype)


class BatchNorm(Module):
    """Batch norm with running statistics.

    Its subclasses say how many axes it takes, and how a parameter is made: parameter(shape, dtype).
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, device=None, dtype="float32"):
        self.weight, self.bias = (self.parameter(num_features, dtype) for _ in range(2))
        self.weight.array[...] = 1
        self.eps, self.momentum, self.synchronize = eps, momentum, None
        self.running_mean = np.zeros_like(self.weight.array)
        self.running_var = np.ones_like(self.weight.array)

    def forward(self, x):
        if x.ndim not in self.axes:
            expected = " or ".join(f"{axes}D" for axes in self.axes)
            raise ValueError(f"expected {expected} input (got {x.ndim}D input)")
        statistics = self.running_mean, self.running_var, None
        if self.training:
            statistics = batch_statistics(x.array, self.synchronize)
            self._remember(*statistics)
        names = dict(zip(("mean", "var", "n"), statistics))
        return x.apply(
            batch_norm,
            self.weight,
            self.bias,
            eps=self.eps,
            synchronize=self.synchronize,
            **names,
        )

    def _remember(self, mean, var, n):
        """Let the running statistics follow. torch refuses n = 1: here, a rank's share may be one
        example."""
        unbiased = var * (n / max(1, n - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running += self.momentum * (new - running)


def parameter(shape, dtype="float32"):
    """A leaf that is trained."""
    return Tensor(np.zeros(shape, dtype), requires_grad=True)


class Conv(Module):
    """A convolution with weights and biases of its own."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1,
                 padding=0, device=None, dtype="float32"):
        shape = out_channels, in_channels, kernel_size, kernel_size
        self.weight = kaiming_uniform_(parameter(shape, dtype), 5**0.5)
        bound = prod(shape[1:]) ** -0.5
        self.bias = uniform_(parameter(out_channels, dtype), -bound, bound)
        self.options = {"stride": stride, "padding": padding}

    def forward(self, x):
        return x.apply(conv, self.weight, self.bias, **self.options)


class BatchNorm1d(BatchNorm):
    """Batch norm of (n, channels) or (n, channels, length)."""

    parameter, axes = staticmethod(parameter), (2, 3)


class BatchNorm2d(BatchNorm):
    """Batch norm of images (n, channels, h, w)."""

    parameter, axes = staticmethod(parameter), (4,)


# From ranklab.framework.modules:


class Sequential(Module):
    """Modules one after the other."""

    def __init__(self, *modules):
        self.modules = modules

    def named_children(self):
        return [(str(i), module) for i, module in enumerate(self.modules)]

    def forward(self, x):
        for module in self.modules:
            x = module(x)
        return x


class Residual(Module):
    """fn(x) + x."""

    def __init__(self, fn):
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


class ReLU(Module):
    """x where it is positive, else 0."""

    def forward(self, x):
        return x.relu()


class Flatten(Module):
    """All axes but the first in one."""

    def forward(self, x):
        return x.flatten(1)


# Weights begin as random numbers. Kaiming's rule [he2015] keeps a signal's size from
# layer to layer. PyTorch's layers, and ours, draw within ±1/√(fan-in), where the fan-in
# is how many inputs an output has. That is √6 times less than the rule has for ReLU;
# batch norm makes up for it.
#
# ResNet-9 has eight convolutions, two linear layers, and two residual blocks [he2016],
# which add their input to their output. This is that of the course on which our
# framework is modeled [dlsys]: four convolutions shrink an image from 32 by 32 to a
# single pixel of 128 channels.


def ResNet9(device=None, dtype="float32"):
    """Images (n, 3, 32, 32) to logits (n, 10)."""
    def block(n_in, n_out, k, stride):
        layer = Conv(n_in, n_out, k, stride, k // 2, dtype=dtype)
        return Sequential(layer, BatchNorm2d(n_out, dtype=dtype), ReLU())

    def residual(n):
        return Residual(Sequential(block(n, n, 3, 1), block(n, n, 3, 1)))

    return Sequential(
        block(3, 16, 7, 4), block(16, 32, 3, 2), residual(32),
        block(32, 64, 3, 2), block(64, 128, 3, 2), residual(128),
        Flatten(), Linear(128, 128, dtype=dtype), ReLU(),
        Linear(128, 10, dtype=dtype))


if rank == 0:
    print("\n## Layers, and ResNet-9\n")
    model = ResNet9()
    result("n_parameters", sum(p.size for p in model.parameters()))
    result("n_tensors", len(model.parameters()))

# From ranklab.framework.optimizers:


class Optimizer:
    """Some parameters, and numbers and arrays, which are its state."""

    def __init__(self, params, **numbers):
        self.params = list(params)
        if not self.params:
            raise ValueError("optimizer got an empty parameter list")
        for name, number in numbers.items():
            if np.min(number) < 0:
                raise ValueError(f"Invalid {name} value: {number}")
        vars(self).update(numbers)

    def step(self):
        """Update every parameter that has a gradient: `update(i, p)` says how."""
        for i, p in enumerate(self.params):
            if p.grad is not None:
                self.update(i, p)

    def reset_grad(self):
        """Forget the gradients: the next backward starts from none."""
        for p in self.params:
            p.grad = None

    zero_grad = reset_grad

    def state_dict(self):
        """Name -> number, or list with an entry for each parameter; the arrays themselves."""
        return {name: value for name, value in vars(self).items() if name != "params"}

    def load_state_dict(self, state):
        """Copy the values of a state dict into this optimizer's."""
        own = self.state_dict()
        if _shapes(own) != _shapes(state):
            raise ValueError("The state was saved from another kind of optimizer, or model.")
        for name, value in state.items():
            if not isinstance(value, list):
                setattr(self, name, value)
                continue
            for i, entry in enumerate(value):
                if isinstance(own[name][i], np.ndarray):
                    own[name][i][...] = entry
                else:
                    own[name][i] = entry


def _shapes(state):
    return {
        name: [np.shape(entry) for entry in value] if isinstance(value, list) else ()
        for name, value in state.items()
    }


# (n_parameters) numbers in (n_tensors) tensors.

# --- Adam -----------------------------------------------------------------------------

# Stochastic gradient descent moves every weight by its gradient. Adam [kingma2015]
# divides by how large this weight's gradients usually are. For that it keeps two
# numbers for each weight: `m`, a running mean of gradients, and `v`, one of their
# squares. Both begin at 0, and the divisions by $1 - \beta^t$ make up for it.
#
# Predict: Two weights have gradients of 1000 and 1. With a learning rate of 0.1, how
# far does SGD move each of them in its first step, and how far does Adam?


class Adam(Optimizer):
    """Adam with weight decay as a part of the gradient (L2)."""

    def __init__(self, params, lr=0.001, betas=(0.9, 0.999), eps=1e-8,
                 weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps,
                         weight_decay=weight_decay)
        self.t = [0 for p in self.params]
        self.m = [np.zeros_like(p.array) for p in self.params]
        self.v = [np.zeros_like(p.array) for p in self.params]

    def update(self, i, p):
        """One step of parameter number i, in place."""
        (beta_1, beta_2), m, v = self.betas, self.m[i], self.v[i]
        self.t[i] += 1
        grad = p.grad + self.weight_decay * p.array
        m += (1 - beta_1) * (grad - m)
        v += (1 - beta_2) * (grad * grad - v)
        root = np.sqrt(v / (1 - beta_2 ** self.t[i]))
        p.array -= self.lr / (1 - beta_1 ** self.t[i]) * m / (root + self.eps)


# From ranklab.framework.optimizers:


class SGD(Optimizer):
    """Gradient descent with momentum and weight decay, as torch.optim.SGD."""

    def __init__(self, params, lr=0.001, momentum=0.0, weight_decay=0.0):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.u = [np.zeros_like(p.array) for p in self.params]

    def update(self, i, p):
        u = self.u[i]
        u *= self.momentum
        u += p.grad
        u += self.weight_decay * p.array
        p.array -= self.lr * u


if rank == 0:
    print("\n## Adam\n")
    for kind, to in (SGD, [-100, -0.1]), (Adam, [-0.1, -0.1]):
        p = Tensor(np.zeros(2), requires_grad=True)
        p.grad = np.array([1000.0, 1.0])
        kind([p], lr=0.1).step()
        assert np.allclose(p.array, to)
    save_figures()

# From ranklab.framework.watching:


def training(model, optimizer, loss_of, tensor, batches):
    """Train, one step at a time: yields each step's loss, and seconds of the processor."""
    for X, y in batches:
        began = time.process_time()
        optimizer.zero_grad()
        loss = loss_of(model(tensor(X)), tensor(y))
        loss.backward()
        optimizer.step()
        yield loss.item(), time.process_time() - began


# From ranklab.framework.modules:


class SoftmaxLoss(Module):
    """The mean over the rows of logits (n, classes) of -log softmax at the class in y (n,)."""

    def forward(self, logits, y):
        rows = np.arange(len(logits))
        classes = np.asarray(getattr(y, "array", y)).astype(int)
        return (logits.logsumexp(axis=1) - logits[rows, classes]).mean()


# From ranklab.framework.torch_twin:


def torch_kit():
    """What a program asks the framework for, made of torch: ResNet9, nn and optim."""
    import torch
    from torch import nn, optim

    class Residual(nn.Module):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn

        def forward(self, x):
            return self.fn(x) + x

    def block(n_in, n_out, k, stride):
        layer = nn.Conv2d(n_in, n_out, k, stride, k // 2)
        return nn.Sequential(layer, nn.BatchNorm2d(n_out), nn.ReLU())

    def residual(n):
        return Residual(nn.Sequential(block(n, n, 3, 1), block(n, n, 3, 1)))

    def ResNet9(device=None, dtype="float32"):
        torch.manual_seed(np.random.randint(1 << 31))  # NumPy's generator decides here, too
        parts = [block(3, 16, 7, 4), block(16, 32, 3, 2), residual(32)]
        parts += [block(32, 64, 3, 2), block(64, 128, 3, 2), residual(128)]
        parts += [nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(*parts).to(device, getattr(torch, dtype))

    names = SimpleNamespace(SoftmaxLoss=nn.CrossEntropyLoss)
    return SimpleNamespace(ResNet9=ResNet9, nn=names, optim=optim)


def twin_of(model, dtype):
    """torch's ResNet9 with the weights of ours."""
    import torch

    twin = torch_kit().ResNet9(dtype=dtype)
    start = {name: torch.tensor(array) for name, array in model.state_dict().items()}
    twin.load_state_dict(start, strict=False)  # it counts batches, too
    return twin


class torch_adam:
    """torch.optim.Adam's computation, by torch's own function.

    The class would load torch's compiler first, which takes more than all that is compared.
    """

    def __init__(self, params, lr=0.001, weight_decay=0.0):
        import torch

        self.params = list(params)
        self.state = [[torch.zeros_like(p) for p in self.params] for _ in range(2)]
        self.steps = [torch.tensor(0.0) for _ in self.params]
        self.numbers = {"lr": lr, "weight_decay": weight_decay, "beta1": 0.9, "beta2": 0.999}

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        import torch
        from torch.optim.adam import adam

        grads = [p.grad for p in self.params]
        options = {"eps": 1e-8, "amsgrad": False, "maximize": False, "foreach": False}
        with torch.no_grad():
            adam(self.params, grads, *self.state, [], self.steps, **self.numbers, **options)


# SGD moves them by 100 and by 0.1, Adam both by 0.1: what is divided by its own size is
# 1.
#
# `Optimizer` calls `update` for every parameter that has a gradient. `m`, `v` and the
# weights are changed in place: whoever holds one of these arrays, as `state_dict` does,
# still holds the current one. `t` counts the steps of each parameter by itself, for one
# without a gradient takes none.
#
# Here is a whole training step in float64, ours and PyTorch's, from the same weights.

if rank == 0:
    def both(batches, dtype, seed=0):
        """Ours, PyTorch's twin of equal weights, and their steps, in turns."""
        np.random.seed(seed)
        twin = twin_of(model := ResNet9(dtype=dtype), dtype)
        ours = Adam(model.parameters(), weight_decay=0.001)
        theirs = torch_adam(twin.parameters(), weight_decay=0.001)
        their_loss = torch.nn.CrossEntropyLoss()
        return model, twin, zip(
            training(model, ours, SoftmaxLoss(), Tensor, batches),
            training(twin, theirs, their_loss, torch.tensor, batches))


    noise = draw.normal(size=(32, 3, 32, 32)), draw.integers(10, size=32)
    model, twin, steps = both([noise], "float64")
    list(steps)
    off = max(np.abs(array - twin.state_dict()[name].numpy()).max()
              for name, array in model.state_dict().items())
    result("step_off", float(off), varies=True)
    assert off < 1e-12

# After the step all weights and all running statistics agree: the largest difference is
# (step_off).

# --- Something goes wrong: memory grows -----------------------------------------------

# Why does Adam compute on arrays, and not on tensors, which would read the same? Here
# is SGD with momentum on tensors.


class TensorSGD(Optimizer):
    def __init__(self, params, **numbers):
        super().__init__(params, **numbers)
        self.u = [Tensor(np.zeros_like(p.array)) for p in self.params]

    def update(self, i, p):
        grad = Tensor(p.grad) + p * self.weight_decay
        self.u[i] = self.u[i] * self.momentum + grad
        p.array -= self.lr * self.u[i].array


# From ranklab.framework.watching:


def memory_of(kind, p, steps=10):
    """Bytes in use after each step of an optimizer; the last weights, and its momentum."""
    optimizer, used = kind([p], lr=0.1, momentum=0.9, weight_decay=0.01), []
    tracemalloc.start()
    for _ in range(steps):
        optimizer.reset_grad()
        (p * p).mean().backward()
        optimizer.step()
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return used, p.array, optimizer.u[0]


# Predict: Does it train as well as the one on arrays? And what does `u` remember after
# ten steps?

if rank == 0:
    on_tensors, weights, u = memory_of(TensorSGD, Tensor(np.ones(100_000), True))
    on_arrays, same_weights, _ = memory_of(SGD, Tensor(np.ones(100_000), True))
    result("remembered", len(topological(u)))

if rank == 0:
    fig, ax = plt.subplots(num="memory", figsize=(5.2, 2.4))
    for used, label in (on_tensors, "on tensors"), (on_arrays, "on arrays"):
        ax.plot(range(1, 11), np.array(used) / 1e6, "o-", label=label)
    ax.set(xlabel="step", ylabel="memory (MB)", ylim=0)
    ax.legend()
    assert np.allclose(weights, same_weights, 1e-13)
    growth = np.diff(on_tensors)[2:] / weights.nbytes
    assert np.allclose(growth, round(growth[0]), atol=0.1) and growth[0] > 1.5
    result("growth", round(growth[0]))
    assert abs(on_arrays[-1] - on_arrays[3]) < 0.1 * weights.nbytes
    save_figures()

# From ranklab.framework.loading:


class RandomSampler:
    """Every index below n once, in an order that is another one in each epoch."""

    def __init__(self, n, seed=0):
        self.n, self.seed, self.epoch = n, seed, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.n)
        self.epoch += 1
        return iter(order.tolist())


class Batches:
    """Batches of a data set; `tensor` makes of an array what a batch holds."""

    tensor = staticmethod(np.asarray)

    def __init__(
        self,
        dataset,
        batch_size=1,
        sampler=None,
        shuffle=False,
        seed=0,
        device=None,
        dtype="float32",
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size should be a positive integer, but got {batch_size}")
        if shuffle and sampler is not None:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if sampler is None:
            n = len(dataset)
            sampler = RandomSampler(n, seed) if shuffle else range(n)
        self.dataset, self.batch_size, self.sampler = dataset, batch_size, sampler
        self.device, self.dtype = device, dtype

    def __len__(self):
        return -(-len(self.sampler) // self.batch_size)

    def __iter__(self):
        indices = list(self.sampler)
        for first in range(0, len(indices), self.batch_size):
            yield self.batch(indices[first : first + self.batch_size])

    def batch(self, indices):
        """X (n, ...), of type `dtype`, and y (n,), whole numbers: the examples of these indices."""
        xs, ys = zip(*(self.dataset[i] for i in indices))
        X, y = np.stack(xs).astype(self.dtype, copy=False), np.asarray(ys)
        return self.tensor(X), self.tensor(y)


# It trains to the same weights. But `p` wants a gradient, so `p * self.weight_decay` is
# recorded, and so is everything that is computed from it: `u` holds a graph of
# (remembered) tensors that reaches back to the first step. Each step keeps (growth)
# arrays of the parameters' size, the values of its four operations and the gradient
# that they used: a large model dies within its first steps, and the traceback names an
# innocent line.
#
# A rule for state: What lives longer than a step holds arrays, or tensors cut off from
# their past: `.data` here, `detach()` in PyTorch. The same slip with a logged loss,
# `total += loss`, is common.

# --- ResNet-9 trains on one process ---------------------------------------------------

# What is missing is data. A data set is anything that has a length and gives example
# number i. A sampler says in which order they come, another one in each epoch. The
# loader makes batches of them.


class DataLoader(Batches):
    """Batches of a data set as Tensors."""

    tensor = Tensor


# From ranklab.framework.modules:


class Tanh(Module):
    """The hyperbolic tangent, entry by entry."""

    def forward(self, x):
        return x.tanh()


# From ranklab.images:

SIDE = 32  # pixels

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer"]

CIFAR10_CLASSES += ["dog", "frog", "horse", "ship", "truck"]

# Of the stereo pair, one. file -> whose it is, as the package says that brings it.
OF_SKLEARN = {
    "china.jpg": "CC BY 2.0, danielbuechele",
    "flower.jpg": "CC BY 2.0, vultilion",
}

OF_SKIMAGE = {
    "astronaut.png": "public domain, NASA",
    "chelsea.png": "CC0, Stefan van der Walt",
    "coffee.png": "CC0, Rachel Michetti",
    "hubble_deep_field.jpg": "public domain, NASA",
    "ihc.png": "no known restrictions, Center for Microscopy and Molecular Imaging",
    "motorcycle_left.png": "Middlebury 2014 stereo benchmark, Scharstein et al.",
    "retina.jpg": "CC0, Mikael Häggström",
    "rocket.jpg": "public domain, SpaceX",
}


class CIFAR10Dataset:
    """Color images of 32 x 32 pixels, and the class of each: pairs (3 x 32 x 32 float32, int).

    path: the folder of CIFAR-10's files for Python (`cifar-10-batches-py`); the one that
    RANKLAB_CIFAR10 names, if left out. Where there is neither, the images are patches of
    photographs: of their left halves to train with, of their right halves (train=False) to test.

    images, labels: all of them, as bytes. classes: their names. source, license: where the images
    are from, and whose they are.
    """

    def __init__(self, path=None, train=True):
        folder = path or os.environ.get("RANKLAB_CIFAR10")
        if folder:
            self.images, self.labels = read_cifar10(Path(folder), train)
            self.classes, self.source = CIFAR10_CLASSES, "CIFAR-10 (Krizhevsky, 2009)"
            self.license = "none stated; its author asks to be cited"
            return
        found = photographs()
        self.images, self.labels = patches([image for image, _ in found.values()], train)
        self.classes = list(found)
        self.source = f"patches of {len(found)} photographs: {', '.join(found)}"
        self.license = "; ".join(f"{name}: {whose}" for name, (_, whose) in found.items())

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        """An image, its pixels from -1 to 1, and its class."""
        return self.images[index].astype(np.float32) / 127.5 - 1, int(self.labels[index])


def read_cifar10(folder, train):
    """Images (n x 3 x 32 x 32) and labels, as bytes, of CIFAR-10's published files."""
    names = [f"data_batch_{n}" for n in range(1, 6)] if train else ["test_batch"]
    batches = [read_batch(folder / name) for name in names]
    data, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return data.reshape(-1, 3, SIDE, SIDE), labels  # red, green, blue; row by row


class NumbersOnly(pickle.Unpickler):
    """Reads arrays, numbers and text: whatever else a file may ask for is not looked up."""

    def find_class(self, module, name):
        known = {"ndarray": np.ndarray, "dtype": np.dtype}
        known["_reconstruct"] = np.empty(0).__reduce__()[0]
        if module.partition(".")[0] == "numpy" and name in known:
            return known[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_batch(path):
    """data (n x 3072) and labels (n) of one file."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there. CIFAR-10's folder, `cifar-10-batches-py` as it is published for "
            "Python, is named by `path` or RANKLAB_CIFAR10; without them there are photographs."
        )
    try:
        with path.open("rb") as file:
            batch = NumbersOnly(file, encoding="bytes").load()
        data, labels = np.asarray(batch[b"data"]), np.array(batch[b"labels"], dtype=np.uint8)
    except Exception as error:  # bytes that are no pickle raise errors of all kinds
        raise ValueError(f"{path} is no file of CIFAR-10: {error}") from None
    if data.dtype != np.uint8 or data.shape != (len(labels), 3 * SIDE**2) or labels.max() > 9:
        raise ValueError(f"{path} is no file of CIFAR-10: it has other numbers in it.")
    return data, labels


def photographs():
    """name -> (height x width x 3, whose it is) of the photographs that are installed here."""
    from PIL import Image

    found = {}
    packages = (
        (find_spec("sklearn"), "datasets/images", OF_SKLEARN),
        (find_spec("skimage"), "data", OF_SKIMAGE),
    )
    for package, folder, files in packages:
        for file, whose in files.items() if package else ():
            path = Path(package.origin).parent / folder / file
            found[path.stem] = np.asarray(Image.open(path)), whose
    if not found:
        raise ModuleNotFoundError("Photographs come with: pip install scikit-learn scikit-image")
    return found


def patches(photos, train):
    """As many patches of each photograph (bytes, n x 3 x 32 x 32), in turn, and their labels.

    Those of the left halves overlap, as they are to be many; those of the right halves do not.
    """
    step = 8 if train else SIDE
    grids = []  # rows x columns x 3 x 32 x 32
    for photo in photos:
        middle = photo.shape[1] // 2
        half = photo[:, :middle] if train else photo[:, middle:]
        windows = np.lib.stride_tricks.sliding_window_view(half, (SIDE, SIDE), axis=(0, 1))
        grids.append(windows[::step, ::step])
    count = min(grid.shape[0] * grid.shape[1] for grid in grids)
    images = np.empty((count, len(grids), 3, SIDE, SIDE), dtype=np.uint8)
    for label, grid in enumerate(grids):
        spread = np.linspace(0, grid.shape[0] * grid.shape[1] - 1, count).astype(int)
        images[:, label] = grid[np.divmod(spread, grid.shape[1])]
    labels = np.tile(np.arange(len(grids), dtype=np.uint8), count)
    return images.reshape(-1, 3, SIDE, SIDE), labels


nn = SimpleNamespace(
    Module=Module, Linear=Linear, Conv=Conv, BatchNorm1d=BatchNorm1d,
    BatchNorm2d=BatchNorm2d, ReLU=ReLU, Tanh=Tanh, Residual=Residual,
    Sequential=Sequential, Flatten=Flatten, SoftmaxLoss=SoftmaxLoss)
if rank == 0:
    print("\n## ResNet-9 trains on one process\n")
    optim = SimpleNamespace(SGD=SGD, Adam=Adam)
    data = SimpleNamespace(CIFAR10Dataset=CIFAR10Dataset, DataLoader=DataLoader,
                           RandomSampler=RandomSampler)

# `CIFAR10Dataset` reads CIFAR-10 [krizhevsky2009] where `RANKLAB_CIFAR10` names its
# folder. Without it, as here, the images are patches of photographs of the same size,
# 32 by 32 in three colors, and the question is which photograph a patch is from. One
# half of each photograph is for training, the other one for the test.
#
# One epoch:

if rank == 0:
    train, test = (CIFAR10Dataset(train=which) for which in (True, False))
    np.random.seed(0)
    model, loss_of, losses = ResNet9(), SoftmaxLoss(), []
    optimizer = Adam(model.parameters(), lr=0.001, weight_decay=0.001)
    for X, y in DataLoader(train, batch_size=128, shuffle=True):
        optimizer.reset_grad()
        loss = loss_of(model(X), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save_figures()

# From ranklab.framework.grad_mode:


class no_grad:
    """Within `with no_grad():` nothing is remembered, which saves memory."""

    def __enter__(self):
        _nested.append(self)

    def __exit__(self, *error):
        _nested.pop()


# From ranklab.framework.watching:


def recognized(model, batches):
    """The share of examples whose class has the largest logit."""
    model.eval()  # batch norm with its running statistics
    with no_grad():
        right = [model(X).array.argmax(axis=1) == y.array for X, y in batches]
    return float(np.concatenate(right).mean())


if rank == 0:
    print(f"{train.source}\n\n{train.license}")
    share = recognized(model, DataLoader(test, batch_size=128))
    result("accuracy", round(share, 2), varies=True)
    result("chance", round(1 / len(train.classes), 2))
    result("first_loss", round(losses[0], 1), varies=True)
    result("last_loss", round(float(np.mean(losses[-5:])), 1), varies=True)
    assert np.mean(losses[-5:]) < 0.5 * losses[0]

# From ranklab.framework.watching:


def sides(model, tensor):
    """A list to which each ReLU will add, at every call, which entries it lets pass."""
    seen = []

    def noting(relu):
        def forward(x):
            value = relu(x)
            seen.append(value.data.numpy() > 0)
            return value

        return forward

    _change_relus(model, noting)
    return seen


def replay(model, tensor, seen):
    """From now on each ReLU passes, call by call, what those of another network have passed."""
    passed = iter(seen)
    _change_relus(model, lambda relu: lambda x: x * tensor(next(passed)))


def first_step_apart(some, others, steps):
    """In which step two lists of `sides` differ for the first time; `steps`, if in none."""
    differ = [np.any(a != b) for a, b in zip(some, others)]
    return next((i // (len(differ) // steps) for i, it in enumerate(differ) if it), steps)


def _change_relus(model, change):
    for _, module in model.named_modules():
        if type(module).__name__ == "ReLU":
            module.forward = change(module.forward)


# The loss has fallen from (first_loss) to (last_loss). Of images that it has not seen,
# it names the right photograph for a share of (accuracy); guessing gives (chance).
#
# Now PyTorch's twin beside it, from the same weights and on the same batches, in
# float32 and in float64.
#
# Predict: PyTorch in float64 is the reference. After eight steps, how far from its
# losses are ours in float64, ours in float32, and PyTorch's own in float32?

if rank == 0:
    loader = DataLoader(train, batch_size=64, shuffle=True)
    batches = [(X.array, y.array) for (X, y), _ in zip(loader, range(8))]
    doubles = [(X.astype("float64"), y) for X, y in batches]


def compared(those, dtype, way):
    """Losses of eight steps, ours and PyTorch's; what their ReLUs passed."""
    *networks, steps = both(those, dtype, seed=3)
    passed = [way(*pair) for pair in zip(networks, (Tensor, torch.tensor))]
    with threadpool_limits(1):
        return np.transpose([(a[0], b[0]) for a, b in steps]), passed


if rank == 0:
    (own, exact), (_, right) = compared(doubles, "float64", sides)
    singles, passed = compared(batches, "float32", sides)
    forced, _ = compared(batches, "float32", lambda *net: replay(*net, right))
    fig, ax = plt.subplots(num="apart", figsize=(5.2, 2.8))
    steps, off = range(1, 9), np.abs([own, *singles, *forced] - exact)
    for who, name in enumerate(("ours", "PyTorch")):
        style = {"color": f"C{who}", "linewidth": 5 - 3.5 * who}
        ax.semilogy(steps, off[1 + who], label=f"{name}, float32", **style)
        ax.semilogy(steps, off[3 + who], "--", label=f"{name}, forced", **style)
        flip = first_step_apart(passed[who], right, steps=8)
        ring = np.arange(flip, 8)[:1]  # none, if there is no such step
        ax.plot(1 + ring, off[1 + who, ring], "o", ms=12, mfc="none", mec="gray")
    ax.semilogy(steps, np.maximum(off[0], 1e-17), "C2", label="ours, float64")
    ax.set(xlabel="step", ylabel="loss: distance from float64")
    ax.legend(loc=(0.02, 0.2), ncols=2, fontsize="small")
    assert off[0].max() < 1e-11 and off[3:].max() < 2e-5
    save_figures()

# From ranklab.framework.watching:


def products_alone(parameters, n):
    """A function that does the matrix products of a step of ResNet-9 on n images, nothing else."""
    weights = [p.array.reshape(len(p.array), -1) for p in parameters if p.ndim > 1]
    rows = [n * side**2 for side in (8, 4, 4, 4, 2, 1, 1, 1, 1, 1)]  # what comes out of each
    inputs, grads = (
        [np.ones((n, w.shape[axis]), w.dtype) for n, w in zip(rows, weights)] for axis in (1, 0)
    )

    def products():
        for x, grad, w in zip(inputs, grads, weights):
            # Nobody wants the gradient of the images.
            x @ w.T, grad.T @ x, w is weights[0] or grad @ w

    return products


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


# Ours in float64 stays with it in every step. In float32 both round more coarsely. That
# stays rounding until some activation is so close to 0 that rounding decides its sign:
# a ring marks the first step in which that happens. A ReLU then passes it in float32
# and not in float64, or the other way round, and from there gradients differ by more
# than rounding, so the loss jumps one step later. PyTorch's own float32 leaves in the
# same way. The dashed lines show the cause: the same float32 networks, but each ReLU
# passes what it has passed in float64. They do not jump.
#
# So where two trainings differ, give them more digits. A difference that shrinks was
# rounding; one that stays is a mistake.

if rank == 0:
    *_, steps = both(batches, "float32")
    alone = products_alone(ResNet9().parameters(), 64)
    with threadpool_limits(1):
        took = [(ours, theirs, timeit(alone, timer=process_time, number=1))
                for (_, ours), (_, theirs) in steps]
    of_ours, of_theirs, of_products = np.median(took, axis=0)
    result("step_over_torchs", round(of_ours / of_theirs, 1), varies=True)
    result("products_of_step", round(of_products / of_ours, 2), varies=True)
    assert of_products < 0.5 * of_ours or not cores_are_free()

# A step of 64 images takes (step_over_torchs) times as long as PyTorch's. The products
# alone take a share of (products_of_step) of it, less than half; the rest copies, adds
# and normalizes.
#
# The framework so far has about 700 lines of Python, and no line is PyTorch's. What it
# lacks is what this book is about: a second process.

# --- From one process to many ranks ---------------------------------------------------

# A program trains on one process, and is now to train on many. How many of its lines
# have to change? Horovod is a library that makes a training data parallel. Its answer
# [sergeev2018] is four lines, whatever the model: start, take a GPU, wrap the
# optimizer, broadcast the variables. The program that this chapter follows, written by
# students of the course above, adds one for the data:
#
# ```python
# rank, device = ddp.init()
# train_set, bsz = ddp.partition_dataset(dataset, 128, device=device, dtype="float32")
# ddp.broadcast_parameters(model)
# opt = ddp.DistributedOptimizer(opt)
# ```
#
# `init` is Horovod's first two in one; `partition_dataset` is the added one. Now you
# write these four.

if rank == 0:
    print("\n## From one process to many ranks\n")
    result("n_ranks", n_ranks := world_size)

# From ranklab.framework.over_torch:


class OverTorch:
    """How ranks talk: torch's tensors, over NCCL with a GPU for each rank, else over Gloo."""

    def __init__(self, comm=None):
        import torch
        from mpi4py import MPI

        self.comm, self.torch = comm or MPI.COMM_WORLD, torch
        self.rank, self.size = self.comm.rank, self.comm.size
        host = self.comm.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this machine
        gpus = torch.cuda.device_count() >= host.size
        self.device = torch.device("cuda", host.rank) if gpus else torch.device("cpu")
        if gpus:
            torch.cuda.set_device(self.device)
        if not torch.distributed.is_initialized():
            here = "127.0.0.1" if host.size == self.size else socket.gethostname()
            self.meet(here, "nccl" if gpus else "gloo")

    def meet(self, name, backend):
        """Rank 0 opens a port; where it is, and so NCCL's id, the others learn by MPI."""
        dist, store = self.torch.distributed, None
        if self.rank == 0:
            store = dist.TCPStore(name, 0, is_master=True, wait_for_workers=False)
        name, port = self.comm.bcast((name, store and store.port))
        store = store or dist.TCPStore(name, port)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
        atexit.register(self.leave)

    def leave(self):
        """At the end of a program, as NCCL wants; who has left already need not."""
        if self.torch.distributed.is_initialized():
            self.torch.distributed.destroy_process_group()

    def add_up(self, tensor):
        self.torch.distributed.all_reduce(tensor)

    def begin(self, tensor):
        return self.torch.distributed.all_reduce(tensor, async_op=True).wait

    def copy(self, tensor, root):
        self.torch.distributed.broadcast(tensor, root)

    def zeros(self, n, dtype):
        return self.torch.zeros(n, dtype=dtype, device=self.device)

    def tensor(self, array):
        tensor = self.torch.from_numpy(array).to(self.device)
        return tensor if tensor.is_floating_point() else tensor.long()  # as losses want labels

    def numbers(self, tensor):
        return tensor.detach().cpu().numpy()

    def parameters(self, opt):
        return [Leaf(p) for group in opt.param_groups for p in group["params"]]


class Leaf:
    """One of torch's parameters, with the names of chapter 13's framework."""

    into = None  # torch makes gradients where it likes: they are copied

    def __init__(self, p):
        self.p, self.hooks, self.shape, self.dtype = p, Hooks(self), p.shape, p.dtype

    array = property(lambda self: self.p.data)
    size = property(lambda self: self.p.numel())
    grad = property(lambda self: self.p.grad, lambda self, grad: setattr(self.p, "grad", grad))


class Hooks:
    """What shall be called when the gradient of a leaf is complete."""

    def __init__(self, leaf):
        self.leaf = leaf

    def append(self, function):
        self.leaf.p.register_post_accumulate_grad_hook(lambda _: function(self.leaf))


# From ranklab.framework.world:


class World:
    """What a rank knows: how to talk to the others, and how large its share of the batch is."""

    talk = None
    share = 1, 1  # m_k and n: the examples in its batch, and in all ranks'

    @staticmethod
    def weight():
        """What this rank's gradient counts in that of all."""
        mine, everybodys = World.share
        return mine / everybodys


class Arrays:
    """What those who talk over MPI have in common: NumPy's arrays, and sums that are under way."""

    device = "cpu"

    @functools.cached_property
    def aside(self):
        """A communicator for sums that are under way: no other call comes in between."""
        return self.comm.Dup()

    def begin(self, array):
        """Begin to add up, and return at once, with a function that waits for the sum."""
        return self.aside.Iallreduce(self.in_place, array).Wait

    def numbers(self, tensor):
        return tensor.array

    def zeros(self, n, dtype):
        return np.zeros(n, dtype)

    def parameters(self, opt):
        return opt.params


def end_all(kind, error, trace):
    """Show an exception that nobody has caught, and end all ranks: they would wait for this one."""
    traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    sys.stdout.flush()
    sys.__stderr__.flush()
    time.sleep(0.2)  # until mpiexec has shown it
    World.talk.comm.Abort(1)


# All that a rank asks of MPI is to add up an array over all ranks, and to copy one:


class OverMPI(Arrays):
    """How ranks talk: NumPy's arrays, over MPI."""

    tensor = Tensor

    def __init__(self, comm=None):
        from mpi4py import MPI  # importing it starts MPI

        self.comm, self.in_place = comm or MPI.COMM_WORLD, MPI.IN_PLACE
        self.rank, self.size = self.comm.rank, self.comm.size

    def add_up(self, array):
        """Replace an array by the sum of all ranks' arrays."""
        self.comm.Allreduce(self.in_place, array)

    def copy(self, array, root):
        """Replace an array by that of rank `root`."""
        self.comm.Bcast(array, root)


def init(comm=None, framework="numpy"):
    """Find the other ranks. Returns this one's number, and its device."""
    World.talk = {"numpy": OverMPI, "torch": OverTorch}[framework](comm)
    World.share = 1, World.talk.size  # until a loader says otherwise
    sys.excepthook = end_all
    return World.talk.rank, World.talk.device


# `World` holds what a rank knows of the others; `Arrays` and `Shares` do its
# bookkeeping. An exception on one rank would leave the others waiting (chapter 9):
# `end_all` shows it, and ends them all. `OverTorch` does the same for PyTorch's
# tensors, over NCCL or Gloo.

# --- A share of every batch -----------------------------------------------------------

# That program cut the data set into equal parts, one for each rank, for the whole
# training. From its part a rank took batches of $\lfloor 128 / K \rfloor$.
#
# Predict:
#
# 50,000 images, three ranks, batches of 128. How many images does nobody ever see? How
# many steps has an epoch for one process, and for the three?

if rank == 0:
    result("never_seen", 50_000 % 3)
    result("together", 128 // 3 * 3)
    result("steps_of_one", -(-50_000 // 128))
    result("steps_of_three", -(-(50_000 // 3) // (128 // 3)))

# From ranklab.framework.world:


class Shares:
    """What a loader of shares has beside them: tensors of any framework; how many examples."""

    def tensor(self, array):
        return World.talk.tensor(array)

    def examples(self):
        """How many examples of an epoch are this rank's."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole * len(self.share(range(self.batch_size))) + len(self.share(range(rest)))


# (never_seen) are never seen. A batch of all has (together) images, and an epoch
# (steps_of_three) steps in place of (steps_of_one): another training than the one it
# was to equal. And a rank sees the same third in every epoch.
#
# So do not cut the data set, cut each batch. All ranks go through the data in one
# order, which follows from a seed and the number of the epoch; nobody has to send it.
# Of each batch a rank takes every $K$-th example.


class ShardedLoader(Shares, DataLoader):
    """Of each batch of the whole data, this rank's share."""

    def share(self, indices):
        return indices[World.talk.rank :: World.talk.size]

    def batch(self, indices):
        mine = self.share(indices)
        World.share = len(mine), len(indices)
        return super().batch(mine or indices[:1])


def partition_dataset(dataset, batch_size, device=None, dtype="float32",
                      shuffle=True, seed=0):
    """Share out every batch of a data set: (loader, size of a share)."""
    loader = ShardedLoader(dataset, batch_size, shuffle=shuffle, seed=seed,
                           device=device, dtype=dtype)
    print(f"partitioned dataset length: {loader.examples()}")
    return loader, len(loader.share(range(batch_size)))


# The loader notes $m_k$, how many examples this rank has of the batch, and $n$, how
# many all have: `World.weight()` is $m_k/n$. The weight is that of the latest batch, so
# take one batch a step. Where a batch has fewer examples than there are ranks, some
# ranks have none. They are lent one, whose gradient will get the weight 0. So they take
# part in every call, and while that gradient is finite, count for nothing in it. Only
# the running statistics of such a rank see the lent example; but rank 0 is never lent
# one, and its statistics are those that are broadcast.

# --- The same start, and one gradient -------------------------------------------------

# All ranks start from the weights of one. Then each computes the gradient of the mean
# loss of its share, $\partial L_k / \partial w$.
#
# Predict: Of a batch of 10, one rank has 6 examples and another one 4. What is the
# gradient of the whole batch?
#
# $0.6\,\partial L_0 / \partial w + 0.4\,\partial L_1 / \partial w$, and in general
# $\sum_k \frac{m_k}{n}\,\partial L_k / \partial w$: chapter 10 has derived it. The
# first way to add it up is a message for each tensor.


def broadcast_parameters(model, root=0):
    """Give all ranks, in place, the parameters and buffers of one."""
    for array in model.state_dict().values():
        World.talk.copy(array, root)


class EachTensor:
    """One all-reduce for each gradient."""

    def __init__(self, parameters):
        self.parameters = parameters

    def average(self):
        for p in self.parameters:
            if p.grad is None:  # zeros, even where nobody has one:
                p.grad = 0 * p.array  # `Flat` mends that
            p.grad *= World.weight()
            World.talk.add_up(p.grad)


# From ranklab.framework.world:


class Wrapped:
    """An optimizer around another one, `self.opt`, to which it hands on all else."""

    def reset_grad(self):
        """Forget the gradients, averaged or not: also where all ranks leave out a step."""
        if hasattr(self.exchange, "finish"):
            self.exchange.finish()
        self.averaged = False
        self.opt.zero_grad()

    zero_grad = reset_grad

    def __getattr__(self, name):
        if name == "opt":  # not yet there
            raise AttributeError(name)
        return getattr(self.opt, name)

    def __setattr__(self, name, value):
        theirs = "opt" in vars(self) and hasattr(self.opt, name)  # such as another lr
        object.__setattr__(self.opt if theirs else self, name, value)


def broadcast_optimizer_state(opt, root=0):
    """Give all ranks the state of rank root's optimizer."""
    opt.load_state_dict(World.talk.comm.bcast(opt.state_dict(), root))


# The optimizer is wrapped: before it steps, gradients are averaged.


class DistributedOptimizer(Wrapped):
    """An optimizer that steps by the gradient of all ranks' examples."""

    def __init__(self, opt, how=None):
        self.opt, self.averaged = opt, False
        self.params = World.talk.parameters(opt)
        self.exchange = (how or Flat)(self.params)
        broadcast_optimizer_state(opt)

    def synchronize(self):
        """Average the gradients, if that has not been done."""
        if not self.averaged:
            self.exchange.average()
        self.averaged = True

    def step(self):
        self.synchronize()
        self.opt.step()
        self.averaged = False


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# `Flat`, the default, comes below. `Wrapped` hands on all else: a schedule that sets
# `opt.lr` reaches the optimizer inside. And who clips gradients calls `synchronize`
# first, as only then all ranks have the same norm to clip by.

# --- Any number of ranks, one training ------------------------------------------------

# Now the test, in float64. 37 images, in batches of 10 and, at the end of an epoch, of
# 7, so that shares differ. 20 steps of Adam, for the first rank alone, the first two,
# and so on: MPI's `Split` makes a communicator of some ranks. The network is the
# beginning of a ResNet-9; the tests take the whole. Batch norm needs mean and variance
# of the whole batch, and a rank sees only its share. So here `synchronize_batch_norm`
# adds up their sums over all ranks, too.
#
# Predict: How far from one process are the weights of two, three and four? And how far,
# if the gradients of all ranks count the same, whatever their shares are?


def small(seed, dtype="float32", norm=True):
    """The beginning of a ResNet-9, with other weights for another seed."""
    np.random.seed(seed)
    parts = []
    for n, m, k in ((3, 16, 7), (16, 32, 3)):
        parts += [nn.Conv(n, m, k, (k + 1) // 2, k // 2, dtype=dtype)]
        after = [nn.BatchNorm2d(m, dtype=dtype), nn.ReLU()]
        parts += after if norm else [nn.Tanh()]
    return nn.Sequential(*parts, nn.Flatten(),
                         nn.Linear(512, 10, dtype=dtype))


everyone()
play("ranks")

images, world, found = CIFAR10Dataset(), MPI.COMM_WORLD, {}
few = [images[i * len(images) // 37] for i in range(37)]

# From ranklab.framework.world:


def sums_of_all(sums, gradients=False):
    """The sums over all ranks, for batch norm.

    A rank's loss is a mean over its share. So its gradients count m_k / n here, and what it gets
    for its own will be multiplied by m_k / n later.
    """
    weight = World.weight()
    total = sums * (weight if gradients else weight > 0)
    World.talk.add_up(total)
    return total / weight if gradients and weight else total


def synchronize_batch_norm(model):
    """From now on, batch norm goes by the examples of all ranks."""
    for _, module in model.named_modules():
        if isinstance(module, BatchNorm):
            module.synchronize = sums_of_all


def trained(comm, plain=False, decay=0.001, dtype="float64"):
    """The weights by name, after 20 steps on the ranks of `comm`."""
    init(comm)
    net = small(seed=comm.rank, dtype=dtype)
    broadcast_parameters(net)
    synchronize_batch_norm(net)
    opt = Adam(net.parameters(), weight_decay=decay)
    opt = DistributedOptimizer(opt, EachTensor)
    loader = ShardedLoader(few, 10, shuffle=True, dtype=dtype)
    for X, y in (batch for epoch in range(5) for batch in loader):
        opt.reset_grad()
        nn.SoftmaxLoss()(net(X), y).backward()
        if plain:
            World.share = 1, comm.size
        opt.step()
    return {name: p.array for name, p in net.named_parameters()}


everyone()

for k in range(1, world.size + 1):
    part = world.Split(world.rank < k)
    if world.rank < k:
        found[k] = trained(part)
plain = trained(world, plain=True)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


everyone()
if rank == 0:
    play("kernel")
    def apart(some, others):
        return {name: float(np.abs(some[name] - others[name]).max())
                for name in some}

found_by_rank = to_rank_0(found)
plain_by_rank = to_rank_0(plain)
if rank == 0:
    by_ranks, off_by = found_by_rank, {"plain mean": plain_by_rank[0]}
    for k in range(2, n_ranks + 1):
        off_by[f"{k} ranks"], *others = (found[k] for found in by_ranks[:k])
        assert all(not any(apart(by_ranks[0][k], other).values())
                   for other in others)
    for what, weights in off_by.items():
        off_by[what] = max(apart(weights, by_ranks[0][1]).values())
        print(f"{what:>10}: {off_by[what]:.0e} from one process")
    result("plain_off", round(off_by.pop("plain mean"), 3))
    result("weighted_off", max(off_by.values()), varies=True)
    assert max(off_by.values()) < 1e-12

# One training, to (weighted_off), and the same bits on all ranks. With the plain mean
# it is another one, (plain_off) off. With equal shares both means are the same, and
# there the tests compare all weights with those of PyTorch's DDP over Gloo: equal, too.
#
# That they agree so well is partly due to the weight decay of 0.001. A convolution's
# bias is added to a whole channel, and the batch norm behind it takes the channel's
# mean away again. So the bias has no effect, and its gradient is 0. What is computed in
# its place is the rounding of a sum, which differs between one process and four. With
# SGD it would not matter. But Adam divides a gradient by its own size plus `eps`, 1e-8.
# Noise of 1e-16 becomes a step of 1e-8 of the learning rate: little, but far above the
# rounding of a weight. In float32 such noise reaches `eps`, and becomes an ordinary
# step.

everyone()
play("ranks")
comms = world, world.Split(world.rank)
noisy = {dtype: [trained(comm, decay=0.0, dtype=dtype) for comm in comms]
         for dtype in ("float64", "float32")}

noisy_by_rank = to_rank_0(noisy)
if rank == 0:
    play("kernel")
    for dtype, pair in noisy_by_rank[0].items():
        off_of = apart(*pair)
        off_biases = max(off_of.pop(name) for name in ("0.bias", "3.bias"))
        off_others = max(off_of.values())
        result(f"biases_{dtype}", off_biases, varies=True)
        result(f"others_{dtype}", off_others, varies=True)
        low, high = (1e-12, 1e-8) if dtype == "float64" else (1e-3, 0.1)
        assert off_others < low / 10 < low < off_biases < high

# Without decay these biases are (biases_float64) off in float64, and nothing else is
# off by more than rounding, (others_float64). In float32 the biases are
# (biases_float32) off, more than a step of 0.001, and the rest (others_float32). Decay
# pulls a bias towards 0 by more than the noise, and Adam follows that. Better still,
# such a convolution has no bias.

# --- One buffer for all gradients -----------------------------------------------------

# A step of ResNet-9 makes (n_tensors) all-reduces, most of them small, and each pays
# the latency of its rounds. Chapter 12 copied gradients into buckets. Here a leaf
# copies its gradient in any case, into memory of its own. Let that memory be the
# message, and the second copy is gone. That is what `into` is for; in DDP it is
# `gradient_as_bucket_view=True`.


class OneBuffer:
    """A buffer with room for each gradient, where backward writes it."""

    def __init__(self, parameters):
        self.parameters, sizes = parameters, [p.size for p in parameters]
        n = sum(sizes)
        # Behind the gradients, a number for each: has any rank got it?
        self.buffer = World.talk.zeros(n + len(sizes), parameters[0].dtype)
        self.there = self.buffer[n:]
        self.rooms = [self.buffer[end - p.size : end].reshape(p.shape)
                      for p, end in zip(parameters, np.cumsum(sizes))]
        for p, room in zip(parameters, self.rooms):
            p.into = room


class Flat(OneBuffer):
    """One all-reduce for all gradients."""

    def put(self):
        """Zeros for a gradient that is missing; then weights for all."""
        for i, (p, room) in enumerate(zip(self.parameters, self.rooms)):
            self.there[i] = p.grad is not None
            if p.grad is not room:  # it is missing, or torch's
                room[...] = 0 if p.grad is None else p.grad
        self.buffer *= World.weight()

    def take(self):
        """Each gradient is its sum; none, where no rank had one."""
        there = self.there.tolist()
        for p, room, anywhere in zip(self.parameters, self.rooms, there):
            p.grad = room if anywhere else None

    def average(self):
        self.put()
        World.talk.add_up(self.buffer)
        self.take()


# From ranklab.framework.overlapping:


class Overlapping:
    """Several buffers, each sent as soon as backward has filled it. `kind` makes one of them."""

    kind = None

    def __init__(self, parameters, nbytes=512 << 10):
        self.buckets, filling = [], []
        for p in reversed(parameters):  # as backward comes to them
            filling.append(p)
            full = sum(q.array.nbytes for q in filling) >= nbytes
            if full or p is parameters[0]:
                self.buckets.append(self.kind(filling))
                filling = []
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.hooks.append(functools.partial(self.arrived, bucket))
        self.reset()

    def reset(self):
        self.waits = []  # a function for each buffer that is under way
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def arrived(self, bucket, p):
        """Called in the midst of backward: p's gradient is complete."""
        if not bucket.missing:
            raise RuntimeError(
                "A second backward before `step`: the gradients of the first are under way. "
                "`Flat` adds up those of several."
            )
        bucket.missing -= 1
        self.send(even_if_missing=False)

    def send(self, even_if_missing):
        """Send buffers, on all ranks in this order."""
        for bucket in self.buckets[len(self.waits) :]:
            if bucket.missing and not even_if_missing:
                break
            bucket.put()
            self.waits.append(World.talk.begin(bucket.buffer))

    def average(self):
        self.send(even_if_missing=True)
        for bucket, wait in zip(self.buckets, self.waits):
            wait()
            bucket.take()
        self.reset()

    def finish(self):
        """End what a backward has begun, where no step came after it."""
        if any(bucket.missing < len(bucket.parameters) for bucket in self.buckets):
            self.average()


# A parameter that one rank has not used counts as zeros there. One that nobody has used
# must have no gradient anywhere, for Adam would move it by its weight decay. So a
# number for each travels along, as `present` did in chapter 12.


class Overlapped(Overlapping):
    """Several buffers, each sent as soon as backward has filled it."""

    kind = Flat


# `Overlapped` is chapter 12's: several such buffers, and a tensor's `hooks`, which are
# called when its gradient is complete, send each as soon as it is full, by
# `Iallreduce`. Where all ranks leave out a step, `reset_grad` ends what is under way.
#
# Predict: The same bytes in (n_tensors) messages, in a few, and in one. Which share of
# the time does the one take? Chapter 8 has a model for it. What do you have to measure?


def by_turns(*calls):
    """Seconds of each call on the slowest rank, in 12 turns."""
    return np.array([[world.allreduce(timeit(call, world.Barrier, number=1),
                                      MPI.MAX) for call in calls]
                     for _ in range(12)])


def pass_on(nbytes):
    x, y = np.zeros(nbytes, "b"), np.zeros(nbytes, "b")
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    return lambda: world.Sendrecv(x, right, recvbuf=y, source=left)


def exchange(how):
    """What averages gradients of ResNet-9 so; the bytes of its messages."""
    way = how(parameters := ResNet9().parameters())
    for p in parameters:
        p.grad = np.zeros_like(p.array) if p.into is None else p.into
    sent = [p.grad for p in parameters] if how is EachTensor else [
        one.buffer for one in getattr(way, "buckets", [way])]
    return way.average, [array.nbytes for array in sent]


everyone()
if rank == 0:
    print("\n## One buffer for all gradients\n")

play("ranks")

init()
message_sizes = [64 << 2 * i for i in range(8)]  # 64 bytes to 1 MB
passing = np.median(by_turns(*map(pass_on, message_sizes)), axis=0)
averages, sent = zip(*map(exchange, (EachTensor, Overlapped, Flat)))
exchange_seconds = by_turns(*averages)

# From ranklab.taught.all_reduce:


def cost_models(n, message, add):
    """Return {way: function from bytes to seconds} for n ranks.

    message(nbytes, m): the seconds of m messages at the same time;
    add(nbytes): those of an addition.
    """
    core = 1 << (n.bit_length() - 1)
    beyond = [n - core] * (n > core)
    # Round k of the tree: ranks 2^k, 3 * 2^k, 5 * 2^k, ... send.
    levels = range((n - 1).bit_length())
    senders = [len(range(1 << k, n, 2 << k)) for k in levels]
    return {
        "gather": lambda s: 2 * (n - 1) * message(s, 1) + (n - 1) * add(s),
        "tree": lambda s: sum(2 * message(s, m) + add(s) for m in senders),
        "doubling": lambda s: (
            (core.bit_length() - 1) * (message(s, core) + add(s))
            + sum(2 * message(s, m) + add(s) for m in beyond)
        ),
        "ring": lambda s: 2 * (n - 1) * message(s / n, n) + (n - 1) * add(s / n),
    }


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


sent_by_rank = to_rank_0(sent)
if rank == 0:
    play("kernel")
    sent = sent_by_rank[0]


def predicted(*links):
    """Milliseconds of each way to average, over the better of some links."""
    ways = [way for a, b in links for way in cost_models(
        n_ranks, lambda n, _, a=a, b=b: a + n / b, lambda n: 0).values()]
    return [1e3 * sum(min(way(nbytes) for way in ways) for nbytes in of_way)
            for of_way in sent]


message_sizes_by_rank = to_rank_0(message_sizes)
passing_by_rank = to_rank_0(passing)
if rank == 0:
    alpha, beta = latency_bandwidth(message_sizes_by_rank[0], passing_by_rank[0])
    predicted_ms = predicted((alpha, beta))
    on_cluster = predicted((2.7e-6, 25e9), (14e-6, 50e9))  # LL, Simple
    result("ratio_on_cluster", round(on_cluster[2] / on_cluster[0], 2))

exchange_seconds_by_rank = to_rank_0(exchange_seconds)
if rank == 0:
    times = 1e3 * exchange_seconds_by_rank[0]
    low, measured_ms, high = np.quantile(times, (0.25, 0.5, 0.75), axis=0)
    counts = [len(of_way) for of_way in sent]
    fig, ax = plt.subplots(num="exchange", figsize=(5.2, 2.4))
    ax.barh(np.arange(3) - 0.2, predicted_ms, 0.36, color="C7", label="predicted")
    ax.barh(np.arange(3) + 0.2, measured_ms, 0.36, color="C0", ecolor="gray",
            xerr=[measured_ms - low, high - measured_ms], label="measured")
    labels = [f"{count} message{'s' * (count > 1)}" for count in counts]
    ax.set(yticks=range(3), yticklabels=labels, xlabel="averaging (ms)")
    ax.invert_yaxis()
    ax.legend()
    ratios = np.divide(predicted_ms, measured_ms)
    if cores_are_free():
        assert measured_ms[2] < 0.5 * measured_ms[0]
        assert measured_ms[1] < 2 * measured_ms[2]
        assert 0.4 < min(ratios) and max(ratios) < 2.5
    result("flat_over_each", measured_ms[2] / measured_ms[0], varies=True)
    result("predicted_ratio", predicted_ms[2] / predicted_ms[0], varies=True)
    result("alpha_us", 1e6 * alpha, varies=True)
    result("n_buckets", counts[1])
    save_figures()

# From ranklab.framework.world:


def mean_over_ranks(number):
    """Of a mean over each rank's share, that over the whole batch."""
    return World.talk.comm.allreduce(World.weight() * float(number))


# We measured one message between neighbors, at eight sizes: from that come latency and
# bandwidth, and from these the gray bars. A message takes (alpha_us) µs of latency
# here, more than the sleeping pair of chapter 9 needed: all ranks send at once, and the
# slowest counts. By the model one buffer takes (predicted_ratio) of the time of
# (n_tensors) messages, and it took (flat_over_each). Buckets of 512 KB, (n_buckets)
# messages, take less than twice as long as the one. A thin line spans the middle half
# of 12 turns. On a quiet machine no prediction is off by more than a factor of 2.5.
#
# And between machines, over InfiniBand with its 50 GB/s [connectx7]? NCCL has two
# protocols for it (chapter 8): 2.7 µs and at most half of the bandwidth, or 14 µs and
# all of it [nccltuning]. With the better one for each message, one buffer takes
# (ratio_on_cluster) of the time of (n_tensors).
#
# Whether it pays to send buffers while backward computes, chapter 12 has measured: not
# where the ranks share too few cores.

# --- The whole program ----------------------------------------------------------------

# Here is the program from which this chapter took its interface, with its lines and
# what they print. New are the options and a test, and accuracy and loss are those of
# all ranks' examples, where it printed those of rank 0.

# One epoch, as the original ran; the default is five. It prints accuracy and loss every
# 100 batches, as the original does. Here an epoch has fewer, so the one line is from
# before the first step. The accuracy need not be the one from above: batch norm takes
# the statistics of each rank's own share, and float32 rounds in another order. With
# `synchronize_batch_norm(model)` and float64 any number of ranks agrees, as above.
# `--data` trains on CIFAR-10, and `--framework torch` trains PyTorch's ResNet-9 through
# the same four calls, over Gloo, or NCCL where each rank has a GPU.

# --- What goes wrong without a word ---------------------------------------------------

# --- A sum that nobody divides --------------------------------------------------------

# A slip: the weights $m_k/n$ are forgotten, and gradients are only summed. Here is the
# network without batch norm, with SGD and with Adam.
#
# Predict: The sum is (n_ranks) times the mean. Which of the two optimizers notices, and
# how?


class Summed(Flat):
    def average(self):
        World.talk.add_up(self.buffer)


def losses_of(net, make, how=Flat):
    opt, those = DistributedOptimizer(make(net.parameters()), how), []
    for X, y in islice(ShardedLoader(images, 64, shuffle=True), 20):
        opt.reset_grad()
        loss = nn.SoftmaxLoss()(net(X), y)
        loss.backward()
        opt.step()
        those.append(mean_over_ranks(loss.item()))
    return those


everyone()
if rank == 0:
    print("\n## What goes wrong without a word\n")

play("ranks")

rate = min(0.2, len(images.classes) / 20)  # the easier task, the lower
makes = {"SGD": lambda params: SGD(params, lr=rate), "Adam": Adam}
curves = {(name, how.__name__): losses_of(small(0, norm=False), make, how)
          for how in (Flat, Summed) for name, make in makes.items()}

curves_by_rank = to_rank_0(curves)
if rank == 0:
    play("kernel")
    curves = curves_by_rank[0]
    fig, axes = plt.subplots(1, 2, num="sum", figsize=(5.2, 2.5), sharey=True)
    for ax, name in zip(axes, ("SGD", "Adam")):
        by_mean, by_sum = curves[name, "Flat"], curves[name, "Summed"]
        ax.semilogy(by_mean, "C0", linewidth=4, alpha=0.5, label="mean")
        ax.semilogy(by_sum, "C1", label="sum")
        ax.set(xlabel="step", title=name, xticks=[0, 10, 20],
               yticks=[2, 10, 50], yticklabels=[2, 10, 50])
        assert np.mean(by_mean[-5:]) < by_mean[0] - 0.2
        ax.minorticks_off()
        far = np.mean(by_sum[-5:]) / np.mean(by_mean[-5:])
        assert not far < 3 if name == "SGD" else 0.9 < far < 1.1
    axes[0].set_ylabel("loss")
    axes[1].legend()
    save_figures()

# With the sum, SGD takes steps (n_ranks) times as long, and what was a good rate is too
# high. Adam divides a gradient by its own size, and (n_ranks) times the gradient has
# (n_ranks) times the size. So the program trains. The mistake is there all the same:
# weight decay, which is added to the gradient, counts only a part of what was asked
# for, and clipping cuts at another norm. What finds it is the comparison with one
# process.

# --- A gradient that one rank lacks ---------------------------------------------------

# A rank whose examples do not use a parameter has no gradient for it. The line that
# comes to mind is the one that the original has:


class Skipping(EachTensor):
    def average(self):
        for p in self.parameters:
            if p.grad is None:
                continue
            p.grad *= World.weight()
            World.talk.add_up(p.grad)


# Two parameters of one size: rank 0's examples use `right`, those of all others `left`.
# The gradient of rank r is $10^r$.
#
# Predict: What do the ranks get for `left`, and for `right`? Does anybody wait forever?

everyone()
play("ranks")
averaged = {}
for how in (Skipping, Flat):
    left, right = (Tensor(np.zeros(2), requires_grad=True) for _ in range(2))
    way = how([left, right])
    ((right if rank == 0 else left) * 10.0**rank).sum().backward()
    World.share = 1, world.size
    way.average()
    averaged[how.__name__] = [
        None if p.grad is None else float(p.grad[0]) for p in (left, right)]

averaged_by_rank = to_rank_0(averaged)
if rank == 0:
    play("kernel")
    averaged = averaged_by_rank
    print(*averaged[:2], sep="\n")
    everybody = sum(10**r for r in range(n_ranks)) / n_ranks
    assert averaged[0]["Skipping"] == [None, everybody]
    assert averaged[1]["Skipping"] == [everybody, None]
    both = [everybody - 1 / n_ranks, 1 / n_ranks]
    assert all(np.allclose(of_rank["Flat"], both) for of_rank in averaged)

# Each rank made one call, so nobody waited, and MPI added rank 0's `right` to the
# others' `left`, instead of zeros. It pairs calls by their order, and knows nothing of
# names. With other sizes such calls are erroneous [mpi]: MPI may stop, or go on with
# something else. The remedy is to put zeros where a gradient is missing, so that all
# ranks make the same calls: `EachTensor` and `Flat` do, and Horovod has done so since
# 2018 [horovod597].

# --- Resumed without statistics -------------------------------------------------------

# A checkpoint is read by rank 0 alone, and its parameters are broadcast, only they.
#
# Predict: All ranks have the same weights then. Do they recognize as many of the test
# images?

everyone()
play("ranks")
tests = DataLoader(CIFAR10Dataset(train=False), 128)
net, resumed = small(seed=0), small(seed=rank)
losses_of(net, Adam)
if rank == 0:
    resumed.load_state_dict(net.state_dict())

everyone()
for p in resumed.parameters():
    World.talk.copy(p.array, root=0)
shares = [recognized(resumed, tests)]
broadcast_parameters(resumed)
show(shares.append(recognized(resumed, tests)), rank)


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


def left_out(view):
    """A stand-in for one of ranklab's views, which says that it is left out."""

    def say(*args, **kwargs):
        print(f"{view}: left out, for this view of ranklab's is not installed here")

    return say


try:
    from ranklab.start.arguments import mpiexec
except ImportError:
    mpiexec = left_out("mpiexec")

shares_by_rank = to_rank_0(shares)
if rank == 0:
    play("kernel")
    apart, together = zip(*shares_by_rank)
    for what, those in ("parameters", apart), ("statistics, too", together):
        print(f"{what:>15}:", *(f"{100 * share:5.1f} %" for share in those))
    assert set(together) == {apart[0]} and apart[0] not in apart[1:]

# In training the statistics are those of the batch, so nothing is to be seen. An
# evaluation takes the running ones, and what it says depends on the rank that you ask.
# So `broadcast_parameters` takes all that `state_dict` has. For a training that goes on
# as if it had never stopped, the optimizer's `m`, `v` and `t` must come back, too, and
# the number of the epoch, which decides on the order of the data. The tests do that, to
# the last bit; chapter 25 has the rest.

# --- What you can do now --------------------------------------------------------------

# - Write an operation with its gradient, and test it against central differences and
#   another framework.
# - Make a convolution a matrix product, and say what backward adds up.
# - Find a gradient that is counted twice, and memory that grows with every step.
# - Train on ranks of MPI by four calls, with shares of any size, and show that it is
#   the training of one process.
# - Let backward write gradients where the message is, and predict what one message
#   saves.
# - Find a sum that nobody divided, a gradient that one rank lacks, and statistics that
#   nobody has broadcast.

# --- Run it on a cluster --------------------------------------------------------------

#     mpiexec -n 4 python scripts/13_own_framework.py
#     mpiexec -n 4 python scripts/13_train_resnet.py --epochs 5
#
# Set `OMP_NUM_THREADS=1`, or each rank takes all cores. On several hosts, `mpiexec` is
# told their names (with MPICH: `-hosts A,B`), or a batch system tells it.

# --- Where to read on -----------------------------------------------------------------

# - [sergeev2018]: Horovod, from which three of the four calls come.
# - [dlsys]: the course whose framework, Needle, ours is modeled on.
# - [horovod597]: how Horovod repaired the gradient that one rank lacks.

leave_group()
