# Generated from book/13_own_framework.md by `make forms`: edit the manuscript, not this file.

"""Your own framework: a training with nothing behind it: what chapter 13_own_framework teaches."""

from math import prod
from types import SimpleNamespace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ranklab.framework.batch_norm import BatchNorm
from ranklab.framework.grad_mode import checked, recording
from ranklab.framework.initial import kaiming_uniform_, uniform_
from ranklab.framework.loading import Batches, RandomSampler
from ranklab.framework.modules import Flatten, Module, ReLU, Residual, Sequential, SoftmaxLoss, Tanh
from ranklab.framework.operators import Operators
from ranklab.framework.optimizers import SGD, Optimizer
from ranklab.images import CIFAR10Dataset


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


class DataLoader(Batches):
    """Batches of a data set as Tensors."""

    tensor = Tensor


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


data = SimpleNamespace(
    CIFAR10Dataset=CIFAR10Dataset, DataLoader=DataLoader, RandomSampler=RandomSampler
)
