# Generated from book/05_ranks.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 1f8d43a1de4e).
#
# === A share of your own ==============================================================
#
# Fill in, about 8 minutes. `share.py` dealt the tasks out like cards. Data is better
# cut into stretches, which can be read in one go. Write `my_shard(n)`: of the items 0
# to n − 1, this rank's are `start` to `stop` − 1. Every item has one owner, the
# stretches follow the order of the ranks, no two lengths differ by more than one, and
# the longer ones come first. With 10 items and 4 ranks: `(0, 3)`, `(3, 6)`, `(6, 8)`,
# `(8, 10)`.
#
#     python scripts/exercises/05_my_shard.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch.distributed as dist


def my_shard(n):
    """Return (start, stop) of this rank's items; the stretch may be empty."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # TODO: how many items has every rank, and how many ranks have one more?
    # YOUR CODE HERE
    raise NotImplementedError()
    return start, stop


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("my_shard", my_shard) else 1)
