"""The exercise on data parallel training by hand.

It must end, on every rank, with the weights of one process that is given the whole batches.
"""

import math

import torch

from ranklab.checks import _replicas as replicas
from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint


def _drive_own(answer, kind, seed, batches):
    """Run the answer to `own_ddp` on this rank."""
    return replicas.watch(answer, replicas.model(kind, seed), batches, replicas.RATE)


def _twin_of_own(seen, *, rate=1, rank=0, kept=0):
    """Train in one process; with `rate` times the learning rate, from the start of `rank`.

    kept: how many times the gradients of the step before are in those of a step.
    """
    kind, seed, batches = seen.inputs[rank]
    model = replicas.model(kind, seed)
    losses = replicas.train(model, batches, rate * replicas.RATE, kept)
    return {"weights": replicas.weights(model), "losses": losses}


def _judge_own(seen):
    twin = _twin_of_own(seen)
    return (
        _about_shares(seen)
        or replicas.about_weights(seen.results, twin["weights"])
        or replicas.about_last_bits(seen.results)
        or replicas.about_losses(seen.results, twin["losses"])
    )


def _about_shares(seen):
    """Say where the ranks' shares are not even, or do not make up the batch; else None."""
    if not seen.results:
        return None
    for i, (whole, shares) in enumerate(_dealt(seen)):
        sizes = list(map(len, shares))
        if sorted(replicas.chained(shares)) != whole or max(sizes) > min(sizes) + 1:
            of_ranks = "\n".join(
                f"    rank {r}: {replicas.listed(some)}" for r, some in enumerate(shares)
            )
            return (
                f"The batch of step {i + 1} has the samples {replicas.listed(whole)}.\n{of_ranks}"
            )
    return None


def _dealt(seen):
    """Return (its samples, those that each rank computed on) of every batch.

    A rank need not call the model once for each batch: with nothing to compute it may not call it,
    and it may work through its share in parts. But a sample is in one batch only.
    """
    computed = [replicas.chained(steps) for steps in replicas.of(seen, "steps")]
    batches = [sorted(replicas.numbers(inputs)) for inputs, _ in seen.inputs[0][2]]
    return [(whole, [[k for k in some if k in whole] for some in computed]) for whole in batches]


def _whole_batch_everywhere(seen):
    whole, shares = _dealt(seen)[0]
    return replicas.several(seen) and all(sorted(share) == whole for share in shares)


def _uneven(seen):
    """Do the samples make up the batches, in shares that are not even?"""
    return bool(_about_shares(seen)) and all(
        sorted(replicas.chained(shares)) == whole for whole, shares in _dealt(seen)
    )


def _idle_parts_differ(seen):
    """Do parameters without gradient differ from those of rank 0?"""
    twin = _twin_of_own(seen)["weights"]
    return any(
        not replicas.close(result["weights"][name], twin[name])
        for result in seen.results
        for name in replicas.IDLE & twin.keys()
    )


def _others_stand_still(seen):
    """Did rank 0 move, and the others stay where they were, or where rank 0 began?"""
    (first, *others), start = replicas.got_weights(seen), replicas.starts(seen)
    moved = not replicas.close(first, start[0])
    return moved and all(
        replicas.close(got, own) or replicas.close(got, start[0])
        for got, own in zip(others, start[1:], strict=True)
    )


def _each_from_its_own_start(seen):
    """Did all ranks make the same steps, each from the weights that it came with?"""
    got, start = replicas.got_weights(seen), replicas.starts(seen)
    return replicas.weights_differ(seen) and torch.allclose(
        got - got[0], start - start[0], rtol=1e-6
    )


def _as_with(seen, **changes):
    """Are the weights of rank 0 those of a twin with `changes`?"""
    twin = replicas.flat([_twin_of_own(seen, **changes)["weights"]])
    return replicas.several(seen) and replicas.close(replicas.got_weights(seen)[:1], twin)


def _some_batch_is_not_divided(seen):
    return any(len(labels) % len(seen.inputs) for _, labels in seen.inputs[0][2])


def _plain(seen):
    return seen.inputs[0][0] == "plain"


def _some_rank_has_none(seen):
    return any(len(labels) < len(seen.inputs) for _, labels in seen.inputs[0][2])


def _own_case(sizes, *, ranks, kind="plain"):
    def make(rank, world_size):
        inputs, labels = replicas.data(sum(sizes))
        return kind, 1 + rank, list(zip(inputs.split(sizes), labels.split(sizes)))

    what = f"batches of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} samples"
    return Case(what + ", some parameters without gradient" * (kind != "plain"), make, ranks=ranks)


own_ddp = Exercise(
    "own_ddp",
    cases=[
        _own_case([12, 12, 12], ranks=4),
        _own_case([8, 3, 8], ranks=4),
        _own_case([10, 7], ranks=4),
        _own_case([9, 6, 9], ranks=3),
        _own_case([8, 8], ranks=2),
        _own_case([8, 8], ranks=2, kind="with idle parts"),
        _own_case([5, 1, 4], ranks=3),
        _own_case([5, 4], ranks=1),
    ],
    expected=None,
    drive=_drive_own,
    judge=_judge_own,
    hints=[
        Hint(
            _some_rank_has_none,
            "A rank without samples must still take part in every collective.",
            when=("stuck", "died"),
        ),
        called_as("own_ddp(model, batches, learning_rate)"),
        Hint(
            lambda seen: "NoneType" in seen.error and "attribute 'item'" in seen.error,
            replicas.RETURNS_NOTHING.sentence,
            when=("error",),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error and _plain(seen) and _some_rank_has_none(seen),
            "A rank without samples has no gradients, and the others wait for its zeros.",
            when=("error",),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error and _plain(seen),
            "Before the first `backward`, every `.grad` is None.",
            when=("error",),
        ),
        Hint(
            lambda seen: "None" in seen.error,
            "Some parameters have no gradient: their `.grad` is None.",
            when=("error",),
        ),
        Hint(
            lambda seen: seen.error.startswith("IndexError") and _some_rank_has_none(seen),
            "A batch smaller than world size: does every rank get a share, if an empty one?",
            when=("error",),
        ),
        Hint(
            lambda seen: "leaf" in seen.error,
            "Weights are written outside of what autograd records: under `torch.no_grad()`.",
            when=("error",),
        ),
        Hint(
            lambda seen: True,
            "Every rank must make the same collective calls, in the same order.",
            when=("stuck", "died"),
        ),
        Hint(
            _whole_batch_everywhere,
            "Every rank computes on the whole batch. That is no faster than one process.",
        ),
        Hint(_uneven, "Each sample is used once, but the shares are not even."),
        Hint(_about_shares, "Over all ranks, each sample of a batch must be computed on once."),
        Hint(
            _idle_parts_differ,
            "Parameters that have no gradient are parts of the model, too: those of rank 0 count.",
        ),
        Hint(_others_stand_still, "Rank 0 makes its steps, and the other ranks stand still."),
        Hint(
            _each_from_its_own_start,
            "The ranks' weights differ by as much as at the start: all make the same steps, each "
            "from its own weights. Who tells them the start?",
        ),
        Hint(
            replicas.weights_differ,
            "The ranks have different weights. What must be equal at each step?",
        ),
        Hint(
            lambda seen: _as_with(seen, rate=len(seen.results)),
            "The steps are world size times too long: the gradients were added up. And then?",
        ),
        Hint(
            lambda seen: any(_as_with(seen, rank=rank) for rank in range(1, len(seen.results))),
            "These are the weights of a training that starts with another rank's weights; those "
            "of rank 0 count.",
        ),
        Hint(
            lambda seen: any(_as_with(seen, kept=kept) for kept in (1, len(seen.results))),
            "In the second step the gradients of the first are in it, too: `backward` adds to what "
            "a `.grad` holds already.",
        ),
        Hint(
            lambda seen: seen.results and not _as_with(seen) and _some_batch_is_not_divided(seen),
            "All ranks agree, on something else than one process. Where the shares are of "
            "different sizes, is the mean of the ranks' means the mean of the batch?",
        ),
        Hint(
            lambda seen: replicas.about_last_bits(seen.results),
            "Every rank adds up the same gradients. Does each of them do it in the same order?",
        ),
        Hint(
            lambda seen: any(
                math.isnan(loss) for one in replicas.of(seen, "losses") for loss in one
            ),
            "The mean over no samples is nan, and so is whatever it is added to.",
        ),
        *replicas.hints_on_losses(_twin_of_own),
    ],
    hint="Write down the gradient of the mean over the whole batch as a sum over the ranks.",
)
