"""Every exercise: its solution is accepted, and its wrong answers are told what is wrong.

One checking process runs the answers one after another, as that of a notebook does.
"""

import ast
import importlib
import linecache
from dataclasses import dataclass
from functools import cache

import pytest
import wrong_answers

from bookmaker.folders import HERE
from bookmaker.manuscript import exercises, manuscript
from ranklab import old_checks as checks
from ranklab.exercises import Choice, check

pytestmark = pytest.mark.timeout(240)

AT_LEAST = 3  # wrong answers for each exercise


@dataclass(frozen=True)
class Solved:
    """An exercise as a manuscript has it: where, its cell with the solution, and its check."""

    chapter: str
    source: str
    check: str


@cache
def solved_in(chapter):
    """Return {name: Solved} of the manuscript of a chapter."""
    nb = manuscript.read(next(path for path in HERE.chapters() if path.stem == chapter))
    sources = exercises.solutions(nb)
    return {
        one.name: Solved(chapter, sources[one.name], nb.cells[one.check].source)
        for one in exercises.find(nb)
    }


def choices_in(module):
    """Return {name: Choice} of a module of checks."""
    return {name: one for name, one in checks.exercises(module).items() if isinstance(one, Choice)}


@cache
def wrong_in(module):
    """Return {exercise and name: Wrong} of a module of wrong answers."""
    try:
        there = importlib.import_module(f"wrong_answers.{module}")
    except ModuleNotFoundError as error:
        if error.name != f"wrong_answers.{module}":
            raise
        return {}
    return {f"{one.exercise}-{one.name}": one for one in wrong_answers.of(there)}


CHAPTERS, MODULES = [path.stem for path in HERE.chapters()], list(checks.modules())


def of_each(places, read):
    """Parametrize a test with (place, name) for all names that `read` finds at the places.

    Where it cannot read one, that is the failure of one test, and not of all.
    """
    found = []
    for place in places:
        try:
            found += [(place, name) for name in read(place)]
        except Exception:
            found.append((place, "cannot be read"))
    return pytest.mark.parametrize("place, name", found, ids=[name for _, name in found])


def solved():
    """Return {name: Solved} of all manuscripts."""
    return {name: one for chapter in CHAPTERS for name, one in solved_in(chapter).items()}


def known():
    """Return {name: exercise} of all modules of checks."""
    return {name: one for module in MODULES for name, one in checks.exercises(module).items()}


def answers(one):
    """Run the cell of a Solved with its solution; return what its check cell hands over."""
    file = f"{one.chapter}, {one.check}"
    linecache.cache[file] = len(one.source), None, one.source.splitlines(keepends=True), file
    there = {"__name__": "__main__"}
    exec(compile(one.source, file, "exec"), there)
    call = ast.parse(one.check).body[-1].value
    return [eval(ast.unparse(argument), there) for argument in call.args[1:]]


# What there must be


def test_every_exercise_has_wrong_answers():
    counts = {name: 0 for name, one in known().items() if not isinstance(one, Choice)}
    for module in MODULES:
        for answer in wrong_in(module).values():
            counts[answer.exercise] += 1
    assert not {name: count for name, count in counts.items() if count < AT_LEAST}


# What a check says


@of_each(MODULES, checks.exercises)
def test_the_solution_is_accepted(place, name):
    report = check(name, *answers(solved()[name]))
    assert report, str(report)
    assert str(report).startswith("Right: "), str(report)


@of_each(MODULES, wrong_in)
def test_a_wrong_answer_is_told_what_is_wrong(place, name):
    answer = wrong_in(place)[name]
    report = check(answer.exercise, *answer.answers)
    assert report.verdict == "wrong", str(report)
    missing = [said for said in answer.says if said not in str(report)]
    assert not missing, f"{missing} not in:\n{report}"


@of_each(MODULES, choices_in)
def test_a_wrong_choice_is_told_why(place, name):
    choice = choices_in(place)[name]
    assert len(choice.why) >= 2
    for letter, why in choice.why.items():
        report = check(choice.name, lambda letter=letter: letter)
        assert report.verdict == "wrong"
        assert why in str(report)
    report = check(choice.name, lambda: choice.right)
    assert report
    assert choice.because in str(report)
