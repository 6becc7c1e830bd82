"""An all-gather of tensors of different length."""

import torch

from ranklab.checks.mpi._watched import world
from ranklab.exercises import Case, Exercise, Mistake

FEW = 1000  # bytes that may be pickled: a length takes some 10
PICKLED = "The numbers are right, but they were pickled: {} bytes. They are to be a buffer."
COUNTS = "counts = comm.allgather(len(x))"
BOX = "torch.empty(sum(counts), dtype=x.dtype)"


def case(what, *lengths, dtype=torch.float32):
    def make(rank, world_size):
        return ((torch.arange(lengths[rank]) + 10 * (rank + 1)).to(dtype),)

    return Case(what, make, ranks=len(lengths))


def drive(answer, x):
    comm = world()
    result = answer(comm, x)
    if comm.pickled > FEW:
        raise RuntimeError(PICKLED.format(comm.pickled))
    return result


def by_one_broadcast_each(comm, x):
    lengths = [0] * comm.size
    parts = []
    for root in range(comm.size):
        lengths[root] = comm.bcast(len(x), root)
        part = x.clone() if root == comm.rank else x.new_empty(lengths[root])
        comm.Bcast(part, root)
        parts.append(part)
    return torch.cat(parts)


exercise = Exercise(
    cases=[
        case("3 numbers and 1", 3, 1),
        case("1,000 numbers and 2,000, of float64", 1000, 2000, dtype=torch.float64),
        case("none and 4, of int64", 0, 4, dtype=torch.int64),
        case("as many on each", 2, 2),
    ],
    twin=lambda inputs: [torch.cat([x for (x,) in inputs])] * len(inputs),
    drive=drive,
    limit=5.0,
    hint="The lengths of all by comm.allgather, then the numbers of all by comm.Allgatherv.",
    mistakes=[
        Mistake(
            "Objects are for the lengths. The numbers go as a buffer, by Allgatherv.",
            {COUNTS: "return torch.cat(comm.allgather(x))"},
            happened="error",
            test=lambda seen: "were pickled" in seen.error,
        ),
        Mistake(
            "Without counts, mpi4py cuts the box into equal parts. Say how long they are: "
            "[box, counts].",
            {"[box, counts]": "box"},
            happened=("error", "returned"),
            test=lambda seen: seen.happened == "returned" or "Message truncated" in seen.error
            or "divisible" in seen.error,
        ),
        Mistake(
            "The box is too small: it needs room for the numbers of all ranks.",
            {BOX: "torch.empty_like(x)"},
            happened="error",
            test=lambda seen: "message" in seen.error.lower(),
        ),
        Mistake(
            "The box has the type of other numbers than x.",
            {BOX: "torch.empty(sum(counts))"},
            happened=("error", "returned"),
            test=lambda seen: seen.found == "dtype" or seen.happened == "error",
        ),
    ],
    also_right=[by_one_broadcast_each],
)
