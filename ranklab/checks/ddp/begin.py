"""Seeds: what must be equal on all ranks, and what must differ."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from ranklab.checks import _replicas as replicas
from ranklab.exercises import Case, Exercise, Mistake

OF_WEIGHTS = "torch.manual_seed(seed)"
OF_NOISE = "seed * dist.get_world_size() + dist.get_rank()"


def case(seed, epoch, n, ranks):
    return Case(
        f"seed {seed}, epoch {epoch}, {n} samples", lambda *_: (seed, epoch, n), ranks=ranks
    )


def drive(answer, seed, epoch, n):
    """Begin runs; "next seeds" are as many as there are ranks, the seeds after this one."""

    def begun(*args):
        model, samples, noise = answer(*args, lambda: torch.nn.Linear(4, 3))
        weights = model.weight.detach().clone()
        return {"weights": weights, "samples": [int(i) for i in samples], "noise": noise}

    torch.manual_seed(12345 + dist.get_rank())  # what was drawn before is nobody's
    return {
        **begun(seed, epoch, n),
        "next seeds": [begun(seed + k, epoch, n) for k in range(1, 1 + dist.get_world_size())],
        "next epoch": begun(seed, epoch + 1, n),
        "again": begun(seed, epoch, n),
    }


def judge(seen):
    (seed, epoch, n), first = seen.inputs[0], seen.results[0]
    for rank, result in enumerate(seen.results):
        if differs(result, result["again"], ("samples", "weights", "noise")):
            return "Called again with the same arguments, it gives something else."
        if differs(first, result, ("weights",)):
            return f"The models of rank {rank} and of rank 0 start with different weights."
        if other := differs(result, result["next epoch"], ("weights", "noise")):
            return f"With another epoch, rank {rank} has other {other}."
    said = about_samples(seen.results, seed, epoch, n)
    said = said or about_samples(replicas.of(seen, "next epoch"), seed, epoch + 1, n)
    if not said and not differs(first, first["next seeds"][0], ("weights",)):
        return "Another seed gives the same first weights."
    return said or about_noise(seen.results, seed)


def differs(one, other, keys):
    """Return the first of the keys under which two beginnings differ, or ""."""
    there = (map(torch.as_tensor, (one[key], other[key])) for key in keys)
    return next((key for key, pair in zip(keys, there) if not torch.equal(*pair)), "")


def about_samples(results, seed, epoch, n):
    for rank, want in enumerate(replicas.hands(n, len(results), epoch, seed=seed)):
        if (got := results[rank]["samples"]) != want:
            return (
                f"Rank {rank}'s samples in epoch {epoch} are {replicas.listed(got)}.\n"
                f"Those of the sampler are {replicas.listed(want)}."
            )
    return None


def about_noise(results, seed):
    """Say where two ranks, or two runs whose seeds are close, draw the same noise; else None."""
    drawn = {}  # by seed and rank
    for rank, result in enumerate(results):
        for later, run in enumerate([result, *result["next seeds"]]):
            drawn[seed + later, rank] = run["noise"]
    for (later, other), noise in sorted(drawn.items(), key=lambda one: one[0]):
        for rank in range(len(results)):
            if (later, other) == (seed, rank) or not torch.equal(noise, drawn[seed, rank]):
                continue
            if later == seed:
                return f"Ranks {rank} and {other} draw the same noise."
            if other == rank:
                return f"Rank {rank} draws the same noise with seed {seed} and with {later}."
            return (
                f"Rank {rank} draws with seed {seed} the noise that rank {other} draws with "
                f"seed {later}: two runs share it."
            )
    return None


def said(*words):
    return lambda seen: any(word in judge(seen) for word in words)


def a_seed_that_is_drawn(seed, epoch, n, build):
    """The seeds of the ranks are drawn from the generator of the run."""
    sampler = DistributedSampler(range(n), shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    torch.manual_seed(seed)
    model = build()
    torch.manual_seed(int(torch.randint(2**62, (dist.get_world_size(),))[dist.get_rank()]))
    return model, tuple(sampler), torch.randn(12)


exercise = Exercise(
    cases=[case(0, 0, 20, 4), case(7, 3, 21, 2), case(3, 1, 5, 1)],
    twin=None,
    drive=drive,
    judge=judge,
    hint="What must be equal on all ranks, and what must differ?",
    mistakes=[
        Mistake(
            "Something is drawn before a seed is set.",
            {f"    {OF_WEIGHTS}\n": ""},
            test=said("Called again"),
        ),
        Mistake(
            "For the weights, the seed must not depend on the rank.",
            {OF_WEIGHTS: f"torch.manual_seed({OF_NOISE})"},
            test=said("start with"),
        ),
        Mistake(
            "Who has to know of the epoch? The sampler, and no seed.",
            {OF_WEIGHTS: "torch.manual_seed(seed + 1000 * epoch)"},
            {OF_NOISE: f"1000 * epoch + {OF_NOISE}"},
            test=said("With another epoch"),
        ),
        Mistake(
            "The sampler shuffles by its seed plus the epoch, and its seed is the same on all "
            "ranks: every rank has to shuffle the same deck.",
            {", seed=seed)": f", seed={OF_NOISE})"},
            {", seed=seed)": ")"},
            {"    sampler.set_epoch(epoch)\n": ""},
            test=said("samples"),
        ),
        Mistake(
            "Two pairs of seed and rank come to one number. Which is another one for every pair?",
            {OF_NOISE: "seed + dist.get_rank()"},
            {OF_NOISE: "seed + dist.get_world_size() * dist.get_rank()"},
            test=said("share it"),
        ),
        Mistake(
            "The seed of the noise must depend on the seed of the run, too.",
            {OF_NOISE: "dist.get_rank()"},
            test=said("with seed"),
        ),
        Mistake(
            "For the noise, the seed must depend on the rank.",
            {OF_NOISE: "seed"},
            test=said("noise"),
        ),
    ],
    also_right=[
        a_seed_that_is_drawn,
        {OF_NOISE: "1_000_003 * (seed + 1) + dist.get_rank()"},
    ],
)
