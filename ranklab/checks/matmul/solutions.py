# Generated from book/01_matmul.md by `make forms`: edit the manuscript, not this file.

# %% check('steps_of_a_thin_product', steps_of_a_thin_product)

def steps_of_a_thin_product():
    """Return "a" (5 steps), "b" (11), "c" (16) or "d" (1000)."""
    return "b"

# %% check('work_and_span', work_and_span)

import math


def work_and_span(n, m, p):
    """Count an (n, m) matrix times an (m, p) one.

    Returns (operations, steps), two whole numbers.
    """
    work = n * p * (m + (m - 1))
    span = 1 + math.ceil(math.log2(m))
    return work, span

# %% check('partial_products', partial_products)

import numpy as np


def partial_products(A, B, workers):
    """Return what each worker computes from its columns of A, its rows of B.

    A (n, m), B (m, p): arrays. Returns a list of `workers` arrays (n, p);
    their sum is A @ B.
    """
    columns = np.array_split(A, workers, axis=1)
    rows = np.array_split(B, workers, axis=0)
    return [a @ b for a, b in zip(columns, rows, strict=True)]

# %% check('blocked_product', blocked_product)

import numpy as np


def blocked_product(A, B, b, multiply):
    """Return A @ B, by products of blocks of at most b by b.

    A (n, m), B (m, p): arrays. multiply(X, Y): the product of two blocks.
    """
    n, m, p = *A.shape, B.shape[1]
    C = np.zeros((n, p))
    for i in range(0, n, b):
        for j in range(0, p, b):
            for k in range(0, m, b):
                X, Y = A[i : i + b, k : k + b], B[k : k + b, j : j + b]
                C[i : i + b, j : j + b] += multiply(X, Y)
    return C

# %% check('any_strassen', any_strassen)

import numpy as np


def any_strassen(A, B, leaf, multiply):
    """Return A @ B for square arrays of any size, by Strassen's recursion.

    leaf: blocks of at most this size go to multiply(X, Y).
    """
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    odd = n % 2
    A, B = (np.pad(M, ((0, odd), (0, odd))) for M in (A, B))
    h = len(A) // 2
    a, b, c, d = A[:h, :h], A[:h, h:], A[h:, :h], A[h:, h:]
    e, f, g, k = B[:h, :h], B[:h, h:], B[h:, :h], B[h:, h:]
    pairs = [(a + d, e + k), (c + d, e), (a, f - k), (d, g - e)]
    pairs += [(a + b, k), (c - a, e + f), (b - d, g + k)]
    p, q, r, s, t, u, v = (any_strassen(x, y, leaf, multiply) for x, y in pairs)
    return np.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])[:n, :n]
