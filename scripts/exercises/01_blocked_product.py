# Generated from book/01_matmul.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: cf2d63a6c6e5).
#
# === Blocks of any shape ==============================================================
#
# Build, about 12 minutes. `by_blocks` above takes square matrices whose slices all do.
# Write `blocked_product(A, B, b, multiply)` for matrices of any shape: cut them into
# blocks of $b \times b$ (smaller ones at the edges), and let `multiply(X, Y)` do each
# product of two blocks. It refuses anything larger than a block. A 4 × 4 product with
# `b=2` calls it 8 times.
#
#     python scripts/exercises/01_blocked_product.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np


def blocked_product(A, B, b, multiply):
    """Return A @ B, by products of blocks of at most b by b.

    A (n, m), B (m, p): arrays. multiply(X, Y): the product of two blocks.
    """
    n, m, p = *A.shape, B.shape[1]
    C = np.zeros((n, p))
    # TODO: add up, for every block of C, the products of a block of A and a
    # block of B.
    # YOUR CODE HERE
    raise NotImplementedError()
    return C


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("blocked_product", blocked_product) else 1)
