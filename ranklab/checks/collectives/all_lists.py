"""The lists of all ranks, which are of different lengths."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake


def case(what, *lists):
    return Case(what, lambda rank, world_size: (list(lists[rank]),), ranks=len(lists))


def as_tensors(numbers):
    mine = torch.tensor(numbers)
    boxes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, mine)
    return [box.tolist() for box in boxes]


def gathered_and_told(numbers):
    lists = [None] * dist.get_world_size()
    dist.gather_object(numbers, lists if dist.get_rank() == 0 else None)
    dist.broadcast_object_list(lists)
    return lists


exercise = Exercise(
    cases=[
        case("lists of 2, 0, 3 and 1 numbers", [1, 2], [], [3, 4, 5], [6]),
        case("nobody has any", [], [], []),
        case("numbers that are zero", [0, 0], [1, 0], [0]),
        case("very large numbers", [2**40], [3**50, -1]),
        case("alone", [5, 6]),
    ],
    twin=lambda inputs: [[numbers for (numbers,) in inputs]] * len(inputs),
    hint="There is a collective for objects that does just this.",
    mistakes=[
        Mistake(
            "Only one rank has the lists. All of them are to have them.",
            {"return lists": "return lists if dist.get_rank() == 0 else None"},
        ),
        Mistake(
            "All numbers are there, in one long list. Nobody can tell any more whose they are.",
            {"return lists": "return sum(lists, [])"},
        ),
        Mistake(
            "A rank without numbers has a place in the list, too: an empty one.",
            {"return lists": "return [some for some in lists if some]"},
        ),
        Mistake(
            "All lists are of one length now. What was added to fill them up?",
            {"return lists": "return [(some + [0] * 3)[: max(map(len, lists))] for some in lists]"},
        ),
        Mistake(
            "The list that is to be filled needs a place for every rank before the call; what "
            "stands in the places does not matter.",
            {"[None] * dist.get_world_size()": "[]"},
            happened="error",
            test=lambda seen: "IndexError" in seen.error,
        ),
        Mistake(
            "A collective of tensors wants the same shape from every rank. There is one for "
            "anything that Python can pickle.",
            as_tensors,
            happened=("error", "died", "stuck"),
            test=lambda seen: (
                len({len(numbers) for (numbers,) in seen.inputs}) > 1
                and not seen.error.startswith("NameError")
            ),
        ),
    ],
    also_right=[gathered_and_told],
)
