"""`check`: from the reader's answer to a report on it."""

from .. import checks
from .attempted import is_stub
from .report import Report


def check(name, answer, *more):
    """Run an answer against the cases of the exercise `name`; return a Report that says what came.

    answer: the function or the class; `more`: the others, where the exercise wants several. A
    report is true where the answer is right. A wrong answer raises nothing.
    """
    answers = (answer, *more)
    exercise = checks.find(name)
    if exercise is None:
        return Report(name, "wrong", f"There is no exercise called {name!r}.")
    if any(map(is_stub, answers)):
        return Report(name, "open", f"{name}: not attempted yet.")
    return Report(name, "wrong", f"{name}: answers cannot be checked yet.")
