# Generated from book/02_graphs.md by `make forms`: edit the manuscript, not this file.

# %% check('update_in_place', update_in_place)

def update_in_place():
    """Return "a" (after dW3), "b" (after both), "c" (at the end) or "d"."""
    return "b"

# %% check('earliest_end', earliest_end)

from ranklab.taught.graphs import schedule


def earliest_end(graph, seconds):
    """When can each operation of a graph be done, if workers are never lacking?

    graph: name -> (function, *names of its inputs), as for `schedule`.
    seconds: name -> how long that operation takes.
    Returns name -> when it is done, in seconds.
    """
    end = {}
    for names in schedule(graph):
        for name in names:
            inputs = [source for source in graph[name][1:] if source in graph]
            start = max((end[source] for source in inputs), default=0)
            end[name] = start + seconds[name]
    return end

# %% check('largest_batch', largest_batch)

def largest_batch(widths, itemsize, memory):
    """The largest batch size whose training step fits in memory, or 0.

    widths: of the input and of each layer's output. itemsize: bytes a
    number. memory: bytes.
    """
    layers = zip(widths, widths[1:])
    parameters = sum(n_in * n_out + n_out for n_in, n_out in layers)
    left = memory - 2 * parameters * itemsize
    return max(0, left // (itemsize * sum(widths)))

# %% check('scale_rows', scale_rows)

import numpy as np
from ranklab.taught.graphs import Tensor


def scale_rows(a, s):
    """a (m, n) with row i multiplied by s[i]; s has m entries.

    Both are Tensors; returns one.
    """
    column = s.data[:, np.newaxis]
    return Tensor(
        a.data * column,
        (a, s),
        lambda grad: (grad * column, (grad * a.data).sum(axis=1)),
    )

# %% check('checkpoint', checkpoint)

from ranklab.taught.graphs import Tensor
from ranklab.taught.graphs import backward
from ranklab.taught.graphs import mul


def checkpoint(f, a):
    """Return f(a), a Tensor whose only source is `a`; its rule runs f again."""
    # TODO: run f on a fresh leaf that holds a's data, and keep only the data
    # of what comes out.

    def rule(grad):
        leaf = Tensor(a.data)
        backward(mul(f(leaf), Tensor(grad)))
        return (leaf.grad,)

    return Tensor(f(Tensor(a.data)).data, (a,), rule)
