"""Right answers to the exercises of chapter 01."""

import numpy as np
import torch

from ranklab.taught.matmul import strassen
from right_answers import right

# work_and_span


@right("work_and_span")
def by_counting_bits(n, m, p):
    return (2 * m - 1) * n * p, 1 + (m - 1).bit_length()


@right("work_and_span")
def in_numpys_integers(n, m, p):
    return np.int64(n * p) * (2 * m - 1), 1 + np.ceil(np.log2(m)).astype(int)


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


@right("blocked_product")
def as_a_tensor(A, B, b, multiply):
    C = torch.zeros(len(A), B.shape[1], dtype=torch.float64)
    for i in range(0, len(A), b):
        for j in range(0, B.shape[1], b):
            for k in range(0, A.shape[1], b):
                block = multiply(A[i : i + b, k : k + b], B[k : k + b, j : j + b])
                C[i : i + b, j : j + b] += torch.from_numpy(block)
    return C


# any_strassen


@right("any_strassen")
def padded_once(A, B, leaf, multiply):
    """Padded to leaf times a power of two, then by the chapter's recursion."""
    n, size = len(A), leaf
    while size < n:
        size *= 2
    A, B = (np.pad(M, (0, size - n)) for M in (A, B)) if n > leaf else (A, B)
    return strassen(A, B, leaf, multiply)[:n, :n]


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
