# Generated from book/13_own_framework.md by `make forms`: edit the manuscript, not this file.

"""Your own framework: every line of a training, on NumPy: what chapter 13_own_framework teaches."""

from types import SimpleNamespace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ranklab.framework.batch_norm import BatchNorm
from ranklab.framework.initial import kaiming_uniform_, uniform_
from ranklab.framework.loading import Batches, RandomSampler
from ranklab.framework.modules import Flatten, Module, ReLU, Residual, Sequential, SoftmaxLoss
from ranklab.framework.operators import Operators
from ranklab.framework.optimizers import SGD, Optimizer
from ranklab.framework.recording import recording


def unbroadcast(grad, shape):
    """Sum a gradient over what broadcasting repeated: back to `shape`."""
    new = tuple(range(grad.ndim - len(shape)))
    grad = grad.sum(axis=new)
    ones = tuple(i for i, n in enumerate(shape) if n < grad.shape[i])
    return grad.sum(axis=ones, keepdims=True)


def add(a, b):
    """a + b, and for each of them the rule of its gradient."""
    return a + b, (
        lambda grad: unbroadcast(grad, a.shape),
        lambda grad: unbroadcast(grad, b.shape),
    )


def mul(a, b):
    return a * b, (
        lambda grad: unbroadcast(grad * b, a.shape),
        lambda grad: unbroadcast(grad * a, b.shape),
    )


def matmul(a, b):
    return a @ b, (
        lambda grad: unbroadcast(grad @ b.swapaxes(-1, -2), a.shape),
        lambda grad: unbroadcast(a.swapaxes(-1, -2) @ grad, b.shape),
    )


class Tensor(Operators):
    """An array that remembers what it was computed from."""

    def __init__(self, array, requires_grad=False, sources=(), rules=()):
        self.array, self.requires_grad = np.asarray(array), requires_grad
        self.sources, self.rules = sources, rules
        self.grad, self.into, self.hooks = None, None, []
        if requires_grad and self.array.dtype.kind != "f":
            raise RuntimeError("Only Tensors of floating point dtype can require gradients")

    @property
    def data(self):
        """The same array, without its past."""
        return Tensor(self.array)

    def apply(self, operation, *others, **options):
        """Compute operation(self, *others), and remember it."""
        sources = self, *(as_tensor(other, self.dtype) for other in others)
        arrays = [source.array for source in sources]
        value, rules = operation(*arrays, **options)
        if recording() and any(source.requires_grad for source in sources):
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


def as_tensor(x, dtype):
    if isinstance(x, Tensor):
        return x
    return Tensor(np.asarray(x, np.result_type(dtype, x)))


def in_order(output):
    """All Tensors behind `output` that want gradients, sources first."""
    order, seen, todo = [], set(), [(output, False)]
    while todo:
        node, sources_are_done = todo.pop()
        if sources_are_done:
            order.append(node)
        elif node.requires_grad and id(node) not in seen:
            seen.add(id(node))
            todo.append((node, True))
            todo += [(source, False) for source in reversed(node.sources)]
    return order


def backward(output):
    """Add the gradient of `output` (one number) to every leaf's `.grad`."""
    if not output.requires_grad:
        raise RuntimeError("this Tensor does not require grad: nothing to do")
    if output.size != 1:
        raise RuntimeError("grad can be created only for scalar outputs")
    grads = {id(output): np.ones_like(output.array)}
    order = in_order(output)
    while order:
        node = order.pop()
        grad = grads.pop(id(node))
        if node.rules is None:
            raise RuntimeError("Trying to backward through the graph a second time")
        if not node.sources:
            accumulate(node, grad)
            continue
        for source, rule in zip(node.sources, node.rules):
            if source.requires_grad:
                part = rule(grad)
                known = grads.get(id(source))
                grads[id(source)] = part if known is None else known + part
        node.sources, node.rules = (), None  # the graph is used up


def accumulate(leaf, grad):
    if leaf.grad is not None:
        leaf.grad += grad
    else:
        if leaf.into is None:
            leaf.grad = np.array(grad, leaf.dtype, order="C")
        else:
            leaf.into[...] = grad
            leaf.grad = leaf.into
    for hook in leaf.hooks:
        hook(leaf)


def windows(x, k, stride):
    """A view: every k x k window of x (n, h, w, c)."""
    n, h, w, c = x.shape
    by_n, by_h, by_w, by_c = x.strides
    shape = n, (h - k) // stride + 1, (w - k) // stride + 1, k, k, c
    steps = by_n, by_h * stride, by_w * stride, by_h, by_w, by_c
    return as_strided(x, shape, steps)


def conv(x, weight, bias, stride=1, padding=0):
    """x (n, c, h, w) through weight (out, c, k, k): (n, out, ...)."""
    n, c, h, w = x.shape
    out, _, k, _ = weight.shape
    padded = np.zeros((n, h + 2 * padding, w + 2 * padding, c), x.dtype)
    inside = padded[:, padding : padding + h, padding : padding + w]
    inside[...] = x.transpose(0, 2, 3, 1)
    view = windows(padded, k, stride)
    columns = view.reshape(-1, k * k * c)
    matrix = weight.transpose(2, 3, 1, 0).reshape(-1, out)
    value = columns @ matrix
    value += bias
    rows, cols = view.shape[1:3]
    value = value.reshape(n, rows, cols, out).transpose(0, 3, 1, 2)

    def flat(grad):
        return grad.transpose(0, 2, 3, 1).reshape(-1, out)

    def to_x(grad):
        parts = (flat(grad) @ matrix.T).reshape(view.shape)
        padded[...] = 0
        for i, j in np.ndindex(k, k):
            padded[:, i : i + stride * rows : stride, j : j + stride * cols : stride] += parts[
                :, :, :, i, j
            ]
        return inside.transpose(0, 3, 1, 2)

    def to_weight(grad):
        product = columns.T @ flat(grad)
        return product.reshape(k, k, c, out).transpose(3, 2, 0, 1)

    return value, (to_x, to_weight, lambda grad: flat(grad).sum(axis=0))


def parameter(shape, dtype="float32"):
    return Tensor(np.zeros(shape, dtype), requires_grad=True)


class Linear(Module):
    def __init__(self, in_features, out_features, device=None, dtype="float32"):
        self.weight = parameter((out_features, in_features), dtype)
        self.bias = parameter(out_features, dtype)
        kaiming_uniform_(self.weight, nonlinearity="relu")
        uniform_(self.bias, -(in_features**-0.5), in_features**-0.5)

    def forward(self, x):
        return x @ self.weight.T + self.bias


class Conv(Module):
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
        self.weight = parameter(shape, dtype)
        self.bias = parameter(out_channels, dtype)
        self.stride, self.padding = stride, padding
        kaiming_uniform_(self.weight, nonlinearity="relu")
        bound = (in_channels * kernel_size**2) ** -0.5
        uniform_(self.bias, -bound, bound)

    def forward(self, x):
        return x.apply(conv, self.weight, self.bias, stride=self.stride, padding=self.padding)


class BatchNorm1d(BatchNorm):
    axes = 2, 3

    def __init__(self, num_features, eps=1e-5, momentum=0.1, device=None, dtype="float32"):
        weight, bias = (parameter(num_features, dtype) for _ in range(2))
        weight.array[...] = 1
        super().__init__(weight, bias, eps, momentum)


class BatchNorm2d(BatchNorm1d):
    axes = (4,)


def ResNet9(device=None, dtype="float32"):
    def block(n_in, n_out, k, stride):
        return Sequential(
            Conv(n_in, n_out, k, stride, k // 2, dtype=dtype),
            BatchNorm2d(n_out, dtype=dtype),
            ReLU(),
        )

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
    """Adam with L2 weight decay, as torch.optim.Adam (Kingma, Ba 2015)."""

    def __init__(self, params, lr=0.001, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.m = [np.zeros_like(p.array) for p in self.params]
        self.v = [np.zeros_like(p.array) for p in self.params]
        self.t = [0 for _ in self.params]

    def step(self):
        beta_1, beta_2 = self.betas
        for i, p in enumerate(self.params):
            if p.grad is None:
                continue
            grad, m, v = p.grad, self.m[i], self.v[i]
            if self.weight_decay:
                grad = grad + self.weight_decay * p.array
            self.t[i] += 1
            m += (1 - beta_1) * (grad - m)
            v += (1 - beta_2) * (grad * grad - v)
            step = m / (1 - beta_1 ** self.t[i])
            root = np.sqrt(v / (1 - beta_2 ** self.t[i]))
            p.array -= self.lr * step / (root + self.eps)


class DataLoader(Batches):
    tensor = Tensor


nn = SimpleNamespace(
    Module=Module,
    Linear=Linear,
    Conv=Conv,
    BatchNorm1d=BatchNorm1d,
    BatchNorm2d=BatchNorm2d,
    ReLU=ReLU,
    Residual=Residual,
    Sequential=Sequential,
    Flatten=Flatten,
    SoftmaxLoss=SoftmaxLoss,
)


optim = SimpleNamespace(SGD=SGD, Adam=Adam)


data = SimpleNamespace(DataLoader=DataLoader, RandomSampler=RandomSampler)
