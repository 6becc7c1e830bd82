"""Wrong answers to the exercise on seeds."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from wrong_answers import wrong


def _samples(n, seed, epoch):
    sampler = DistributedSampler(range(n), seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@wrong("begin", says=["draw the same noise", "must depend on the rank"])
def one_seed_for_all(seed, epoch, n, build):
    torch.manual_seed(seed)
    return build(), _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["different weights", "must not depend on the rank"])
def own_weights(seed, epoch, n, build):
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    return build(), _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["share it", "another one for every pair"])
def seed_plus_rank(seed, epoch, n, build):
    torch.manual_seed(seed)
    model = build()
    torch.manual_seed(seed + dist.get_rank())
    return model, _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["Rank 1's samples", "shuffle the same deck"])
def own_deck(seed, epoch, n, build):
    torch.manual_seed(seed)
    model = build()
    own = seed * dist.get_world_size() + dist.get_rank()
    torch.manual_seed(own)
    return model, _samples(n, own, epoch), torch.randn(12)


@wrong("begin", says=["something else", "before a seed is set"])
def weights_not_seeded(seed, epoch, n, build):
    model = build()
    for weights in model.parameters():
        dist.broadcast(weights.detach(), src=0)
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    return model, _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["two runs share it", "another one for every pair"])
def ranks_far_apart(seed, epoch, n, build):
    """Seed 0 on rank 1 is seed 4 on rank 0."""
    torch.manual_seed(seed)
    model = build()
    torch.manual_seed(seed + dist.get_world_size() * dist.get_rank())
    return model, _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["the same noise with seed 0 and with 1", "seed of the run"])
def seeded_by_the_rank_alone(seed, epoch, n, build):
    torch.manual_seed(seed)
    model = build()
    torch.manual_seed(dist.get_rank())
    return model, _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["rank 0 has other noise", "Who has to know of the epoch?"])
def noise_of_the_epoch(seed, epoch, n, build):
    torch.manual_seed(seed)
    model = build()
    torch.manual_seed(1000 * epoch + seed * dist.get_world_size() + dist.get_rank())
    return model, _samples(n, seed, epoch), torch.randn(12)


@wrong("begin", says=["rank 0 has other weights", "Who has to know of the epoch?"])
def weights_of_the_epoch(seed, epoch, n, build):
    torch.manual_seed(seed + 1000 * epoch)
    model = build()
    torch.manual_seed(seed * dist.get_world_size() + dist.get_rank())
    return model, _samples(n, seed, epoch), torch.randn(12)
