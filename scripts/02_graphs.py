# Chapter 2 of Many Ranks, One Model, as one script. Generated from book/02_graphs.md.
#
# Run it: python 02_graphs.py
#
# pip install matplotlib numpy pygraphviz torch torchviz

import html
import operator
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.autograd.profiler import profile
from torchviz import make_dot

if any(os.environ.get(name, "0") != "0" for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")):
    sys.exit()  # one process is enough: of several, all but the first end here


# === Computational graphs: what must wait for what ====================================

# Two workers are free. Which operations of a training step may run at the same time,
# which must wait, and what has to be kept in memory until they have run?
#
# 35 minutes to read, 15 predictions · 10 seconds to run · stands on chapter 1
#
# The answers are in a graph that PyTorch writes down on every step. At the end of this
# chapter you can write that graph yourself, read PyTorch's, say what a second worker is
# worth before you have one, and predict to the byte what a batch keeps in memory.

torch.manual_seed(0)
torch.set_num_threads(1)
os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler's own log lines, off

# --- A formula is a graph -------------------------------------------------------------

# Here is a formula with four operations: $t = xy\lambda + ab$. Give each intermediate
# value a name, and the formula becomes data: for each name, the operation and the names
# of its inputs. This is a computational graph. Its nodes are operations. An edge is a
# dependency: one operation needs the result of another.

print("\n## A formula is a graph\n")
formula = {
    "z": (operator.mul, "x", "y"),
    "u": (operator.mul, "z", "λ"),
    "k": (operator.mul, "a", "b"),
    "t": (operator.add, "u", "k"),
}
numbers = {"x": 2.0, "y": 3.0, "λ": 5.0, "a": 7.0, "b": 11.0}

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


def dot(graph, colors=(), inputs=True):
    """A graph in Graphviz's language, written down in an order of its edges.

    colors: the start of a name -> the color of its box. inputs: draw those?
    """
    lines, rows = [], {}
    row, colors = {}, dict(colors)
    for name, (function, *sources) in graph.items():
        row[name] = 1 + max((row.get(s, 0) for s in sources), default=0)
        rows.setdefault(row[name], []).append(f'"{name}"')
        begins = [c for c in colors if name.startswith(c)]
        color = colors[begins[0]] if begins else "white"
        label = f"{name}\\n{function.__name__}"
        lines.append(f'"{name}" [label="{label}" fillcolor="{color}"]')
        for source in sources:
            if source in graph:
                near = row[name] == row[source] + 1
                shade = "black" if near else "gray60"
                lines.append(f'"{source}" -> "{name}" [color={shade}]')
            elif inputs:
                plain = f'label="{source}" shape=plaintext style=""'
                lines.append(f'"{source}" [{plain}]')
                lines.append(f'"{source}" -> "{name}"')
    same = ["{rank=same; " + "; ".join(names) + "}" for names in rows.values()]
    box = 'node [shape=box style="rounded,filled" fontname=Helvetica]'
    all_of_it = "; ".join([box, *same, *lines])
    return "digraph {nodesep=0.2 ranksep=0.3 " + all_of_it + "}"


show(drawing(
    dot(formula),
    name="formula",
    alt="A graph in three rows of operations. z (x times y) and k (a times b) "
    "stand in the first row, u (z times lambda) in the second, t (u plus k) in "
    "the third. The arrow from k to t skips a row and is gray.",
))

# What may run when? An operation is ready once all its inputs are there. So: run
# everything that is ready, look again, and repeat until nothing is left.
#
# The comment `#@save` in a cell says that later chapters import what it defines.


def schedule(graph, workers=None):
    """Say which operations of a graph run in which step, one step each.

    graph: name -> (function, *names of its inputs). A name that is no key
        of the graph is an input of the whole, there from the start.
    workers: how many operations fit in one step (None: any number).
    Returns a list with one list of names for each step. It is greedy: no
    worker is idle while an operation is ready (Graham 1969).
    Raises ValueError if operations wait for one another in a circle.
    """
    steps, waiting = [], list(graph)
    while waiting:
        ready = [n for n in waiting if not set(graph[n][1:]) & set(waiting)]
        if not ready:
            names = ", ".join(waiting)
            raise ValueError(f"these wait for one another in a circle: {names}")
        steps.append(ready[:workers])
        waiting = [n for n in waiting if n not in steps[-1]]
    return steps


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

# Predict: Four operations, as many workers as you like. How many steps? Which
# operations share one?

levels = schedule(formula)
for number, names in enumerate(levels, start=1):
    print(f"level {number}: {', '.join(names)}")
assert levels == [["z", "k"], ["u"], ["t"]]


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# Three steps. The two products $z = xy$ and $k = ab$ share the first: no path leads
# from one to the other. Both $u$ and $t$ wait.
#
# What the function makes is a schedule. With unlimited workers its steps are the levels
# of the graph, the rows of the drawing. The gray arrow skips a row: $k$ is done early
# and must be kept until $t$ can use it. The last part of this chapter counts what that
# costs.
#
# To get a value out of the graph, go through the schedule and apply each function. Its
# order is a topological one: every operation comes after those that it needs.


def evaluate(graph, inputs):
    """Run every operation of a graph, in an order that its edges allow.

    graph: as for `schedule`. inputs: a value for each name that the graph
    does not define. Returns a dict with the value of every name.
    """
    values = dict(inputs)
    for names in schedule(graph):
        for name in names:
            function, *sources = graph[name]
            values[name] = function(*(values[s] for s in sources))
    return values


t = evaluate(formula, numbers)["t"]
assert t == 2.0 * 3.0 * 5.0 + 7.0 * 11.0
result("t", t)

# --- A slip of the pen ----------------------------------------------------------------

# Somebody copies the graph and writes $t = uk$ in the last line.
#
# Predict: What gives the slip away: the levels, the shape of the drawing, or the value?

slip = formula | {"t": (operator.mul, "u", "k")}
assert schedule(slip) == schedule(formula)
result("t_of_the_slip", evaluate(slip, numbers)["t"])


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


# Only the value does: (t_of_the_slip) where (t) was right. The box of `t` would now say
# `mul`, but the edges are the same, and so is every level.
#
# A graph says when an operation may run. It cannot say whether it is the right one. For
# that you need a second computation that does not share the mistake. In this book every
# parallel program is checked against such a twin.

# --- What a second worker is worth ----------------------------------------------------

# Now let the workers be few. Each operation takes one step.
#
# Predict: One worker needs four steps. How many do two workers need? How many do three
# need?

print("\n## What a second worker is worth\n")
fig, panels = plt.subplots(
    2,
    sharex=True,
    num="formula-schedule",
    figsize=(5.2, 2.6),
    height_ratios=[1, 2],
)
style = {"color": "white", "ha": "center", "va": "center"}
for workers, ax in enumerate(panels, start=1):
    for step, names in enumerate(schedule(formula, workers)):
        for worker, name in enumerate(names):
            ax.barh(worker, 1, left=step, color=f"C{worker}", edgecolor="white")
            ax.text(step + 0.5, worker, name, **style)
    ax.set(yticks=range(workers), ylabel="worker", ylim=(workers - 0.5, -0.5))
panels[1].set(xlabel="time (steps)", xticks=range(5))
save_figures()

steps_needed = [len(schedule(formula, workers)) for workers in (1, 2, 3)]
assert steps_needed == [4, 3, 3]
result("steps_needed", steps_needed)

# The second worker saves one step, the third saves none. The two numbers from chapter 1
# explain it:
# - the work $W$: the number of operations, here 4. One worker needs $W$ steps.
# - the span $S$: the number of operations on the longest chain, here 3. Each waits for
#   the one before, so no number of workers is faster than $S$.
#
# The longest chain is the critical path. Once there are workers enough, only a shorter
# critical path makes the whole faster.


def critical_path(graph):
    """A longest chain of a graph: a list of names, each needed by the next."""
    levels = schedule(graph)
    path = [levels[-1][0]]
    for level in reversed(levels[:-1]):
        path.insert(0, next(n for n in level if n in graph[path[0]][1:]))
    return path


result("critical_path_of_t", critical_path(formula))
assert len(critical_path(formula)) == len(schedule(formula)) == 3

# Work and span bound the time $T_p$ on $p$ workers from both sides, a little more
# tightly than chapter 1 said:
#
# $$\max\left(\frac{W}{p},\; S\right) \;\le\; T_p \;\le\; S + \frac{W - S}{p}$$
#
# The upper bound is Brent's [brent1974]. A schedule that leaves no worker idle while an
# operation is ready, a greedy one like ours, always stays within it [graham1969].
#
# The reason fits in a few lines. In each step, either all $p$ workers are busy, or
# every ready operation is running, and then the longest remaining chain gets one
# shorter. The second kind of step can happen at most $S$ times. If it happens $k \le S$
# times, it does at least $k$ operations, so at most $W - k$ are left for the full
# steps: $T_p \le k + (W-k)/p \le S + (W-S)/p$.
#
# To see both bounds we need a larger graph: one entry of a matrix product, its $n$
# products at once and its sums as a tree.


def inner_product(n):
    """The graph of one entry of a matrix product, summed as a tree."""
    graph = {f"p{i}": (operator.mul, f"a{i}", f"b{i}") for i in range(n)}
    row = list(graph)
    while len(row) > 1:
        pairs = zip(row[::2], row[1::2])  # an odd one out waits
        sums = {f"({a}+{b})": (operator.add, a, b) for a, b in pairs}
        graph |= sums
        row = list(sums) + row[2 * len(sums) :]
    return graph


# Predict: For $n = 64$ the work is 64 products and 63 sums, 127, and the span is 7.
# From about how many workers on is one more of no use?

graph = inner_product(64)
work, span = len(graph), len(critical_path(graph))
workers = range(1, 65)
steps = [len(schedule(graph, p)) for p in workers]
result("parallelism", round(work / span, 1))
result("enough_workers", 1 + steps.index(span))
save_figures()

brent = [span + (work - span) / p for p in workers]
lower = [max(work / p, span) for p in workers]
fig, ax = plt.subplots(num="brent")
ax.plot(workers, brent, "--", color="gray", label="Brent")
ax.plot(workers, steps, color="C0", label="greedy schedule")
ax.plot(workers, lower, ":", color="gray", label="max(W/p, S)")
ax.set(xscale="log", yscale="log", xlabel="workers p", ylabel="time (steps)")
for axis, ticks in ("x", [1, 2, 4, 8, 16, 32, 64]), ("y", [7, 16, 32, 64, 127]):
    ax.set(**{f"{axis}ticks": ticks, f"{axis}ticklabels": ticks})
ax.minorticks_off()
ax.legend()
save_figures()

assert (work, span) == (64 + 63, 7)
for p, t_p in enumerate(steps, start=1):
    assert max(work / p, span) <= t_p <= span + (work - span) / p
assert steps[0] / steps[1] > 1.9
assert steps[63] == span < steps[62]
save_figures()

# At the left, twice the workers halve the time: the work decides. At the right nothing
# helps: the span decides. The bend is near $W/S$ = (parallelism), the parallelism of
# the graph. The greedy schedule reaches the span itself only at (enough_workers)
# workers: then the 64 products fit in one step.

# --- PyTorch writes the same graph ----------------------------------------------------

# `evaluate` does not care what kind of numbers it is given. Give it PyTorch tensors
# that require gradients.

print("\n## PyTorch writes the same graph\n")
leaves = {
    name: torch.tensor(number, requires_grad=True)
    for name, number in numbers.items()
}
tensors = evaluate(formula, leaves)
print(tensors["t"])
print([node.name() for node, _ in tensors["t"].grad_fn.next_functions])

# The result carries a `grad_fn`: a node of a graph. The node points to others through
# `next_functions`, here to those of the two products whose sum is $t$.
#
# PyTorch's autograd wrote these nodes down while `evaluate` ran: the graph is recorded,
# one node for each operation as it happens [paszke2019].
#
# A tensor that no recorded operation made is a leaf. It has no `grad_fn`. If it
# requires a gradient, a node called `AccumulateGrad` stands for it in the graph.
#
# Predict: Four operations, five leaves. Which nodes, and which edges, has PyTorch's
# graph?
#
# To compare the two graphs, we give every node the name that its tensor has in ours,
# and print where it points.

names = {t.grad_fn: name for name, t in tensors.items() if not t.is_leaf}
leaf_names = {id(tensor): name for name, tensor in leaves.items()}


def name_of(node):
    return names[node] if node in names else leaf_names[id(node.variable)]


recorded = {}
for node, name in names.items():
    sources = [name_of(source) for source, _ in node.next_functions]
    recorded[name] = (node.name(), *sources)
    print(name, recorded[name])
save_figures()

# The same edges, name for name. Where our graph names an input, PyTorch's has the
# `AccumulateGrad` of that leaf.
#
# But look at what the nodes are: `MulBackward0`, `AddBackward0`. They are not the
# operations that ran. They are the operations that will run, if somebody calls
# `backward`. Each is a backward node, which turns the gradient of a result into the
# gradients of its inputs.
#
# So `next_functions` leads from $t$ to the leaves: what comes next in the backward pass
# came before in the forward pass.

assert all(recorded[name][1:] == formula[name][1:] for name in formula)
kinds = [recorded[name][0] for name in formula]
assert kinds == 3 * ["MulBackward0"] + ["AddBackward0"]
tensors["t"].backward()
assert leaves["x"].grad == numbers["y"] * numbers["λ"]
assert leaves["a"].grad == numbers["b"]

# --- An autograd of your own ----------------------------------------------------------

# What does such a recorder need? Each result must remember its inputs, and a rule:
# given the gradient of the loss with respect to this result, what are the gradients
# with respect to the inputs? That is all a tensor has to hold.


class Tensor:
    """An array that remembers what it was computed from.

    data: an array, kept in float64. sources: the Tensors it was computed
    from (a leaf has none). rule: turns the gradient with respect to this
    Tensor, an array of its shape, into a tuple with one for each source.
    grad: for a leaf, what `backward` has added up so far, or None.
    """

    def __init__(self, data, sources=(), rule=None):
        self.data = np.asarray(data, dtype=np.float64)
        self.sources, self.rule = sources, rule
        self.grad = None


# An operation computes its result and leaves the rule behind: the chain rule, for this
# one operation. Here are the two that the formula needs.


def mul(a, b):
    """a * b, entry by entry; both of one shape."""
    out = a.data * b.data
    return Tensor(out, (a, b), lambda grad: (grad * b.data, grad * a.data))


def add(a, b):
    """a + b; a b of fewer dimensions is added to every row of a."""
    out, rows = a.data + b.data, tuple(range(a.data.ndim - b.data.ndim))
    return Tensor(out, (a, b), lambda grad: (grad, grad.sum(axis=rows)))


# The backward pass is the forward order, reversed: when a node's turn comes, everything
# that used it has already added its part.
#
# First, that order:


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


# Then each node is asked for its rule. The parts that meet in one source are added up.


def backward(output):
    """Add the gradient of `output` (one number) to `.grad` of every leaf.

    Reverse-mode automatic differentiation (Griewank and Walther 2008).
    """
    grads = {id(output): np.ones_like(output.data)}
    for node in reversed(in_order(output)):
        grad = grads.pop(id(node))  # complete: all that used it came before
        if not node.sources:
            node.grad = grad if node.grad is None else node.grad + grad
            continue
        for source, part in zip(node.sources, node.rule(grad), strict=True):
            grads[id(source)] = grads.get(id(source), 0) + part


# That is all of it. Try it on the formula: the graph is the same; only the functions
# are now ours.

print("\n## An autograd of your own\n")
ours = {operator.mul: mul, operator.add: add}
own_leaves = {n: Tensor(v) for n, v in numbers.items()}
own_formula = {n: (ours[f], *sources) for n, (f, *sources) in formula.items()}
backward(evaluate(own_formula, own_leaves)["t"])
for name in numbers:
    assert own_leaves[name].grad == leaves[name].grad.item()
    print(f"dt/d{name} = {own_leaves[name].grad}")
save_figures()

# --- A network, against PyTorch -------------------------------------------------------

# A network needs more operations. Each is again a result and a rule.
#
# Predict: Here are three more. Of the five, with `mul` and `add`: which has to remember
# an input until its rule is called, which its own output, and which neither?


def matmul(a, b):
    """The matrix product of a (m, k) and b (k, n): (m, n)."""
    out = a.data @ b.data
    return Tensor(out, (a, b), lambda grad: (grad @ b.data.T, a.data.T @ grad))


def transpose(a):
    """Rows and columns of a matrix exchanged."""
    return Tensor(a.data.T, (a,), lambda grad: (grad.T,))


def relu(a):
    """a where it is positive, else 0."""
    out = np.maximum(a.data, 0)
    return Tensor(out, (a,), lambda grad: (grad * (out > 0),))


# `mul` and `matmul` remember their inputs, `relu` its output, `add` and `transpose`
# nothing. That will be the bill for memory, at the end of the chapter.
#
# Two more make the end of a classifier: the logarithm of the softmax of each row, and
# the mean negative log-likelihood of the right classes.


def log_softmax(a):
    """The logarithm of the softmax of each row of a (rows, classes)."""
    shifted = a.data - a.data.max(axis=1, keepdims=True)  # no overflow
    out = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    def rule(grad):
        return (grad - np.exp(out) * grad.sum(axis=1, keepdims=True),)

    return Tensor(out, (a,), rule)


def nll_loss(log_p, target):
    """The mean of -log_p[i, target[i]] over the rows of log_p: one number."""
    one_hot = np.eye(log_p.data.shape[1])[target]
    loss = -(one_hot * log_p.data).sum() / len(target)
    return Tensor(loss, (log_p,), lambda grad: (-grad * one_hot / len(target),))


# Now a classifier for images of 28 × 28 pixels: three linear layers, 784 to 128 to 64
# to 10.


def mlp(widths):
    """Linear layers between the widths, ReLU between, then log-softmax."""
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.LogSoftmax(dim=1))


widths = [784, 128, 64, 10]
model = mlp(widths).double()  # float64, like ours
batch = torch.rand(32, 784, dtype=torch.float64)
target = torch.randint(10, (32,))
show(nn.functional.nll_loss(model(batch), target).backward())

# Predict: The same forward with our own operations, the same weights, the same numbers.
# Will the gradients agree in every bit?

own = {n: Tensor(p.detach().numpy()) for n, p in model.named_parameters()}
h = Tensor(batch.numpy())
for layer in (0, 2, 4):
    weight, bias = own[f"{layer}.weight"], own[f"{layer}.bias"]
    h = add(matmul(h, transpose(weight)), bias)
    h = relu(h) if layer < 4 else log_softmax(h)
backward(nll_loss(h, target.numpy()))

theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
largest = max(np.abs(own[name].grad - theirs[name]).max() for name in own)
result("largest_difference", float(largest), varies=True)

for name in own:
    assert np.allclose(own[name].grad, theirs[name], 1e-9, 1e-12)
save_figures()

# They agree up to rounding: the largest difference is (largest_difference).
#
# Autograd is no more than this: record, reverse, and one rule for each operation. The
# method is called reverse-mode automatic differentiation [baydin2018]. PyTorch has its
# rules in C++, runs them on any device, and skips the gradients that nobody asked for.
# Ours computes them all.

# --- Extra: A softmax without dim -----------------------------------------------------

# `nn.LogSoftmax()` without `dim` warns and guesses. For a matrix it guesses the
# classes. For a batch of sequences it guesses wrong: its probabilities sum to 1 over
# the sequences.

print("\n## Extra: A softmax without dim\n")
scores = torch.rand(2, 3, 5)  # 2 sequences, 3 positions, 5 classes
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for_matrix = nn.LogSoftmax()(scores[0]).exp()
    guessed = nn.LogSoftmax()(scores).exp()
print("\n".join(str(caught[0].message).split(". ")))
assert torch.allclose(for_matrix.sum(dim=1), torch.ones(3))
assert torch.allclose(guessed.sum(dim=0), torch.ones(3, 5))
assert not torch.allclose(guessed.sum(dim=2), torch.ones(2, 3))

# --- Reading the picture --------------------------------------------------------------

# `torchviz` draws autograd's graph [torchviz]. With `show_saved=True` it adds the saved
# tensors: the values that a backward node keeps because its rule will need them. Here
# is the first layer and its ReLU, for a batch of 32.

print("\n## Reading the picture\n")
model = mlp(widths)
batch = torch.rand(32, 784)
parameters = dict(model.named_parameters())
picture = make_dot(model[:2](batch), params=parameters, show_saved=True)


def narrow(source):
    """A torchviz drawing that fits on a phone."""
    two_lines = r'label="\1\n\2"'
    source = re.sub(r"label=(\w+?)(Backward0|Grad)\b", two_lines, source)
    space = "digraph { nodesep=0.1 ranksep=0.25"
    return source.replace("digraph {", space, 1)


show(drawing(
    narrow(picture.source),
    name="one-layer",
    alt="Autograd's graph of one linear layer and a ReLU. Two blue leaves, "
    "0.weight and 0.bias, lead through gray backward nodes to the green "
    "output; orange saved tensors hang at AddmmBackward0 and ReluBackward0.",
))

# Predict: Blue, gray, orange, green: what is each? Which color is the forward pass?
#
# Do not guess from the picture; read the source it was drawn from. A folded cell sorts
# its labels by color.


def by_color(source):
    """The labels of a torchviz drawing by color; one without is gray."""
    found = {}
    box = r'\[label="?([^"\]]*?)"?(?: fillcolor=(\w+))?\]'
    for label, color in re.findall(box, source):
        found.setdefault(color or "gray", []).append(" ".join(label.split()))
    return found


for color, labels in by_color(picture.source).items():
    print(f"{color}:", *labels, sep="\n    ")

# - Blue: a leaf that requires a gradient. Here, a parameter, with its name.
# - Gray: a backward node, a function that `backward()` will run. `AddmmBackward0` is
#   the linear layer's: add the bias to the matrix multiplication of `mat1`, the input,
#   and `mat2`, the transposed weight. `TBackward0` belongs to that transposition, and
#   each `AccumulateGrad` adds up one parameter's `.grad`.
# - Orange: a saved tensor, with its name in the rule. `result` is ReLU's output, `mat1`
#   the layer's input.
# - Green: the output that was passed in, or in dark green a tensor of which it is a
#   view.
#
# No color is the forward pass. It is over when the drawing is made; of what it
# computed, only the output and the orange boxes are left. Blue in particular is not a
# computation at all: blue boxes are the parameters, and they were there before. The
# input `batch` has no blue box, since nobody asked for its gradient. Now the whole
# network.

output = model(batch)
whole = make_dot(output, params=parameters, show_saved=True)
colors = by_color(whole.source)

show(drawing(
    narrow(whole.source),
    name="whole-network",
    alt="Autograd's graph of the whole network, a long chain: three "
    "AddmmBackward0 nodes joined by ReluBackward0 nodes, with two blue "
    "parameters and orange saved tensors at each.",
))

assert sorted(s.split()[0] for s in colors["lightblue"]) == sorted(parameters)
assert all("Backward" in s or s == "AccumulateGrad" for s in colors["gray"])
kept = [s.split()[0] for s in colors["orange"]]
assert set(kept) == {"mat1", "mat2", "result"} and len(kept) == 8
assert kept.count("mat1") == 3 and kept.count("mat2") == 2
assert not any(s.startswith("mat2") for s in by_color(picture.source)["orange"])
assert colors["darkolivegreen1"] == ["(32, 10)"]
assert "darkolivegreen3" not in colors
view = by_color(make_dot(output.t()).source)
assert view["darkolivegreen3"] == ["(32, 10)"]  # its base

# The arrows run from the leaves to the output, against the order in which `backward`
# will visit the gray nodes. And look at the orange boxes of the three `AddmmBackward0`
# nodes: the first has no `mat2`, which would be its weight. A weight is needed to
# compute the gradient of the layer's input, and the first layer's input needs none. The
# drawing tells you what will not be computed.

# --- Is anything here parallel? -------------------------------------------------------

# It is tempting to read such a picture as "the forward pass of layer 2 can run beside
# the gradients of layer 1, for they are different boxes". Let us check instead. A whole
# training step fits in our notation: `F` for a layer's forward, `G` for the gradient of
# the loss, `dX` and `dW` for the gradients of a layer's input and of its weight. We
# will run it with three layers of width 512, without biases, on a batch of 256 rows.


def linear_relu(x, weight):
    return torch.relu(x @ weight.t())


def loss_gradient(out, target):
    return out - target  # the loss is half the squared distance


def input_gradient(grad, out, weight):
    return (grad * (out > 0)) @ weight


def weight_gradient(grad, out, x):
    return (grad * (out > 0)).t() @ x


def training_step(layers):
    """Forward and backward of linear layers with ReLU, as one graph."""
    graph, outputs = {}, ["x"]
    for i in range(1, layers + 1):
        graph[f"F{i}"] = (linear_relu, outputs[-1], f"W{i}")
        outputs.append(f"F{i}")
    graph["G"] = (loss_gradient, outputs[-1], "target")
    grad = "G"
    for i in range(layers, 0, -1):
        graph[f"dW{i}"] = (weight_gradient, grad, outputs[i], outputs[i - 1])
        if i > 1:  # nobody asks for the gradient of x
            graph[f"dX{i}"] = (input_gradient, grad, outputs[i], f"W{i}")
            grad = f"dX{i}"
    return graph


print("\n## Is anything here parallel?\n")
step = training_step(3)

size, n_batch = 512, 256
values = {f"W{i}": torch.randn(size, size) / size**0.5 for i in (1, 2, 3)}
values["x"] = torch.rand(n_batch, size)
values["target"] = torch.rand(n_batch, size)
computed = evaluate(step, values)
weights = {f"W{i}": values[f"W{i}"].clone().requires_grad_() for i in (1, 2, 3)}
forward = {n: step[n] for n in ("F1", "F2", "F3")}
out = evaluate(forward, values | weights)["F3"]
(0.5 * (out - values["target"]) ** 2).sum().backward()
for i in (1, 2, 3):
    theirs = weights[f"W{i}"].grad
    assert torch.allclose(computed[f"dW{i}"], theirs, rtol=1e-4, atol=1e-3)
save_figures()

# Two operations may run at the same time if no path leads from either to the other.
#
# Predict: Of the 36 pairs among these nine operations, which are independent? Is `F2`
# with `dW1` among them?


def needs(graph, name):
    """Everything that must have run before `name` can."""
    sources = [s for s in graph[name][1:] if s in graph]
    return set(sources).union(*(needs(graph, s) for s in sources))


before = {name: needs(step, name) for name in step}
independent = [
    f"{m}+{n}"
    for m, n in combinations(step, 2)
    if m not in before[n] and n not in before[m]
]
result("independent", " ".join(independent))
save_figures()

show(drawing(
    dot(step, colors={"dX": "#cfe3f2", "dW": "#f9d8bd"}, inputs=False),
    name="training-step",
    alt="The graph of a training step with three layers. F1, F2, F3, G, dX3, "
    "dX2 form one chain; dW3, dW2 and dW1 hang at its side, and no arrow "
    "leaves them. Gray arrows lead from F1, F2, F3 down to the gradients.",
))
save_figures()

assert len(list(combinations(step, 2))) == 36
assert "F2" in before["dW1"]  # so the tempting claim is wrong
assert all("dW" in pair for pair in independent)
assert not any(n.startswith("dW") for name in step for n in before[name])
save_figures()

# No, `F2` must run before `dW1`: the gradient of layer 1 comes through the loss, and
# the loss comes through layer 2. Forward is a chain, and so is the flow of gradients
# back.
#
# Six pairs are independent, and each of them includes a weight gradient. In the
# backward pass of a linear layer, the weight gradient and the input gradient need the
# same incoming gradient, and neither needs the other. But only the input gradient is
# waited for: no arrow leaves `dW3`.
#
# How much is that worth? With $L$ layers the work is $3L$ and the span $2L + 1$: the
# longest chain has the $L$ forward operations, `G`, the $L - 1$ input gradients, and
# `dW1` at its end.

in_steps = len(step) / len(schedule(step, workers=2))
result("speed_up_in_steps", round(in_steps, 2))
result("speed_up_at_most", round(3 * 12 / (2 * 12 + 1), 2))
save_figures()

for layers in range(2, 13):
    graph = training_step(layers)
    assert len(graph) == 3 * layers
    assert len(schedule(graph, workers=2)) == 2 * layers + 1
    assert len(critical_path(graph)) == 2 * layers + 1

# Two workers already reach the span, and even with twelve layers the speed-up is at
# most (speed_up_at_most); for ever more layers it approaches 1.5.
#
# So the parallelism of training is not in this graph. It is inside the operations, in
# the matrix products of chapter 1, and in the batch, where Part III will find it. What
# the graph offers is something else: an operation that nothing waits for.

# --- Two workers, for real ------------------------------------------------------------

# Let two threads run the step. Each takes the next operation of the schedule and waits
# for its inputs. `pool.submit` hands an operation to a thread and returns a future at
# once; the future's `result()` waits for the value. Threads will do here, because
# PyTorch computes outside Python's global interpreter lock. chapter 5 shows what that
# lock does otherwise.


def run_on_threads(graph, inputs, workers):
    """Evaluate a graph on threads.

    Returns the values, and a log of (name, worker, start, end) in seconds.
    """
    log, futures = [], {}

    def task(name):
        function, *names = graph[name]
        arguments = [
            futures[n].result() if n in futures else inputs[n] for n in names
        ]
        start = time.perf_counter()
        value = function(*arguments)
        worker = int(threading.current_thread().name.rpartition("_")[2])
        log.append((name, worker, start, time.perf_counter()))
        return value

    with ThreadPoolExecutor(workers) as pool:
        for name in (n for names in schedule(graph, workers) for n in names):
            futures[name] = pool.submit(task, name)
    return {name: future.result() for name, future in futures.items()}, log


# Predict: Will the gradients be the same as from one worker: equal to the last bit, or
# only close? And will the second worker bring on the clock what it brings in steps?


def lasted(log):
    """Milliseconds from the first start in a log to the last end."""
    starts, ends = zip(*(times for _, _, *times in log))
    return 1e3 * (max(ends) - min(starts))


alone = evaluate(step, values)
logs = {1: [], 2: []}
for _ in range(8):
    for workers in logs:  # in turns, so that both meet the same machine
        together, log = run_on_threads(step, values, workers)
        assert all(torch.equal(together[name], alone[name]) for name in step)
        logs[workers].append(log)

one, two = (min(logs[workers], key=lasted) for workers in logs)
result("ms_one", [lasted(one), median(map(lasted, logs[1]))], varies=True)
result("ms_two", [lasted(two), median(map(lasted, logs[2]))], varies=True)
result("speed_up_on_the_clock", lasted(one) / lasted(two), varies=True)
save_figures()

# Equal to the last bit, in every run: the graph fixes every value, and the schedule
# only chooses the times. Of those the cell shows the shortest and the median, in
# milliseconds.
#
# On the clock the speed-up was (speed_up_on_the_clock), the shortest run of one worker
# against the shortest of two; a number below 1 says that two were slower. In steps it
# is (speed_up_in_steps).
#
# What could be expected? No number of workers is faster than the time along any chain.
# Let us take the chain with the most operations, and add up how long each of them takes
# on one worker.

took = dict.fromkeys(step, float("inf"))  # each operation at its best
for name, _, start, end in (entry for log in logs[1] for entry in log):
    took[name] = min(took[name], end - start)
along_chain = sum(took[name] for name in critical_path(step))
at_most = sum(took.values()) / along_chain
result("speed_up_in_seconds_at_most", at_most, varies=True)
longest, shortest = max(took.values()), min(took.values())
result("longest_over_shortest", longest / shortest, varies=True)
save_figures()

fig, panels = plt.subplots(
    2, sharex=True, num="threads", figsize=(5.2, 3), height_ratios=[1, 2]
)
style = {"color": "white", "ha": "center", "va": "center", "size": 8}
for workers, (ax, log) in enumerate(zip(panels, (one, two)), start=1):
    zero = min(start for _, _, start, _ in log)
    for name, worker, start, end in log:
        left, width = 1e3 * (start - zero), 1e3 * (end - start)
        ax.barh(worker, width, left=left, color=f"C{worker}", edgecolor="white")
        if name != "G":  # too short for a label
            ax.text(left + width / 2, worker, name, **style)
    ax.set(yticks=range(workers), ylim=(workers - 0.5, -0.5), ylabel="worker")
panels[1].set(xlabel="time (ms)")
save_figures()

assert longest > 3 * shortest
assert lasted(two) > 1e3 * along_chain / 1.2
save_figures()

# In seconds, two workers can be at most (speed_up_in_seconds_at_most) times as fast as
# one. Operations are not equally long, the longest here (longest_over_shortest) times
# as long as the shortest, and what counts is the time along the chain. The chain that
# takes longest need not have the most operations; an exercise finds it. `G`, between
# `F3` and the gradients, has no label because it is so short.
#
# The bound is not a promise. Compare the same operation in both charts: beside another
# one it can take longer. Workers share memory and cache, which stand in no graph, and a
# machine that does other things at the same time does not always have a second
# processor free. So two workers can even be slower than one.

# --- The same in a trace --------------------------------------------------------------

# What does PyTorch do with this freedom? Its profiler records when each operation
# begins and ends; the record is a trace. We take one of the backward pass of such a
# network, built from `nn.Linear`.
#
# Predict: How many matrix products in the backward pass of three linear layers? Will
# two of them overlap in time?

print("\n## The same in a trace\n")
layers = [nn.Linear(size, size) for _ in range(3)]
network = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))
network(values["x"]).sum().backward()  # warm up; makes every .grad


def trace_of(output):
    """Profile output's backward pass; return its events."""
    with profile(record_shapes=True) as trace:
        output.backward()
    return list(trace.function_events)


events = trace_of(network(values["x"]).sum())

# Each linear layer's backward node is an `AddmmBackward0`, and inside it the products
# are called `aten::mm`. Their shapes tell them apart: in the product for the input's
# gradient, the first matrix has `n_batch` rows.

nodes = [e for e in events if e.name == "AddmmBackward0"]
mm = [e for e in events if e.name == "aten::mm"]
products = [[e for e in mm if e.cpu_parent is node] for node in nodes]


def kind(product):
    return "input" if product.input_shapes[0][0] == n_batch else "weight"


result("products_in_backward", sum(map(len, products)))

# A weight's gradient is ready when its AccumulateGrad has run.
added = [e for e in events if e.name == "torch::autograd::AccumulateGrad"]
ready = [e.time_range.end for e in added if len(e.input_shapes[0]) == 2]
begin, end = nodes[0].time_range.start, ready[-1]
fig, ax = plt.subplots(num="trace", figsize=(5.2, 3))
rows = {"input": (0, "C0", "dX"), "weight": (1, "C1", "dW")}
style = {"color": "white", "ha": "center", "va": "center", "size": 9}
for i, number in enumerate((3, 2, 1)):
    for product in products[i]:
        row, color, name = rows[kind(product)]
        when = product.time_range
        left, width = (when.start - begin) / 1e3, when.elapsed_us() / 1e3
        ax.barh(row, width, left=left, color=color)
        ax.text(left + width / 2, row, f"{name}{number}", **style)
    left, width = (ready[i] - begin) / 1e3, (end - ready[i]) / 1e3
    ax.barh(2 + i, width, left=left, color="white", edgecolor="C1", hatch="///")
labels = ["input gradient", "weight gradient", "dW3 is ready", "dW2 is ready"]
ax.set(yticks=range(4), yticklabels=labels, ylim=(3.6, -0.6))
ax.set(xlabel="time in the backward pass (ms)")
save_figures()

kinds = [[kind(product) for product in inside] for inside in products]
assert kinds == [["input", "weight"], ["input", "weight"], ["weight"]]
assert len({e.thread for e in nodes}) == 1
in_time = sorted(mm, key=lambda e: e.time_range.start)
for one_mm, next_mm in pairwise(in_time):
    assert one_mm.time_range.end <= next_mm.time_range.start
assert ready[0] <= nodes[1].time_range.start
assert ready[1] <= nodes[2].time_range.start
to_come = [e for e in mm if e.time_range.start > ready[0]]
result("products_to_come", len(to_come))

# There are (products_in_backward) products, since layer 1 needs no input gradient. They
# ran on one thread, one after the other: first the input gradient of a layer, then its
# weight gradient.
#
# Is that because both products of a layer are inside one node? Give PyTorch's engine,
# the part that runs the nodes, two that do not depend on each other. `register_prehook`
# lets us note the thread that calls a node.
#
# Predict:
#
# `(a @ w).sum() + (b @ w).sum()` has two backward nodes for its two products. Will they
# overlap?

a, b, w = torch.rand(3, size, size)
a.requires_grad_()
b.requires_grad_()
total = (a @ w).sum() + (b @ w).sum()
callers = []
total.grad_fn.register_prehook(lambda _: callers.append(threading.get_ident()))
independent_nodes = [e for e in trace_of(total) if e.name == "MmBackward0"]
result("independent_nodes", len(independent_nodes))
result("their_threads", len({e.thread for e in independent_nodes}))

first, second = sorted(independent_nodes, key=lambda e: e.time_range.start)
assert first.thread == second.thread
assert first.time_range.end <= second.time_range.start
assert callers == [threading.get_ident()]

# They do not. On the processor, PyTorch's engine runs the nodes on the thread that
# called `backward`. For GPUs it has threads of its own, as many as there are devices
# [backwardthreads]. It is sometimes said that a framework maps out the dependencies and
# then runs all that is independent in parallel. The first half is true.
#
# On a GPU the engine's thread puts the work of a backward node into the stream in which
# the forward operation ran. A stream is a queue of work for the GPU, and what is in one
# stream runs in order [cudasemantics]. So what runs in parallel is above all inside a
# product. To overlap two operations on purpose takes a second stream, and somebody who
# asks for it. PyTorch's data parallelism has one for its communication.
#
# The hatched bars of the trace matter most for this book. The gradient of the last
# layer's weight is final while (products_to_come) of the (products_in_backward)
# products are still to come, and nothing in backward touches it again, unless an
# earlier layer shares the weight. It can be sent in that time.
#
# Chapter 12 does so with gradient hooks, as PyTorch's own data parallelism does
# [li2020]. Chapter 17 uses the freedom in the other direction: it delays weight
# gradients, to fill the idle time of a pipeline [qi2024].
#
# Worked problem: Two H100s train the same model on halves of a batch. While the
# backward pass of one layer runs, can the weight gradient of the layer that came before
# it in backward be sent? The weight is $d \times d$ in bfloat16, so each sends $2d^2$
# bytes to the other: $2d^2/\beta$ seconds over a link with $\beta$ bytes a second. With
# $m$ rows on each GPU, the two products of a layer take $4md^2$ flops: at least
# $4md^2/P$ seconds, with $P$ = 989 TFLOP/s [h100]. The link keeps up if $m \ge
# P/(2\beta)$, whatever $d$ is.

d, rows = 4096, 8192
result("backward_us", round(4 * rows * d**2 / 989e12 * 1e6))
for link, bytes_a_second in (("nvlink", 450e9), ("infiniband", 50e9)):
    result(f"{link}_us", round(2 * d**2 / bytes_a_second * 1e6))
    result(f"{link}_rows", round(989e12 / (2 * bytes_a_second)))

# With $d$ = 4096 and 8192 rows, the two products take at least (backward_us) µs.
# NVLink, with 450 GB/s each way [hopper], needs (nvlink_us) µs to send the gradient: it
# is hidden. InfiniBand with 50 GB/s [connectx7] needs (infiniband_us) µs and does not
# keep up with a GPU at its peak. It would from (infiniband_rows) rows on, NVLink from
# (nvlink_rows). A GPU at 40 % of its peak, as later chapters assume, needs 0.4 times as
# many: then both links keep up.

# --- What has to be kept --------------------------------------------------------------

# In the graph of a training step the gray arrows run from the forward operations far
# down to the gradients. What they carry has to wait, and while it waits it takes
# memory. Our rules remember it: `matmul` its inputs, `relu` its output, `add` nothing.
# PyTorch's do the same; those are the orange boxes.
#
# Our `Tensor` is more wasteful than its rules, since `sources` keeps every result.
# PyTorch's nodes point to nodes and not to tensors. And PyTorch lets us watch:
# `saved_tensors_hooks` calls a function, our `pack`, for every tensor that is saved. A
# second function hands it back when backward needs it; ours returns it as it is.
#
# Predict: Batch 32, float32, widths 784, 128, 64, 10. How many bytes do the 8 orange
# boxes of the whole network hold?

print("\n## What has to be kept\n")
saved = []


def pack(tensor):
    saved.append(tensor.detach())  # or the graph would hold itself alive
    return saved[-1]


with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    model(batch)
places = list(dict.fromkeys(tensor.data_ptr() for tensor in saved))
for tensor in saved:
    letter = "ABCDEFGH"[places.index(tensor.data_ptr())]
    shape = str(tuple(tensor.shape))
    print(f"{shape:>10} {tensor.nbytes:>7} bytes, memory {letter}")
result("pieces_of_memory", len(places))
result("bytes_of_all_boxes", sum(tensor.nbytes for tensor in saved))
assert len(saved) == len(colors["orange"])

# All boxes together hold (bytes_of_all_boxes) bytes. But look at the letters: there are
# only (pieces_of_memory) pieces of memory. The output of a ReLU is saved by
# `ReluBackward0` as `result` and by the next layer as `mat1`: two boxes, one tensor.
# And two of the pieces, C and E, are weights, which are there anyway.
#
# What the batch costs is each piece once, without the parameters. These are the
# activations; with them we count the input batch, which the first layer keeps.


def activation_bytes(network, x):
    """Bytes that network(x) keeps for backward: each memory once, and no
    parameter."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = network(x)
    for parameter in network.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    del output  # not before: with its graph, addresses become free
    return sum(kept.values())


# Every linear layer keeps its input, and the log-softmax keeps the output. Each is a
# matrix of batch × width: $\text{bytes} = 4 \cdot \text{batch} \cdot \sum
# \text{widths}$.

parameter_bytes = sum(p.nbytes for p in model.parameters())
result("activations_of_32", activation_bytes(model, batch))
result("parameter_bytes", parameter_bytes)

# For a batch of 32 that is (activations_of_32) bytes, less than the boxes together,
# which hold some of it twice. The formula is exact to the byte. Parameters take
# (parameter_bytes) bytes whatever the batch is.
#
# The count has two limits. For a short time a step holds more, such as a linear layer's
# output until the ReLU has read it; what is saved is what stays. And the formula is
# that of ReLU, whose output the next layer keeps anyway. A function whose rule needs
# its input, such as GELU, keeps one more matrix for each layer.
#
# Predict: From which batch size on do activations outweigh the parameters? And as the
# network gets deeper, which of the two grows faster?

crossover = parameter_bytes // (4 * sum(widths)) + 1
result("crossover", crossover)

depths, width, rows = [1, 2, 4, 8, 12, 16], 128, 512
deep_activations, deep_parameters = [], []
for depth in depths:
    deep = mlp([width] * (depth + 1))
    deep_activations.append(activation_bytes(deep, torch.rand(rows, width)))
    deep_parameters.append(sum(p.nbytes for p in deep.parameters()))
save_figures()

fig, panels = plt.subplots(2, num="bytes", figsize=(5.2, 5.6))
batches = [1, 32, 64, 128, 192, 256]
counted = [activation_bytes(model, torch.rand(n, 784)) / 1e6 for n in batches]
on_top, below = panels
on_top.plot(batches, counted, "o-", color="C0", label="activations")
level = parameter_bytes / 1e6
on_top.axhline(level, color="C1", ls="--", label="parameters")
on_top.set(xlabel="batch size (784-128-64-10)", ylabel="memory (MB)")
in_mb = [np.array(b) / 1e6 for b in (deep_activations, deep_parameters)]
below.plot(depths, in_mb[0], "o-", color="C0", label="activations")
below.plot(depths, in_mb[1], "--", color="C1", label="parameters")
below.set(xlabel="linear layers (width 128, batch 512)", ylabel="memory (MB)")
for ax in panels:
    ax.legend()
save_figures()

for n in (1, 7, 32, 256):
    kept_now = activation_bytes(model, torch.rand(n, 784))
    assert kept_now == 4 * n * sum(widths)
with torch.no_grad():
    assert activation_bytes(model, batch) == 0
assert activation_bytes(model, torch.rand(crossover, 784)) > parameter_bytes
fewer = activation_bytes(model, torch.rand(crossover - 1, 784))
assert fewer <= parameter_bytes
for i, depth in enumerate(depths):
    assert deep_activations[i] == 4 * rows * width * (depth + 1)
    assert deep_parameters[i] == 4 * depth * (width**2 + width)
save_figures()

# Activations grow with the batch, parameters do not: here they cross at a batch of
# (crossover). With depth both grow in a straight line, and which grows faster depends
# on the batch. A layer of width $d$ adds $4(d^2 + d)$ bytes of parameters and $4 \cdot
# \text{batch} \cdot d$ of activations, so what decides is whether the batch is larger
# than $d + 1$.
#
# There are three answers to this memory: keep less and compute it again, which is
# called activation checkpointing [chen2016] and which the last exercise builds; give
# each rank a part of the batch (Part III); or give it a part of the layers (Part IV).
#
# Backward also ends the keeping: as soon as a node has run, its saved tensors are
# dropped. So the graph can be used once.

loss = nn.functional.nll_loss(model(batch), target)
loss.backward()
try:
    loss.backward()
except RuntimeError as error:
    print(str(error).split(" (or")[0])

# `retain_graph=True` in the first call would keep them, and the memory with them.

# --- Something goes wrong -------------------------------------------------------------

# A saved tensor must still hold, in backward, what it held in forward. Here are a
# linear layer, a ReLU, and a second layer. We overwrite a result in place.
#
# Predict: Which may be overwritten after it was used: `h`, the output of the linear
# layer, or `r`, the output of the ReLU? The drawing of one layer above knows.

print("\n## Something goes wrong\n")
first, head = nn.Linear(784, 128), torch.rand(128, 1, requires_grad=True)
h = first(batch)
r = torch.relu(h)
total = (r @ head).sum()
h.mul_(2)
total.backward()
right = head.grad.clone()
assert torch.allclose(right[:, 0], r.sum(dim=0))  # a column for each entry


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(what)


# No complaint, and rightly: no orange box holds `h`. Now `r`, which `ReluBackward0`
# keeps as `result` and the product keeps too.

with may_fail():
    h = first(batch)
    r = torch.relu(h)
    total = (r @ head).sum()
    r.mul_(2)
    show(total.backward())

# PyTorch noticed. How? Every tensor counts the operations that changed it in place, and
# a saved tensor remembers the count at which it was saved, its version
# [pytorchautograd]: "is at version 1; expected version 0". The message names, in
# "output 0 of Mul", the operation that made the tensor what it is now: our `mul_`. It
# does not give the line. The guilty line is the one after which the counter has grown.

r = torch.relu(first(batch))
print("saved at version", r._version)
r.mul_(2)
print("now at version", r._version)

# The message recommends anomaly detection. That shows a line, too, but another one.

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.autograd.set_detect_anomaly(True):
        r = torch.relu(first(batch))
        total = (r @ head).sum()
        r.mul_(2)
        try:
            total.backward()
        except RuntimeError:
            blamed = str(caught[-1].message)
print(blamed.splitlines()[0])
assert "total = (r @ head).sum()" in blamed and "r.mul_(2)" not in blamed

# It names the forward operation whose backward failed, here the product: who needed the
# tensor, not who changed it. The repair is to make a new tensor, `r = r * 2`.
#
# The counter has a hole. `.data`, and a NumPy array that shares the memory, change the
# values and do not count.

head.grad = None
r = torch.relu(first(batch))
total = (r @ head).sum()
r.data.mul_(2)
total.backward()  # no error
assert torch.allclose(head.grad, 2 * right)
r.detach().numpy()[:] = 0
assert r._version == 0  # neither was counted
result("wrong_by", round(float(head.grad.sum() / right.sum()), 3))

# No error, and a gradient that is wrong by a factor of (wrong_by). Such a run trains
# on. Communication writes into tensors in place too. When we receive into a buffer in
# Part II, and average gradients in Part III, the question is the same: does somebody
# still need what was there?

# --- What you can do now --------------------------------------------------------------

# - Write a computation as a graph, and say from its work and span what $p$ workers are
#   worth, in steps and in seconds.
# - Read PyTorch's graph: leaves, backward nodes, saved tensors.
# - Write an autograd, and check it against PyTorch's.
# - Say why weight gradients are the operations that nothing waits for, and whether
#   there is time to send them.
# - Say what PyTorch's engine runs at the same time, and what it does not.
# - Predict the memory of the activations, and count it.
# - Tell from a graph which tensor may be changed in place.

# --- Run it on a cluster --------------------------------------------------------------

# This chapter needs one process:
#
# ```
# torchrun --standalone --nproc-per-node 1 scripts/02_graphs.py
# ```

# --- Where to read on -----------------------------------------------------------------

# - [cormen2022], the chapter on parallel algorithms: work, span and greedy schedules,
#   with proofs.
# - [brent1974] and [graham1969]: the two bounds at their source; both are short.
# - [baydin2018]: the survey of automatic differentiation to read first; [griewank2008]:
#   the book on it.
# - [pytorchautograd]: PyTorch's own notes on how its graph is recorded, saved and
#   freed.
# - [paszke2019]: why PyTorch records while it runs.
