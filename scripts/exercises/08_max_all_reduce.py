# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: f9ff8eaaa61c).
#
# === The largest of all ===============================================================
#
# Build, about 20 minutes. `max_all_reduce(x)` returns on every rank the largest value
# at each place, over all ranks, by recursive doubling from messages alone (no
# collectives), for any number of ranks, also those that are no power of two. Nobody may
# send more than `log2` of the world size messages, rounded down, and one more. x stays
# as it is. With x = [r, −r] on rank r of four it returns [3., 0.] everywhere.
#
#     python scripts/exercises/08_max_all_reduce.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.messages import sendrecv


def max_all_reduce(x):
    """Return the elementwise maximum of all ranks' x, on every rank."""
    # TODO: who has no partner below the largest power of two, and who speaks for it?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("max_all_reduce", max_all_reduce) else 1)
