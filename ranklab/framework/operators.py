"""What a tensor can be asked for, in words of `apply`, `+`, `*` and what NumPy does."""

import numpy as np

from ranklab.framework.operations import (
    exp,
    log,
    log_sum_exp,
    permute,
    pick,
    power,
    relu,
    reshape,
    tanh,
    total,
)


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
