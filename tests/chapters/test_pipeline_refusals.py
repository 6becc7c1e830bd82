"""What chapter 17's interpreter refuses, and pieces that are out of the ordinary."""

import pytest
import torch
import torch.distributed as dist
from pipelines import (
    CUTS,
    batch,
    gradients,
    in_parts,
    named,
    on,
    pieces_of,
    ranks,
    worker_of,
)
from torch import nn

from ranklab.taught import pipeline as own

__all__ = ["ranks"]  # a fixture


FORWARD = own.with_messages(own.gpipe(2, 1))[0][:2]  # of the first stage, which receives nothing


class Cast(nn.Module):
    """Changes what a piece hands on."""

    def __init__(self, rows=None, dtype=None):
        super().__init__()
        self.rows, self.dtype = rows, dtype

    def forward(self, x):
        return x[: self.rows].to(self.dtype or x.dtype)


def hand_on(group, cast):
    """What is said on the first of two stages, whose piece hands on what `like` is not."""
    stage = dist.get_rank(group)
    chunks = [nn.Sequential(nn.Linear(4, 4), *[cast] * (stage == 0))]
    worker = own.Worker(chunks, torch.empty(2, 4), lambda y, _: y.mean(), group)
    if stage == 0:  # it ends before it needs the other one
        with pytest.raises(ValueError) as said:
            own.run(FORWARD, worker, [torch.ones(2, 4)], [])
        return str(said.value)


@pytest.mark.parametrize(
    "cast, found",
    [
        (Cast(rows=1), "shape (1, 4) and torch.float32"),
        (Cast(dtype=torch.bfloat16), "shape (2, 4) and torch.bfloat16"),
    ],
)
def test_a_tensor_that_is_not_like_what_the_other_side_awaits_is_not_sent(ranks, cast, found):
    said, _ = on(ranks, 2, hand_on, cast)
    assert f"`send activation 0` has a tensor of {found}" in said
    assert "is of shape (2, 4) and torch.float32" in said


def parts_alone(group, many_inputs, many_targets, last_rows):
    """What is said in a pipeline of one stage whose program has two micro-batches."""
    worker = own.Worker([nn.Linear(4, 4)], None, lambda y, _: y.mean(), group)
    program, full = own.gpipe(1, 2)[0], torch.ones(2, 4)
    inputs = [full] * (many_inputs - 1) + [full[:last_rows]]
    with pytest.raises(ValueError) as said:
        own.run(program, worker, inputs, [full] * many_targets)
    return str(said.value)


@pytest.mark.parametrize(
    "many, sentence",
    [
        ((4, 2, 2), "as many inputs, all of one shape; there are 4, of shapes [(2, 4)]."),
        ((1, 2, 2), "as many inputs, all of one shape; there are 1, of shapes [(2, 4)]."),
        ((2, 4, 2), "as many targets, all of one shape; there are 4, of shapes [(2, 4)]."),
        ((2, 0, 2), "as many targets, all of one shape; there are 0, of shapes []."),
        ((2, 2, 1), "as many inputs, all of one shape; there are 2, of shapes [(1, 4), (2, 4)]."),
    ],
)
def test_other_micro_batches_than_the_programs_are_refused(ranks, many, sentence):
    (said,) = on(ranks, 1, parts_alone, *many)
    assert said.startswith("The program has 2 micro-batches, ") and said.endswith(sentence)


def gradients_with_what_is_needed(group, schedule, cut, micro_batches):
    """A stage that needs no inputs is given none, and no targets neither."""
    chunks, stage = pieces_of(group, cut), dist.get_rank(group)
    worker = worker_of(group, chunks, micro_batches)
    inputs, targets = in_parts(batch(0), micro_batches)
    last = stage == dist.get_world_size(group) - 1
    given = inputs if stage == 0 else [], targets if last else []
    own.run(own.with_messages(schedule)[stage], worker, *given)
    return named(chunks, lambda p: p.grad)


def test_each_stage_is_given_what_it_needs_and_no_more(ranks):
    schedule = own.one_f_one_b(3, 3)
    some = on(ranks, 3, gradients_with_what_is_needed, schedule, CUTS[3][0], 3)
    all_ = on(ranks, 3, gradients, [own.with_messages(schedule)], CUTS[3][0], 3)
    for one, (other, *_) in zip(some, all_):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class Skip(nn.Sequential):
    """Not only one layer after the other."""

    def forward(self, x):
        return x + super().forward(x)


def skipping(group):
    """The gradients of a piece that is no plain nn.Sequential, in two parts, and in one."""
    x, found = torch.arange(8.0).view(2, 4), []
    for schedule in (own.zero_bubble(1, 2), own.gpipe(1, 2)):
        torch.manual_seed(0)
        piece = Skip(nn.Linear(4, 4), nn.Tanh())
        worker = own.SplitWorker([piece], None, lambda y, _: y.square().mean(), group)
        losses = own.run(schedule[0], worker, [x, x + 1], [x, x])
        found.append((losses, [p.grad for p in piece.parameters()]))
    wanted = [piece(part).square().mean().item() for part in (x, x + 1)]
    return [*found, wanted]


def test_a_sequential_with_a_forward_of_its_own_is_not_cut(ranks):
    (((losses, grads), (other_losses, others), wanted),) = on(ranks, 1, skipping)
    assert losses == other_losses == wanted
    torch.testing.assert_close(grads, others)


def with_an_empty_end(group, kind, schedule):
    """The gradients of two stages' first piece; the last piece is an nn.Sequential of nothing."""
    stage, x = dist.get_rank(group), torch.arange(8.0).view(2, 4)
    torch.manual_seed(0)
    piece = nn.Sequential(*[nn.Linear(4, 4)] * (stage == 0))
    worker = kind([piece], torch.empty(2, 4), lambda y, _: y.square().mean(), group)
    losses = own.run(own.with_messages(schedule)[stage], worker, [x, x + 1], [x, x])
    return losses, [p.grad for p in piece.parameters()]


@pytest.mark.parametrize(
    "kind, make",
    [
        (own.Worker, own.one_f_one_b),
        (own.SplitWorker, own.one_f_one_b),
        (own.SplitWorker, own.zero_bubble),
    ],
)
def test_a_piece_without_layers_hands_on_what_it_gets(ranks, kind, make):
    (_, grads), (losses, none) = on(ranks, 2, with_an_empty_end, kind, make(2, 2))
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.arange(8.0).view(2, 4)
    wanted = [layer(part).square().mean() for part in (x, x + 1)]
    (sum(wanted) / 2).backward()
    assert none == []
    torch.testing.assert_close(losses, [one.item() for one in wanted])
    torch.testing.assert_close(grads, [p.grad for p in layer.parameters()])


def unknown(group, program):
    worker = own.Worker([nn.Linear(4, 4)], None, lambda y, _: y.mean(), group)
    with pytest.raises(ValueError) as said:
        own.run(program, worker, [torch.ones(2, 4)], [None])
    return str(said.value)


def none_ahead(group):
    worker = own.Worker([nn.Linear(4, 4)], torch.empty(2, 4), lambda y, _: y.mean(), group)
    worker.ahead = 0
    with pytest.raises(ValueError) as said:
        own.run(own.gpipe(1, 1)[0], worker, *[[torch.ones(2, 4)]] * 2)
    return str(said.value)


def test_a_stage_must_post_what_it_waits_for(ranks):
    (said,) = on(ranks, 1, none_ahead)
    assert said.startswith("`ahead` must be at least 1")


def test_an_instruction_that_a_worker_does_not_know_is_refused_before_anything_is_sent(ranks):
    assert on(ranks, 1, unknown, own.parse("F0 I0 W0")) == ["A Worker cannot do `I0`."]
