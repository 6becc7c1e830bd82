"""What the exercises on the chapter's own Tensor share."""

import numpy as np
import torch

from ranklab.exercises import Mistake

TENSOR = "a Tensor, as Tensor(data, sources, rule) makes it"


def random(*shapes, seed=0):
    """Small whole numbers in float64: legible, and without rounding."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-3, 4, shape, generator=generator).double() for shape in shapes]


def what(out):
    """What an operation returned, in words; a notebook may have a Tensor class of its own."""
    if hasattr(out, "rule") and hasattr(out, "sources"):
        return TENSOR
    if torch.is_tensor(out):
        return "a torch.Tensor"
    kind = f"{type(out).__module__}.{type(out).__name__}".removeprefix("builtins.")
    return "nothing (None)" if out is None else f"a {kind}"


def gradient(leaf):
    return None if leaf.grad is None else torch.as_tensor(np.array(leaf.grad))


def differs(seen, what):
    got, expected = seen.results[0][what], seen.expected[0][what]
    return got is None or got.shape != expected.shape or not torch.allclose(got, expected)


def no_tensor(nothing, *others):
    """The mistakes of an operation that returns no Tensor; each argument: a wrong answer."""
    return [
        Mistake(
            "It returned nothing: is a `return` missing?",
            nothing,
            test=lambda seen: seen.results[0]["what came"] == "nothing (None)",
        ),
        Mistake(
            "Return a Tensor of the chapter, `Tensor(data, sources, rule)`: `backward` goes from "
            "one to its sources, and asks its rule.",
            *others,
            test=lambda seen: seen.results[0]["what came"] != TENSOR,
        ),
    ]


def no_rule(none, nothing, not_for_each):
    """The mistakes of an operation with which `backward` fails; each argument: a wrong answer."""
    return [
        Mistake(
            "`backward` found a Tensor with sources and without a rule: the rule is the third "
            "argument of `Tensor`.",
            none,
            happened="error",
            test=lambda seen: "'NoneType' object is not callable" in seen.error,
        ),
        Mistake(
            "`backward` called a rule that returned nothing: is a `return` missing in it?",
            nothing,
            happened="error",
            test=lambda seen: "'NoneType' object is not iterable" in seen.error,
        ),
        Mistake(
            "A rule returns a tuple with one gradient for each source, in the order of the "
            "sources.",
            not_for_each,
            happened="error",
            test=lambda seen: "zip() argument 2" in seen.error,
        ),
    ]
