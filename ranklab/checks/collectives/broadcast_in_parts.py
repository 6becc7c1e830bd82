"""A broadcast by scatter and all-gather."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.collectives import broadcast, recv, send

SPLIT, SCATTER = "x.tensor_split(n)", "parts if me == src else None, src)"
GATHER = "    all_gather(parts, box)\n"
WHOLE = (
    "Everybody has it, but somebody sent more than two tensors. A rank needs to send only parts: "
    "scatter them, and gather them everywhere."
)


def case(what, length, ranks, src, dtype=torch.float32):
    def make(rank, world_size):
        return (torch.arange(1, length + 1).to(dtype) * (1 if rank == src else -rank), src)

    return Case(what, make, ranks=ranks)


def judge(seen):
    """Were the chapter's collectives used, and did nobody send more than two tensors?"""
    if any(seen.collectives):
        return "The result is right. But build it from this chapter's scatter and all_gather."
    n, (x, _) = len(seen.inputs), seen.inputs[0]
    enough = 2 * (n - 1) * -(-len(x) // n) * x.element_size()
    return WHOLE if max(seen.sent) > enough else None


def along_the_tree(x, src):
    broadcast(x, src)


def by_pytorch(x, src):
    dist.broadcast(x, src)


def straight_to_their_owners(x, src):
    """As the solution, but what was scattered goes from each owner to all others."""
    n, me = dist.get_world_size(), dist.get_rank()
    parts = x.tensor_split(n)
    for owner in range(n):
        if me == src != owner:
            send(parts[owner], owner)
        elif me == owner != src:
            recv(parts[owner], src)
    for owner in range(n):
        for to in range(n):
            if me == owner != to != src:
                send(parts[owner], to)
            elif me == to != owner and to != src:
                recv(parts[owner], owner)


exercise = Exercise(
    cases=[
        case("8 numbers on rank 1", 8, 4, 1),
        case("7 numbers on rank 2", 7, 4, 2),
        case("2 numbers on rank 3", 2, 4, 3),
        case("no number at all", 0, 2, 0),
        case("int64, on rank 1", 9, 3, 1, torch.int64),
        case("bfloat16", 5, 2, 0, torch.bfloat16),
        case("3 numbers", 3, 1, 0),
    ],
    twin=lambda inputs: [inputs[inputs[0][1]][0]] * len(inputs),
    judge=judge,
    in_place=True,
    trace=True,
    hint="After the scatter rank r has part r of the root's x. The all-gather brings it to all.",
    mistakes=[
        Mistake(
            "The result is right. But build it from this chapter's scatter and all_gather.",
            by_pytorch,
            test=lambda seen: seen.found == "judge" and any(seen.collectives),
        ),
        Mistake(WHOLE, along_the_tree, test=lambda seen: seen.found == "judge"),
        Mistake(
            "x is what it was. Each part must get into x itself, on every rank: are the boxes of "
            "your all-gather parts of x?",
            {GATHER: ""},
            {GATHER: "    all_gather([part.clone() for part in parts], box)\n"},
        ),
        Mistake(
            "Everybody has the x of rank 0. The root is src.",
            {SCATTER: "parts if me == 0 else None, 0)"},
        ),
        Mistake(
            "The length need not be divided by the number of ranks; tensor_split makes parts that "
            "differ by one.",
            {SPLIT: "x.view(n, -1)"},
            happened="error",
            test=lambda seen: "shape" in seen.error or "size" in seen.error,
        ),
    ],
    also_right=[straight_to_their_owners],
)
