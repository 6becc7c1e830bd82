"""The exercise of chapter 11 on seeds: what must be equal on all ranks, and what must differ."""

import torch

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Exercise, Hint


def _build():
    return torch.nn.Linear(4, 3)


def _begun(answer, *args):
    """Call the answer; return what it drew, as data."""
    model, samples, noise = answer(*args, _build)
    return {
        "weights": replicas.weights(model)["weight"],
        "samples": [int(i) for i in samples],
        "noise": noise,
    }


def _drive_begin(answer, seed, epoch, n):
    """Begin runs; "next seeds" are as many as there are ranks, the seeds after this one."""
    ranks = torch.distributed.get_world_size()
    torch.manual_seed(12345 + torch.distributed.get_rank())  # what was drawn before is nobody's
    return {
        **_begun(answer, seed, epoch, n),
        "next seeds": [_begun(answer, seed + k + 1, epoch, n) for k in range(ranks)],
        "next epoch": _begun(answer, seed, epoch + 1, n),
        "again": _begun(answer, seed, epoch, n),
    }


def _differs(one, other):
    """Return the first of samples, weights and noise in which two beginnings differ, or ""."""
    if one["samples"] != other["samples"]:
        return "samples"
    return next((key for key in ("weights", "noise") if not torch.equal(one[key], other[key])), "")


def _judge_begin(seen):
    seed, epoch, n = seen.inputs[0]
    weights = replicas.of(seen, "weights")
    for rank, result in enumerate(seen.results):
        if _differs(result, result["again"]):
            return "Called again with the same arguments, it gives something else."
        if not torch.equal(weights[rank], weights[0]):
            return f"The models of rank {rank} and of rank 0 start with different weights."
        late = {**result["next epoch"], "samples": result["samples"]}
        if other := _differs(result, late):
            return f"With another epoch, rank {rank} has other {other}."
    said = _about_samples(seen.results, seed, epoch, n)
    said = said or _about_samples(replicas.of(seen, "next epoch"), seed, epoch + 1, n)
    if said:
        return said
    if torch.equal(weights[0], seen.results[0]["next seeds"][0]["weights"]):
        return "Another seed gives the same first weights."
    return _about_noise(seen)


def _about_samples(results, seed, epoch, n):
    want = replicas.hands(n, len(results), epoch, seed=seed)
    for rank, result in enumerate(results):
        if result["samples"] != want[rank]:
            return (
                f"Rank {rank}'s samples in epoch {epoch} are {replicas.listed(result['samples'])}."
                f"\nThose of the sampler are {replicas.listed(want[rank])}."
            )
    return None


def _about_noise(seen):
    """Say where two ranks, or two runs whose seeds are close, draw the same noise; else None."""
    seed, noises = seen.inputs[0][0], replicas.of(seen, "noise")
    for rank, noise in enumerate(noises):
        for other in range(rank):
            if torch.equal(noise, noises[other]):
                return f"Ranks {other} and {rank} draw the same noise."
    for other, result in enumerate(seen.results):
        for later, run in enumerate(result["next seeds"], start=seed + 1):
            for rank, noise in enumerate(noises):
                if not torch.equal(noise, run["noise"]):
                    continue
                if rank == other:
                    return f"Rank {rank} draws the same noise with seed {seed} and with {later}."
                return (
                    f"Rank {rank} draws with seed {seed} the noise that rank {other} draws with "
                    f"seed {later}: two runs share it."
                )
    return None


def _says(*words):
    return lambda seen: any(word in _judge_begin(seen) for word in words)


def _begin_case(seed, epoch, n, ranks):
    def make(rank, world_size):
        return seed, epoch, n

    return Case(f"seed {seed}, epoch {epoch}, {n} samples", make, ranks=ranks)


begin = Exercise(
    "begin",
    cases=[_begin_case(0, 0, 20, 4), _begin_case(7, 3, 21, 2), _begin_case(3, 1, 5, 1)],
    expected=None,
    drive=_drive_begin,
    judge=_judge_begin,
    hints=[
        Hint(_says("Called again"), "Something is drawn before a seed is set."),
        Hint(_says("start with"), "For the weights, the seed must not depend on the rank."),
        Hint(
            _says("With another epoch"), "Who has to know of the epoch? The sampler, and no seed."
        ),
        Hint(
            _says("samples"),
            "The sampler shuffles by its seed plus the epoch, and its seed is the same on all "
            "ranks: every rank has to shuffle the same deck.",
        ),
        Hint(
            _says("share it"),
            "Two pairs of seed and rank come to one number. Which is another one for every pair?",
        ),
        Hint(_says("with seed"), "The seed of the noise must depend on the seed of the run, too."),
        Hint(_says("noise"), "For the noise, the seed must depend on the rank."),
    ],
    hint="What must be equal on all ranks, and what must differ?",
)
