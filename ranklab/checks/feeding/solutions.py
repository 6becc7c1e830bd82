# Generated from book/04_feeding.md by `make forms`: edit the manuscript, not this file.

# %% check('knee_of_both', knee_of_both)

def knee_of_both():
    """Return "a" (2 workers), "b" (6), "c" (9) or "d" (90)."""
    return "b"

# %% check('each_once', EachOnce)

from torch.utils.data import IterableDataset
from torch.utils.data import get_worker_info


class EachOnce(IterableDataset):
    """The numbers from start up to stop, each from one worker only."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __iter__(self):
        info = get_worker_info()
        which, of = (info.id, info.num_workers) if info else (0, 1)
        n = self.stop - self.start
        first = self.start + n * which // of
        last = self.start + n * (which + 1) // of
        return iter(range(first, last))

# %% check('reseed', reseed)

import numpy as np
import torch
from torch.utils.data import get_worker_info


def reseed(worker_id):
    """Give this worker's copy of the dataset a generator `rng` of its own."""
    dataset = get_worker_info().dataset
    dataset.rng = np.random.default_rng(torch.initial_seed())

# %% check('prefetched', prefetched)

import queue
import threading


def prefetched(batches, depth):
    """Give the items of `batches`; a thread takes up to `depth` more."""
    ready, end = queue.Queue(maxsize=depth), object()
    errors = []

    def fill():
        try:
            for batch in batches:
                ready.put(batch)
        except BaseException as error:  # for whoever takes the batches
            errors.append(error)
        ready.put(end)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not end:
        yield batch
    if errors:
        raise errors[0]
