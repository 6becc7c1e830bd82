"""Wrong answers to the exercise on parts that add up."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong


def _sum_of(replica, inputs, labels):
    return nn.functional.cross_entropy(replica(inputs), labels, reduction="sum")


@wrong("accumulated", says=["3 all-reduces", "the forward pass has to be inside of `no_sync`"])
def only_backward_is_quiet(replica, parts):
    n = sum(len(labels) for _, labels in parts)
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        loss = _sum_of(replica, inputs, labels) / n
        with nullcontext() if i == len(parts) - 1 else replica.no_sync():
            loss.backward()


@wrong("accumulated", says=["the last part has to communicate"])
def all_parts_are_quiet(replica, parts):
    n = sum(len(labels) for _, labels in parts)
    replica.zero_grad()
    with replica.no_sync():
        for inputs, labels in parts:
            (_sum_of(replica, inputs, labels) / n).backward()


@wrong("accumulated", says=["counts more than one of 2"])
def mean_of_means(replica, parts):
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        with nullcontext() if i == len(parts) - 1 else replica.no_sync():
            loss = nn.functional.cross_entropy(replica(inputs), labels)
            (loss / len(parts)).backward()


@wrong("accumulated", says=["sum of the parts' means"])
def not_divided(replica, parts):
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        with nullcontext() if i == len(parts) - 1 else replica.no_sync():
            nn.functional.cross_entropy(replica(inputs), labels).backward()


@wrong("accumulated", says=["that were there before"])
def old_gradients_count(replica, parts):
    n = sum(len(labels) for _, labels in parts)
    for i, (inputs, labels) in enumerate(parts):
        with nullcontext() if i == len(parts) - 1 else replica.no_sync():
            (_sum_of(replica, inputs, labels) / n).backward()


@wrong("accumulated", says=["3 all-reduces", "Leave it to DDP"])
def averages_by_hand(replica, parts):
    n = sum(len(labels) for _, labels in parts)
    replica.zero_grad()
    with replica.no_sync():
        for inputs, labels in parts:
            (_sum_of(replica, inputs, labels) / n).backward()
    for parameter in replica.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("accumulated", says=["DDP divides by it already"])
def divided_by_the_ranks_too(replica, parts):
    n = sum(len(labels) for _, labels in parts) * dist.get_world_size()
    replica.zero_grad()
    for i, (inputs, labels) in enumerate(parts):
        with nullcontext() if i == len(parts) - 1 else replica.no_sync():
            (_sum_of(replica, inputs, labels) / n).backward()


@wrong("accumulated", says=["8 samples were in memory at once", "largest part has 3"])
def all_parts_in_one(replica, parts):
    replica.zero_grad()
    inputs, labels = (torch.cat(tensors) for tensors in zip(*parts))
    nn.functional.cross_entropy(replica(inputs), labels).backward()


@wrong("accumulated", says=["8 samples were in memory at once", "and then the next part"])
def one_backward_for_all(replica, parts):
    replica.zero_grad()
    total, n = 0, sum(len(labels) for _, labels in parts)
    for i, (inputs, labels) in enumerate(parts):
        with nullcontext() if i == len(parts) - 1 else replica.no_sync():
            total = total + _sum_of(replica, inputs, labels)
    (total / n).backward()
