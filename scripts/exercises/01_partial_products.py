# Generated from book/01_matmul.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 17a08c27fa87).
#
# === Cut the other way ================================================================
#
# Fill in, about 8 minutes. The last section gave every rank some rows of $A$, and all
# of $B$. One can also cut the inner dimension: worker $w$ gets some columns of $A$ and
# the same rows of $B$, and needs nothing else. Its product has the shape of the whole
# one, but it is only a part of every sum. Write `partial_products(A, B, workers)`: a
# list with one such product for each worker, cut as `np.array_split` cuts (as evenly as
# possible, the longer parts first). They add up to `A @ B`.
#
#     python scripts/exercises/01_partial_products.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np


def partial_products(A, B, workers):
    """Return what each worker computes from its columns of A, its rows of B.

    A (n, m), B (m, p): arrays. Returns a list of `workers` arrays (n, p);
    their sum is A @ B.
    """
    # TODO: cut A and B along the dimension that they share, and multiply
    # part by part.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("partial_products", partial_products) else 1)
