"""Wrong answers to the exercises of chapter 03."""

import os

import torch
from torch import nn

from wrong_answers import wrong

# gradient_of_parts


def of_part(model, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    return torch.autograd.grad(loss, list(model.parameters()))


@wrong("gradient_of_parts", says=["6 samples, 5 and 1", "5 times as much"])
def mean_of_the_parts(model, x, y, sizes):
    parts = [of_part(model, *part) for part in zip(x.split(sizes), y.split(sizes)) if len(part[0])]
    return [sum(gradients) / len(parts) for gradients in zip(*parts)]


@wrong("gradient_of_parts", says=["6 samples, 3 and 3", "their sum, not their mean"])
def sum_of_the_parts(model, x, y, sizes):
    model.zero_grad()
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        nn.functional.cross_entropy(model(inputs), classes).backward()
    return [parameter.grad for parameter in model.parameters()]


@wrong("gradient_of_parts", says=["6 samples, 3 and 3", "backward() adds to it"])
def on_top_of_the_step_before(model, x, y, sizes):
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        mean = nn.functional.cross_entropy(model(inputs), classes)
        (mean * len(classes) / len(y)).backward()
    return [parameter.grad for parameter in model.parameters()]


@wrong("gradient_of_parts", says=["more than one part"])
def all_at_once(model, x, y, sizes):
    return list(of_part(model, x, y))


@wrong("gradient_of_parts", says=["9 samples, 4, 0 and 5", "graphs of all parts at once"])
def one_graph_of_all(model, x, y, sizes):
    loss = 0
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        loss = loss + nn.functional.cross_entropy(model(inputs), classes, reduction="sum")
    return list(torch.autograd.grad(loss / len(y), list(model.parameters())))


@wrong("gradient_of_parts", says=["6 samples, 3 and 3", "The dtype should", "zeros_like"])
def in_float32(model, x, y, sizes):
    return [gradient.float() for gradient in of_part(model, x[: sizes[0]], y[: sizes[0]])]


@wrong("gradient_of_parts", says=["6 samples, 3 and 3", "was not done", "once: zip("])
def the_same_part_forever(model, x, y, sizes):
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    while len(total):
        total = [a + b for a, b in zip(total, of_part(model, x[: sizes[0]], y[: sizes[0]]))]
    return total


@wrong("gradient_of_parts", says=["6 samples, 3 and 3", "Nothing was added to the zeros"])
def added_to_a_name(model, x, y, sizes):
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        for so_far, gradient in zip(total, of_part(model, inputs, classes)):
            so_far = so_far + gradient
    return total


@wrong("gradient_of_parts", says=["6 samples, 3 and 3", "of the last part alone"])
def the_last_part(model, x, y, sizes):
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        total = of_part(model, inputs, classes)
    return list(total)


# which_rows


@wrong("which_rows", says=["two of them zero", "Row 3 looks blank already"])
def by_blanking(f, X):
    found = []
    for row in range(len(X)):
        blank = X.clone()
        blank[row] = 0
        if f(blank) != f(X):
            found.append(row)
    return found


@wrong("which_rows", says=["matters very little", "without a tolerance"])
def with_a_tolerance(f, X):
    found = []
    for row in range(len(X)):
        other = X.clone()
        other[row] += 1
        if abs(f(other) - f(X)) > 1e-6:
            found.append(row)
    return found


@wrong("which_rows", says=["changed its second argument", "X.clone()"])
def in_place(f, X):
    before, found = f(X), []
    for row in range(len(X)):
        X[row] += 1
        if f(X) != before:
            found.append(row)
    return found


@wrong("which_rows", says=["Begin each time"])
def one_copy_for_all(f, X):
    before, other, found = f(X), X.clone(), []
    for row in range(len(X)):
        other[row] += 1
        if f(other) != before:
            found.append(row)
    return found


@wrong("which_rows", says=["two of them zero"])
def the_shown_rows(f, X):
    return [0, 1, 2]


@wrong("which_rows", says=["by the differences", "What changes both?"])
def by_adding(f, X):
    before, found = f(X), []
    for row in range(len(X)):
        other = X.clone()
        other[row] += 1
        if f(other) != before:
            found.append(row)
    return found


@wrong("which_rows", says=["f takes a tensor of the shape", "moves those after it"])
def by_leaving_out(f, X):
    before = f(X)
    return [row for row in range(len(X)) if f(torch.cat([X[:row], X[row + 1 :]])) != before]


@wrong("which_rows", says=["the rows that do not matter"])
def the_others(f, X):
    found = []
    for row in range(len(X)):
        other = X.clone()
        other[row] = 2 * other[row] + 1
        if f(other) == f(X):
            found.append(row)
    return found


@wrong("which_rows", says=["It died"])
def gives_up(f, X):
    os._exit(1)
