"""Batch norm: each channel with mean 0 and variance 1 over the batch, then a scale and a shift."""

import numpy as np

from ranklab.framework.modules import Module


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
