# Generated from book/05_ranks.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 7da3a85befa2).
#
# === Unequal tasks ====================================================================
#
# Build, about 12 minutes. A group is as fast as its slowest rank, and tasks are not
# equally long. Write `balanced_tasks(seconds)`: `seconds` says how long each task
# takes, and is the same on all ranks; the result is the list of this rank's tasks, each
# as its place in `seconds`. Every task has one owner, no message is needed, and the
# slowest rank may not have more to do than if the longest task were always dealt first,
# to the rank with the least to do so far. For `[4.0, 1.0, 1.0, 2.0]` and two ranks, one
# rank has `[0]` and the other the rest.
#
#     python scripts/exercises/05_balanced_tasks.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch.distributed as dist


def balanced_tasks(seconds):
    """Return this rank's tasks, as places in `seconds`; do not change that."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # TODO: deal all the tasks, on every rank alike, and keep this rank's.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("balanced_tasks", balanced_tasks) else 1)
