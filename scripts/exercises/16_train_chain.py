# Generated from book/16_layers.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 40c25ac665a4).
#
# === A chain of strangers =============================================================
#
# Build, about 25 minutes. `through` is told the shape of what comes. Now do without, as
# `deliver` of chapter 6 does. `train_chain(stage, batches, learning_rate)` trains a
# chain of stages, one a rank, by plain SGD ($w \leftarrow w - \text{learning rate}
# \cdot \text{gradient}$), and returns the loss of each step, a float, on every rank.
# - `stage` is this rank's module, trained in place: rank 0's takes the inputs, each
#   other one what the rank before has computed. It may have no parameters.
# - `batches` is a list of pairs, as many on every rank: (inputs, None) on rank 0,
#   (None, labels) on the last rank, (None, None) between; alone, (inputs, labels).
# - No stage knows the shape of what it receives, which may have any number of
#   dimensions and differ from batch to batch; its type is float64.
# - The loss is the mean cross-entropy of the last stage's outputs.
#
# With one linear layer on each of four ranks, their weights are in the end those of one
# process that has trained all four.
#
#     python scripts/exercises/16_train_chain.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist
from torch import nn


def train_chain(stage, batches, learning_rate):
    """Train this rank's stage of a chain; return the losses, on every rank."""
    # TODO: for each batch: what comes, how large is it, and what goes back?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("train_chain", train_chain) else 1)
