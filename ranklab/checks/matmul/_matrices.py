"""Matrices for the exercises on products, and a `multiply` that watches what it is given."""

import numpy as np
import torch

from ranklab.exercises import Case


def case(what, n, m, p, *more):
    """Arguments A (n, m) and B (m, p), then `more`; small whole numbers, so that sums are exact."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(100 * n + 10 * m + p)
        A = torch.randint(-4, 5, (n, m), generator=generator).double()
        B = torch.randint(-4, 5, (m, p), generator=generator).double()
        return (A, B, *more)

    return Case(what, make, ranks=1)


def as_array(found):
    """A result to compare: an array, also of a tensor; anything else stays what it is."""
    if torch.is_tensor(found):
        return found.detach().numpy()
    if isinstance(found, np.ndarray) and found.dtype == object:  # which cannot be compared
        return found.tolist()
    return found


def with_blocks(answer, A, B, b):
    """What the answer makes of A and B, and how often it called multiply, which takes blocks."""
    calls = 0

    def multiply(X, Y):
        nonlocal calls
        if max(*X.shape, *Y.shape) > b:
            shapes = " times ".join(f"{M.shape[0]}×{M.shape[1]}" for M in (X, Y))
            raise ValueError(f"multiply was given {shapes}, and takes blocks of at most {b}")
        calls += 1
        return X @ Y

    multiply.__qualname__ = "multiply"  # as error messages call it
    C = answer(A.numpy(), B.numpy(), b, multiply)
    return None if C is None else {"product": as_array(C), "calls of multiply": calls}


# What more than one of the exercises says
LOOP = "Does every loop come to its end?"
TWO_BLOCKS = "`multiply` takes two blocks, and nothing else."
RETURN = "The last thing that it does is to return the product."
ARRAY = "The product is an array of floats, as A and B are."
