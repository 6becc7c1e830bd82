# Generated from book/13_own_framework.md by `make forms`: edit the manuscript, not this file.

# %% check('max_pool', max_pool)

import numpy as np


def max_pool(x, k):
    """The largest entry of each k x k block of x (n, c, h, w), and its rule."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // k, k, w // k, k).transpose(0, 1, 2, 4, 3, 5)
    rows = blocks.reshape(-1, k * k)  # a row for each block
    first = rows.argmax(axis=1)[:, np.newaxis]
    value = np.take_along_axis(rows, first, axis=1)

    def rule(grad):
        spread = np.zeros_like(rows)
        np.put_along_axis(spread, first, grad.reshape(-1, 1), axis=1)
        spread = spread.reshape(blocks.shape).transpose(0, 1, 2, 4, 3, 5)
        return spread.reshape(x.shape)

    return value.reshape(n, c, h // k, w // k), (rule,)

# %% check('batch_norm_back', batch_norm_back)

import numpy as np


def batch_norm_back(x, grad, eps=1e-5):
    """The gradient of x (n, features), from that of its batch norm."""
    scale = 1 / np.sqrt(x.var(axis=0) + eps)
    normal = (x - x.mean(axis=0)) * scale  # what batch norm has returned
    by_mean = grad.mean(axis=0)
    by_variance = normal * (grad * normal).mean(axis=0)
    return scale * (grad - by_mean - by_variance)

# %% check('adam_and_the_sum', adam_and_the_sum)

def adam_and_the_sum():
    """Return "a" (8 lr), "b" (decay / 8), "c" (batches of 2048) or "d"."""
    return "b"

# %% check('share_sizes', share_sizes)

def share_sizes(n, batch_size, ranks):
    """For each step, the sizes of the shares of all ranks: lists of ints."""
    steps = []
    for first in range(0, n, batch_size):
        size = min(batch_size, n - first)
        steps.append([len(range(rank, size, ranks)) for rank in range(ranks)])
    return steps
