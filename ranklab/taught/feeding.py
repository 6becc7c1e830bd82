# Generated from book/04_feeding.md by `make forms`: edit the manuscript, not this file.

"""Keep the processor busy: what chapter 04_feeding teaches."""

import math
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Fetched(Dataset):
    """100 000 examples, each of which takes `seconds` to arrive, as from a disk or a network.

    An example is (x, y): x float32 of `features` numbers, all of them its index; y a class of 10.
    """

    def __init__(self, features, seconds):
        self.features, self.seconds = features, seconds

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        self.take_time()
        return torch.full((self.features,), float(i)), i % 10

    def take_time(self):
        """Wait."""
        time.sleep(self.seconds)


class Decoded(Fetched):
    """The same examples, each of which takes `seconds` of a core, as decoding an image does."""

    def take_time(self):
        """Compute. The core's seconds count, however many processes share the core."""
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass


def loader(dataset, batch_size=None, workers=0, **options):
    """A DataLoader whose workers, if it has any, are forked from this process."""
    if workers:
        options["multiprocessing_context"] = "fork"
    return DataLoader(dataset, batch_size, num_workers=workers, **options)


def throughput(batches, step, seconds=math.inf, warm_up=3):
    """Examples a second that step(x, y) gets through with these batches, measured so long.

    batches: a DataLoader, or whatever gives (x, y). The first ones do not count: workers start.
    """
    start, examples = None, 0
    for number, (x, y) in enumerate(batches):
        step(x, y)
        now = time.perf_counter()
        if number < warm_up:
            start = now
            continue
        examples += len(x)
        if now - start > seconds:
            break
    return examples / (now - start)


def predicted(workers, load, step, core_seconds=0.0, cores=1):
    """Batches a second with so many workers.

    load, step: seconds to load a batch, and to train on it. core_seconds: how many of these,
    together, a core has to work, with `cores` of them. 0: nothing but waiting.
    """
    if workers == 0:
        return 1 / (load + step)
    limits = [workers / load, 1 / step]
    if core_seconds:
        limits.append(cores / core_seconds)
    return min(limits)
