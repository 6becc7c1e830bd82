# Generated from book/07_collectives.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 06650a747728).
#
# === A prefix sum =====================================================================
#
# Build, about 12 minutes. Write `own_scan(x)`: rank r gets the sum of the x of ranks 0
# to r, its own included, and x stays as it is. If rank r has [2r + 1], ranks 0 to 3 get
# [1], [4], [9] and [16]. MPI calls this `MPI_Scan`; PyTorch has no such collective, so
# build it from messages. Any shape and any type.
#
#     python scripts/exercises/07_own_scan.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.collectives import recv, send


def own_scan(x):
    """The sum of the x of ranks 0 to this one, of x's shape and type."""
    n, me = dist.get_world_size(), dist.get_rank()
    total = x.clone()
    # TODO: whom does this rank hear from, and whom does it tell?
    # YOUR CODE HERE
    raise NotImplementedError()
    return total


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("own_scan", own_scan) else 1)
