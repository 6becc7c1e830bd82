"""Manuscript to notebook, and the command that writes every form."""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from small_book import HEADER, SAMPLES, book, contents, forms

from bookmaker import files
from bookmaker.errors import FormError
from bookmaker.folders import HERE
from bookmaker.manuscript import manuscript
from bookmaker.notebook import notebook

__all__ = ["book"]

ROOT = HERE.root
CHAPTERS = HERE.chapters()
MANUSCRIPTS = [*CHAPTERS, *sorted(SAMPLES.glob("*.md"))]

each_manuscript = pytest.mark.parametrize("path", MANUSCRIPTS, ids=lambda path: path.stem)


# Manuscripts


@each_manuscript
def test_reading_and_writing_a_manuscript_changes_nothing(path):
    assert manuscript.write(manuscript.read(path)) == path.read_text()


@each_manuscript
def test_the_notebook_is_valid_and_has_no_outputs(path):
    text = notebook.write(notebook.to_notebook(manuscript.read(path)))
    form = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(form)
    assert (form.nbformat, form.nbformat_minor) == (4, 5)
    code = [cell for cell in form.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert text.endswith("}\n") and '\n "cells": [' in text


def test_a_manuscript_is_normalized_in_whitespace_and_metadata_alone(tmp_path):
    messy = (
        HEADER
        + "\n\n\n# Title  \n\n\n\n```{code-cell} ipython3\n---\ntags: [b, a]\n"
        + "mystnb: {image: {alt: 'x: y'}}\n---\n\n\nx = 1\n\n```\n\n\n\n"
        + "```{code-cell}\n:tags: [a]\nx\n```\n+++\n\ntext\n+++\nmore"
    )
    path = tmp_path / "book" / "01_x.md"
    path.parent.mkdir()
    path.write_text(messy)
    text = manuscript.write(manuscript.read(path))
    assert text.removeprefix(HEADER) == (
        "\n# Title\n\n```{code-cell} ipython3\n---\ntags: [b, a]\nmystnb:\n  image:\n"
        "    alt: 'x: y'\n---\nx = 1\n```\n\n```{code-cell} ipython3\n:tags: [a]\n\nx\n```\n\n"
        "text\n\n+++\n\nmore\n"
    )
    path.write_text(text)
    assert manuscript.write(manuscript.read(path)) == text


def test_a_header_that_no_form_would_keep_is_refused():
    text = HEADER.replace("---\nchapter", "---\ntitle: X\nchapter") + "\n# X\n"
    with pytest.raises(FormError, match=r"^01_x: the header has 'title'"):
        manuscript.parse(text, "book/01_x.md")


def test_editing_one_cell_leaves_the_other_ids_alone():
    before = manuscript.read(SAMPLES / "91_constructs.md")
    text = (
        manuscript.write(before)
        .replace("x = 1", "x = 2")
        .replace("\n# Every", "\nNew\n\n+++\n\n# Every")
    )
    after = manuscript.parse(text, "book/91_constructs.md")
    old, new = [cell.id for cell in before.cells], [cell.id for cell in after.cells]
    assert len(set(new)) == len(new) == len(old) + 1
    assert len(set(old) - set(new)) == 1


def test_equal_cells_have_different_ids_always_the_same():
    text = f"{HEADER}\na\n\n+++\n\na\n"
    one, other = ([c.id for c in manuscript.parse(text, "book/01_x.md").cells] for _ in range(2))
    assert one == other and len(set(one)) == 2


# Notebooks


def sample():
    return notebook.to_notebook(manuscript.read(SAMPLES / "91_constructs.md"))


def test_the_notebook_begins_with_its_origin_and_an_installation():
    form = sample()
    origin, install = form.cells[:2]
    assert origin.source.startswith("*Chapter 91 of [Many Ranks, One Model](")
    assert "`manuscripts/91_constructs.md`" in origin.source
    url = notebook.places_of(form).repository
    assert f'%pip install -q "ranklab @ git+{url}"' in install.source
    assert install.metadata.tags == ["notebook-only"]
    assert all(cell.metadata.ranklab.generated for cell in (origin, install))


def test_the_installation_does_nothing_where_the_lab_is(tmp_path):
    from IPython.core.interactiveshell import InteractiveShell

    calls = []
    shell = InteractiveShell()
    shell.register_magic_function(calls.append, magic_name="pip")
    source = sample().cells[1].source
    shell.run_cell(source).raise_error()
    assert calls == []
    shell.run_cell(source.replace('find_spec("ranklab")', 'find_spec("no_lab")')).raise_error()
    assert calls == [f'install -q "ranklab @ git+{notebook.places_of(sample()).repository}"']


REFUSED = {
    "a directive in a list": ("- a\n\n  :::{note}\n  b\n  :::", "the text after cell 0 .*Move it"),
    "an unknown role": ("{numref}`a`", "the text after cell 0 .*Use term"),
    "an empty cell": ("```{code-cell} ipython3\n```", "cell 1 .*the cell is empty"),
    "metadata": ('+++ {"slideshow": 1}\n\na', "metadata 'slideshow' would be lost"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_notebook_cannot_hold_is_refused_with_its_place(case):
    text, message = REFUSED[case]
    nb = manuscript.parse(f"{HEADER}\n{text}\n", "book/01_x.md")
    with pytest.raises(FormError, match=f"^01_x, {message}" if "cell" in message else message):
        notebook.to_notebook(nb)


def test_the_repository_is_named_in_one_place(tmp_path):
    nb = manuscript.read(SAMPLES / "92_saved.md")
    with pytest.raises(FormError, match=r"_config\.yml: there is no `repository: url:`"):
        notebook.to_notebook(nb, tmp_path)
    (tmp_path / "_config.yml").write_text(
        "repository:\n  url: https://host.example/me/mine\nhtml:\n  baseurl: https://b.example/x/\n"
    )
    form = notebook.to_notebook(nb, tmp_path)
    assert "git+https://host.example/me/mine" in form.cells[1].source
    assert notebook.places_of(nb, tmp_path).site == "https://b.example/x"


# The command


def forms_in_a_process(book, hash_seed):
    """The same in a process of its own, where strings hash as ``hash_seed`` says."""
    command = [sys.executable, "-m", "bookmaker.forms", "--root", str(book)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


FORMS = ["ranklab/taught/saved.py", "notebooks/92_saved.ipynb", "scripts/92_saved.py"]


def test_the_command_writes_every_form_once_and_the_same(book):
    assert forms_in_a_process(book, "1") == [f"{name} written" for name in FORMS]
    first = contents(book)
    assert forms(book) == (0, ["Every form is in step with its manuscript."])
    assert forms(book, "--check") == (0, ["Every form is in step with its manuscript."])
    assert contents(book) == first
    for name in FORMS:
        (book / name).unlink()
    forms_in_a_process(book, "7")
    assert contents(book) == first
    for name in FORMS:
        head = "".join((book / name).read_text().splitlines(True)[:20])
        assert "enerated from" in head and "book/92_saved.md" in head


def test_check_names_what_is_out_of_step_and_writes_nothing(book):
    forms(book)
    path = book / "book" / "92_saved.md"
    path.write_text(path.read_text().replace("REPEATS = 3", "REPEATS = 5") + "\n")
    stale = book / "ranklab" / "taught" / "gone.py"
    stale.write_text("# Generated from book/77_gone.md by `make forms`.\n")
    before = contents(book)
    status, lines = forms(book, "--check")
    assert status == 1
    names = ["book/92_saved.md", *FORMS, "ranklab/taught/gone.py"]
    assert lines == [
        f"{name} is out of step with its manuscript: run `make forms`" for name in names
    ]
    assert contents(book) == before


def test_forms_without_a_manuscript_are_removed_and_nothing_else(book):
    forms(book)
    (book / "book" / "92_saved.md").rename(book / "book" / "93_other.md")
    notebook_path = book / "notebooks" / "92_saved.ipynb"
    shutil.copy(notebook_path, book / "notebooks" / "my_notes.ipynb")
    (book / "notebooks" / "broken.ipynb").write_text("{")
    (book / "scripts" / "mine.py").write_text("# Generated by me\n")
    (book / "ranklab" / "taught" / "mine.py").write_text("x = 1\n")
    status, lines = forms(book)
    assert status == 0
    assert [line for line in lines if "removed" in line] == [
        f"{name} removed: no manuscript gives it any more"
        for name in ("notebooks/92_saved.ipynb", "scripts/92_saved.py", "ranklab/taught/saved.py")
    ]
    for kept in ("notebooks/my_notes.ipynb", "notebooks/broken.ipynb", "scripts/mine.py"):
        assert (book / kept).exists()
    assert (book / "ranklab" / "taught" / "mine.py").exists()
    assert (book / "ranklab" / "taught" / "other.py").exists()


def test_a_manuscript_that_cannot_be_translated_keeps_its_forms_and_the_others_go_on(book):
    forms(book)
    before = contents(book)
    path = book / "book" / "92_saved.md"
    path.write_text(path.read_text().replace("repeats=REPEATS", "repeats=rank"))
    other = book / "book" / "01_other.md"
    other.write_text(f"{HEADER}\n# Other\n")
    status, lines = forms(book)
    assert status == 1
    assert any("92_saved, cell 6" in line and "reads `rank`" in line for line in lines)
    assert "notebooks/01_other.ipynb written" in lines
    assert contents(book)[book / FORMS[0]] == before[book / FORMS[0]]


def test_a_manuscript_that_cannot_be_read_keeps_its_forms(book):
    forms(book)
    path = book / "book" / "92_saved.md"
    path.write_text(path.read_text().replace("---\nchapter", "---\ntitle: X\nchapter"))
    before = contents(book)
    status, lines = forms(book)
    assert (status, len(lines)) == (1, 1) and lines[0].startswith("92_saved: the header has")
    assert contents(book) == before


def test_a_manuscript_that_is_not_utf8_is_one_sentence(book):
    forms(book)
    path = book / "book" / "92_saved.md"
    path.write_bytes(path.read_bytes() + "\nD\xe9j\xe0 vu\n".encode("latin-1"))
    before, line = contents(book), path.read_bytes().count(b"\n")
    said = f"92_saved: line {line} of the manuscript has a byte that is not UTF-8 (0xe9). "
    assert forms(book) == (1, [f"{said}Save the file as UTF-8."])
    assert contents(book) == before


@pytest.mark.parametrize("content", ["é", b"\xff"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, content):
    path = tmp_path / "new" / "a"
    assert files.replace(path, content) and not files.replace(path, content)
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)  # as if the disk were full
    with pytest.raises(ZeroDivisionError):
        files.replace(path, b"other")
    assert [p.name for p in path.parent.iterdir()] == ["a"]
    assert path.read_bytes() != b"other"


def test_the_committed_forms_are_in_step_whatever_the_hash_seed():
    """They were made by processes whose seed was drawn, and are the same in one with this seed."""
    check = [sys.executable, "-m", "bookmaker.forms", "--check"]
    seed = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run(check, env=seed, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stdout + run.stderr
