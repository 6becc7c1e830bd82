"""What checks of split layers share: results of ranks beside those of one process, and hints.

A result is a dict of tensors for each rank.
"""

import torch

from ranklab.old_checks._model import Hint

CLOSE = (1e-9, 1e-11)  # in float64: the order of additions is free


def drawn(seed, *shape):
    """The same numbers wherever they are asked for, float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def leaf(x, trained=True):
    """A copy of x that autograd watches."""
    return x.clone().requires_grad_(trained)


def run_back(out, weights):
    """Go backward from (out * weights).sum(), if there is a way back."""
    if torch.is_tensor(out) and out.requires_grad and out.shape == weights.shape:
        (out * weights).sum().backward()


# For hints


def near(one, other):
    return torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def all_near(seen, key, wanted):
    """Has every rank under `key` what is wanted of it? wanted: a list, or a factor of the right."""
    right = [want[key] for want in seen.expected]
    if not isinstance(wanted, list):
        wanted = [wanted * want for want in right]
    pairs = list(zip([got[key] for got in seen.results], wanted))
    return bool(pairs) and all(near(*pair) for pair in pairs)


def is_right(seen, key):
    return all_near(seen, key, 1)


def is_instead(seen, key, wanted):
    """The same, where that is not what it should be."""
    return all_near(seen, key, wanted) and not is_right(seen, key)


def collectives(seen):
    """How many collectives the rank called that called most."""
    return max(sum(calls.values()) for calls in seen.collectives)


def said_to_wait(sentence):
    return Hint(lambda seen: True, sentence, when=("stuck", "died"))


NOTHING_RETURNED = Hint(
    lambda seen: "NoneType" in seen.error,
    "`dist.all_reduce` writes into the tensor that it is given, and returns nothing.",
    when=("error",),
)
ONE_FOR_EACH_ARGUMENT = Hint(
    lambda seen: "incorrect number of gradients" in seen.error,
    "`backward` returns as many values as `forward` has arguments, ctx left out: None for those "
    "that have no gradient.",
    when=("error",),
)
NOT_CALLED = Hint(
    lambda seen: any(
        said in seen.error for said in ("egacy autograd", "instantiated", "'Function'")
    ),
    "An autograd function is not called, and no object is made of it: `F.apply(x)`.",
    when=("error",),
)
