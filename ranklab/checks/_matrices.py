"""Matrices for the exercises on products, and products to compare."""

import numpy as np
import torch


def matrices(n, m, p, *more):
    """Arguments A (n, m) and B (m, p), then `more`; small whole numbers, so that sums are exact."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(100 * n + 10 * m + p)
        A = torch.randint(-4, 5, (n, m), generator=generator).double()
        B = torch.randint(-4, 5, (m, p), generator=generator).double()
        return (A, B, *more)

    return make


def as_array(found):
    """A result to compare: an array, also of a tensor; anything else stays what it is."""
    if torch.is_tensor(found):
        return found.detach().numpy()
    if isinstance(found, np.ndarray) and found.dtype == object:  # which cannot be compared
        return found.tolist()
    return found
