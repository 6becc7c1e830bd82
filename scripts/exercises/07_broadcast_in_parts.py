# Generated from book/07_collectives.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: f5c078bd30e0).
#
# === A broadcast for long tensors =====================================================
#
# Build, about 10 minutes. The tree's root sends the whole tensor $\lceil \log_2 n
# \rceil$ times. Write `broadcast_in_parts(x, src)`, which gives rank src's x to all
# ranks, in place, and in which no rank sends or receives more than two tensors:
# scatter, then all-gather, both of this chapter. x is flat and in one piece, of any
# length. With [1., 2., 3., 4., 5., 6., 7., 8.] on rank 1 of four, all have that
# afterwards.
#
#     python scripts/exercises/07_broadcast_in_parts.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.collectives import all_gather, scatter


def broadcast_in_parts(x, src):
    """Give rank src's x to all ranks: scatter, then all-gather."""
    n, me = dist.get_world_size(), dist.get_rank()
    # TODO: which parts are scattered, and into what are they gathered?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("broadcast_in_parts", broadcast_in_parts) else 1)
