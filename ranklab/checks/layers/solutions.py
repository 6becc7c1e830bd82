# Generated from book/16_layers.md by `make forms`: edit the manuscript, not this file.

# %% check('frozen_stages', frozen_stages)

def frozen_stages():
    """What must be sent: "a", "b", "c" or "d"?"""
    return "c"

# %% check('fewest_owners', fewest_owners)

def fewest_owners(nbytes, limit):
    """The bounds of a cut, each stage with at most `limit` bytes."""
    bounds = [0]
    if max(nbytes) > limit:
        raise ValueError(f"A layer of {max(nbytes)} bytes fits nowhere.")
    for i in range(len(nbytes)):
        if sum(nbytes[bounds[-1] : i + 1]) > limit:
            bounds.append(i)
    return [*bounds, len(nbytes)]

# %% check('shift', Shift)

import torch
import torch.distributed as dist


class Shift(torch.autograd.Function):
    """x of the rank before, in a ring."""

    @staticmethod
    def forward(ctx, x):
        return Shift.pass_on(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return Shift.pass_on(gradient, -1)

    @staticmethod
    def pass_on(x, step):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size == 1:
            return x.clone()
        came = torch.empty_like(x, memory_format=torch.contiguous_format)
        work = dist.isend(x.contiguous(), (rank + step) % world_size)
        dist.recv(came, (rank - step) % world_size)
        work.wait()
        return came

# %% check('clip_stages', clip_stages)

import torch
import torch.distributed as dist


def clip_stages(parameters, shared, max_norm):
    """Clip this rank's gradients by the norm of all; return that norm."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        twice = p is shared and dist.get_rank() > 0
        if p.grad is not None and not twice:
            total += p.grad.double().square().sum()
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm > max_norm:
        for gradient in gradients:
            gradient *= max_norm / norm
    return norm

# %% check('train_chain', train_chain)

import torch
import torch.distributed as dist
from torch import nn


def train_chain(stage, batches, learning_rate):
    """Train this rank's stage of a chain; return the losses, on every rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, labels in batches:
        if rank > 0:
            dimensions = torch.empty(1, dtype=torch.int64)
            dist.recv(dimensions, rank - 1)
            sizes = torch.empty(dimensions.item(), dtype=torch.int64)
            dist.recv(sizes, rank - 1)
            x = torch.empty(sizes.tolist(), dtype=torch.float64)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = stage(x)
        loss = torch.zeros((), dtype=torch.float64)
        stage.zero_grad()
        if rank < world_size - 1:
            dist.send(torch.tensor([y.dim()]), rank + 1)
            dist.send(torch.tensor(y.shape), rank + 1)
            dist.send(y.detach().contiguous(), rank + 1)
            gradient = torch.empty(y.shape, dtype=torch.float64)
            dist.recv(gradient, rank + 1)
            if y.requires_grad:
                y.backward(gradient)
        else:
            loss = nn.functional.cross_entropy(y, labels)
            loss.backward()
            loss = loss.detach()
        if rank > 0:
            dist.send(x.grad.contiguous(), rank - 1)
        with torch.no_grad():
            for p in stage.parameters():
                if p.grad is not None:
                    p -= learning_rate * p.grad
        dist.broadcast(loss, src=world_size - 1)
        losses.append(loss.item())
    return losses
