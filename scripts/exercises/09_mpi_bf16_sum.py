# Generated from book/09_mpi.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: cea3aaae587e).
#
# === An operation of your own =========================================================
#
# Build, about 20 minutes. `mpi_bf16_sum(comm, x)` replaces `x`, flat, of bfloat16, by
# the sum over all ranks, in place, and sends two bytes a number. MPI takes operations
# that you bring: `MPI.Op.Create(add)` makes one of a function `add(a, b, datatype)`,
# which gets two stretches of memory and is to leave the result in `b`. Which type MPI
# believes the numbers to have does not matter, as long as it has two bytes.
# `torch.frombuffer` reads a stretch of memory. Rank r with [1., r] gets [2., 1.] on two
# ranks.
#
#     python scripts/exercises/09_mpi_bf16_sum.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch


def mpi_bf16_sum(comm, x):
    """Replace x, flat and of bfloat16, by the sum of all ranks' x."""
    from mpi4py import MPI

    # TODO: an operation that adds bfloat16, and a type of two bytes.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("mpi_bf16_sum", mpi_bf16_sum) else 1)
