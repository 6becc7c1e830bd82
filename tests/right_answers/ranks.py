"""Right answers to the exercises of chapter 05."""

import functools
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from right_answers import right

# my_shard


@right("my_shard")
def from_numpys_lengths(n):
    parts = np.array_split(np.empty(n, dtype=np.uint8), dist.get_world_size())
    ends = np.cumsum([len(part) for part in parts])
    rank = dist.get_rank()
    return ends[rank] - len(parts[rank]), ends[rank]


# environments


@right("environments")
def one_after_the_other(hosts, per_host, port):
    same = {"MASTER_ADDR": hosts[0], "MASTER_PORT": f"{port}"}
    found = []
    for _ in hosts:
        for local in map(str, range(per_host)):
            found.append({"RANK": str(len(found)), "LOCAL_RANK": local, **same})
    for one in found:
        one["WORLD_SIZE"] = f"{len(found)}"
    return found


# in_turn


@right("in_turn")
def a_token_goes_round(say):
    rank, token = dist.get_rank(), torch.zeros(1)
    if rank > 0:
        dist.recv(token, rank - 1)
    say()
    if rank < dist.get_world_size() - 1:
        dist.send(token, rank + 1)


@right("in_turn")
def a_group_for_each_pair(say):
    rank, n = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1]) for r in range(n - 1)]
    if rank > 0:
        dist.barrier(pairs[rank - 1])
    say()
    if rank < n - 1:
        dist.barrier(pairs[rank])


@right("in_turn")
def with_another_collective(say):
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            say()
        dist.all_reduce(torch.ones(1))


@right("in_turn")
def with_the_barriers_before(say):
    for _ in range(dist.get_rank()):
        dist.monitored_barrier()
    say()
    for _ in range(dist.get_world_size() - 1 - dist.get_rank()):
        dist.monitored_barrier()


# balanced_tasks


@right("balanced_tasks")
def by_numpys_order(seconds):
    loads, mine = np.zeros(dist.get_world_size()), []
    for task in np.argsort(np.array(seconds), kind="stable")[::-1]:
        least = loads.argmin()
        loads[least] += seconds[task]
        if least == dist.get_rank():
            mine.append(task)
    return mine


@right("balanced_tasks")
def better_than_asked_for(seconds):
    """The longest first, then single tasks are moved and swapped while that helps."""
    n, order = dist.get_world_size(), sorted(range(len(seconds)), key=lambda i: -seconds[i])

    def deal(shares, task):
        loads = [sum(seconds[t] for t in share) for share in shares]
        shares[min(range(n), key=lambda r: (loads[r], -r))].append(task)
        return shares

    shares = functools.reduce(deal, order, [[] for _ in range(n)])
    loads = [sum(seconds[t] for t in share) for share in shares]
    high, low = loads.index(max(loads)), loads.index(min(loads))
    for task in sorted(shares[high], key=lambda t: seconds[t]):
        if loads[low] + seconds[task] < loads[high]:
            shares[high].remove(task)
            shares[low].append(task)
            break
    return sorted(shares[dist.get_rank()], reverse=True)


# meet


@right("meet")
def with_a_second_file(folder, card):
    rank, n = dist.get_rank(), dist.get_world_size()
    Path(folder, f"{rank}.card").write_bytes(card.encode())
    Path(folder, f"{rank}.there").touch()
    while len(list(Path(folder).glob("*.there"))) < n:
        time.sleep(0.002)
    found = sorted(Path(folder).glob("*.card"), key=lambda path: int(path.stem))
    return [path.read_text() for path in found]


@right("meet")
def with_few_looks(folder, card):
    rank, n = dist.get_rank(), dist.get_world_size()
    draft = Path(folder, f".{rank}.part")
    draft.write_text(card)
    draft.replace(Path(folder, f"{rank}.card"))
    places = [Path(folder, f"{r}.card") for r in range(n)]
    while any(not place.exists() for place in places):
        time.sleep(0.4)
    return [place.read_text() for place in places]


@right("meet")
def with_an_end_of_each_card(folder, card):
    Path(folder, f"card {dist.get_rank()}").write_text(f"{card}\n")
    cards = []
    for r in range(dist.get_world_size()):
        place, text = Path(folder, f"card {r}"), ""
        while not text.endswith("\n"):
            time.sleep(0.001)
            text = place.read_text() if place.exists() else ""
        cards.append(text.removesuffix("\n"))
    return cards
