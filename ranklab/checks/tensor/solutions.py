# Generated from book/18_tensor.md by `make forms`: edit the manuscript, not this file.

# %% check('sums_in_a_step', sums_in_a_step)

def sums_in_a_step():
    return "D"

# %% check('summed_branches', summed_branches)

import torch
import torch.distributed as dist


def summed_branches(branch, x):
    """Return the sum over the ranks of branch(x), on every rank."""

    class F(torch.autograd.Function):
        """Where x goes into the branches."""

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            total = gradient.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total

    class G(torch.autograd.Function):
        """Where what the branches have computed comes together."""

        @staticmethod
        def forward(ctx, y):
            total = y.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return G.apply(branch(F.apply(x)))

# %% check('gated_mlp', gated_mlp)

from torch import nn
from ranklab.taught.tensor import copied
from ranklab.taught.tensor import summed


def gated_mlp(x, gate, up, down, bias):
    """down @ (silu(gate @ x) * (up @ x)) + bias, hidden features dealt out."""
    x = copied(x)
    hidden = nn.functional.silu(x @ gate.T) * (x @ up.T)
    return summed(hidden @ down.T) + bias

# %% check('smooth_cross_entropy', smooth_cross_entropy)

import torch
import torch.distributed as dist
from ranklab.taught.tensor import summed


def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
    """Mean cross-entropy, labels smoothed; logits' columns are dealt out."""
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    shifted = logits - largest[:, None]
    mine = (first <= targets) & (targets < first + logits.shape[1])
    column = (targets - first).where(mine, 0)
    at_target = shifted.gather(1, column[:, None])[:, 0].where(mine, 0)
    sums = torch.stack([shifted.exp().sum(-1), at_target, shifted.sum(-1)])
    total, of_target, of_all = summed(sums)
    smooth = (1 - epsilon) * of_target + epsilon * of_all / vocabulary
    return (total.log() - smooth).mean()

# %% check('clip_together', clip_together)

import torch
import torch.distributed as dist


def clip_together(split, shared, max_norm):
    """Clip the gradients of a split model; return the norm from before."""
    device = next((p.device for p in [*split, *shared]), "cpu")
    squares = torch.zeros(2, dtype=torch.float64, device=device)
    for k, parameters in enumerate((split, shared)):
        for p in parameters:
            if p.grad is not None:
                squares[k] += p.grad.double().square().sum()
    dist.all_reduce(squares[:1])
    norm = squares.sum().sqrt().item()
    for p in [*split, *shared]:
        if p.grad is not None and max_norm < norm < float("inf"):
            p.grad *= max_norm / norm
    return norm
