"""The program that the exercise `mlp` checks: its parts in another way, and what runs with each."""

import contextlib
import io
import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from ranklab.checks.training._models import model_of

ORDER = ("MLP", "split", "rate_at", "train_step", "evaluate", "train")


# The same program otherwise, for the twin; for an optimizer, which takes its time, it has the rate.


def as_a_sequence(n_layers, dim_in, dim_hidden, n_classes):
    return model_of([dim_in, *[dim_hidden] * (n_layers - 1), n_classes])


def by_a_mask(X, y):
    mask = torch.zeros(len(X), dtype=torch.bool)
    mask[torch.randperm(len(X))[: len(X) // 10]] = True
    return (X[~mask], y[~mask]), (X[mask], y[mask])


def in_two_summands(step, niters, first):
    return first + (0.3 * first - first) * step / niters


def by_hand(model, rate, x, y):
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= rate * gradient


@torch.no_grad()
def one_by_one(model, X, y, batch_size=64):
    return sum(F.cross_entropy(model(x), c).item() for x, c in zip(X.split(1), y.split(1))) / len(X)


def step_by_step(model, train_set, test_set, batches, rate, every=100):
    (X, y), history = train_set, []
    for step, chosen in enumerate(batches):
        if step % every == 0:
            history.append((step, one_by_one(model, *train_set), one_by_one(model, *test_set)))
            print("a line")
        by_hand(model, in_two_summands(step, len(batches), rate), X[chosen], y[chosen])
    return history


TWINS = as_a_sequence, by_a_mask, in_two_summands, by_hand, one_by_one, step_by_step


def twin(inputs):
    part, *args = inputs[0]
    parts = dict(zip(ORDER, TWINS), SGD=lambda parameters, lr: lr)
    with contextlib.redirect_stdout(io.StringIO()):
        return [PARTS[part](parts, *args)]


def drive(answers, part, *args):
    return PARTS[part](dict(zip(ORDER, answers), SGD=torch.optim.SGD), *args)


# What runs with each part


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def drive_shapes(parts, *sizes):
    weights = weights_of(parts["MLP"](*sizes))
    bounds = [math.sqrt(6 / w.shape[1]) for w in weights if w.dim() == 2]
    reach = [w.abs().max().item() / b for w, b in zip(weights, bounds, strict=False)]
    kaiming = all(0.9 < r <= 1 + 1e-6 for r in reach)
    return {"weights": [list(w.shape) for w in weights], "Kaiming-uniform": kaiming}


def drive_forward(parts, x, sizes):
    hidden = sizes[1] if len(sizes) > 2 else 7
    model = parts["MLP"](len(sizes) - 1, sizes[0], hidden, sizes[-1]).double()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights_of(model_of(sizes)), strict=True):
            parameter.copy_(value)
    return model(x).detach()


def drive_split(parts, n):
    """What became of n samples; sample i holds i, and its class is i % 3."""
    X, y = torch.arange(n, dtype=torch.float32).reshape(n, 1), torch.arange(n) % 3
    (train_X, train_y), (test_X, test_y) = parts["split"](X, y)
    train, test = train_X.flatten().tolist(), test_X.flatten().tolist()
    steps = {b - a for a, b in pairwise(sorted(test))}  # one: a stretch, or every tenth
    return {
        "for training": len(train),
        "for testing": len(test),
        "in both": len({*train} & {*test}),
        "in neither": n - len({*train, *test}),
        "each with its class": [*train_y, *test_y] == [int(i) % 3 for i in [*train, *test]],
        "by chance": n < 100 or len(steps) > 1,
    }


def drive_rate(parts, steps, niters, first):
    return [parts["rate_at"](step, niters, first) for step in steps]


def drive_step(parts, X, y, many):
    model = model_of([5, 4, 3])
    optimizer = parts["SGD"](model.parameters(), lr=0.5)
    for _ in range(many):
        parts["train_step"](model, optimizer, X, y)
    return weights_of(model)


class Watched(nn.Module):
    """A model that notes who computes with it, and how."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.largest, self.graph = 0, False

    def forward(self, x):
        out = self.model(x)
        self.largest = max(self.largest, len(x))
        self.graph |= out.requires_grad
        return out


def drive_evaluate(parts, X, y, batch_size):
    model = Watched(model_of([5, 4, 3]))
    before = weights_of(model)
    loss = parts["evaluate"](model, X, y, batch_size)
    kept = all(torch.equal(a, b) for a, b in zip(before, weights_of(model), strict=True))
    kept &= all(parameter.grad is None for parameter in model.parameters())
    return {
        "loss": loss,
        "a plain number": not isinstance(loss, torch.Tensor),
        "weights and gradients as before": kept,
        "a graph was recorded": model.graph,
        "at most batch_size at a time": model.largest <= batch_size,
    }


def drive_train(parts, *args):
    model = model_of([5, 4, 4, 3])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = parts["train"](model, *args)
    print(printed.getvalue(), end="")  # as without this, where the reader looks for it
    lines = printed.getvalue().splitlines()
    return {"losses": history, "weights": weights_of(model), "lines printed": len(lines)}


PARTS = {
    "shapes": drive_shapes,
    "forward": drive_forward,
    "split": drive_split,
    "rate": drive_rate,
    "step": drive_step,
    "evaluate": drive_evaluate,
    "train": drive_train,
}
