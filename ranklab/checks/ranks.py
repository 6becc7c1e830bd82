"""What the exercises of chapter 05 check: order, shares of the work, environments, a rendezvous."""

import time

import torch.distributed as dist

from ranklab.checks._slow_disk import Place, slow_disk
from ranklab.exercises import Case, Choice, Exercise, Hint

impossible_order = Choice(
    "impossible_order",
    right="c",
    why={
        "a": "Both print, both meet, both print again: it may well come so.",
        "b": "It may: before the barrier, and after it, nothing orders the two ranks.",
        "d": "It may: in each half of the program the two lines come in any order.",
    },
    because="`0 after` says that rank 0 has left the barrier, and nobody leaves before all have "
    "come: rank 1 has printed `1 before` by then. Order between ranks comes from waiting alone.",
)


# my_shard --------------------------------------------------------------------------------------


def _shards(inputs):
    """Deal the items' places out one by one: as many for each, one more for the first ranks."""
    n, world_size = inputs[0][0], len(inputs)
    lengths = [n // world_size + (r < n % world_size) for r in range(world_size)]
    return [(sum(lengths[:r]), sum(lengths[: r + 1])) for r in range(world_size)]


def _items(n, ranks):
    what = f"{n:,} item{'' if n == 1 else 's'}"
    return Case(what, lambda rank, world_size: (n,), ranks=ranks)


def _covered(seen):
    """Is every item in exactly one shard?"""
    places = [place for start, stop in seen.results for place in range(start, stop)]
    return sorted(places) == list(range(seen.inputs[0][0]))


def _even(seen):
    lengths = [stop - start for start, stop in seen.results]
    return max(lengths) - min(lengths) <= 1


my_shard = Exercise(
    "my_shard",
    cases=[
        _items(10, 4),
        _items(2, 4),
        _items(11, 4),
        _items(12, 4),
        _items(7, 3),
        _items(5, 1),
        _items(0, 2),
        _items(1_000_003, 4),
    ],
    expected=_shards,
    hints=[
        Hint(
            lambda seen: seen.happened == "died",
            "A rank without items is still one of the group: give it an empty stretch.",
        ),
        Hint(
            lambda seen: any(stop > seen.inputs[0][0] for _, stop in seen.results),
            "A stop lies beyond the last item. A slice forgives that; a count of samples, and "
            "every loop over range(start, stop), does not.",
        ),
        Hint(
            lambda seen: max(stop for _, stop in seen.results) < seen.inputs[0][0],
            "The last items belong to nobody, and no rank would complain: n // world_size rounds "
            "down.",
        ),
        Hint(
            lambda seen: _covered(seen) and not _even(seen),
            "Every item has one owner, but the shares differ by more than one, and all would wait "
            "for the rank with the largest.",
        ),
        Hint(
            lambda seen: _covered(seen),
            "The lengths are right, but the longer shards belong to the first ranks.",
        ),
        Hint(
            lambda seen: len(set(seen.results)) == 1 and len(seen.results) > 1,
            "All ranks have the same shard: what differs between them?",
        ),
    ],
    hint="How many items has every rank for sure, how many ranks have one more, and how many of "
    "those stand before this rank?",
)


# environments ----------------------------------------------------------------------------------

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _hosts(hosts, per_host, port):
    what = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''} with {per_host} process" + (
        "es" if per_host > 1 else ""
    )
    return Case(what, lambda rank, world_size: (list(hosts), per_host, port), ranks=1)


def _told(inputs):
    (hosts, per_host, port) = inputs[0]
    everybody = [(host, local) for host in range(len(hosts)) for local in range(per_host)]
    values = [
        (rank, local, len(everybody), hosts[0], port) for rank, (_, local) in enumerate(everybody)
    ]
    return [[dict(zip(NAMES, map(str, row), strict=True)) for row in values]]


def _any_told(seen, test):
    return any(test(one) for one in seen.results[0])


environments = Exercise(
    "environments",
    cases=[
        _hosts(["node-a", "node-b"], 2, 29500),
        _hosts(["node-a", "node-b"], 4, 29500),
        _hosts(["laptop"], 3, 51234),
        _hosts(["x", "y", "z"], 1, 1234),
        _hosts(["big", "small", "other"], 3, 29511),
    ],
    expected=_told,
    hints=[
        Hint(
            lambda seen: _any_told(
                seen, lambda one: any(not isinstance(value, str) for value in one.values())
            ),
            "An environment holds strings, and strings alone: subprocess.Popen refuses a number.",
        ),
        Hint(
            lambda seen: _any_told(seen, lambda one: set(one) != set(NAMES)),
            f"Each environment has these five names: {', '.join(NAMES)}.",
        ),
        Hint(
            lambda seen: len({one["MASTER_ADDR"] for one in seen.results[0]}) > 1,
            "All must look for the same meeting place; it is on one of the hosts, the first.",
        ),
        Hint(
            lambda seen: len({one["RANK"] for one in seen.results[0]}) < len(seen.expected[0]),
            "Two processes have the same RANK. Which of the two numbers begins again on every "
            "host?",
        ),
        Hint(
            lambda seen: _any_told(
                seen, lambda one: one["WORLD_SIZE"] != str(len(seen.expected[0]))
            ),
            "The world is all processes on all hosts.",
        ),
    ],
    hint="RANK = number of the host × processes per host + LOCAL_RANK, host by host.",
)


# in_turn ---------------------------------------------------------------------------------------


def _take_turns(in_turn, late):
    """Come `late`, then take turns; return when this rank began and ended to speak, in s."""
    moments = []

    def say():
        moments.append(time.monotonic())
        time.sleep(0.02)
        moments.append(time.monotonic())

    dist.barrier()
    time.sleep(late)
    in_turn(say)
    return moments


def _one_after_another(seen):
    """Say who spoke not once, or before the one before had ended."""
    for r, moments in enumerate(seen.results):
        if len(moments) != 2:
            return f"Rank {r} called say() {len(moments) // 2} times, and should have once."
    for r in range(1, len(seen.results)):
        if seen.results[r][0] < seen.results[r - 1][1]:
            return f"Rank {r} began to speak before rank {r - 1} had ended."
    return None


def _arriving(what, late, ranks):
    return Case(what, lambda rank, world_size: (late(rank, world_size),), ranks=ranks)


in_turn = Exercise(
    "in_turn",
    cases=[
        _arriving("the first comes last", lambda r, n: 0.05 * (n - r), 4),
        _arriving("all at once", lambda r, n: 0.0, 3),
        _arriving("rank 2 is late", lambda r, n: 0.2 * (r == 2), 4),
        _arriving("alone", lambda r, n: 0.0, 1),
        _arriving("rank 0 is late", lambda r, n: 0.2 * (r == 0), 2),
    ],
    expected=None,
    drive=_take_turns,
    judge=_one_after_another,
    hint="A turn is over when everybody has passed the same barrier; there is one for each turn, "
    "and every rank takes part in all of them.",
)


# balanced_tasks --------------------------------------------------------------------------------


def _greedy(seconds, world_size):
    """The slowest rank's seconds if the longest task always goes to the rank with least to do."""
    loads = [0.0] * world_size
    for length in sorted(seconds, reverse=True):
        loads[loads.index(min(loads))] += length
    return max(loads)


def _fair(seen):
    """Say which task has no owner, or two; or that the slowest rank has too much to do."""
    seconds, world_size = seen.inputs[0][0], len(seen.results)
    owners = {task: [] for task in range(len(seconds))}
    for r, tasks in enumerate(seen.results):
        if not isinstance(tasks, list):
            return f"Rank {r} returned a {type(tasks).__name__}, and should return a list."
        for task in tasks:
            if task not in owners:
                return f"Rank {r} has a task {task!r}, and they are 0 to {len(seconds) - 1}."
            owners[task].append(r)
    for task, ranks in owners.items():
        if not ranks:
            return f"Task {task} belongs to nobody."
        if len(ranks) > 1:
            return f"Task {task} belongs to ranks {' and '.join(map(str, ranks))}."
    slowest = max(sum(seconds[task] for task in tasks) for tasks in seen.results)
    possible = _greedy(seconds, world_size)
    if slowest > possible + 1e-9:
        return f"The slowest rank works {slowest:g} s; {possible:g} s are possible."
    return None


def _tasks(what, seconds, ranks):
    return Case(what, lambda rank, world_size: (list(seconds),), ranks=ranks)


balanced_tasks = Exercise(
    "balanced_tasks",
    cases=[
        _tasks("[4, 1, 1, 2]", [4.0, 1.0, 1.0, 2.0], 2),
        _tasks("a long task at the end", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 6.0], 3),
        _tasks("all alike", [1.0] * 9, 4),
        _tasks("more ranks than tasks", [3.0, 2.0], 4),
        _tasks("no task at all", [], 2),
        _tasks("growing", [float(i) for i in range(1, 31)], 4),
        _tasks("a few giants", [20.0, 1.0, 19.0, 2.0, 18.0, 3.0, 17.0, 4.0], 3),
    ],
    expected=None,
    judge=_fair,
    hints=[
        Hint(
            lambda seen: seen.happened == "changed",
            "sorted() makes a new list; .sort() changes the one that you were given, and with it "
            "the places of the tasks.",
        ),
        Hint(
            lambda seen: all(seen.results) and len(set(map(tuple, seen.results))) == 1,
            "All ranks return the same. Each plays the whole dealing through, and keeps its own.",
        ),
        Hint(
            lambda seen: (
                sorted(task for tasks in seen.results for task in tasks)
                == list(range(len(seen.inputs[0][0])))
            ),
            "Deal the longest task first, each to the rank that has least to do so far.",
        ),
    ],
    hint="Nobody asks anybody: every rank must come to the same assignment by itself, from the "
    "same numbers in the same order.",
)


# meet ------------------------------------------------------------------------------------------


def _meet_slowly(meet, folder, card, late):
    time.sleep(late)
    with slow_disk():
        return meet(folder, card)


def _meeting(what, ranks, *, litter=(), late=lambda rank: 0.0):
    def make(rank, world_size):
        card = f"host-{'abcdefgh'[rank]}:{5000 + 7 * rank}"
        return Place.of(rank, litter), card, late(rank)

    return Case(what, make, ranks=ranks)


def _by_files_alone(seen):
    if any(seen.collectives) or any(seen.messages):
        return "The cards are right, but files alone were to be used: no message, no barrier."
    return None


meet = Exercise(
    "meet",
    cases=[
        _meeting("all at once", 4),
        _meeting("rank 0 comes late", 3, late=lambda rank: 0.3 * (rank == 0)),
        _meeting("the last rank comes late", 4, late=lambda rank: 0.3 * (rank == 3)),
        _meeting("a folder with other files in it", 4, litter=("readme.txt", "notes")),
        _meeting("alone", 1),
    ],
    expected=lambda inputs: [[card for _, card, _ in inputs]] * len(inputs),
    drive=_meet_slowly,
    judge=_by_files_alone,
    trace=True,
    limit=6.0,
    hints=[
        Hint(
            lambda seen: any(
                card != right and right.startswith(card)
                for cards in seen.results
                for card, right in zip(cards, seen.expected[0], strict=True)
            ),
            "A card was read while it was being written (the disk is slow here). Write it under "
            "another name and rename it: then it is there all at once.",
        ),
        Hint(
            lambda seen: all(
                len(cards) == len(seen.inputs) and sorted(cards) == sorted(seen.expected[0])
                for cards in seen.results
            ),
            "All cards are there, but not in the order of the ranks: a listing of a folder has an "
            "order of its own.",
        ),
        Hint(
            lambda seen: any(len(cards) < len(seen.inputs) for cards in seen.results),
            "Somebody did not wait until every card was there.",
        ),
        Hint(
            lambda seen: any("nobody's card" in cards for cards in seen.results),
            "Not every file in the folder is a card. Look for those of this group, by name.",
        ),
    ],
    hint="Three steps: leave a card, wait until every rank's card is there, read them all.",
)
