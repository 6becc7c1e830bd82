# Generated from book/09_mpi.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 53a2995cdefc).
#
# === Addition of bfloat16 =============================================================
#
# Fill in, about 6 minutes. MPI takes operations that you bring: `op =
# MPI.Op.Create(add_bf16, commute=True)` makes one, and `comm.Allreduce(MPI.IN_PLACE,
# x.view(torch.int16), op)` reduces with it, whatever MPI believes the two bytes of a
# number to be. MPI calls `add_bf16(a, b, datatype)` with two stretches of memory of one
# length. Add the numbers of bfloat16 in both, number by number, and leave the sums in
# `b`.
#
#     python scripts/exercises/09_add_bf16.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch


def add_bf16(a, b, datatype):
    """Add a's bfloat16 to b's; a and b are memory, datatype is not needed."""
    # TODO: torch.frombuffer reads memory.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("add_bf16", add_bf16) else 1)
