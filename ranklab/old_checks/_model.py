"""The words in which the exercises that have not moved yet are written."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from ranklab.exercises import Case, Raised, Seen, model

__all__ = ["Case", "Choice", "Exercise", "Hint", "Raised", "Seen"]


@dataclass(frozen=True)
class Hint:
    """A sentence for the answers that `test(seen)` is true of; an exception in it means False."""

    test: Callable[[Seen], bool]
    sentence: str
    _: KW_ONLY
    when: Sequence[str] = ("returned",)
    wrong, runs = (), False

    def fits(self, seen):
        try:
            return seen.happened in self.when and bool(self.test(seen))
        except Exception:
            return False


def Exercise(name, cases, expected, *, hints=(), **rest):
    return model.Exercise(cases, expected, name=name, mistakes=hints, **rest)


def Choice(name, **rest):
    return model.Choice(name=name, **rest)
