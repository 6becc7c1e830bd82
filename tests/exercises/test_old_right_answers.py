"""Answers that are right in another way than the book's solutions are accepted, too."""

import importlib
import pkgutil
from functools import cache

import pytest
import right_answers

from ranklab.exercises import check

pytestmark = pytest.mark.timeout(240)


@cache
def known():
    """Return {exercise and name: Right} of all modules."""
    for module in pkgutil.iter_modules(right_answers.__path__):
        importlib.import_module(f"right_answers.{module.name}")
    return {f"{one.exercise}-{one.name}": one for one in right_answers.found}


@pytest.mark.parametrize("answer", known())
def test_a_right_answer_is_accepted(answer):
    right = known()[answer]
    report = check(right.exercise, *right.answers)
    assert report, str(report)
