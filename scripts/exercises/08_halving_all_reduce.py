# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 0f5037ed0c82).
#
# === Halving and doubling =============================================================
#
# Build, about 25 minutes. `halving_all_reduce(x)` replaces x, flat and in one piece, by
# the sum over all ranks, by recursive halving and doubling: as few bytes as the ring,
# in $2\log_2 n$ rounds. The number of ranks is a power of two, the length of x any.
# First the halves: with the partner at distance n / 2, give away one half of x and add
# what comes to the other; with the one at n / 4, the same with that half; and so on.
# Then the same way back, with totals. From messages alone. With x = [r, r, r, r] on
# rank r of four, it becomes [6., 6., 6., 6.] everywhere. It returns nothing.
#
#     python scripts/exercises/08_halving_all_reduce.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.messages import sendrecv


def halving_all_reduce(x):
    """Replace x by the sum of all ranks' x, in place."""
    n, me = dist.get_world_size(), dist.get_rank()
    # TODO: halves, quarters, ... that are added; then the way back.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("halving_all_reduce", halving_all_reduce) else 1)
