"""What the exercises of chapter 03 check: which data reach a number, gradients of parts.

The MLP has a module of its own, mlp.py.
"""

import math
from itertools import pairwise

import torch
from torch import nn

from ranklab.exercises import Case, Choice, Exercise, Hint

canary = Choice(
    "canary",
    right="b",
    why={
        "a": "A robust network gives the same outputs, but a loss compares outputs with labels. "
        "Other labels, another loss.",
        "c": "Only a network that gives all 32 classes the same probability loses the same with "
        "any labels, and that is ln 32 = 3.4657.",
    },
    because="A loss is computed from outputs and labels. If other labels change no digit, the "
    "number comes from other labels, of the training set say, or from an earlier run.",
)

no_remainder = Choice(
    "no_remainder",
    right="b",
    why={
        "a": "The floor near 0.2 was the loss of 40 samples that were never trained on. How many "
        "of those are there if every batch is full?",
        "c": "No training sample is left out now. The 9000 others still are: the split has not "
        "been repaired.",
    },
    because="All 1000 are learned by heart (measured: 0.06, every class found), and the others "
    "are as foreign as before (5.9). A lower train loss, and not a bit more learned.",
)


def case(what, *args):
    """A case without ranks. args: what the answer is called with; a function makes it afresh."""
    return Case(what, lambda *_: tuple(a() if callable(a) else a for a in args), ranks=1)


# gradient_of_parts -----------------------------------------------------------------------------


def model_of(sizes, seed=0):
    """Linear layers without bias and tanh between them, in float64."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for n_in, n_out in pairwise(sizes):
        layer = nn.Linear(n_in, n_out, bias=False).double()
        bound = math.sqrt(6 / n_in)
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        parts += [layer, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


def samples(n, features=5, classes=3, seed=0):
    """X (n, features), float64, and y (n,)."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, features, dtype=torch.float64, generator=generator)
    return X, torch.randint(classes, (n,), generator=generator)


def _parts(what, sizes):
    X, y = samples(sum(sizes))
    return case(what, lambda: model_of([5, 4, 3]), X, y, sizes)


def _drive_parts(answer, model, x, y, sizes):
    """The gradients, and whether the model was called with one part at a time."""
    largest = [0]
    model.register_forward_pre_hook(lambda _, inputs: largest.append(len(inputs[0])))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # of the step before
    gradients = answer(model, x, y, sizes)
    return {"gradients": gradients, "no part too large": max(largest) <= max(sizes)}


def _whole(inputs):
    model, x, y, _ = inputs[0]
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    return [{"gradients": gradients, "no part too large": True}]


def _as_if_added(seen):
    """Is what stood in .grad before part of the answer?"""
    got, right = (r[0]["gradients"][0] for r in (seen.results, seen.expected))
    return torch.allclose(got - right, torch.ones_like(right))


def _ratio(seen):
    """The answer's first gradient over the right one, where it is the same ratio everywhere."""
    got, right = (r[0]["gradients"][0] for r in (seen.results, seen.expected))
    ratios = got / right
    return ratios.mean().item() if ratios.std() < 1e-6 * ratios.mean().abs() else math.nan


gradient_of_parts = Exercise(
    "gradient_of_parts",
    cases=[
        _parts("6 samples, 3 and 3", [3, 3]),
        _parts("6 samples, 5 and 1", [5, 1]),
        _parts("7 samples in one part", [7]),
        _parts("9 samples, 4, 0 and 5", [4, 0, 5]),
        _parts("12 samples, one each", [1] * 12),
        _parts("11 samples, 2, 3, 1 and 5", [2, 3, 1, 5]),
    ],
    expected=_whole,
    drive=_drive_parts,
    tolerance=(1e-9, 1e-12),
    hints=[
        Hint(
            lambda seen: not seen.results[0]["no part too large"],
            "The model was called with more than one part: that is what the memory does not allow.",
        ),
        Hint(
            _as_if_added,
            "Every entry is too large by 1, which .grad held before: backward() adds to it.",
        ),
        Hint(
            lambda seen: abs(_ratio(seen) - len(seen.inputs[0][3])) < 1e-6,
            "That is too large by the number of parts: it is their sum, not their mean.",
        ),
        Hint(
            lambda seen: len(set(seen.inputs[0][3])) > 1,
            "A part of 5 samples must count 5 times as much as a part of 1.",
        ),
    ],
    hint="Write the mean over all samples as a sum over parts. With what factor does the mean over "
    "one part stand in it?",
)


# which_rows ------------------------------------------------------------------------------------


class _Reads:
    """A function of some rows. weights: {row: how much it counts}."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, X):
        return float(sum(weight * X[row].tanh().sum() for row, weight in self.weights.items()))

    def __repr__(self):
        return "f"


def _rows(what, n, weights, blank=()):
    X, _ = samples(n, seed=n)
    X[list(blank)] = 0
    return case(what, lambda: _Reads(weights), X)


SMALL, BLANK = "6 rows, one of which matters very little", "6 rows, two of them zero"

which_rows = Exercise(
    "which_rows",
    cases=[
        _rows("6 rows, the first three matter", 6, {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}),
        _rows(BLANK, 6, {1: 1.0, 3: 1.0}, blank=(3, 4)),
        _rows(SMALL, 6, {2: 1.0, 5: 1e-10}),
        _rows("4 rows, none matters", 4, {}),
        _rows("1 row", 1, {0: 1.0}),
        _rows("40 rows, each fourth matters", 40, dict.fromkeys(range(3, 40, 4), 1.0)),
        _rows("5 rows, two of which counteract", 5, {1: 1.0, 4: -1.0}),
    ],
    expected=lambda inputs: [sorted(inputs[0][0].weights)],
    hints=[
        Hint(
            lambda seen: seen.happened == "changed",
            "`changed = X` gives X a second name. `X.clone()` makes a copy.",
        ),
        Hint(
            lambda seen: seen.case.what == BLANK,
            "A row that is zero already stays the same when you blank it. Change it to "
            "something else than it is.",
        ),
        Hint(
            lambda seen: seen.case.what == SMALL,
            "f gives the same bits for the same input, so the smallest difference counts: "
            "compare with != and without a tolerance.",
        ),
        Hint(
            lambda seen: set(seen.expected[0]) < set(seen.results[0]),
            "Are the rows of before still changed when you come to the next one? Begin each time "
            "with a copy of X.",
        ),
    ],
    hint="For each row: copy X, change that row, call f, and compare with f(X).",
)
