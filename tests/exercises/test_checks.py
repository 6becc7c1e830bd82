"""Every exercise: its solution is accepted, and each mistake is told what is wrong.

One checking process runs the answers of a chapter one after another, as that of a notebook does.
"""

import os
from unittest import mock

import pytest

from bookmaker.folders import HERE
from bookmaker.manuscript import exercises, manuscript
from bookmaker.upstream import LOADED_BY_OPTIMIZERS
from ranklab import checks
from ranklab.exercises import Choice, check
from ranklab.exercises.solution import answers_of, solution

EVERYTHING = pytest.mark.everything
AT_LEAST = 3  # mistakes for each exercise


@pytest.fixture(autouse=True, scope="module")
def one_checker():
    """For all exercises, also those that train: else there is a new one at each change."""
    with mock.patch.dict(os.environ, RANKLAB_PRELOAD=LOADED_BY_OPTIMIZERS):
        yield


EXERCISES = {name: checks.find(name) for name in checks.files()}
CHOICES = {name: one for name, one in EXERCISES.items() if isinstance(one, Choice)}
ANSWERED = {name: one for name, one in EXERCISES.items() if name not in CHOICES}


def of_each(found, now=lambda what: True):
    """Parametrize a test with (name of an exercise, one of what it has of a kind).

    now(what): is it part of `make test`, and not left to `make test-all`?
    """
    params = [
        pytest.param(name, what, id=f"{name}-{i}", marks=[] if now(what) else EVERYTHING)
        for name, all_of_it in found.items()
        for i, what in enumerate(all_of_it)
    ]
    return pytest.mark.parametrize("name, what", params)


def wrong_of(exercise):
    """Return (a mistake, one way to make it) for all of an exercise."""
    return [(mistake, way) for mistake in exercise.mistakes for way in mistake.wrong]


def the_first_way(what):
    mistake, way = what
    return way is mistake.wrong[0]


# What there must be


def test_every_exercise_has_its_file_and_every_file_its_exercise():
    told = [one.name for path in HERE.chapters() for one in exercises.find(manuscript.read(path))]
    assert sorted(told) == sorted(EXERCISES)


@pytest.mark.parametrize("name", ANSWERED)
def test_an_exercise_has_mistakes_and_counts_its_gaps(name):
    exercise = ANSWERED[name]
    assert len(exercise.mistakes) >= AT_LEAST
    assert len(wrong_of(exercise)) >= AT_LEAST
    if exercise.gaps:
        for path in HERE.chapters():
            nb = manuscript.read(path)
            stubs = [one.stub for one in exercises.find(nb) if one.name == name]
            for stub in stubs:
                assert nb.cells[stub].source.count(exercises.BEGIN) == exercise.gaps


@pytest.mark.parametrize("path", HERE.chapters(), ids=lambda path: path.stem)
def test_each_chapter_has_a_few_exercises(path):
    """But the tour, which goes through twenty minutes without."""
    if path.stem == "00_tour":
        assert exercises.find(manuscript.read(path)) == []
        return
    assert 3 <= len(exercises.find(manuscript.read(path))) <= 7


# What a check says


@of_each({name: [solution(name)] for name in EXERCISES})
def test_the_solution_is_accepted(name, what):
    report = check(name, *what.answers())
    assert str(report).startswith("Right: "), str(report)


FIRST_ALSO_RIGHT = [one.also_right[0] for one in ANSWERED.values() if one.also_right]


@of_each(
    {name: one.also_right for name, one in ANSWERED.items()},
    lambda answer: any(answer is first for first in FIRST_ALSO_RIGHT),
)
def test_another_right_answer_is_accepted(name, what):
    report = check(name, *answers_of(what, name))
    assert report, str(report)


@of_each({name: wrong_of(one) for name, one in ANSWERED.items()}, the_first_way)
def test_a_mistake_is_told_its_sentence(name, what):
    mistake, way = what
    report = check(name, *answers_of(way, name))
    assert report.verdict == "wrong", str(report)
    assert f"Hint: {mistake.sentence}" in str(report), f"not said: {mistake.sentence}\n{report}"


@of_each({name: [*one.why.items()] for name, one in CHOICES.items()})
def test_a_wrong_choice_is_told_why(name, what):
    letter, why = what
    report = check(name, lambda: letter)
    assert report.verdict == "wrong"
    assert why in str(report)


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_has_three_letters_and_says_why_one_is_right(name):
    choice = CHOICES[name]
    assert len(choice.letters) >= 3
    assert choice.because in str(check(name, lambda: choice.right))
