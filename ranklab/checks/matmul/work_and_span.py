"""The operations of a product of matrices, and the steps that they take at least."""

from numbers import Integral

import torch

from ranklab.exercises import Case, Exercise, Mistake

SPAN = "1 + math.ceil(math.log2(m))"  # in the solution


def case(n, m, p):
    return Case(f"{n}×{m} times {m}×{p}", lambda rank, world_size: (n, m, p), ranks=1)


def twin(inputs):
    (n, m, p) = inputs[0]
    return [(n * p * (2 * m - 1), 1 + (m - 1).bit_length())]


def not_whole(seen):
    """A count that has the right value, and is no whole number."""
    for what, count in zip(("operations", "steps"), seen.results[0], strict=True):
        count = count.item() if torch.is_tensor(count) else count
        if not isinstance(count, Integral):
            kind = type(count).__name__
            return f"It returned {float(count)} {what}: the right number, but as a {kind}."
    return None


exercise = Exercise(
    # In the first, all the usual slips in the span give different numbers.
    cases=[
        case(2, 8, 2),
        case(2, 5, 3),
        case(3, 1, 4),
        case(1, 1000, 1),
        case(16, 17, 16),
        case(7, 1 << 20, 2),
        case(1, (1 << 20) + 1, 1),
    ],
    twin=twin,
    judge=not_whole,
    limit=3.0,
    hint="How many entries has the product, how many terms has the sum of one entry, and how many "
    "plus signs stand between them? And of one entry, what can be done in the first step, and what "
    "must wait for it?",
    also_right=[
        {"math.ceil(math.log2(m))": "(m - 1).bit_length()"},
        {
            "import math": "import numpy as np",
            "n * p": "np.int64(n * p)",
            "math.ceil(math.log2(m))": "np.ceil(np.log2(m)).astype(int)",
        },
    ],
    mistakes=[
        Mistake(
            "Does the loop end once a single term is left?",
            {"    span =": "    while m > 0:\n        m = -(-m // 2)\n    span ="},
            happened="slow",
        ),
        Mistake(
            "With m = 1 there is nothing to add: all is done after the one step of products.",
            {SPAN: "2 + int(math.log2(m - 1))"},
            {SPAN: "1 + max(1, math.ceil(math.log2(m)))"},
            happened=("error", "returned"),
            test=lambda seen: seen.inputs[0][1] == 1,
        ),
        Mistake(
            "`math.ceil` and `//` give whole numbers; `math.log2`, `np.ceil` and `/` do not.",
            {SPAN: "1 + math.log2(m)"},
            {SPAN: f"float({SPAN})"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "It returns two numbers: the operations, then the steps.",
            {"return work, span": "return work"},
            test=lambda seen: seen.found in ("type", "shape"),
        ),
        Mistake(
            "The operations come first, then the steps.", {"return work, span": "return span, work"}
        ),
        Mistake(
            "That is the coarse count, 2·n·m·p. A sum of m terms has m - 1 plus signs.",
            {"(m - 1)": "m"},
        ),
        Mistake(
            "Those are the multiplications. The additions are operations, too.",
            {"(m + (m - 1))": "m"},
        ),
        Mistake(
            "That is the span of a sum added in a row; as a tree, every round halves the terms.",
            {SPAN: "m"},
        ),
        Mistake(
            "Entries do not wait for each other, so neither n nor p adds a step. How many terms "
            "has the sum of one entry?",
            {"log2(m)": "log2(n)"},
            {"log2(m)": "log2(p)"},
        ),
        Mistake(
            "That is the tree alone. What has to be there before the first two terms are added?",
            {"1 + math": "math"},
        ),
        Mistake(
            "Where the terms do not come out even, one is left over for the next round: 5 terms "
            "become 3, then 2, then 1.",
            {"math.ceil": "int"},
        ),
        Mistake(
            "One step too many: 8 terms become 4, then 2, then 1.", {SPAN: "1 + m.bit_length()"}
        ),
    ],
)
