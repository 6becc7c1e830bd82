"""Plausible wrong answers to the exercises, a module for each of `ranklab.checks`.

test_checks.py runs them.

    from wrong_answers import wrong

    @wrong("own_broadcast", says=["rank 2", "Who sends to the ranks beyond 1?"])
    def only_to_its_neighbor(x, src):
        ...

Where an exercise wants several answers (a class and two functions, say), the function decorated by
`@wrong(..., several=True)` is called, without arguments, and returns the tuple of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """A wrong answer. `says`: what the report on it must contain."""

    exercise: str
    answers: tuple
    says: tuple[str, ...]
    name: str


_found = {}  # {module: its wrong answers}; not on the answers themselves, which travel


def wrong(exercise, *, says, several=False):
    """Mark a function or a class as a wrong answer; the report on it must have all of `says`."""
    said = (says,) if isinstance(says, str) else tuple(says)

    def mark(answer):
        answers = answer() if several else (answer,)
        one = Wrong(exercise, tuple(answers), said, answer.__name__)
        _found.setdefault(answer.__module__, []).append(one)
        return answer

    return mark


def of(module):
    """Return the `Wrong` objects of a module of wrong answers, in their order there."""
    return _found.get(module.__name__, [])
