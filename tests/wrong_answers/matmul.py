"""Wrong answers to the exercises of chapter 01."""

import math

import numpy as np

from wrong_answers import wrong

# work_and_span


@wrong("work_and_span", says=["3×1 times 1×4", "nothing to add"])
def with_one_step_to_add_at_least(n, m, p):
    return n * p * (2 * m - 1), 1 + max(1, math.ceil(math.log2(m)))


@wrong("work_and_span", says=["2×4 times 4×3", "m - 1 plus signs"])
def the_coarse_count(n, m, p):
    return 2 * n * m * p, 1 + math.ceil(math.log2(m))


@wrong("work_and_span", says=["2×4 times 4×3", "added in a row"])
def sums_in_a_row(n, m, p):
    return n * p * (2 * m - 1), m


@wrong("work_and_span", says=["2×5 times 5×3", "round up"])
def rounded_down(n, m, p):
    return n * p * (2 * m - 1), 1 + int(math.log2(m))


@wrong("work_and_span", says=["2×5 times 5×3"])
def the_shown_numbers(n, m, p):
    return 42, 3


# partial_products


@wrong("partial_products", says=["3×7 times 7×2, 3 workers", "left over"])
def rounding_down(A, B, workers):
    each = A.shape[1] // workers
    parts = [slice(w * each, (w + 1) * each) for w in range(workers)]
    return [A[:, part] @ B[part] for part in parts]


@wrong("partial_products", says=["2×4 times 4×3, 2 workers", "Cut the inner dimension"])
def cut_by_rows(A, B, workers):
    return [rows @ B for rows in np.array_split(A, workers)]


@wrong("partial_products", says=["Return a list"])
def added_up_already(A, B, workers):
    parts = np.array_split(np.arange(A.shape[1]), workers)
    return sum(A[:, part] @ B[part] for part in parts)


@wrong("partial_products", says=["2×2 times 2×2, 5 workers", "nothing to multiply"])
def only_who_has_columns(A, B, workers):
    parts = [part for part in np.array_split(np.arange(A.shape[1]), workers) if len(part)]
    return [A[:, part] @ B[part] for part in parts]


@wrong("partial_products", says=["changed its first argument A", "a view"])
def zeros_in_the_place_of_the_others(A, B, workers):
    parts = np.array_split(np.arange(A.shape[1]), workers)
    found = []
    for part in parts:
        found.append(A[:, part] @ B[part])
        A[:, part] = 0  # done with these
    return found


# blocked_product


@wrong("blocked_product", says=["4×4 times 4×4", "is the *sum* of"])
def only_the_last_block(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(0, len(A), b):
        for j in range(0, B.shape[1], b):
            for k in range(0, A.shape[1], b):
                C[i : i + b, j : j + b] = multiply(A[i : i + b, k : k + b], B[k : k + b, j : j + b])
    return C


@wrong("blocked_product", says=["5×5 times 5×5", "left out"])
def whole_blocks_alone(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(len(A) // b):
        for j in range(B.shape[1] // b):
            for k in range(A.shape[1] // b):
                rows, columns, inner = (slice(x * b, x * b + b) for x in (i, j, k))
                C[rows, columns] += multiply(A[rows, inner], B[inner, columns])
    return C


@wrong("blocked_product", says=["3×7 times 7×2", "ValueError"])
def square_alone(A, B, b, multiply):
    C = np.zeros_like(A)
    for i in range(0, len(A), b):
        for j in range(0, len(A), b):
            for k in range(0, len(A), b):
                C[i : i + b, j : j + b] += multiply(
                    A[i : i + b, k : k + b], B[k : k + b, j : j + b]
                )
    return C


@wrong("blocked_product", says=["multiply was given 2×4 times 4×2"])
def stripes(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(0, len(A), b):
        for j in range(0, B.shape[1], b):
            C[i : i + b, j : j + b] = multiply(A[i : i + b], B[:, j : j + b])
    return C


@wrong("blocked_product", says=["Give every product of two blocks to `multiply`"])
def not_in_blocks(A, B, b, multiply):
    return A @ B


@wrong("blocked_product", says=["without_a_step", "come to its end"])
def without_a_step(A, B, b, multiply):
    C, i = np.zeros((len(A), B.shape[1])), 0
    while i < len(A):
        for j in range(0, B.shape[1], b):
            C[i : i + b, j : j + b] = 0
    return C


# any_strassen


@wrong("any_strassen", says=["40×40, leaf 10", "with more products than needed"])
def to_a_power_of_two(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    size = 2 ** math.ceil(math.log2(n))
    A, B = (np.pad(M, (0, size - n)) for M in (A, B))
    return _seven(A, B, lambda x, y: to_a_power_of_two(x, y, leaf, multiply))[:n, :n]


def _seven(A, B, product):
    h = len(A) // 2
    a, b, c, d = A[:h, :h], A[:h, h:], A[h:, :h], A[h:, h:]
    e, f, g, k = B[:h, :h], B[:h, h:], B[h:, :h], B[h:, h:]
    pairs = [(a + d, e + k), (c + d, e), (a, f - k), (d, g - e)]
    pairs += [(a + b, k), (c - a, e + f), (b - d, g + k)]
    p, q, r, s, t, u, v = (product(x, y) for x, y in pairs)
    return np.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])


@wrong("any_strassen", says=["3×3, leaf 2", "cut off again"])
def with_the_zeros_left_on(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    A, B = (np.pad(M, (0, n % 2)) for M in (A, B))
    return _seven(A, B, lambda x, y: with_the_zeros_left_on(x, y, leaf, multiply))


@wrong("any_strassen", says=["3×3, leaf 2", "ValueError", "of one size"])
def even_sizes_alone(A, B, leaf, multiply):
    if len(A) <= leaf:
        return multiply(A, B)
    return _seven(A, B, lambda x, y: even_sizes_alone(x, y, leaf, multiply))


@wrong("any_strassen", says=["multiply was given 3×3 times 3×3", "make it even"])
def odd_sizes_at_once(A, B, leaf, multiply):
    if len(A) <= leaf or len(A) % 2:
        return multiply(A, B)
    return _seven(A, B, lambda x, y: odd_sizes_at_once(x, y, leaf, multiply))


@wrong("any_strassen", says=["8×8, leaf 2", "changed its first argument A", "`a + d`"])
def sums_in_place(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    if n % 2:
        A, B = (np.pad(M, (0, 1)) for M in (A, B))
    h = len(A) // 2
    a, b, c, d = A[:h, :h], A[:h, h:], A[h:, :h], A[h:, h:]
    e, f, g, k = B[:h, :h], B[:h, h:], B[h:, :h], B[h:, h:]
    inner = lambda x, y: sums_in_place(x.copy(), y.copy(), leaf, multiply)  # noqa: E731
    q, r, s = inner(c + d, e), inner(a, f - k), inner(d, g - e)
    t, u, v = inner(a + b, k), inner(c - a, e + f), inner(b - d, g + k)
    a += d
    e += k
    p = inner(a, e)
    return np.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])[:n, :n]


@wrong("any_strassen", says=["7×7, leaf 3", "RecursionError", "come to an end"])
def without_an_end(A, B, leaf, multiply):
    n = len(A)
    if n == leaf:  # from 4 it goes on to 2 and 1, and pads and cuts 1 again and again
        return multiply(A, B)
    A, B = (np.pad(M, (0, n % 2)) for M in (A, B))
    return _seven(A, B, lambda x, y: without_an_end(x, y, leaf, multiply))[:n, :n]
