# Generated from book/07_collectives.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 27ef8a73cb2c).
#
# === The largest, and who has it ======================================================
#
# Fill in, about 8 minutes. Every rank has a tensor x of float32 or of float64 numbers.
# Write `largest(x)`, which returns a pair of numbers, the same on every rank: the
# largest number in any rank's x, and the rank that has it (the lowest one, if there are
# several). If ranks 0 to 3 have [3., 1.], [4., 1.], [5., 9.] and [2., 6.], it is (9.0,
# 2). The lengths may differ; no x is empty. Use one collective call, and leave x as it
# is.
#
#     python scripts/exercises/07_largest.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def largest(x):
    """The largest number that any rank has, and the lowest rank that has it."""
    mine = x.max().reshape(1)
    # TODO: everyone needs everyone's `mine`.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("largest", largest) else 1)
