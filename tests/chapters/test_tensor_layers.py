"""Chapter 18's split layers on 1 to 4 real ranks, beside the whole ones of chapter 16."""

import pytest
import torch
from on_ranks import on
from split import (
    as_whole,
    assert_close,
    both_ways,
    drawn_at_random,
    its_part,
    numbers,
    of_groups,
    of_shapes,
)
from torch import nn

from ranklab.taught import layers as whole
from ranklab.taught import tensor as own


def compared(split, layer, x, take=lambda t: t, give=lambda t: t):
    """Outputs and gradients of both. take, give: the part of x, and of the output, of this rank."""
    mine = take(x).detach().clone().requires_grad_(x.is_floating_point())
    x = x.clone().requires_grad_(x.is_floating_point())
    y, yours = split(mine), layer(x)
    weights = numbers(*yours.shape, seed=99)
    (y * give(weights)).sum().backward()
    (yours * weights).sum().backward()
    found = [("output", y.detach(), give(yours).detach())]
    if x.requires_grad:
        found.append(("gradient of x", mine.grad, take(x.grad)))
    for (name, p), q in zip(split.named_parameters(), layer.parameters()):
        found.append((name, p.grad, own.own_part(p, q.grad)))
    return found


def layers_and_twins(group, n_in, n_out):
    part = lambda t: its_part(t, group)  # noqa: E731
    x, layer = numbers(2, 3, n_in), drawn_at_random(nn.Linear(n_in, n_out))
    column = as_whole(own.ColumnLinear(n_in, n_out, group).double(), layer)
    found = compared(column, layer, x, give=part)
    layer.zero_grad()
    row = as_whole(own.RowLinear(n_in, n_out, group).double(), layer)
    return found + compared(row, layer, x, take=part)


@pytest.mark.parametrize("sizes", [(8, 12), (7, 5), (4, 9)], ids=str)
@of_groups
def test_linear_layers_are_the_whole_ones(four, members, sizes):
    assert_close(on(four, members, layers_and_twins, *sizes))


def blocks_and_twins(group, shape, sequence):
    pair = (own.gathered, own.scattered) if sequence else (own.copied, own.summed)
    part = (lambda t: its_part(t, group, 1)) if sequence else (lambda t: t)
    width, heads, x, found = shape.width, shape.heads, numbers(2, 12, shape.width), []
    for layer, split in (
        (whole.MLP(width, 13), own.SplitMLP(width, 13, group, *pair)),
        (whole.Attention(width, heads, 3), own.SplitAttention(width, heads, 3, group, *pair)),
        (whole.Block(shape), own.SplitBlock(shape, group, *pair)),
    ):
        layer = drawn_at_random(layer)
        split = as_whole(split.double(), layer)
        sums = compared(split, layer, x, part, part)
        if sequence:
            own.sum_replicas(split, group)
        found += [(f"{type(layer).__name__}: {what}", *both) for what, *both in sums]
    return found


@both_ways
@of_shapes
@of_groups
def test_mlp_attention_and_block_are_the_whole_ones(four, members, shape, sequence):
    """Heads that do not divide, too, and an odd number of hidden features."""
    assert_close(on(four, members, blocks_and_twins, shape, sequence))


def embedded(group, vocabulary):
    part, found = own.share(vocabulary, group), []
    for tokens in (
        torch.tensor([[0, 1, 1, vocabulary - 1], [2, 0, 3, 1]]),  # some of them more than once
        torch.full((1, 3), vocabulary - 1),  # all of them the last rank's
        torch.arange(vocabulary)[None],
        torch.zeros(2, 0, dtype=torch.int64),
    ):
        layer = drawn_at_random(nn.Embedding(vocabulary, 3))
        split = as_whole(own.VocabularyEmbedding(vocabulary, 3, group).double(), layer)
        assert split.weight.shape == (part.stop - part.start, 3)
        found += compared(split, layer, tokens)
    return found


@pytest.mark.parametrize("vocabulary", [4, 12, 13])
@of_groups
def test_the_embedding_is_pytorchs(four, members, vocabulary):
    assert_close(on(four, members, embedded, vocabulary))


# The loss


def logits_and_targets(vocabulary):
    """{what: (logits, targets)}, the same on every rank."""
    plain = numbers(2, 3, vocabulary)
    targets = torch.randint(vocabulary, (2, 3), generator=torch.Generator().manual_seed(0))
    one_hot = nn.functional.one_hot(targets, vocabulary)
    cases = {"usual": (plain, targets), "all the same": (plain * 0, targets)}
    cases |= {f"all targets are {t}": (plain, targets * 0 + t) for t in range(vocabulary)}
    for size in (1e3, 1e30, 1e300):
        cases[f"times {size:g}"] = plain * size, targets
        cases[f"plus {size:g}"] = plain + size, targets
        cases[f"minus {size:g}"] = plain - size, targets
    cases["sure, and right"] = one_hot * 1e4, targets
    cases["sure, and wrong"] = one_hot * -1e4, targets
    for column in range(vocabulary):  # a token that nobody may choose, and nobody did
        masked = plain.index_fill(-1, torch.tensor([column]), -torch.inf)
        cases[f"{column} masked"] = masked, targets.where(targets != column, (column + 1) % 4)
    cases["float32"] = plain.float(), targets
    far = plain.float() * 0 + torch.where(one_hot == 1, 3e38, -3e38).float()
    cases["float32, to its ends"] = far, targets
    return cases


def losses(group, vocabulary):
    found = []
    for what, (logits, targets) in logits_and_targets(vocabulary).items():
        twin = logits.clone().requires_grad_()
        mine = its_part(logits, group).clone().requires_grad_()
        loss = own.split_cross_entropy(mine, targets, vocabulary, group)
        loss.backward()
        wanted = whole.language_loss(twin, targets)
        wanted.backward()
        found += [(what, loss.detach(), wanted.detach())]
        found += [(f"{what}, gradient", mine.grad, its_part(twin.grad, group))]
    return found


@pytest.mark.parametrize("vocabulary", [4, 13])
@of_groups
def test_the_loss_is_pytorchs_for_whatever_logits(four, members, vocabulary):
    per_rank = on(four, members, losses, vocabulary)
    for found in per_rank:
        for (what, got, wanted), (_, first, _) in zip(found, per_rank[0]):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7, msg=what)
            if wanted.dtype == torch.float64:
                torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13, msg=what)
            if "gradient" not in what:
                assert torch.equal(got, first), what  # every rank the same number


# Dropout


def dropped(group, sizes):
    """Twice the parts of a whole, dropped out, and the same parts of the whole's dropout."""
    found, generators = [], [torch.Generator().manual_seed(4) for _ in range(2)]
    for size in sizes:
        part, x = own.share(size, group), numbers(3, 2, size)
        wanted = own.split_dropout(x, 0.4, generators[0])
        got = own.split_dropout(x[..., part], 0.4, generators[1], size, group)
        found.append((f"{size} features", got, wanted[..., part]))
        assert len(set((wanted / x).round(decimals=6).flatten().tolist())) == 2  # 0, and 1 / 0.6
    return found


@of_groups
def test_dropout_of_parts_is_dropout_of_the_whole(four, members):
    assert_close(on(four, members, dropped, [8, 5, 7]))


@pytest.mark.parametrize("p", [1, 1.5, -0.1, float("nan")])
def test_dropout_of_everything_or_less_than_nothing_is_refused(p):
    with pytest.raises(ValueError, match="from 0 to below 1"):
        own.split_dropout(torch.ones(2, 4), p, torch.Generator())
