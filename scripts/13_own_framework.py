# Chapter 13 of Many Ranks, One Model, as one script. Generated from book/13_own_framework.md.
#
# Run it: python 13_own_framework.py
#
# pip install numpy

import math
import os
import sys
from types import SimpleNamespace

import numpy as np
from numpy.lib.stride_tricks import as_strided

if any(os.environ.get(name, "0") != "0" for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")):
    sys.exit()  # one process is enough: of several, all but the first end here


# === Your own framework: every line of a training, on NumPy ===========================

# Question?
#
# 9 minutes to read · 30 seconds to run · stands on chapter 2


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
    shares = np.exp(x - largest)
    sums = shares.sum(axis=axis, keepdims=True)
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
    return x**exponent, (lambda grad: grad * (exponent * x ** (exponent - 1)),)


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

    def numpy(self):
        """The array itself, not a copy."""
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on a Tensor that requires grad: write .data.numpy(), or .array."
            )
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


# From ranklab.framework.recording:

_nested = []


def recording():
    """Whether a tensor shall remember what it was computed from."""
    return not _nested


class Tensor(Operators):
    """An array that remembers what it was computed from."""

    def __init__(self, array, requires_grad=False, sources=(), rules=()):
        self.array, self.requires_grad = np.asarray(array), requires_grad
        self.sources, self.rules = sources, rules
        self.grad, self.into, self.hooks = None, None, []
        if requires_grad and self.array.dtype.kind != "f":
            raise RuntimeError(
                "Only Tensors of floating point dtype can require gradients")

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
            raise RuntimeError(
                "Trying to backward through the graph a second time")
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
            padded[:, i : i + stride * rows : stride,
                   j : j + stride * cols : stride] += parts[:, :, :, i, j]
        return inside.transpose(0, 3, 1, 2)

    def to_weight(grad):
        product = columns.T @ flat(grad)
        return product.reshape(k, k, c, out).transpose(3, 2, 0, 1)

    return value, (to_x, to_weight, lambda grad: flat(grad).sum(axis=0))


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
        return list(self._named(lambda v: isinstance(v, Operators) and v.requires_grad))

    def named_buffers(self):
        """Pairs of name and array, of what is kept and not trained."""
        return list(self._named(lambda v: isinstance(v, np.ndarray)))

    def parameters(self):
        return [parameter for _, parameter in self.named_parameters()]

    def buffers(self):
        return [buffer for _, buffer in self.named_buffers()]

    def state_dict(self):
        """Name -> array, of parameters and buffers; the arrays themselves, not copies."""
        arrays = {name: parameter.array for name, parameter in self.named_parameters()}
        return arrays | dict(self.named_buffers())

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


# From ranklab.framework.batch_norm:


def batch_statistics(x, synchronize=None):
    """Mean and variance of each channel (axis 1), and over how many entries they were taken.

    synchronize: adds an array up over all ranks, and returns the sums.
    """
    synchronize = synchronize or (lambda sums: sums)
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
    synchronize = synchronize or (lambda sums: sums)
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
        both = synchronize(np.concatenate(sums(grad))) * (np.tile(by, 2) / n)
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
    """The sum of each column, or of each column of a product."""
    if times is not None:
        return np.einsum("rc,rc->c", rows, times)
    return np.ones(len(rows), rows.dtype) @ rows


class BatchNorm(Module):
    """Batch norm with running statistics; which axes it takes, its subclasses say."""

    axes = ()

    def __init__(self, weight, bias, eps, momentum):
        self.weight, self.bias, self.eps, self.momentum = weight, bias, eps, momentum
        self.running_mean = np.zeros_like(weight.array)
        self.running_var = np.ones_like(weight.array)
        self.synchronize = None

    def forward(self, x):
        if x.ndim not in self.axes:
            expected = " or ".join(f"{axes}D" for axes in self.axes)
            raise ValueError(f"expected {expected} input (got {x.ndim}D input)")
        statistics = self.running_mean, self.running_var, None
        if self.training:
            statistics = batch_statistics(x.array, self.synchronize)
            self._remember(*statistics, x.shape)
        names = dict(zip(("mean", "var", "n"), statistics))
        return x.apply(
            batch_norm,
            self.weight,
            self.bias,
            eps=self.eps,
            synchronize=self.synchronize,
            **names,
        )

    def _remember(self, mean, var, n, shape):
        if n <= 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {shape}"
            )
        for running, new in ((self.running_mean, mean), (self.running_var, var * (n / (n - 1)))):
            running += self.momentum * (new - running)


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


def parameter(shape, dtype="float32"):
    return Tensor(np.zeros(shape, dtype), requires_grad=True)


class Linear(Module):
    def __init__(self, in_features, out_features, device=None, dtype="float32"):
        self.weight = parameter((out_features, in_features), dtype)
        self.bias = parameter(out_features, dtype)
        kaiming_uniform_(self.weight, nonlinearity="relu")
        uniform_(self.bias, -in_features**-0.5, in_features**-0.5)

    def forward(self, x):
        return x @ self.weight.T + self.bias


class Conv(Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1,
                 padding=0, device=None, dtype="float32"):
        shape = out_channels, in_channels, kernel_size, kernel_size
        self.weight = parameter(shape, dtype)
        self.bias = parameter(out_channels, dtype)
        self.stride, self.padding = stride, padding
        kaiming_uniform_(self.weight, nonlinearity="relu")
        bound = (in_channels * kernel_size**2) ** -0.5
        uniform_(self.bias, -bound, bound)

    def forward(self, x):
        return x.apply(conv, self.weight, self.bias,
                       stride=self.stride, padding=self.padding)


class BatchNorm1d(BatchNorm):
    axes = 2, 3

    def __init__(self, num_features, eps=1e-5, momentum=0.1, device=None,
                 dtype="float32"):
        weight, bias = (parameter(num_features, dtype) for _ in range(2))
        weight.array[...] = 1
        super().__init__(weight, bias, eps, momentum)


class BatchNorm2d(BatchNorm1d):
    axes = (4,)


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


def ResNet9(device=None, dtype="float32"):
    def block(n_in, n_out, k, stride):
        return Sequential(Conv(n_in, n_out, k, stride, k // 2, dtype=dtype),
                          BatchNorm2d(n_out, dtype=dtype), ReLU())

    def residual(n):
        return Residual(Sequential(block(n, n, 3, 1), block(n, n, 3, 1)))

    return Sequential(
        block(3, 16, 7, 4), block(16, 32, 3, 2), residual(32),
        block(32, 64, 3, 2), block(64, 128, 3, 2), residual(128),
        Flatten(), Linear(128, 128, dtype=dtype), ReLU(),
        Linear(128, 10, dtype=dtype))


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
        if own.keys() != state.keys() or any(
            len(own[name]) != len(state[name]) for name in own if isinstance(own[name], list)
        ):
            raise ValueError("The state was saved from another kind of optimizer, or model.")
        for name, value in state.items():
            if not isinstance(value, list):
                setattr(self, name, value)
                continue
            for i, entry in enumerate(value):
                if isinstance(entry, np.ndarray):
                    own[name][i][...] = entry
                else:
                    own[name][i] = entry


class Adam(Optimizer):
    """Adam with L2 weight decay, as torch.optim.Adam (Kingma, Ba 2015)."""

    def __init__(self, params, lr=0.001, betas=(0.9, 0.999), eps=1e-8,
                 weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps,
                         weight_decay=weight_decay)
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


class DataLoader(Batches):
    tensor = Tensor


# From ranklab.framework.modules:


class SoftmaxLoss(Module):
    """The mean over the rows of logits (n, classes) of -log softmax at the class in y (n,)."""

    def forward(self, logits, y):
        rows = np.arange(len(logits))
        classes = np.asarray(getattr(y, "array", y)).astype(int)
        return (logits.logsumexp(axis=1) - logits[rows, classes]).mean()


# From ranklab.framework.optimizers:


class SGD(Optimizer):
    """Gradient descent with momentum and weight decay, as torch.optim.SGD."""

    def __init__(self, params, lr=0.001, momentum=0.0, weight_decay=0.0):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.u = [np.zeros_like(p.array) for p in self.params]

    def step(self):
        for p, u in zip(self.params, self.u):
            if p.grad is None:
                continue
            u *= self.momentum
            u += p.grad
            if self.weight_decay:
                u += self.weight_decay * p.array
            p.array -= self.lr * u


# From ranklab.framework.recording:


class no_grad:
    """Within `with no_grad():` nothing is remembered, which saves memory."""

    def __enter__(self):
        _nested.append(self)

    def __exit__(self, *error):
        _nested.pop()


nn = SimpleNamespace(
    Module=Module, Linear=Linear, Conv=Conv, BatchNorm1d=BatchNorm1d,
    BatchNorm2d=BatchNorm2d, ReLU=ReLU, Residual=Residual,
    Sequential=Sequential, Flatten=Flatten, SoftmaxLoss=SoftmaxLoss)
optim = SimpleNamespace(SGD=SGD, Adam=Adam)
data = SimpleNamespace(DataLoader=DataLoader, RandomSampler=RandomSampler)

# --- What you can do now --------------------------------------------------------------
