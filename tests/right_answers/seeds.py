"""Right answers to the exercise on seeds."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from right_answers import right


def _samples(seed, epoch, n):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    order += order[: -n % dist.get_world_size()]
    return order[dist.get_rank() :: dist.get_world_size()]


@right("begin")
def without_the_sampler(seed, epoch, n, build):
    """The noise has a generator of its own, with seeds far apart."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + dist.get_rank())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
    return model, _samples(seed, epoch, n), torch.randn(12, generator=generator)


@right("begin")
def a_seed_that_is_drawn(seed, epoch, n, build):
    """The seeds of the ranks are drawn from the generator of the run."""
    sampler = DistributedSampler(range(n), shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    torch.manual_seed(seed)
    model = build()
    torch.manual_seed(int(torch.randint(2**62, (dist.get_world_size(),))[dist.get_rank()]))
    return model, tuple(sampler), torch.randn(12)
