# Generated from book/09_mpi.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: f7ad2b81ffac).
#
# === Split, in PyTorch ================================================================
#
# Build, about 12 minutes. In MPI a rank names a color, and `comm.Split(color)` gives it
# a communicator of all ranks of that color. In PyTorch every rank must call
# `dist.new_group` for every group, with the list of its members (unless one says
# `use_local_synchronization=True`). Write `split(color)`, which returns this rank's
# group. A color is an integer, or None: then the rank is in no group, and gets None.
# With the colors 0, 1, 0, 1 the group of ranks 0 and 2 has the members [0, 2].
#
#     python scripts/exercises/09_split.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch.distributed as dist


def split(color):
    """Return a process group of all ranks of this color; None for None."""
    # TODO: who has which color? Then one new_group for each, on all ranks.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("split", split) else 1)
