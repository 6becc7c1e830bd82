"""A reader's answers, in notebooks and in files: making the forms keeps them."""

import nbformat
import pytest
from exercise_sample import (
    ANSWER,
    NOTEBOOK,
    SAMPLE,
    TWICE,
    answer,
    cell_of,
    forms,
    make_book,
    sample,
)

from bookmaker.forms import exercise_files
from bookmaker.manuscript import exercises


@pytest.fixture
def book(tmp_path):
    """A repository whose one chapter has exercises, with all its forms; and their checks."""
    assert forms(make_book(tmp_path))[0] == 0
    return tmp_path


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
    # Once more, nothing changes.
    again = (book / NOTEBOOK).read_bytes()
    assert forms(book)[0] == 0 and (book / NOTEBOOK).read_bytes() == again


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


def test_a_notebook_that_cannot_be_read_is_left_as_it_is(book):
    answer(book, "twice", ANSWER)
    path = book / NOTEBOOK
    text = path.read_text()
    broken = text.replace('"cells": [', '<<<<<<< HEAD\n "cells": [', 1)
    assert broken != text
    path.write_text(broken)
    for options in ([], ["--check"]):
        status, lines = forms(book, *options)
        assert status == 1 and path.read_text() == broken
        (line,) = lines
        assert line.startswith(f"{NOTEBOOK} is no notebook any more (NotJSONError: ")
        assert "repair it, or move it away" in line
    path.write_text(text)
    assert forms(book)[1][0] == f"{NOTEBOOK} holds an answer to `twice`: kept"
    path.write_text(broken)
    assert forms(book, "--stubs")[0] == 0 and "2 * x" not in path.read_text()


def split(path, with_metadata, at=1):
    """Split the cell of the answer to `twice` after its line `at`, as notebook programs do."""
    form = nbformat.read(path, as_version=4)
    first = cell_of(form, "twice")
    lines = first.source.split("\n")
    metadata = first.metadata if with_metadata else {}
    second = nbformat.v4.new_code_cell("\n".join(lines[at:]), metadata=metadata)
    first.source = "\n".join(lines[:at])
    form.cells.insert(form.cells.index(first) + 1, second)
    nbformat.write(form, path)


@pytest.mark.parametrize(
    ("with_metadata", "says"),
    [(True, ": 2 cells hold an answer to `twice`."), (False, ": beside the cell for the answer")],
)
def test_an_answer_in_two_cells_is_left_as_it_is(book, with_metadata, says):
    path = book / NOTEBOOK
    answer(book, "twice", "def helper(x):\n    return x + x\n\ntwice = helper")
    split(path, with_metadata, at=3)
    before = path.read_bytes()
    for options in ([], ["--check"]):
        status, lines = forms(book, *options)
        assert status == 1 and path.read_bytes() == before
        (line,) = lines
        assert line.startswith(NOTEBOOK + says) and "left as it is" in line
    assert forms(book, "--stubs")[0] == 0 and forms(book, "--check")[0] == 0


def test_an_empty_half_of_an_answer_is_nothing(book):
    answer(book, "twice", ANSWER)
    split(book / NOTEBOOK, True, at=2)
    assert forms(book) == (
        0,
        [f"{NOTEBOOK} holds an answer to `twice`: kept", f"{NOTEBOOK} written"],
    )
    assert "2 * x" in cell_of(nbformat.read(book / NOTEBOOK, as_version=4), "twice").source


def test_a_chapter_that_is_renamed_leaves_the_answers_in_its_notebook(book):
    answer(book, "twice", ANSWER)
    before = (book / NOTEBOOK).read_bytes()
    path = book / "book" / SAMPLE.name
    path.rename(path.with_name("94_other.md"))
    what = f"{NOTEBOOK}, which no manuscript gives any more, holds an answer"
    status, lines = forms(book)
    assert status == 0 and f"{what}: kept" in lines
    assert (book / NOTEBOOK).read_bytes() == before
    assert (book / "notebooks" / "94_other.ipynb").exists()
    status, lines = forms(book, "--check")
    assert (status, lines) == (1, [f"{what}: `make forms ARGS=--stubs` removes it"])
    split(book / NOTEBOOK, True)
    status, lines = forms(book)
    assert status == 1 and "2 cells hold" in lines[0] and (book / NOTEBOOK).exists()
    assert forms(book, "--stubs")[0] == 0 and not (book / NOTEBOOK).exists()


def test_an_answer_that_is_not_utf_8_is_kept(book):
    path = book / TWICE
    worked_on = path.read_bytes().replace(b"# YOUR CODE HERE", "# für".encode("latin-1"))
    path.write_bytes(worked_on)
    assert forms(book) == (0, [f"{TWICE} holds an answer: kept"])
    assert path.read_bytes() == worked_on


def test_work_is_told_from_a_file_as_it_was_made():
    (text, *_) = exercise_files.files(sample()).values()
    assert not exercise_files.is_worked_on(text)
    assert exercise_files.is_worked_on(text + "\n# mine") and exercise_files.is_worked_on("x = 1\n")
