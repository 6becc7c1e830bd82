# Generated from book/11_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: d51df6ac9740).
#
# === Parts that add up in silence =====================================================
#
# Fill in, about 10 minutes. `accumulated(replica, parts)` leaves in `.grad` the
# gradients of the mean loss over all samples of all parts of all ranks, and returns
# nothing. `replica` is a model wrapped in DDP, without hooks; `parts` is a list of
# pairs (inputs, labels), which may be of different sizes, but are of the same sizes on
# all ranks. The loss is cross-entropy. Whatever is in `.grad` before must not count.
# Only the last part may communicate: the check counts the all-reduces. And no more than
# one part is in memory at once, which is what accumulation is for. With parts of 3, 3
# and 2 samples on each of four ranks it is the mean over 32 samples.
#
#     python scripts/exercises/11_accumulated.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

from contextlib import nullcontext

from torch import nn


def accumulated(replica, parts):
    """Leave in .grad the gradients of the mean loss of all ranks' parts."""
    n = sum(len(labels) for _, labels in parts)
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        # TODO: quiet, but for the last part. How much does a part count?
        # YOUR CODE HERE
        raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("accumulated", accumulated) else 1)
