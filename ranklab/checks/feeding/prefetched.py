"""Batches that a thread takes from their source ahead of whoever wants them."""

import collections
import itertools
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ranklab.exercises import Case, Exercise, Mistake

AS_IT_SHOULD, TOO_FAR, NOT_FAR = "as far as it should", "too far", "not far enough"
NOT_LOOKED_AT, LOST, AN_ERROR = "not looked at", "the disk is gone", "an exception"
BEGIN, CATCHES = "threading.Thread(target=fill", "except BaseException as error:"
QUEUE, TAKES = "queue.Queue(maxsize=depth)", "while (batch := ready.get()) is not end:\n"
RAISES = "        if isinstance(batch, Exception):\n            raise batch\n"


def case(what, items, depth=2, take=None, fails=False):
    """The source gives items; None: 0, 1, 2, ... without end. take: how many (None: all).

    AN_ERROR among the items is an exception that the source gives, and does not raise.
    fails: does it raise one at its end?
    """
    return Case(what, lambda rank, world_size: (items, depth, take, fails), ranks=1)


def drive(prefetched, items, depth, take, fails):
    """Use the answer: (the items that came, the error that came, how far it read ahead)."""
    asked, given = 0, OSError("given as a batch")

    def source():
        nonlocal asked
        for item in itertools.count() if items is None else items:
            asked += 1
            time.sleep(0.002)  # each comes a moment late
            yield given if item == AN_ERROR else item
        if fails:
            raise OSError(LOST)

    came, error, ahead = [], "", NOT_LOOKED_AT
    try:
        for item in itertools.islice(prefetched(source(), depth), take):
            came.append(AN_ERROR if item is given else item)
            if items is None and len(came) == 3:
                ahead = how_far(lambda: asked - 3, depth)
    except OSError as raised:
        error = str(raised)
    return came, error, ahead


def how_far(extra, depth):
    """In words, how many more the source was asked for, once it is asked no more."""
    end = time.monotonic() + 1.5
    while extra() < depth and time.monotonic() < end:
        time.sleep(0.01)
    if extra() < depth:
        return NOT_FAR
    time.sleep(0.3)  # time for 150 more
    return AS_IT_SHOULD if extra() <= depth + 1 else TOO_FAR


def twin(inputs):
    items, _, take, fails = inputs[0]
    if items is None:
        return [([*range(take)], "", AS_IT_SHOULD)]
    return [(items, LOST if fails else "", NOT_LOOKED_AT)]


def endless(seen):
    return seen.inputs[0][0] is None


def fails(seen):
    return seen.inputs[0][3]


def more(seen):
    """Return how many more batches came than should have."""
    return len(seen.results[0][0]) - len(seen.expected[0][0])


def futures_of_one_thread(batches, depth):
    source, end = iter(batches), object()
    pool = ThreadPoolExecutor(1)
    ahead = collections.deque(pool.submit(next, source, end) for _ in range(depth))
    while (batch := ahead.popleft().result()) is not end:
        ahead.append(pool.submit(next, source, end))
        yield batch


def with_a_kind_for_each(batches, depth):
    ready = queue.Queue(depth)

    def fill():
        try:
            for batch in batches:
                ready.put(("batch", batch))
            ready.put(("end", None))
        except BaseException as error:
            ready.put(("error", error))

    threading.Thread(target=fill).start()
    while (item := ready.get())[0] == "batch":
        yield item[1]
    if item[0] == "error":
        raise item[1]


exercise = Exercise(
    cases=[
        case("5 batches, 2 ahead", [10, 11, 12, 13, 14]),
        case("no batch", []),
        case("batches that are 0, None and False", [0, None, False, 1]),
        case("3 batches and then an error", [1, 2, 3], fails=True),
        case("an endless source, 2 ahead, 6 taken", None, take=6),
        case("an endless source, 5 ahead, 6 taken", None, depth=5, take=6),
        case("40 batches, 1 ahead", list(range(40)), depth=1),
        case("an exception among the batches", [1, AN_ERROR, 2]),
    ],
    twin=twin,
    drive=drive,
    limit=3.5,
    hint="Which two run at the same time here, and what goes from one to the other?",
    mistakes=[
        Mistake(
            "The source may have no end: take only as many as the queue holds.",
            {QUEUE: "queue.Queue()", ".start()": ".run()"},
            happened=("slow", "stuck"),
            test=endless,
        ),
        Mistake(
            "The thread ends with the error, and the taker goes on waiting. Catch it there, and "
            "let the taker know.",
            {CATCHES: "except ZeroDivisionError as error:"},
            happened=("slow", "stuck"),
            test=fails,
        ),
        Mistake(
            "Who waits, at the line above? A get() does, after the last item, if nothing marks the "
            "end. A put() does, if nobody takes: with target=f() f runs here, and not in a thread, "
            "and a join() before the first yield waits for a thread that waits for a taker.",
            {BEGIN: f"{BEGIN}()"},
            happened=("slow", "stuck"),
        ),
        Mistake(
            "What keeps the thread from running ahead without a bound? A queue has a maxsize.",
            {QUEUE: "queue.Queue()"},
            test=lambda seen: seen.results[0][2] == TOO_FAR,
        ),
        Mistake(
            "While the caller works, a thread must go on taking batches from the source.",
            {f"{BEGIN}, daemon=True).start()": "yield from batches\n    ready.put(end)"},
            test=lambda seen: seen.results[0][2] == NOT_FAR,
        ),
        Mistake(
            "The batches that came before the error are to be given first.",
            {
                f"    {TAKES}": "    taken = [*iter(ready.get, end)]\n",
                "        yield batch\n": "",
                "raise errors[0]": "raise errors[0]\n    yield from taken",
            },
            test=lambda seen: fails(seen) and more(seen) < 0,
        ),
        Mistake(
            "The error is raised in the thread. Carry it over, and raise it where the batches are "
            "taken.",
            {"errors.append(error)": "pass"},
        ),
        Mistake(
            "This exception is a batch: it is given, and not raised. What tells it from one that "
            "the source raises?",
            {"errors.append(error)": "ready.put(error)", TAKES: f"{TAKES}{RAISES}"},
        ),
        Mistake(
            "A batch may be anything, also None. What marks the end must be something else.",
            {"object()": "None"},
        ),
        Mistake(
            "There came more than the source gave: is the mark of the end given, too?",
            {"is not end:\n        yield batch": "is not end:\n        yield batch\n    yield end"},
            test=lambda seen: more(seen) > 0,
        ),
        Mistake(
            "Not everything came. Is the queue empty when the taker stops, and the source at its "
            "end?",
            {TAKES: "while not ready.empty():\n        batch = ready.get()\n"},
            test=lambda seen: more(seen) < 0,
        ),
    ],
    also_right=[futures_of_one_thread, with_a_kind_for_each],
)
