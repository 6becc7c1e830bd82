# Generated from book/11_ddp.md by `make forms`: edit the manuscript, not this file.

# %% check('always_quiet', always_quiet)

def always_quiet():
    """Return "a" (an error), "b" (replicas differ), "c" (averaged in step) or "d" (they wait)."""
    return "b"

# %% check('ddp', train_ddp)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data import DistributedSampler


def train_ddp(model, dataset, epochs, batch_size, learning_rate):
    """Train `model` on all ranks together; return the mean loss of each epoch, as floats.

    model: other weights on every rank; those of rank 0 count. It is trained in place.
    dataset: pairs of an input and its label. batch_size: samples a step, of all ranks together.
    """
    sampler, share = None, batch_size
    sampler = DistributedSampler(dataset)
    share = batch_size // dist.get_world_size()
    loader = DataLoader(dataset, batch_size=share, sampler=sampler)
    replica = model
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=learning_rate)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), dtype=torch.float64)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(replica(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = total / len(loader)
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        losses.append(mean.item())
        line = f"epoch {epoch} | train_loss {mean:.4f}"
        if dist.get_rank() == 0:
            print(line)
    return losses

# %% check('accumulated', accumulated)

from contextlib import nullcontext
from torch import nn


def accumulated(replica, parts):
    """Leave in .grad the gradients of the mean loss over all parts of all ranks."""
    n = sum(len(labels) for _, labels in parts)
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        last = i == len(parts) - 1
        with nullcontext() if last else replica.no_sync():
            total = nn.functional.cross_entropy(replica(inputs), labels, reduction="sum")
            (total / n).backward()

# %% check('begin', begin)

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def begin(seed, epoch, n, build):
    """Return (model, the numbers of this rank's samples, twelve numbers of noise)."""
    torch.manual_seed(seed)
    model = build()
    sampler = DistributedSampler(range(n))
    sampler = DistributedSampler(range(n), seed=seed)
    sampler.set_epoch(epoch)
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    return model, list(sampler), torch.randn(12)

# %% check('save_whole', save_whole)

import os


def save_whole(path, data):
    """Make `data` the content of the file `path`, all of it or nothing."""
    draft = f"{path}.draft"
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)

# %% check('dealer', Dealer)

import torch


class Dealer:
    def __init__(self, n, seed, rank, world_size):
        self.n, self.seed, self.rank, self.world_size = n, seed, rank, world_size
        self.epoch, self.dealt = 0, 0

    def next(self, batch):
        """This rank's samples of the next batch, which has `batch` samples on all ranks."""
        if self.dealt + batch > self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n, generator=generator).tolist()
        whole = order[self.dealt : self.dealt + batch]
        self.dealt += batch
        return whole[self.rank :: self.world_size]

    def state(self):
        """What another dealer needs to know to go on: a dict of numbers."""
        return {"epoch": self.epoch, "dealt": self.dealt}

    def resume(self, state):
        """Go on from there."""
        self.epoch, self.dealt = state["epoch"], state["dealt"]
