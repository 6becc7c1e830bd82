"""Wrong answers to the exercise on batches of unequal number."""

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong


def _start(model):
    with torch.no_grad():
        for p in model.parameters():
            dist.broadcast(p, src=0)


def _gradients(model, batch, weight):
    model.zero_grad()
    if batch is None:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    else:
        inputs, labels = batch
        (weight * nn.functional.cross_entropy(model(inputs), labels)).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)


def _step(model, learning_rate):
    with torch.no_grad():
        for p in model.parameters():
            p -= learning_rate * p.grad


def _number_of(mine, op):
    number = torch.tensor([mine])
    dist.all_reduce(number, op=op)
    return int(number)


@wrong("train_uneven", says=["stuck", "must go on to take part"])
def only_its_own_batches(model, batches, learning_rate):
    _start(model)
    for batch in batches:
        _gradients(model, batch, 1 / dist.get_world_size())
        _step(model, learning_rate)


@wrong("train_uneven", says=["divided by the world size"])
def divided_by_all(model, batches, learning_rate):
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        batch = batches[step] if step < len(batches) else None
        _gradients(model, batch, 1 / dist.get_world_size())
        _step(model, learning_rate)


@wrong("train_uneven", says=["stops as soon as one rank has no more batches"])
def as_many_as_the_shortest(model, batches, learning_rate):
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MIN)):
        _gradients(model, batches[step], 1 / dist.get_world_size())
        _step(model, learning_rate)


@wrong("train_uneven", says=["The ranks end with different weights"])
def each_from_its_own_start(model, batches, learning_rate):
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        there = _number_of(int(step < len(batches)), dist.ReduceOp.SUM)
        batch = batches[step] if step < len(batches) else None
        _gradients(model, batch, 1 / there)
        _step(model, learning_rate)


@wrong("train_uneven", says=["The ranks end with different weights"])
def no_step_without_a_batch(model, batches, learning_rate):
    """Who is done sends zeros, and stands still."""
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        there = _number_of(int(step < len(batches)), dist.ReduceOp.SUM)
        batch = batches[step] if step < len(batches) else None
        _gradients(model, batch, 1 / there)
        if batch is not None:
            _step(model, learning_rate)


@wrong("train_uneven", says=["One more number can travel with the gradients"])
def the_last_batch_again(model, batches, learning_rate):
    """Fills up with batches that it has had."""
    _start(model)
    if not batches:
        batches = [(torch.zeros(1, 5, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))]
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        _gradients(model, batches[min(step, len(batches) - 1)], 1 / dist.get_world_size())
        _step(model, learning_rate)


@wrong("train_uneven", says=["the mean over all samples"])
def every_sample_counts_the_same(model, batches, learning_rate):
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        batch = batches[step] if step < len(batches) else None
        mine = len(batch[1]) if batch else 0
        _gradients(model, batch, mine / _number_of(mine, dist.ReduceOp.SUM))
        _step(model, learning_rate)


@wrong("train_uneven", says=["The gradients of the step before are in it"])
def gradients_never_dropped(model, batches, learning_rate):
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        there = _number_of(int(step < len(batches)), dist.ReduceOp.SUM)
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None or step >= len(batches) else p.grad
        if step < len(batches):
            inputs, labels = batches[step]
            nn.functional.cross_entropy(model(inputs), labels).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= there
        _step(model, learning_rate)


@wrong("train_uneven", says=["The gradients of the step before are in it"])
def sums_never_dropped(model, batches, learning_rate):
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        there = _number_of(int(step < len(batches)), dist.ReduceOp.SUM)
        if step < len(batches):
            inputs, labels = batches[step]
            nn.functional.cross_entropy(model(inputs), labels).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.data -= learning_rate * p.grad / there


@wrong("train_uneven", says=["NoneType", "A rank without a batch has no gradients"])
def sends_what_it_does_not_have(model, batches, learning_rate):
    _start(model)
    for step in range(_number_of(len(batches), dist.ReduceOp.MAX)):
        there = _number_of(int(step < len(batches)), dist.ReduceOp.SUM)
        model.zero_grad()
        if step < len(batches):
            inputs, labels = batches[step]
            (nn.functional.cross_entropy(model(inputs), labels) / there).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        _step(model, learning_rate)
