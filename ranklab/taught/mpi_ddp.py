# Generated from book/13_own_framework.md by `make forms`: edit the manuscript, not this file.

"""Your own framework: a training with nothing behind it: what chapter 13_own_framework teaches."""

import sys

import numpy as np

from ranklab.framework.over_torch import OverTorch
from ranklab.framework.overlapping import Overlapping
from ranklab.framework.world import (
    Arrays,
    Shares,
    World,
    Wrapped,
    broadcast_optimizer_state,
    end_all,
)
from ranklab.taught.own_framework import DataLoader, Tensor


class OverMPI(Arrays):
    """How ranks talk: NumPy's arrays, over MPI."""

    tensor = Tensor

    def __init__(self, comm=None):
        from mpi4py import MPI  # importing it starts MPI

        self.comm, self.in_place = comm or MPI.COMM_WORLD, MPI.IN_PLACE
        self.rank, self.size = self.comm.rank, self.comm.size

    def add_up(self, array):
        """Replace an array by the sum of all ranks' arrays."""
        self.comm.Allreduce(self.in_place, array)

    def copy(self, array, root):
        """Replace an array by that of rank `root`."""
        self.comm.Bcast(array, root)


def init(comm=None, framework="numpy"):
    """Find the other ranks. Returns this one's number, and its device."""
    World.talk = {"numpy": OverMPI, "torch": OverTorch}[framework](comm)
    World.share = 1, World.talk.size  # until a loader says otherwise
    sys.excepthook = end_all
    return World.talk.rank, World.talk.device


class ShardedLoader(Shares, DataLoader):
    """Of each batch of the whole data, this rank's share."""

    def share(self, indices):
        return indices[World.talk.rank :: World.talk.size]

    def batch(self, indices):
        mine = self.share(indices)
        World.share = len(mine), len(indices)
        return super().batch(mine or indices[:1])


def partition_dataset(dataset, batch_size, device=None, dtype="float32", shuffle=True, seed=0):
    """Share out every batch of a data set: (loader, size of a share)."""
    loader = ShardedLoader(
        dataset, batch_size, shuffle=shuffle, seed=seed, device=device, dtype=dtype
    )
    print(f"partitioned dataset length: {loader.examples()}")
    return loader, len(loader.share(range(batch_size)))


def broadcast_parameters(model, root=0):
    """Give all ranks, in place, the parameters and buffers of one."""
    for array in model.state_dict().values():
        World.talk.copy(array, root)


class EachTensor:
    """One all-reduce for each gradient."""

    def __init__(self, parameters):
        self.parameters = parameters

    def average(self):
        for p in self.parameters:
            if p.grad is None:  # zeros, even where nobody has one:
                p.grad = 0 * p.array  # `Flat` mends that
            p.grad *= World.weight()
            World.talk.add_up(p.grad)


class DistributedOptimizer(Wrapped):
    """An optimizer that steps by the gradient of all ranks' examples."""

    def __init__(self, opt, how=None):
        self.opt, self.averaged = opt, False
        self.params = World.talk.parameters(opt)
        self.exchange = (how or Flat)(self.params)
        broadcast_optimizer_state(opt)

    def synchronize(self):
        """Average the gradients, if that has not been done."""
        if not self.averaged:
            self.exchange.average()
        self.averaged = True

    def step(self):
        self.synchronize()
        self.opt.step()
        self.averaged = False


class OneBuffer:
    """A buffer with room for each gradient, where backward writes it."""

    def __init__(self, parameters):
        self.parameters, sizes = parameters, [p.size for p in parameters]
        n = sum(sizes)
        # Behind the gradients, a number for each: has any rank got it?
        self.buffer = World.talk.zeros(n + len(sizes), parameters[0].dtype)
        self.there = self.buffer[n:]
        self.rooms = [
            self.buffer[end - p.size : end].reshape(p.shape)
            for p, end in zip(parameters, np.cumsum(sizes))
        ]
        for p, room in zip(parameters, self.rooms):
            p.into = room


class Flat(OneBuffer):
    """One all-reduce for all gradients."""

    def put(self):
        """Zeros for a gradient that is missing; then weights for all."""
        for i, (p, room) in enumerate(zip(self.parameters, self.rooms)):
            self.there[i] = p.grad is not None
            if p.grad is not room:  # it is missing, or torch's
                room[...] = 0 if p.grad is None else p.grad
        self.buffer *= World.weight()

    def take(self):
        """Each gradient is its sum; none, where no rank had one."""
        there = self.there.tolist()
        for p, room, anywhere in zip(self.parameters, self.rooms, there):
            p.grad = room if anywhere else None

    def average(self):
        self.put()
        World.talk.add_up(self.buffer)
        self.take()


class Overlapped(Overlapping):
    """Several buffers, each sent as soon as backward has filled it."""

    kind = Flat
