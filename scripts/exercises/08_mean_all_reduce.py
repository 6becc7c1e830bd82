# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e346304c86f4).
#
# === A mean that rounds once ==========================================================
#
# Fill in, about 10 minutes. Gradients are often kept as bfloat16, which has 8
# significant bits: there, 256 + 1 is 256. `mean_all_reduce(x)` replaces x by the mean
# over all ranks, and must round only once: adding and dividing are done in float32. Any
# layout of x is allowed, also a column of a matrix. It returns nothing. On four ranks
# with [256., 1.], [1., 1.], [1., 1.], [1., 1.] every rank's x becomes [65., 1.] (the
# mean of the first numbers is 64.75).
#
#     python scripts/exercises/08_mean_all_reduce.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def mean_all_reduce(x):
    """Replace x by the mean of all ranks' x, in place; sums and division in float32."""
    # TODO: a float32 copy, which may be contiguous; its all-reduce; back into x.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("mean_all_reduce", mean_all_reduce) else 1)
