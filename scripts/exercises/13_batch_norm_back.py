# Generated from book/13_own_framework.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 63f0f2b01d01).
#
# === Backward through the statistics ==================================================
#
# Fill in, about 25 minutes. Batch norm without its scale and shift is y = (x − mean) /
# √(var + eps): x has a row for each example, mean and var are those of each column, and
# var divides by n. `batch_norm_back(x, grad, eps)` is given the gradient of y and
# returns that of x. Each row of x changes its own row of y, and through mean and var
# all the others. What is kept from the forward pass is there already. In each column
# the result sums to 0, and the result times `normal` sums to nearly 0. Subtract from
# `grad` the part that breaks each, then multiply by `scale`.
#
#     python scripts/exercises/13_batch_norm_back.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np


def batch_norm_back(x, grad, eps=1e-5):
    """The gradient of x (n, features), from that of its batch norm."""
    scale = 1 / np.sqrt(x.var(axis=0) + eps)
    normal = (x - x.mean(axis=0)) * scale  # what batch norm has returned
    # TODO: three parts: directly, through the mean, and through the variance.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("batch_norm_back", batch_norm_back) else 1)
