# Generated from book/06_messages.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 80cb716ebd52).
#
# === A parcel of unknown size =========================================================
#
# Build, about 20 minutes. The receiver brings the box. What if it knows neither shape
# nor type? Write `deliver(x, src, dst)`, which every rank calls: rank `src` has a
# tensor `x`, the others have `None`; `dst` is another rank. It returns a tensor like
# `x` on rank `dst`, with its numbers, shape and type, and `None` elsewhere. `x` may
# have any number of dimensions (none, too), be empty, be transposed, and be of any type
# in `DTYPES`.
#
#     python scripts/exercises/06_deliver.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


def deliver(x, src, dst):
    """Return rank src's x on rank dst, which knows nothing of it; else None."""
    rank = dist.get_rank()
    # TODO: messages of a size that both know come first. What must they tell?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("deliver", deliver) else 1)
