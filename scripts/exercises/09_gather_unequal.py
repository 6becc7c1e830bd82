# Generated from book/09_mpi.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 77f85b102f5e).
#
# === Parts of unequal length ==========================================================
#
# Fill in, about 8 minutes. MPI's `Allgatherv` (v for vector) gathers parts of unequal
# length. In PyTorch, write `gather_unequal(x)`: every rank has a flat tensor of its own
# length, all of one type, and on every rank it returns all of them in one flat tensor,
# in rank order. With [1.] on rank 0 and [2., 3.] on rank 1 it is [1., 2., 3.]. Gloo's
# all-gather wants boxes of one length.
#
#     python scripts/exercises/09_gather_unequal.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def gather_unequal(x):
    """Return all ranks' numbers in one flat tensor, on every rank."""
    n = dist.get_world_size()
    # TODO: gather the lengths; then the numbers, filled up to one length.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("gather_unequal", gather_unequal) else 1)
