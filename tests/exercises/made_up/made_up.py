"""Exercises that no book has, for the tests of checking itself."""

import itertools
import tempfile

import torch

from ranklab.exercises import Case, Choice, Exercise, Hint


def _numbers(length, dtype=torch.float32, src=0):
    return lambda rank, world_size: (torch.arange(length, dtype=dtype) + 10 * rank, src)


spread = Exercise(
    "spread",
    cases=[
        Case("1 number", _numbers(1, src=1)),
        Case("no number at all", _numbers(0), ranks=2),
        Case("int64", _numbers(5, torch.int64), ranks=1),
        Case("7 numbers", _numbers(7, src=2), ranks=3),
        Case("1000 numbers", _numbers(1000, src=3)),
    ],
    expected=lambda inputs: [inputs[inputs[0][1]][0]] * len(inputs),
    hints=[
        Hint(lambda seen: True, "Who receives?", when=("stuck",)),
        Hint(lambda seen: seen.no_such_thing, "An exception in a hint's test is no hint."),
    ],
    hint="Draw who has what after each message.",
    limit=6.0,
)

passed_on = Exercise(
    "passed_on",
    cases=[Case("4 numbers", lambda r, n: (torch.full((4,), float(r)),), ranks=n) for n in (4, 1)],
    expected=lambda inputs: [inputs[rank - 1][0] for rank in range(len(inputs))],
    judge=lambda seen: (
        "A message is enough."
        if any(seen.collectives) or max(seen.messages) > 1 or max(seen.sent) > 16
        else None
    ),
    hint="isend",
    trace=True,
)

doubled = Exercise(
    "doubled",
    cases=[
        Case(f"x = {x}", lambda rank, world_size, x=x: (x,), ranks=1)
        for x in (1, 2.5, True, "a", [1, "b"], {"c": 2})
    ],
    expected=lambda inputs: [_twice(inputs[0][0])],
    hint="Twice.",
)


def _twice(x):
    if isinstance(x, list):
        return [_twice(part) for part in x]
    return {key: _twice(part) for key, part in x.items()} if isinstance(x, dict) else x * 2


def _used(answers, n):
    model, step = answers
    made = model(n)
    return [step(made, torch.ones(n)).item() for _ in range(2)]


taught = Exercise(
    "taught",
    cases=[Case(f"width {n}", lambda rank, world_size, n=n: (n,), ranks=1) for n in (1, 4)],
    expected=lambda inputs: [[float(inputs[0][0]), float(inputs[0][0])]],
    drive=_used,
    trains=True,
    answers=2,
    hint="Once more.",
)

ones = Exercise(
    "ones",
    cases=[Case("2 numbers", lambda rank, world_size: (torch.zeros(2),), ranks=2)],
    expected=lambda inputs: [torch.ones(2)] * 2,
    in_place=True,
    hint="fill_",
)

many = Exercise(
    "many",
    cases=[Case("nothing", lambda rank, world_size: (), ranks=5)],
    expected=lambda inputs: [5] * 5,
    hint="world_size",
)

broken = Exercise(
    "broken",
    cases=[Case("nothing", lambda rank, world_size: (1 / 0,), ranks=1)],
    expected=lambda inputs: [0],
    hint="none",
)

even = Exercise(
    "even",
    cases=[Case(f"x = {x}", lambda rank, world_size, x=x: (x,), ranks=1) for x in (0, 1, 2, 3, 5)],
    expected=lambda inputs: [inputs[0][0] % 2 == 0],
    hint="%",
    limit=2.0,
)

_runs = itertools.count()

late_at_first = Exercise(
    "late_at_first",
    cases=[Case("nothing", lambda rank, world_size: (), ranks=1)],
    expected=lambda inputs: [None],
    too_slow=lambda seen: "Late at first." if next(_runs) == 0 else None,
    hint="none",
)

always_late = Exercise(
    "always_late",
    cases=[Case("nothing", lambda rank, world_size: (), ranks=1)],
    expected=lambda inputs: [None],
    too_slow=lambda seen: "Late again.",
    hint="Be quick.",
)

on_disk = Exercise(
    "on_disk",
    cases=[Case("a folder", lambda rank, world_size: (tempfile.mkdtemp(),), ranks=1)],
    expected=lambda inputs: [inputs[0][0]],
    hint="The folder.",
)

letter = Choice(
    "letter",
    right="b",
    why={"a": "That is what scatter does.", "c": "That is what gather does."},
    because="Everybody gets it.",
)
