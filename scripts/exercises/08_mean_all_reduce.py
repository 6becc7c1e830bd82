# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 9885fbb8e399).
#
# === A mean that rounds once ==========================================================
#
# Fill in, about 8 minutes. Gradients are often kept as bfloat16, which has 8
# significant bits: there, 256 + 1 is 256. `mean_all_reduce(x)` replaces x, of bfloat16
# or of float32, by the mean over all ranks, and must round to bfloat16 only once:
# adding and dividing are done in float32. Any layout of x is allowed, also a column of
# a matrix, whose other columns stay as they are. It returns nothing. With [1., 1.] on
# rank 0 and [396., 1.] on three others, in bfloat16, every rank's x becomes [298., 1.]:
# the mean of the first numbers is 297.25, and from 256 to 512 bfloat16 has even numbers
# only.
#
#     python scripts/exercises/08_mean_all_reduce.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def mean_all_reduce(x):
    """Replace x by the mean of all ranks' x, computed in float32."""
    # TODO: in float32 and in one piece, the sum and the mean; then back into x.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("mean_all_reduce", mean_all_reduce) else 1)
