# Generated from book/08_all_reduce.md by `make forms`: edit the manuscript, not this file.

# %% check('ring_sends', ring_sends)

def ring_sends():
    """What each of eight ranks sends of 80 MB: "a", "b", "c" or "d"."""
    return "b"

# %% check('faster_way', faster_way)

def faster_way(nbytes, n, alpha, beta):
    """Return "doubling" or "ring"; "doubling" if both take the same."""
    rounds = n.bit_length() - 1
    doubling = rounds * (alpha + nbytes / beta)
    ring = 2 * (n - 1) * (alpha + nbytes / n / beta)
    return "doubling" if doubling <= ring else "ring"

# %% check('ring_reduce_scatter', ring_reduce_scatter)

import torch
import torch.distributed as dist
from ranklab.taught.messages import sendrecv


def ring_reduce_scatter(x):
    """Return part r of the sum of all ranks' x (one dimension), on rank r."""
    n, me = dist.get_world_size(), dist.get_rank()
    left, right = (me - 1) % n, (me + 1) % n
    parts = x.clone().tensor_split(n)
    for step in range(n - 1):
        outgoing, mine = parts[(me - step - 1) % n], parts[(me - step - 2) % n]
        incoming = torch.empty_like(mine)
        sendrecv(outgoing, right, incoming, left)
        mine += incoming
    return parts[me]

# %% check('mean_all_reduce', mean_all_reduce)

import torch
import torch.distributed as dist


def mean_all_reduce(x):
    """Replace x by the mean of all ranks' x, computed in float32."""
    total = x.to(torch.float32, copy=True).contiguous()
    dist.all_reduce(total)
    x.copy_(total / dist.get_world_size())

# %% check('sum_and_max', sum_and_max)

import torch
import torch.distributed as dist
from ranklab.taught.messages import sendrecv


def sum_and_max(x):
    """Return the elementwise sum and maximum of all ranks' x, on every rank."""
    n, me = dist.get_world_size(), dist.get_rank()
    core = 1 << (n.bit_length() - 1)
    both = torch.stack([x, x])
    incoming = torch.empty_like(both)

    def take_in():
        both[0] += incoming[0]
        torch.maximum(both[1], incoming[1], out=both[1])

    if me >= core:
        dist.send(both, me - core)
        dist.recv(both, me - core)
        return both[0], both[1]
    if me + core < n:
        dist.recv(incoming, me + core)
        take_in()
    distance = 1
    while distance < core:
        sendrecv(both, me ^ distance, incoming, me ^ distance)
        take_in()
        distance *= 2
    if me + core < n:
        dist.send(both, me + core)
    return both[0], both[1]

# %% check('halving_all_reduce', halving_all_reduce)

import torch
import torch.distributed as dist
from ranklab.taught.messages import sendrecv


def halving_all_reduce(x):
    """Replace x by the sum of all ranks' x, in place."""
    n, me = dist.get_world_size(), dist.get_rank()
    first, end, distance, swaps = 0, len(x), n // 2, []
    while distance:
        partner, middle = me ^ distance, (first + end) // 2
        keep, give = x[first:middle], x[middle:end]
        if me & distance:
            keep, give = give, keep
            first = middle
        else:
            end = middle
        incoming = torch.empty_like(keep)
        sendrecv(give, partner, incoming, partner)
        keep += incoming
        swaps.append((partner, keep, give))
        distance //= 2
    for partner, keep, give in reversed(swaps):
        sendrecv(keep, partner, give, partner)
