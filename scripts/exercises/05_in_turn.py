# Generated from book/05_ranks.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: ca9387ae7675).
#
# === One after another ================================================================
#
# Fill in, about 6 minutes. The order between ranks is not promised, unless one waits
# for another. Write `in_turn(say)`: every rank calls `say()` once, rank 0 first, then
# rank 1, and nobody begins before the one before has ended, however late a rank comes
# and however long it speaks. No sleep is long enough for that. `dist.barrier()` is all
# that it takes.
#
#     python scripts/exercises/05_in_turn.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch.distributed as dist


def in_turn(say):
    """Call say() once on every rank, one after the other, in rank order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # TODO: take turns. Who calls barrier, and how often?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("in_turn", in_turn) else 1)
