"""The exercise of chapter 18 on the norm of a gradient that is in pieces."""

import math

import torch
from torch import nn

from ranklab.checks import _pieces as pieces
from ranklab.checks._said import called_as
from ranklab.exercises import Case, Exercise, Hint

_NORM, _SPLIT, _SHARED = "norm", "gradients of the pieces", "gradients of the replicas"


def _with_grads(grads):
    """Parameters that have these gradients."""
    parameters = []
    for number, grad in enumerate(grads):
        like = torch.zeros(2) if grad is None else torch.zeros_like(grad)
        parameters.append(nn.Parameter(like + number))
        parameters[-1].grad = None if grad is None else grad.clone()
    return parameters


def _drive_clip(answer, split, shared, max_norm):
    lists = _with_grads(split), _with_grads(shared)
    before = [p.grad for some in lists for p in some]
    norm = answer(*(list(some) for some in lists), max_norm)
    after = [p.grad for some in lists for p in some]
    return {
        _NORM: norm.double() if torch.is_tensor(norm) else norm,
        _SPLIT: [p.grad for p in lists[0]],
        _SHARED: [p.grad for p in lists[1]],
        "in place": all(map(_is_same, before, after)),
    }


def _is_same(one, other):
    return one is other


def _there(grads):
    return [grad for grad in grads if grad is not None]


def _squares(grads):
    return sum((grad.double().square().sum().item() for grad in _there(grads)), 0.0)


def _norms(inputs):
    """(the whole norm, each rank's pieces' squares, the replicas' squares)."""
    split, shared = [_squares(args[0]) for args in inputs], _squares(inputs[0][1])
    return (sum(split) + shared) ** 0.5, split, shared


def _scaled(grads, factor):
    return [None if grad is None else grad * factor for grad in grads]


def _expected_clip(inputs):
    norm, max_norm = _norms(inputs)[0], inputs[0][2]
    factor = max_norm / norm if max_norm < norm < math.inf else 1.0
    return [
        {
            _NORM: norm,
            _SPLIT: _scaled(split, factor),
            _SHARED: _scaled(shared, factor),
            "in place": True,
        }
        for split, shared, _ in inputs
    ]


def _norm_is(seen, wanted):
    """Is it what `wanted` gives on each rank, and not what it should be? wanted: numbers."""
    got = torch.tensor([float(one[_NORM]) for one in seen.results], dtype=torch.float64)
    right = torch.full_like(got, seen.expected[0][_NORM])
    wanted = torch.as_tensor(wanted, dtype=torch.float64).expand_as(got)
    alike = torch.allclose(got, wanted, rtol=1e-5)
    return alike and not torch.allclose(wanted, right, rtol=1e-5)


def _norm_is_right(seen):
    return all(abs(float(r[_NORM]) - e[_NORM]) <= 1e-5 * e[_NORM] + 1e-12 for r, e in _both(seen))


def _both(seen):
    return list(zip(seen.results, seen.expected))


def _replicas_on_all(seen):
    _, split, shared = _norms(seen.inputs)
    return (sum(split) + len(split) * shared) ** 0.5


def _own(seen):
    _, split, shared = _norms(seen.inputs)
    return [(mine + shared) ** 0.5 for mine in split]


def _sum_of_norms(seen):
    _, split, shared = _norms(seen.inputs)
    return [
        sum(mine**0.5 for mine in split) + shared**0.5,
        sum((mine + shared) ** 0.5 for mine in split),
        sum(_squares([g]) ** 0.5 for args in seen.inputs for g in _there(args[0]))
        + sum(_squares([g]) ** 0.5 for g in _there(seen.inputs[0][1])),
    ]


def _only(seen, which):
    _, split, shared = _norms(seen.inputs)
    return (sum(split) if which == "pieces" else shared) ** 0.5


def _grads(result):
    return _there([*result[_SPLIT], *result[_SHARED]])


def _factors(seen):
    """By what the gradients were multiplied: {factor}, to a few digits."""
    found = set()
    for (split, shared, _), result in zip(seen.inputs, seen.results):
        for before, after in zip(_there([*split, *shared]), _grads(result)):
            at = before.abs().argmax()
            if before.flatten()[at]:
                found.add(round((after.flatten()[at] / before.flatten()[at]).item(), 4))
    return found


def _only_the_pieces_were_clipped(seen):
    right = all(_same(result[_SPLIT], expected[_SPLIT]) for result, expected in _both(seen))
    left = all(_same(r[_SHARED], shared) for r, (_, shared, _) in zip(seen.results, seen.inputs))
    return right and left


def _only_in_new_tensors(seen):
    right = all(_same(_grads(result), _grads(expected)) for result, expected in _both(seen))
    return right and not all(result["in place"] for result in seen.results)


def _same(some, others):
    return all(map(pieces.near, _there(some), _there(others)))


def _not_finite_and_changed(seen):
    """Were gradients touched whose norm is infinite or nan?"""
    right = seen.expected[0][_NORM]
    alike = all(
        torch.equal(got.nan_to_num(9.0), wanted.nan_to_num(9.0))
        for result, expected in _both(seen)
        for got, wanted in zip(_grads(result), _grads(expected))
    )
    return not math.isfinite(right) and not alike


def _some_have_none(seen):
    return any(grad is None for args in seen.inputs for grad in [*args[0], *args[1]])


def _is_small(seen):
    return seen.expected[0][_NORM] <= seen.inputs[0][2]


def _case(what, split, shared, max_norm=1.0, scale=1.0, dtype=torch.float64):
    """split: for each rank, the sizes of its pieces; None: one without a gradient."""

    def grads(sizes, seed):
        return [
            None if size is None else (scale * pieces.drawn(seed + k, *size)).to(dtype)
            for k, size in enumerate(sizes)
        ]

    def make(rank, world_size):
        return grads(split[rank], 100 * rank), grads(shared, 7), max_norm

    return Case(what, make, ranks=len(split))


def _not_finite(value):
    """Cases in which rank 1's piece holds this number."""

    def make(rank, world_size):
        split, shared = pieces.drawn(rank, 3), pieces.drawn(7, 2)
        if rank == 1:
            split[0] = value
        return [split], [shared], 1.0

    return make


def _three_and_four(rank, world_size):
    return [torch.tensor([3.0 + rank], dtype=torch.float64)], [], 1.0


clip_together = Exercise(
    "clip_together",
    cases=[
        Case("3 on rank 0 and 4 on rank 1", _three_and_four, ranks=2),
        _case("two pieces on each rank, and a replica", [[(2, 3), (4,)]] * 4, [(3,)]),
        _case("uneven pieces", [[(2, 3)], [(1, 3), (2,)], [(4, 3)]], [(2, 2), (5,)], max_norm=0.5),
        _case("the norm is small already", [[(2, 2)], [(3, 2)]], [(4,)], max_norm=100.0),
        _case("no replicas", [[(3,)], [(2,)], [(1,)], [(2,)]], []),
        _case("no pieces", [[], []], [(3, 2), (4,)]),
        _case("a rank without pieces", [[(2, 2)], [], [(1, 2)]], [(2,)]),
        _case("some have no gradient", [[None, (3,)], [(2,), None], [None]], [None, (4,)]),
        _case("no gradient at all", [[None], []], []),
        _case("all are zero", [[(2,)], [(3,)]], [(2,)], scale=0.0),
        _case("float32", [[(40, 5)], [(30, 5)]], [(20,)], scale=3.0, dtype=torch.float32),
        _case("alone", [[(4,)]], [(2,)]),
        Case("a gradient of rank 1 is infinite", _not_finite(math.inf), ranks=3),
        Case("a gradient of rank 1 is nan", _not_finite(math.nan), ranks=3),
    ],
    expected=_expected_clip,
    drive=_drive_clip,
    tolerance=(1e-5, 1e-9),
    hints=[
        called_as("clip_together(split, shared, max_norm)"),
        Hint(
            _not_finite_and_changed,
            "The norm is not finite: nothing is to be scaled, or one infinite number makes nan of "
            "itself and zeros of all others.",
        ),
        Hint(
            lambda seen: "NoneType" in seen.error and _some_have_none(seen),
            "A parameter that took no part in the loss has no gradient: its `.grad` is None.",
            when=("error",),
        ),
        pieces.NOTHING_RETURNED,
        Hint(
            lambda seen: any(not _there(args[0]) for args in seen.inputs),
            "A rank may have no piece, or none with a gradient. It takes part in the sum all the "
            "same: with what number?",
            when=("stuck", "died", "error"),
        ),
        pieces.said_to_wait(
            "The ranks have different pieces, and not as many. Let each add up its own first, and "
            "then make one sum over all ranks."
        ),
        Hint(
            lambda seen: _norm_is(seen, _replicas_on_all(seen)),
            "The norm is too large: the replicas are on every rank, and count as often. Which part "
            "of the sum is to be added up over the ranks?",
        ),
        Hint(
            lambda seen: _norm_is(seen, _only(seen, "pieces")),
            "That is the norm of the pieces. The replicas belong to the gradient, too, once.",
        ),
        Hint(
            lambda seen: len(seen.results) > 1 and _norm_is(seen, _own(seen)),
            "That is the norm of what the rank itself has. The other ranks' pieces are missing, "
            "and every rank would scale by a factor of its own.",
        ),
        Hint(
            lambda seen: any(_norm_is(seen, wanted) for wanted in _sum_of_norms(seen)),
            "Norms do not add up. Their squares do.",
        ),
        Hint(
            lambda seen: _norm_is(seen, seen.expected[0][_NORM] ** 2),
            "That is the square of the norm.",
        ),
        Hint(
            lambda seen: _norm_is(seen, min(seen.expected[0][_NORM], seen.inputs[0][2])),
            "That is the norm after clipping. The norm before is asked for: it tells how the "
            "training goes.",
        ),
        Hint(
            lambda seen: any(grad.isnan().any() for r in seen.results for grad in _grads(r)),
            "A gradient of zeros has the norm 0: what is divided by it?",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _is_small(seen) and max(_factors(seen)) > 1.0,
            "The gradient was small enough, and has been made larger. It is to be at most "
            "max_norm.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _is_small(seen),
            "The gradient was small enough, and is to stay as it is.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _only_in_new_tensors(seen),
            "The numbers are right, but they stand in new tensors. Scale the gradients in place: "
            "others may hold them, buckets say.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _only_the_pieces_were_clipped(seen),
            "The norm is right, and the pieces are scaled. The replicas are to be scaled, too.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _factors(seen) == {1.0},
            "The norm is right. The gradients of the pieces are not scaled, or a copy of them is.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and len(_factors(seen)) > 1,
            "The norm is right, but the gradients were multiplied by different factors. Clipping "
            "keeps the direction of the whole gradient: one factor for all.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen),
            "The norm is right. The factor is max_norm / norm.",
        ),
    ],
    hint="The square of the norm is a sum over all numbers of the gradient, each of them once. "
    "Which rank has which of them?",
)
