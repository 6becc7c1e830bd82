"""What the tests of wrappers share: ranks, models, batches, and a wrapper of either kind.

The ranks import it, too, as they import the tests' own functions.
"""

import contextlib

import on_ranks
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ranklab.taught import own_ddp as own

N = 4
BOTH = pytest.mark.parametrize("kind", ["PyTorch's", "own"])
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
CLOSE = {"rtol": 0, "atol": 1e-12}


@contextlib.contextmanager
def started(n=N, timeout=60):
    """Ranks that have made the groups of the first of them."""
    with on_ranks.started(n, timeout) as ranks:
        ranks.run(on_ranks.make_groups)
        yield ranks


def wrap(kind, module, group=None, unused=True, **options):
    """Wrap in PyTorch's wrapper or in the book's, with small buckets, so that there are several.

    unused: may parameters be unused? The book's wrapper does not ask.
    """
    if kind == "own":
        return own.OwnDDP(module, group, **({"bucket_bytes": 1500, "first_bytes": 300} | options))
    options = {"bucket_cap_mb": 0.0015, "find_unused_parameters": unused} | options
    return DistributedDataParallel(module, process_group=group, **options)


def batch(step, r):
    """Rank r's batch of a step."""
    generator = torch.Generator().manual_seed(1000 * step + r)
    return torch.randn(5, 8, dtype=torch.float64, generator=generator)


def my_batch(step):
    return batch(step, dist.get_rank())


def weights(module):
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def loss_of(model, x):
    return model(x).square().mean()


def gradients_of_all(model, members, step=0, loss_of=loss_of):
    """Leave in `model` the mean of these ranks' gradients, computed here alone."""
    for r in members:
        (loss_of(model, batch(step, r)) / len(members)).backward()


# Models


class Two(nn.Module):
    """Two layers, the second of which is used only if wanted, and one that never is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.always, self.wanted = nn.Linear(8, 8), nn.Linear(8, 8)
        self.never = nn.Linear(2, 2)
        self.double()

    def forward(self, x, wanted=True):
        x = torch.tanh(self.always(x))
        return self.wanted(x) if wanted else x


class Nested(nn.Module):
    """Takes and returns containers."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 8)

    def forward(self, x, *, scale):
        return {"out": [self.f(x) * scale["by"], None], "said": "as it is"}


class Cast(nn.Module):
    def forward(self, x):
        return x.float()


class Recomputed(nn.Module):
    """A layer whose inside is computed again in backward."""

    def __init__(self, use_reentrant=False):
        super().__init__()
        self.f, self.use_reentrant = nn.Linear(8, 8), use_reentrant

    def forward(self, x):
        inside = lambda x: torch.tanh(self.f(x))  # noqa: E731
        return checkpoint(inside, x, use_reentrant=self.use_reentrant)


def two_types():
    model = nn.Sequential(nn.Linear(8, 8), Cast(), nn.Linear(8, 2)).double()
    model[2].float()
    return model


def in_channels_last():
    model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.Conv2d(4, 2, 1)).double()
    return model.to(memory_format=torch.channels_last)


MODELS = {
    "nested": lambda: Nested().double(),
    "channels last": in_channels_last,
    "two types": two_types,
    "one number": lambda: nn.Linear(8, 1, bias=False).double(),
    "checkpointed": lambda: nn.Sequential(nn.Linear(8, 8), Recomputed(), nn.Linear(8, 2)).double(),
}


def loss_of_nested(model, x):
    found = model(x, scale={"by": 3.0})
    assert found["said"] == "as it is"
    return found["out"][0].square().mean()


def loss_of_images(model, x):
    return model(x.view(-1, 2, 2, 2).to(memory_format=torch.channels_last)).square().mean()


LOSSES = {"nested": loss_of_nested, "channels last": loss_of_images}
