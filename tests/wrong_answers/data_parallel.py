"""Wrong answers to the exercises on data parallel training: solutions with one mistake each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from wrong_answers import wrong

# With DistributedDataParallel


def _share(batch_size):
    return batch_size // dist.get_world_size()


def _mean_of_all(loss):
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def _rank_0():
    return dist.get_rank() == 0


def _ddp(
    sampler=DistributedSampler,
    share=_share,
    wrap=DistributedDataParallel,
    new_epoch=DistributedSampler.set_epoch,
    mean=_mean_of_all,
    prints=_rank_0,
):
    """Return the solution of `ddp`, with some of its parts replaced, as the tuple of answers."""

    def train_ddp(model, dataset, epochs, batch_size, learning_rate):
        dealer = sampler(dataset)
        loader = DataLoader(dataset, batch_size=share(batch_size), sampler=dealer)
        replica = wrap(model)
        optimizer = torch.optim.SGD(replica.parameters(), lr=learning_rate)
        losses = []
        for epoch in range(epochs):
            new_epoch(dealer, epoch)
            total = torch.zeros((), dtype=torch.float64)
            for inputs, labels in loader:
                loss = nn.functional.cross_entropy(replica(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            loss = mean(total / len(loader))
            losses.append(loss.item())
            if prints():
                print(f"epoch {epoch} | train_loss {loss:.4f}")
        return losses

    return (train_ddp,)


def _wrong_ddp(*says):
    return wrong("ddp", says=says, several=True)


@_wrong_ddp("goes through all samples")
def same_data_on_every_rank():
    def everything(dataset):
        return DistributedSampler(dataset, num_replicas=1, rank=0)

    return _ddp(sampler=everything)


@_wrong_ddp("How does the sampler learn that the next epoch has begun?")
def set_epoch_forgotten():
    return _ddp(new_epoch=lambda dealer, epoch: None)


@_wrong_ddp("Each rank takes a whole batch")
def whole_batch_on_every_rank():
    return _ddp(share=lambda batch_size: batch_size)


@_wrong_ddp("each of them trains alone")
def not_wrapped():
    return _ddp(wrap=lambda model: model)


@_wrong_ddp("must be shuffled")
def not_shuffled():
    return _ddp(sampler=lambda dataset: DistributedSampler(dataset, shuffle=False))


@_wrong_ddp("50 samples", "Some samples are never used")
def last_ones_dropped():
    return _ddp(sampler=lambda dataset: DistributedSampler(dataset, drop_last=True))


@_wrong_ddp("each rank returns a loss of its own")
def loss_of_own_share():
    return _ddp(mean=lambda loss: loss)


@_wrong_ddp("sum of the ranks' losses")
def losses_summed():
    def everybodys_sum(loss):
        dist.all_reduce(loss)
        return loss

    return _ddp(mean=everybodys_sum)


@_wrong_ddp("Every rank prints")
def all_ranks_print():
    return _ddp(prints=lambda: True)


@_wrong_ddp("rank 0", "all_reduce")
def only_rank_0_averages():
    """Gets stuck, or rather its gradients meet the loss of rank 0."""

    def mean_on_rank_0(loss):
        return _mean_of_all(loss) if dist.get_rank() == 0 else loss

    return _ddp(mean=mean_on_rank_0)


# By hand


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
    return _own(steps=_rank_0)


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


@wrong("own_ddp", says=["NoneType", "some parameters without gradient"])
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


@wrong("own_ddp", says=["batches of 8, 3, 8", "all_reduce"])
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


@wrong("own_ddp", says=["1 number is missing"])
def no_losses(model, batches, learning_rate):
    """Trains, and forgets what it was to return."""
    _own()[0](model, batches, learning_rate)
