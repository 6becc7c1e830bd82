"""The norm of a gradient that is in pieces."""

import math

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks.tensor import _pieces as pieces
from ranklab.exercises import Case, Exercise, Mistake

ZEROS, NO_GRADIENT = "all are zero", "some have no gradient"
EACH_BY_ITSELF = """one = p.grad.double().square().sum()
                if k == 0:
                    dist.all_reduce(one)
                squares[k] += one"""
CLIPS = 'max_norm < norm < float("inf")'  # in the solution


def case(what, split, shared, max_norm=1.0, scale=1.0, dtype=torch.float64):
    """split: for each rank, the sizes of its pieces; None: one without a gradient."""

    def grads(sizes, seed):
        return [
            None if size is None else (scale * pieces.drawn(seed + k, *size)).to(dtype)
            for k, size in enumerate(sizes)
        ]

    def make(rank, world_size):
        return grads(split[rank], 100 * rank), grads(shared, 7), max_norm

    return Case(what, make, ranks=len(split))


def three_and_four(rank, world_size):
    return [torch.tensor([3.0 + rank], dtype=torch.float64)], [], 1.0


def not_finite(value):
    """Rank 1's piece holds this number."""

    def make(rank, world_size):
        split, shared = pieces.drawn(rank, 3), pieces.drawn(7, 2)
        split[0] = value if rank == 1 else split[0]
        return [split], [shared], 1.0

    return make


def parameter(grad):
    made = nn.Parameter(torch.zeros(2) if grad is None else torch.zeros_like(grad))
    made.grad = None if grad is None else grad.clone()
    return made


def drive(answer, split, shared, max_norm):
    lists = [[parameter(grad) for grad in grads] for grads in (split, shared)]
    before = [p.grad for some in lists for p in some]
    norm = answer(*map(list, lists), max_norm)
    after = [[p.grad for p in some] for some in lists]
    return {
        "norm": norm.double() if torch.is_tensor(norm) else norm,
        "gradients of the pieces": after[0],
        "gradients of the replicas": after[1],
        "in place": all(a is b for a, b in zip(before, [*after[0], *after[1]])),
    }


def there(grads):
    return [grad for grad in grads if grad is not None]


def twin(inputs):
    _, shared, max_norm = inputs[0]
    whole = there([*shared, *(grad for split, *_ in inputs for grad in split)])
    norm = sum(grad.double().square().sum().item() for grad in whole) ** 0.5
    factor = max_norm / norm if max_norm < norm < math.inf else 1.0

    def scaled(grads):
        return [None if grad is None else grad * factor for grad in grads]

    return [
        {
            "norm": norm,
            "gradients of the pieces": scaled(split),
            "gradients of the replicas": scaled(shared),
            "in place": True,
        }
        for split, shared, _ in inputs
    ]


def with_pytorchs_norms(split, shared, max_norm):
    """The replicas go into the sum with 1/n of their square."""
    own, replicas = (
        nn.utils.get_total_norm([p.grad for p in some if p.grad is not None])
        for some in (split, shared)
    )
    squares = (own.double() ** 2 + replicas.double() ** 2 / dist.get_world_size()).reshape(1)
    dist.all_reduce(squares)
    norm = squares.sqrt()[0]
    if norm.isfinite():
        nn.utils.clip_grads_with_norm_([*split, *shared], max_norm, norm)
    return norm


def norm_is_right(seen):
    right = seen.expected[0]["norm"]
    return all(math.isclose(one["norm"], right, rel_tol=1e-5) for one in seen.results)


exercise = Exercise(
    cases=[
        Case("3 on rank 0 and 4 on rank 1", three_and_four, ranks=2),
        case("two pieces on each rank, and a replica", [[(2, 3), (4,)]] * 4, [(3,)]),
        case("uneven pieces", [[(2, 3)], [(1, 3), (2,)], [(4, 3)]], [(2, 2), (5,)], max_norm=0.5),
        case("the norm is small already", [[(2, 2)], [(3, 2)]], [(4,)], max_norm=100.0),
        case("no replicas", [[(3,)], [(2,)], [(1,)], [(2,)]], []),
        case("no pieces", [[], []], [(3, 2), (4,)]),
        case("a rank without pieces", [[(2, 2)], [], [(1, 2)]], [(2,)]),
        case(NO_GRADIENT, [[None, (3,)], [(2,), None], [None]], [None, (4,)]),
        case("no gradient at all", [[None], []], []),
        case(ZEROS, [[(2,)], [(3,)]], [(2,)], scale=0.0),
        case("float32", [[(40, 5)], [(30, 5)]], [(20,)], scale=3.0, dtype=torch.float32),
        case("alone", [[(4,)]], [(2,)]),
        Case("a gradient of rank 1 is infinite", not_finite(math.inf), ranks=3),
        Case("a gradient of rank 1 is nan", not_finite(math.nan), ranks=3),
    ],
    twin=twin,
    drive=drive,
    tolerance=(1e-5, 1e-9),
    hint="The square of the norm is a sum over all numbers of the gradient, each of them once. "
    "Which rank has which of them?",
    also_right=[
        with_pytorchs_norms,
        {
            f" and {CLIPS}": "",
            "max_norm / norm": 'min(1, max_norm / max(norm, 1e-9)) if norm < float("inf") else 1',
        },
    ],
    mistakes=[
        Mistake(
            "A parameter that took no part in the loss has no gradient: its `.grad` is None.",
            {"p.grad is not None:": "True:"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error and seen.case.what == NO_GRADIENT,
        ),
        Mistake(
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing.",
            {"dist.all_reduce(squares[:1])": "squares = dist.all_reduce(squares[:1])"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "A rank may have no piece, or none with a gradient. It takes part in the sum all the "
            "same: with what number?",
            {"dist.all_reduce": "if split or not dist.get_rank():\n        dist.all_reduce"},
            happened=("stuck", "died", "error"),
            test=lambda seen: not all(there(split) for split, *_ in seen.inputs),
        ),
        Mistake(
            "The ranks have different pieces, and not as many. Let each add up its own first, and "
            "then make one sum over all ranks.",
            {
                "squares[k] += p.grad.double().square().sum()": EACH_BY_ITSELF,
                "    dist.all_reduce(squares[:1])\n    norm": "    dist.barrier()\n    norm",
            },
            happened=("stuck", "died"),
        ),
        Mistake(
            "A gradient of zeros has the norm 0: what is divided by it?",
            {
                f" and {CLIPS}": "",
                "max_norm / norm": "torch.tensor(norm).clamp(max=max_norm) / norm",
            },
            {f" and {CLIPS}": "", "max_norm / norm": "min(1.0, max_norm / norm)"},
            happened=("returned", "error"),
            test=lambda seen: seen.case.what == ZEROS,
        ),
        Mistake(
            "The norm is too large: the replicas are on every rank, and count as often. Which part "
            "of the sum is to be added up over the ranks?",
            {"squares[:1]": "squares"},
        ),
        Mistake(
            "That is the norm of the pieces. The replicas belong to the gradient, too, once.",
            {"squares.sum()": "squares[0]"},
        ),
        Mistake(
            "That is the norm of what the rank itself has. The other ranks' pieces are missing, "
            "and every rank would scale by a factor of its own.",
            {"    dist.all_reduce(squares[:1])\n": ""},
        ),
        Mistake(
            "Norms do not add up. Their squares do.",
            {"squares.sum().sqrt()": "squares.sqrt().sum()"},
            {"dist.all": "squares.sqrt_()\n    dist.all", ".sum().sqrt()": ".sum()"},
            {"dist.all": "squares[0] = squares.sum().sqrt()\n    dist.all", ".sum().sqrt()": "[0]"},
            {".square().sum()": ".norm()", "squares.sum().sqrt()": "squares.sum()"},
        ),
        Mistake("That is the square of the norm.", {"squares.sum().sqrt()": "squares.sum()"}),
        Mistake(
            "That is the norm after clipping. The norm before is asked for: it tells how the "
            "training goes.",
            {"return norm": "return min(norm, max_norm)"},
        ),
        Mistake(
            "The gradient was small enough, and has been made larger. It is to be at most "
            "max_norm.",
            {CLIPS: "norm"},
        ),
        Mistake(
            "The norm is not finite: nothing is to be scaled, or one infinite number makes nan of "
            "itself and zeros of all others.",
            {CLIPS: "norm > max_norm"},
            {CLIPS: 'not norm <= max_norm and norm != float("inf")'},
        ),
        Mistake(
            "The numbers are right, but they stand in new tensors. Scale the gradients in place: "
            "others may hold them, buckets say.",
            {"p.grad *=": "p.grad = p.grad *"},
        ),
        Mistake(
            "The norm is right, and the pieces are scaled. The replicas are to be scaled, too.",
            {"for p in [*split, *shared]:\n": "for p in split:\n"},
        ),
        Mistake(
            "The norm is right. The gradients of the pieces are not scaled, or a copy of them is.",
            {"p.grad *=": "p.grad *"},
            {"for p in [*split, *shared]:\n": "for p in shared:\n"},
        ),
        Mistake(
            "The norm is right, and the scaling is not. Clipping keeps the direction of the whole "
            "gradient: one factor for all, max_norm / norm.",
            {"max_norm / norm": "min(1.0, max_norm / p.grad.norm())"},
            {"max_norm / norm": "(max_norm / norm) ** 0.5"},
            test=norm_is_right,
        ),
    ],
)
