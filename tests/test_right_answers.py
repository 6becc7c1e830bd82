"""Answers that are right in another way than the book's solutions are accepted, too."""

import importlib
import pkgutil

import pytest
import right_answers

from ranklab.exercises import check, checker_process

pytestmark = pytest.mark.timeout(120)


def _all():
    for module in pkgutil.iter_modules(right_answers.__path__):
        importlib.import_module(f"right_answers.{module.name}")
    return right_answers.found


@pytest.fixture(scope="module", autouse=True)
def one_checking_process():
    yield
    checker_process.end()


@pytest.mark.parametrize("answer", _all(), ids=lambda one: f"{one.exercise}-{one.name}")
def test_a_right_answer_is_accepted(answer):
    report = check(answer.exercise, *answer.answers)
    assert report, str(report)
