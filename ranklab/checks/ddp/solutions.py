# Generated from book/11_ddp.md by `make forms`: edit the manuscript, not this file.

# %% check('always_quiet', always_quiet)

def always_quiet():
    """Return "a" (an error), "b" (they differ), "c" (averaged) or "d"."""
    return "b"

# %% check('ddp', train_ddp)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data import DistributedSampler


def train_ddp(model, dataset, epochs, batch_size, learning_rate):
    """Train on all ranks together; return the mean loss of each epoch.

    model: other weights on every rank; those of rank 0 count. It is trained in
    place. dataset: pairs of an input and its label. batch_size: samples a step,
    of all ranks together. Losses are floats.
    """
    sampler, share = None, batch_size
    sampler = DistributedSampler(dataset)
    share = batch_size // dist.get_world_size()
    loader = DataLoader(dataset, batch_size=share, sampler=sampler)
    replica = model
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=learning_rate)
    losses, device = [], next(model.parameters()).device
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        # Losses, samples; on the model's device, for NCCL sends from there.
        total = torch.zeros(2, dtype=torch.float64, device=device)
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            loss = nn.functional.cross_entropy(replica(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total[0] += len(labels) * loss.item()
            total[1] += len(labels)
        dist.all_reduce(total)
        mean = total[0] / total[1]
        losses.append(mean.item())
        line = f"epoch {epoch} | train_loss {mean:.4f}"
        if dist.get_rank() == 0:
            print(line)
    return losses

# %% check('accumulated', accumulated)

from contextlib import nullcontext
from torch import nn


def accumulated(replica, parts):
    """Leave in .grad the gradients of the mean loss of all ranks' parts."""
    n = sum(len(labels) for _, labels in parts)
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        last = i == len(parts) - 1
        with nullcontext() if last else replica.no_sync():
            outputs = replica(inputs)
            loss = nn.functional.cross_entropy(outputs, labels, reduction="sum")
            (loss / n).backward()

# %% check('begin', begin)

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def begin(seed, epoch, n, build):
    """Return (model, this rank's samples, twelve numbers of noise)."""
    torch.manual_seed(seed)
    model = build()
    sampler = DistributedSampler(range(n))
    sampler = DistributedSampler(range(n), seed=seed)
    sampler.set_epoch(epoch)
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    return model, list(sampler), torch.randn(12)
