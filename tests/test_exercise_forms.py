"""Exercises in the forms: stubs for a reader, solutions for the page, assignments to teach with."""

import ast
import contextlib
import copy
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbgrader.nbgraderformat.v3 import MetadataValidatorV3
from nbgrader.preprocessors import ClearSolutions

from ranklab.folders import HERE
from ranklab.forms import (
    exercise_cells,
    exercise_files,
    exercises,
    manuscript,
    markdown,
    notebook,
    saving,
)
from ranklab.forms.__main__ import main
from ranklab.forms.errors import FormError
from ranklab.forms.script import ScriptExporter, to_script

pytestmark = pytest.mark.timeout(400)

ROOT = HERE.root
BIN = Path(sys.executable).parent
SAMPLE = ROOT / "tests" / "manuscripts" / "93_exercises.md"
MANUSCRIPTS = [*HERE.chapters(), SAMPLE]

each_manuscript = pytest.mark.parametrize("path", MANUSCRIPTS, ids=lambda path: path.stem)


def sample():
    return manuscript.read(SAMPLE)


def form_of(nb):
    """The notebook as it comes from its file."""
    return nbformat.reads(notebook.write(notebook.to_notebook(nb)), as_version=4)


def cell_of(form, grade_id):
    return next(cell for cell in form.cells if exercise_cells.grade_id(cell) == grade_id)


# What an exercise is


def test_the_exercises_of_a_manuscript_are_found():
    predict, fill_in, build = exercises.find(sample())
    assert (predict.label, predict.name, predict.kind) == ("twice-two", "twice_two", "predict")
    assert (fill_in.title, fill_in.minutes, fill_in.kind) == ("Twice anything", 2, "fill-in")
    assert fill_in.task.startswith("*Fill in, about 2 minutes.* Write") and "item" in fill_in.task
    assert fill_in.prose.startswith("The secret is a sum") and not build.prose
    assert (build.label, build.kind, build.minutes) == ("pair-of-answers", "build", 12)


def test_a_solution_is_the_cell_without_its_markers_and_todos():
    solutions = exercises.solutions(sample())
    assert list(solutions) == ["twice_two", "twice", "pair_of_answers"]
    assert "TODO" not in solutions["twice"] and "or in two" not in solutions["twice"]
    assert "    # Numbers are added,\n    secret = x + x\n\n    def checked" in solutions["twice"]
    namespace = {}
    exec(solutions["twice"] + solutions["pair_of_answers"].replace("def", "\ndef", 1), namespace)
    assert namespace["twice"](4) == 8 and namespace["Second"]().value() == 2


@each_manuscript
def test_a_stub_is_what_nbgrader_makes_of_the_cell(path):
    nb = manuscript.read(path)
    for exercise in exercises.find(nb):
        cell = copy.deepcopy(nb.cells[exercise.stub])
        assert ClearSolutions()._replace_solution_region(cell, "python")
        assert exercises.stub(nb.cells[exercise.stub].source) == cell.source


CODE = "```{code-cell} ipython3"
# (what to replace in the sample, by what, what the error says)
MALFORMED = {
    "no end": ("    ### END SOLUTION\n```", "```", "cell 2 .*is never followed by `### END"),
    "no begin": ('    ### BEGIN SOLUTION\n    return "a"', "    x = 1", "cell 2 .*BEGIN.*first"),
    "end before begin": (
        '    ### BEGIN SOLUTION\n    return "a"\n    ### END SOLUTION',
        '    ### END SOLUTION\n    return "a"\n    ### BEGIN SOLUTION',
        "cell 2 .*`### END SOLUTION` stands where `### BEGIN SOLUTION` is to come first",
    ),
    "nested": (
        '    return "a"',
        '    ### BEGIN SOLUTION\n    return "a"',
        "cell 2 .*`### BEGIN SOLUTION` stands where `### END SOLUTION` is to come first",
    ),
    "no region": (
        '    ### BEGIN SOLUTION\n    return "a"\n    ### END SOLUTION',
        '    return "a"',
        "cell 2 .*there is no solution",
    ),
    "an empty region": (
        '    return "a"\n    ### END',
        "    # a\n\n    ### END",
        "cell 2 .*no code",
    ),
    "at the left margin": (
        "import math\n",
        "### BEGIN SOLUTION\nimport math\n### END SOLUTION\n",
        "cell 4 .*left margin",
    ),
    "a marker behind code": ("    secret = x + x\n    ###", "    x ###", "cell 4 .*its own"),
    "no Python": ("    return checked(secret)", "    return (", "cell 4 .*stub is not Python"),
    "a solution that is no Python": ("secret = x + x", "secret = x +", "the solution is not Py"),
    "a magic": ("import math\n", "%%px\nimport math\n", "cell 4 .*no magic"),
    "taught": ("import math\n", "#@save\nimport math\n", "cell 4 .*no `#@save`"),
    "no check": (
        '```{code-cell} ipython3\n:tags: [check]\n\ncheck("twice", twice)\n```\n',
        "",
        "cell 4 .*is followed by its check",
    ),
    "the check of another": (
        'check("twice", twice)',
        'check("thrice", twice)',
        'cell 5 .*`twice` ends with `check\\("twice", ...\\)`',
    ),
    "a check without an answer": ('check("twice", twice)', 'check("twice")', "cell 5 .*ends with"),
    "something after the check": (
        'check("twice", twice)',
        'check("twice", twice)\nx = 1',
        "cell 5 .*ends with",
    ),
    "two of one label": (
        ":label: twice\n",
        ":label: twice-two\n",
        "the text after cell 3 .*another label",
    ),
    "a label that is no name": (":label: twice\n", ":label: Twice_1\n", "needs a label of small"),
    "no label": (":label: twice\n", "", "needs a label"),
    "no kind": (":class: fill-in\n", "", "one of predict, fill-in, build"),
    "no title": ("{exercise} Twice anything", "{exercise}", "needs a title"),
    "no time": ("*Fill in, about 2 minutes.*", "*Fill in.*", r"must begin .*\*Fill in, about 10"),
    "another kind": ("*Fill in, about 2", "*Build, about 2", r"must begin .*\*Fill in, about 10"),
    "a text in between": (
        "```python\ntwice(3)  # is 6\n```\n:::\n",
        ":::\n\nmore text\n",
        "after `:::{exercise} Twice anything` comes its cell",
    ),
    "a cell in between": (
        f"{CODE}\n:tags: [exercise]\n\nimport",
        f"{CODE}\nx = 1\n```\n\n{CODE}\n:tags: [exercise]\n\nimport",
        "the text after cell 3 .*has no code cell tagged `exercise` below it",
    ),
    "no directive": (
        "## What you can do now",
        "```{code-cell} ipython3\n:tags: [exercise]\n\nx = 1\n```\n\n## What",
        "cell 8 .*is tagged `exercise`, and what comes directly",
    ),
    "a lonely check": (
        "## What you can do now",
        "```{code-cell} ipython3\n:tags: [check]\n\nx = 1\n```\n\n## What",
        "cell 8 .*is tagged `check`, and what comes directly before it is not a cell",
    ),
    "a solution that anybody sees": (
        'result("three", 3)',
        "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION",
        "cell 1 .*not tagged `exercise`",
    ),
    "a solution of another": (
        "{solution} twice",
        "{solution} twice-two",
        "the text after cell 5 .*directly below the check",
    ),
    "a solution elsewhere": (
        "## What you can do now",
        "## What you can do now\n\n:::{solution} twice\nx\n:::\n",
        "the text after cell 7 .*directly below the check",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_not_well_made_is_refused_with_its_place(case):
    old, new, message = MALFORMED[case]
    text = SAMPLE.read_text()
    assert old in text
    nb = manuscript.parse(text.replace(old, new, 1), "book/93_exercises.md")
    with pytest.raises(FormError, match=message) as raised:
        exercises.find(nb)
    assert str(raised.value).startswith("93_exercises, ")


# The notebook


@each_manuscript
def test_no_solution_is_anywhere_in_the_notebook(path):
    nb = manuscript.read(path)
    text = notebook.write(notebook.to_notebook(nb))
    assert exercises.BEGIN not in text and exercises.END not in text
    found = exercises.find(nb)
    assert text.count(exercises.STUB[0]) >= len(found)
    for exercise in found:
        assert not exercise.prose or exercise.prose.split("\n")[0] not in text
    assert path != SAMPLE or ("secret" not in text.replace("checked(secret)", ""))


@each_manuscript
def test_the_notebook_is_one_that_nbgrader_understands(path):
    nb = manuscript.read(path)
    form = form_of(nb)
    MetadataValidatorV3().validate_nb(form)
    for exercise in exercises.find(nb):
        stub, check = (cell_of(form, name) for name in (exercise.name, f"check_{exercise.name}"))
        assert stub.metadata.nbgrader.solution and not stub.metadata.nbgrader.grade
        assert check.metadata.nbgrader.grade and check.metadata.nbgrader.locked
        assert check.metadata.nbgrader.points > 0


def test_the_notebook_shows_the_task_and_leads_to_the_solution():
    texts = [cell.source for cell in form_of(sample()).cells if cell.cell_type == "markdown"]
    (text,) = [text for text in texts if "Twice anything" in text]
    head, title, empty, task, *_ = text.splitlines()
    url = notebook.places_of(sample()).site
    assert head.startswith('<!-- myst ":::{exercise} Twice anything" ":label: twice"')
    assert title == f"> **Twice anything** · [solution]({url}/93_exercises.html#twice-solution)"
    assert empty == ">" and task.startswith("> *Fill in, about 2 minutes.* Write `twice(x)`")


def test_answers_do_not_travel_back_and_solutions_are_not_lost():
    nb, form = sample(), form_of(sample())
    cell_of(form, "twice").source = "def twice(x):\n    return 'my answer'"
    cell_of(form, "check_twice").source = "check('twice', twice)  # again"
    cell_of(form, "twice_two").metadata.tags = []
    assert notebook.to_manuscript(form, nb) == SAMPLE.read_text()


def test_the_task_travels_back():
    form = form_of(sample())
    for cell in form.cells:
        cell.source = cell.source.replace("> **Twice anything**", "> **Twice a number**")
        cell.source = cell.source.replace("It has\n", "It has two:\n")
    expected = SAMPLE.read_text().replace("Twice anything", "Twice a number")
    assert notebook.to_manuscript(form, sample()) == expected.replace("It has\n", "It has two:\n")


@pytest.mark.parametrize("grade_id", ["twice", "check_twice"])
def test_a_notebook_that_lost_an_exercise_does_not_become_the_manuscript(grade_id):
    form = form_of(sample())
    form.cells.remove(cell_of(form, grade_id))
    with pytest.raises(FormError, match=r"^93_exercises, .*cell tagged `|is followed by its check"):
        notebook.to_manuscript(form, sample())


def test_a_notebook_that_lost_all_of_an_exercise_does_not_become_the_manuscript():
    form = form_of(sample())
    at = form.cells.index(cell_of(form, "twice_two"))
    form.cells[at - 1].source = "## Exercises"
    del form.cells[at : at + 2]
    with pytest.raises(FormError, match=r"has lost the exercise `twice-two`.*make forms"):
        notebook.to_manuscript(form, sample())
    form = form_of(sample())
    for cell in form.cells:
        cell.source = cell.source.replace("<!-- solution: twice -->", "")
    with pytest.raises(FormError, match=r"lost the exercise `twice`, or the comment"):
        notebook.to_manuscript(form, sample())


# The command


@pytest.fixture
def book(tmp_path):
    """A repository whose one chapter has exercises, with all its forms; and their checks."""
    for folder in ("book", "notebooks", "scripts", "ranklab/taught", "checks"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SAMPLE, tmp_path / "book")
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://host.example/me/mine\n")
    (tmp_path / "checks" / "sums.py").write_text(CHECKS)
    assert forms(tmp_path)[0] == 0
    return tmp_path


CHECKS = """
from ranklab.exercises import Case, Choice, Exercise

def number(x):
    return Case(f"the number {x}", lambda rank, world_size: (x,), ranks=1)

def values(answers):
    first, Second = answers
    return first(), Second().value()

twice_two = Choice("twice_two", right="a", why={"b": "That is a string."}, because="2 + 2")
twice = Exercise(
    "twice", [number(3), number(0), number(-1)], lambda inputs: [2 * x for x, in inputs], hint="+"
)
pair_of_answers = Exercise(
    "pair_of_answers",
    [Case("both", lambda rank, world_size: (), ranks=1)],
    lambda inputs: [(1, 2)],
    drive=values,
    answers=2,
    hint="Count.",
)
"""
TWICE = "scripts/exercises/93_twice.py"
NOTEBOOK = "notebooks/93_exercises.ipynb"


def forms(book, *options):
    """Run the command: (exit status, its lines)."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = main(["--root", str(book), *map(str, options)])
    return status, printed.getvalue().splitlines()


def answer(book, name, source):
    """Write an answer into the notebook, as a reader does; the outputs that Jupyter adds, too."""
    path = book / NOTEBOOK
    form = nbformat.read(path, as_version=4)
    cell_of(form, name).source = source
    cell_of(form, name).outputs = [nbformat.v4.new_output("stream", text="x\n")]
    nbformat.write(form, path)


ANSWER = "def twice(x):\n    return 2 * x\n"


def test_every_exercise_to_program_is_a_file(book):
    names = sorted(path.name for path in (book / "scripts" / "exercises").iterdir())
    assert names == ["93_pair_of_answers.py", "93_twice.py"]
    text = (book / TWICE).read_text()
    first, second, *_ = text.splitlines()
    assert first.startswith("# Generated from book/93_exercises.md by `make forms`")
    assert "leaves it alone" in second and "secret" not in text.replace("checked(secret)", "")
    assert "# Fill in, about 2 minutes. Write `twice(x)`, with $2x$ for a number x" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "# TODO: add x to x" in text and 'check("twice", twice)' in text


def test_making_the_forms_keeps_a_readers_answers(book):
    answer(book, "twice", ANSWER)
    before = (book / TWICE).read_text()
    worked_on = before.replace(exercises.STUB[1], "secret = 2 * x", 1)
    (book / TWICE).write_text(worked_on)
    path = book / "book" / SAMPLE.name
    path.write_text(path.read_text().replace("Some text", "Other text").replace("Twice x.", "2x."))
    status, lines = forms(book)
    assert status == 0
    assert f"{NOTEBOOK} holds an answer to `twice`: kept" in lines
    assert f"{TWICE} holds an answer: kept" in lines
    form = nbformat.read(book / NOTEBOOK, as_version=4)
    assert cell_of(form, "twice").source == ANSWER and cell_of(form, "twice").outputs == []
    assert any("Other text" in cell.source for cell in form.cells)
    assert (book / TWICE).read_text() == worked_on
    # Once more, nothing changes; and the notebook still is the manuscript's.
    assert forms(book)[0] == 0 and cell_of(form, "twice").source == ANSWER
    assert notebook.to_manuscript(form, manuscript.read(path)) == path.read_text()


def test_check_does_not_take_an_answer_for_a_form(book):
    answer(book, "twice", ANSWER)
    (book / TWICE).write_text((book / TWICE).read_text() + "\n# mine\n")
    before = {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
    status, lines = forms(book, "--check")
    assert status == 1 and len(lines) == 2
    assert lines[0].startswith(f"{NOTEBOOK} holds an answer to `twice`: `make forms ARGS=--stubs`")
    assert lines[1].startswith(f"{TWICE} holds an answer: `make forms ARGS=--stubs`")
    assert before == {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
    assert forms(book, "--stubs")[0] == 0
    assert forms(book, "--check") == (0, ["Every form is in step with its manuscript."])


def test_an_answer_to_an_exercise_that_is_gone_is_not_lost(book):
    answer(book, "twice", ANSWER)
    (book / TWICE).write_text((book / TWICE).read_text() + "\n# mine\n")
    path = book / "book" / SAMPLE.name
    text = path.read_text().replace(":label: twice\n", ":label: double\n")
    path.write_text(
        text.replace("solution} twice\n", "solution} double\n").replace('"twice"', '"double"')
    )
    status, lines = forms(book)
    assert status == 1
    assert any("holds an answer to `twice`, which is no exercise" in line for line in lines)
    assert f"{TWICE}, which no manuscript gives any more, holds an answer: kept" in lines
    assert "2 * x" in (book / NOTEBOOK).read_text() and (book / TWICE).exists()
    assert (book / "scripts" / "exercises" / "93_double.py").exists()
    assert forms(book, "--stubs")[0] == 0 and not (book / TWICE).exists()


def test_files_of_exercises_that_are_gone_are_removed(book):
    path = book / "book" / SAMPLE.name
    path.rename(path.with_name("94_other.md"))
    forms(book)
    names = sorted(path.name for path in (book / "scripts" / "exercises").iterdir())
    assert names == ["94_pair_of_answers.py", "94_twice.py"]


def test_a_manuscript_with_a_malformed_exercise_keeps_its_forms(book):
    path = book / "book" / SAMPLE.name
    path.write_text(path.read_text().replace("    ### END SOLUTION\n```", "```", 1))
    before = {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
    status, lines = forms(book)
    assert status == 1 and all("is never followed by" in line for line in lines)
    assert before == {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}


def test_two_chapters_cannot_have_one_label(book):
    shutil.copy(SAMPLE, book / "book" / "94_other.md")
    status, lines = forms(book)
    assert status == 1
    assert any("94_other: there is an exercise with the label `twice` in 93_ex" in x for x in lines)


def test_saving_an_answer_in_the_lab_leaves_the_manuscript_alone(book):
    path = book / NOTEBOOK
    saving.note(path)
    answer(book, "twice", ANSWER)
    said = saving.write_manuscript(path, only_if_in_step=True)
    assert said == "book/93_exercises.md says the same as the notebook."
    form = nbformat.read(path, as_version=4)
    form.cells.append(nbformat.v4.new_markdown_cell("A last sentence."))
    nbformat.write(form, path)
    saving.write_manuscript(path, only_if_in_step=True)
    expected = f"{SAMPLE.read_text()}\n+++\n\nA last sentence.\n"
    assert (book / "book" / SAMPLE.name).read_text() == expected


def run_file(book, path):
    environment = {**os.environ, "RANKLAB_CHECKS": str(book / "checks")}
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, env=environment
    )


def test_a_file_says_what_is_missing_wrong_and_right(book):
    path = book / TWICE
    run = run_file(book, path)
    assert (run.returncode, run.stderr) == (1, "") and "not attempted yet" in run.stdout
    text = path.read_text()
    start, end = text.index("def twice"), text.index('if __name__ == "__main__"')
    for body, status in (("return 2 * x", 0), ("return x * x", 1)):
        path.write_text(f"{text[:start]}def twice(x):\n    {body}\n\n\n{text[end:]}")
        run = run_file(book, path)
        assert run.returncode == status, run.stdout + run.stderr
        assert run.stdout.count("\n\n") < 20 and run.stdout.startswith(
            "Right" if not status else ""
        )


# The script


def test_a_script_has_neither_exercises_nor_their_section():
    text = to_script(sample())
    for absent in ("twice", "Exercises ---", "introduction", "check", "Some text", "secret"):
        assert absent not in text
    assert "# --- What you can do now" in text and "print(f" in text


def test_a_section_with_code_of_its_own_stays():
    text = SAMPLE.read_text().replace(
        "Some text between the exercises.",
        "Some text.\n\n```{code-cell} ipython3\nprint(12)\n```",
    )
    script = to_script(manuscript.parse(text, "book/93_exercises.md"))
    assert "# --- Exercises ---" in script and "Some text." in script and "print(12)" in script
    assert "Twice anything" not in script and "def twice" not in script


def test_what_the_chapter_reads_of_an_answer_is_refused():
    text = SAMPLE.read_text() + "\n```{code-cell} ipython3\ntwice(3)\n```\n"
    with pytest.raises(FormError, match=r"cell 8 .*`twice`.*cell 4"):
        to_script(manuscript.parse(text, "book/93_exercises.md"))


def test_a_script_has_the_exercises_when_asked(book):
    status, lines = forms(book, "--script", "93_exercises", "--exercises")
    text = "\n".join(lines) + "\n"
    assert status == 0 and text == to_script(sample(), exercises=True).replace(
        "manuscripts/", "book/"
    )
    assert "def twice(x):" in text and "# YOUR CODE HERE" in text and "x + x" not in text
    assert "# --- Exercises" in text and "# Fill in, about 2 minutes. Write `twice(x)`" in text
    path = book / "with.py"
    path.write_text(text)
    run = run_file(book, path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("not attempted yet") == 3 and "three = 3" in run.stdout


@each_manuscript
def test_every_chapters_script_can_have_its_exercises(path):
    nb = manuscript.read(path)
    script, text = to_script(nb), to_script(nb, exercises=True)
    assert text.startswith(script)
    added = text.removeprefix(script)
    ast.parse(added)
    assert ("if rank != 0:\n    sys.exit()" in added) == ("\nleave_group()\n" in script)
    for exercise in exercises.find(nb):
        assert f'check("{exercise.name}", ' in added
        title = markdown.plain(exercise.title).replace("`", "")
        assert f"# --- {title} ---" in added


def test_a_chapter_that_is_not_there_is_one_sentence(book):
    assert forms(book, "--script", "12_no") == (
        1,
        ["There is no chapter 12_no. There are 93_exercises."],
    )


def test_nbconvert_gives_the_same_scripts(book):
    answer(book, "twice", ANSWER)
    form = nbformat.read(book / NOTEBOOK, as_version=4)
    script, _ = ScriptExporter().from_notebook_node(form)
    assert script == (book / "scripts" / "93_exercises.py").read_text()
    script, _ = ScriptExporter(exercises=True).from_notebook_node(form)
    assert "return 2 * x" in script and 'check("twice", twice)' in script


# The page


def test_a_page_is_executed_with_stubs_and_has_a_solution_under_each_check():
    page = exercise_cells.on_page(sample())
    code = [cell.source for cell in page.cells if cell.cell_type == "code"]
    assert not any("BEGIN" in source or "x + x" in source for source in code)
    for exercise in exercises.find(sample()):
        check = next(i for i, c in enumerate(page.cells) if f'check("{exercise.name}"' in c.source)
        solution = page.cells[check + 1].source
        head = f":::{{solution}} {exercise.label}\n:label: {exercise.label}-solution\n"
        assert solution.lstrip(":").startswith(head.lstrip(":"))
        assert exercises.solutions(sample())[exercise.name] in solution
        assert exercise.prose in solution
    assert sum("{solution}" in cell.source for cell in page.cells) == 3


# The teacher


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A teacher's course of the sample, released by nbgrader."""
    book = tmp_path_factory.mktemp("course")
    for folder in ("book", "checks"):
        (book / folder).mkdir()
    shutil.copy(SAMPLE, book / "book")
    (book / "_config.yml").write_text("repository:\n  url: https://host.example/me/mine\n")
    (book / "checks" / "sums.py").write_text(CHECKS)
    status, lines = forms(book, "--teacher", book / "course")
    assert status == 0 and any("not for students" in line for line in lines)
    nbgrader(book / "course", "generate_assignment", "93_exercises")
    return book / "course"


def nbgrader(course, *arguments):
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RANKLAB_CHECKS": str(course.parent / "checks"),
        "JUPYTER_CONFIG_DIR": str(course / "jupyter"),
    }
    run = subprocess.run(
        [BIN / "nbgrader", *arguments],
        cwd=course,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def released(course):
    return nbformat.read(course / "release/93_exercises/93_exercises.ipynb", as_version=4)


def test_nbgrader_releases_the_stubs_that_the_book_has(course):
    theirs, ours = released(course), form_of(sample())
    text = nbformat.writes(theirs)
    assert "secret" not in text.replace("checked(secret)", "") and "[solution]" not in text
    for exercise in exercises.find(sample()):
        assert cell_of(theirs, exercise.name).source == cell_of(ours, exercise.name).source
        assert "assert report, report" in cell_of(theirs, f"check_{exercise.name}").source
    assert "ranklab" not in theirs.metadata


RIGHT = {**exercises.solutions(manuscript.read(SAMPLE))}
SUBMITTED = {
    "right": RIGHT,
    "stubs": {},
    "wrong": {"twice_two": RIGHT["twice_two"].replace('"a"', '"b"'), "twice": "twice = abs"},
}


def test_nbgrader_gives_points_for_what_is_right(course):
    for student, answers in SUBMITTED.items():
        form = released(course)
        for name, source in answers.items():
            cell_of(form, name).source = source
        path = course / "submitted" / student / "93_exercises" / "93_exercises.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(form, path)
    nbgrader(course, "autograde", "93_exercises")
    assert points(course) == {"right": (7, 7), "stubs": (0, 7), "wrong": (0, 7)}


def points(course):
    """student -> points, and points that there are to have."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        submissions = gradebook.assignment_submissions("93_exercises")
        return {s.student.id: (s.score, s.max_score) for s in submissions}


# JupyterLab


def test_the_lab_does_not_load_nbgrader(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [BIN / "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    command += [f"--notebook-dir={tmp_path}", "--ServerApp.port_retries=0"]
    command += ["--IdentityProvider.token=", f"--config={ROOT}/ranklab/forms/jupyter_config.py"]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path / "jupyter")}
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        page = opened(f"http://127.0.0.1:{port}/lab", server)
    finally:
        server.terminate()
        server.wait(30)
    names = re.findall(r'"extension": "[^"]*", "load": "[^"]*", "name": "([^"]*)"', page)
    assert "ipyparallel-labextension" in names and "nbgrader" not in page
    assert "jupyterlab | extension was successfully loaded" in log.read_text()
    assert "nbgrader" not in log.read_text()


def opened(url, server):
    """The page, as soon as the server answers."""
    end = time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(url, timeout=30).read().decode()
        except OSError:
            if time.monotonic() > end or server.poll() is not None:
                raise
            time.sleep(0.2)


def test_work_is_told_from_a_file_as_it_was_made():
    (text, *_) = exercise_files.files(sample()).values()
    assert not exercise_files.is_worked_on(text)
    assert exercise_files.is_worked_on(text + "\n# mine") and exercise_files.is_worked_on("x = 1\n")
