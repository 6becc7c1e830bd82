# 13_train_resnet.py, a program of chapter 13 of Many Ranks, One Model. Generated from book/13_own_framework.md.
#
# Run it on 4 ranks, or on another number of them:
#     mpiexec -n 4 python 13_train_resnet.py
#
# pip install mpi4py mpich numpy pillow scikit-image scikit-learn torch

import argparse
import atexit
import functools
import math
import os
import pickle
import socket
import sys
import time
import traceback
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.lib.stride_tricks import as_strided

# From ranklab.framework.grad_mode:

_nested = []


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


def recording():
    """Whether a tensor shall remember what it was computed from."""
    return not _nested


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


# From ranklab.framework.modules:


class Flatten(Module):
    """All axes but the first in one."""

    def forward(self, x):
        return x.flatten(1)


class ReLU(Module):
    """x where it is positive, else 0."""

    def forward(self, x):
        return x.relu()


class Residual(Module):
    """fn(x) + x."""

    def __init__(self, fn):
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


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


class SoftmaxLoss(Module):
    """The mean over the rows of logits (n, classes) of -log softmax at the class in y (n,)."""

    def forward(self, logits, y):
        rows = np.arange(len(logits))
        classes = np.asarray(getattr(y, "array", y)).astype(int)
        return (logits.logsumexp(axis=1) - logits[rows, classes]).mean()


class Tanh(Module):
    """The hyperbolic tangent, entry by entry."""

    def forward(self, x):
        return x.tanh()


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


# From ranklab.taught.own_framework:


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


def unbroadcast(grad, shape):
    """Sum a gradient over what was repeated: back to `shape`."""
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    ones = tuple(i for i, n in enumerate(shape) if n != grad.shape[i])
    return grad.sum(axis=ones, keepdims=True)


def matmul(a, b):
    """The product of matrices, or of stacks of them."""
    return a @ b, (
        lambda grad: unbroadcast(grad @ b.swapaxes(-1, -2), a.shape),
        lambda grad: unbroadcast(a.swapaxes(-1, -2) @ grad, b.shape),
    )


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


def windows(x, k, stride):
    """All k x k windows of x (n, h, w, c): (n, rows, columns, k, k, c)."""
    n, h, w, c = x.shape
    by_n, by_h, by_w, by_c = x.strides
    shape = n, (h - k) // stride + 1, (w - k) // stride + 1, k, k, c
    steps = by_n, by_h * stride, by_w * stride, by_h, by_w, by_c
    return as_strided(x, shape, steps, writeable=False)


def add_windows(parts, shape, stride):
    """Add up windows where they lie: what `windows` has read, backward."""
    x = np.zeros(shape, parts.dtype)
    _, rows, columns, k, _, _ = parts.shape
    for i, j in np.ndindex(k, k):
        down = slice(i, i + stride * rows, stride)
        right = slice(j, j + stride * columns, stride)
        x[:, down, right] += parts[:, :, :, i, j]
    return x


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


class Linear(Module):
    """x @ weight.T + bias"""

    def __init__(self, in_features, out_features, device=None, dtype="float32"):
        shape, bound = (out_features, in_features), in_features**-0.5
        self.weight = kaiming_uniform_(parameter(shape, dtype), 5**0.5)
        self.bias = uniform_(parameter(out_features, dtype), -bound, bound)

    def forward(self, x):
        return x @ self.weight.T + self.bias


def parameter(shape, dtype="float32"):
    """A leaf that is trained."""
    return Tensor(np.zeros(shape, dtype), requires_grad=True)


class Conv(Module):
    """A convolution with weights and biases of its own."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        device=None,
        dtype="float32",
    ):
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


def ResNet9(device=None, dtype="float32"):
    """Images (n, 3, 32, 32) to logits (n, 10)."""

    def block(n_in, n_out, k, stride):
        layer = Conv(n_in, n_out, k, stride, k // 2, dtype=dtype)
        return Sequential(layer, BatchNorm2d(n_out, dtype=dtype), ReLU())

    def residual(n):
        return Residual(Sequential(block(n, n, 3, 1), block(n, n, 3, 1)))

    return Sequential(
        block(3, 16, 7, 4),
        block(16, 32, 3, 2),
        residual(32),
        block(32, 64, 3, 2),
        block(64, 128, 3, 2),
        residual(128),
        Flatten(),
        Linear(128, 128, dtype=dtype),
        ReLU(),
        Linear(128, 10, dtype=dtype),
    )


class Adam(Optimizer):
    """Adam with weight decay as a part of the gradient (L2)."""

    def __init__(self, params, lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
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


nn = SimpleNamespace(
    Module=Module,
    Linear=Linear,
    Conv=Conv,
    BatchNorm1d=BatchNorm1d,
    BatchNorm2d=BatchNorm2d,
    ReLU=ReLU,
    Tanh=Tanh,
    Residual=Residual,
    Sequential=Sequential,
    Flatten=Flatten,
    SoftmaxLoss=SoftmaxLoss,
)


optim = SimpleNamespace(SGD=SGD, Adam=Adam)


options = argparse.ArgumentParser(description="ResNet-9 on ranks of MPI")
options.add_argument("--epochs", type=int, default=5)
options.add_argument("--batch", type=int, default=128)
options.add_argument("--data", help="the folder of CIFAR-10")
options.add_argument("--framework", default="numpy", help="or torch")
options = options.parse_args()
ndl = (torch_kit() if options.framework == "torch"
       else SimpleNamespace(ResNet9=ResNet9, nn=nn, optim=optim))

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


# From ranklab.taught.own_framework:


class DataLoader(Batches):
    """Batches of a data set as Tensors."""

    tensor = Tensor


data = SimpleNamespace(
    CIFAR10Dataset=CIFAR10Dataset, DataLoader=DataLoader, RandomSampler=RandomSampler
)

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


class Shares:
    """What a loader of shares has beside them: tensors of any framework; how many examples."""

    def tensor(self, array):
        return World.talk.tensor(array)

    def examples(self):
        """How many examples of an epoch are this rank's."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole * len(self.share(range(self.batch_size))) + len(self.share(range(rest)))


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


def end_all(kind, error, trace):
    """Show an exception that nobody has caught, and end all ranks: they would wait for this one."""
    traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    sys.stdout.flush()
    sys.__stderr__.flush()
    time.sleep(0.2)  # until mpiexec has shown it
    World.talk.comm.Abort(1)


# From ranklab.taught.mpi_ddp:


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


class ShardedLoader(Shares, DataLoader):
    """Of each batch of the whole data, this rank's share."""

    def share(self, indices):
        return indices[World.talk.rank :: World.talk.size]

    def batch(self, indices):
        mine = self.share(indices)
        World.share = len(mine), len(indices)
        return super().batch(mine or indices[:1])


def partition_dataset(dataset, batch_size, device=None, dtype="float32", shuffle=True, seed=0):
    """Share out every batch of a data set: (loader, size of a share)."""
    loader = ShardedLoader(
        dataset, batch_size, shuffle=shuffle, seed=seed, device=device, dtype=dtype
    )
    print(f"partitioned dataset length: {loader.examples()}")
    return loader, len(loader.share(range(batch_size)))


def broadcast_parameters(model, root=0):
    """Give all ranks, in place, the parameters and buffers of one."""
    for array in model.state_dict().values():
        World.talk.copy(array, root)


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


class OneBuffer:
    """A buffer with room for each gradient, where backward writes it."""

    def __init__(self, parameters):
        self.parameters, sizes = parameters, [p.size for p in parameters]
        n = sum(sizes)
        # Behind the gradients, a number for each: has any rank got it?
        self.buffer = World.talk.zeros(n + len(sizes), parameters[0].dtype)
        self.there = self.buffer[n:]
        self.rooms = [
            self.buffer[end - p.size : end].reshape(p.shape)
            for p, end in zip(parameters, np.cumsum(sizes))
        ]
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


np.random.seed(0)
rank, device = init(framework=options.framework)
dataset = data.CIFAR10Dataset(options.data, train=True)
train_set, bsz = partition_dataset(
    dataset, options.batch, device=device, dtype="float32")
print(f"original dataset length: {len(dataset)}")

model = ndl.ResNet9(device=device, dtype="float32")
broadcast_parameters(model)
model.train()
opt = ndl.optim.Adam(model.parameters(), lr=0.001, weight_decay=0.001)
opt = DistributedOptimizer(opt)
loss_fn = ndl.nn.SoftmaxLoss()

# From ranklab.framework.grad_mode:


class no_grad:
    """Within `with no_grad():` nothing is remembered, which saves memory."""

    def __enter__(self):
        _nested.append(self)

    def __exit__(self, *error):
        _nested.pop()


# From ranklab.framework.world:


def mean_over_ranks(number):
    """Of a mean over each rank's share, that over the whole batch."""
    return World.talk.comm.allreduce(World.weight() * float(number))


def accuracy(logits, labels):
    """The share of right answers, over all ranks' examples."""
    answers = World.talk.numbers(logits).argmax(axis=1)
    return mean_over_ranks((answers == World.talk.numbers(labels)).mean())


# From ranklab.framework.watching:


def right_on_all_ranks(model, loader):
    """How many examples a model recognizes: the loader deals each rank its share."""
    model.eval()
    with no_grad():
        return sum(accuracy(model(X), y) * World.share[1] for X, y in loader)


begin = time.time()
for i in range(options.epochs):
    if rank == 0:
        print(f"epoch: {i + 1}/{options.epochs}")
    for count, (X, y) in enumerate(train_set):
        opt.reset_grad()
        out = model(X)
        loss = loss_fn(out, y)
        loss.backward()
        opt.step()
        if count % 100 == 0:  # on all ranks, for both are sums
            acc, avg_loss = accuracy(out, y), mean_over_ranks(loss.item())
            if rank == 0:
                print(f"acc: {acc}; avg_loss: {avg_loss}")
end = time.time()

broadcast_parameters(model)  # with rank 0's running statistics
test = data.CIFAR10Dataset(options.data, train=False)
right = right_on_all_ranks(model, ShardedLoader(test, options.batch))
if rank == 0:
    print(f"Training Time: {end - begin}")
    print(f"test accuracy: {right / len(test):.3f} ({dataset.source})")
    print(dataset.license)
