"""Chapter 18's split GPT trains, is copied as chapter 16's whole one, and PyTorch's."""

import io
from copy import deepcopy
from functools import cache

import pytest
import torch
import torch.distributed as dist
from on_ranks import on
from split import (
    EVEN,
    FIRST,
    UNEVEN,
    as_whole,
    assert_close,
    drawn_at_random,
    numbers,
    of_groups,
    said,
    text,
)
from tiers import few
from torch import nn

from ranklab.taught import layers as whole
from ranklab.taught import tensor as own

STEPS, FOLLOWS = 50, 1e-6  # a split model follows the whole one so long, and so closely


def train(model, forward, norm_of, after=lambda: None):
    """Steps with momentum and clipped gradients; return the losses and the norms."""
    tokens, parameters = text(), list(model.parameters())
    velocity, losses, norms = [torch.zeros_like(p) for p in parameters], [], []
    for step in range(STEPS):
        model.zero_grad()
        loss = forward(*whole.windows(tokens, 3, 12, step))
        loss.backward()
        after()
        norm = norm_of(parameters)
        losses.append(loss.item())
        norms.append(float(norm))
        with torch.no_grad():
            for p, v in zip(parameters, velocity):
                v.mul_(0.9).add_(p.grad / max(1.0, norm))
                p -= 0.1 * v
    return losses, norms


@cache
def whole_training(shape):
    """Losses, norms, and the weights before and after, of the model that is not split."""
    model = whole.gpt(shape, dtype=torch.float64)
    before = state(model)
    trained = train(
        model,
        lambda x, y: whole.language_loss(model(x), y),
        lambda ps: torch.stack([p.grad.square().sum() for p in ps]).sum().sqrt(),
    )
    return trained, before, state(model)


def state(model):
    """{name: (values, where they belong in the whole: (dim, start) or None)}."""
    return {
        name: (p.detach().clone(), (p.dim, p.part.start) if own.is_split(p) else None)
        for name, p in model.named_parameters()
    }


def split_training(group, shape, sequence):
    model = own.tensor_gpt(shape, group, dtype=torch.float64, sequence=sequence)
    before = state(model)
    trained = train(
        model,
        lambda x, y: own.split_cross_entropy(model(x), y, shape.vocabulary, group),
        lambda ps: own.split_norm(ps, group),
        (lambda: own.sum_replicas(model, group)) if sequence else lambda: None,
    )
    return trained, before, state(model)


def assembled(states, wanted):
    """The whole weights, from the ranks' parts, each of which must be of one rank alone."""
    found = {}
    for name, (value, _) in wanted.items():
        total, owners = torch.zeros_like(value), torch.zeros_like(value)
        for part, place in (one[name] for one in states):
            dim, start = place or (0, 0)
            total.narrow(dim, start, part.shape[dim]).add_(part)
            owners.narrow(dim, start, part.shape[dim]).add_(1)
        assert (owners == (1 if states[0][name][1] else len(states))).all(), name
        found[name] = total / owners
    return found


@pytest.mark.parametrize(
    "shape, sequence",
    [(EVEN, False), (UNEVEN, False), (UNEVEN, True)],
    ids=["even", "uneven", "uneven-sequence"],
)
@pytest.mark.parametrize("members", few(zip(FIRST), lambda who: len(who) == 4), ids=str)
def test_losses_norms_and_weights_follow_the_whole_models(four, members, shape, sequence):
    follow_the_whole(on(four, members, split_training, shape, sequence), shape)


def follow_the_whole(results, shape):
    trained, before, after = whole_training(shape)
    assert trained[0][-1] < 0.9 * trained[0][0]
    assert min(trained[1]) < 1.0 < max(trained[1])  # some steps were clipped
    for (losses_, norms), _, _ in results:
        assert max(abs(a - b) for a, b in zip(losses_, trained[0])) < FOLLOWS
        assert max(abs(a - b) for a, b in zip(norms, trained[1])) < FOLLOWS
        assert (losses_, norms) == results[0][0]  # the same bits on every rank
    for k, wanted in ((1, before), (2, after)):
        states = [one[k] for one in results]
        assert [*states[0]] == [*wanted]
        for name, value in assembled(states, wanted).items():
            assert (value - wanted[name][0]).abs().max() < (FOLLOWS if k == 2 else 1e-15), name
        for name, (value, place) in states[0].items():
            same = [torch.equal(one[name][0], value) for one in states]
            assert place or all(same), f"{name}: the ranks' replicas differ"


def test_so_they_do_in_a_group_without_rank_0(four):
    follow_the_whole(on(four, (1, 3), split_training, EVEN, True), EVEN)


def frozen(group):
    """The gradients of a model whose norms are not trained, and its twin's."""
    split = own.tensor_gpt(EVEN, group, dtype=torch.float64, sequence=True)
    twin, (x, y) = whole.gpt(EVEN, dtype=torch.float64), whole.windows(text(), 3, 12, 0)
    for name, p in [*split.named_parameters(), *twin.named_parameters()]:
        p.requires_grad_("norm" not in name)
    own.split_cross_entropy(split(x), y, 96, group).backward()
    own.sum_replicas(split, group)
    own.sum_replicas(split.block0.attention.query, group)  # which has none
    whole.language_loss(twin(x), y).backward()
    return [
        (name, p.grad, own.own_part(p, q.grad))
        for (name, p), q in zip(split.named_parameters(), twin.parameters())
        if p.requires_grad
    ]


def test_replicas_that_are_not_trained_are_left_out_of_the_sum(four):
    assert_close(on(four, (0, 1, 2), frozen))


def accumulated(group):
    """The gradients of two backwards, whose replicas are summed once, and of the twin's."""
    split = own.tensor_gpt(EVEN, group, dtype=torch.float64, sequence=True)
    twin = whole.gpt(EVEN, dtype=torch.float64)
    for step in range(2):
        x, y = whole.windows(text(), 3, 12, step)
        own.split_cross_entropy(split(x), y, 96, group).backward()
        whole.language_loss(twin(x), y).backward()
    own.sum_replicas(split, group)
    return [
        (name, p.grad, own.own_part(p, q.grad))
        for (name, p), q in zip(split.named_parameters(), twin.parameters())
    ]


def test_accumulated_gradients_are_summed_once_after_the_last_backward(four):
    assert_close(on(four, (0, 1, 2), accumulated))


def copies():
    """What a copy of a split model knows of its pieces, and of what it makes a whole's part."""
    model, found = own.tensor_gpt(EVEN), []
    for copy in (deepcopy(model), deepcopy(model).double(), saved_and_loaded(model)):
        for (name, p), q in zip(copy.named_parameters(), model.parameters()):
            assert own.is_split(p) == own.is_split(q), name
            assert not own.is_split(p) or (p.whole, p.dim, p.part) == (q.whole, q.dim, q.part)
            found.append((name, p.detach().float(), q.detach()))
            assert p is not q and p.requires_grad
    return found


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_copy_of_a_split_model_knows_what_is_split(four):
    assert_close(four.run(copies))


# The norm


def norms(group, which):
    """split_norm of some parameters, and what torch says of all of the whole model's."""
    layers = drawn_at_random(whole.gpt(UNEVEN))
    model = as_whole(own.tensor_gpt(UNEVEN, group, dtype=torch.float64), layers)
    for k, (p, q) in enumerate(zip(model.parameters(), layers.parameters())):
        if WHICH[which](k, own.is_split(p)):
            q.grad = numbers(*q.shape, seed=k)
            p.grad = own.own_part(p, q.grad).clone()
    wanted = nn.utils.get_total_norm([q.grad for q in layers.parameters() if q.grad is not None])
    wanted = wanted.double()  # 0 of nothing is float32
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    got = own.split_norm(model.parameters(), group)  # a generator will do
    after = [p.grad for p in model.parameters() if p.grad is not None]
    return [("norm", got, wanted), *(("gradient", a, b) for a, b in zip(after, before))]


WHICH = {
    "all": lambda k, split: True,
    "pieces": lambda k, split: split,
    "replicas": lambda k, split: not split,
    "some": lambda k, split: k % 3 == 0,
    "none": lambda k, split: False,
}


@pytest.mark.parametrize("which", WHICH)
@of_groups
def test_the_norm_counts_every_number_of_the_gradient_once(four, members, which):
    assert_close(on(four, members, norms, which))


def norm_without_rank_0():
    """split_norm where rank 0 has no parameters at all, and each other rank a piece of ones."""
    p = own.piece((12, 2), 0, own.share(12))
    p.grad = torch.ones_like(p)
    return own.split_norm([p] if dist.get_rank() else []).item()


def test_a_rank_without_parameters_takes_part_in_the_norm(four):
    assert four.run(norm_without_rank_0) == [pytest.approx(18**0.5)] * 4  # 3 of 4 ranks, 6 each


# Beside PyTorch's own


def beside_dtensor(shape):
    """A model split by parallelize_module, and the book's: what the loss and the gradients are."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    column, row = ColwiseParallel, RowwiseParallel
    plan = {"embed.tokens": row(input_layouts=Replicate())}
    plan |= {f"block*.attention.{name}": column() for name in ("query", "key", "value")}
    plan |= {"block*.attention.out": row(), "block*.mlp.up": column(), "block*.mlp.down": row()}
    plan |= {"head.logits": column(output_layouts=Replicate())}
    theirs = whole.gpt(shape, dtype=torch.float64)
    parallelize_module(theirs, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    ours = own.tensor_gpt(shape, dtype=torch.float64)
    x, y = whole.windows(text(), 2, 12, 0)
    losses_ = [
        own.split_cross_entropy(ours(x), y, shape.vocabulary),
        whole.language_loss(theirs(x), y),
    ]
    for loss in losses_:
        loss.backward()
    found = [("loss", *(loss.detach() for loss in losses_))]
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        full = [t.full_tensor() if hasattr(t, "to_local") else t for t in (q.detach(), q.grad)]
        weight, gradient = (own.own_part(p, t) for t in full)
        found += [(name, p.detach(), weight), (f"gradient of {name}", p.grad, gradient)]
    return found, said(lambda: nn.utils.clip_grad_norm_(theirs.parameters(), 1.0))


def test_losses_weights_and_gradients_are_those_of_parallelize_module(four):
    assert_close([found for found, _ in four.run(beside_dtensor, EVEN)])


def test_pytorch_does_not_clip_where_the_plan_does_not_name_all(four):
    """The norms and the places are plain tensors."""
    for _, clipping in four.run(beside_dtensor, EVEN):
        assert "mixed torch.Tensor and DTensor" in clipping
