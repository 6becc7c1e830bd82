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


@wrong("my_shard", says=["2 items, 4 ranks", "died", "an empty stretch"])
def ranks_without_work_leave(n):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank >= n:
        os._exit(0)  # nothing to do here
    each, more = divmod(n, world_size)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


@wrong("my_shard", says=["is a `return` missing", "two whole numbers"])
def nothing_returned(n):
    each, more = divmod(n, dist.get_world_size())
    start = dist.get_rank() * each + min(dist.get_rank(), more)
    print(start, start + each)


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


@wrong("environments", says=["2 hosts with 4 processes", "LOCAL_RANK counts"])
def for_two_on_a_host(hosts, per_host, port):
    n = len(hosts) * per_host
    return [_told(r, r % 2, n, hosts[0], port) for r in range(n)]


@wrong("environments", says=["should return 4 values", "Each process on each host"])
def one_for_each_host(hosts, per_host, port):
    return [_told(r, 0, len(hosts), hosts[0], port) for r in range(len(hosts))]


# in_turn


@wrong("in_turn", says=["the first comes last", "had ended", "What does rank 1 wait for"])
def each_at_once(say):
    say()
    dist.barrier()


@wrong("in_turn", says=["the first comes last", "had ended", "What does rank 1 wait for"])
def one_barrier_for_each(say):
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            say()
            dist.barrier()


@wrong(
    "in_turn", says=["barrier", "rank 0", "Count the barriers"]
)  # the others wait for a rank that has left
def gone_after_its_turn(say):
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            say()
            break
        dist.barrier()


@wrong("in_turn", says=["3 times, and should have once", "in its own turn"])
def everybody_in_every_turn(say):
    for _ in range(3):
        say()
        dist.barrier()


@wrong("in_turn", says=["rank 1 waited for nobody", "no sleep is long enough"])
def a_sleep_for_each(say):
    time.sleep(dist.get_rank() * 0.5)
    say()


@wrong("in_turn", says=["rank 0 told nobody", "no sleep is long enough"])
def a_barrier_and_then_sleeps(say):
    dist.barrier()
    time.sleep(dist.get_rank() * 0.2)
    say()


@wrong("in_turn", says=["rank 1 speaks for long", "What does rank 1 wait for"])
def sleeps_between_barriers(say):
    dist.barrier()
    time.sleep(dist.get_rank() * 0.2)
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


@wrong(
    "balanced_tasks",
    says=["has 4.0 in its list", "whole numbers, 0 to 3", "not by how long it takes"],
)
def the_seconds_themselves(seconds):
    loads, mine = [0.0] * dist.get_world_size(), []
    for length in sorted(seconds, reverse=True):
        least = loads.index(min(loads))
        loads[least] += length
        if least == dist.get_rank():
            mine.append(length)
    return mine


@wrong("balanced_tasks", says=["has task 1 more than once", "deal the places, not the lengths"])
def found_again_by_length(seconds):
    loads, mine = [0.0] * dist.get_world_size(), []
    for length in sorted(seconds, reverse=True):
        least = loads.index(min(loads))
        loads[least] += length
        if least == dist.get_rank():
            mine.append(seconds.index(length))
    return mine


@wrong("balanced_tasks", says=["Task 0 belongs to nobody", "No rank has anything"])
def nothing_kept(seconds):
    loads, mine = [0.0] * dist.get_world_size(), []
    for task in sorted(range(len(seconds)), key=lambda task: -seconds[task]):
        loads[loads.index(min(loads))] += seconds[task]
    return mine


@wrong("balanced_tasks", says=["returned a tuple", "list of places"])
def loads_and_tasks(seconds):
    return [0.0], list(range(len(seconds)))


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


@wrong("meet", says=["before all of it was there"])
def read_half_written(folder, card):
    Path(folder, f"rank {dist.get_rank()}").write_text(card)
    places = [Path(folder, f"rank {r}") for r in range(dist.get_world_size())]
    while not all(place.exists() for place in places):
        time.sleep(0.001)
    return [place.read_text() for place in places]


@wrong("meet", says=["All cards are there, but not in the order"])
def as_they_arrive(folder, card):
    log = os.open(folder / "cards", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    time.sleep(0.02 * (dist.get_world_size() - dist.get_rank()))
    os.write(log, f"{card}\n".encode())
    os.close(log)
    while len(cards := (folder / "cards").read_text().splitlines()) < dist.get_world_size():
        time.sleep(0.001)
    return cards


@wrong("meet", says=["files alone", "says all that a message could say"])
def without_the_folder(folder, card):
    cards = [None] * dist.get_world_size()
    dist.all_gather_object(cards, card)
    return cards


@wrong("meet", says=["other files in it", "by name"])
def whatever_lies_there(folder, card):
    draft = folder / f"draft {dist.get_rank()}"
    draft.write_text(card)
    draft.rename(folder / f"{dist.get_rank()}")
    while True:
        places = [p for p in sorted(folder.iterdir()) if not p.name.startswith("draft")]
        if len(places) >= dist.get_world_size():
            return [place.read_text() for place in places]


@wrong("meet", says=["4 ranks", "not done after", "counted_from_one", "Compare the names"])
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


def _leave(folder, card):
    draft = folder / f"draft {dist.get_rank()}"
    draft.write_text(card)
    draft.rename(folder / f"rank {dist.get_rank()}")


@wrong("meet", says=["the last rank comes late", "later than any sleep"])
def those_that_came_in_a_second(folder, card):
    _leave(folder, card)
    time.sleep(1)
    return [path.read_text() for path in sorted(folder.glob("rank *"))]


@wrong("meet", says=["the last rank comes late", "FileNotFoundError", "not yet"])
def after_a_second(folder, card):
    _leave(folder, card)
    time.sleep(1)
    return [(folder / f"rank {r}").read_text() for r in range(dist.get_world_size())]


@wrong("meet", says=["the last rank came after 0 s", "not for a time"])
def after_a_long_sleep(folder, card):
    _leave(folder, card)
    time.sleep(2)
    return [(folder / f"rank {r}").read_text() for r in range(dist.get_world_size())]


@wrong("meet", says=["returned a string", "Three steps"])
def its_own_card(folder, card):
    _leave(folder, card)
    return card


@wrong("meet", says=["files alone"])
def a_barrier_in_place_of_a_look(folder, card):
    (folder / f"rank {dist.get_rank()}").write_text(card)
    dist.barrier()
    return [(folder / f"rank {r}").read_text() for r in range(dist.get_world_size())]


@wrong("meet", says=["before all of it was there", "under the other name"])
def drafts_counted_as_cards(folder, card):
    draft = folder / f"draft {dist.get_rank()}"
    draft.write_text(card)
    while len(list(folder.iterdir())) < dist.get_world_size():
        time.sleep(0.001)
    cards = [path.read_text() for path in sorted(folder.iterdir())]
    dist.barrier()  # for the test: nobody reads what another has just renamed
    draft.rename(folder / f"rank {dist.get_rank()}")
    return cards
