# Generated from book/07_collectives.md by `make forms`: edit the manuscript, not this file.

# %% check('rank_2_holds', rank_2_holds)

def rank_2_holds():
    """What rank 2 holds: "a", "b", "c" or "d"."""
    return "c"

# %% check('total_accuracy', total_accuracy)

import torch
import torch.distributed as dist


def total_accuracy(right, seen):
    """The share of all ranks' samples that were right, on every rank."""
    counts = torch.tensor([right, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()

# %% check('largest', largest)

import torch
import torch.distributed as dist


def largest(x):
    """The largest number that any rank has, and the lowest rank that has it."""
    mine = x.max().reshape(1)
    maxima = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(maxima, mine)
    numbers = torch.cat(maxima).tolist()
    return max(numbers), numbers.index(max(numbers))

# %% check('all_lists', all_lists)

import torch.distributed as dist


def all_lists(numbers):
    """All ranks' lists, in rank order, on every rank."""
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, numbers)
    return lists

# %% check('all_max', all_max)

import torch
import torch.distributed as dist
from ranklab.taught.collectives import sendrecv


def all_max(x):
    """Replace x by the largest of all ranks' x, number by number, in place."""
    n, me = dist.get_world_size(), dist.get_rank()
    incoming = torch.empty_like(x)
    step = 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me - step) % n)
        torch.maximum(x, incoming, out=x)
        step *= 2

# %% check('own_scan', own_scan)

import torch
import torch.distributed as dist
from ranklab.taught.collectives import recv
from ranklab.taught.collectives import send


def own_scan(x):
    """The sum of the x of ranks 0 to this one, of x's shape and type."""
    n, me = dist.get_world_size(), dist.get_rank()
    total = x.clone()
    if me > 0:
        before = torch.empty_like(x)
        recv(before, me - 1)
        total += before
    if me < n - 1:
        send(total, me + 1)
    return total

# %% check('broadcast_in_parts', broadcast_in_parts)

import torch
import torch.distributed as dist
from ranklab.taught.collectives import all_gather
from ranklab.taught.collectives import scatter


def broadcast_in_parts(x, src):
    """Give rank src's x to all ranks: scatter, then all-gather."""
    n, me = dist.get_world_size(), dist.get_rank()
    parts = list(x.tensor_split(n))
    box = torch.empty_like(parts[me])
    scatter(box, parts if me == src else None, src)
    all_gather(parts, box)
