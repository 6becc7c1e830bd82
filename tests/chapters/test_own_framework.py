"""Chapter 13's operations: each against torch and against central differences."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from ranklab.framework.batch_norm import batch_norm, batch_statistics
from ranklab.framework.modules import SoftmaxLoss
from ranklab.taught.own_framework import Tensor, conv

LABELS = np.array([2, 0, 1, 2])


def normed(x, weight, bias):
    """Batch norm with the statistics of the batch, of which x is a part."""
    mean, var, n = batch_statistics(x.array)
    return x.apply(batch_norm, weight, bias, mean=mean, var=var, n=n)


def normed_with_others(x, weight, bias):
    mean, var = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.25, 4.0])
    return x.apply(batch_norm, weight, bias, mean=mean, var=var)


def torchs_with_others(x, weight, bias):
    mean = torch.tensor([0.5, -1.0, 2.0], dtype=x.dtype)
    var = torch.tensor([1.0, 0.25, 4.0], dtype=x.dtype)
    return functional.batch_norm(x, mean, var, weight, bias)


def torchs_batch_norm(x, weight, bias):
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def convolutions(stride, padding):
    """Ours and torch's."""
    options = {"stride": stride, "padding": padding}
    return (
        lambda x, weight, bias: x.apply(conv, weight, bias, **options),
        lambda x, weight, bias: functional.conv2d(x, weight, bias, **options),
    )


# Name -> shapes of the inputs, ours, torch's; only what differs from torch is written twice.
OPERATIONS = {
    "add": ([(2, 3), (2, 3)], lambda a, b: a + b),
    "add, rows": ([(2, 3), (3,)], lambda a, b: a + b),
    "add, outer": ([(2, 1), (4, 1, 3)], lambda a, b: a + b),
    "add, one number": ([(), (2, 3)], lambda a, b: a + b),
    "add, nothing to one": ([(3, 0), (1,)], lambda a, b: a + b),
    "add, no entries": ([(0, 3), (3,)], lambda a, b: a + b),
    "add a number": ([(2, 3)], lambda a: 2 + a + 0.5),
    "multiply": ([(2, 3), (2, 3)], lambda a, b: a * b),
    "multiply, columns": ([(2, 3), (2, 1)], lambda a, b: a * b),
    "multiply, both grow": ([(2, 1, 3), (4, 1)], lambda a, b: a * b),
    "multiply by itself": ([(3,)], lambda a: a * a * a),
    "subtract": ([(2, 3), (3,)], lambda a, b: a - b - 1),
    "subtract from a number": ([(2, 3)], lambda a: 1 - a),
    "divide": ([(2, 3), (2, 1)], lambda a, b: a / (b * b + 1)),
    "divide a number": ([(2, 3)], lambda a: 3 / (a * a + 1)),
    "power": ([(2, 3)], lambda a: a**3),
    "power 0, at 0": ([(2, 3)], lambda a: (a * 0) ** 0 + a),
    "matmul": ([(2, 3), (3, 4)], lambda a, b: a @ b),
    "matmul, stacked": ([(5, 2, 3), (5, 3, 4)], lambda a, b: a @ b),
    "matmul, one for all": ([(2, 1, 2, 3), (5, 3, 4)], lambda a, b: a @ b),
    "matmul, no rows": ([(0, 3), (3, 4)], lambda a, b: a @ b),
    "transpose": ([(2, 3), (2, 4)], lambda a, b: a.T @ b),
    "exp": ([(2, 3)], lambda a: a.exp()),
    "log": ([(2, 3)], lambda a: (a * a + 1).log()),
    "tanh": ([(2, 3)], lambda a: a.tanh()),
    "relu": ([(4, 3)], lambda a: a.relu()),
    "sum": ([(2, 3)], lambda a: a.sum()),
    "sum, an axis": ([(2, 3, 4)], lambda a: a.sum(1)),
    "sum, axes kept": ([(2, 3, 4)], lambda a: a.sum((0, -1), True)),
    "mean": ([(2, 3)], lambda a: a.mean()),
    "mean, axes": ([(2, 3, 4)], lambda a: a.mean((0, 2))),
    "reshape": ([(2, 6)], lambda a: a.reshape(3, -1)),
    "flatten": ([(2, 3, 2)], lambda a: a.flatten(1)),
    "permute": ([(2, 3, 4)], lambda a: a.permute(2, 0, 1)),
    "a row": ([(4, 3)], lambda a: a[1]),
    "entries, one twice": ([(4, 3)], lambda a: a[[0, 2, 0], [1, 1, 1]]),
    "logsumexp": ([(4, 3)], lambda a: a.logsumexp(1)),
    "logsumexp, kept": ([(2, 3, 4)], lambda a: a.logsumexp((0, 2), True)),
    "logsumexp, large": ([(4, 3)], lambda a: (a + 800).logsumexp(-1)),
    "softmax loss": (
        [(4, 3)],
        lambda a: SoftmaxLoss()(a, Tensor(LABELS)),
        lambda a: functional.cross_entropy(a, torch.tensor(LABELS)),
    ),
    "convolution": (
        [(2, 3, 5, 6), (4, 3, 3, 3), (4,)],
        *convolutions(1, 1),
    ),
    "convolution, strides": (
        [(2, 3, 9, 8), (4, 3, 3, 3), (4,)],
        *convolutions(2, 0),
    ),
    "convolution, gaps": (
        [(2, 2, 11, 8), (3, 2, 2, 2), (3,)],
        *convolutions(3, 1),
    ),
    "convolution, 1 x 1": (
        [(2, 3, 1, 1), (4, 3, 3, 3), (4,)],
        *convolutions(1, 1),
    ),
    "batch norm": ([(4, 3, 2, 5), (3,), (3,)], normed, torchs_batch_norm),
    "batch norm, rows": ([(6, 3), (3,), (3,)], normed, torchs_batch_norm),
    "batch norm, running": ([(4, 3, 5), (3,), (3,)], normed_with_others, torchs_with_others),
    "a diamond": ([(3,)], lambda a: (a.tanh() * a + a.exp()) * a.tanh()),
}
each_operation = pytest.mark.parametrize("name", OPERATIONS)


def case(name):
    """Inputs, drawn anew and always the same; ours and torch's."""
    shapes, ours, *torchs = OPERATIONS[name]
    draw = np.random.default_rng(sorted(OPERATIONS).index(name))
    return [draw.normal(size=shape) for shape in shapes], ours, (*torchs, ours)[0]


def weighted(value):
    """One number of all entries, so that each has a gradient of its own."""
    weights = np.random.default_rng(7).normal(size=tuple(value.shape))
    make = torch.tensor if isinstance(value, torch.Tensor) else Tensor
    return (value * make(weights)).sum()


def gradients(function, arrays):
    """The value of a function of tensors, and the gradient of each."""
    tensors = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    value = function(*tensors)
    weighted(value).backward()
    return value.array, [tensor.grad for tensor in tensors]


@each_operation
def test_an_operation_is_torchs(name):
    arrays, ours, torchs = case(name)
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = torchs(*leaves)
    weighted(expected).backward()
    value, grads = gradients(ours, arrays)
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-12, atol=1e-12)
    for grad, leaf in zip(grads, leaves):
        assert grad.shape == tuple(leaf.shape)
        np.testing.assert_allclose(grad, leaf.grad, rtol=1e-12, atol=1e-12)


@each_operation
def test_a_gradient_is_what_central_differences_say(name):
    arrays, ours, _ = case(name)
    _, grads = gradients(ours, arrays)
    step = 1e-6
    for array, grad in zip(arrays, grads):
        for at in np.ndindex(array.shape):
            kept, sides = array[at], []
            for array[at] in (kept + step, kept - step):
                sides.append(weighted(ours(*map(Tensor, arrays))).item())
            array[at] = kept
            slope = (sides[0] - sides[1]) / (2 * step)
            assert slope == pytest.approx(grad[at], rel=1e-5, abs=1e-7)


@each_operation
def test_inputs_and_types_are_kept(name):
    arrays, ours, _ = case(name)
    singles = [array.astype(np.float32) for array in arrays]
    before = [array.copy() for array in singles]
    tensors = [Tensor(array, requires_grad=True) for array in singles]
    value = ours(*tensors)
    (value * Tensor(np.ones(value.shape, np.float32))).sum().backward()
    if "running" not in name:  # there the statistics are float64
        assert value.dtype == np.float32
    assert all(tensor.grad.dtype == np.float32 for tensor in tensors)
    assert all((array == copy).all() for array, copy in zip(singles, before))
