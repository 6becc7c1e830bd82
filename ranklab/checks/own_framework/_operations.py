"""What the exercises on operations of arrays share."""

import numpy as np
import torch


def whole(*shape, seed=0, low=-3, high=4):
    """Small whole numbers in float64: legible, and without rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).double()


def as_array(found):
    """A result to compare: an array, also of a tensor; anything else stays what it is."""
    return found.detach().numpy() if torch.is_tensor(found) else found


def is_operations(came):
    """Is it a value and a tuple of rules?"""
    return (
        isinstance(came, tuple | list)
        and len(came) == 2
        and isinstance(came[0], np.ndarray)
        and isinstance(came[1], tuple | list)
        and all(map(callable, came[1]))
    )
