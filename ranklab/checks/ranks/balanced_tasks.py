"""Tasks of unequal length, dealt so that no rank has much more to do than the others."""

import heapq
from collections import Counter

import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

LONGEST_FIRST = "sorted(range(len(seconds)), key=lambda task: -seconds[task])"


def case(what, seconds, ranks):
    return Case(what, lambda rank, world_size: ([*map(float, seconds)],), ranks=ranks)


def possible(seconds, world_size):
    """The slowest rank's seconds if the longest task always goes to the rank with least to do."""
    loads = [0.0] * world_size
    for length in sorted(seconds, reverse=True):
        heapq.heapreplace(loads, loads[0] + length)
    return max(loads)


def owners(seen):
    """Return how many times each task has been dealt."""
    return Counter(int(task) for tasks in seen.results for task in tasks)


def judge(seen):
    """Say which task has no owner, or two; or that the slowest rank has too much to do."""
    seconds, places = seen.inputs[0][0], range(len(seen.inputs[0][0]))
    for r, tasks in enumerate(seen.results):
        if not isinstance(tasks, list):
            return f"Rank {r} returned a {type(tasks).__name__}, and should return a list."
        for task in tasks:
            if isinstance(task, float) or task not in places:
                there = f"whole numbers, 0 to {places[-1]}" if places else "none"
                return f"Rank {r} has {task!r} in its list, and the places are {there}."
    for task in places:
        ranks = [r for r, tasks in enumerate(seen.results) for one in tasks if one == task]
        if not ranks:
            return f"Task {task} belongs to nobody."
        if len(set(ranks)) < len(ranks):
            return f"Rank {ranks[0]} has task {task} more than once."
        if len(ranks) > 1:
            return f"Task {task} belongs to ranks {' and '.join(map(str, ranks))}."
    slowest = max(sum(seconds[task] for task in tasks) for tasks in seen.results)
    if slowest > (best := possible(seconds, len(seen.results))) + 1e-9:
        return f"The slowest rank works {slowest:g} s; {best:g} s are possible."
    return None


def better_than_asked_for(seconds):
    """The longest first; then one task is moved, if that helps."""
    n, shares = dist.get_world_size(), {}
    for task in sorted(range(len(seconds)), key=seconds.__getitem__)[::-1]:
        loads = [sum(seconds[t] for t in shares.get(r, [])) for r in range(n)]
        shares.setdefault(min(range(n), key=lambda r: (loads[r], -r)), []).append(task)
    loads = [sum(seconds[t] for t in shares.get(r, [])) for r in range(n)]
    high, low = loads.index(max(loads)), loads.index(min(loads))
    for task in sorted(shares.get(high, []), key=seconds.__getitem__):
        if loads[low] + seconds[task] < loads[high]:
            shares[high].remove(task)
            shares.setdefault(low, []).append(task)
            break
    return shares.get(dist.get_rank(), [])


exercise = Exercise(
    cases=[
        case("[4, 1, 1, 2]", [4, 1, 1, 2], 2),
        case("a long task at the end", [1, 1, 1, 1, 1, 1, 6], 3),
        case("all alike", [1] * 9, 4),
        case("more ranks than tasks", [3, 2], 4),
        case("no task at all", [], 2),
        case("growing", range(1, 31), 4),
        case("a few giants", [20, 1, 19, 2, 18, 3, 17, 4], 3),
    ],
    twin=None,
    judge=judge,
    hint="Nobody asks anybody: every rank must come to the same assignment by itself, from the "
    "same numbers in the same order.",
    mistakes=[
        Mistake(
            "sorted() makes a new list; .sort() changes the one that you were given, and with it "
            "the places of the tasks.",
            {"    rank, world_size": "    seconds.sort()\n    rank, world_size"},
            happened="changed",
        ),
        Mistake(
            "The result is a list of places in `seconds`, whole numbers; it may be empty.",
            {"return mine": "return tuple(mine)"},
            test=lambda seen: not all(isinstance(tasks, list) for tasks in seen.results),
        ),
        Mistake(
            "A task is named by its place in `seconds`, not by how long it takes.",
            {"append(task)": "append(seconds[task])"},
        ),
        Mistake(
            "No rank has anything. Which of the tasks that are dealt does a rank keep?",
            {"            mine.append(task)": "            pass"},
        ),
        Mistake(
            "All ranks return the same. Each plays the whole dealing through, and keeps its own.",
            {"if least == rank": "if least == 0"},
            {"if least == rank": "if True"},
        ),
        Mistake(
            "Two tasks can take equally long. A search for the length (`index`) finds the first of "
            "them only: deal the places, not the lengths.",
            {"append(task)": "append(seconds.index(seconds[task]))"},
        ),
        Mistake(
            "Deal the longest task first, each to the rank that has least to do so far.",
            {LONGEST_FIRST: "range(len(seconds))"},
            {"-seconds[task]": "seconds[task]"},
            {LONGEST_FIRST: "range(len(seconds))", "loads.index(min(loads))": "task % world_size"},
            test=lambda seen: owners(seen) == Counter(range(len(seen.inputs[0][0]))),
        ),
    ],
    also_right=[
        {LONGEST_FIRST: "__import__('numpy').argsort(seconds)[::-1]"},
        better_than_asked_for,
    ],
)
