# Generated from book/04_feeding.md by `make forms`: edit the manuscript, not this file.

"""Data loading and GPU utilization: keep the processor busy: what chapter 04_feeding teaches."""

import itertools
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Fetched(Dataset):
    """100 000 examples, each `seconds` long on its way, as over a network.

    An example is (x, y): x float32, `features` times its index; y a class of
    10. A batch is asked for as a whole, and is waited for once.
    """

    def __init__(self, features, seconds):
        self.features, self.seconds = features, seconds

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return self.__getitems__([i])[0]

    def __getitems__(self, indices):
        self.take_time(indices)
        shape = (self.features,)
        return [(torch.full(shape, float(i)), i % 10) for i in indices]

    def take_time(self, indices):
        """Wait for these examples."""
        time.sleep(self.seconds * len(indices))


class Decoded(Fetched):
    """The same examples, each of which takes `seconds` of a core to make."""

    def take_time(self, indices):
        """Compute. A core's seconds count, however many share the core."""
        end = time.thread_time() + self.seconds * len(indices)
        while time.thread_time() < end:
            pass


def loader(dataset, batch_size=None, workers=0, **options):
    """A DataLoader; its workers, if any, are forked from this process."""
    if workers:
        options["multiprocessing_context"] = "fork"
    return DataLoader(dataset, batch_size, num_workers=workers, **options)


def throughput(batches, step, count, warm_up=3, repeats=3):
    """Examples a second that step(x, y) gets through, in each of `repeats`.

    batches: a DataLoader, or whatever gives (x, y). Each repeat is `count`
    batches; the first warm_up batches are in none, as workers start then.
    """
    batches = iter(batches)

    def after(many):
        start, examples = time.perf_counter(), 0
        for x, y in itertools.islice(batches, many):
            step(x, y)
            examples += len(x)
        return examples / (time.perf_counter() - start)

    after(warm_up)
    return [after(count) for _ in range(repeats)]


def predicted(workers, load, step, core_seconds=0.0, cores=1):
    """Batches a second with so many workers.

    load, step: seconds to load a batch, and to train on it. core_seconds: how
    long a core works for a batch; 0: not at all. cores: how many there are.
    """
    if workers == 0:
        return 1 / (load + step)
    limits = [workers / load, 1 / step]
    if core_seconds:
        limits.append(cores / core_seconds)
    return min(limits)
