"""The exercise of chapter 17 on a backward in two parts."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint

ROWS, WIDTH = 3, 4
MADE_OF = {
    "y = x @ w": lambda: nn.Linear(WIDTH, 5, bias=False),
    "a linear layer": lambda: nn.Linear(WIDTH, 5),
    "three layers": lambda: nn.Sequential(
        nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, WIDTH)
    ),
    "a weight that is not used": lambda: _WithIdle(),
    "a layer that is used twice": lambda: _Twice(),
}
OF_X = "the gradient of x"


class _WithIdle(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, 5)
        self.idle = nn.Parameter(torch.ones(2))


class _Twice(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        return super().forward(torch.tanh(super().forward(x)))


def _model(kind):
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return MADE_OF[kind]().double()


def _random(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).double()


def _micro_batch(model, seed):
    """(y, x, gradient of y) of one micro-batch."""
    x = _random((ROWS, WIDTH), seed).requires_grad_()
    y = model(x)
    return y, x, _random(y.shape, seed + 100)


def _grads(weights):
    return [None if p.grad is None else p.grad.clone() for p in weights]


def _counted(function, *args):
    """(what it returns, its floating-point operations)."""
    with FlopCounterMode(display=False) as counter:
        found = function(*args)
    return found, counter.get_total_flops()


def _drive(answer, kind, before, order):
    """Split one backward for each entry of `order`, then finish them in that order.

    before: what is in each .grad at the start, or None. Returns what each part has left behind.
    """
    model = _model(kind)
    weights = list(model.parameters())
    if before is not None:
        for p in weights:
            p.grad = torch.full_like(p, before)
    pending, found, first, second = [], {}, 0, 0
    for k in range(len(order)):
        y, x, gradient = _micro_batch(model, k)
        there, operations = _counted(answer, y, x, weights, gradient)
        first += operations
        if not isinstance(there, (tuple, list)) or len(there) != 2 or not callable(there[1]):
            return {"returned": _kind(there)}
        of_x, later = there
        pending.append((x, later))
        found[f"{OF_X}, micro-batch {k}"] = of_x
    found["x.grad on return"] = [x.grad for x, _ in pending]
    found["the weights' .grad on return"] = _grads(weights)
    for at, k in enumerate(order):
        second += _counted(pending[k][1])[1]
        found[f"the weights' .grad after {at + 1} of {len(order)} later()"] = _grads(weights)
    found["x.grad in the end"] = [x.grad for x, _ in pending]
    return {"returned": _kind(there), "found": found, "operations": [first, second]}


def _kind(there):
    if isinstance(there, (tuple, list)):
        parts = ["a function" if callable(one) else type(one).__name__ for one in there]
        return f"({', '.join(parts)})"
    return type(there).__name__


def _twin(kind, before, order):
    """What the two parts should leave behind, by two ordinary backwards; and their operations."""
    model, found, first, second = _model(kind), {}, 0, 0
    weights = list(model.parameters())
    sums = [None if before is None else torch.full_like(p, before) for p in weights]
    found["x.grad on return"] = found["x.grad in the end"] = [None] * len(order)
    found["the weights' .grad on return"] = list(sums)
    of_weights = []
    for k in range(len(order)):
        y, x, gradient = _micro_batch(model, k)
        (of_x,), one = _counted(
            lambda *a: torch.autograd.grad(*a, retain_graph=True), y, x, gradient
        )
        found[f"{OF_X}, micro-batch {k}"] = of_x
        grads, other = _counted(
            lambda *a: torch.autograd.grad(*a, allow_unused=True), y, weights, gradient
        )
        of_weights.append(grads)
        first, second = first + one, second + other
    for at, k in enumerate(order):
        parts = zip(sums, of_weights[k])
        sums = [old if g is None else g if old is None else old + g for old, g in parts]
        found[f"the weights' .grad after {at + 1} of {len(order)} later()"] = list(sums)
    return {"returned": "(Tensor, a function)", "found": found, "operations": [first, second]}


def _same(got, want):
    if want is None or not torch.is_tensor(got):
        return got is want
    return got.shape == want.shape and torch.allclose(got, want.to(got.dtype), rtol=1e-9, atol=1e-9)


def _wrong_parts(seen):
    """What is not as it should be, in order."""
    want = _twin(*seen.inputs[0])["found"]
    got, wrong = seen.results[0]["found"], []
    for what in sorted(want, key=list(got).index):
        some, right = got[what], want[what]
        pairs = zip(some, right) if isinstance(right, list) else [(some, right)]
        wrong += [(what, a, b) for a, b in pairs if not _same(a, b)]
    return wrong


def _judge(seen):
    came = seen.results[0]
    if "found" not in came:
        return (
            f"It should return (the gradient of x, a function `later`), and returned "
            f"{came['returned']}."
        )
    for what, got, want in _wrong_parts(seen):
        said = [
            f"{one.flatten()[:4].tolist()}" if torch.is_tensor(one) else one for one in (want, got)
        ]
        return f"At {what}\n    expected: {said[0]}\n    got:      {said[1]}"
    (first, second), (least, enough) = came["operations"], _twin(*seen.inputs[0])["operations"]
    if first > least:
        return (
            f"The gradients are right. The first part made {first} floating-point operations, and "
            f"{least} are enough for the gradient of x."
        )
    if second > enough:
        return (
            f"The gradients are right. later() made {second} floating-point operations, and "
            f"{enough} are enough for the weights."
        )
    return None


def _first_wrong_is(test):
    """Is test(what, got, want) true of the first part that is wrong?"""
    return lambda seen: test(*_wrong_parts(seen)[0])


def _split(what, kind, before=None, order=(0,)):
    return Case(what, lambda rank, world_size: (kind, before, list(order)), ranks=1)


split_backward = Exercise(
    "split_backward",
    cases=[
        _split("y = x @ w", "y = x @ w"),
        _split("a linear layer", "a linear layer"),
        _split("three layers", "three layers"),
        _split("gradients are there already", "three layers", before=1.0),
        _split("two micro-batches under way", "three layers", order=[0, 1]),
        _split("three of them, the last one first", "three layers", order=[2, 0, 1]),
        _split("a weight that is not used", "a weight that is not used"),
        _split("such a weight with a gradient", "a weight that is not used", before=2.0),
        _split("a layer that is used twice", "a layer that is used twice", order=[1, 0]),
    ],
    expected=None,
    drive=_drive,
    judge=_judge,
    trains=True,  # the first backward from a gradient imports as much as an optimizer does
    hints=[
        called_as("split_backward(y, x, weights, gradient)"),
        Hint(
            lambda seen: "a second time" in seen.error,
            "The first half has thrown away what autograd saved. It is to be kept for the second: "
            "`retain_graph=True`.",
            when=("error",),
        ),
        Hint(
            lambda seen: "not have been used in the graph" in seen.error,
            "A weight that is not used has no gradient. `torch.autograd.backward` with `inputs` "
            "does not mind; `torch.autograd.grad` has an option for it.",
            when=("error",),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error,
            "Two things can be None: a `.grad` to which nothing was added yet, and the gradient of "
            "a weight that is not used.",
            when=("error",),
        ),
        Hint(
            lambda seen: "scalar outputs" in seen.error,
            "y is no single number: backward begins with `gradient`, that of y.",
            when=("error",),
        ),
        Hint(
            lambda seen: "found" not in seen.results[0] and "None" in seen.results[0]["returned"],
            "Return the function itself, and do not call it: the caller does, when there is time.",
        ),
        Hint(
            _first_wrong_is(lambda what, got, want: "x.grad" in what),
            "`backward` without `inputs` adds to the `.grad` of every leaf, and x is one. "
            "`torch.autograd.grad` returns gradients, and touches no `.grad`.",
        ),
        Hint(
            _first_wrong_is(lambda what, got, want: what.endswith("on return")),
            "Too early: the weights' gradients are for later().",
        ),
        Hint(
            _first_wrong_is(lambda what, got, want: isinstance(got, tuple)),
            "`torch.autograd.grad` returns a tuple, a gradient for each input.",
        ),
        Hint(
            _first_wrong_is(lambda what, got, want: what.startswith(OF_X)),
            "The gradient of x is what `gradient`, that of y, becomes on its way back through f.",
        ),
        Hint(
            lambda seen: seen.inputs[0][1] is not None,
            "later() *adds* to what is in `.grad` already, and leaves alone what has no gradient.",
        ),
        Hint(
            lambda seen: (
                len(seen.inputs[0][2]) > 1 and seen.found == "judge" and _wrong_parts(seen)
            ),
            "Several micro-batches are under way at a time. Each later() needs its own y and "
            "gradient, and adds to what the others have left.",
        ),
        Hint(
            lambda seen: "The first part made" in _judge(seen),
            "All gradients are computed in the first half. What should wait must not be computed "
            "yet: name x as the only input.",
        ),
        Hint(
            lambda seen: "later() made" in _judge(seen),
            "later() computes the gradient of x once more. Name the weights as the only inputs.",
        ),
    ],
    hint="Two walks through one graph: first with x as the only input, then with the weights.",
)
