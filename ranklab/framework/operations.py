"""Operations on arrays: each returns its value and, for each array, the rule of its gradient."""

import numpy as np


def power(x, exponent):
    """x ** exponent, entry by entry; the exponent is a number."""

    def rule(grad):
        return grad * (exponent * x ** (exponent - 1)) if exponent else 0 * grad

    return x**exponent, (rule,)


def exp(x):
    """e ** x, entry by entry."""
    value = np.exp(x)
    return value, (lambda grad: grad * value,)


def log(x):
    """The natural logarithm, entry by entry."""
    return np.log(x), (lambda grad: grad / x,)


def tanh(x):
    """The hyperbolic tangent, entry by entry."""
    value = np.tanh(x)
    return value, (lambda grad: grad * (1 - value * value),)


def relu(x):
    """x where it is positive, else 0."""
    value = np.maximum(x, 0)
    return value, (lambda grad: grad * (value > 0),)


def total(x, axis=None, keepdims=False):
    """The sum over one axis, several, or all."""
    value = x.sum(axis=axis, keepdims=keepdims)

    def rule(grad):
        if axis is not None and not keepdims:
            grad = np.expand_dims(grad, axis)
        return np.broadcast_to(grad, x.shape)

    return value, (rule,)


def reshape(x, shape):
    """The same entries in another shape; one length may be -1."""
    return x.reshape(shape), (lambda grad: grad.reshape(x.shape),)


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
