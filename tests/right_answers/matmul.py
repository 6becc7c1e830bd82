"""Right answers to the exercises of chapter 01."""

import itertools
import math

import numpy as np

from right_answers import right

# work_and_span


@right("work_and_span")
def by_counting_bits(n, m, p):
    return (2 * m - 1) * n * p, 1 + (m - 1).bit_length()


@right("work_and_span")
def by_recursion(n, m, p):
    def tree(terms):
        if terms == 1:
            return 0, 1
        half = terms // 2
        (left, deep), (right, deeper) = tree(half), tree(terms - half)
        return left + right + 1, 1 + max(deep, deeper)

    if m > 1000:  # a tree of a million leaves takes long to walk through
        return n * p * (m + m - 1), math.ceil(math.log2(m)) + 1
    additions, span = tree(m)
    return n * p * (m + additions), span


# partial_products


@right("partial_products")
def with_zeros_elsewhere(A, B, workers):
    owners = np.concatenate(
        [np.full(len(part), w) for w, part in enumerate(np.array_split(A[0], workers))]
    )
    return [np.where(owners == w, A, 0) @ B for w in range(workers)]


@right("partial_products")
def one_column_at_a_time(A, B, workers):
    each, more = divmod(A.shape[1], workers)
    products, columns = [], iter(range(A.shape[1]))
    for w in range(workers):
        mine = itertools.islice(columns, each + (w < more))
        outer = (np.outer(A[:, k], B[k]) for k in mine)
        products.append(sum(outer, np.zeros((len(A), B.shape[1]))))
    return products


# blocked_product


@right("blocked_product")
def row_of_blocks_by_row_of_blocks(A, B, b, multiply):
    def cut(M, axis):
        return np.split(M, range(b, M.shape[axis], b), axis=axis)

    def block(row, column):
        return sum(multiply(X, Y) for X, Y in zip(cut(row, 1), cut(column, 0)))

    return np.block([[block(row, column) for column in cut(B, 1)] for row in cut(A, 0)])


@right("blocked_product")
def inner_dimension_first(A, B, b, multiply):
    (n, m), p = A.shape, B.shape[1]
    C = np.zeros((n, p))
    for k, i, j in itertools.product(range(0, m, b), range(0, n, b), range(0, p, b)):
        inner, rows, columns = (slice(at, at + b) for at in (k, i, j))
        np.add(C[rows, columns], multiply(A[rows, inner], B[inner, columns]), C[rows, columns])
    return C


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


@right("any_strassen")
def padded_once(A, B, leaf, multiply):
    n, levels = len(A), 0
    while math.ceil(n / 2**levels) > leaf:
        levels += 1
    size = math.ceil(n / 2**levels) * 2**levels

    def product(X, Y):
        if len(X) <= leaf:
            return multiply(X, Y)
        h = len(X) // 2
        (a, b, c, d), (e, f, g, k) = (_quarters(M, h) for M in (X, Y))
        m1, m2 = product(a + d, e + k), product(c + d, e)
        m3, m4 = product(a, f - k), product(d, g - e)
        m5, m6, m7 = product(a + b, k), product(c - a, e + f), product(b - d, g + k)
        return np.block([[m1 + m4 - m5 + m7, m3 + m5], [m2 + m4, m1 - m2 + m3 + m6]])

    A, B = (np.pad(M, (0, size - n)) for M in (A, B))
    return product(A, B)[:n, :n]
