"""Three exercises of chapter 16: frozen stages, fewest owners, and a gradient that nobody holds."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

from ranklab.old_checks._model import Case, Choice, Exercise, Hint, Raised

frozen_stages = Choice(
    "frozen_stages",
    right="c",
    why={
        "a": "Who would use the gradient that comes back to stage 0? Its layers have parameters, "
        "but none of them is trained.",
        "b": "Stage 1 passes a gradient on to nobody: behind it there is only stage 0, which is "
        "frozen. So what would stage 1 itself do with one?",
        "d": "Frozen layers compute as before: without their activations stage 2 has nothing to "
        "start from. (For a fixed data set they could be computed once and stored.)",
    },
    because="All three activations are needed. A gradient is needed only where there is still "
    "something to train at or before its place: over the seam from 3 to 2, and no further. Stages "
    "0 and 1 run no backward and keep nothing for it. In code: stage 2's `like` requires no "
    "gradient, and stages 0 and 1 call no `stand_in.backward()`; it must be all of it, or one of "
    "them waits or raises an error.",
)


# fewest_owners ---------------------------------------------------------------------------------

TOO_LARGE = Raised("ValueError")


def _drive_fewest(answer, nbytes, limit):
    """Return the bounds, or that the answer raised ValueError."""
    try:
        return answer(nbytes, limit)
    except ValueError:
        return TOO_LARGE


def _greedy(nbytes, limit, more=0):
    """Fill each stage while it has at most so many bytes, and `more`."""
    if max(nbytes) > limit:
        return TOO_LARGE
    bounds, held = [0], 0
    for i, size in enumerate(nbytes):
        if i > bounds[-1] and held + size > limit + more:
            bounds.append(i)
            held = 0
        held += size
    return [*bounds, len(nbytes)]


def _layers(what, nbytes, limit):
    return Case(what, lambda rank, world_size: (nbytes, limit), ranks=1)


def _stages(seen):
    """The bytes of each stage of the answer."""
    nbytes, bounds = seen.inputs[0][0], seen.results[0]
    return [sum(nbytes[i:j]) for i, j in itertools.pairwise(bounds)]


def _is_a_cut(seen):
    nbytes, bounds = seen.inputs[0][0], seen.results[0]
    inside = isinstance(bounds, list) and bounds == sorted(set(bounds))
    return inside and [bounds[0], bounds[-1]] == [0, len(nbytes)]


fewest_owners = Exercise(
    "fewest_owners",
    cases=[
        _layers("layers of 3, 3, 2, 5 and 1 bytes, limit 6", [3, 3, 2, 5, 1], 6),
        _layers("all fit on one", [1, 2, 3], 10),
        _layers("each by itself", [4, 4, 4], 5),
        _layers("a layer that just fits", [2, 6, 2], 6),
        _layers("the last layer is too large", [2, 2, 7], 6),
        _layers("the first layer is too large", [7, 1], 6),
        _layers("a cheap embedding, a head like four blocks", [1, 10, 10, 10, 10, 10, 40], 40),
        _layers("one layer", [5], 5),
        _layers("layers without parameters", [0, 6, 0, 6, 0], 6),
    ],
    expected=lambda inputs: [_greedy(*args) for args in inputs],
    drive=_drive_fewest,
    hints=[
        Hint(
            lambda seen: seen.results[0] == TOO_LARGE,
            "It raised ValueError, and every layer fits. One that has just `limit` bytes does, "
            "too.",
        ),
        Hint(
            lambda seen: seen.expected[0] == TOO_LARGE,
            "One layer alone has more than `limit` bytes, and no cut helps. That is to be said "
            "with a ValueError, wherever the layer stands.",
        ),
        Hint(
            lambda seen: not _is_a_cut(seen),
            "Bounds begin with 0, rise, and end with the number of layers. Is there a stage "
            "without a layer, or a layer without a stage?",
        ),
        Hint(
            lambda seen: max(_stages(seen)) > seen.inputs[0][1],
            "A stage has more than `limit` bytes: is the new layer counted, before it is taken in?",
        ),
        Hint(
            lambda seen: seen.results[0] == _greedy(*seen.inputs[0], more=-1),
            "A stage may have just `limit` bytes.",
        ),
        Hint(
            lambda seen: len(seen.results[0]) > len(seen.expected[0]),
            "These are more stages than it takes.",
        ),
        Hint(
            lambda seen: len(seen.results[0]) == len(seen.expected[0]),
            "As few stages as possible, but another cut: the earlier stages are to take as many "
            "layers as they can.",
        ),
    ],
    hint="A new stage begins where the next layer would be too much for the one before.",
)


# clip_stages -----------------------------------------------------------------------------------


def _drive_clip(answer, gradients, shared, max_norm):
    """Give the answer parameters with these gradients; return the norm and what became of them."""
    parameters = []
    for gradient in gradients:
        p = nn.Parameter(torch.ones(2, dtype=torch.float64))
        if gradient is not None:
            p = nn.Parameter(torch.ones_like(gradient))
            p.grad = gradient.clone()
        parameters.append(p)
    norm = answer(parameters, None if shared is None else parameters[shared], max_norm)
    dist.barrier()
    return {"norm": norm, "gradients": [p.grad for p in parameters]}


def _squares(gradients, skip=None):
    there = [g for i, g in enumerate(gradients) if g is not None and i != skip]
    return sum(g.double().square().sum().item() for g in there)


def _norm(inputs, twice=False):
    """The norm of the whole gradient; twice: with the shared weight counted by both its owners."""
    total = 0
    for rank, (gradients, shared, _) in enumerate(inputs):
        total += _squares(gradients, None if twice or rank == 0 else shared)
    return total**0.5


def _expected_clip(inputs, norm=None):
    norm = _norm(inputs) if norm is None else norm
    factor = min(1.0, inputs[0][2] / norm) if norm else 1.0
    return [
        {"norm": norm, "gradients": [None if g is None else factor * g for g in gradients]}
        for gradients, _, _ in inputs
    ]


def _clip(what, max_norm, *of_ranks, shared=False, dtype=torch.float64):
    """Rank r has of_ranks[r]: gradients, as lists of numbers or None. shared: first and last."""

    def make(rank, world_size):
        mine = [None if one is None else torch.tensor(one, dtype=dtype) for one in of_ranks[rank]]
        at = {0: 0, world_size - 1: len(mine) - 1}.get(rank) if shared else None
        return mine, at if world_size > 1 else None, max_norm

    return Case(what, make, ranks=len(of_ranks))


def _norm_of(seen, rank=0):
    return float(seen.results[rank]["norm"])


def _is_near(a, b):
    return abs(a - b) <= 1e-6 * abs(b)


def _clipped(seen, expected):
    """Are the gradients of all ranks those of `expected`?"""
    pairs = [
        (got, want)
        for one, other in zip(seen.results, expected)
        for got, want in zip(one["gradients"], other["gradients"])
        if want is not None
    ]
    return all(torch.allclose(got, want, rtol=1e-6) for got, want in pairs)


def _norm_is_right(seen):
    return all(_is_near(_norm_of(seen, r), _norm(seen.inputs)) for r in range(len(seen.results)))


def _untouched(seen):
    return _clipped(seen, _expected_clip(seen.inputs, norm=1e-9))


def _always_scaled(seen):
    factor = seen.inputs[0][2] / _norm(seen.inputs)
    want = [
        {"gradients": [None if g is None else factor * g for g in gradients]}
        for gradients, _, _ in seen.inputs
    ]
    return factor > 1 and _clipped(seen, want)


def _copies_differ(seen):
    if seen.inputs[0][1] is None:
        return False
    first = seen.results[0]["gradients"][seen.inputs[0][1]]
    last = seen.results[-1]["gradients"][seen.inputs[-1][1]]
    return not torch.allclose(first, last)


_TIED = [1.0, 2.0, 2.0]  # the gradient of a shared weight

clip_stages = Exercise(
    "clip_stages",
    cases=[
        _clip("gradients 3 and 4, max_norm 1", 1.0, [[3.0]], [[4.0]]),
        _clip("a norm below max_norm", 10.0, [[3.0]], [[4.0]]),
        _clip("a shared weight", 2.0, [_TIED, [1.0]], [[4.0]], [[3.0], _TIED], shared=True),
        _clip("parameters without a gradient", 1.0, [None, [1.0, 2.0]], [[2.0], None]),
        _clip("a rank without any", 1.0, [[1.0, 1.0]], [None], [], [[1.0], [1.0]]),
        _clip("two ranks and a shared weight", 1.0, [_TIED], [[6.0], _TIED], shared=True),
        _clip("equal gradients, nothing shared", 1.0, [_TIED], [_TIED]),
        _clip("float32", 0.5, [[0.1, 0.7]], [[0.3]], [[0.4, 0.2]], dtype=torch.float32),
        _clip("alone", 1.0, [[3.0], [4.0]]),
    ],
    expected=_expected_clip,
    drive=_drive_clip,
    tolerance=(1e-5, 1e-7),  # torch's own adds 1e-6 to the norm that it divides by
    hints=[
        Hint(
            lambda seen: "NoneType" in seen.error,
            "A parameter without a gradient has None in `.grad`. (And `dist.all_reduce` returns "
            "nothing: it writes into the tensor that it is given.)",
            when=("error",),
        ),
        Hint(
            lambda seen: True,
            "Every rank must take part in the all-reduce, also one whose stage has no gradients, "
            "with a tensor of the same shape and type.",
            when=("stuck", "died"),
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1 and _is_near(_norm_of(seen), _norm(seen.inputs[:1])),
            "That is the norm of this rank's own gradients.",
        ),
        Hint(
            lambda seen: (
                _is_near(_norm_of(seen), sum(_norm([one]) for one in seen.inputs))
                and len(seen.inputs) > 1
            ),
            "These are the ranks' norms, added up. What can be added up are their squares.",
        ),
        Hint(
            lambda seen: _is_near(_norm_of(seen), _norm(seen.inputs) ** 2),
            "That is the square of the norm.",
        ),
        Hint(
            lambda seen: (
                seen.inputs[0][1] is not None
                and _is_near(_norm_of(seen), _norm(seen.inputs, twice=True))
            ),
            "The shared weight is one parameter with two owners: it is counted twice.",
        ),
        Hint(
            lambda seen: (
                seen.inputs[0][1] is not None
                and _is_near(
                    _norm_of(seen), sum(_squares(g, at) for g, at, _ in seen.inputs) ** 0.5
                )
            ),
            "The shared weight is counted by neither of its owners.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _copies_differ(seen),
            "The norm is right, and the two copies of the shared gradient are not equal any more: "
            "counted once, but scaled on both ranks.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _always_scaled(seen),
            "The norm is smaller than `max_norm`: nothing is to be changed then.",
        ),
        Hint(
            lambda seen: _norm_is_right(seen) and _untouched(seen),
            "The norm is right, and the gradients are as they were: they are to be scaled in "
            "place.",
        ),
    ],
    hint="Each rank has some of the squares. Their sum over all ranks is the square of the norm.",
)
