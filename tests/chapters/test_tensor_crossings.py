"""f, g and their kin of the sequence on 1 to 4 real ranks: adjoints, values, derivatives."""

import pytest
import torch
import torch.distributed as dist
from on_ranks import on
from split import assert_close, its_part, numbers, of_groups
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from ranklab.taught import tensor as own


def crossings(group):
    """{name: (forward, is its input one for all ranks, is its output)}."""
    return {
        "f": (lambda x: own.copied(x, group), True, False),
        "g": (lambda x: own.summed(x, group), False, True),
        "gathered": (lambda x: own.gathered(x, group), False, False),
        "scattered": (lambda x: own.scattered(x, group), False, False),
    }


def inner(x, y, one_for_all, group):
    """<x, y> over all ranks; what is one for all of them counts once."""
    product = (x * y).sum()
    if not one_for_all:
        dist.all_reduce(product, group=group)
    return product


def both_products(group):
    """Of each crossing A, <A x, y> and <x, A* y>; where A* is what backward does."""
    n, me, found = dist.get_world_size(group), dist.get_rank(group), []
    for name, (cross, one_in, one_out) in crossings(group).items():
        shape = (2, 3) if name == "gathered" else (2, 3 * n)
        x = numbers(*shape, seed=0 if one_in else 1 + me).requires_grad_()
        y = cross(x)
        weights = numbers(*y.shape, seed=100 if one_out else 101 + me)
        (back,) = torch.autograd.grad(y, x, weights)
        sides = inner(y, weights, one_out, group), inner(x, back, one_in, group)
        found.append((name, *(side.detach() for side in sides)))
        assert x.is_contiguous() and abs(sides[0]) > 1e-3
    return found


@of_groups
def test_backward_is_the_adjoint_of_forward(four, members):
    assert_close(on(four, members, both_products))


def crossed(group):
    """What the crossings give of x in several layouts, beside their definitions, and x after."""
    n, me, found = dist.get_world_size(group), dist.get_rank(group), []
    for name, x in {
        "a matrix": numbers(3, 2 * n, 4),
        "transposed": numbers(4, 2 * n, 3).transpose(0, 2),
        "bfloat16": numbers(1, 2 * n).round().bfloat16(),
        "float32": numbers(3, 2 * n, 1).round().float(),
    }.items():
        before = (x * (me + 1)).contiguous()
        mine = x * (me + 1)
        total = x * sum(range(1, n + 1))
        every = torch.cat([x * (r + 1) for r in range(n)], 1)
        found += [
            (f"f of {name}", own.copied(mine, group), before),
            (f"g of {name}", own.summed(mine, group), total),
            (f"gathered of {name}", own.gathered(mine, group), every),
            (f"scattered of {name}", own.scattered(mine, group), total.chunk(n, 1)[me]),
            (f"{name} afterwards", mine, before),
        ]
    return found


@of_groups
def test_forward_is_what_it_says(four, members):
    assert_close(on(four, members, crossed))


def split_linear_pair(x, up, down, group):
    """A column- and a row-split layer of weights that every rank has whole, with a tanh between."""
    up, down = (its_part(own.copied(w, group), group, dim) for w, dim in ((up, 0), (down, 1)))
    hidden = torch.tanh(nn.functional.linear(own.copied(x, group), up))
    return own.summed(nn.functional.linear(hidden, down), group)


def split_in_time(x, w, group):
    """The same of the other pair; x is one for all ranks, and so is what comes out."""
    part = own.share(x.shape[1], group)
    every = own.gathered(own.copied(x, group)[:, part], group)
    column = its_part(own.copied(w, group), group, 0)
    found = own.scattered(torch.tanh(every @ column.T) @ column, group)
    padded = nn.functional.pad(found, (0, 0, part.start, x.shape[1] - part.stop))
    return own.summed(padded, group)


def split_loss(logits, targets, group):
    logits = its_part(own.copied(logits, group), group)
    return own.split_cross_entropy(logits, targets, 7, group)


def checked(group):
    """gradcheck moves every rank's x at once: x has to be one for all, and so has the result."""
    n = dist.get_world_size(group)
    torch.manual_seed(0)  # gradgradcheck draws numbers, and every rank must draw the same
    x, up, down = (numbers(*s).requires_grad_() for s in ((1, n, 2), (5, 2), (2, 5)))
    logits, targets = numbers(1, 2, 7).requires_grad_(), torch.tensor([[6, 0]])
    cases = [
        (lambda *xs: split_linear_pair(*xs, group), (x, up, down)),
        (lambda *xs: split_in_time(*xs, group), (x, up)),
        (lambda xs: split_loss(xs, targets, group), (logits,)),
    ]
    twice = [gradgradcheck(f, xs, fast_mode=True) for f, xs in cases]
    return twice + [gradcheck(f, xs) for f, xs in cases]


@pytest.mark.parametrize("members", [(0, 1), (0, 1, 2, 3)], ids=str)
def test_gradcheck_accepts_the_pairs_and_the_loss(four, members):
    assert on(four, members, checked) == [[True] * 6] * len(members)
