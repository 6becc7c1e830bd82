# Generated from book/16_layers.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 0490c66cf876).
#
# === Clip what nobody holds ===========================================================
#
# Build, about 12 minutes. `torch.nn.utils.clip_grad_norm_` multiplies all gradients by
# max_norm / norm where their norm is larger than `max_norm`; PyTorch adds 1e-6 to the
# norm. Of a cut model no rank has all of them. Write `clip_stages(parameters, shared,
# max_norm)`, which every rank calls:
# - `parameters` is a list of the parameters of its own stage. One may have no gradient.
# - `shared` is the one of them that the first and the last rank both own. Its gradient
#   has been added up already, and is the same on both. It is None on the ranks between,
#   and on all ranks if nothing is shared.
# - It clips the gradients in place by the norm of the whole model's gradient, and
#   returns that norm (before clipping), a float, on every rank.
#
# With gradients 3 on rank 0 and 4 on rank 1, nothing shared, and max_norm 1, both
# return 5, and the gradients become 0.6 and 0.8.
#
#     python scripts/exercises/16_clip_stages.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def clip_stages(parameters, shared, max_norm):
    """Clip this rank's gradients by the norm of all; return that norm."""
    # TODO: what does each rank add to the sum, and what is counted twice?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("clip_stages", clip_stages) else 1)
