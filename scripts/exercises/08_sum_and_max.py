# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e7e14e7cdf79).
#
# === Sum and maximum at once ==========================================================
#
# Build, about 20 minutes. `sum_and_max(x)` returns on every rank a pair of tensors, the
# sum and the largest value at each place, over all ranks. From messages alone (no
# collectives), by recursive doubling, for any number of ranks. Nobody may send more
# than `log2` of the world size messages, rounded down, and one more: so both travel in
# one message, and chapter 7's way to the maximum, in which values may arrive twice,
# will not do. x, of one dimension, stays as it is. With x = [r, −r] on rank r of four
# it returns ([6., −6.], [3., 0.]) everywhere.
#
#     python scripts/exercises/08_sum_and_max.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.messages import sendrecv


def sum_and_max(x):
    """Return the elementwise sum and maximum of all ranks' x, on every rank."""
    # TODO: who has no partner below the largest power of two, and who
    # speaks for it?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("sum_and_max", sum_and_max) else 1)
