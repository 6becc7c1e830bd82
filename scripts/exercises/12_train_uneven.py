# Generated from book/12_own_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: bab2d1376ba7).
#
# === Batches of unequal number ========================================================
#
# Build, about 25 minutes. `join` divides by the world size to the end. Write a training
# that divides by the ranks that still have data. `train_uneven(model, batches,
# learning_rate)` is given this rank's own batches: a list of pairs of inputs and
# labels, on some ranks fewer than on others, on some perhaps none. In step k, those
# ranks that have a batch number k compute the mean cross-entropy of theirs, and all
# ranks make a step of plain SGD with the mean of these gradients. It goes on until
# nobody has any. All start with the weights of rank 0. `model` is trained in place, and
# is a model in which every parameter gets a gradient. With 2, 3, 2 and 1 batches there
# are three steps, the last one with the gradient of rank 1 alone.
#
#     python scripts/exercises/12_train_uneven.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist
from torch import nn


def train_uneven(model, batches, learning_rate):
    """Train on all ranks' batches together, until no rank has any."""
    # TODO: the same start; then steps in which all take part; and when to end?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("train_uneven", train_uneven) else 1)
