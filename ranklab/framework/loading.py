"""Data: in which order examples come, and batches of them."""

import numpy as np


class RandomSampler:
    """Every index below n once, in an order that is another one in each epoch."""

    def __init__(self, n, seed=0):
        self.n, self.seed, self.epoch = n, seed, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.n)
        self.epoch += 1
        return iter(order.tolist())


class Batches:
    """Batches of a data set; `tensor` makes of an array what a batch holds."""

    tensor = staticmethod(np.asarray)

    def __init__(
        self,
        dataset,
        batch_size=1,
        sampler=None,
        shuffle=False,
        seed=0,
        device=None,
        dtype="float32",
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size should be a positive integer, but got {batch_size}")
        if shuffle and sampler is not None:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if sampler is None:
            n = len(dataset)
            sampler = RandomSampler(n, seed) if shuffle else range(n)
        self.dataset, self.batch_size, self.sampler = dataset, batch_size, sampler
        self.device, self.dtype = device, dtype

    def __len__(self):
        return -(-len(self.sampler) // self.batch_size)

    def __iter__(self):
        indices = list(self.sampler)
        for first in range(0, len(indices), self.batch_size):
            yield self.batch(indices[first : first + self.batch_size])

    def batch(self, indices):
        """X (n, ...), of type `dtype`, and y (n,), whole numbers: the examples of these indices."""
        xs, ys = zip(*(self.dataset[i] for i in indices))
        X, y = np.stack(xs).astype(self.dtype, copy=False), np.asarray(ys)
        return self.tensor(X), self.tensor(y)
