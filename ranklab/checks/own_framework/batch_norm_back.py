"""The gradient of batch norm, through its statistics."""

import torch

from ranklab.checks.own_framework import _operations as operations
from ranklab.exercises import Case, Exercise, Mistake

SCALE, BY_MEAN = "scale * (grad - by_mean - by_variance)", "grad.mean(axis=0)"  # in the solution
BY_VARIANCE = "normal * (grad * normal).mean(axis=0)"


def case(n, features, eps=1e-5, what=""):
    def make(rank, world_size):
        x = operations.whole(n, features, seed=n) + torch.linspace(0, 1, n).double()[:, None]
        return x, operations.whole(n, features, seed=n + 1), eps

    rows = f"{n} row{'s' if n > 1 else ''} of {features}"
    return Case(what or f"{rows}, eps = {eps:g}", make, ranks=1)


def drive(batch_norm_back, x, grad, eps):
    return operations.as_array(batch_norm_back(x.numpy(), grad.numpy(), eps))


def twin(inputs):
    ((x, grad, eps),) = inputs
    x.requires_grad_()
    centered = x - x.mean(0)
    (centered / (centered.square().mean(0) + eps).sqrt()).backward(grad)
    return [x.grad.numpy()]


def by_parts(x, grad, eps=1e-5):
    """Step by step, as the chain rule has it."""
    n = len(x)
    centered = x - x.mean(axis=0)
    variance = (centered**2).mean(axis=0) + eps
    of_variance = (grad * centered * -0.5 * variance**-1.5).sum(axis=0)
    of_centered = grad / variance**0.5 + of_variance * 2 * centered / n
    return of_centered - of_centered.sum(axis=0) / n


exercise = Exercise(
    cases=[case(4, 3), case(7, 2, 0.5), case(2, 1), case(16, 4, 1.0), case(5, 5, 1e-3)],
    twin=twin,
    drive=drive,
    limit=3.0,
    tolerance=(1e-9, 1e-9),
    hint="If all rows of x grow by the same number, nothing changes in y: so each column of the "
    "gradient sums to 0. Which part sees to that?",
    also_right=[by_parts],
    mistakes=[
        Mistake(
            "It returned nothing: is a `return` missing?",
            {f"return {SCALE}": SCALE},
            test=lambda seen: seen.results[0] is None,
        ),
        Mistake(
            "Make new arrays: x and the gradient of y belong to the caller.",
            {f"return {SCALE}": f"grad *= scale\n    return {SCALE}"},
            happened="changed",
        ),
        Mistake(
            "The gradient has the shape of x: a row for each example.",
            {f"return {SCALE}": f"return ({SCALE}).sum(axis=0)"},
            test=lambda seen: seen.found == "shape",
        ),
        Mistake(
            "That holds where mean and variance are constants, as in evaluation. Here each row of "
            "x changes them, and so all rows of y.",
            {SCALE: "scale * grad"},
        ),
        Mistake(
            "The part through the variance is missing: it is as if the rows were only shifted.",
            {" - by_variance": ""},
        ),
        Mistake(
            "The part through the mean is missing: the columns of the gradient do not sum to 0.",
            {" - by_mean": ""},
        ),
        Mistake(
            "Mean and variance divide by n, so both parts are means over the rows, and not sums.",
            {BY_MEAN: "grad.sum(axis=0)", BY_VARIANCE: "normal * (grad * normal).sum(axis=0)"},
            {BY_MEAN: "grad.sum(axis=0)"},
            {BY_VARIANCE: "normal * (grad * normal).sum(axis=0)"},
        ),
        Mistake(
            "Both parts are subtracted: when a row grows, mean and spread grow, and y shrinks.",
            {"- by_mean - by_variance": "+ by_mean + by_variance"},
            {"- by_mean - by_variance": "- by_mean + by_variance"},
        ),
        Mistake(
            "All three parts are there. A change of x is multiplied by `scale` before it is a "
            "change of y.",
            {SCALE: "grad - by_mean - by_variance"},
        ),
        Mistake(
            "Through the variance goes what `normal` was multiplied by there: the mean of "
            "grad * normal, times normal.",
            {BY_VARIANCE: "normal * grad.mean(axis=0)"},
            {BY_VARIANCE: "(grad * normal).mean(axis=0)"},
            {BY_VARIANCE: "(x - x.mean(axis=0)) * (grad * normal).mean(axis=0)"},
        ),
    ],
)
