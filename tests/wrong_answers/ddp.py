"""Wrong answers to the exercise on DistributedDataParallel: the solution, with one mistake each."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from wrong_answers import wrong


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
    average=lambda model: None,
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
                average(model)
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


@_wrong_ddp("a rank takes a whole batch")
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


@_wrong_ddp("Rank 1 printed 2 lines", "One rank is enough.")
def all_ranks_print():
    return _ddp(prints=lambda: True)


@_wrong_ddp("Rank 0 died", "all_reduce", "the same collective calls")
def only_rank_0_averages():
    """One rank calls a collective that the others do not call."""

    def mean_on_rank_0(loss):
        return _mean_of_all(loss) if dist.get_rank() == 0 else loss

    return _ddp(mean=mean_on_rank_0)


@_wrong_ddp("start with the weights of rank 0", "The loop calls `replica`")
def wrapped_under_another_name():
    def wraps_and_goes_on_with_the_bare_one(model):
        DistributedDataParallel(model)
        return model

    return _ddp(wrap=wraps_and_goes_on_with_the_bare_one)


@_wrong_ddp("DDP has averaged the gradients")
def gradients_summed_again():
    def everybodys_sum(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return _ddp(average=everybodys_sum)


@_wrong_ddp("Which collective gives its result to all?")
def mean_on_rank_0_alone():
    def reduced(loss):
        dist.reduce(loss, 0)
        return loss / dist.get_world_size()

    return _ddp(mean=reduced)


@_wrong_ddp("NoneType", "returns nothing")
def takes_what_is_returned():
    return _ddp(mean=lambda loss: dist.all_reduce(loss) / dist.get_world_size())
