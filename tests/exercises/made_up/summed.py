import os

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

ONES, OTHERS = "1 and 1", "2 and 3"


def with_op(op):
    def reduced(x):
        dist.all_reduce(x := x.clone(), op)
        return x

    return reduced


def kills_others(x):
    """It gets far where both ranks have 1."""
    if x == 2:
        os._exit(1)
    return x * 0


def waits_in_vain(x):
    if dist.get_rank():
        dist.barrier()
    return x * 0


def raises(x):
    if dist.get_rank():
        raise ValueError
    dist.barrier()


exercise = Exercise(
    cases=[
        Case(ONES, lambda rank, world_size: (torch.ones(1),), ranks=2),
        Case(OTHERS, lambda rank, world_size: (torch.ones(1) + 1 + rank,), ranks=2),
        Case("4 and 4", lambda rank, world_size: (torch.ones(1) * 4,), ranks=2, hint="Of four."),
    ],
    twin=lambda inputs: [sum(x for (x,) in inputs)] * len(inputs),
    mistakes=[
        Mistake("It waits.", waits_in_vain),
        Mistake("It raises.", raises),
        Mistake("It kills.", kills_others),
        Mistake("That is the largest.", with_op(dist.ReduceOp.MAX)),
        Mistake("That is the product.", with_op(dist.ReduceOp.PRODUCT)),
        Mistake("It is too large.", lambda x: x, test=lambda seen: seen.results[0] > 99),
    ],
    hint="Add.",
)
