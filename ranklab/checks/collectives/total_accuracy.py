"""One accuracy for all ranks, which have seen different numbers of samples."""

import math

import torch.distributed as dist

from ranklab.checks.collectives._calls import only_one
from ranklab.exercises import Case, Exercise, Mistake

COUNTS, CALL = "torch.tensor([right, seen])", "dist.all_reduce(counts)"


def case(what, *pairs):
    """Every rank's (right, seen)."""
    return Case(what, lambda rank, world_size: pairs[rank], ranks=len(pairs))


def twin(inputs):
    right, seen = map(sum, zip(*inputs))
    return [right / seen] * len(inputs)


def one_collective_of_objects(right, seen):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, (right, seen))
    rights, all_seen = map(sum, zip(*counts))
    return rights / all_seen


exercise = Exercise(
    cases=[
        case("9 of 10 right and 1 of 30", (9, 10), (1, 30)),
        case("one rank has seen nothing", (3, 4), (0, 0), (1, 1)),
        case("nobody is ever right", (0, 7), (0, 2), (0, 1), (0, 9)),
        case("alone", (2, 3)),
        case("all have seen some", (1, 2), (30, 40), (5, 5), (17, 100)),
    ],
    twin=twin,
    judge=only_one,
    trace=True,
    hint="Which two numbers can be added over the ranks, and what is to be done with the sums?",
    mistakes=[
        Mistake(
            "Both counts fit into one tensor.",
            {CALL: "dist.all_reduce(counts[:1])\n    dist.all_reduce(counts[1:])"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "A rank that has seen nothing has no accuracy of its own. Divide last.",
            {COUNTS: "torch.tensor([right / seen * seen, seen])"},
            happened=("returned", "error"),
            test=lambda seen: "ZeroDivision" in seen.error or any(map(math.isnan, seen.results)),
        ),
        Mistake(
            "That is the mean of the ranks' accuracies, as if all had seen as many. Add up what "
            "can be added: the counts.",
            {COUNTS: "torch.tensor([right / max(seen, 1), 1])"},
        ),
        Mistake(
            "Are both counts summed over all ranks?",
            {"counts[1])": "max(seen, 1))"},
            {"(counts[0] /": "(right /"},
        ),
        Mistake(
            "Every rank must make the call, also one that has seen nothing.",
            {CALL: f"if seen:\n        {CALL}"},
            happened=("stuck", "died"),
        ),
    ],
    also_right=[
        one_collective_of_objects,
        {COUNTS: "torch.tensor([right, seen], dtype=torch.float64)", ").item()": ")"},
    ],
)
