"""Which rows of its argument a function depends on."""

import torch

from ranklab.checks.training._models import case, samples
from ranklab.exercises import Exercise, Mistake

CHANGE = "1.7 * changed[row] + 1.3"  # in the solution


class Reads:
    """A function of some rows. weights: {row: how much it counts}. of: of a row, what counts."""

    def __init__(self, weights, shape, of):
        self.weights, self.shape, self.of = weights, tuple(shape), of

    def __call__(self, X):
        if tuple(X.shape) != self.shape:
            raise ValueError(f"f takes a tensor of the shape {self.shape}, and got {(*X.shape,)}.")
        rows = self.weights.items()
        return float(sum(weight * self.of(X[row]).sum() for row, weight in rows))

    def __repr__(self):
        return "f"


def rows(what, n, weights, blank=()):
    X, _ = samples(n, seed=n)
    X[list(blank)] = 0
    return case(what, lambda: Reads(weights, X.shape, torch.tanh), X)


def steps(row):
    """What adding a number to the whole row leaves as it is."""
    return row.diff().tanh()


def shares(row):
    """What multiplying the whole row by a number leaves as it is."""
    return (row / row.max()).tanh()


def whole_numbers(what, weights, of):
    """Of numbers with which a computer makes no rounding error that would betray a row."""
    X = torch.tensor([[1.0, 2, 4], [4, 1, 2], [8, 2, 1], [2, 8, 4]], dtype=torch.float64)
    how = f"4 rows, two of which matter by the {what} their numbers"
    return case(how, lambda: Reads(weights, X.shape, of), X)


exercise = Exercise(
    cases=[
        rows("6 rows, the first three matter", 6, {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}),
        rows("6 rows, two of them zero", 6, {1: 1.0, 3: 1.0}, blank=(3, 4)),
        rows("6 rows, one of which matters very little", 6, {2: 1.0, 5: 1e-10}),
        rows("4 rows, none matters", 4, {}),
        rows("1 row", 1, {0: 1.0}),
        rows("40 rows, each fourth matters", 40, dict.fromkeys(range(3, 40, 4), 1.0)),
        rows("5 rows, two of which counteract", 5, {1: 1.0, 4: -1.0}),
        whole_numbers("differences between", {0: 1.0, 2: 1.0}, steps),
        whole_numbers("ratios of", {1: 1.0, 3: 1.0}, shares),
    ],
    twin=lambda inputs: [sorted(inputs[0][0].weights)],
    hint="For one row: what do you call f with, and with what do you compare what it returns?",
    also_right=[{CHANGE: 'float("nan")'}, {CHANGE: "changed[row].exp()"}],
    mistakes=[
        Mistake(
            "`changed = X` gives X a second name. `X.clone()` makes a copy.",
            {"X.clone()": "X"},
            happened="changed",
        ),
        Mistake(
            "f is to get all rows, one of them changed. A row that is left out moves those after "
            "it, too.",
            {f"[row] = {CHANGE}": " = changed[[i for i in range(len(X)) if i != row]]"},
            happened="error",
            test=lambda seen: "f takes a tensor of the shape" in seen.error,
        ),
        Mistake("These are the rows that do not matter.", {"!= before": "== before"}),
        Mistake(
            "Row 3 looks blank already. Does your change make it another row?",
            {CHANGE: "0"},
            {CHANGE: "2 * changed[row]"},
        ),
        Mistake(
            "f gives the same bits for the same input, so the smallest difference counts: "
            "compare with != and without a tolerance.",
            {"f(changed) != before": "abs(f(changed) - before) > 1e-6"},
        ),
        Mistake(
            "Adding one number to a whole row keeps the differences in it, and multiplying keeps "
            "the ratios. What changes both?",
            {CHANGE: "changed[row] + 1"},
            {CHANGE: "2 * changed[row] if changed[row].any() else 1.0"},
        ),
        Mistake("The numbers are to rise.", {"append(row)": "insert(0, row)"}),
        Mistake(
            "Are the rows of before still changed when you come to the next one? Begin each time "
            "with a copy of X.",
            {
                "    for row": "    changed = X.clone()\n    for row",
                "        changed = X.clone()\n": "",
            },
        ),
    ],
)
