"""A mean of low precision, added up in float32."""

import functools

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

TO_FLOAT, IN_ONE_PIECE = "x.to(torch.float32, copy=True)", ".contiguous()"
BY_N, MEAN = " / dist.get_world_size()", "x.copy_(total / dist.get_world_size())"

# What x is of the tensor that is compared afterwards: x, and whatever lies beside it.
LAYOUTS = {
    "all": lambda whole: whole,
    "column": lambda whole: whole[:, 1],
    "first column": lambda whole: whole[:, 0],
    "transposed": lambda whole: whole.t(),
    "every third": lambda whole: whole[::3],
}


def case(what, ranks, whole_of, layout="all"):
    return Case(what, lambda rank, world_size: (whole_of(rank), layout), ranks=ranks)


def of_the_text(rank):
    return torch.tensor([396.0 if rank else 1.0, 1.0]).to(torch.bfloat16)


def gradients(*shape):
    def whole_of(rank):
        generator = torch.Generator().manual_seed(rank)
        return (8 * torch.randn(shape, generator=generator)).to(torch.bfloat16)

    return whole_of


def thirds(*shape):
    """Whole numbers; their sum over 3 ranks is never divisible by 3.

    So no mean is half-way between two numbers of bfloat16, where dividing before the addition,
    which is as right, could round the other way.
    """

    def whole_of(rank):
        generator = torch.Generator().manual_seed(rank)
        numbers = 3 * torch.randint(-85, 85, shape, generator=generator) + (rank == 0)
        return numbers.to(torch.bfloat16)

    return whole_of


def drive(answer, whole, layout):
    """Let the answer work on x, which is all of a tensor or a part of it."""
    answer(LAYOUTS[layout](whole))


def twin(inputs):
    """Each rank's whole tensor, in which x has become the mean."""
    xs = [LAYOUTS[layout](whole).float() for whole, layout in inputs]
    mean = functools.reduce(torch.add, xs) / len(xs)
    for whole, layout in inputs:
        LAYOUTS[layout](whole).copy_(mean)
    return [whole for whole, _ in inputs]


def beside_x(seen):
    """Has anything changed that is not x?"""
    for got, (whole, layout) in zip(seen.results, seen.inputs, strict=True):
        other = got.clone()
        LAYOUTS[layout](other).copy_(LAYOUTS[layout](whole))
        if not torch.equal(other, whole):
            return True
    return False


def nearly(seen):
    """Is it right but for its last digits? And is it rounded to few of them?"""
    return seen.inputs[0][0].dtype == torch.bfloat16 and all(
        torch.allclose(got.float(), mean.float(), rtol=0.05, atol=0.5)
        for got, mean in zip(seen.results, seen.expected)
    )


def mean_of_a_gathered_stack(x):
    all_xs = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(all_xs, x.contiguous())
    x[...] = torch.stack(all_xs).float().mean(dim=0)


exercise = Exercise(
    cases=[
        case("[1, 1] and [396, 1]", 4, of_the_text),
        case("1000 numbers", 4, gradients(1000)),
        case(
            "x is column 0 of a float32 matrix, which is shown",
            4,
            lambda rank: torch.full((3, 2), rank + 1.0),
            "first column",
        ),
        case("x is column 1 of a matrix, which is shown", 3, thirds(50, 3), "column"),
        case("a transposed matrix", 2, gradients(4, 6), "transposed"),
        case("x is every third number of a tensor, which is shown", 3, thirds(60), "every third"),
        case(
            "every third number of a float32 tensor, which is shown",
            2,
            lambda rank: torch.arange(6.0) + 10 * rank,
            "every third",
        ),
        case("no number at all", 2, gradients(0)),
        case("100 numbers", 1, gradients(100)),
    ],
    twin=twin,
    drive=drive,
    in_place=True,
    tolerance=(0.0, 0.0),
    hint="Whatever is sent must be in float32 and in one piece. What becomes of it must get back "
    "into x.",
    mistakes=[
        Mistake(
            "Numbers beside x have changed. On Gloo, `dist.all_reduce` takes as many numbers as x "
            "has from where x begins in memory, as if it lay in one piece. Is what you give it in "
            "one piece, also where x is of float32 already?",
            {TO_FLOAT + IN_ONE_PIECE: "x.float()"},
            test=beside_x,
        ),
        Mistake(
            "x is what it was. Did the mean go into a copy that nobody looks at again?",
            {MEAN: f"x = (total{BY_N}).to(x.dtype)"},
        ),
        Mistake("That is the sum. A mean is divided by the number of ranks.", {BY_N: ""}),
        Mistake(
            "Nearly: it was rounded more than once. What type has the tensor that is added up, and "
            "what type the one that is divided?",
            {TO_FLOAT: "x"},
            {TO_FLOAT: f"(x{BY_N}).float()", BY_N: ""},
            {MEAN: "x.copy_(total)\n    x /= dist.get_world_size()"},
            test=nearly,
        ),
        Mistake(
            "x need not lie in one piece. `contiguous()` gives a tensor that does.",
            {IN_ONE_PIECE: ".view(-1)", MEAN: f"x.copy_((total{BY_N}).view(x.shape))"},
            happened="error",
            test=lambda seen: "view" in seen.error or "contiguous" in seen.error,
        ),
    ],
    also_right=[
        mean_of_a_gathered_stack,
        {TO_FLOAT: "x.float()", IN_ONE_PIECE: f".contiguous(){BY_N}", MEAN: "x.copy_(total)"},
        {TO_FLOAT: "x.float()", MEAN: "total /= dist.get_world_size()\n    x.copy_(total)"},
    ],
)
