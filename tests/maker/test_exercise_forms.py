"""Exercises of a manuscript, and in the forms: the notebook, the files, the script."""

import ast
import copy
import shutil

import nbformat
import pytest
from exercise_sample import (
    ANSWER,
    NOTEBOOK,
    SAMPLE,
    TWICE,
    answer,
    cell_of,
    form_of,
    forms,
    make_book,
    run_file,
    sample,
)
from nbgrader.nbgraderformat.v3 import MetadataValidatorV3
from nbgrader.preprocessors import ClearSolutions
from tiers import few

from bookmaker.errors import FormError
from bookmaker.folders import HERE
from bookmaker.manuscript import exercises, manuscript, markdown
from bookmaker.notebook import notebook
from bookmaker.script import ScriptExporter, to_script

MANUSCRIPTS = [*HERE.chapters(), SAMPLE]

each_manuscript = pytest.mark.parametrize("path", MANUSCRIPTS, ids=lambda path: path.stem)


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
    title, empty, task, *_ = text.splitlines()
    url = notebook.places_of(sample()).site
    assert title == f"> **Twice anything** · [solution]({url}/93_exercises.html#twice-solution)"
    assert empty == ">" and task.startswith("> *Fill in, about 2 minutes.* Write `twice(x)`")


# The command


@pytest.fixture
def book(tmp_path):
    """A repository whose one chapter has exercises, with all its forms; and their checks."""
    assert forms(make_book(tmp_path))[0] == 0
    return tmp_path


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
        verdict = "Wrong in case" if status else "Right"
        assert f"starts ranks ...\n{verdict}" in run.stdout and run.stdout.count("\n\n") < 20


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
    path = book / "scripts" / "with.py"
    path.write_text(text)
    run = run_file(book, path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("not attempted yet") == 3 and "three = 3" in run.stdout


@pytest.mark.parametrize(
    "path",
    few(MANUSCRIPTS, lambda path: path.stem in ("07_collectives", SAMPLE.stem)),
    ids=lambda path: path.stem,
)
def test_every_chapters_script_can_have_its_exercises(path):
    nb = manuscript.read(path)
    committed = HERE.root / "scripts" / f"{path.stem}.py"
    script = committed.read_text() if committed.exists() else to_script(nb)
    text = to_script(nb, exercises=True)
    assert text.startswith(script)
    added = text.removeprefix(script)
    ast.parse(added)
    of_rank_0 = "\nleave_group()\n" in script and added  # the tour has no exercises
    assert ("if rank != 0:\n    sys.exit()" in added) == bool(of_rank_0)
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
    committed = (book / "scripts" / "93_exercises.py").read_text()
    assert ast.dump(ast.parse(script)) == ast.dump(ast.parse(committed)) and "Twice" not in script
    script, _ = ScriptExporter(exercises=True).from_notebook_node(form)
    assert "return 2 * x" in script and 'check("twice", twice)' in script
