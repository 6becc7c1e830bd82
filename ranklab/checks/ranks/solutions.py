# Generated from book/05_ranks.md by `make forms`: edit the manuscript, not this file.

# %% check('impossible_order', impossible_order)

def impossible_order():
    """Return "a", "b", "c" or "d"."""
    return "c"

# %% check('my_shard', my_shard)

import torch.distributed as dist


def my_shard(n):
    """Return (start, stop) of this rank's items; the stretch may be empty."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    each, more = divmod(n, world_size)
    start = rank * each + min(rank, more)
    stop = start + each + (rank < more)
    return start, stop

# %% check('environments', environments)

def environments(hosts, per_host, port):
    """Return one environment (a dict) for each process, in order of ranks.

    hosts: the names of the computers. per_host: processes on each.
    port: where all meet, on the first of the hosts.
    """
    return [
        {
            "RANK": str(number * per_host + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(len(hosts) * per_host),
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": str(port),
        }
        for number in range(len(hosts))
        for local in range(per_host)
    ]

# %% check('in_turn', in_turn)

import torch.distributed as dist


def in_turn(say):
    """Call say() once on every rank, one after the other, in rank order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for turn in range(world_size):
        if turn == rank:
            say()
        dist.barrier()

# %% check('balanced_tasks', balanced_tasks)

import torch.distributed as dist


def balanced_tasks(seconds):
    """Return this rank's tasks, as places in `seconds`; do not change that."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loads, mine = [0.0] * world_size, []
    longest_first = sorted(range(len(seconds)), key=lambda task: -seconds[task])
    for task in longest_first:
        least = loads.index(min(loads))
        loads[least] += seconds[task]
        if least == rank:
            mine.append(task)
    return mine

# %% check('meet', meet)

import time
from pathlib import Path
import torch.distributed as dist


def meet(folder, card):
    """Leave this rank's card; return the cards of all, in rank order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    folder = Path(folder)
    draft = folder / f"draft {rank}"
    draft.write_text(card)
    draft.rename(folder / f"rank {rank}")
    places = [folder / f"rank {r}" for r in range(world_size)]
    while not all(place.exists() for place in places):
        time.sleep(0.001)
    return [place.read_text() for place in places]
