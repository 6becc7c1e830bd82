# Generated from book/07_collectives.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 77d6702b1053).
#
# === Lists of different length ========================================================
#
# Fill in, about 5 minutes. Every rank has a list of integers, each of another length:
# the indices of the samples that it got wrong, say. Write `all_lists(numbers)`, which
# returns the list of all ranks' lists, in rank order, on every rank. From [1, 2], [],
# [3, 4, 5] and [6] it makes [[1, 2], [], [3, 4, 5], [6]].
#
#     python scripts/exercises/07_all_lists.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch.distributed as dist


def all_lists(numbers):
    """All ranks' lists, in rank order, on every rank."""
    # TODO: one collective call.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("all_lists", all_lists) else 1)
