"""Wrong answers to data parallel training by hand: the solution, with one mistake each."""

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong


def _from_rank_0(model):
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, src=0)


def _dealt(rows):
    return rows[dist.get_rank() :: dist.get_world_size()]


def _part_of_mean(outputs, labels, whole):
    return nn.functional.cross_entropy(outputs, labels, reduction="sum") / whole


def _own(start=_from_rank_0, share=_dealt, loss_of=_part_of_mean, sums=dist.all_reduce, steps=None):
    """Return the solution of `own_ddp`, with some parts replaced, as the tuple of answers."""

    def own_ddp(model, batches, learning_rate):
        start(model)
        losses = []
        for inputs, labels in batches:
            loss = loss_of(model(share(inputs)), share(labels), len(labels))
            model.zero_grad()
            loss.backward()
            loss = loss.detach()
            sums(loss)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        sums(parameter.grad)
                        if steps is None or steps():
                            parameter -= learning_rate * parameter.grad
            losses.append(loss.item())
        return losses

    return (own_ddp,)


def _wrong_own(*says):
    return wrong("own_ddp", says=says, several=True)


def _mean_of_share(outputs, labels, whole):
    return nn.functional.cross_entropy(outputs, labels)


def _mean_over_ranks(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


@_wrong_own("each from its own weights", "Who tells them the start?")
def no_broadcast():
    return _own(start=lambda model: None)


@_wrong_own("world size times too long", "added up")
def summed_not_averaged():
    return _own(loss_of=_mean_of_share)


@_wrong_own("the mean of the ranks' means")
def plain_mean_over_unequal_shares():
    return _own(loss_of=_mean_of_share, sums=_mean_over_ranks)


@_wrong_own("The mean over no samples is nan")
def mean_over_no_samples():
    def weighted(outputs, labels, whole):
        loss = nn.functional.cross_entropy(outputs, labels)
        return loss * len(labels) / whole

    return _own(loss_of=weighted)


@_wrong_own("computes on the whole batch")
def whole_batch_everywhere():
    return _own(share=lambda rows: rows, sums=_mean_over_ranks)


@_wrong_own("each sample of a batch must be computed on once")
def shares_rounded_down():
    def rounded_down(rows):
        many = len(rows) // dist.get_world_size()
        return rows[dist.get_rank() * many :][:many]

    return _own(share=rounded_down)


@_wrong_own("the other ranks stand still")
def only_rank_0_steps():
    return _own(steps=lambda: dist.get_rank() == 0)


@_wrong_own("another rank's weights")
def start_of_the_last_rank():
    def from_the_last(model):
        with torch.no_grad():
            for parameter in model.parameters():
                dist.broadcast(parameter, src=dist.get_world_size() - 1)

    return _own(start=from_the_last)


@_wrong_own("without gradient", "parts of the model, too")
def start_of_trained_parameters_only():
    def without_frozen(model):
        for parameter in model.parameters():
            if parameter.requires_grad:
                dist.broadcast(parameter.detach(), src=0)

    return _own(start=without_frozen)


@wrong("own_ddp", says=["NoneType", "Some parameters have no gradient"])
def expects_gradients(model, batches, learning_rate):
    """Ends with an error where a parameter is not trained."""
    _from_rank_0(model)
    losses = []
    for inputs, labels in batches:
        loss = _part_of_mean(model(_dealt(inputs)), _dealt(labels), len(labels))
        model.zero_grad()
        loss.backward()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item())
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= learning_rate * parameter.grad
    return losses


@_wrong_own("each rank returns a loss of its own")
def loss_of_own_part():
    def gradients_only(tensor):
        if tensor.dim():
            dist.all_reduce(tensor)

    return _own(sums=gradients_only)


@wrong("own_ddp", says=["batches of 8, 3 and 8", "all_reduce", "A rank without samples"])
def sits_out_without_samples(model, batches, learning_rate):
    """Gets stuck where a rank has no samples: it takes part in no collective of that step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _from_rank_0(model)
    losses = []
    for inputs, labels in batches:
        if rank >= len(labels):
            continue
        loss = nn.functional.cross_entropy(
            model(inputs[rank::world_size]), labels[rank::world_size], reduction="sum"
        )
        model.zero_grad()
        (loss / len(labels)).backward()
        loss = loss.detach() / len(labels)
        dist.all_reduce(loss)
        losses.append(loss.item())
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.data -= learning_rate * parameter.grad
    return losses


@wrong("own_ddp", says=["a list of 3 losses, and returned nothing"])
def no_losses(model, batches, learning_rate):
    """Trains, and forgets what it was to return."""
    _own()[0](model, batches, learning_rate)


@_wrong_own("differ in their last bits", "in the same order")
def everybody_adds_in_an_order_of_its_own():
    def sums(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        of_all = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(of_all, tensor)
        tensor.zero_()
        for k in range(world_size):
            tensor += of_all[(rank + k) % world_size]

    return _own(sums=sums)


@_wrong_own("batches of 8, 3 and 8", "rank 3", "if an empty one")
def chunks():
    """`chunk` gives fewer pieces than it is asked for, if there are fewer samples."""
    return _own(share=lambda rows: rows.chunk(dist.get_world_size())[dist.get_rank()])


def _adding_up(reduced):
    """Return the solution without zero_grad; reduced(gradient): what is made of it, by a step."""

    def own_ddp(model, batches, learning_rate):
        _from_rank_0(model)
        losses = []
        for inputs, labels in batches:
            loss = _part_of_mean(model(_dealt(inputs)), _dealt(labels), len(labels))
            loss.backward()
            loss = loss.detach()
            dist.all_reduce(loss)
            losses.append(loss.item())
            with torch.no_grad():
                for parameter in model.parameters():
                    gradient = reduced(parameter.grad)
                    dist.all_reduce(gradient)
                    parameter -= learning_rate * gradient
        return losses

    return (own_ddp,)


@_wrong_own("12, 12 and 12", "the gradients of the first are in it")
def without_zero_grad():
    return _adding_up(lambda gradient: gradient)


@_wrong_own("12, 12 and 12", "the gradients of the first are in it")
def without_zero_grad_and_with_copies():
    return _adding_up(torch.clone)


@wrong("own_ddp", says=["leaf", "under `torch.no_grad()`"])
def writes_while_autograd_records(model, batches, learning_rate):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    for inputs, labels in batches:
        loss = _part_of_mean(model(_dealt(inputs)), _dealt(labels), len(labels))
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= learning_rate * parameter.grad


@wrong("own_ddp", says=["NoneType", "Before the first `backward`"])
def zeroes_what_is_not_there_yet(model, batches, learning_rate):
    _from_rank_0(model)
    for inputs, labels in batches:
        loss = _part_of_mean(model(_dealt(inputs)), _dealt(labels), len(labels))
        for parameter in model.parameters():
            parameter.grad.zero_()
        loss.backward()


@wrong("own_ddp", says=["batches of 8, 3 and 8", "NoneType", "the others wait for its zeros"])
def no_backward_without_samples(model, batches, learning_rate):
    _from_rank_0(model)
    losses = []
    for inputs, labels in batches:
        loss = _part_of_mean(model(_dealt(inputs)), _dealt(labels), len(labels))
        model.zero_grad()
        if len(_dealt(labels)):
            loss.backward()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                gradient = 1.0 * parameter.grad
                dist.all_reduce(gradient)
                parameter -= learning_rate * gradient
    return losses


@wrong("own_ddp", says=["A loss should be a float", "`.item()`"])
def losses_as_tensors(model, batches, learning_rate):
    return [torch.tensor(loss) for loss in _own()[0](model, batches, learning_rate)]


@wrong("own_ddp", says=["NoneType", "returns nothing"])
def takes_what_is_returned(model, batches, learning_rate):
    _from_rank_0(model)
    losses = []
    for inputs, labels in batches:
        loss = _part_of_mean(model(_dealt(inputs)), _dealt(labels), len(labels))
        losses.append(dist.all_reduce(loss.detach()).item())
    return losses
