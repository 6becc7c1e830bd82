"""Right answers to the exercises of chapter 04."""

import collections
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from right_answers import right

# each_once


@right("each_once")
class LongerPartsFirst(IterableDataset):
    def __init__(self, start, stop):
        self.numbers = np.arange(start, stop)

    def __iter__(self):
        info = get_worker_info()
        if info is None:
            yield from self.numbers
        else:
            yield from np.array_split(self.numbers, info.num_workers)[info.id]


@right("each_once")
class OneByOne(IterableDataset):
    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __iter__(self):
        info = get_worker_info()
        me, of = (info.id, info.num_workers) if info else (0, 1)
        total = self.stop - self.start
        return (torch.tensor(self.start + i) for i in range(total) if i * of // total == me)


# reseed


@right("reseed")
def by_a_sequence_of_seeds(worker_id):
    info = get_worker_info()
    shared = info.seed - worker_id
    info.dataset.rng = np.random.default_rng([worker_id, shared])


@right("reseed")
def by_a_number_that_torch_draws(worker_id):
    dataset = get_worker_info().dataset
    dataset.rng = np.random.Generator(np.random.MT19937(torch.randint(2**62, ()).item()))


# prefetched


@right("prefetched")
def futures_of_one_thread(batches, depth):
    source, end = iter(batches), object()
    pool = ThreadPoolExecutor(1)
    ahead = collections.deque(pool.submit(next, source, end) for _ in range(depth))
    while (batch := ahead.popleft().result()) is not end:
        ahead.append(pool.submit(next, source, end))
        yield batch


@right("prefetched")
def a_list_and_a_condition(batches, depth):
    ready, changed = [], threading.Condition()

    def put(kind, what=None):
        with changed:
            changed.wait_for(lambda: len(ready) < depth)
            ready.append((kind, what))
            changed.notify_all()

    def fill():
        try:
            for batch in batches:
                put("batch", batch)
            put("end")
        except Exception as error:
            put("error", error)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        with changed:
            changed.wait_for(lambda: ready)
            kind, what = ready.pop(0)
            changed.notify_all()
        if kind == "error":
            raise what
        if kind == "end":
            return
        yield what
