# Generated from book/12_own_ddp.md by `make forms`: edit the manuscript, not this file.

# %% check('first_message', first_message)

def first_message():
    """Which message is sent first? "a": A and B, in the middle of backward.
    "b": C and D, at the end of it. "c": C and D, in the middle. "d": none."""
    return "b"

# %% check('deal', deal)

def deal(nbytes, first_bytes, bucket_bytes):
    """Return the buckets, lists of parameters' numbers, as they are sent."""
    buckets, filling = [], []
    for k in reversed(range(len(nbytes))):
        filling.append(k)
        limit = bucket_bytes if buckets else first_bytes
        if sum(nbytes[j] for j in filling) >= limit:
            buckets.append(filling)
            filling = []
    if filling:
        buckets.append(filling)
    return buckets

# %% check('average_every', average_every)

import torch.distributed as dist


def average_every(model, every):
    """From now on, every `every`-th backward leaves the mean in .grad."""
    counts = {}

    def hook(p):
        """Autograd calls it once in a backward: p's gradient is complete."""
        counts[p] = counts.get(p, 0) + 1
        if counts[p] % every == 0:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)

# %% check('bf16_all_reduce', bf16_all_reduce)

import torch
import torch.distributed as dist


def bf16_all_reduce(x, group=None, async_op=True):
    """Start to sum x over the group, sent as bfloat16; return a handle."""
    wire = x.to(torch.bfloat16)
    work = dist.all_reduce(wire, group=group, async_op=True)

    class Handle:
        def wait(self):
            work.wait()
            x.copy_(wire)

    return Handle()

# %% check('train_uneven', train_uneven)

import torch
import torch.distributed as dist
from torch import nn


def train_uneven(model, batches, learning_rate):
    """Train on all ranks' batches together, until no rank has any."""
    parameters = list(model.parameters())
    for p in parameters:
        dist.broadcast(p.data, src=0)
    mine = iter(batches)
    while True:
        batch, there = next(mine, None), parameters[0].new_zeros(1)
        grads = [torch.zeros_like(p) for p in parameters]
        if batch is not None:
            there += 1
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            grads = torch.autograd.grad(loss, parameters)
        flat = torch.cat([there, *(grad.flatten() for grad in grads)])
        dist.all_reduce(flat)
        if flat[0] == 0:
            return
        sums = flat[1:].split([p.numel() for p in parameters])
        with torch.no_grad():
            for p, total in zip(parameters, sums):
                p -= learning_rate * (total / flat[0]).view(p.shape)

# %% check('own_ddp', own_ddp)

import torch
import torch.distributed as dist
from torch import nn


def own_ddp(model, batches, learning_rate):
    """Train `model` on all ranks together; return each step's loss, as floats.

    model: other weights on every rank; those of rank 0 count. It is trained in
        place.
    batches: pairs of inputs (samples, features) and labels (samples,), the same
        on every rank.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    losses = []
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, src=0)
    for inputs, labels in batches:
        mine = slice(rank, None, world_size)
        loss = nn.functional.cross_entropy(
            model(inputs[mine]), labels[mine], reduction="sum")
        loss = loss / len(labels)  # its part of the mean over the whole batch
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            dist.all_reduce(loss)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter -= learning_rate * parameter.grad
        losses.append(loss.item())
    return losses
