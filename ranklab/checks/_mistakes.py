"""Mistakes that can be made in several exercises."""

from ranklab.exercises import Mistake


def returns_nothing(*wrong):
    """The Mistake of taking what `dist.all_reduce` returns."""
    return Mistake(
        "`dist.all_reduce` writes into the tensor that it is given, and returns nothing.",
        *wrong,
        happened="error",
        test=lambda seen: "NoneType" in seen.error,
    )
