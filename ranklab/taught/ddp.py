# Generated from book/11_ddp.md by `make forms`: edit the manuscript, not this file.

"""DistributedDataParallel (DDP): the line that everybody writes: what chapter 11_ddp teaches."""

import torch
import torch.distributed as dist


def backward_of_mean(loss_sum, count, group=None):
    """Backward so that DDP's average is the gradient of the mean of all ranks.

    loss_sum: the sum of this rank's losses. count: how many they are, which may
    be 0 on some ranks. Returns the number of all ranks together.
    """
    n_total = torch.tensor(count, device=loss_sum.device)
    dist.all_reduce(n_total, group=group)
    (loss_sum * dist.get_world_size(group) / n_total).backward()
    return n_total.item()
