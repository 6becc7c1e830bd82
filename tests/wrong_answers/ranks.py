"""Wrong answers to the exercises of chapter 05."""

import os
import random
import time
from pathlib import Path

import torch.distributed as dist

from wrong_answers import wrong

# my_shard


@wrong("my_shard", says=["10 items, 4 ranks", "belong to nobody"])
def rounded_down(n):
    each = n // dist.get_world_size()
    return dist.get_rank() * each, (dist.get_rank() + 1) * each


@wrong("my_shard", says=["10 items, 4 ranks", "differ by more than one"])
def the_rest_to_the_last(n):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    each = n // world_size
    return rank * each, n if rank == world_size - 1 else (rank + 1) * each


@wrong("my_shard", says=["10 items, 4 ranks", "beyond the last item"])
def rounded_up(n):
    each = -(-n // dist.get_world_size())
    return dist.get_rank() * each, (dist.get_rank() + 1) * each


@wrong("my_shard", says=["10 items, 4 ranks", "belong to the first ranks"])
def the_longer_ones_last(n):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank * n // world_size, (rank + 1) * n // world_size


@wrong("my_shard", says=["2 items, 4 ranks"])
def the_shown_shards(n):
    return [(0, 3), (3, 6), (6, 8), (8, 10)][dist.get_rank()]


@wrong("my_shard", says=["2 items, 4 ranks", "Rank 2 died", "an empty stretch"])
def ranks_without_work_leave(n):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank >= n:
        os._exit(0)  # nothing to do here
    each, more = divmod(n, world_size)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


# environments


@wrong("environments", says=["2 hosts with 2 processes", "strings"])
def numbers(hosts, per_host, port):
    n = len(hosts) * per_host
    return [
        {
            "RANK": r,
            "LOCAL_RANK": r % per_host,
            "WORLD_SIZE": n,
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": port,
        }
        for r in range(n)
    ]


def _told(rank, local, world_size, host, port):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return dict(zip(names, map(str, (rank, local, world_size, host, port)), strict=True))


@wrong("environments", says=["2 hosts with 2 processes", "begins again on every host"])
def a_rank_twice(hosts, per_host, port):
    n = len(hosts) * per_host
    return [_told(r % per_host, r % per_host, n, hosts[0], port) for r in range(n)]


@wrong("environments", says=["2 hosts with 2 processes", "the same meeting place"])
def everybody_at_home(hosts, per_host, port):
    n = len(hosts) * per_host
    return [_told(r, r % per_host, n, hosts[r // per_host], port) for r in range(n)]


@wrong("environments", says=["2 hosts with 2 processes", "all processes on all hosts"])
def a_world_of_one_host(hosts, per_host, port):
    return [_told(r, r % per_host, per_host, hosts[0], port) for r in range(len(hosts) * per_host)]


@wrong("environments", says=["2 hosts with 4 processes"])
def for_two_on_a_host(hosts, per_host, port):
    n = len(hosts) * per_host
    return [_told(r, r % 2, n, hosts[0], port) for r in range(n)]


# in_turn


@wrong("in_turn", says=["the first comes last", "had ended", "the same barrier"])
def each_at_once(say):
    say()
    dist.barrier()


@wrong("in_turn", says=["the first comes last", "had ended", "the same barrier"])
def one_barrier_for_each(say):
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            say()
            dist.barrier()


@wrong("in_turn", says=["barrier", "rank 0"])  # the others wait for a rank that has left
def gone_after_its_turn(say):
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            say()
            break
        dist.barrier()


@wrong("in_turn", says=["3 times, and should have once"])
def everybody_in_every_turn(say):
    for _ in range(3):
        say()
        dist.barrier()


# balanced_tasks


@wrong("balanced_tasks", says=["[4, 1, 1, 2], 2 ranks", "4 s are possible"])
def like_cards(seconds):
    return list(range(dist.get_rank(), len(seconds), dist.get_world_size()))


@wrong("balanced_tasks", says=["a long task at the end", "longest task first"])
def in_the_order_given(seconds):
    loads, mine = [0.0] * dist.get_world_size(), []
    for task, length in enumerate(seconds):
        least = loads.index(min(loads))
        loads[least] += length
        if least == dist.get_rank():
            mine.append(task)
    return mine


@wrong("balanced_tasks", says=["changed its argument seconds", "sorted() makes a new list"])
def sorted_in_place(seconds):
    seconds.sort(reverse=True)
    loads, mine = [0.0] * dist.get_world_size(), []
    for task, length in enumerate(seconds):
        least = loads.index(min(loads))
        loads[least] += length
        if least == dist.get_rank():
            mine.append(task)
    return mine


@wrong("balanced_tasks", says=["Task", "to the same assignment by itself"])
def drawn_by_lot(seconds):
    owners = [random.randrange(dist.get_world_size()) for _ in seconds]  # other ones on each rank
    return [task for task, owner in enumerate(owners) if owner == dist.get_rank()]


# meet


@wrong("meet", says=["Somebody did not wait"])
def without_waiting(folder, card):
    time.sleep(0.2)  # often the others are there by then
    rank, world_size = dist.get_rank(), dist.get_world_size()
    draft = folder / f"draft {rank}"
    draft.write_text(card)
    draft.rename(folder / f"rank {rank}")
    time.sleep(0.1)
    return [
        (folder / f"rank {r}").read_text()
        for r in range(world_size)
        if (folder / f"rank {r}").exists()
    ]


@wrong("meet", says=["while it was being written"])
def read_half_written(folder, card):
    Path(folder, f"rank {dist.get_rank()}").write_text(card)
    places = [Path(folder, f"rank {r}") for r in range(dist.get_world_size())]
    while not all(place.exists() for place in places):
        time.sleep(0.001)
    return [place.read_text() for place in places]


@wrong("meet", says=["in the order of the ranks"])
def as_they_arrive(folder, card):
    log = os.open(folder / "cards", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    time.sleep(0.02 * (dist.get_world_size() - dist.get_rank()))
    os.write(log, f"{card}\n".encode())
    os.close(log)
    while len(cards := (folder / "cards").read_text().splitlines()) < dist.get_world_size():
        time.sleep(0.001)
    return cards


@wrong("meet", says=["files alone"])
def without_the_folder(folder, card):
    cards = [None] * dist.get_world_size()
    dist.all_gather_object(cards, card)
    return cards


@wrong("meet", says=["other files in it"])
def whatever_lies_there(folder, card):
    draft = folder / f"draft {dist.get_rank()}"
    draft.write_text(card)
    draft.rename(folder / f"{dist.get_rank()}")
    while True:
        places = [p for p in sorted(folder.iterdir()) if not p.name.startswith("draft")]
        if len(places) >= dist.get_world_size():
            return [place.read_text() for place in places]


@wrong("meet", says=["4 ranks", "not done after", "counted_from_one"])
def counted_from_one(folder, card):
    draft = folder / f"draft {dist.get_rank()}"
    draft.write_text(card)
    draft.rename(folder / f"rank {dist.get_rank()}")
    cards = []
    for r in range(1, dist.get_world_size() + 1):
        name = f"rank {r}"
        while name != next((p.name for p in folder.iterdir() if p.name == name), None):
            time.sleep(0.001)
        cards.append((folder / name).read_text())
    return cards
