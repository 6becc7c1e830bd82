"""Wrong answers to the exercises of chapter 01."""

import math

import numpy as np

from ranklab.taught.matmul import strassen
from wrong_answers import wrong

# work_and_span


@wrong("work_and_span", says=["3×1 times 1×4", "nothing to add"])
def with_one_step_to_add_at_least(n, m, p):
    return n * p * (2 * m - 1), 1 + max(1, math.ceil(math.log2(m)))


@wrong("work_and_span", says=["2×8 times 8×2", "m - 1 plus signs"])
def the_coarse_count(n, m, p):
    return 2 * n * m * p, 1 + math.ceil(math.log2(m))


@wrong("work_and_span", says=["2×8 times 8×2", "added in a row"])
def sums_in_a_row(n, m, p):
    return n * p * (2 * m - 1), m


@wrong("work_and_span", says=["2×5 times 5×3", "one is left over for the next round"])
def rounded_down(n, m, p):
    return n * p * (2 * m - 1), 1 + int(math.log2(m))


@wrong("work_and_span", says=["2×8 times 8×2", "That is the tree alone"])
def without_the_step_of_products(n, m, p):
    return n * p * (2 * m - 1), math.ceil(math.log2(m))


@wrong("work_and_span", says=["2×8 times 8×2", "neither n nor p adds a step"])
def a_tree_over_the_rows(n, m, p):
    return n * p * (2 * m - 1), 1 + math.ceil(math.log2(n))


@wrong("work_and_span", says=["2×8 times 8×2", "The operations come first"])
def steps_first(n, m, p):
    return 1 + math.ceil(math.log2(m)), n * p * (2 * m - 1)


@wrong("work_and_span", says=["2×8 times 8×2", "One step too many"])
def bits_of_the_length(n, m, p):
    return n * p * (2 * m - 1), 1 + m.bit_length()


@wrong("work_and_span", says=["4.0 steps", "as a float", "`math.ceil`"])
def a_part_of_a_round(n, m, p):
    return n * p * (2 * m - 1), 1 + math.log2(m)


@wrong("work_and_span", says=["4.0 steps", "as a float", "`np.ceil`"])
def not_as_whole_numbers(n, m, p):
    return n * p * (2 * m - 1), float(1 + np.ceil(np.log2(m)))


@wrong("work_and_span", says=["2×8 times 8×2", "The additions are operations, too"])
def multiplications_alone(n, m, p):
    return n * p * m, 1 + math.ceil(math.log2(m))


@wrong("work_and_span", says=["3×1 times 1×4", "math domain error", "nothing to add"])
def the_logarithm_of_what_is_left(n, m, p):
    return n * p * (2 * m - 1), 2 + int(math.log2(m - 1))


@wrong("work_and_span", says=["was not done after", "once a single term is left"])
def halving_for_ever(n, m, p):
    work, rounds = n * p * (2 * m - 1), 0
    while m > 0:
        m, rounds = math.ceil(m / 2), rounds + 1
    return work, 1 + rounds


@wrong("work_and_span", says=["2×5 times 5×3"])
def the_shown_numbers(n, m, p):
    return 60, 4


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


@wrong("partial_products", says=["2×4 times 4×3, 2 workers", "Is A cut by columns"])
def both_cut_by_rows(A, B, workers):
    pairs = zip(np.array_split(A, workers), np.array_split(B, workers))
    return [a @ b for a, b in pairs]


@wrong("partial_products", says=["3×7 times 7×2, 3 workers", "`np.split` cuts into equal parts"])
def into_equal_parts(A, B, workers):
    pairs = zip(np.split(A, workers, axis=1), np.split(B, workers))
    return [a @ b for a, b in pairs]


@wrong("partial_products", says=["is a list of 2", "is an array of floats"])
def parts_as_lists(A, B, workers):
    pairs = zip(np.array_split(A, workers, axis=1), np.array_split(B, workers))
    return [(a @ b).tolist() for a, b in pairs]


@wrong("partial_products", says=["should be float64, and is int64", "is an array of floats"])
def parts_of_integers(A, B, workers):
    pairs = zip(np.array_split(A, workers, axis=1), np.array_split(B, workers))
    return [(a @ b).astype(int) for a, b in pairs]


@wrong("partial_products", says=["3×7 times 7×2, 3 workers", "the first ones get one column more"])
def the_last_gets_what_is_left(A, B, workers):
    each = A.shape[1] // workers
    cuts = [each * w for w in range(1, workers)]
    pairs = zip(np.split(A, cuts, axis=1), np.split(B, cuts))
    return [a @ b for a, b in pairs]


@wrong("partial_products", says=["Return a list, with one array for each worker"])
def one_array_of_all(A, B, workers):
    pairs = zip(np.array_split(A, workers, axis=1), np.array_split(B, workers))
    return np.stack([a @ b for a, b in pairs])


@wrong("partial_products", says=["2×4 times 4×3, 2 workers", "columns are neighbors"])
def in_turns(A, B, workers):
    return [A[:, w::workers] @ B[w::workers] for w in range(workers)]


@wrong("partial_products", says=["could not be broadcast", "a `*` where `@` is meant"])
def entry_by_entry(A, B, workers):
    pairs = zip(np.array_split(A, workers, axis=1), np.array_split(B, workers))
    return [a * b for a, b in pairs]


@wrong("partial_products", says=["has to be returned", "is a `return` missing"])
def without_returning_them(A, B, workers):
    pairs = zip(np.array_split(A, workers, axis=1), np.array_split(B, workers))
    [a @ b for a, b in pairs]


@wrong("partial_products", says=["It should return 2 values, and returned 4", "one entry for each"])
def a_product_for_every_column(A, B, workers):
    return [np.outer(column, row) for column, row in zip(A.T, B)]


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


@wrong("blocked_product", says=["3×7 times 7×2", "ValueError", "Three lengths are at play"])
def square_alone(A, B, b, multiply):
    C = np.zeros_like(A)
    for i in range(0, len(A), b):
        for j in range(0, len(A), b):
            for k in range(0, len(A), b):
                C[i : i + b, j : j + b] += multiply(
                    A[i : i + b, k : k + b], B[k : k + b, j : j + b]
                )
    return C


@wrong("blocked_product", says=["multiply was given 2×4 times 4×2", "inner dimension cut, too"])
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


@wrong("blocked_product", says=["is a `return` missing", "to return the product"])
def blocks_without_a_return(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(0, len(A), b):
        for j in range(0, B.shape[1], b):
            for k in range(0, A.shape[1], b):
                rows, columns, inner = (slice(x, x + b) for x in (i, j, k))
                C[rows, columns] += multiply(A[rows, inner], B[inner, columns])


@wrong("blocked_product", says=["but 4 were given", "blocked_product(A, B, b, multiply)"])
def blocks_by_itself(A, B, b):
    return A @ B


@wrong("blocked_product", says=["4×4 times 4×4", "not the right ones"])
def blocks_of_the_wrong_columns(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(0, len(A), b):
        for j in range(0, B.shape[1], b):
            for k in range(0, A.shape[1], b):
                rows, columns, inner = (slice(x, x + b) for x in (i, j, k))
                C[rows, columns] += multiply(A[rows, inner], B[columns, inner])
    return C


@wrong("blocked_product", says=["3×7 times 7×2", "how long a block is"])
def as_many_blocks_as_b(A, B, b, multiply):
    C, step = np.zeros((len(A), B.shape[1])), len(A) // b
    for i in range(0, len(A), step):
        for j in range(0, B.shape[1], step):
            for k in range(0, A.shape[1], step):
                rows, columns, inner = (slice(x, x + step) for x in (i, j, k))
                C[rows, columns] += multiply(A[rows, inner], B[inner, columns])
    return C


@wrong("blocked_product", says=["3×7 times 7×2", "Three lengths are at play"])
def loops_over_the_wrong_lengths(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(0, len(A), b):
        for j in range(0, A.shape[1], b):
            for k in range(0, B.shape[1], b):
                rows, columns, inner = (slice(x, x + b) for x in (i, j, k))
                C[rows, columns] += multiply(A[rows, inner], B[inner, columns])
    return C


@wrong("blocked_product", says=["multiply() takes 2 positional arguments", "takes two blocks"])
def with_the_length_of_a_block(A, B, b, multiply):
    return multiply(A, B, b)


@wrong("blocked_product", says=["4×4 times 4×4", "some of the blocks empty"])
def one_block_more_in_each_row(A, B, b, multiply):
    C = np.zeros((len(A), B.shape[1]))
    for i in range(0, len(A) + b, b):
        for j in range(0, B.shape[1] + b, b):
            for k in range(0, A.shape[1] + b, b):
                rows, columns, inner = (slice(x, x + b) for x in (i, j, k))
                C[rows, columns] += multiply(A[rows, inner], B[inner, columns])
    return C


@wrong("blocked_product", says=["is a list of 4", "an array of floats"])
def blocks_as_a_list(A, B, b, multiply):
    C = [[0.0] * B.shape[1] for _ in A]
    for i in range(len(A)):
        for j in range(B.shape[1]):
            for k in range(0, A.shape[1], b):
                C[i][j] += multiply(A[i : i + 1, k : k + b], B[k : k + b, j : j + 1])[0, 0]
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


@wrong("any_strassen", says=["is a `return` missing", "to return the product"])
def strassen_without_a_return(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    A, B = (np.pad(M, (0, n % 2)) for M in (A, B))
    _seven(A, B, multiply)


@wrong("any_strassen", says=["is a list of 3", "an array of floats"])
def strassen_as_a_list(A, B, leaf, multiply):
    return (A @ B).tolist()


@wrong("any_strassen", says=["3×3, leaf 2", "with eight products of blocks"])
def eight_products(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    A, B = (np.pad(M, (0, n % 2)) for M in (A, B))
    h = len(A) // 2

    def block(i, j):
        halves = slice(0, h), slice(h, None)
        parts = ((A[halves[i], k], B[k, halves[j]]) for k in halves)
        return sum(eight_products(x, y, leaf, multiply) for x, y in parts)

    return np.block([[block(i, j) for j in (0, 1)] for i in (0, 1)])[:n, :n]


@wrong("any_strassen", says=["5×5, leaf 1", "one level further down"])
def padded_at_the_top_alone(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    A, B = (np.pad(M, (0, n % 2)) for M in (A, B))
    return _seven(A, B, lambda x, y: strassen(x, y, leaf, multiply))[:n, :n]


@wrong("any_strassen", says=["missing 1 required", "any_strassen(A, B, leaf, multiply)"])
def without_the_leaf(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    return _seven(A, B, lambda x, y: without_the_leaf(x, y, multiply))


@wrong("any_strassen", says=["3×3, leaf 2", "made without `multiply`"])
def the_edge_by_numpy(A, B, leaf, multiply):
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    even = n - n % 2
    C = A @ B
    a, b = A[:even, :even], B[:even, :even]
    inner = multiply(a, b) if even <= leaf else _seven(a, b, lambda x, y: x @ y)
    C[:even, :even] = inner + A[:even, even:] @ B[even:, :even]
    return C


@wrong("any_strassen", says=["3×3, leaf 2", "leave the product to `multiply`"])
def by_numpy(A, B, leaf, multiply):
    return A @ B
