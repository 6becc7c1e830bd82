"""What the exercises of chapter 05 check: order, shares of the work, environments, a rendezvous."""

import operator
import time

import torch.distributed as dist

from ranklab.old_checks._model import Case, Choice, Exercise, Hint
from ranklab.upstream import torch as upstream

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
            lambda seen: seen.found == "type",
            "The result is two whole numbers, start and stop.",
        ),
        Hint(
            lambda seen: seen.inputs[0][0] < len(seen.inputs),
            "A rank without items is still one of the group: give it an empty stretch.",
            when=("died", "error", "stuck"),
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
            lambda seen: (
                seen.found == "value" and len(set(seen.results)) == 1 and len(seen.results) > 1
            ),
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
            lambda seen: len(seen.results[0]) != len(seen.expected[0]),
            "Each process on each host has an environment of its own.",
        ),
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
            lambda seen: len({one["RANK"] for one in seen.results[0]}) < len(seen.results[0]),
            "Two processes have the same RANK. Which of the two numbers begins again on every "
            "host?",
        ),
        Hint(
            lambda seen: _any_told(
                seen, lambda one: one["WORLD_SIZE"] != str(len(seen.expected[0]))
            ),
            "The world is all processes on all hosts.",
        ),
        Hint(
            lambda seen: any(
                one["LOCAL_RANK"] != right["LOCAL_RANK"]
                for one, right in zip(seen.results[0], seen.expected[0], strict=True)
            ),
            "LOCAL_RANK counts the processes on one host, from 0, and there are `per_host`.",
        ),
    ],
    hint="Go host by host, and on each from process to process. What is the same for all, what "
    "begins again on each host, and what never comes twice?",
)


# in_turn ---------------------------------------------------------------------------------------


def _calls():
    """Return how many messages and collectives this rank has begun, in all of its groups."""
    return sum(map(upstream.calls_begun, upstream.groups()))


def _take_turns(in_turn, late, speech):
    """Come `late`, then take turns: say() takes `speech` seconds.

    Return the moments at which this rank began and ended to speak, in s, and its calls before the
    first say() and after the last one.
    """
    moments, calls = [], []

    def say():
        calls.append(_calls())
        moments.append(time.monotonic())
        time.sleep(speech)
        moments.append(time.monotonic())
        calls.append(_calls())

    dist.barrier()
    before = _calls()
    time.sleep(late)
    in_turn(say)
    calls = calls or [before]
    return moments, calls[0] - before, _calls() - calls[-1]


def _out_of_order(seen):
    """Say who spoke not once, or before the one before had ended."""
    spoken = [moments for moments, _, _ in seen.results]
    for r, moments in enumerate(spoken):
        if len(moments) != 2:
            return f"Rank {r} called say() {len(moments) // 2} times, and should have once."
    for r in range(1, len(spoken)):
        if spoken[r][0] < spoken[r - 1][1]:
            return f"Rank {r} began to speak before rank {r - 1} had ended."
    return None


def _by_luck(seen):
    """Say so where the order is right, and a rank cannot have known when its turn came."""
    for r in range(1, len(seen.results)):
        _, before, _ = seen.results[r]
        _, _, after = seen.results[r - 1]
        if not before:
            return (
                f"The order is right by luck: rank {r} waited for nobody before it spoke (no "
                "barrier, no message)."
            )
        if not after:
            return (
                f"The order is right by luck: rank {r - 1} told nobody that it had ended (no "
                "barrier, no message after its say())."
            )
    return None


def _one_after_another(seen):
    return _out_of_order(seen) or _by_luck(seen)


def _arriving(what, ranks, *, late=lambda r, n: 0.0, speech=lambda r: 0.02):
    return Case(what, lambda rank, world_size: (late(rank, world_size), speech(rank)), ranks=ranks)


in_turn = Exercise(
    "in_turn",
    cases=[
        _arriving("the first comes last", 4, late=lambda r, n: 0.05 * (n - r)),
        _arriving("all at once", 3),
        _arriving("rank 2 is late", 4, late=lambda r, n: 0.2 * (r == 2)),
        _arriving("alone", 1),
        _arriving("rank 0 is late", 2, late=lambda r, n: 0.2 * (r == 0)),
        _arriving("rank 1 speaks for long", 3, speech=lambda r: 0.6 if r == 1 else 0.02),
    ],
    expected=None,
    drive=_take_turns,
    judge=_one_after_another,
    hints=[
        Hint(
            lambda seen: not _out_of_order(seen),
            "Nobody knows how late another rank may be, or how long it speaks: no sleep is long "
            "enough. A rank has to wait until the one before says that it has ended.",
        ),
        Hint(
            lambda seen: any(len(moments) != 2 for moments, _, _ in seen.results),
            "A rank speaks in its own turn, and in no other.",
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1,
            "Count the barriers that each rank calls. A barrier ends only when all have come.",
            when=("stuck",),
        ),
    ],
    hint="What does rank 1 wait for before it speaks, and what ends that wait?",
)


# balanced_tasks --------------------------------------------------------------------------------


def _greedy(seconds, world_size):
    """The slowest rank's seconds if the longest task always goes to the rank with least to do."""
    loads = [0.0] * world_size
    for length in sorted(seconds, reverse=True):
        loads[loads.index(min(loads))] += length
    return max(loads)


def _owners(seen):
    """Return {task: the ranks that have it}; a place may be of any type of whole numbers."""
    owners = {task: [] for task in range(len(seen.inputs[0][0]))}
    for r, tasks in enumerate(seen.results):
        for task in tasks:
            owners[operator.index(task)].append(r)
    return owners


def _no_place(task, n):
    try:
        return operator.index(task) not in range(n)
    except TypeError:
        return True


def _fair(seen):
    """Say which task has no owner, or two; or that the slowest rank has too much to do."""
    seconds, world_size = seen.inputs[0][0], len(seen.results)
    for r, tasks in enumerate(seen.results):
        if not isinstance(tasks, list):
            return f"Rank {r} returned a {type(tasks).__name__}, and should return a list."
        for task in tasks:
            if _no_place(task, len(seconds)):
                there = f"whole numbers, 0 to {len(seconds) - 1}" if seconds else "none"
                return f"Rank {r} has {task!r} in its list, and the places are {there}."
    for task, ranks in _owners(seen).items():
        if not ranks:
            return f"Task {task} belongs to nobody."
        if len(set(ranks)) < len(ranks):
            return f"Rank {ranks[0]} has task {task} more than once."
        if len(ranks) > 1:
            return f"Task {task} belongs to ranks {' and '.join(map(str, ranks))}."
    slowest = max(sum(seconds[task] for task in tasks) for tasks in seen.results)
    possible = _greedy(seconds, world_size)
    if slowest > possible + 1e-9:
        return f"The slowest rank works {slowest:g} s; {possible:g} s are possible."
    return None


def _first_of_equals(seen):
    """Do the tasks without an owner take just as long as others that are there twice?"""
    seconds, owners = seen.inputs[0][0], _owners(seen)
    missing = [seconds[task] for task, ranks in owners.items() if not ranks]
    twice = [seconds[task] for task, ranks in owners.items() for _ in ranks[1:]]
    return bool(missing) and sorted(missing) == sorted(twice)


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
            lambda seen: True,
            "sorted() makes a new list; .sort() changes the one that you were given, and with it "
            "the places of the tasks.",
            when=("changed",),
        ),
        Hint(
            lambda seen: any(isinstance(task, float) for tasks in seen.results for task in tasks),
            "A task is named by its place in `seconds`, not by how long it takes.",
        ),
        Hint(
            lambda seen: bool(seen.inputs[0][0]) and all(tasks == [] for tasks in seen.results),
            "No rank has anything. Which of the tasks that are dealt does a rank keep?",
        ),
        Hint(
            lambda seen: len(seen.results) > 1 and len(set(map(tuple, seen.results))) == 1,
            "All ranks return the same. Each plays the whole dealing through, and keeps its own.",
        ),
        Hint(
            _first_of_equals,
            "Two tasks can take equally long. A search for the length (`index`) finds the first of "
            "them only: deal the places, not the lengths.",
        ),
        Hint(
            lambda seen: all(len(ranks) == 1 for ranks in _owners(seen).values()),
            "Deal the longest task first, each to the rank that has least to do so far.",
        ),
        Hint(
            _owners,
            "Nobody asks anybody: every rank must come to the same assignment by itself, from the "
            "same numbers in the same order.",
        ),
    ],
    hint="The result is a list of places in `seconds`, whole numbers; it may be empty.",
)
