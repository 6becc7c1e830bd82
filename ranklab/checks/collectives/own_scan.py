"""The sum of all ranks up to one's own."""

from itertools import accumulate

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.collectives import recv, send


def case(what, shape, ranks, dtype=torch.float32, transposed=False):
    """Every rank's x, of a shape; transposed: not in one piece in memory."""

    def make(rank, world_size):
        x = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 2 * rank + 1
        x = x.to(dtype)
        return (x.t() if transposed else x,)

    return Case(what, make, ranks=ranks)


def judge(seen):
    if any(seen.collectives):
        return "The numbers are right. But build it from messages, with send and recv alone."
    return None


def by_doubling(x):
    n, me = dist.get_world_size(), dist.get_rank()
    total, distance = x.contiguous().clone(), 1
    while distance < n:
        handles, box = [], torch.zeros_like(total)
        if me + distance < n:
            handles.append(dist.isend(total.clone(), me + distance))
        if me >= distance:
            handles.append(dist.irecv(box, me - distance))
        for handle in handles:
            handle.wait()
        total, distance = total + box, 2 * distance
    return total


def everyone_tells_all_above(x):
    """As many messages as there are pairs: each rank hears from those before it, then tells."""
    n, me, total = dist.get_world_size(), dist.get_rank(), x.clone()
    for other in range(me):
        box = torch.empty_like(x)
        recv(box, other)
        total += box
    for other in range(me + 1, n):
        send(x, other)
    return total


exercise = Exercise(
    cases=[
        case("1 number", [1], 4),
        case("int64", [4], 3, torch.int64),
        case("5 numbers", [5], 2),
        case("no number at all", [0], 3),
        case("a matrix that is not in one piece", [2, 3], 4, torch.float64, transposed=True),
        case("bfloat16", [3], 4, torch.bfloat16),
        case("1 number", [1], 1),
        case("2 × 2 numbers", [2, 2], 2),
    ],
    twin=lambda inputs: list(accumulate(x for (x,) in inputs)),
    judge=judge,
    trace=True,
    hint="Who needs what from whom? Let one partial sum travel along the row of ranks.",
    mistakes=[
        Mistake(
            "A scan is a row, not a circle. Who waits for nobody, and can begin? And who can send "
            "only after it has heard something? (What isend starts is to be waited for, too.)",
            {"me > 0": "n > 1", "me - 1)": "(me - 1) % n)"},
            happened="stuck",
        ),
        Mistake(
            "A row has two ends: whom has rank 0 to its left, and the last rank to its right?",
            {"if me > 0": "if True"},
            happened="error",
            test=lambda seen: "no rank" in seen.error or "invalid rank" in seen.error.lower(),
        ),
        Mistake(
            "This x is not in one piece in memory. send of chapter 7 packs it; dist.send wants "
            "x.contiguous().",
            {"        send(total": "        dist.send(total"},
            happened="error",
            test=lambda seen: not seen.inputs[0][0].is_contiguous(),
        ),
        Mistake(
            "A message must fit into its box. What has the same shape and type as x?",
            {"torch.empty_like(x)": "torch.empty(1)"},
            happened="died",
        ),
        Mistake(
            "`send` and `recv`, which the stub imports, are all that is needed.",
            {"return total": "dist.barrier()\n    return total"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "The sum has the shape and the type of x, and so has each box for a part of it.",
            {"return total": "return total.float()"},
            test=lambda seen: seen.found in ("dtype", "shape"),
        ),
        Mistake(
            "These are the sums of what the ranks before have. A rank's own x is to be in it, too.",
            {"return total": "return total - x"},
        ),
        Mistake(
            "Every rank has the sum of all. Rank r should have that of ranks 0 to r.",
            {"return total": "dist.broadcast(total, n - 1)\n    return total"},
        ),
        Mistake(
            "Each rank adds its left neighbor's x. What does the rank after the next one need to "
            "be sent?",
            {"send(total": "send(x"},
        ),
    ],
    also_right=[by_doubling, everyone_tells_all_above],
)
