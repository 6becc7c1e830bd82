"""The exercises on products by blocks, of the chapter on matrix products."""

import math
import re

import numpy as np

from ranklab.checks._matrices import as_array, matrices
from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint

# blocked_product -------------------------------------------------------------------------------


def _with_blocks(answer, A, B, b):
    """What the answer makes of A and B, and how often it called multiply, which takes blocks."""
    calls = 0

    def multiply(X, Y):
        nonlocal calls
        if max(*X.shape, *Y.shape) > b:
            shapes = " times ".join(f"{M.shape[0]}×{M.shape[1]}" for M in (X, Y))
            raise ValueError(f"multiply was given {shapes}, and takes blocks of at most {b}")
        calls += 1
        return X @ Y

    multiply.__qualname__ = "multiply"  # as error messages call it
    C = answer(A.numpy(), B.numpy(), b, multiply)
    return None if C is None else {"product": as_array(C), "calls of multiply": calls}


def _by_blocks(inputs):
    (A, B, b) = inputs[0]
    calls = math.prod(math.ceil(length / b) for length in (*A.shape, B.shape[1]))
    return [{"product": (A @ B).numpy(), "calls of multiply": calls}]


def _blocked(n, m, p, b):
    return Case(f"{n}×{m} times {m}×{p}, blocks of {b}", matrices(n, m, p, b), ranks=1)


def _square(seen):
    A, B, _ = seen.inputs[0]
    return len({*A.shape, *B.shape}) == 1


def _right_product(seen):
    return np.array_equal(seen.results[0]["product"], seen.expected[0]["product"])


def _calls(test):
    """Is test(calls of multiply, right number of calls) true, of values that are wrong?"""

    def of(seen):
        got, expected = (one[0]["calls of multiply"] for one in (seen.results, seen.expected))
        return seen.found == "value" and test(got, expected)

    return of


_TOO_MANY = _calls(lambda got, expected: got > expected)


def _last_block_alone(seen):
    """Is every block of C the last product of its sum, where all should be added up?"""
    A, B, b = seen.inputs[0]
    last = A.shape[1] - (A.shape[1] % b or b)
    return np.array_equal(seen.results[0]["product"], (A[:, last:] @ B[last:]).numpy())


_TWO_BLOCKS = Hint(
    lambda seen: "multiply()" in seen.error and "argument" in seen.error,
    "`multiply` takes two blocks, and nothing else.",
    when=("error",),
)
_RETURNS_NOTHING = Hint(
    lambda seen: seen.results[0] is None, "The last thing that it does is to return the product."
)
_NO_ARRAY = Hint(
    lambda seen: seen.found in ("type", "dtype"),
    "The product is an array of floats, as A and B are.",
)


blocked_product = Exercise(
    "blocked_product",
    cases=[
        _blocked(4, 4, 4, 2),
        _blocked(5, 5, 5, 2),
        _blocked(3, 7, 2, 4),
        _blocked(6, 2, 5, 3),
        _blocked(2, 3, 2, 64),
        _blocked(2, 3, 4, 1),
        _blocked(1, 1, 1, 1),
        _blocked(50, 70, 30, 16),
    ],
    expected=_by_blocks,
    drive=_with_blocks,
    limit=3.0,
    hints=[
        called_as("blocked_product(A, B, b, multiply)"),
        _TWO_BLOCKS,
        Hint(
            lambda seen: "must not be zero" in seen.error or "division by zero" in seen.error,
            "b is how long a block is, and not how many blocks there are.",
            when=("error",),
        ),
        Hint(lambda seen: True, "Does every loop come to its end?", when=("slow",)),
        Hint(
            lambda seen: "multiply was given" in seen.error,
            "A block has at most b rows and at most b columns: is the inner dimension cut, too?",
            when=("error",),
        ),
        Hint(
            lambda seen: not _square(seen) and re.search("broadcast|mismatch", seen.error),
            "Three lengths are at play: the rows of A, the columns of B, and the inner one that "
            "both share. Which loop runs over which?",
            when=("error",),
        ),
        _RETURNS_NOTHING,
        _NO_ARRAY,
        Hint(
            lambda seen: seen.found == "shape",
            "C has as many rows as A, and as many columns as B.",
        ),
        Hint(
            _calls(lambda got, expected: got == 0),
            "Give every product of two blocks to `multiply`: it stands for the fast small product "
            "that a library has for blocks.",
        ),
        Hint(
            lambda seen: _TOO_MANY(seen) and _right_product(seen),
            "More products than it takes: are some of the blocks empty, or smaller than b without "
            "being at an edge?",
        ),
        Hint(
            lambda seen: seen.found == "value" and not _square(seen),
            "Three lengths are at play: the rows of A, the columns of B, and the inner one that "
            "both share. Which loop runs over which?",
        ),
        Hint(
            _calls(lambda got, expected: got < expected),
            "Some blocks are left out: where b does not divide the length, a narrower one remains "
            "at the edge. (A slice may reach over the end; it is then shorter.)",
        ),
        Hint(
            lambda seen: seen.found == "value" and _last_block_alone(seen),
            "As many products as it takes, but the entries are wrong: a block of C is the *sum* of "
            "all products along the inner dimension.",
        ),
        Hint(
            _calls(lambda got, expected: got == expected),
            "As many products as it takes, but not the right ones. Where does each block begin? "
            "And for one block of C, which rows of A are needed, and which columns of B?",
        ),
    ],
    hint="Every block of C is the sum, along the inner dimension, of a block of A times one of B.",
)


# any_strassen ----------------------------------------------------------------------------------


def _levels(A, leaf):
    levels, n = 0, len(A)
    while n > leaf:
        levels, n = levels + 1, math.ceil(n / 2)
    return levels


def _seven_each_level(inputs):
    (A, B, leaf) = inputs[0]
    return [{"product": (A @ B).numpy(), "calls of multiply": 7 ** _levels(A, leaf)}]


def _sized(n, leaf):
    return Case(f"{n}×{n}, leaf {leaf}", matrices(n, n, n, leaf), ranks=1)


def _right_with(test):
    """Is the product right, and test(calls of multiply, right number of calls, levels) true?"""

    def of(seen):
        got, expected = (one[0]["calls of multiply"] for one in (seen.results, seen.expected))
        A, _, leaf = seen.inputs[0]
        return _right_product(seen) and test(got, expected, _levels(A, leaf))

    return of


any_strassen = Exercise(
    "any_strassen",
    cases=[
        _sized(3, 2),
        _sized(1, 1),
        _sized(5, 1),
        _sized(7, 3),
        _sized(8, 2),
        _sized(12, 5),
        _sized(40, 10),
        _sized(33, 16),
    ],
    expected=_seven_each_level,
    drive=_with_blocks,
    limit=3.0,
    hints=[
        called_as("any_strassen(A, B, leaf, multiply)"),
        _TWO_BLOCKS,
        Hint(lambda seen: True, "Does every loop come to its end?", when=("slow",)),
        Hint(
            lambda seen: "RecursionError" in seen.error,
            "Which sizes never come to an end? Every one must reach n <= leaf.",
            when=("error",),
        ),
        Hint(
            lambda seen: "multiply was given" in seen.error,
            "An odd size cannot be cut in half, but one row and one column of zeros make it even.",
            when=("error",),
        ),
        Hint(
            lambda seen: re.search(r"mismatch|broadcast|must match", seen.error),
            "The four blocks must be of one size. Is the size even wherever it is cut, also one "
            "level further down?",
            when=("error",),
        ),
        Hint(
            lambda seen: True,
            "Blocks are views: `a += d` writes into A. `a + d` makes a new array.",
            when=("changed",),
        ),
        _RETURNS_NOTHING,
        _NO_ARRAY,
        Hint(
            lambda seen: seen.found == "shape",
            "What was padded must be cut off again: the product has the shape of A.",
        ),
        Hint(
            _right_with(lambda got, expected, levels: got == 0),
            "At the bottom of the recursion, leave the product to `multiply`.",
        ),
        Hint(
            _right_with(lambda got, expected, levels: got < expected),
            "A part of the product was made without `multiply`: all of it goes through the seven.",
        ),
        Hint(
            _right_with(lambda got, expected, levels: got == 8**levels),
            "Right, with eight products of blocks at each level: Strassen's sums and differences "
            "need seven.",
        ),
        Hint(
            _right_with(lambda got, expected, levels: got > expected),
            "Right, but with more products than needed: padding to a power of two can add a whole "
            "level. One row and one column of zeros, where the size is odd, are enough.",
        ),
    ],
    hint="Zeros at the right and at the bottom change nothing in the product but its size. Check "
    "the seven products one by one on a 2×2.",
)
