# Generated from book/10_sync_sgd.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 453eabcbd60b).
#
# === Mean and variance of everything ==================================================
#
# Build, about 15 minutes. Every rank has x, some rows of a batch: (rows, features),
# maybe none. Write `batch_statistics(x)`, which returns the mean and the variance
# (divided by n, not n − 1) of each feature over all ranks' rows, on every rank, each of
# shape (features,) and of the type of x. With [[1.], [2.]] and [[6.]] on two ranks they
# are [3.] and about [4.667]. It must also be right for numbers near 10000 that differ
# by about 1, in float32.
#
#     python scripts/exercises/10_batch_statistics.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def batch_statistics(x):
    """Mean and variance of each feature over all ranks' rows: two tensors."""
    # TODO: what can be added up over the ranks?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("batch_statistics", batch_statistics) else 1)
