"""Cases of the chapter's exercises that a rank's number tells apart."""

import torch

from ranklab.exercises import Case


def numbers(what, length, ranks, dtype=torch.float32):
    def make(rank, world_size):
        return ((torch.arange(length) * (rank + 1) % 19).to(dtype),)

    return Case(what, make, ranks=ranks)


def names(collectives):
    """Return the names of the collectives that were called on any rank, in one string."""
    return ", ".join(sorted({name for each in collectives for name in each}))
