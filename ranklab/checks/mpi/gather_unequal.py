"""What MPI calls Allgatherv, over torch.distributed."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

LONGEST = "longest = int(max(lengths))"
CUT = "box[:length] for box, length in zip(boxes, lengths)"


def case(what, *lengths, dtype=torch.float32):
    """Rank r has lengths[r] numbers, of which none is zero."""

    def make(rank, world_size):
        return ((torch.arange(lengths[rank]) + 10 * (rank + 1)).to(dtype),)

    return Case(what, make, ranks=len(lengths))


def by_broadcasts(x):
    parts = []
    for root in range(dist.get_world_size()):
        length = torch.tensor(len(x))
        dist.broadcast(length, root)
        part = x.clone() if root == dist.get_rank() else x.new_empty(int(length))
        dist.broadcast(part, root)
        parts.append(part)
    return torch.cat(parts)


def by_objects(x):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)
    return torch.cat(parts)


def unpadded(x):
    boxes = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, x)
    return torch.cat(boxes)


exercise = Exercise(
    cases=[
        case("3, 1, 2 and 5 numbers", 3, 1, 2, 5),
        case("none, 4 and 2, of int64", 0, 4, 2, dtype=torch.int64),
        case("as many on each, of float64", 2, 2, dtype=torch.float64),
        case("nobody has any", 0, 0),
        case("alone", 3),
    ],
    twin=lambda inputs: [torch.cat([x for (x,) in inputs])] * len(inputs),
    limit=5.0,
    hint="Two all-gathers: the lengths, then tensors that are filled up to the longest.",
    mistakes=[
        Mistake(
            "The filling is still there: of each box, only as many numbers count as its rank has.",
            {CUT: "box for box in boxes"},
        ),
        Mistake(
            "Every box is cut to this rank's own length. Each rank has another one.",
            {CUT: "box[: len(x)] for box in boxes"},
        ),
        Mistake(
            "The parts are all there, in another order than that of the ranks.",
            {CUT: "box[:length] for box, length in [*zip(boxes, lengths)][::-1]"},
        ),
        Mistake(
            "The longest of all ranks must fit, not only this rank's own numbers: all boxes are of "
            "one length, the same on every rank.",
            unpadded,
            {LONGEST: "longest = len(x)"},
            happened=("error", "stuck", "died"),
            test=lambda seen: (
                len({len(x) for (x,) in seen.inputs}) > 1
                and not seen.error.startswith(("NameError", "TypeError"))
            ),
        ),
        Mistake(
            "The boxes must have the type of x.",
            {"x.new_zeros(longest)": "torch.zeros(longest)"},
            test=lambda seen: seen.found == "dtype",
        ),
    ],
    also_right=[by_broadcasts, by_objects],
)
