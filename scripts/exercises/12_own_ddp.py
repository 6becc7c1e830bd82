# Generated from book/12_own_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 402d003fb131).
#
# === Data parallel by hand ============================================================
#
# Build, about 35 minutes. All of it in one function, without a wrapper, and for shares
# of any size. Write `own_ddp(model, batches, learning_rate)`, which trains `model` in
# place, one step of plain SGD ($w \leftarrow w - \text{learning rate} \cdot
# \text{gradient}$) for each batch, and returns the losses, one float for each step.
# Every rank is given the whole batches, and computes only on its share, every rank on
# other samples, whichever you like; the sizes of two shares differ by one at most. The
# loss is cross-entropy, its mean over the whole batch, and every rank returns the same.
#
# Every rank comes with other weights: those of rank 0 count, also of parameters that
# are not trained. Three things make it harder than it looks. World size need not divide
# the batch, and then the mean of the ranks' means is not the mean of the batch. A batch
# can have fewer samples than there are ranks, and a rank with nothing to compute must
# still take part in every collective. And a parameter may have no gradient. With
# batches of 12 and 4 ranks, every rank computes on 3 samples a step, and in the end
# every rank has the weights that one process would have.
#
#     python scripts/exercises/12_own_ddp.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist
from torch import nn


def own_ddp(model, batches, learning_rate):
    """Train `model` on all ranks together; return each step's loss, as floats.

    model: other weights on every rank; those of rank 0 count. It is trained in
        place.
    batches: pairs of inputs (samples, features) and labels (samples,), the same
        on every rank.
    """
    # TODO: the same start; for each batch a share, its gradients, a step.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("own_ddp", own_ddp) else 1)
