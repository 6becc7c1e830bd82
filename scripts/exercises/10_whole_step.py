# Generated from book/10_sync_sgd.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: f4d1c1b26be0).
#
# === One whole step ===================================================================
#
# Build, about 20 minutes. Write `whole_step(model, velocity, inputs, labels, rate,
# momentum)`: one step of SGD with momentum on all ranks together. `inputs` and `labels`
# are this rank's shard; their number differs from rank to rank and may be 0. `velocity`
# has a tensor for each parameter, zeros at first. With the gradient $g$ of the mean
# cross-entropy over all ranks' samples, change in place $v \leftarrow \text{momentum}
# \cdot v + g$ and $w \leftarrow w - \text{rate} \cdot v$, and return the mean loss over
# all samples, a float, on every rank. The models are equal on all ranks and in float64;
# the check makes a few steps, one call each. With 4 ranks, 3 samples each and three
# steps, weights and losses are those of one process.
#
#     python scripts/exercises/10_whole_step.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist
from torch import nn


def whole_step(model, velocity, inputs, labels, rate, momentum):
    """Make one step in place on all ranks; return their mean loss, a float."""
    # TODO: the batch's size, its part of the loss, all gradients, the step.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("whole_step", whole_step) else 1)
