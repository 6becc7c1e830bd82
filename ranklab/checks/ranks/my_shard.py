"""A rank's stretch of n items, as even as can be."""

from itertools import accumulate

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

DIVIDED, START, STOP = "divmod(n, world_size)", " + min(rank, more)", "start + each + (rank < more)"
ROUNDED_UP = "-(-n // world_size), 0"


def case(n, ranks):
    what = f"{n:,} item{'' if n == 1 else 's'}"
    return Case(what, lambda rank, world_size: (n,), ranks=ranks)


def shards_of(parts):
    lengths = [len(part) for part in parts]
    return [(stop - length, stop) for length, stop in zip(lengths, accumulate(lengths))]


def with_pytorchs_chunks(n):
    return shards_of(torch.arange(n).tensor_split(dist.get_world_size()))[dist.get_rank()]


exercise = Exercise(
    cases=[
        case(10, 4),
        case(2, 4),
        case(11, 4),
        case(12, 4),
        case(7, 3),
        case(5, 1),
        case(0, 2),
        case(1_000_003, 4),
    ],
    twin=lambda inputs: shards_of([range(r, n, len(inputs)) for r, (n,) in enumerate(inputs)]),
    hint="How many items has every rank for sure, how many ranks have one more, and how many of "
    "those stand before this rank?",
    mistakes=[
        Mistake(
            "The result is two whole numbers, start and stop.",
            {"    return start, stop\n": ""},
            test=lambda seen: seen.found == "type",
        ),
        Mistake(
            "A rank without items is still one of the group: give it an empty stretch.",
            {"    each, more": "    if rank >= n:\n        quit()\n    each, more"},
            happened=("died", "error", "stuck"),
            test=lambda seen: seen.inputs[0][0] < len(seen.inputs),
        ),
        Mistake(
            "A stop lies beyond the last item. A slice forgives that; a count of samples, and "
            "every loop over range(start, stop), does not.",
            {DIVIDED: ROUNDED_UP},
            {DIVIDED: "n // world_size + 1, 0"},
        ),
        Mistake(
            "The last items belong to nobody, and no rank would complain: n // world_size rounds "
            "down.",
            {DIVIDED: "n // world_size, 0"},
        ),
        Mistake(
            "Every item has one owner, but the shares differ by more than one, and all would wait "
            "for the rank with the largest.",
            {START: "", STOP: "n if rank == world_size - 1 else start + each"},
            {DIVIDED: ROUNDED_UP, "return start, stop": "return min(start, n), min(stop, n)"},
        ),
        Mistake(
            "The lengths are right, but the longer shards belong to the first ranks.",
            {f"rank * each{START}": "rank * n // world_size", STOP: "(rank + 1) * n // world_size"},
        ),
        Mistake(
            "All ranks have the same shard: what differs between them?",
            {"rank, world_size = dist.get_rank()": "rank, world_size = 0"},
        ),
    ],
    also_right=[with_pytorchs_chunks],
)
