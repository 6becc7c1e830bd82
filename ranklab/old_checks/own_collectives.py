"""The exercises that build a collective from messages, of the chapter on collectives."""

from itertools import pairwise

import torch

from ranklab.checks._said import breaks_a_rule
from ranklab.old_checks._model import Case, Exercise, Hint

# all_max ---------------------------------------------------------------------------------------


def _numbers(what, length, ranks, dtype=torch.float32):
    """Every rank's x: its largest number is at another place on each."""

    def make(rank, world_size):
        x = (torch.arange(length) * (rank + 3) * 7 + 5 * rank) % 23 - 30
        return (x.to(dtype),)

    return Case(what, make, ranks=ranks)


def _stacked(seen):
    return torch.stack([x for (x,) in seen.inputs])


def _rounds(seen):
    """A sentence if a rank sent more messages than the barrier does."""
    n, most = len(seen.inputs), max(seen.messages)
    needed = (n - 1).bit_length()
    if any(seen.collectives):
        return "The numbers are right. But build it from messages: sendrecv is all that you need."
    if most > needed:
        return (
            f"The numbers are right, but a rank sent {most} messages where {needed} would do: the "
            "distance doubles from round to round."
        )
    return None


all_max = Exercise(
    "all_max",
    cases=[
        _numbers("3 numbers", 3, 4),
        _numbers("4 numbers", 4, 3),
        _numbers("5 numbers", 5, 2),
        _numbers("no number at all", 0, 2),
        _numbers("int64", 6, 4, torch.int64),
        _numbers("bfloat16", 3, 2, torch.bfloat16),
        _numbers("2 numbers", 2, 1),
    ],
    expected=lambda inputs: (
        [
            torch.stack([x for (x,) in inputs]).max(0).values
            if inputs[0][0].numel()
            else inputs[0][0]
        ]
        * len(inputs)
    ),
    in_place=True,
    limit=3.0,
    hints=[
        Hint(
            lambda seen: True,
            "Everyone sends to the right and receives from the left, from as far away as it sends; "
            "and both at the same time, or all wait in a circle. That is what sendrecv is for.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1,
            "The loop ends once `step` has reached n: does it double in every round?",
            when=("slow",),
        ),
        Hint(
            lambda seen: "ambiguous" in seen.error,
            "Python's `max` compares two things as a whole. torch.maximum does it place by place.",
            when=("error",),
        ),
        Hint(
            lambda seen: "no rank" in seen.error or "invalid rank" in seen.error.lower(),
            "The ranks stand in a circle: after the last one comes rank 0.",
            when=("error",),
        ),
        Hint(
            lambda seen: breaks_a_rule(seen) and any(seen.collectives),
            "The loop of the stub has the rounds already. Each one wants one message to the right "
            "and one from the left.",
        ),
        Hint(
            breaks_a_rule,
            "After the first round a rank's x is the larger of two ranks', after the second it can "
            "be that of four. How far must the message go for that?",
        ),
        Hint(
            lambda seen: all(torch.equal(r, x) for r, (x,) in zip(seen.results, seen.inputs)),
            "Nobody's x has changed. The answer is what stands in x afterwards, not what is "
            "returned.",
        ),
        Hint(
            lambda seen: (
                bool((seen.results[0] > _stacked(seen).max(0).values).any())
                or bool((seen.results[0] < _stacked(seen).min(0).values).any())
            ),
            "There are numbers that nobody had. What is to be done with what comes: add, or take "
            "the larger one?",
        ),
        Hint(
            lambda seen: seen.found == "value",
            "Numbers are missing. In the round with `step`, how far away is your partner, and do "
            "you keep the larger of both?",
        ),
    ],
    hint="It is the barrier, with a message in it that says something.",
    judge=_rounds,
    trace=True,
)


# own_scan --------------------------------------------------------------------------------------


def _values(what, shape, ranks, dtype=torch.float32, transposed=False):
    """Every rank's x, of a shape; transposed: not in one piece in memory."""

    def make(rank, world_size):
        x = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 2 * rank + 1
        x = x.to(dtype)
        return (x.t() if transposed else x,)

    return Case(what, make, ranks=ranks)


def _prefix_sums(inputs):
    sums = [inputs[0][0].clone()]
    for (x,) in inputs[1:]:
        sums.append(sums[-1] + x)
    return sums


def _all_equal(results, expected):
    return all(torch.equal(one, other) for one, other in zip(results, expected))


def _two_of_each(seen):
    xs = [x for (x,) in seen.inputs]
    return [xs[0], *(one + other for one, other in pairwise(xs))]


own_scan = Exercise(
    "own_scan",
    cases=[
        _values("1 number", [1], 4),
        _values("int64", [4], 3, torch.int64),
        _values("5 numbers", [5], 2),
        _values("no number at all", [0], 3),
        _values("a matrix that is not in one piece", [2, 3], 4, torch.float64, transposed=True),
        _values("bfloat16", [3], 4, torch.bfloat16),
        _values("1 number", [1], 1),
        _values("2 × 2 numbers", [2, 2], 2),
    ],
    expected=_prefix_sums,
    hints=[
        Hint(
            lambda seen: True,
            "A scan is a row, not a circle. Who waits for nobody, and can begin? And who can send "
            "only after it has heard something? (What isend starts is to be waited for, too.)",
            when=("stuck",),
        ),
        Hint(
            lambda seen: "no rank" in seen.error or "invalid rank" in seen.error.lower(),
            "A row has two ends: whom has rank 0 to its left, and the last rank to its right?",
            when=("error",),
        ),
        Hint(
            lambda seen: "contiguous" in seen.error.lower() or "dense" in seen.error.lower(),
            "This x is not in one piece in memory. send of chapter 7 packs it; dist.send wants "
            "x.contiguous().",
            when=("error",),
        ),
        Hint(
            lambda seen: seen.happened == "died" or "size" in seen.error,
            "A message must fit into its box. What has the same shape and type as x?",
            when=("error", "died"),
        ),
        Hint(breaks_a_rule, "`send` and `recv`, which the stub imports, are all that is needed."),
        Hint(
            lambda seen: seen.found in ("dtype", "shape"),
            "The sum has the shape and the type of x, and so has each box for a part of it.",
        ),
        Hint(
            lambda seen: _all_equal(
                seen.results, [e - x for e, (x,) in zip(seen.expected, seen.inputs)]
            ),
            "These are the sums of what the ranks before have. A rank's own x is to be in it, too.",
        ),
        Hint(
            lambda seen: (
                len(seen.results) > 1 and _all_equal(seen.results, [seen.expected[-1]] * 9)
            ),
            "Every rank has the sum of all. Rank r should have that of ranks 0 to r.",
        ),
        Hint(
            lambda seen: len(seen.results) > 2 and _all_equal(seen.results, _two_of_each(seen)),
            "Each rank adds its left neighbor's x. What does the rank after the next one need to "
            "be sent?",
        ),
    ],
    hint="Who needs what from whom? Let one partial sum travel along the row of ranks.",
    judge=lambda seen: (
        "The numbers are right. But build it from messages, with send and recv alone."
        if any(seen.collectives)
        else None
    ),
    trace=True,
)
