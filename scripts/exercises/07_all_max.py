# Generated from book/07_collectives.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 95ae0cd40ae1).
#
# === The largest, without a root ======================================================
#
# Fill in, about 10 minutes. The barrier tells everyone of everyone in ⌈log₂ n⌉ rounds,
# and sends nothing. Let it carry something: fill in `all_max(x)`, which replaces every
# rank's x by the largest of all ranks' x, number by number, in as many rounds.
#
#     python scripts/exercises/07_all_max.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.collectives import sendrecv


def all_max(x):
    """Replace x by the largest of all ranks' x, number by number, in place."""
    n, me = dist.get_world_size(), dist.get_rank()
    incoming = torch.empty_like(x)
    step = 1
    while step < n:
        # TODO: send x as far to the right as `step` says, and keep the
        # larger of x and what comes.
        # YOUR CODE HERE
        raise NotImplementedError()
        step *= 2


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("all_max", all_max) else 1)
