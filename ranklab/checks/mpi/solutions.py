# Generated from book/09_mpi.md by `make forms`: edit the manuscript, not this file.

# %% check('total_on_rank_3', total_on_rank_3)

def total_on_rank_3():
    """Return "a", "b", "c" or "d"."""
    return "b"

# %% check('gather_unequal', gather_unequal)

import torch
import torch.distributed as dist


def gather_unequal(x):
    """Return all ranks' numbers in one flat tensor, on every rank."""
    n = dist.get_world_size()
    lengths = [torch.empty(1, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(lengths, torch.tensor([len(x)]))
    longest = int(max(lengths))
    filled = x.new_zeros(longest)
    filled[: len(x)] = x
    boxes = [torch.empty_like(filled) for _ in range(n)]
    dist.all_gather(boxes, filled)
    return torch.cat([box[:length] for box, length in zip(boxes, lengths)])

# %% check('add_bf16', add_bf16)

import torch


def add_bf16(a, b, datatype):
    """Add a's bfloat16 to b's; a and b are memory, datatype is not needed."""
    a = torch.frombuffer(a, dtype=torch.bfloat16)
    b = torch.frombuffer(b, dtype=torch.bfloat16)
    b += a

# %% check('split', split)

import torch.distributed as dist


def split(color):
    """Return a process group of all ranks of this color; None for None."""
    colors = [None] * dist.get_world_size()
    dist.all_gather_object(colors, color)
    mine = None
    for each in sorted(set(colors) - {None}):
        members = [r for r, other in enumerate(colors) if other == each]
        group = dist.new_group(members)
        if each == color:
            mine = group
    return mine
