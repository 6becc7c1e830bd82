"""First weights: Kaiming's and Xavier's, drawn from NumPy's global generator, as torch has them."""

import math

import numpy as np

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


def kaiming_normal_(tensor, a=0, mode="fan_in", nonlinearity="leaky_relu"):
    return normal_(tensor, 0, _kaiming(tensor, a, mode, nonlinearity))


def xavier_uniform_(tensor, gain=1.0):
    """Fill a weight, uniformly, between what forward and backward ask for."""
    bound = math.sqrt(3) * gain * math.sqrt(2 / sum(fans(tensor.shape)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor, gain=1.0):
    return normal_(tensor, 0, gain * math.sqrt(2 / sum(fans(tensor.shape))))


def uniform_(tensor, a=0.0, b=1.0):
    tensor.array[...] = np.random.uniform(a, b, tensor.shape)
    return tensor


def normal_(tensor, mean=0.0, std=1.0):
    tensor.array[...] = np.random.normal(mean, std, tensor.shape)
    return tensor


def _kaiming(tensor, a, mode, nonlinearity):
    """The standard deviation (He et al. 2015)."""
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of fan_in, fan_out")
    fan = fans(tensor.shape)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)
