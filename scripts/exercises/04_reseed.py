# Generated from book/04_feeding.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: ee2ec7c86d4d).
#
# === Noise that does not repeat =======================================================
#
# Fill in, about 6 minutes. A dataset has a generator of its own, `dataset.rng`, made by
# `np.random.default_rng(0)`; you have seen what workers do with it. `DataLoader(...,
# worker_init_fn=reseed)` calls `reseed(worker_id)` in each worker before its first
# example. Complete it, so that the generators of all workers and of all epochs differ,
# and yet two runs that begin with the same `torch.manual_seed` draw the same.
# `torch.initial_seed()` tells a process what PyTorch's generator was seeded with.
#
#     python scripts/exercises/04_reseed.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np
import torch
from torch.utils.data import get_worker_info


def reseed(worker_id):
    """Give this worker's copy of the dataset a generator `rng` of its own."""
    dataset = get_worker_info().dataset
    # TODO: a seed that differs between workers and epochs, but not between
    # equal runs.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("reseed", reseed) else 1)
