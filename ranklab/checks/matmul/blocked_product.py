"""A product of matrices by products of small blocks."""

import math
import re

import numpy as np

from ranklab.checks.matmul._matrices import ARRAY, LOOP, RETURN, TWO_BLOCKS, case, with_blocks
from ranklab.exercises import Exercise, Mistake

BEGIN = "    C = np"  # in the solution
LENGTHS = (
    "Three lengths are at play: the rows of A, the columns of B, and the inner one that both "
    "share. Which loop runs over which?"
)
LEFT_OUT = (
    "Some blocks are left out: where b does not divide the length, a narrower one remains at the "
    "edge. (A slice may reach over the end; it is then shorter.)"
)


def blocked(n, m, p, b):
    return case(f"{n}×{m} times {m}×{p}, blocks of {b}", n, m, p, b)


def twin(inputs):
    (A, B, b) = inputs[0]
    calls = math.prod(math.ceil(length / b) for length in (*A.shape, B.shape[1]))
    return [{"product": (A @ B).numpy(), "calls of multiply": calls}]


def of_many_lengths(seen):
    """Is this the first case in which it matters which length is which?"""
    A, B, _ = seen.inputs[0]
    return len({*A.shape, *B.shape}) > 1


def loops(ends):
    """An edit: `ends` in place of n, p and m, in the loops over them."""
    return {f"range(0, {one}, b)": f"range(0, {ends.format(one)}, b)" for one in "npm"}


def row_of_blocks_by_row_of_blocks(A, B, b, multiply):
    def cut(M, axis):
        return np.split(M, range(b, M.shape[axis], b), axis=axis)

    def block(row, column):
        return sum(multiply(X, Y) for X, Y in zip(cut(row, 1), cut(column, 0)))

    return np.block([[block(row, column) for column in cut(B, 1)] for row in cut(A, 0)])


exercise = Exercise(
    cases=[
        blocked(4, 4, 4, 2),
        blocked(5, 5, 5, 2),
        blocked(3, 7, 2, 4),
        blocked(6, 2, 5, 3),
        blocked(2, 3, 2, 64),
        blocked(2, 3, 4, 1),
        blocked(1, 1, 1, 1),
        blocked(50, 70, 30, 16),
    ],
    twin=twin,
    drive=with_blocks,
    limit=3.0,
    hint="Every block of C is the sum, along the inner dimension, of a block of A times one of B.",
    also_right=[
        row_of_blocks_by_row_of_blocks,
        {
            "import numpy as np": "import torch",
            "np.zeros((n, p))": "torch.zeros(n, p, dtype=torch.float64)",
            "+= multiply(X, Y)": "+= torch.from_numpy(multiply(X, Y))",
        },
    ],
    mistakes=[
        Mistake(
            TWO_BLOCKS,
            {"+= multiply(X": "+= multiply(b, X"},
            happened="error",
            test=lambda seen: "multiply()" in seen.error and "argument" in seen.error,
        ),
        Mistake(
            "b is how long a block is, and not how many blocks there are.",
            {BEGIN: f"    b = n // b\n{BEGIN}"},
            happened="error",
            test=lambda seen: "must not be zero" in seen.error or "by zero" in seen.error,
        ),
        Mistake(LOOP, {BEGIN: f"    while True:\n        pass\n{BEGIN}"}, happened="slow"),
        Mistake(
            "A block has at most b rows and at most b columns: is the inner dimension cut, too?",
            {"range(0, m, b)": "[0]", ", k : k + b], ": "], ", "B[k : k + b, j": "B[:, j"},
            happened="error",
            test=lambda seen: "multiply was given" in seen.error,
        ),
        Mistake(
            LENGTHS,
            {"n, m, p = *A.shape, B.shape[1]": "n = m = p = len(A)"},
            happened="error",
            test=lambda seen: of_many_lengths(seen) and re.search("broadcast|mismatch", seen.error),
        ),
        Mistake(RETURN, {"    return C\n": ""}),
        Mistake(
            ARRAY,
            {"return C": "return C.tolist()"},
            test=lambda seen: seen.found in ("type", "dtype"),
        ),
        Mistake(
            "C has as many rows as A, and as many columns as B.",
            {"return C": "return np.pad(C, (0, -n % b))"},
            test=lambda seen: seen.found == "shape",
        ),
        Mistake(
            "Give every product of two blocks to `multiply`: it stands for the fast small product "
            "that a library has for blocks.",
            {"+= multiply(X, Y)": "+= X @ Y"},
        ),
        Mistake(
            "More products than it takes: are some of the blocks empty, or smaller than b without "
            "being at an edge?",
            loops("{} + b"),
            {BEGIN: f"    b = 1\n{BEGIN}"},
        ),
        Mistake(LEFT_OUT, loops("{0} - {0} % b"), {"(0, m, b)": "(0, m - m % b, b)"}),
        Mistake(
            "As many products as it takes, but the entries are wrong: a block of C is the *sum* of "
            "all products along the inner dimension.",
            {"+= multiply": "= multiply"},
        ),
        Mistake(
            "As many products as it takes, but not the right ones. Where does each block begin? "
            "And for one block of C, which rows of A are needed, and which columns of B?",
            {"B[k : k + b, j : j + b]": "B[j : j + b, k : k + b]"},
            {"A[i : i + b, k : k + b]": "A[k : k + b, i : i + b]"},
        ),
        Mistake(
            LENGTHS,
            {"range(0, p, b)": "range(0, m, b)", "range(0, m, b)": "range(0, p, b)"},
            test=of_many_lengths,
        ),
    ],
)
