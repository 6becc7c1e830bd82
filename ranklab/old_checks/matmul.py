"""What the exercises of chapter 01 check: counts, shares of a product, blocks, Strassen."""

import math
from numbers import Integral

import numpy as np
import torch

from ranklab.checks._matrices import as_array, matrices
from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

steps_of_a_thin_product = Choice(
    "steps_of_a_thin_product",
    right="b",
    why={
        "a": "5 is 1 + log₂ 16: a tree over 16 terms. But 16 is the number of rows, and rows do "
        "not wait for each other. How many terms has one sum?",
        "c": "16 is the number of rows, and of columns. None of them waits for another.",
        "d": "1000 steps is what the loops need, which add in a row. A tree adds in pairs.",
    },
    because="All products are ready at step 1, and a tree over 1000 terms takes ⌈log₂ 1000⌉ = 10 "
    "more. Rows and columns add work; only the inner dimension adds span.",
)


# work_and_span ---------------------------------------------------------------------------------


def _shape(n, m, p):
    what = f"{n}×{m} times {m}×{p}"
    return Case(what, lambda rank, world_size: (n, m, p), ranks=1)


def _counted(inputs):
    """Count an n×m times m×p product with sums as trees, by playing the trees through."""
    (n, m, p) = inputs[0]
    terms, additions, rounds = m, 0, 0
    while terms > 1:
        pairs, odd = divmod(terms, 2)
        terms, additions, rounds = pairs + odd, additions + pairs, rounds + 1
    return [(n * p * (m + additions), 1 + rounds)]


def _not_whole(seen):
    """A count that has the right value, and is no whole number."""
    for what, count in zip(("operations", "steps"), seen.results[0], strict=True):
        count = count.item() if torch.is_tensor(count) else count
        if not isinstance(count, Integral):
            kind = type(count).__name__
            return f"It returned {float(count)} {what}: the right number, but as a {kind}."
    return None


def _span(test):
    """Does the work agree, and is test(span, right span, n, m, p) true?"""

    def of(seen):
        (work, span), (right, right_span) = seen.results[0], seen.expected[0]
        return work == right and test(span, right_span, *seen.inputs[0])

    return of


work_and_span = Exercise(
    "work_and_span",
    # In the first, all the usual slips in the span give different numbers.
    cases=[
        _shape(2, 8, 2),
        _shape(2, 5, 3),
        _shape(3, 1, 4),
        _shape(1, 1000, 1),
        _shape(16, 17, 16),
        _shape(7, 1 << 20, 2),
        _shape(1, (1 << 20) + 1, 1),
    ],
    expected=_counted,
    judge=_not_whole,
    limit=3.0,
    hints=[
        Hint(
            lambda seen: True,
            "Does the loop end once a single term is left?",
            when=("slow",),
        ),
        Hint(
            lambda seen: seen.inputs[0][1] == 1 and "math domain" in seen.error,
            "With m = 1 there is nothing to add: all is done after the one step of products.",
            when=("error",),
        ),
        Hint(
            lambda seen: seen.found == "judge",
            "`math.ceil` and `//` give whole numbers; `math.log2`, `np.ceil` and `/` do not.",
        ),
        Hint(
            lambda seen: seen.found in ("type", "shape"),
            "It returns two numbers: the operations, then the steps.",
        ),
        Hint(
            lambda seen: seen.results[0] == seen.expected[0][::-1],
            "The operations come first, then the steps.",
        ),
        Hint(
            lambda seen: seen.results[0][0] == 2 * math.prod(seen.inputs[0]),
            "That is the coarse count, 2·n·m·p. A sum of m terms has m - 1 plus signs.",
        ),
        Hint(
            lambda seen: seen.results[0][0] == math.prod(seen.inputs[0]) < seen.expected[0][0],
            "Those are the multiplications. The additions are operations, too.",
        ),
        Hint(
            _span(lambda span, right, n, m, p: m == 1),
            "With m = 1 there is nothing to add: all is done after the one step of products.",
        ),
        Hint(
            _span(lambda span, right, n, m, p: span == m),
            "That is the span of a sum added in a row; as a tree, every round halves the terms.",
        ),
        Hint(
            _span(
                lambda span, right, n, m, p: (
                    span < right - 1
                    and span in (1 + math.ceil(math.log2(n)), 1 + math.ceil(math.log2(p)))
                )
            ),
            "Entries do not wait for each other, so neither n nor p adds a step. How many terms "
            "has the sum of one entry?",
        ),
        Hint(
            _span(lambda span, right, n, m, p: span == right - 1 and m & (m - 1) == 0),
            "That is the tree alone. What has to be there before the first two terms are added?",
        ),
        Hint(
            _span(lambda span, right, n, m, p: span == right - 1),
            "Where the terms do not come out even, one is left over for the next round: 5 terms "
            "become 3, then 2, then 1.",
        ),
        Hint(
            _span(lambda span, right, n, m, p: span == right + 1),
            "One step too many: 8 terms become 4, then 2, then 1.",
        ),
        Hint(
            _span(lambda span, right, n, m, p: True),
            "The work is right. For the span, look at one entry: what can be done in the first "
            "step, and what must wait for it?",
        ),
    ],
    hint="How many entries has the product, how many terms has the sum of one entry, and how many "
    "plus signs stand between them?",
)


# partial_products ------------------------------------------------------------------------------


def _shared(inputs):
    """The products of matching column blocks of A and row blocks of B."""
    (A, B, workers) = inputs[0]
    columns, rows = A.tensor_split(workers, dim=1), B.tensor_split(workers, dim=0)
    return [[(a @ b).numpy() for a, b in zip(columns, rows, strict=True)]]


def _sharing(n, m, p, workers):
    what = f"{n}×{m} times {m}×{p}, {workers} worker{'s' if workers > 1 else ''}"
    return Case(what, matrices(n, m, p, workers), ranks=1)


def _in_numpy(answer, A, B, workers):
    """What the answer makes of arrays, which share the arguments' memory."""
    found = answer(A.numpy(), B.numpy(), workers)
    return [as_array(one) for one in found] if isinstance(found, (list, tuple)) else as_array(found)


def _sums_up(seen):
    return np.array_equal(sum(seen.results[0]), sum(seen.expected[0]))


partial_products = Exercise(
    "partial_products",
    cases=[
        _sharing(2, 4, 3, 2),
        _sharing(3, 7, 2, 3),
        _sharing(2, 2, 2, 5),
        _sharing(4, 6, 1, 1),
        _sharing(1, 1, 1, 1),
        _sharing(1, 5, 1, 4),
        _sharing(64, 65, 3, 4),
    ],
    expected=_shared,
    drive=_in_numpy,
    limit=3.0,
    hints=[
        called_as("partial_products(A, B, workers)"),
        Hint(lambda seen: True, "Does every loop come to its end?", when=("slow",)),
        Hint(
            lambda seen: "equal division" in seen.error,
            "`np.split` cuts into equal parts alone. Of 7 columns, 3 workers get 3, 2 and 2.",
            when=("error",),
        ),
        Hint(
            lambda seen: "mismatch in its core dimension" in seen.error,
            "The columns of A and the rows of B are to be cut at the same places. Is A cut by "
            "columns, and B by rows?",
            when=("error",),
        ),
        Hint(
            lambda seen: "broadcast" in seen.error,
            "Is there a `*` where `@` is meant? `*` multiplies entry by entry.",
            when=("error",),
        ),
        Hint(
            lambda seen: True,
            "A slice of an array is a view: what is written into it is written into A.",
            when=("changed",),
        ),
        Hint(
            lambda seen: seen.results[0] is None,
            "The list of partial products has to be returned.",
        ),
        Hint(
            lambda seen: (
                not isinstance(seen.results[0], list)
                and getattr(seen.results[0], "shape", ()) != seen.expected[0][0].shape
            ),
            "Return a list, with one array for each worker.",
        ),
        Hint(
            lambda seen: not isinstance(seen.results[0], list),
            "Return a list with one partial product for each worker; adding them up is for later.",
        ),
        Hint(
            lambda seen: (
                len(seen.results[0]) < len(seen.expected[0])
                and seen.inputs[0][2] > seen.inputs[0][0].shape[1]
            ),
            "Every worker has an entry in the list, also one that has nothing to multiply.",
        ),
        Hint(
            lambda seen: len(seen.results[0]) != len(seen.expected[0]),
            "The list has one entry for each worker: `workers` of them, whatever the shapes are.",
        ),
        Hint(
            lambda seen: seen.found in ("type", "dtype"),
            "Every entry of the list is an array of floats, as A and B are.",
        ),
        Hint(
            lambda seen: seen.found == "shape",
            "Cut the inner dimension: the columns of A, and the same rows of B. Each partial "
            "product then has the shape of the whole one.",
        ),
        Hint(
            lambda seen: _sums_up(seen) and seen.inputs[0][0].shape[1] % seen.inputs[0][2] == 0,
            "They add up to the whole, but the parts are not those that np.array_split makes: "
            "each worker's columns are neighbors, and the first worker has the first ones.",
        ),
        Hint(
            _sums_up,
            "They add up to the whole, but the parts are not those that np.array_split makes: "
            "the first ones get one column more where it does not come out even.",
        ),
        Hint(
            lambda seen: seen.inputs[0][0].shape[1] % seen.inputs[0][2],
            "They do not add up to A @ B: do the columns that are left over belong to somebody?",
        ),
    ],
    hint="The partial products must add up to A @ B.",
)
