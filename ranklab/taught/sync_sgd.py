# Generated from book/10_sync_sgd.md by `make forms`: edit the manuscript, not this file.

"""Synchronous SGD: one batch, many ranks: what chapter 10_sync_sgd teaches."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.taught.training import loss_and_gradients, samples_of_step, split


def digits(seed=0):
    """Return (X, y) to train on and (X, y) to test: 1797 handwritten digits.

    X (n, 64), float32: 8 x 8 pixels, 0 to 1. y (n,), int64: the digit. A random
    fifth, drawn with `seed`, is for testing.
    """
    from sklearn.datasets import load_digits  # slow to import: only if wanted

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32)
    return split(X, torch.tensor(y), share=0.2, seed=seed)


class DigitsNet(nn.Module):
    """A small convolutional network for 8 x 8 pixels, seeded."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)  # as before outside
            self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False)
            self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False)
            self.hidden = nn.Linear(16 * 4 * 4, 64, bias=False)
            self.last = nn.Linear(64, 10, bias=False)
        self.to(torch.get_default_device())

    def forward(self, x):
        """x: (batch, 64) pixels. Returns (batch, 10), a number for a digit."""
        x = torch.tanh(self.first(x.view(-1, 1, 8, 8)))
        x = nn.functional.avg_pool2d(torch.tanh(self.second(x)), 2)
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


def shard(n, rank, world_size):
    """Return `rank`'s slice of n samples; two sizes differ by one at most."""
    return slice(n * rank // world_size, n * (rank + 1) // world_size)


@torch.no_grad()
def drift(model, group=None):
    """Return the largest distance of any rank's parameters and buffers from
    rank 0's, a float; inf where a number is not finite."""
    tensors = [*model.parameters(), *model.buffers()]
    mine = torch.cat([tensor.double().flatten() for tensor in tensors])
    first = mine.clone()
    dist.broadcast(first, group_src=0, group=group)
    distance = (mine - first).abs().max()
    distance.nan_to_num_(nan=torch.inf, posinf=torch.inf)  # MAX may lose a nan
    dist.all_reduce(distance, op=dist.ReduceOp.MAX, group=group)
    return distance.item()


@torch.no_grad()
def broadcast_parameters(model, src=0, group=None):
    """Give every rank, in place, the parameters and buffers of rank src."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, group_src=src, group=group)


def average_gradients(model, weight=None, group=None):
    """Replace every gradient by the sum over the ranks of weight * gradient.

    weight: this rank's share m_k / n of the batch, by default 1 / world size.
    A parameter must have a gradient on all ranks or on none.
    """
    weight = 1 / dist.get_world_size(group) if weight is None else weight
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= weight
            dist.all_reduce(parameter.grad, group=group)


def sync_sgd(model, X, y, *, steps, batch_size, learning_rate, momentum=0.9, seed=0, group=None):
    """Train all replicas of a group together; return each whole batch's loss.

    Every rank gives the same X and y, and uses its shard of each batch, which
    has at least one sample. The model of the group's rank 0 is the start.
    """
    me, n = dist.get_rank(group), dist.get_world_size(group)
    broadcast_parameters(model, group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    losses = []
    for step in range(steps):
        batch = samples_of_step(step, len(X), batch_size, seed)
        mine = batch[shard(batch_size, me, n)]
        weight = len(mine) / batch_size
        losses.append(weight * loss_and_gradients(model, X[mine], y[mine]))
        average_gradients(model, weight, group)
        optimizer.step()
    losses = torch.stack(losses)
    dist.all_reduce(losses, group=group)  # a weighted mean as well
    return losses.tolist()


class AllReduce(torch.autograd.Function):
    """The sum of all ranks' tensors; its gradient is that of all gradients."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None  # nothing for the group


class SyncedBatchNorm(nn.BatchNorm1d):
    """Batch normalization over the samples of all ranks, in shards of any size.

    x: (samples, features), float32 or float64, its means not much larger than
    its spread. All ranks call it, forward and backward, the same times.
    """

    group = None  # all ranks

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        parts = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([len(x)])])
        sums, squares, n = self.over_all_ranks(parts).split([x.shape[1], x.shape[1], 1])
        mean, of_squares = sums / n, squares / n
        variance = of_squares - mean * mean
        with torch.no_grad():  # for evaluation, as nn.BatchNorm1d does it
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return x * self.weight + self.bias

    def over_all_ranks(self, parts):
        return AllReduce.apply(parts, self.group)
