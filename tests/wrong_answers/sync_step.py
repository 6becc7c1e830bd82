"""Wrong answers to two exercises of chapter 10, on batch statistics and on a whole step."""

import os

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong

# batch_statistics ------------------------------------------------------------------------------


def _sums(*tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)


@wrong("batch_statistics", says=["the mean of the ranks' means"])
def mean_of_means(x):
    mean, variance = x.mean(0), x.var(0, unbiased=False)
    _sums(mean, variance)
    n = dist.get_world_size()
    return mean / n, variance / n


@wrong("batch_statistics", says=["numbers near 10000", "without large numbers"])
def difference_of_large_numbers(x):
    total, squares, n = x.sum(0), (x * x).sum(0), x.new_tensor(float(len(x)))
    _sums(total, squares, n)
    mean = total / n
    return mean, squares / n - mean * mean


@wrong("batch_statistics", says=["divided by n - 1"])
def unbiased(x):
    total, n = x.sum(0), x.new_tensor(float(len(x)))
    _sums(total, n)
    mean = total / n
    squares = ((x - mean) ** 2).sum(0)
    _sums(squares)
    return mean, squares / (n - 1)


@wrong("batch_statistics", says=["around each rank's own"])
def around_its_own_mean(x):
    total, n = x.sum(0), x.new_tensor(float(len(x)))
    squares = ((x - x.mean(0)) ** 2).sum(0)
    _sums(total, n, squares)
    return total / n, squares / n


@wrong("batch_statistics", says=["one rank has none", "not a number"])
def weighted_means(x):
    n = x.new_tensor(float(len(x)))
    total = x.mean(0) * n
    _sums(total, n)
    mean = total / n
    squares = ((x - mean) ** 2).sum(0)
    _sums(squares)
    return mean, squares / n


@wrong("batch_statistics", says=["this rank's own rows"])
def of_its_own_rows(x):
    return x.mean(0), x.var(0, unbiased=False)


@wrong("batch_statistics", says=["rank 0 has none"])
def around_the_first_row(x):
    pivot = x[:1].clone() if dist.get_rank() == 0 else x.new_zeros(1, x.shape[1])
    dist.broadcast(pivot, src=0)
    total, squares = (x - pivot).sum(0), ((x - pivot) ** 2).sum(0)
    n = x.new_tensor(float(len(x)))
    _sums(total, squares, n)
    return pivot[0] + total / n, squares / n - (total / n) ** 2


@wrong("batch_statistics", says=["NoneType", "returns nothing"])
def takes_what_is_returned(x):
    total, n = dist.all_reduce(x.sum(0)), dist.all_reduce(torch.tensor(len(x)))
    mean = total / n
    return mean, dist.all_reduce(((x - mean) ** 2).sum(0)) / n


@wrong("batch_statistics", says=["dtype", "of x's own type"])
def left_in_float64(x):
    total, n = x.double().sum(0), torch.tensor(float(len(x)))
    _sums(total, n)
    mean = total / n
    squares = ((x - mean) ** 2).sum(0)
    _sums(squares)
    return mean, squares / n


@wrong("batch_statistics", says=["different numbers of rows"])
def rows_of_one_shape(x):
    everyones = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, x)
    rows = torch.cat(everyones)
    return rows.mean(0), rows.var(0, unbiased=False)


# whole_step ------------------------------------------------------------------------------------


def _step(
    loss_of=lambda out, labels, n: nn.functional.cross_entropy(out, labels, reduction="sum") / n,
    sums=dist.all_reduce,
    after=lambda loss: dist.all_reduce(loss),
    keep=True,
):
    """Return the solution of `whole_step`, with some parts replaced, as the tuple of answers."""

    def whole_step(model, velocity, inputs, labels, rate, momentum):
        n = torch.tensor(len(labels))
        dist.all_reduce(n)
        loss = loss_of(model(inputs), labels, n)
        model.zero_grad()
        loss.backward()
        loss = loss.detach()
        with torch.no_grad():
            for parameter, v in zip(model.parameters(), velocity):
                sums(parameter.grad)
                new = momentum * v + parameter.grad
                if keep:
                    v.copy_(new)
                parameter -= rate * new
            after(loss)
        return loss.item()

    return (whole_step,)


def _wrong_step(*says):
    return wrong("whole_step", says=says, several=True)


@_wrong_step("summed, and not averaged")
def means_summed():
    return _step(loss_of=lambda out, labels, n: nn.functional.cross_entropy(out, labels))


@_wrong_step("shards of 5, 1 and 2", "the plain mean over the ranks")
def plain_mean_of_shards():
    def mean_over_ranks(out, labels, n):
        return nn.functional.cross_entropy(out, labels) / dist.get_world_size()

    return _step(loss_of=mean_over_ranks)


@_wrong_step("one rank without samples", "what is the mean over no samples?")
def mean_of_nothing():
    def weighted(out, labels, n):
        return nn.functional.cross_entropy(out, labels) * len(labels) / n

    return _step(loss_of=weighted)


@_wrong_step("without momentum")
def velocity_not_kept():
    return _step(keep=False)


@_wrong_step("different weights")
def every_rank_for_itself():
    return _step(sums=lambda gradient: None)


@_wrong_step("The weights are right. Look at the losses")
def loss_of_own_part():
    return _step(after=lambda loss: None)


@_wrong_step("in place")
def in_other_memory():
    (right,) = _step()

    def whole_step(model, velocity, inputs, labels, rate, momentum):
        loss = right(model, velocity, inputs, labels, rate, momentum)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        return loss

    return (whole_step,)


@_wrong_step("one rank without samples, 3 ranks", "died")
def gives_up_without_samples():
    (right,) = _step()

    def whole_step(model, velocity, inputs, labels, rate, momentum):
        if len(labels) == 0:
            os._exit(1)
        return right(model, velocity, inputs, labels, rate, momentum)

    return (whole_step,)


@_wrong_step("one rank without samples, 3 ranks", "died", "What can it give that changes nothing?")
def has_nothing_to_say_without_samples():
    (right,) = _step()

    def whole_step(model, velocity, inputs, labels, rate, momentum):
        if len(labels) == 0:
            dist.all_reduce(torch.tensor(0))
            return 0.0
        return right(model, velocity, inputs, labels, rate, momentum)

    return (whole_step,)


@_wrong_step("What is in `.grad` from the step before?")
def gradients_never_dropped():
    (right,) = _step()

    def whole_step(model, velocity, inputs, labels, rate, momentum):
        model.zero_grad = lambda: None
        return right(model, velocity, inputs, labels, rate, momentum)

    return (whole_step,)


@_wrong_step("right to a few digits")
def sent_as_float32():
    def sums(gradient):
        short = gradient.float()
        dist.all_reduce(short)
        gradient.copy_(short)

    return _step(sums=sums)
