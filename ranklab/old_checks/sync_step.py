"""What two exercises of chapter 10 check: statistics of a batch in shards, and a whole step."""

import torch
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Exercise, Hint

# batch_statistics ------------------------------------------------------------------------------


def _rows(what, *rows, features=3, center=0.0, dtype=torch.float32):
    """A case in which rank r has rows[r] rows."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(rows[rank], features, dtype=torch.float64, generator=generator)
        return ((x + center + rank).to(dtype),)

    return Case(what, make, ranks=len(rows))


def _example(rank, world_size):
    return (torch.tensor([[1.0], [2.0]]) if rank == 0 else torch.tensor([[6.0]]),)


def _statistics(inputs):
    x = torch.cat([x for (x,) in inputs])
    exact = x.double()
    both = exact.mean(0).to(x.dtype), exact.var(0, unbiased=False).to(x.dtype)
    return [both] * len(inputs)


def _all_rows(seen):
    return torch.cat([x for (x,) in seen.inputs]).double()


def _is(seen, which, wanted):
    """Is the mean (0) or the variance (1) on rank 0 `wanted`, to a few digits?"""
    return torch.allclose(seen.results[0][which].double(), wanted, rtol=1e-3, atol=1e-4)


def _means_of_ranks(seen):
    return torch.stack([x.double().mean(0) for (x,) in seen.inputs])


batch_statistics = Exercise(
    "batch_statistics",
    cases=[
        Case("[[1.], [2.]] and [[6.]]", _example, ranks=2),
        _rows("one rank has none", 3, 0, 2),
        _rows("rank 0 has none", 0, 3, 2),
        _rows("numbers near 10000", 6, 5, 7, 6, center=10_000.0),
        _rows("equal shards", 2, 2, 2, 2),
        _rows("float64", 1, 4, dtype=torch.float64),
        _rows("one feature", 3, 1, 2, 5, features=1),
        _rows("alone", 5),
    ],
    expected=_statistics,
    tolerance=(1e-3, 1e-5),  # means of float32 near 10000 may be combined, too
    hints=[
        Hint(
            lambda seen: seen.results[0][0].isnan().any(),
            "A rank without rows has no mean: it is not a number. It has a sum, and a count.",
        ),
        Hint(
            lambda seen: True,
            "The ranks have different numbers of rows, some none. Each must take part in every "
            "collective, with tensors of the same shape.",
            when=("stuck", "died"),
        ),
        replicas.RETURNS_NOTHING,
        Hint(
            lambda seen: seen.found in ("dtype", "shape"),
            "Asked for are two tensors of x's own type, with one number for each feature.",
        ),
        Hint(
            lambda seen: "10000" in seen.case.what and _is(seen, 0, _all_rows(seen).mean(0)),
            "The mean is right. The variance is the difference of two large numbers here, whose "
            "last digits are lost. Is there a way without large numbers?",
        ),
        Hint(
            lambda seen: _is(seen, 1, _all_rows(seen).var(0)),
            "The mean is right, and the variance is divided by n - 1.",
        ),
        Hint(
            lambda seen: (
                _is(seen, 0, _means_of_ranks(seen).mean(0))
                and not _is(seen, 0, _all_rows(seen).mean(0))
            ),
            "That is the mean of the ranks' means, as if all had as many rows.",
        ),
        Hint(
            lambda seen: (
                _is(seen, 0, _all_rows(seen).mean(0))
                and bool((seen.results[0][1] < seen.expected[0][1]).all())
            ),
            "The mean is right; the variance is too small. Is it taken around each rank's own "
            "mean?",
        ),
        Hint(
            lambda seen: _is(seen, 0, seen.inputs[0][0].double().mean(0)),
            "That is the mean of this rank's own rows.",
        ),
    ],
    hint="Sums and counts can be added over the ranks. Which sums?",
)


# whole_step ------------------------------------------------------------------------------------

_RATE, _MOMENTUM = 0.2, 0.9


def _drive_step(answer, seed, batches):
    """Make the steps on this rank; return losses, weights, velocities, and if they stayed put."""
    model = replicas.model("plain", seed)
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]
    before = [tensor.data_ptr() for tensor in [*model.parameters(), *velocity]]
    losses = [answer(model, velocity, x, y, _RATE, _MOMENTUM) for x, y in batches]
    after = [tensor.data_ptr() for tensor in [*model.parameters(), *velocity]]
    weights = replicas.weights(model)
    return {"losses": losses, "weights": weights, "velocity": velocity, "in place": before == after}


def _steps(what, *sizes):
    """A case of some steps; sizes: for each step, how many samples every rank has."""

    def make(rank, world_size):
        inputs, labels = replicas.data(sum(map(sum, sizes)))
        batches, at = [], 0
        for of_ranks in sizes:
            begin = at + sum(of_ranks[:rank])
            mine = slice(begin, begin + of_ranks[rank])
            batches.append((inputs[mine], labels[mine]))
            at += sum(of_ranks)
        return 3, batches

    return Case(what, make, ranks=len(sizes[0]))


def _twin(inputs, weight=None, momentum=_MOMENTUM):
    """Make the same steps in one process; weight(m, n, ranks) of a shard's mean, by default m/n."""
    model = replicas.model("plain", inputs[0][0])
    velocity, losses = [torch.zeros_like(p) for p in model.parameters()], []
    for shards in zip(*(batches for _, batches in inputs)):
        n = sum(len(labels) for _, labels in shards)
        model.zero_grad()
        loss = 0
        for x, labels in shards:
            share = len(labels) / n if weight is None else weight(len(labels), n, len(shards))
            if len(labels):
                loss = loss + share * nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter, v in zip(model.parameters(), velocity):
                v.mul_(momentum).add_(parameter.grad)
                parameter -= _RATE * v
    weights = replicas.weights(model)
    return {"losses": losses, "weights": weights, "velocity": velocity, "in place": True}


def _weights_are(seen, twin):
    return replicas.close(replicas.got_weights(seen)[0], replicas.flat([twin["weights"]])[0])


def _some_rank_has_none(seen):
    return any(len(labels) == 0 for _, batches in seen.inputs for _, labels in batches)


def _only_the_first_step_is_right(seen):
    """The loss of the second step is the first that depends on how a step was made."""
    got, want = (torch.tensor(one[0]["losses"]) for one in (seen.results, seen.expected))
    return torch.allclose(got[:2], want[:2]) and not _right_to_few_digits(seen)


def _right_to_few_digits(seen):
    want = replicas.flat([seen.expected[0]["weights"]])
    return torch.allclose(replicas.got_weights(seen)[:1], want, rtol=1e-4, atol=1e-6)


whole_step = Exercise(
    "whole_step",
    cases=[
        _steps("3 samples each, three steps", *[[3, 3, 3, 3]] * 3),
        _steps("shards of 5, 1 and 2", *[[5, 1, 2]] * 3),
        _steps("one rank without samples", [2, 0, 3], [1, 4, 0]),
        _steps("two ranks, other sizes in each step", [4, 1], [2, 2], [1, 6]),
        _steps("alone", [4], [3]),
    ],
    expected=lambda inputs: [_twin(inputs)] * len(inputs),
    drive=_drive_step,
    tolerance=(replicas.CLOSE["rtol"], replicas.CLOSE["atol"]),
    hints=[
        Hint(
            lambda seen: any(str(loss) == "nan" for loss in seen.results[0]["losses"]),
            "A loss is not a number: what is the mean over no samples? Take a sum instead.",
        ),
        Hint(
            lambda seen: (
                _some_rank_has_none(seen) and (seen.happened != "error" or "NoneType" in seen.error)
            ),
            "A rank without samples must take part in every collective, too. What can it give that "
            "changes nothing?",
            when=("stuck", "died", "error"),
        ),
        Hint(
            lambda seen: True,
            "Every rank must make the same collective calls, in the same order.",
            when=("stuck", "died"),
        ),
        replicas.RETURNS_NOTHING,
        Hint(
            replicas.weights_differ,
            "The ranks end with different weights. Is every gradient added up before the step?",
        ),
        Hint(
            lambda seen: not all(got["in place"] for got in seen.results),
            "Weights and velocities are to be changed in place: whoever holds the old ones, an "
            "optimizer say, would not see the new.",
        ),
        Hint(
            lambda seen: _weights_are(seen, seen.expected[0]),
            "The weights are right. Look at the losses: is it the mean over the samples of all "
            "ranks, on every rank?",
        ),
        Hint(
            lambda seen: _weights_are(seen, _twin(seen.inputs, momentum=0.0)),
            "These are steps without momentum. Does velocity keep, in place, what the step before "
            "left there?",
        ),
        Hint(
            lambda seen: _weights_are(seen, _twin(seen.inputs, lambda m, n, ranks: 1.0)),
            "The gradients of the shards' means are summed, and not averaged.",
        ),
        Hint(
            lambda seen: _weights_are(seen, _twin(seen.inputs, lambda m, n, ranks: 1 / ranks)),
            "That is the plain mean over the ranks: a small shard counts as much as a large one.",
        ),
        Hint(
            _only_the_first_step_is_right,
            "The first step is right, and a later one is not. What is in `.grad` from the step "
            "before?",
        ),
        Hint(
            _right_to_few_digits,
            "It is right to a few digits. The weights are float64: what is computed or sent in "
            "float32?",
        ),
    ],
    hint="Do first what one rank would do with the whole batch. Which sums are over all ranks?",
)
