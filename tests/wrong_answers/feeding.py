"""Wrong answers to the exercises of chapter 04."""

import os
import queue
import threading

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from wrong_answers import wrong


class _Stream(IterableDataset):
    def __init__(self, start, stop):
        self.start, self.stop = start, stop


# each_once


@wrong("each_once", says=["0 to 10, 2 workers", "0 came 2 times", "tells the copies apart"])
class EverythingFromAll(_Stream):
    def __iter__(self):
        return iter(range(self.start, self.stop))


@wrong("each_once", says=["0 to 10, 3 workers", "9 never came", "left-over"])
class RoundedDown(_Stream):
    def __iter__(self):
        info = get_worker_info()
        which, of = (info.id, info.num_workers) if info else (0, 1)
        each = (self.stop - self.start) // of
        first = self.start + which * each
        return iter(range(first, first + each))


@wrong("each_once", says=["0 to 10, no worker", "get_worker_info() is None"])
class NeverAlone(_Stream):
    def __iter__(self):
        info, n = get_worker_info(), self.stop - self.start
        first = self.start + n * info.id // info.num_workers
        return iter(range(first, self.start + n * (info.id + 1) // info.num_workers))


@wrong("each_once", says=["0 to 10, 2 workers", "one piece of the stream"])
class EverySecond(_Stream):
    def __iter__(self):
        info = get_worker_info()
        which, of = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(self.start + which, self.stop, of))


@wrong("each_once", says=["5 to 7, 4 workers", "5 never came"])
class FromZero(_Stream):
    def __iter__(self):
        info = get_worker_info()
        which, of = (info.id, info.num_workers) if info else (0, 1)
        n = self.stop - self.start
        return iter(range(n * which // of, n * (which + 1) // of))


@wrong("each_once", says=["0 to 10, 3 workers", "make them even"])
class TheRestToTheLast(_Stream):
    def __iter__(self):
        info = get_worker_info()
        which, of = (info.id, info.num_workers) if info else (0, 1)
        each = -(-(self.stop - self.start) // of)
        first = min(self.start + which * each, self.stop)
        return iter(range(first, min(first + each, self.stop)))


@wrong("each_once", says=["0 to 10, 3 workers"])
class TwoWorkers(_Stream):
    def __iter__(self):
        info = get_worker_info()
        if info is None:
            return iter(range(self.start, self.stop))
        return iter(range(5) if info.id == 0 else range(5, 10))


@wrong("each_once", says=["NameError: name 'first' is not defined", "in __iter__"])
class WithoutItsFirst(_Stream):
    def __iter__(self):
        return iter(range(first, last))  # noqa: F821


@wrong("each_once", says=["iter() returned non-iterator", "A list is no iterator yet"])
class AList(_Stream):
    def __iter__(self):
        return list(range(self.start, self.stop))


@wrong("each_once", says=["a worker was not done", "in __iter__: while", "The share of a worker"])
class WithoutAnEnd(_Stream):
    def __iter__(self):
        while True:
            pass


@wrong("each_once", says=["0 to 10, 2 workers", "`last` of a worker is the `first`"])
class WithItsLast(_Stream):
    def __iter__(self):
        info = get_worker_info()
        which, of = (info.id, info.num_workers) if info else (0, 1)
        n = self.stop - self.start
        first, last = self.start + n * which // of, self.start + n * (which + 1) // of
        return iter(range(first, min(last + 1, self.stop)))


@wrong("each_once", says=["0 to 10, 2 workers", "No worker gave a number"])
class FromLastToFirst(_Stream):
    def __iter__(self):
        return iter(range(self.stop, self.start))


# reseed


@wrong("reseed", says=["Seed must be between 0 and", "takes large seeds, too"])
def with_an_older_generator(worker_id):
    rng = np.random.RandomState(torch.initial_seed())
    get_worker_info().dataset.rng = np.random.default_rng(rng.randint(1000))


@wrong("reseed", says=["a worker was not done", "in with_a_loop: while"])
def with_a_loop(worker_id):
    while True:
        pass


@wrong("reseed", says=["Workers 0 and 1 draw the same", "another one in each worker"])
def with_a_fixed_number(worker_id):
    get_worker_info().dataset.rng = np.random.default_rng(1234)


@wrong("reseed", says=["second epoch draws the numbers of the first", "What differs?"])
def with_the_workers_number(worker_id):
    get_worker_info().dataset.rng = np.random.default_rng(worker_id)


@wrong("reseed", says=["torch.manual_seed differ", "not from the clock"])
def with_nothing(worker_id):
    get_worker_info().dataset.rng = np.random.default_rng()


@wrong("reseed", says=["Workers 0 and 1 draw the same"])
def with_the_base_seed(worker_id):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed() - worker_id)


@wrong("reseed", says=["Workers 0 and 1 draw the same", "that the dataset came with"])
def without_the_dataset(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


# prefetched


@wrong("prefetched", says=["3 batches and then an error", "given first"])
def everything_at_once(batches, depth):
    return iter(list(batches))


@wrong("prefetched", says=["an endless source", "The source may have no end"])
def everything_first(batches, depth):
    taken, failure = [], None
    try:
        for batch in batches:
            taken.append(batch)
    except OSError as error:
        failure = error
    yield from taken
    if failure:
        raise failure


@wrong("prefetched", says=["an endless source", "not far enough", "a thread must go on"])
def nothing_ahead(batches, depth):
    yield from batches


@wrong("prefetched", says=["0, None and False", "something else"])
def none_is_the_end(batches, depth):
    ready = queue.Queue(maxsize=depth)

    def fill():
        for batch in batches:
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


@wrong("prefetched", says=["3 batches and then an error", "Carry it over"])
def the_error_is_lost(batches, depth):
    ready, end = queue.Queue(maxsize=depth), object()

    def fill():
        try:
            for batch in batches:
                ready.put(batch)
        finally:
            ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch


@wrong("prefetched", says=["3 batches and then an error", "Catch it there"])
def the_error_ends_the_thread(batches, depth):
    ready, end = queue.Queue(maxsize=depth), object()

    def fill():
        for batch in batches:
            ready.put(batch)
        ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch


@wrong("prefetched", says=["an exception among the batches", "given, and not raised"])
def exceptions_are_raised(batches, depth):
    ready, end = queue.Queue(maxsize=depth), object()

    def fill():
        try:
            for batch in batches:
                ready.put(batch)
        except Exception as error:
            ready.put(error)
        ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        if isinstance(batch, Exception):
            raise batch
        yield batch


@wrong("prefetched", says=["5 batches, 2 ahead", "with target=f() f runs here"])
def without_a_thread(batches, depth):
    ready, end = queue.Queue(maxsize=depth), object()

    def fill():
        for batch in batches:
            ready.put(batch)
        ready.put(end)

    threading.Thread(target=fill(), daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch


@wrong("prefetched", says=["too far", "maxsize"])
def without_a_bound(batches, depth):
    ready, end, errors = queue.Queue(), object(), []

    def fill():
        try:
            for batch in batches:
                ready.put(batch)
        except OSError as error:
            errors.append(error)
        ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch
    if errors:
        raise errors[0]


@wrong("prefetched", says=["5 batches, 2 ahead", "if nothing marks the end"])
def waits_after_the_end(batches, depth):
    ready = queue.Queue(maxsize=depth)

    def fill():
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


@wrong("prefetched", says=["no batch"])
def the_shown_batches(batches, depth):
    yield from [10, 11, 12, 13, 14]


@wrong("prefetched", says=["5 batches, 2 ahead"])
def ends_the_process(batches, depth):
    yield from batches
    os._exit(1)
