"""Exercises that check themselves: the reader's answer runs on real ranks, against many cases.

    from ranklab.exercises import check

    check("own_broadcast", own_broadcast)

What is checked stands in `ranklab/checks/`, a module for each chapter, written with `Exercise`,
`Case`, `Hint` and `Choice`.
"""

from .checking import check
from .model import Case, Choice, Exercise, Hint

__all__ = ["Case", "Choice", "Exercise", "Hint", "check"]
