"""What the exercises of chapter 01 check: counts, shares of a product, blocks, Strassen."""

import math

import torch

from ranklab.exercises import Case, Choice, Exercise, Hint

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


def _matrices(n, m, p, *more):
    """Arguments A (n, m) and B (m, p), then `more`; small whole numbers, so that sums are exact."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(100 * n + 10 * m + p)
        A = torch.randint(-4, 5, (n, m), generator=generator).double()
        B = torch.randint(-4, 5, (m, p), generator=generator).double()
        return (A, B, *more)

    return make


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


work_and_span = Exercise(
    "work_and_span",
    cases=[
        _shape(2, 4, 3),
        _shape(2, 5, 3),
        _shape(3, 1, 4),
        _shape(1, 1000, 1),
        _shape(16, 17, 16),
        _shape(7, 1 << 20, 2),
        _shape(1, (1 << 20) + 1, 1),
    ],
    expected=_counted,
    hints=[
        Hint(
            lambda seen: seen.results[0][0] == 2 * math.prod(seen.inputs[0]),
            "That is the coarse count, 2·n·m·p. A sum of m terms has m - 1 plus signs.",
        ),
        Hint(
            lambda seen: seen.results[0][0] == seen.expected[0][0] and seen.inputs[0][1] == 1,
            "With m = 1 there is nothing to add: all is done after the one step of products.",
        ),
        Hint(
            lambda seen: (
                seen.results[0][0] == seen.expected[0][0]
                and seen.results[0][1] == seen.inputs[0][1]
            ),
            "That is the span of a sum added in a row; as a tree, every round halves the terms.",
        ),
        Hint(
            lambda seen: seen.results[0][0] == seen.expected[0][0],
            "The work is right. For the span: where the terms do not come out even, one is left "
            "over for the next round, so round up.",
        ),
        Hint(
            lambda seen: isinstance(seen.results[0][0], float),
            "Operations are whole numbers.",
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
    return [[a @ b for a, b in zip(columns, rows, strict=True)]]


def _sharing(n, m, p, workers):
    what = f"{n}×{m} times {m}×{p}, {workers} worker{'s' if workers > 1 else ''}"
    return Case(what, _matrices(n, m, p, workers), ranks=1)


def _in_numpy(answer, A, B, *more):
    """The answer's results as tensors; it is given arrays that share the arguments' memory."""
    found = answer(A.numpy(), B.numpy(), *more)
    return [torch.as_tensor(one) for one in found] if isinstance(found, (list, tuple)) else found


def _sums_up(seen):
    return torch.equal(sum(seen.results[0]), sum(seen.expected[0]))


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
    hints=[
        Hint(
            lambda seen: seen.happened == "changed",
            "A slice of an array is a view: what is written into it is written into A.",
        ),
        Hint(
            lambda seen: not isinstance(seen.results[0], list),
            "Return a list with one partial product for each worker; adding them up is for later.",
        ),
        Hint(
            lambda seen: len(seen.results[0]) != len(seen.expected[0]),
            "Every worker has an entry in the list, also one that has nothing to multiply.",
        ),
        Hint(
            lambda seen: seen.results[0][0].shape != seen.expected[0][0].shape,
            "Cut the inner dimension: the columns of A, and the same rows of B. Each partial "
            "product then has the shape of the whole one.",
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


# blocked_product -------------------------------------------------------------------------------


class _Blocks:
    """A product for small blocks alone, which counts its calls."""

    def __init__(self, largest):
        self.largest, self.calls = largest, 0

    def __call__(self, X, Y):
        if max(*X.shape, *Y.shape) > self.largest:
            shapes = " times ".join(f"{M.shape[0]}×{M.shape[1]}" for M in (X, Y))
            raise ValueError(
                f"multiply was given {shapes}, and takes blocks of at most {self.largest}"
            )
        self.calls += 1
        return X @ Y


def _with_blocks(answer, A, B, b):
    """What the answer makes of A and B, and how often it called multiply."""
    multiply = _Blocks(b)
    C = answer(A.numpy(), B.numpy(), b, multiply)
    return {"product": torch.as_tensor(C), "calls of multiply": multiply.calls}


def _by_blocks(inputs):
    (A, B, b) = inputs[0]
    calls = math.prod(math.ceil(length / b) for length in (*A.shape, B.shape[1]))
    return [{"product": A @ B, "calls of multiply": calls}]


def _blocked(n, m, p, b):
    return Case(f"{n}×{m} times {m}×{p}, blocks of {b}", _matrices(n, m, p, b), ranks=1)


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
    limit=5.0,
    hints=[
        Hint(lambda seen: seen.happened == "slow", "Does every loop come to its end?"),
        Hint(
            lambda seen: seen.results[0]["calls of multiply"] == 0,
            "Give every product of two blocks to `multiply`: it stands for the fast small product "
            "that a library has for blocks.",
        ),
        Hint(
            lambda seen: (
                seen.results[0]["product"].shape != seen.expected[0]["product"].shape
                or len({*seen.inputs[0][0].shape, *seen.inputs[0][1].shape}) > 1
            ),
            "Three lengths are at play: the rows of A, the columns of B, and the inner one that "
            "both share. Which loop runs over which?",
        ),
        Hint(
            lambda seen: (
                seen.results[0]["calls of multiply"] < seen.expected[0]["calls of multiply"]
            ),
            "Some blocks are left out: where b does not divide the length, a narrower one remains "
            "at the edge. (A slice may reach over the end; it is then shorter.)",
        ),
        Hint(
            lambda seen: (
                seen.results[0]["calls of multiply"] == seen.expected[0]["calls of multiply"]
            ),
            "As many products as it takes, but the entries are wrong: a block of C is the *sum* of "
            "all products along the inner dimension.",
        ),
    ],
    hint="Every block of C is the sum, along the inner dimension, of a block of A times one of B.",
)


# any_strassen ----------------------------------------------------------------------------------


def _seven_each_level(inputs):
    (A, B, leaf) = inputs[0]
    levels, n = 0, len(A)
    while n > leaf:
        levels, n = levels + 1, math.ceil(n / 2)
    return [{"product": A @ B, "calls of multiply": 7**levels}]


def _sized(n, leaf):
    return Case(f"{n}×{n}, leaf {leaf}", _matrices(n, n, n, leaf), ranks=1)


def _calls_too_many(seen):
    return seen.results[0]["calls of multiply"] > seen.expected[0]["calls of multiply"]


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
    limit=5.0,
    hints=[
        Hint(
            lambda seen: "RecursionError" in seen.error,
            "Which sizes never come to an end? Every one must reach n <= leaf.",
        ),
        Hint(
            lambda seen: "multiply was given" in seen.error,
            "An odd size cannot be cut in half, but one row and one column of zeros make it even.",
        ),
        Hint(
            lambda seen: seen.happened == "error" and "mismatch" in seen.error,
            "The four blocks must be of one size: is the size even where you cut?",
        ),
        Hint(
            lambda seen: seen.happened == "changed",
            "Blocks are views: `a += d` writes into A. `a + d` makes a new array.",
        ),
        Hint(
            lambda seen: seen.results[0]["product"].shape != seen.expected[0]["product"].shape,
            "What was padded must be cut off again: the product has the shape of A.",
        ),
        Hint(
            lambda seen: seen.results[0]["calls of multiply"] == 0,
            "At the bottom of the recursion, leave the product to `multiply`.",
        ),
        Hint(
            _calls_too_many,
            "Right, but with more products than needed: padding to a power of two can add a whole "
            "level. One row and one column of zeros, where the size is odd, are enough.",
        ),
    ],
    hint="Zeros at the right and at the bottom change nothing in the product but its size. Check "
    "the seven products one by one on a 2×2.",
)
