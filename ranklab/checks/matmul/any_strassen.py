"""Strassen's product for matrices of any size."""

import re

import numpy as np

from ranklab.checks.matmul._matrices import ARRAY, LOOP, RETURN, TWO_BLOCKS, case, with_blocks
from ranklab.exercises import Exercise, Mistake
from ranklab.taught.matmul import strassen

# In the solution
PAIRS = """pairs = [(a + d, e + k), (c + d, e), (a, f - k), (d, g - e)]
    pairs += [(a + b, k), (c - a, e + f), (b - d, g + k)]"""
BLOCKS = "[p + s - t + v, r + t], [q + s, p - q + r + u]"


def sized(n, leaf):
    return case(f"{n}×{n}, leaf {leaf}", n, n, n, leaf)


def calls(A, leaf):
    """7 for each time that all is cut in half."""
    levels, n = 0, len(A)
    while n > leaf:
        levels, n = levels + 1, (n + 1) // 2
    return 7**levels


def twin(inputs):
    (A, B, leaf) = inputs[0]
    return [{"product": (A @ B).numpy(), "calls of multiply": calls(A, leaf)}]


def too_few_calls(seen):
    got, right = seen.results[0], seen.expected[0]
    return got["calls of multiply"] < right["calls of multiply"]


def padded_once(A, B, leaf, multiply):
    """Padded to leaf times a power of two, then by the chapter's recursion."""
    n, size = len(A), leaf
    while size < n:
        size *= 2
    A, B = (np.pad(M, (0, size - n)) for M in (A, B)) if n > leaf else (A, B)
    return strassen(A, B, leaf, multiply)[:n, :n]


exercise = Exercise(
    cases=[
        sized(3, 2),
        sized(1, 1),
        sized(5, 1),
        sized(7, 3),
        sized(8, 2),
        sized(12, 5),
        sized(40, 10),
        sized(33, 16),
    ],
    twin=twin,
    drive=with_blocks,
    limit=3.0,
    hint="Zeros at the right and at the bottom change nothing in the product but its size. Check "
    "the seven products one by one on a 2×2.",
    also_right=[
        padded_once,
        {  # as Winograd wrote it
            PAIRS: "pairs = [(a, e), (b, g), (a + b - c - d, k), (d, e - f - g + k), "
            "(c + d, f - e), (c + d - a, e - f + k), (a - c, k - f)]",
            BLOCKS: "[p + q, p + u + t + r], [p + u + v - s, p + u + v + t]",
        },
    ],
    mistakes=[
        Mistake(
            TWO_BLOCKS,
            {"return multiply(A, B)": "return multiply(A, B, leaf)"},
            happened="error",
            test=lambda seen: "multiply()" in seen.error and "argument" in seen.error,
        ),
        Mistake(
            LOOP, {"    odd =": "    while n > leaf:\n        pass\n    odd ="}, happened="slow"
        ),
        Mistake(
            "Which sizes never come to an end? Every one must reach n <= leaf.",
            {"n <= leaf": "n == leaf"},
            happened="error",
            test=lambda seen: "RecursionError" in seen.error,
        ),
        Mistake(
            "An odd size cannot be cut in half, but one row and one column of zeros make it even.",
            {"n <= leaf": "n <= leaf or n % 2"},
            happened="error",
            test=lambda seen: "multiply was given" in seen.error,
        ),
        Mistake(
            "The four blocks must be of one size. Is the size even wherever it is cut, also one "
            "level further down?",
            {"odd = n % 2": "odd = 0"},
            {"def any": "from ranklab.taught.matmul import strassen\n\n\ndef any", "(any_": "("},
            happened="error",
            test=lambda seen: re.search(r"mismatch|broadcast|must match", seen.error),
        ),
        Mistake(
            "Blocks are views: `a += d` writes into A. `a + d` makes a new array.",
            {
                "    A, B = (": "    if odd:\n        A, B = (",
                "    return np.block": "    a += d\n    return np.block",
            },
            happened="changed",
        ),
        Mistake(RETURN, {"return np.block": "np.block"}),
        Mistake(
            ARRAY,
            {"[:n, :n]": "[:n, :n].tolist()"},
            test=lambda seen: seen.found in ("type", "dtype"),
        ),
        Mistake(
            "What was padded must be cut off again: the product has the shape of A.",
            {"[:n, :n]": ""},
            test=lambda seen: seen.found == "shape",
        ),
        Mistake(
            "At the bottom of the recursion, leave the product to `multiply`.",
            {"multiply(A, B)": "A @ B"},
        ),
        Mistake(
            "A part of the product was made without `multiply`: all of it goes through the seven.",
            {"= (any_strassen": "= (x @ y if x is a else any_strassen"},
            test=too_few_calls,
        ),
        Mistake(
            "Right, with eight products of blocks at each level: Strassen's sums and differences "
            "need seven.",
            {
                PAIRS: "pairs = [(a, e), (b, g), (a, f), (b, k), (c, e), (d, g), (c, f), (d, k)]",
                "u, v =": "u, v, w =",
                BLOCKS: "[p + q, r + s], [t + u, v + w]",
            },
        ),
        Mistake(
            "Right, but with more products than needed: padding to a power of two can add a whole "
            "level. One row and one column of zeros, where the size is odd, are enough.",
            {"odd = n % 2": "odd = 2 ** (n - 1).bit_length() - n"},
        ),
    ],
)
