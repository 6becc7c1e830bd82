"""What the tests of chapter 18's split layers share: ranks, groups, shapes, and comparisons.

The ranks import it, too, as they import the tests' own functions.
"""

import pytest
import torch

from ranklab.taught import layers as whole
from ranklab.taught import tensor as own

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
FIRST = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
GROUPS = [*FIRST, (1, 3), (1, 2, 3)]
EVEN = whole.Shape(vocabulary=96, context=12, width=12, heads=4, blocks=2)
UNEVEN = whole.Shape(vocabulary=97, context=12, width=10, heads=5, blocks=2)  # 40 hidden features

of_groups = pytest.mark.parametrize("members", GROUPS, ids=str)
of_shapes = pytest.mark.parametrize("shape", [EVEN, UNEVEN], ids=["even", "uneven"])
both_ways = pytest.mark.parametrize("sequence", [False, True], ids=["features", "sequence"])


def numbers(*shape, seed=0, dtype=torch.float64):
    """The same on every rank."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def its_part(x, group, dim=-1):
    """This rank's part of a dimension of x, which every rank has."""
    part = own.share(x.shape[dim], group)
    return x.narrow(dim, part.start, part.stop - part.start)


def assert_close(pairs):
    """pairs: of each rank a list of (what, got, wanted)."""
    for found in pairs:
        for what, got, wanted in found:
            torch.testing.assert_close(got, wanted, **CLOSE, msg=lambda m, w=what: f"{w}: {m}")


def as_whole(split, layer):
    """Give every parameter of a split layer its part of the whole layer's."""
    own.fill(split)  # the norms, say
    with torch.no_grad():
        for (name, p), (other, q) in zip(split.named_parameters(), layer.named_parameters()):
            assert name == other
            p.copy_(own.own_part(p, q))
    return split


def drawn_at_random(layer):
    """In float64, biases and norms too."""
    layer = layer.double()
    with torch.no_grad():
        for k, p in enumerate(layer.parameters()):
            p.copy_(numbers(*p.shape, seed=k))
    return layer


def text():
    return whole.encode(whole.prose()[:5000])


def said(build):
    """What is raised, as "kind: message"."""
    try:
        build()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
