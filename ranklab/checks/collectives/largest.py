"""The largest number that any rank has, and whose it is."""

import torch
import torch.distributed as dist

from ranklab.checks.collectives._calls import only_one
from ranklab.exercises import Case, Exercise, Mistake

MINE, NUMBERS = "x.max().reshape(1)", "torch.cat(maxima).tolist()"
WHO, BOX = "numbers.index(max(numbers))", "torch.empty_like(mine)"


def case(what, *rows, dtype=torch.float32):
    """Every rank's x."""
    return Case(
        what, lambda rank, world_size: (torch.tensor(rows[rank], dtype=dtype),), ranks=len(rows)
    )


def twin(inputs):
    maxima = [x.max().item() for (x,) in inputs]
    return [(max(maxima), maxima.index(max(maxima)))] * len(inputs)


def the_best_of_all_objects(x):
    mine = max(x.tolist()), -dist.get_rank()
    bests = [None] * dist.get_world_size()
    dist.all_gather_object(bests, mine)
    number, minus_rank = max(bests)
    return number, -minus_rank


exercise = Exercise(
    cases=[
        case("the largest on rank 2", [3.0, 1.0], [4.0, 1.0], [5.0, 9.0], [2.0, 6.0]),
        case("the same on two ranks", [1.0], [7.0, 2.0], [0.0, 7.0]),
        case("negative numbers only", [-5.0, -3.5], [-4.0], [-2.5, -9.0]),
        case("of different lengths", [0.0], [1.0, 2.0, 3.0, 2.5], [2.0, 2.0]),
        case("float64", [1.0, 1.0], [1.0, 1.0 + 1e-9], dtype=torch.float64),
        case("alone", [2.0, 8.0, 4.0]),
    ],
    twin=twin,
    judge=only_one,
    trace=True,
    hint="First each rank's own maximum; then everyone needs everyone's.",
    mistakes=[
        Mistake(
            "dist.all_reduce works in place: give it a tensor of your own.",
            {"    mine =": "    dist.all_reduce(x, op=dist.ReduceOp.MAX)\n    mine ="},
            happened="changed",
        ),
        Mistake(
            "A collective of tensors wants the same shape from every rank. x has another length on "
            "each; `mine` has not.",
            {MINE: "x", NUMBERS: "[one.max().item() for one in maxima]"},
            happened=("died", "error", "stuck"),
            test=lambda seen: len({len(x) for (x,) in seen.inputs}) > 1,
        ),
        Mistake(
            "Whoever has everyone's largest number can also see whose the largest of them is.",
            {
                f"max(numbers), {WHO}": f"mine.item(), {WHO}",
                f"= {NUMBERS}": f"= {NUMBERS}\n    dist.all_reduce(mine, op=dist.ReduceOp.MAX)",
            },
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "A number is asked for: `.item()` makes one of a tensor of one.",
            {NUMBERS: "maxima"},
            test=lambda seen: seen.found != "value" and torch.is_tensor(seen.results[0][0]),
        ),
        Mistake(
            "The largest numbers of both ranks differ in the ninth decimal place only. float64 can "
            "tell them apart, float32 cannot: which type has the tensor that travels?",
            {MINE: f"{MINE}.float()"},
        ),
        Mistake(
            "Every rank found the same one of the ranks' numbers in all boxes. `[box] * n` is one "
            "box, n times: each rank's number wants a box of its own.",
            {f"[{BOX} for _ in range(dist.get_world_size())]": f"[{BOX}] * dist.get_world_size()"},
        ),
        Mistake(
            "Where several ranks have the largest number, the lowest of them is asked for.",
            {WHO: "max(range(len(numbers)), key=lambda r: (numbers[r], r))"},
        ),
        Mistake(
            "The number is right. Who has it? A maximum over the ranks forgets where it came from; "
            "a list of everybody's maxima does not.",
            {WHO: "dist.get_rank()"},
            {WHO: "x.argmax().item()"},
        ),
        Mistake(
            "All numbers are negative here. Where does the other one come from?",
            {"return max(numbers)": "return max(0.0, *numbers)"},
            test=lambda seen: seen.expected[0][0] < 0 <= seen.results[0][0],
        ),
    ],
    also_right=[the_best_of_all_objects],
)
