"""Chapter 11's recipe for unequal shards: DDP's average is the mean over all ranks' samples."""

import pytest
import torch
import torch.distributed as dist
from on_ranks import group_of, started
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranklab.taught import ddp

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def ranks():
    with started() as ranks:
        yield ranks


def model_and_data(n):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (n,), generator=generator)
    model = nn.Linear(5, 3, bias=False).double()
    nn.init.constant_(model.weight, 0.1)
    return model, inputs, labels


def gradient_and_count(members, sizes):
    """What a member's gradient is after the recipe, and how many samples it was told of."""
    group = group_of(*members)
    if dist.get_rank() not in members:
        return None
    place = members.index(dist.get_rank())
    model, inputs, labels = model_and_data(sum(sizes))
    mine = slice(sum(sizes[:place]), sum(sizes[: place + 1]))
    replica = DistributedDataParallel(model, process_group=group)
    losses = nn.functional.cross_entropy(replica(inputs[mine]), labels[mine], reduction="sum")
    return ddp.backward_of_mean(losses, sizes[place], group), model.weight.grad


@pytest.mark.parametrize(
    "members, sizes",
    [((0, 1, 2, 3), (3, 1, 8, 5)), ((0, 1, 2, 3), (4, 0, 1, 0)), ((1, 3), (7, 2)), ((2,), (6,))],
)
def test_it_is_the_gradient_of_the_whole_batch(ranks, members, sizes):
    model, inputs, labels = model_and_data(sum(sizes))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    found = ranks.run(gradient_and_count, members, sizes)
    for count, gradient in (found[r] for r in members):
        assert count == sum(sizes)
        torch.testing.assert_close(gradient, model.weight.grad, rtol=1e-12, atol=1e-14)
