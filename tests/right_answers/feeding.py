"""Right answers to the exercises of chapter 04."""

import collections
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
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


# reseed


@right("reseed")
def by_a_sequence_of_seeds(worker_id):
    info = get_worker_info()
    shared = info.seed - worker_id
    info.dataset.rng = np.random.default_rng([worker_id, shared])


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
