# Generated from book/09_mpi.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 6a9a3f0ec8d1).
#
# === Parts of unequal length ==========================================================
#
# Fill in, about 8 minutes. Every rank has a flat tensor of its own length, all of one
# type. `gather_unequal(comm, x)` returns all of them, one after the other in rank
# order, in one tensor on every rank. Gloo's all-gather wants equal lengths. MPI's
# `Allgatherv` (v for vector) takes `[box, counts]`, where `counts` is the list of all
# lengths. The numbers are to travel as buffers.
#
#     python scripts/exercises/09_gather_unequal.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch


def gather_unequal(comm, x):
    """Return all ranks' numbers in one flat tensor, on every rank."""
    # TODO: the lengths of all; a box for all numbers; then Allgatherv.
    # YOUR CODE HERE
    raise NotImplementedError()
    return box


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("gather_unequal", gather_unequal) else 1)
