"""The exercise of chapter 12 on batches of unequal number."""

import torch
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Exercise, Hint


def _drive_uneven(answer, seed, batches):
    model = replicas.model("plain", seed)
    answer(model, batches, replicas.RATE)
    return replicas.flat([replicas.weights(model)])[0]


def _expected_uneven(inputs, longest=max, weight=None, kept=None):
    """Train in one process; weight(samples, those of all, ranks) of a batch's mean.

    kept(batches of the step before, of this one, ranks): how many times the gradients of the step
    before are added to those of a step.
    """
    model, of_ranks = replicas.model("plain", inputs[0][0]), [batches for _, batches in inputs]
    before = 0
    for step in range(longest(len(batches) for batches in of_ranks)):
        there = [batches[step] for batches in of_ranks if step < len(batches)]
        for p in model.parameters():
            times = kept(before, len(there), len(inputs)) if kept and step else 0
            p.grad = times * p.grad if times else None
        n = sum(len(labels) for _, labels in there)
        for x, labels in there:
            loss = nn.functional.cross_entropy(model(x), labels)
            share = weight(len(labels), n, len(inputs)) if weight else 1 / len(there)
            (share * loss).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= replicas.RATE * p.grad
        before = len(there)
    return [replicas.flat([replicas.weights(model)])[0]] * len(inputs)


def _kept_mean(before, now, ranks):
    """The mean stays in .grad, where there is a batch, and is zero elsewhere."""
    return 1


def _kept_sum(before, now, ranks):
    """The sum stays in every rank's .grad, and is divided only where it is used."""
    return ranks * before / now


def _uneven(*counts):
    """A case in which rank r has counts[r] batches, of two to four samples."""

    def make(rank, world_size):
        sizes = [2 + (r + k) % 3 for r, count in enumerate(counts) for k in range(count)]
        x, labels = replicas.data(sum(sizes))
        batches = list(zip(x.split(sizes), labels.split(sizes)))
        first = sum(counts[:rank])
        return 1 + rank, batches[first : first + counts[rank]]

    return Case(f"ranks with {', '.join(map(str, counts))} batches", make, ranks=len(counts))


def _as_if(seen, **changes):
    return bool(seen.results) and all(
        replicas.close(got, want)
        for got, want in zip(seen.results, _expected_uneven(seen.inputs, **changes))
    )


train_uneven = Exercise(
    "train_uneven",
    cases=[
        _uneven(2, 3, 2, 1),
        _uneven(3, 3),
        _uneven(0, 2, 4),
        _uneven(3, 0),
        _uneven(2),
    ],
    expected=_expected_uneven,
    drive=_drive_uneven,
    tolerance=(1e-9, 1e-11),
    hints=[
        Hint(
            lambda seen: True,
            "A rank that has no more batches must go on to take part in the collectives, until "
            "nobody has any.",
            when=("stuck", "died"),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error,
            "A rank without a batch has no gradients: its `.grad` is None. What can it give that "
            "changes nothing?",
            when=("error",),
        ),
        Hint(
            lambda seen: _as_if(seen, weight=lambda m, n, ranks: 1 / ranks),
            "The gradients are divided by the world size, also where fewer ranks have a batch.",
        ),
        Hint(
            lambda seen: _as_if(seen, weight=lambda m, n, ranks: m / n),
            "That is the mean over all samples. Asked for is the mean of the ranks' gradients: a "
            "small batch counts as much as a large one.",
        ),
        Hint(
            lambda seen: any(_as_if(seen, kept=kept) for kept in (_kept_mean, _kept_sum)),
            "The gradients of the step before are in it, too: `backward` adds to what a `.grad` "
            "holds already.",
        ),
        Hint(
            lambda seen: _as_if(seen, longest=min),
            "It stops as soon as one rank has no more batches; the others have some left.",
        ),
        Hint(
            lambda seen: (
                seen.results
                and not all(replicas.close(got, seen.results[0]) for got in seen.results)
            ),
            "The ranks end with different weights. They must begin with those of rank 0, and make "
            "every step together, those without a batch, too.",
        ),
    ],
    hint="One more number can travel with the gradients: 1 from a rank with a batch, else 0.",
)
