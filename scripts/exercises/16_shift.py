# Generated from book/16_layers.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 903bd97e29fd).
#
# === Around a ring ====================================================================
#
# Fill in, about 12 minutes. `Send` and `Receive` make a chain. In a ring every rank
# does both at once: `Shift.apply(x)` sends x to the next rank and returns what the rank
# before has sent, of the same shape and type (after the last rank comes rank 0). Write
# its forward, and the backward that belongs to it, so that autograd's gradients are
# right on every rank. It must work with one rank, too, and a large x must not lead to a
# deadlock. With x = 10, 20 and 30 on three ranks, they get 30, 10 and 20.
#
#     python scripts/exercises/16_shift.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


class Shift(torch.autograd.Function):
    """x of the rank before, in a ring."""

    @staticmethod
    def forward(ctx, x):
        # TODO: to the next rank, and from the one before, without a circle.
        # YOUR CODE HERE
        raise NotImplementedError()

    @staticmethod
    def backward(ctx, gradient):
        # TODO: who has the gradient of what this rank sent?
        # YOUR CODE HERE
        raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("shift", Shift) else 1)
