# Generated from book/10_sync_sgd.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 0553ed4add2a).
#
# === Means over unequal shards ========================================================
#
# Fill in, about 10 minutes. Every rank has run `backward` on the mean loss of its own
# `samples` samples (an int). Write `average_shards(model, samples)`, which replaces
# every `.grad` by the gradient of the mean loss over all ranks' samples. Nobody tells
# you how many those are. A rank may have had no sample: then it has run no `backward`,
# its `samples` is 0, and all its `.grad` are `None`. With one weight, gradients 2.0 and
# 5.0, and 3 and 1 samples, the result is 2.75 on both ranks.
#
#     python scripts/exercises/10_average_shards.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def average_shards(model, samples):
    """Replace this rank's gradients by those of the mean over all samples."""
    # TODO: how many samples are there? And what does a rank without any do?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("average_shards", average_shards) else 1)
