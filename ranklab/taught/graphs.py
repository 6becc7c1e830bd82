# Generated from book/02_graphs.md by `make forms`: edit the manuscript, not this file.

"""Computational graphs: what must wait for what: what chapter 02_graphs teaches."""

import numpy as np


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


def critical_path(graph):
    """A longest chain of a graph: a list of names, each needed by the next."""
    levels = schedule(graph)
    path = [levels[-1][0]]
    for level in reversed(levels[:-1]):
        path.insert(0, next(n for n in level if n in graph[path[0]][1:]))
    return path


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


def mul(a, b):
    """a * b, entry by entry; both of one shape."""
    out = a.data * b.data
    return Tensor(out, (a, b), lambda grad: (grad * b.data, grad * a.data))


def add(a, b):
    """a + b; a b of fewer dimensions is added to every row of a."""
    out, rows = a.data + b.data, tuple(range(a.data.ndim - b.data.ndim))
    return Tensor(out, (a, b), lambda grad: (grad, grad.sum(axis=rows)))


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
