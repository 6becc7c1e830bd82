# Generated from book/06_messages.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 9c6f8d5e8e83).
#
# === A line of workers ================================================================
#
# Build, about 12 minutes. Rank 0 has a list of pieces, tensors of one shape and type.
# Each piece goes through all ranks in order, and each rank does `piece = work(piece)`,
# which takes a while. The last rank returns the list of what comes out; the others
# return `None`. On the other ranks `pieces` holds zeros, as a pattern for boxes: leave
# it as it is. Do it so that all ranks can be at work at the same time: six pieces on
# four ranks take the time of nine, not of 24.
#
#     python scripts/exercises/06_pass_along.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def pass_along(pieces, work):
    """Send every piece through work() on all ranks, in order.

    The last rank returns the list of results, the others return None.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    last = world_size - 1
    done = []
    # TODO: get each piece from the rank before (rank 0 has it), work, and hand
    # on (or keep) the result.
    # YOUR CODE HERE
    raise NotImplementedError()
    return done if rank == last else None


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("pass_along", pass_along) else 1)
