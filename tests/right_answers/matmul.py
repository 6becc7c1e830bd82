"""Right answers to the exercises of chapter 01."""

import numpy as np

from right_answers import right

# work_and_span


@right("work_and_span")
def by_counting_bits(n, m, p):
    return (2 * m - 1) * n * p, 1 + (m - 1).bit_length()


# partial_products


@right("partial_products")
def with_zeros_elsewhere(A, B, workers):
    owners = np.concatenate(
        [np.full(len(part), w) for w, part in enumerate(np.array_split(A[0], workers))]
    )
    return [np.where(owners == w, A, 0) @ B for w in range(workers)]


# blocked_product


@right("blocked_product")
def row_of_blocks_by_row_of_blocks(A, B, b, multiply):
    def cut(M, axis):
        return np.split(M, range(b, M.shape[axis], b), axis=axis)

    def block(row, column):
        return sum(multiply(X, Y) for X, Y in zip(cut(row, 1), cut(column, 0)))

    return np.block([[block(row, column) for column in cut(B, 1)] for row in cut(A, 0)])


# any_strassen


@right("any_strassen")
def winograds_form(A, B, leaf, multiply):
    """Seven products and 15 additions, after Winograd."""
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    h = (n + 1) // 2
    (a, b, c, d), (e, f, g, k) = (_quarters(M, h) for M in (A, B))

    def times(X, Y):
        return winograds_form(X, Y, leaf, multiply)

    s1, t1 = c + d, f - e
    s2, t2 = s1 - a, k - t1
    p1, p2, p3, p4 = times(a, e), times(b, g), times(b - s2, k), times(d, t2 - g)
    p5, p6, p7 = times(s1, t1), times(s2, t2), times(a - c, k - f)
    u2 = p1 + p6
    u3 = u2 + p7
    C = np.vstack([np.hstack([p1 + p2, u2 + p5 + p3]), np.hstack([u3 - p4, u3 + p5])])
    return C[:n, :n]


def _quarters(M, h):
    even = np.zeros((2 * h, 2 * h))
    even[: len(M), : len(M)] = M
    return even[:h, :h], even[:h, h:], even[h:, :h], even[h:, h:]
