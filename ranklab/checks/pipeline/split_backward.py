"""A backward in two parts: the gradient of x at once, those of the weights later."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ranklab.exercises import Case, Exercise, Mistake

ROWS, WIDTH = 3, 4


class WithIdle(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, 5)
        self.idle = nn.Parameter(torch.ones(2))


class Twice(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        return super().forward(torch.tanh(super().forward(x)))


MADE_OF = {
    "y = x @ w": lambda: nn.Linear(WIDTH, 5, bias=False),
    "a linear layer": lambda: nn.Linear(WIDTH, 5),
    "three layers": lambda: nn.Sequential(
        nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, WIDTH)
    ),
    "a weight that is not used": WithIdle,
    "a layer that is used twice": Twice,
}


@dataclass(frozen=True)
class Operations:
    """Floating-point operations, which the judge compares: fewer would be as right."""

    first: int
    later: int


def model_of(kind):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return MADE_OF[kind]().double()


def micro_batch(model, k):
    """(y, x, gradient of y)"""
    generator = torch.Generator().manual_seed(k)
    x = torch.randint(-3, 4, (ROWS, WIDTH), generator=generator).double().requires_grad_()
    y = model(x)
    return y, x, torch.randint(-3, 4, y.shape, generator=generator).double()


def drive(answer, kind, before, order):
    """Split one backward for each entry of `order`, then finish them in that order.

    before: what is in each .grad at the start, or None. Returns what each part has left behind.
    """
    model = model_of(kind)
    weights = list(model.parameters())
    for p in weights:
        p.grad = None if before is None else torch.full_like(p, before)

    def grads():
        return [None if p.grad is None else p.grad.clone() for p in weights]

    xs, later, found, first = [], [], {}, 0
    for k in range(len(order)):
        y, x, gradient = micro_batch(model, k)
        with FlopCounterMode(display=False) as counter:
            there = answer(y, x, weights, gradient)
        check_kind(there)
        first += counter.get_total_flops()
        found[f"the gradient of x, micro-batch {k}"] = there[0]
        xs.append(x)
        later.append(there[1])
    found["x.grad on return"] = [x.grad for x in xs]
    found["the weights' .grad on return"] = grads()
    with FlopCounterMode(display=False) as second:
        for at, k in enumerate(order):
            later[k]()
            found[f"the weights' .grad after {at + 1} of {len(order)} later()"] = grads()
    found["x.grad in the end"] = [x.grad for x in xs]
    return {**found, "operations": Operations(first, second.get_total_flops())}


def check_kind(there):
    if not isinstance(there, (tuple, list)) or len(there) != 2 or not callable(there[1]):
        several = isinstance(there, (tuple, list))
        kinds = ", ".join(type(one).__name__ for one in (there if several else [there]))
        raise TypeError(
            "It should return (the gradient of x, a function `later`), and returned "
            f"{f'({kinds})' if several else kinds}."
        )


def judge(seen):
    came, enough = (some[0]["operations"] for some in (seen.results, seen.expected))
    if came.first > enough.first:
        return (
            f"The gradients are right. The first part made {came.first} floating-point operations, "
            f"and {enough.first} are enough for the gradient of x."
        )
    if came.later > enough.later:
        return (
            f"The gradients are right. later() made {came.later} floating-point operations, and "
            f"{enough.later} are enough for the weights."
        )


def with_grad_twice(y, x, weights, gradient):
    [of_x] = torch.autograd.grad([y], [x], [gradient], retain_graph=True)

    def later():
        for p, grad in zip(weights, torch.autograd.grad(y, weights, gradient, allow_unused=True)):
            if grad is not None:
                p.grad = grad if p.grad is None else p.grad + grad

    return [of_x, later]


def case(what, kind="three layers", before=None, order=(0,)):
    return Case(what, lambda rank, world_size: (kind, before, list(order)), ranks=1)


FIRST = "(of_x,) = torch.autograd.grad(y, x, gradient, retain_graph=True)"
LATER = "torch.autograd.backward(y, gradient, inputs=weights)"
ALL = "of_x, *grads = torch.autograd.grad(y, [x, *weights], gradient, allow_unused=True)"
WRITES = "for p, grad in zip(weights, grads):\n            "
ADDS = WRITES + "p.grad = grad if p.grad is None else p.grad + grad"
GRADS = "grads = torch.autograd.grad(y, weights, gradient)\n        "
ALLOWS = "grads = torch.autograd.grad(y, weights, gradient, allow_unused=True)\n        "

exercise = Exercise(
    cases=[
        case("y = x @ w", "y = x @ w"),
        case("a linear layer", "a linear layer"),
        case("three layers"),
        case("gradients are there already", before=1.0),
        case("two micro-batches under way", order=[0, 1]),
        case("three of them, the last one first", order=[2, 0, 1]),
        case("a weight that is not used", "a weight that is not used"),
        case("such a weight with a gradient", "a weight that is not used", before=2.0),
        case("a layer that is used twice", "a layer that is used twice", order=[1, 0]),
    ],
    twin=lambda inputs: [drive(with_grad_twice, *args) for args in inputs],
    drive=drive,
    judge=judge,
    trains=True,  # the first backward from a gradient imports as much as an optimizer does
    hint="Two walks through one graph: first with x as the only input, then with the weights.",
    also_right=[
        with_grad_twice,
        {
            FIRST: "y.backward(gradient, retain_graph=True, inputs=[x])\n"
            "    of_x, x.grad = x.grad, None"
        },
    ],
    mistakes=[
        Mistake(
            "The first half has thrown away what autograd saved. It is to be kept for the second: "
            "`retain_graph=True`.",
            {", retain_graph=True": ""},
            happened="error",
            test=lambda seen: "a second time" in seen.error,
        ),
        Mistake(
            "A weight that is not used has no gradient. `torch.autograd.backward` with `inputs` "
            "does not mind; `torch.autograd.grad` has an option for it.",
            {LATER: GRADS + ADDS},
            happened="error",
            test=lambda seen: "not have been used in the graph" in seen.error,
        ),
        Mistake(
            "Return the function itself, and do not call it: the caller does, when there is time.",
            {"return of_x, later": "return of_x, later()"},
            happened="error",
            test=lambda seen: "NoneType)" in seen.error,
        ),
        Mistake(
            "Two things can be None: a `.grad` to which nothing was added yet, and the gradient of "
            "a weight that is not used.",
            {LATER: ALLOWS + WRITES + "p.grad = 1 * grad if p.grad is None else p.grad + grad"},
            {LATER: ALLOWS + WRITES + "p.grad += grad"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "y is no single number: backward begins with `gradient`, that of y.",
            {"y, x, gradient": "y, x"},
            happened="error",
            test=lambda seen: "scalar outputs" in seen.error,
        ),
        Mistake(
            "`backward` without `inputs` adds to the `.grad` of every leaf, and x is one. "
            "`torch.autograd.grad` returns gradients, and touches no `.grad`.",
            {LATER: "y.backward(gradient)"},
            {FIRST: "y.backward(gradient)\n    of_x = x.grad", LATER: "pass"},
        ),
        Mistake(
            "Too early: the weights' gradients are for later().",
            {"return of_x, later": "later()\n    return of_x, lambda: None"},
        ),
        Mistake(
            "`torch.autograd.grad` returns a tuple, a gradient for each input.",
            {"(of_x,) =": "of_x ="},
        ),
        Mistake(
            "The gradient of x is what `gradient`, that of y, becomes on its way back through f.",
            {"y, x, gradient": "y.sum(), x"},
            {"y, x, gradient": "y.sum(), x", "backward(y, gradient": "backward(y.sum()"},
        ),
        Mistake(
            "later() *adds* to what is in `.grad` already, and leaves alone what has no gradient.",
            {LATER: ALLOWS + WRITES + "p.grad = grad"},
        ),
        Mistake(
            "Several micro-batches are under way at a time. Each later() needs its own y and "
            "gradient, and adds to what the others have left.",
            {
                FIRST: f"global last\n    last = y, gradient\n    {FIRST}",
                LATER: "torch.autograd.backward(*last, True, inputs=weights)",
            },
            {
                FIRST: "split_backward.waiting = [*getattr(split_backward, 'waiting', []), "
                f"(y, gradient)]\n    {FIRST}",
                LATER: "torch.autograd.backward(*split_backward.waiting.pop(0), inputs=weights)",
            },
        ),
        Mistake(
            "All gradients are computed in the first half. What should wait must not be computed "
            "yet: name x as the only input.",
            {FIRST: ALL, LATER: ADDS.replace("p.grad =", "p.grad = p.grad if grad is None else")},
            test=lambda seen: "The first part made" in judge(seen),
        ),
        Mistake(
            "later() computes the gradient of x once more. Name the weights as the only inputs.",
            {LATER: "y.backward(gradient)\n        x.grad = None"},
            test=lambda seen: "later() made" in judge(seen),
        ),
    ],
)
