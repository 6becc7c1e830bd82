# Generated from book/10_sync_sgd.md by `make forms`: edit the manuscript, not this file.

# %% check('summed_rate', summed_rate)

def summed_rate():
    """Return "a" (256, 0.1), "b" (256, 0.8), "c" (2048, 0.1), "d" (32, 0.1)."""
    return "b"

# %% check('dealt_to', dealt_to)

def dealt_to(rank, world_size, n, drop_last):
    """The samples of one rank, a list of ints; as many as any other has."""
    rounds = n // world_size if drop_last else -(-n // world_size)
    return [place % n for place in range(rank, rounds * world_size, world_size)]

# %% check('average_shards', average_shards)

import torch
import torch.distributed as dist


def average_shards(model, samples):
    """Replace this rank's gradients by those of the mean over all samples."""
    total = torch.tensor(samples, device=next(model.parameters()).device)
    dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= samples / total.item()
        dist.all_reduce(parameter.grad)

# %% check('same_start', same_start)

import torch.distributed as dist


def same_start(model, src):
    """Give every rank, in place, rank src's parameters and buffers."""
    for tensor in [*model.parameters(), *model.buffers()]:
        values = tensor.detach()
        if dist.get_rank() == src:
            for other in range(dist.get_world_size()):
                if other != src:
                    dist.send(values.contiguous(), other)
        else:
            box = values.new_empty(values.shape)
            dist.recv(box, src)
            values.copy_(box)

# %% check('batch_statistics', batch_statistics)

import torch
import torch.distributed as dist


def batch_statistics(x):
    """Mean and variance of each feature over all ranks' rows: two tensors."""
    total = torch.cat([x.sum(0), x.new_tensor([len(x)])])
    dist.all_reduce(total)
    mean = total[:-1] / total[-1]
    squares = ((x - mean) ** 2).sum(0)
    dist.all_reduce(squares)
    return mean, squares / total[-1]

# %% check('whole_step', whole_step)

import torch
import torch.distributed as dist
from torch import nn


def whole_step(model, velocity, inputs, labels, rate, momentum):
    """Make one step in place on all ranks; return their mean loss, a float."""
    n = labels.new_tensor(len(labels))
    dist.all_reduce(n)
    loss = nn.functional.cross_entropy(
        model(inputs), labels, reduction="sum") / n
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter, v in zip(model.parameters(), velocity):
            dist.all_reduce(parameter.grad)
            v.mul_(momentum).add_(parameter.grad)
            parameter -= rate * v
        dist.all_reduce(loss)
    return loss.item()
