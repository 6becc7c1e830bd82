"""The exercise on a mean of low precision, of the chapter on all-reduces."""

import functools

import torch

from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint

# mean_all_reduce -------------------------------------------------------------------------------

_VISIBLE = [[1.0, 1.0], [396.0, 1.0], [396.0, 1.0], [396.0, 1.0]]


def _gradients(shape, rank):
    generator = torch.Generator().manual_seed(rank)
    return (8 * torch.randn(shape, generator=generator)).to(torch.bfloat16)


def _thirds(shape, rank):
    """Whole numbers; their sum over 3 ranks is never divisible by 3.

    So no mean is half-way between two numbers of bfloat16, where dividing before the addition,
    which is as right, could round the other way.
    """
    generator = torch.Generator().manual_seed(rank)
    numbers = 3 * torch.randint(-85, 85, shape, generator=generator) + (rank == 0)
    return numbers.to(torch.bfloat16)


# What x is of the tensor that is compared afterwards: x, and whatever lies beside it.
_LAYOUTS = {
    "all": lambda whole: whole,
    "column": lambda whole: whole[:, 1],
    "first column": lambda whole: whole[:, 0],
    "transposed": lambda whole: whole.t(),
    "every third": lambda whole: whole[::3],
}


def _in_a_whole(what, ranks, whole_of, layout="all"):
    return Case(what, lambda rank, n: (whole_of(rank), layout), ranks=ranks)


def _mean(inputs):
    """Each rank's whole tensor, in which x has become the mean."""
    xs = [_LAYOUTS[layout](whole).float() for whole, layout in inputs]
    mean = functools.reduce(torch.add, xs) / len(xs)
    for whole, layout in inputs:
        _LAYOUTS[layout](whole).copy_(mean)
    return [whole for whole, _ in inputs]


def _driven(answer, whole, layout):
    """Let the answer work on x, which is all of a tensor or a part of it."""
    answer(_LAYOUTS[layout](whole))


def _xs(seen, wholes):
    layout = seen.inputs[0][1]
    return [_LAYOUTS[layout](whole).float() for whole in wholes]


def _unchanged(seen):
    before = [whole for whole, _ in seen.inputs]
    return all(map(torch.equal, _xs(seen, seen.results), _xs(seen, before)))


def _beside_x(seen):
    """Has anything changed that is not x?"""
    for got, (whole, layout) in zip(seen.results, seen.inputs, strict=True):
        other = got.clone()
        _LAYOUTS[layout](other).copy_(_LAYOUTS[layout](whole))
        if not torch.equal(other, whole):
            return True
    return False


def _is_sum(seen):
    sums = [mean * len(seen.inputs) for mean in _xs(seen, seen.expected)]
    return len(seen.inputs) > 1 and all(
        torch.allclose(got, total, rtol=0.02, atol=0.5)
        for got, total in zip(_xs(seen, seen.results), sums)
    )


def _nearly(seen):
    return all(
        torch.allclose(got, mean, rtol=0.05, atol=0.5)
        for got, mean in zip(_xs(seen, seen.results), _xs(seen, seen.expected))
    )


mean_all_reduce = Exercise(
    "mean_all_reduce",
    cases=[
        _in_a_whole(
            "[1, 1] and [396, 1]", 4, lambda r: torch.tensor(_VISIBLE[r]).to(torch.bfloat16)
        ),
        _in_a_whole("1000 numbers", 4, lambda r: _gradients((1000,), r)),
        _in_a_whole(
            "x is column 0 of a float32 matrix, which is shown",
            4,
            lambda r: torch.full((3, 2), r + 1.0),
            "first column",
        ),
        _in_a_whole(
            "x is column 1 of a matrix, which is shown", 3, lambda r: _thirds((50, 3), r), "column"
        ),
        _in_a_whole("a transposed matrix", 2, lambda r: _gradients((4, 6), r), "transposed"),
        _in_a_whole(
            "x is every third number of a tensor, which is shown",
            3,
            lambda r: _thirds((60,), r),
            "every third",
        ),
        _in_a_whole(
            "every third number of a float32 tensor, which is shown",
            2,
            lambda r: torch.arange(6.0) + 10 * r,
            "every third",
        ),
        _in_a_whole("no number at all", 2, lambda r: _gradients((0,), r)),
        _in_a_whole("100 numbers", 1, lambda r: _gradients((100,), r)),
    ],
    expected=_mean,
    drive=_driven,
    in_place=True,
    tolerance=(0.0, 0.0),
    hints=[
        called_as("mean_all_reduce(x)"),
        Hint(
            _beside_x,
            "Numbers beside x have changed. On Gloo, `dist.all_reduce` takes as many numbers as x "
            "has from where x begins in memory, as if it lay in one piece. Is what you give it in "
            "one piece, also where x is of float32 already?",
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1 and _unchanged(seen),
            "x is what it was. Did the mean go into a copy that nobody looks at again?",
        ),
        Hint(_is_sum, "That is the sum. A mean is divided by the number of ranks."),
        Hint(
            lambda seen: seen.inputs[0][0].dtype == torch.bfloat16 and _nearly(seen),
            "Nearly: it was rounded more than once. What type has the tensor that is added up, and "
            "what type the one that is divided?",
        ),
        Hint(
            lambda seen: "view" in seen.error or "contiguous" in seen.error,
            "x need not lie in one piece. `contiguous()` gives a tensor that does.",
            when=("error",),
        ),
    ],
    hint="Whatever is sent must be in float32 and in one piece. What becomes of it must get back "
    "into x.",
)
