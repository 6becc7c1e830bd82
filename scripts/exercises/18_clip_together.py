# Generated from book/18_tensor.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 735743aad502).
#
# === Clip together ====================================================================
#
# Build, about 12 minutes. `clip_together(split, shared, max_norm)` clips the gradients
# of a split model, in place. `split` are the parameters of which this rank has a piece,
# `shared` those that are the same on all ranks, with the same gradients. Some have no
# gradient (`None`), and a list may be empty, also on one rank alone. If the norm of the
# whole model's gradient is above `max_norm`, scale all gradients so that it is
# `max_norm`; otherwise leave them alone, also where the norm is infinite or nan, so
# that who called can skip the step. Return the norm from before, a float, the same on
# every rank. With one number 3 on rank 0, one number 4 on rank 1, and nothing shared,
# it is 5.
#
#     python scripts/exercises/18_clip_together.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def clip_together(split, shared, max_norm):
    """Clip the gradients of a split model; return the norm from before."""
    # TODO: pieces are added up over the ranks; what about replicas?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("clip_together", clip_together) else 1)
