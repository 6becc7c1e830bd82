"""Saving a notebook in JupyterLab updates its manuscript."""

import asyncio
import logging
import os
import shutil
import uuid

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from small_book import book, contents, forms
from traitlets.config.loader import PyFileConfigLoader

from bookmaker.folders import HERE

pytestmark = pytest.mark.timeout(120)
__all__ = ["book"]


@pytest.fixture
def lab(book, caplog):
    """`make lab`'s own contents manager on the notebooks: save(notebook, name) as Lab does."""
    forms(book)
    caplog.set_level(logging.INFO)
    folder = HERE.root / "bookmaker" / "notebook"
    config = PyFileConfigLoader("jupyter_config.py", path=str(folder)).load_config()
    manager = AsyncLargeFileManager(
        config=config, root_dir=str(book / "notebooks"), log=logging.getLogger("lab")
    )

    def save(form, name="92_saved.ipynb"):
        model = {"type": "notebook", "format": "json", "content": form}
        caplog.clear()
        asyncio.run(manager.save(model, name))
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    return save


def opened(book, name="92_saved.ipynb"):
    return nbformat.read(book / "notebooks" / name, as_version=4)


def edited(book, sentence="A sentence typed in Lab."):
    form = opened(book)
    form.cells.append(nbformat.v4.new_markdown_cell(sentence, id=uuid.uuid4().hex))
    return form


def text_of(book):
    return (book / "book" / "92_saved.md").read_text()


def test_saving_a_notebook_updates_its_manuscript(book, lab):
    before = text_of(book)
    lines = lab(edited(book))
    assert text_of(book) == before + "\nA sentence typed in Lab.\n"
    assert lines[-1] == "INFO book/92_saved.md updated from the notebook."
    lab(edited(book, "And another."))
    assert text_of(book).endswith("\nA sentence typed in Lab.\n\n+++\n\nAnd another.\n")
    assert sorted(os.listdir(book / "book")) == ["92_saved.md"]


def test_saving_without_a_change_leaves_the_file_alone(book, lab):
    path = book / "book" / "92_saved.md"
    path.write_text(path.read_text() + "\n\n")  # not the forms' whitespace: no change either
    stamp = path.stat().st_mtime_ns, path.stat().st_ino
    form = opened(book)
    form.cells[3].outputs = [nbformat.v4.new_output("stream", text="x\n")]
    lab(form)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == stamp


def test_a_notebook_of_the_readers_own_is_left_alone(book, lab):
    before = contents(book / "book")
    copy = edited(book)  # still says that it comes from 92_saved.md
    assert lab(copy, "my_copy.ipynb") == []
    assert opened(book, "my_copy.ipynb").cells == copy.cells
    unmarked = edited(book)
    del unmarked.metadata["ranklab"]
    assert not [line for line in lab(unmarked) if line.startswith("ERROR")]
    assert contents(book / "book") == before


def test_a_notebook_saved_under_another_chapters_name_is_left_alone(book, lab):
    shutil.copy(book / "book" / "92_saved.md", book / "book" / "93_other.md")
    before = contents(book / "book")
    lab(edited(book), "93_other.ipynb")
    assert contents(book / "book") == before


def test_a_notebook_that_cannot_be_translated_is_saved_and_the_manuscript_kept(book, lab):
    before = text_of(book)
    (line,) = [line for line in lab(edited(book, "a\n\n+++\n\nb")) if line.startswith("ERROR")]
    assert "would not come back" in line and "The notebook is saved" in line
    assert opened(book).cells[-1].source == "a\n\n+++\n\nb"
    assert text_of(book) == before
    # ... and once repaired, saving works again
    form = opened(book)
    form.cells[-1].source = "repaired"
    lab(form)
    assert text_of(book) == before + "\nrepaired\n"


def test_a_manuscript_that_was_edited_meanwhile_is_not_overwritten(book, lab):
    path = book / "book" / "92_saved.md"
    path.write_text(text_of(book) + "\nTyped in an editor.\n")
    (line,) = [line for line in lab(edited(book)) if line.startswith("ERROR")]
    assert "was changed since" in line and "make forms" in line
    assert text_of(book).endswith("Typed in an editor.\n")
    assert opened(book).cells[-1].source == "A sentence typed in Lab."
    # ... nor by saving once more
    lab(edited(book))
    assert text_of(book).endswith("Typed in an editor.\n")
    # The author chooses: the notebook wins.
    status, lines = forms(book, "--from-notebook", book / "notebooks" / "92_saved.ipynb")
    assert (status, lines) == (0, ["book/92_saved.md updated from the notebook."])
    assert "A sentence typed in Lab." in text_of(book)
