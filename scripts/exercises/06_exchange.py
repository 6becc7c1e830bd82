# Generated from book/06_messages.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: d34729eb27ac).
#
# === Letters to everybody =============================================================
#
# Fill in, about 10 minutes. Every rank has a list `letters` with one tensor for each
# rank, all of one shape and type. Write `exchange(letters)`, which sends `letters[r]`
# to rank r and returns the list of what this rank got: entry s came from rank s. The
# stub is made for one way to do it: start everything that can be started, keep the
# handles, and only then wait.
#
#     python scripts/exercises/06_exchange.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def exchange(letters):
    """Send letters[r] to rank r; return a list, entry s from rank s."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    boxes = [torch.empty_like(letter) for letter in letters]
    handles = []
    for other in range(world_size):
        # TODO: start what goes to `other` and what comes from it.
        # And if `other` is this rank?
        # YOUR CODE HERE
        raise NotImplementedError()
    # TODO: when may the boxes be read?
    # YOUR CODE HERE
    raise NotImplementedError()
    return boxes


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("exchange", exchange) else 1)
