# Generated from book/07_collectives.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 66983e769780).
#
# === One accuracy for all =============================================================
#
# Fill in, about 5 minutes. Every rank has tested the model on its own part of the data:
# of `seen` samples it got `right` right. Both are Python's integers. Write
# `total_accuracy(right, seen)`, which returns the share of all samples that were right,
# a number, on every rank. With 9 of 10 on rank 0 and 1 of 30 on rank 1 it is 0.25. A
# rank may have seen nothing. Use one collective call.
#
#     python scripts/exercises/07_total_accuracy.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def total_accuracy(right, seen):
    """The share of all ranks' samples that were right, on every rank."""
    # TODO: one collective call.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("total_accuracy", total_accuracy) else 1)
