"""Every exercise: its solution is accepted, and its wrong answers are told what is wrong.

All answers run in one checking process, as a reader's do in a notebook.
"""

import ast
import importlib
import linecache
import time
from dataclasses import dataclass
from functools import cache

import pytest
import wrong_answers

from ranklab import checks
from ranklab.exercises import Choice, check, process
from ranklab.folders import HERE
from ranklab.forms import exercises, manuscript

pytestmark = pytest.mark.timeout(120)

AT_LEAST = 3  # wrong answers for each exercise


@dataclass(frozen=True)
class Solved:
    """An exercise as a manuscript has it: where, its cell with the solution, and its check."""

    chapter: str
    source: str
    check: str


@cache
def solved():
    """Return {name: Solved} of all manuscripts."""
    found = {}
    for path in HERE.chapters():
        nb = manuscript.read(path)
        sources = exercises.solutions(nb)
        for one in exercises.find(nb):
            found[one.name] = Solved(path.stem, sources[one.name], nb.cells[one.check].source)
    return found


@cache
def known():
    """Return {name: exercise} of all modules of checks."""
    return {
        name: one for module in checks.modules() for name, one in checks.exercises(module).items()
    }


@cache
def wrong():
    """Return all wrong answers."""
    found = []
    for module in checks.modules():
        try:
            found += wrong_answers.of(importlib.import_module(f"wrong_answers.{module}"))
        except ModuleNotFoundError as error:
            if error.name != f"wrong_answers.{module}":
                raise
    return found


def answers(name):
    """Run the exercise's cell with its solution; return what its check cell hands over."""
    one = solved()[name]
    file = f"{one.chapter}, {name}"
    linecache.cache[file] = len(one.source), None, one.source.splitlines(keepends=True), file
    there = {"__name__": "__main__"}
    exec(compile(one.source, file, "exec"), there)
    call = ast.parse(one.check).body[-1].value
    return [eval(ast.unparse(argument), there) for argument in call.args[1:]]


@pytest.fixture(scope="module", autouse=True)
def one_checking_process():
    began = time.monotonic()
    yield
    process.end()
    seconds = time.monotonic() - began
    print(f"\n{len(solved())} solutions and {len(wrong())} wrong answers took {seconds:.0f} s")


# What there must be


def test_every_exercise_has_its_check_and_every_check_its_exercise():
    assert set(solved()) == set(known())


def test_every_exercise_has_wrong_answers():
    counts = {name: 0 for name, one in known().items() if not isinstance(one, Choice)}
    for answer in wrong():
        counts[answer.exercise] += 1
    assert not {name: count for name, count in counts.items() if count < AT_LEAST}


def test_each_chapter_has_three_to_six_exercises():
    counts = {}
    for one in solved().values():
        counts[one.chapter] = counts.get(one.chapter, 0) + 1
    assert set(counts) == {path.stem for path in HERE.chapters()}
    assert all(count >= 3 for count in counts.values()), counts


# What a check says


@pytest.mark.parametrize("name", sorted(solved()))
def test_the_solution_is_accepted(name):
    report = check(name, *answers(name))
    assert report, str(report)
    assert str(report).startswith("Right: "), str(report)


@pytest.mark.parametrize("answer", wrong(), ids=lambda one: f"{one.exercise}-{one.name}")
def test_a_wrong_answer_is_told_what_is_wrong(answer):
    report = check(answer.exercise, *answer.answers)
    assert report.verdict == "wrong", str(report)
    missing = [said for said in answer.says if said not in str(report)]
    assert not missing, f"{missing} not in:\n{report}"


@pytest.mark.parametrize(
    "choice",
    [one for one in known().values() if isinstance(one, Choice)],
    ids=lambda one: one.name,
)
def test_a_wrong_choice_is_told_why(choice):
    assert len(choice.why) >= 2
    for letter, why in choice.why.items():
        report = check(choice.name, lambda letter=letter: letter)
        assert report.verdict == "wrong"
        assert why in str(report)
    report = check(choice.name, lambda: choice.right)
    assert report
    assert choice.because in str(report)
