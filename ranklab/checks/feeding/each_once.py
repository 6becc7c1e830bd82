"""A stream of which every worker gives a part."""

from collections import Counter

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ranklab.checks.feeding._workers import NOT_DONE, forked
from ranklab.exercises import Case, Exercise, Mistake

SHARE, FIRST, LAST = "range(first, last)", "n * which // of", "n * (which + 1) // of"


def case(what, *args):
    return Case(what, lambda rank, world_size: args, ranks=1)


def drive(stream, start, stop, workers):
    """What each worker gives, as lists: a batch is so large that it is a worker's whole share."""
    batches = DataLoader(stream(start, stop), batch_size=10_000, **forked(workers))
    return [batch.tolist() for batch in batches]


def judge(seen):
    start, stop, workers = seen.inputs[0]
    shares, wanted = seen.results[0], list(range(start, stop))
    given = [number for share in shares for number in share]
    gave = f"he workers gave {', '.join(map(str, shares)):.200}."
    if sorted(given) != wanted:
        twice = [(number, times) for number, times in Counter(given).items() if times > 1]
        lost = sorted({*wanted} - {*given})
        many = "{} came {} times. ".format(*min(twice)) if twice else ""
        return f"{many}{f'{lost[0]} never came. ' if lost else ''}T{gave}"
    if given != wanted:
        return f"A share is to be one piece of the stream; t{gave}"
    # A worker whose share is empty gives no batch.
    sizes = [len(share) for share in shares] + [0] * (max(1, workers) - len(shares))
    if max(sizes) - min(sizes) > 1:
        return f"Every number came once, but the shares hold {sizes} numbers: make them even."
    return None


class LongerPartsFirst(IterableDataset):
    def __init__(self, start, stop):
        self.numbers = np.arange(start, stop)

    def __iter__(self):
        info = get_worker_info()
        if info is None:
            yield from self.numbers
        else:
            yield from np.array_split(self.numbers, info.num_workers)[info.id]


exercise = Exercise(
    cases=[
        case("0 to 10, 2 workers", 0, 10, 2),
        case("0 to 10, no worker", 0, 10, 0),
        case("0 to 10, 3 workers", 0, 10, 3),
        case("5 to 7, 4 workers", 5, 7, 4),
        case("3 to 20, 1 worker", 3, 20, 1),
        case("an empty stream, 2 workers", 4, 4, 2),
    ],
    twin=None,
    judge=judge,
    drive=drive,
    hint="How many numbers lie before the share of worker k of w? Divide as late as you can.",
    mistakes=[
        Mistake(
            "Without workers get_worker_info() is None: then this process has the whole stream.",
            {" if info else (0, 1)": ""},
            happened="error",
            test=lambda seen: seen.inputs[0][2] == 0 and "'NoneType'" in seen.error,
        ),
        Mistake(
            "A list is no iterator yet: iter(...) makes one of it.",
            {f"iter({SHARE})": f"list({SHARE})"},
            happened="error",
            test=lambda seen: "returned non-iterator" in seen.error,
        ),
        Mistake(
            "The share of a worker ends: where, if the stream is range(start, stop)?",
            {f"        return iter({SHARE})": "        while True:\n            pass"},
            happened=("error", "slow"),
            test=lambda seen: NOT_DONE in seen.error or seen.happened == "slow",
        ),
        Mistake(
            "No worker gave a number: is `first` below `last`?",
            {SHARE: "range(last, first)"},
        ),
        Mistake(
            "Each worker has a copy of the dataset. What tells the copies apart?",
            {SHARE: "range(self.start, self.stop)"},
        ),
        Mistake(
            "The numbers do not divide evenly: where do the left-over ones go?",
            {FIRST: "n // of * which", LAST: "n // of * (which + 1)"},
        ),
        Mistake(
            "There are numbers from outside the stream, which goes from start up to but without "
            "stop.",
            {f"self.start + {FIRST}": FIRST, f"self.start + {LAST}": LAST},
            {SHARE: "range(first, last + 1)"},
        ),
        Mistake(
            "The `last` of a worker is the `first` of the next one.",
            {SHARE: "range(first, min(last + 1, self.stop))"},
        ),
        Mistake(
            "A range with a step takes every w-th number. Take a stretch of them.",
            {SHARE: "range(self.start + which, self.stop, of)"},
        ),
    ],
    also_right=[LongerPartsFirst],
)
