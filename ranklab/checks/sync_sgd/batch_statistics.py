"""Mean and variance over a batch in shards."""

import torch
import torch.distributed as dist

from ranklab.checks._mistakes import returns_nothing
from ranklab.exercises import Case, Exercise, Mistake

NEAR_10000 = "numbers near 10000"
SQUARES, MEAN_OF_SQUARES = "((x - mean) ** 2).sum(0)", "squares / total[-1]"


def case(what, *rows, features=3, center=0.0, dtype=torch.float32):
    """Rank r has rows[r] rows."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(rows[rank], features, dtype=torch.float64, generator=generator)
        return ((x + center + rank).to(dtype),)

    return Case(what, make, ranks=len(rows))


def of_the_text(rank, world_size):
    return (torch.tensor([[1.0], [2.0]]) if rank == 0 else torch.tensor([[6.0]]),)


def twin(inputs):
    x = torch.cat([x for (x,) in inputs])
    exact = x.double()
    both = exact.mean(0).to(x.dtype), exact.var(0, unbiased=False).to(x.dtype)
    return [both] * len(inputs)


def means_and_squares_combined(x):
    """In one all-gather, after Chan, Golub and LeVeque (1983)."""
    n = len(x)
    mean = x.mean(0) if n else x.new_zeros(x.shape[1])
    mine = torch.stack([torch.full_like(mean, n), mean, ((x - mean) ** 2).sum(0)])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    counts, means, squares = torch.stack(everyones).unbind(1)
    of_all = (counts * means).sum(0) / counts.sum(0)
    return of_all, (squares + counts * (means - of_all) ** 2).sum(0) / counts.sum(0)


def all_rows_to_everyone(x):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, x)
    whole = torch.cat(everyones)
    return whole.mean(0), whole.var(0, correction=0)


exercise = Exercise(
    cases=[
        Case("[[1.], [2.]] and [[6.]]", of_the_text, ranks=2),
        case("one rank has none", 3, 0, 2),
        case("rank 0 has none", 0, 3, 2),
        case(NEAR_10000, 6, 5, 7, 6, center=10_000.0),
        case("equal shards", 2, 2, 2, 2),
        case("float64", 1, 4, dtype=torch.float64),
        case("one feature", 3, 1, 2, 5, features=1),
        case("alone", 5),
    ],
    twin=twin,
    tolerance=(1e-3, 1e-5),  # means of float32 near 10000 may be combined, too
    hint="Sums and counts can be added over the ranks. Which sums?",
    mistakes=[
        Mistake(
            "A rank without rows has no mean: it is not a number. It has a sum, and a count.",
            {"x.sum(0)": "x.mean(0) * len(x)"},
            test=lambda seen: seen.results[0][0].isnan().any(),
        ),
        Mistake(
            "The ranks have different numbers of rows, some none. Each must take part in every "
            "collective, with tensors of the same shape.",
            {"    dist.all_reduce(squares)": "    if len(x):\n        dist.all_reduce(squares)"},
            {SQUARES: "(x - mean) ** 2", MEAN_OF_SQUARES: "squares.sum(0) / total[-1]"},
            happened=("stuck", "died"),
        ),
        returns_nothing({"    dist.all_reduce(total)": "    total = dist.all_reduce(total)"}),
        Mistake(
            "Asked for are two tensors of x's own type, with one number for each feature.",
            {"x.sum(0)": "x.double().sum(0)"},
            test=lambda seen: seen.found in ("dtype", "shape"),
        ),
        Mistake(
            "The mean is right. The variance is the difference of two large numbers here, whose "
            "last digits are lost. Is there a way without large numbers?",
            {SQUARES: "(x * x).sum(0)", MEAN_OF_SQUARES: f"{MEAN_OF_SQUARES} - mean * mean"},
            test=lambda seen: (
                seen.case.what == NEAR_10000
                and torch.allclose(seen.results[0][0], seen.expected[0][0], rtol=1e-3)
            ),
        ),
        Mistake(
            "The mean is right, and the variance is divided by n - 1.",
            {MEAN_OF_SQUARES: "squares / (total[-1] - 1)"},
        ),
        Mistake(
            "That is the mean of the ranks' means, as if all had as many rows.",
            {"x.sum(0)": "x.mean(0)", "[len(x)]": "[1]", SQUARES: "x.var(0, unbiased=False)"},
            {"x.sum(0)": "x.mean(0)", "[len(x)]": "[1]", ").sum(0)\n": ").mean(0)\n"},
        ),
        Mistake(
            "The mean is right; the variance is too small. Is it taken around each rank's own "
            "mean?",
            {"x - mean": "x - x.mean(0)"},
        ),
        Mistake(
            "That is the mean of this rank's own rows.",
            {"    dist.all_reduce(total)\n": "", "    dist.all_reduce(squares)\n": ""},
        ),
    ],
    also_right=[means_and_squares_combined, all_rows_to_everyone],
)
