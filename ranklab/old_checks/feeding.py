"""What the exercises of chapter 04 check: the knee, a shared stream, seeds, and a prefetcher."""

import itertools
import signal
import time
from functools import partial

from torch import manual_seed
from torch.utils.data import DataLoader, Dataset

from ranklab.old_checks._model import Case, Choice, Exercise, Hint


def _case(what, *args):
    return Case(what, lambda rank, world_size: args, ranks=1)


WORKERS_LIMIT = 4  # seconds


def _begin_worker(init, worker_id):
    """Begin a worker that is interrupted at the line that it is at, should it go on for long."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, WORKERS_LIMIT)
    if init:
        init(worker_id)


def _interrupt(*_):
    raise TimeoutError(f"a worker was not done after {WORKERS_LIMIT} s, and was interrupted")


def _forked(workers, init=None):
    """Options of a DataLoader with so many workers."""
    if not workers:
        return {}
    how = {"num_workers": workers, "multiprocessing_context": "fork"}
    return how | {"worker_init_fn": partial(_begin_worker, init)}


def _in_a_worker(seen):
    return seen.error.startswith("TimeoutError: a worker was not done")


# knee_of_both ----------------------------------------------------------------------------------

knee_of_both = Choice(
    "knee_of_both",
    right="b",
    why={
        "a": "The 2 cores are needed for 30 of the 90 ms only. In the other 60 ms a worker waits, "
        "and another one can have its core.",
        "c": "9 workers would bring a batch every 10 ms if they only waited. But each batch takes "
        "30 ms of a core, and there are 2 cores: what do these allow?",
        "d": "90 is the milliseconds of one batch, not a number of workers. How many batches are "
        "under way at a time with w workers?",
    },
    because="Two cores decode a batch every 30/2 = 15 ms; the step alone would take one every "
    "10 ms, so the cores are the limit. Batches come every 90/w ms: 15 ms is reached at w = 6.",
)


# each_once -------------------------------------------------------------------------------------


def _shares(stream, start, stop, workers):
    """What each worker gives, as lists: a batch is so large that it is a worker's whole share."""
    batches = DataLoader(stream(start, stop), batch_size=10_000, **_forked(workers))
    return [batch.tolist() for batch in batches]


def _judge_shares(seen):
    start, stop, workers = seen.inputs[0]
    shares, wanted = seen.results[0], list(range(start, stop))
    given = [number for share in shares for number in share]
    if sorted(given) != wanted:
        twice = sorted({number for number in given if given.count(number) > 1})
        lost = sorted(set(wanted) - set(given))
        many = f"{twice[0]} came {given.count(twice[0])} times. " if twice else ""
        return (
            f"{many}{f'{lost[0]} never came. ' if lost else ''}The workers gave {_short(shares)}."
        )
    if given != wanted:
        return f"A share is to be one piece of the stream; the workers gave {_short(shares)}."
    # A worker whose share is empty gives no batch.
    sizes = [len(share) for share in shares] + [0] * (max(1, workers) - len(shares))
    if max(sizes) - min(sizes) > 1:
        return f"Every number came once, but the shares hold {sizes} numbers: make them even."
    return None


def _numbers_of(seen):
    """All numbers that came."""
    return [number for share in seen.results[0] for number in share]


def _short(shares):
    text = ", ".join(str(share) for share in shares)
    return text if len(text) < 200 else text[:200] + " …"


each_once = Exercise(
    "each_once",
    cases=[
        _case("0 to 10, 2 workers", 0, 10, 2),
        _case("0 to 10, no worker", 0, 10, 0),
        _case("0 to 10, 3 workers", 0, 10, 3),
        _case("5 to 7, 4 workers", 5, 7, 4),
        _case("3 to 20, 1 worker", 3, 20, 1),
        _case("an empty stream, 2 workers", 4, 4, 2),
    ],
    expected=None,
    judge=_judge_shares,
    drive=_shares,
    hints=[
        Hint(
            lambda seen: seen.inputs[0][2] == 0 and "'NoneType' object has no" in seen.error,
            "Without workers get_worker_info() is None: then this process has the whole stream.",
            when=("error",),
        ),
        Hint(
            lambda seen: "iter() returned non-iterator" in seen.error,
            "A list is no iterator yet: iter(...) makes one of it.",
            when=("error",),
        ),
        Hint(
            lambda seen: _in_a_worker(seen) or seen.happened == "slow",
            "The share of a worker ends: where, if the stream is range(start, stop)?",
            when=("error", "slow"),
        ),
        Hint(
            lambda seen: not _numbers_of(seen) and seen.inputs[0][0] < seen.inputs[0][1],
            "No worker gave a number: is `first` below `last`?",
        ),
        Hint(
            lambda seen: len(seen.results[0]) > 1 and seen.results[0][0] == seen.results[0][1],
            "Each worker has a copy of the dataset. What tells the copies apart?",
        ),
        Hint(
            lambda seen: (
                set(_numbers_of(seen)) < set(range(*seen.inputs[0][:2]))
                and (seen.inputs[0][1] - seen.inputs[0][0]) % max(1, seen.inputs[0][2])
            ),
            "The numbers do not divide evenly: where do the left-over ones go?",
        ),
        Hint(
            lambda seen: not set(_numbers_of(seen)) <= set(range(*seen.inputs[0][:2])),
            "There are numbers from outside the stream, which goes from start up to but without "
            "stop.",
        ),
        Hint(
            lambda seen: sorted(_numbers_of(seen)) != list(range(*seen.inputs[0][:2])),
            "The `last` of a worker is the `first` of the next one.",
        ),
        Hint(
            lambda seen: _numbers_of(seen) != list(range(*seen.inputs[0][:2])),
            "A range with a step takes every w-th number. Take a stretch of them.",
        ),
    ],
    hint="How many numbers lie before the share of worker k of w? Divide as late as you can.",
)


# reseed ----------------------------------------------------------------------------------------


class _Draws(Dataset):
    """Each example is a number from the generator `rng` of the dataset."""

    def __init__(self, length):
        import numpy as np

        self.rng, self.length = np.random.default_rng(0), length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return float(self.rng.random())


def _draw(reseed, seed, workers):
    """Twice the same run of two epochs: run -> epoch -> worker -> its draws."""
    runs = []
    for _ in range(2):
        manual_seed(seed)
        batches = DataLoader(
            _Draws(3 * workers),
            batch_size=3,
            **_forked(workers, reseed),
        )
        runs.append([[batch.tolist() for batch in batches] for _ in range(2)])
    return runs


def _judge_draws(seen):
    first, again = seen.results[0]
    for epoch in first:
        for a, b in itertools.combinations(range(len(epoch)), 2):
            if epoch[a] == epoch[b]:
                return f"Workers {a} and {b} draw the same numbers: {_numbers(epoch[a])}."
    if any(share in first[1] for share in first[0]):
        return f"The second epoch draws the numbers of the first again: {_numbers(first[0][0])}."
    if first != again:
        return (
            "Two runs that begin with the same torch.manual_seed differ: worker 0 first drew "
            f"{_numbers(first[0][0])}, then {_numbers(again[0][0])}."
        )
    return None


def _numbers(values):
    return ", ".join(f"{value:.3f}" for value in values)


def _first_draws(seen):
    """What each worker drew in the first epoch."""
    return seen.results[0][0][0]


def _as_copied(seen):
    """What they draw with a copy of the dataset's generator."""
    drawn = _Draws(3)
    return [[drawn[i] for i in range(3)]] * seen.inputs[0][1]


reseed = Exercise(
    "reseed",
    cases=[
        _case("2 workers, 2 epochs", 0, 2),
        _case("3 workers, 2 epochs", 1, 3),
    ],
    expected=None,
    judge=_judge_draws,
    drive=_draw,
    hints=[
        Hint(
            lambda seen: "Seed must be between 0 and" in seen.error,
            "np.random.default_rng takes large seeds, too; the older generators want them below "
            "2**32.",
            when=("error",),
        ),
        Hint(
            lambda seen: _first_draws(seen) == _as_copied(seen),
            "These are the numbers of the generator that the dataset came with. Does "
            "`dataset.rng` become another one?",
        ),
        Hint(
            lambda seen: any(a == b for e in seen.results[0][0] for a, b in itertools.pairwise(e)),
            "Which number do you seed with, and is it another one in each worker?",
        ),
        Hint(
            lambda seen: any(share in seen.results[0][0][1] for share in seen.results[0][0][0]),
            "A worker of the second epoch is a new process with the same number. What differs?",
        ),
        Hint(
            lambda seen: seen.results[0][0] != seen.results[0][1],
            "The seed must come from PyTorch's, not from the clock or the operating system.",
        ),
    ],
    hint="In a worker, torch.initial_seed() and get_worker_info().seed are what you need.",
)


# prefetched ------------------------------------------------------------------------------------


def _observed(prefetched, items, depth, take, fails):
    """Use the answer: (the items that came, the error that came, how far it read ahead).

    items: what the source gives, each a moment late; None: 0, 1, 2, ... without end; AN_ERROR is
    an exception that it gives, and does not raise. take: how many to take (None: all). fails:
    whether the source raises at its end.
    """
    asked, given = 0, OSError("given as a batch")

    def source():
        nonlocal asked
        for item in itertools.count() if items is None else items:
            asked += 1
            time.sleep(0.002)
            yield given if item == AN_ERROR else item
        if fails:
            raise OSError("the disk is gone")

    came, error, ahead = [], "", "not looked at"
    try:
        stream = iter(prefetched(source(), depth))
        for item in itertools.islice(stream, take):
            came.append(AN_ERROR if item is given else item)
            if items is None and len(came) == 3:
                ahead = _how_far(lambda: asked - 3, depth)
    except OSError as raised:
        error = str(raised)
    return came, error, ahead


def _how_far(extra, depth):
    """In words, how many more the source was asked for, once it is asked no more."""
    end = time.monotonic() + 3
    while extra() < depth and time.monotonic() < end:
        time.sleep(0.01)
    if extra() < depth:
        return "not far enough"
    time.sleep(0.3)  # time for 150 more
    return "as far as it should" if extra() <= depth + 1 else "too far"


def _expected(inputs):
    items, _, take, fails = inputs[0]
    came = list(range(take)) if items is None else list(items)
    return [
        (came, "the disk is gone" if fails else "", _AHEAD if items is None else "not looked at")
    ]


_AHEAD, AN_ERROR = "as far as it should", "an exception"


prefetched = Exercise(
    "prefetched",
    cases=[
        _case("5 batches, 2 ahead", [10, 11, 12, 13, 14], 2, None, False),
        _case("no batch", [], 2, None, False),
        _case("batches that are 0, None and False", [0, None, False, 1], 2, None, False),
        _case("3 batches and then an error", [1, 2, 3], 2, None, True),
        _case("an endless source, 2 ahead, 6 taken", None, 2, 6, False),
        _case("an endless source, 5 ahead, 6 taken", None, 5, 6, False),
        _case("40 batches, 1 ahead", list(range(40)), 1, None, False),
        _case("an exception among the batches", [1, AN_ERROR, 2], 2, None, False),
    ],
    expected=_expected,
    drive=_observed,
    hints=[
        Hint(
            lambda seen: seen.inputs[0][0] is None,
            "The source may have no end: take only as many as the queue holds.",
            when=("slow", "stuck"),
        ),
        Hint(
            lambda seen: seen.inputs[0][0] and AN_ERROR in seen.inputs[0][0],
            "This exception is a batch: it is given, and not raised. What tells it from one that "
            "the source raises?",
        ),
        Hint(
            lambda seen: seen.inputs[0][0] == [0, None, False, 1],
            "A batch may be anything, also None. What marks the end must be something else.",
        ),
        Hint(
            lambda seen: seen.inputs[0][3] and len(seen.results[0][0]) < 3,
            "The batches that came before the error are to be given first.",
        ),
        Hint(
            lambda seen: seen.inputs[0][3] and not seen.results[0][1],
            "The error is raised in the thread. Carry it over, and raise it where the batches are "
            "taken.",
        ),
        Hint(
            lambda seen: seen.results[0][2] == "too far",
            "What keeps the thread from running ahead without a bound? A queue has a maxsize.",
        ),
        Hint(
            lambda seen: seen.results[0][2] == "not far enough",
            "While the caller works, a thread must go on taking batches from the source.",
        ),
        Hint(
            lambda seen: seen.inputs[0][3],
            "The thread ends with the error, and the taker goes on waiting. Catch it there, and "
            "let the taker know.",
            when=("slow", "stuck"),
        ),
        Hint(
            lambda seen: True,
            "Who waits, at the line above? A get() does, after the last item, if nothing marks the "
            "end. A put() does, if nobody takes: with target=f() f runs here, and not in a thread, "
            "and a join() before the first yield waits for a thread that waits for a taker.",
            when=("slow", "stuck"),
        ),
        Hint(
            lambda seen: len(seen.results[0][0]) > len(seen.expected[0][0]),
            "There came more than the source gave: is the mark of the end given, too?",
        ),
        Hint(
            lambda seen: len(seen.results[0][0]) < len(seen.expected[0][0]),
            "Not everything came. Is the queue empty when the taker stops, and the source at its "
            "end?",
        ),
    ],
    hint="Which two run at the same time here, and what goes from one to the other?",
    limit=8.0,
)
