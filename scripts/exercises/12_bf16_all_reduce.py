# Generated from book/12_own_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: f454a6226ae0).
#
# === Half the bytes ===================================================================
#
# Build, about 15 minutes. `OwnDDP` takes any `all_reduce` that is called as PyTorch's
# is. Write one that sends bfloat16: half the bytes, and 8 significant bits.
# `bf16_all_reduce(x, group=None, async_op=True)` starts the sum over the group and
# returns at once, with a handle, as `OwnDDP` always asks for one. When the handle's
# `wait()` returns, x holds the sums, in its own type. In a training, one rounding is up
# to 1/256 of each gradient, and the sums are rounded again on their way; who needs more
# than that keeps what was lost and adds it to the next gradient. With x = [r, 1.] on
# rank r of four, x is [6., 4.] after `wait()`.
#
#     python scripts/exercises/12_bf16_all_reduce.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def bf16_all_reduce(x, group=None, async_op=True):
    """Start to sum x over the group, sent as bfloat16; return a handle."""
    # TODO: what is sent, and what is to be done when it has been summed?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("bf16_all_reduce", bf16_all_reduce) else 1)
