# Generated from book/13_own_framework.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: dee8a725b257).
#
# === An operation of your own =========================================================
#
# Build, about 20 minutes. `max_pool(x, k)` keeps the largest entry of each k × k block
# of the images x (n, c, h, w); h and w are multiples of k, and blocks do not overlap.
# Write it as an operation: it returns its value, (n, c, h / k, w / k), and a tuple with
# one rule. Where several entries of a block are the largest, the first of them, row by
# row, gets the whole gradient. Leave x as it is. For the image [[1, 5], [5, 2]] and k =
# 2 the value is [[5]], and its rule turns the gradient [[7]] into [[0, 7], [0, 0]].
#
#     python scripts/exercises/13_max_pool.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np


def max_pool(x, k):
    """The largest entry of each k x k block of x (n, c, h, w), and its rule."""
    # TODO: the value, and where in each block it comes from.
    # YOUR CODE HERE
    raise NotImplementedError()

    def rule(grad):
        # TODO: a gradient in the shape of x.
        # YOUR CODE HERE
        raise NotImplementedError()

    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("max_pool", max_pool) else 1)
