"""What the exercises of chapter 03 check: which data reach a number, gradients of parts.

The MLP has a module of its own, mlp.py.
"""

import gc
import math
import weakref

import torch
from torch import nn

from ranklab.checks.training._models import case, model_of, samples
from ranklab.old_checks._model import Choice, Exercise, Hint

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


# gradient_of_parts -----------------------------------------------------------------------------


def _parts(what, sizes):
    X, y = samples(sum(sizes))
    return case(what, lambda: model_of([5, 4, 3]), X, y, sizes)


def _drive_parts(answer, model, x, y, sizes):
    """The gradients, and whether there was one part in the memory at a time."""
    largest, kept, hidden = [0], [0], []

    def before(_, inputs):
        largest.append(len(inputs[0]))
        if sum(there() is not None for there in hidden) > 1:
            gc.collect()
        kept.append(sum(there() is not None for there in hidden))

    model.register_forward_pre_hook(before)
    # A graph keeps what tanh returned. That of the last part may end with the next one's loss.
    model[1].register_forward_hook(lambda _, inputs, out: hidden.append(weakref.ref(out)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # of the step before
    gradients = answer(model, x, y, sizes)
    return {
        "gradients": gradients,
        "no part too large": max(largest) <= max(sizes),
        "graphs let go": max(kept) <= 1,
    }


def _whole(inputs):
    model, x, y, _ = inputs[0]
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    return [{"gradients": gradients, "no part too large": True, "graphs let go": True}]


def _all_close(one, other):
    return all(map(torch.allclose, one, other))


def _is_last_part(seen):
    """Is the result the gradient of the last part alone?"""
    model, x, y, sizes = seen.inputs[0]
    got = seen.results[0]["gradients"]
    last = nn.functional.cross_entropy(model(x[-sizes[-1] :]), y[-sizes[-1] :])
    last = torch.autograd.grad(last, list(model.parameters()))
    factors = 1, sizes[-1] / len(x)
    return any(_all_close(got, [factor * g for g in last]) for factor in factors)


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
    limit=3.0,
    hints=[
        Hint(
            lambda seen: not seen.results[0]["no part too large"],
            "The model was called with more than one part: that is what the memory does not allow.",
        ),
        Hint(
            lambda seen: not seen.results[0]["graphs let go"],
            "One gradient of the sum of all losses needs the graphs of all parts at once, and they "
            "hold what the whole batch does. Take each part's gradients before the next part's "
            "forward pass, and add up those.",
        ),
        Hint(
            lambda seen: seen.found == "dtype",
            "The gradients have the dtype of the parameters: torch.zeros_like(parameter) has it.",
        ),
        Hint(
            lambda seen: seen.found in ("type", "shape"),
            "Return a list, with a tensor of its shape for each of model.parameters().",
        ),
        Hint(
            lambda seen: not any(g.any() for g in seen.results[0]["gradients"]),
            "Nothing was added to the zeros. `so_far += gradient` changes the tensor that is in "
            "the list; `so_far = so_far + gradient` makes another one.",
        ),
        Hint(
            _is_last_part,
            "That is of the last part alone: add up, and do not replace.",
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
            lambda seen: seen.case.what == "6 samples, 5 and 1",
            "A part of 5 samples must count 5 times as much as a part of 1.",
        ),
        Hint(
            lambda seen: True,
            "Each part is worked through once: zip(x.split(sizes), y.split(sizes)) gives them.",
            when=("slow",),
        ),
    ],
    hint="Write the mean over all samples as a sum over parts. With what factor does the mean over "
    "one part stand in it?",
)


# which_rows ------------------------------------------------------------------------------------


class _Reads:
    """A function of some rows. weights: {row: how much it counts}. of: of a row, what counts."""

    def __init__(self, weights, shape, of=torch.Tensor.tanh):
        self.weights, self.shape, self.of = weights, tuple(shape), of

    def __call__(self, X):
        if tuple(X.shape) != self.shape:
            raise ValueError(f"f takes a tensor of the shape {self.shape}, and got {(*X.shape,)}.")
        rows = self.weights.items()
        return float(sum(weight * self.of(X[row]).sum() for row, weight in rows))

    def __repr__(self):
        return "f"


def _rows(what, n, weights, blank=()):
    X, _ = samples(n, seed=n)
    X[list(blank)] = 0
    return case(what, lambda: _Reads(weights, X.shape), X)


def _steps(row):
    """What adding a number to the whole row leaves as it is."""
    return row.diff().tanh()


def _shares(row):
    """What multiplying the whole row by a number leaves as it is."""
    return (row / row.max()).tanh()


def _whole_numbers(what, weights, of):
    """Of numbers with which a computer makes no rounding error that would betray a row."""
    X = torch.tensor([[1.0, 2, 4], [4, 1, 2], [8, 2, 1], [2, 8, 4]], dtype=torch.float64)
    return case(what, lambda: _Reads(weights, X.shape, of), X)


def _lost(seen):
    """The rows that matter and were not found."""
    return {*seen.expected[0]} - {*seen.results[0]}


def _others(seen):
    return {*range(len(seen.inputs[0][1]))} - {*seen.expected[0]}


SMALL, BLANK = "6 rows, one of which matters very little", "6 rows, two of them zero"
STEPS = "4 rows, two of which matter by the differences between their numbers"
SHARES = "4 rows, two of which matter by the ratios of their numbers"

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
        _whole_numbers(STEPS, {0: 1.0, 2: 1.0}, _steps),
        _whole_numbers(SHARES, {1: 1.0, 3: 1.0}, _shares),
    ],
    expected=lambda inputs: [sorted(inputs[0][0].weights)],
    hints=[
        Hint(
            lambda seen: True,
            "`changed = X` gives X a second name. `X.clone()` makes a copy.",
            when=("changed",),
        ),
        Hint(
            lambda seen: "f takes a tensor of the shape" in seen.error,
            "f is to get all rows, one of them changed. A row that is left out moves those after "
            "it, too.",
            when=("error",),
        ),
        Hint(
            lambda seen: set(seen.results[0]) == _others(seen),
            "These are the rows that do not matter.",
        ),
        Hint(
            lambda seen: seen.case.what == BLANK and _lost(seen) == {3},
            "Row 3 looks blank already. Does your change make it another row?",
        ),
        Hint(
            lambda seen: seen.case.what == SMALL and _lost(seen) == {5},
            "f gives the same bits for the same input, so the smallest difference counts: "
            "compare with != and without a tolerance.",
        ),
        Hint(
            lambda seen: seen.case.what in (STEPS, SHARES) and _lost(seen),
            "Adding one number to a whole row keeps the differences in it, and multiplying keeps "
            "the ratios. What changes both?",
        ),
        Hint(
            lambda seen: seen.results[0] != sorted(seen.results[0]),
            "The numbers are to rise.",
        ),
        Hint(
            lambda seen: set(seen.expected[0]) < set(seen.results[0]),
            "Are the rows of before still changed when you come to the next one? Begin each time "
            "with a copy of X.",
        ),
    ],
    hint="For one row: what do you call f with, and with what do you compare what it returns?",
)
