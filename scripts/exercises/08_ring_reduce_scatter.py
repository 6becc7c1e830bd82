# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 4a938b8893d4).
#
# === Half of a ring ===================================================================
#
# Fill in, about 15 minutes. The first half of the ring is a reduce-scatter: afterwards
# each rank has the total of one part. Let it be rank r's own: `ring_reduce_scatter(x)`
# returns, on rank r, part r of the sum of all ranks' x, where the parts are those of
# `x.tensor_split(world size)`. With four ranks and x = [r, r, r, r] on rank r it
# returns [6.] on every rank. Chapter 7's went to the left; this one is to go to the
# right, as this chapter's ring does. But this chapter's leaves rank r with the total of
# another part than r, so begin with another one. The direction decides in which order
# the ranks' numbers are added, and so the last bits, which the check looks at. x stays
# as it is.
#
#     python scripts/exercises/08_ring_reduce_scatter.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.messages import sendrecv


def ring_reduce_scatter(x):
    """Return part r of the sum of all ranks' x (one dimension), on rank r."""
    n, me = dist.get_world_size(), dist.get_rank()
    left, right = (me - 1) % n, (me + 1) % n
    parts = x.clone().tensor_split(n)
    for step in range(n - 1):
        # TODO: outgoing, the part that goes to the right, and mine, the
        # one that what comes is added to.
        # YOUR CODE HERE
        raise NotImplementedError()
        incoming = torch.empty_like(mine)
        sendrecv(outgoing, right, incoming, left)
        mine += incoming
    return parts[me]


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("ring_reduce_scatter", ring_reduce_scatter) else 1)
