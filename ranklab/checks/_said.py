"""Hints that several exercises give, and what hints ask."""

from ranklab.old_checks._model import Hint


def called_as(signature):
    """The Hint for an answer that takes fewer or more arguments than "f(x, y)" gives it."""
    given = signature.count(",") + 1

    def too_few_or_too_many(seen):
        error = seen.error
        own = "multiply()" not in error  # what chapter 1 hands to its answers
        return own and (
            (f"but {given} were given" in error and "positional" in error)
            or "required positional argument" in error
        )

    return Hint(too_few_or_too_many, f"It is called as {signature}.", when=("error",))


def breaks_a_rule(seen):
    """Are the results right, but not how they came about?"""
    return seen.found == "judge"
