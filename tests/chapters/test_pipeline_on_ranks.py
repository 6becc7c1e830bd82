"""Chapter 17's interpreter on 1 to 4 real ranks: any schedule, any cut, beside the whole model."""

import pytest
import torch
import torch.distributed as dist
from happens_before import at_random, drawn, formula
from pipelines import (
    CLOSE,
    CUTS,
    INTERLEAVED,
    MAKERS,
    MICRO_BATCHES,
    SHAPE,
    STEPS,
    N,
    batch,
    gradients,
    in_parts,
    named,
    on,
    optimizer_of,
    pieces_of,
    ranks,
    whole,
    worker_of,
)
from tiers import few

from ranklab.taught import pipeline as own
from ranklab.taught.layers import gpt, language_loss

__all__ = ["ranks"]  # a fixture


def train(group, schedule, cut, kind):
    """Losses and weights of the same training in pieces."""
    chunks, (_, micro_batches, _) = pieces_of(group, cut), own.size(schedule)
    worker, optimizer = worker_of(group, chunks, micro_batches, kind), optimizer_of(chunks)
    program, losses = own.with_messages(schedule)[dist.get_rank(group)], []
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = own.run(program, worker, *in_parts(batch(step), micro_batches))
        optimizer.step()
        losses += [sum(parts) / len(parts)] if parts else []
    return losses, named(chunks), [one for one, *_ in worker.log] == program


def layouts():
    """Each schedule with each number of ranks; each cut with another schedule."""
    for n, cuts in CUTS.items():
        for k, name in enumerate(MAKERS):
            yield name, cuts[(n + k) % len(cuts)]
        if n in INTERLEAVED:
            yield "interleaved", INTERLEAVED[n]


@pytest.mark.parametrize(
    "name, cut", few(layouts(), lambda name, cut: cut in (*CUTS[4], INTERLEAVED[2])), ids=str
)
def test_losses_and_weights_follow_the_whole_models(ranks, name, cut):
    n = len(cut) // 2 if name == "interleaved" else len(cut)
    sizes = (n, MICRO_BATCHES[n])
    schedule = own.interleaved(*sizes, 2) if name == "interleaved" else MAKERS[name](*sizes)
    kind = own.SplitWorker if name == "zero_bubble" else own.Worker
    found = on(ranks, n, train, schedule, cut, kind)
    losses, weights = whole()
    assert losses[-1] < losses[0] - 0.5
    assert [len(each) for each, *_ in found] == [0] * (n - 1) + [STEPS]
    torch.testing.assert_close(found[-1][0], losses, **CLOSE)
    parts = [(name, p) for _, of_rank, _ in found for name, p in of_rank.items()]
    assert sorted(name for name, _ in parts) == sorted(weights)
    torch.testing.assert_close(dict(parts), weights, **CLOSE)
    assert all(in_order for *_, in_order in found)


# Any schedule


@pytest.mark.parametrize(
    "seed, n, cut",
    [
        (0, 4, (1,) * 8),
        (1, 3, (2, 1, 1, 2, 1, 1)),
        (2, 4, (1, 1, 5, 1)),
        (9, 2, (1, 3, 3, 1)),  # with two ranks an activation and a gradient can cross on their way
        (10, 2, (4, 1, 2, 1)),
    ],
)
def test_it_runs_whatever_is_right_and_adds_to_the_gradients(ranks, seed, n, cut):
    """Schedules by chance, with messages anywhere, and the backward whole or in two parts.

    One to three receives are posted at a time.
    """
    micro_batches, rng = 3 + seed % 2, drawn(seed)
    schedules = [at_random(n, micro_batches, len(cut) // n, rng) for _ in range(2)]
    for schedule in schedules:
        own.check_schedule(schedule)
    found = on(ranks, n, gradients, schedules, cut, micro_batches, 1 + seed % 3)
    model, losses = gpt(SHAPE, dtype=torch.float64), []
    for step in range(2):
        parts = zip(*in_parts(batch(step), micro_batches))
        losses.append([language_loss(model(x), targets) for x, targets in parts])
        (sum(losses[-1]) / micro_batches).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    torch.testing.assert_close({k: g for one, *_ in found for k, g in one.items()}, grads, **CLOSE)
    assert [left for *_, left in found] == [0] * n
    for schedule, came, wanted in zip(schedules, found[-1][1], losses):
        order = [k for kind, k, c in schedule[-1] if kind == "F" and c == len(cut) // n - 1]
        torch.testing.assert_close(came, [wanted[k].item() for k in order], **CLOSE)


# Time


def step_of_naps(group, program, chunks, micro_batches, unit):
    """This rank's log of a step whose pieces sleep: a unit for each work on a micro-batch."""
    worker, parts = own.Napper(unit, chunks, group), [torch.zeros(1)] * micro_batches
    dist.barrier(group)
    own.run(program[dist.get_rank(group)], worker, parts, parts)
    return worker.log


@pytest.mark.parametrize("make", [*MAKERS.values(), own.interleaved])
def test_clock_schedule_and_formula_agree(ranks, make):
    """Step and idle share within a tenth. Messages, and waking up, take a time of their own, so a
    busy machine is given naps in which that is less."""
    chunks = 2 if make is own.interleaved else 1
    schedule = make(N, N, chunks) if chunks > 1 else make(N, N)
    full, tried = own.with_messages(schedule), []
    for unit in (0.025, 0.05, 0.1, 0.2, 0.4, 0.8):
        planned = own.simulate(full, *[unit / chunks] * 3)
        ran = on(ranks, N, step_of_naps, full, chunks, N, unit)
        idle, _ = formula(make.__name__, N, N, chunks, unit, unit, unit)
        assert own.idle_share(planned) == pytest.approx(idle / (idle + 3 * N * unit))
        steps = [max(end for row in rows for *_, end in row) for rows in (ran, planned)]
        tried.append((steps[0] / steps[1], own.idle_share(ran) / own.idle_share(planned)))
        if all(abs(ratio - 1) < 0.1 for ratio in tried[-1]):
            return
    pytest.fail(f"step and idle share over those of the schedule: {tried}")


# Beside PyTorch's


def pytorchs(group, name, cut, micro_batches):
    """Losses and gradients of one step of torch.distributed.pipelining."""
    from torch.distributed import pipelining

    rank, n, chunks = dist.get_rank(group), dist.get_world_size(group), pieces_of(group, cut)
    stages = [
        pipelining.PipelineStage(chunk, c * n + rank, len(cut), torch.device("cpu"), group=group)
        for c, chunk in enumerate(chunks)
    ]
    kind = {
        "gpipe": pipelining.ScheduleGPipe,
        "one_f_one_b": pipelining.Schedule1F1B,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
    }[name]
    given = stages if name == "interleaved" else stages[0]
    schedule = kind(given, n_microbatches=micro_batches, loss_fn=language_loss)
    inputs, targets = batch(0)
    losses = []
    how = {"target": targets, "losses": losses} if rank == n - 1 else {}
    schedule.step(*[inputs] * (rank == 0), **how)
    return named(chunks, lambda p: p.grad), [loss.item() for loss in losses]


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "interleaved"])
@pytest.mark.parametrize("n", [2, 4])
def test_the_numbers_are_pytorchs(ranks, name, n):
    cut = INTERLEAVED[n] if name == "interleaved" else CUTS[n][1]
    m = MICRO_BATCHES[n]
    schedule = own.interleaved(n, m, 2) if name == "interleaved" else MAKERS[name](n, m)
    mine = on(ranks, n, gradients, [own.with_messages(schedule)], cut, m)
    theirs = on(ranks, n, pytorchs, name, cut, m)
    for (grads, losses, _), (others, other_losses) in zip(mine, theirs):
        torch.testing.assert_close(grads, others, **CLOSE)
        torch.testing.assert_close(losses[0], other_losses, **CLOSE)
    assert len(mine[-1][1][0]) == m
