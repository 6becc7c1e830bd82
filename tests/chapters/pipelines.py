"""Ranks as the stages of a pipeline, and a small GPT cut into pieces, for chapter 17's tests."""

import itertools
from functools import cache

import on_ranks
import pytest
import torch
import torch.distributed as dist
from torch import nn

from ranklab.taught import pipeline as own
from ranklab.taught.layers import Shape, encode, gpt, language_loss, prose, windows

N, STEPS, BATCH = 4, 50, 12
SHAPE = Shape(context=4, width=8, heads=2, blocks=6)  # 8 layers
CLOSE = {"rtol": 0, "atol": 1e-9}
# The layers of each piece, and how many micro-batches; two chunks a stage where it is interleaved.
CUTS = {
    1: [(8,)],
    2: [(4, 4), (1, 7), (6, 2)],
    3: [(3, 3, 2), (1, 6, 1), (5, 2, 1)],
    4: [(2, 2, 2, 2), (1, 1, 5, 1), (3, 1, 1, 3)],
}
INTERLEAVED = {2: (3, 1, 1, 3), 3: (1, 2, 1, 1, 2, 1), 4: (1,) * 8}
MICRO_BATCHES = {1: 2, 2: 6, 3: 3, 4: 4}
MAKERS = {"gpipe": own.gpipe, "one_f_one_b": own.one_f_one_b, "zero_bubble": own.zero_bubble}


@pytest.fixture(scope="module")
def ranks():
    with on_ranks.started(N) as ranks:
        ranks.run(on_ranks.make_groups)
        yield ranks


def on(ranks, n, function, *args):
    """What function(group, *args) returns on the first n ranks."""
    return on_ranks.on(ranks, range(n), function, *args)


# The whole model, and its pieces


def batch(step):
    return windows(text(), BATCH, SHAPE.context, seed=step)


@cache
def text():
    return encode(prose())


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@cache
def whole(steps=STEPS):
    """Losses and weights of the training in one piece."""
    model, losses = gpt(SHAPE, dtype=torch.float64), []
    optimizer = optimizer_of(model)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        loss = language_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def pieces_of(group, cut):
    """This rank's chunks of the model, whose pieces have so many layers."""
    stage, stages = dist.get_rank(group), dist.get_world_size(group)
    ends = [0, *itertools.accumulate(cut)]
    mine = [gpt(SHAPE, *ends[i : i + 2], dtype=torch.float64) for i in range(len(cut))]
    return nn.ModuleList(mine[stage::stages])


def worker_of(group, chunks, micro_batches, kind=own.SplitWorker):
    like = torch.empty(BATCH // micro_batches, SHAPE.context, SHAPE.width, dtype=torch.float64)
    return kind(chunks, like, language_loss, group)


def in_parts(tensors, micro_batches):
    return [tensor.split(BATCH // micro_batches) for tensor in tensors]


def named(chunks, what=lambda p: p.detach()):
    return {name: what(p) for chunk in chunks for name, p in chunk.named_parameters()}


def gradients(group, schedules, cut, micro_batches, ahead=own.Worker.ahead):
    """What is in .grad after these schedules, one behind the other; the losses; what is left.

    ahead: how many receives are posted at a time.
    """
    chunks = pieces_of(group, cut)
    worker = worker_of(group, chunks, micro_batches)
    worker.ahead = ahead
    losses = []
    for step, schedule in enumerate(schedules):
        program = schedule[dist.get_rank(group)]
        losses.append(own.run(program, worker, *in_parts(batch(step), micro_batches)))
    left = len(worker.kept) + len(worker.box) + len(worker.late)
    return named(chunks, lambda p: p.grad), losses, left
