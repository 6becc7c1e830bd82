"""Models and data of the chapter's exercises, in float64, without ranks."""

import math
from itertools import pairwise

import torch
from torch import nn

from ranklab.exercises import Case


def case(what, *args, hint=""):
    """A case without ranks. args: what the answer is called with; a function makes it afresh."""
    return Case(what, lambda *_: tuple(a() if callable(a) else a for a in args), ranks=1, hint=hint)


def model_of(sizes, seed=0):
    """Linear layers without bias and tanh between them."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for n_in, n_out in pairwise(sizes):
        layer = nn.Linear(n_in, n_out, bias=False).double()
        bound = math.sqrt(6 / n_in)
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        parts += [layer, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


def samples(n, features=5, classes=3, seed=0):
    """X (n, features) and y (n,)."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, features, dtype=torch.float64, generator=generator)
    return X, torch.randint(classes, (n,), generator=generator)
