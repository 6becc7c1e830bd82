"""`make write`: jupytext opens a manuscript as a notebook, and saves it as the text that it was."""

import shutil

import nbformat
import pytest
from jupytext import TextFileContentsManager

from bookmaker.folders import HERE
from bookmaker.manuscript import manuscript


@pytest.fixture
def lab(tmp_path):
    """JupyterLab's way to the files of a copy of the book: (its folder, the manager)."""
    shutil.copytree(HERE.book, tmp_path / "book")
    shutil.copy(HERE.root / "pyproject.toml", tmp_path)
    return tmp_path, TextFileContentsManager(root_dir=str(tmp_path))


def opened(manager, name):
    model = manager.get(f"book/{name}.md", type="notebook")
    return model["content"]


def save(manager, name, form):
    manager.save({"type": "notebook", "format": "json", "content": form}, f"book/{name}.md")


def as_lab_leaves_it(form):
    """What JupyterLab adds by itself when somebody runs the cells."""
    form.metadata.kernelspec = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    form.metadata.language_info = {"name": "python", "pygments_lexer": "ipython3"}
    for cell in form.cells:
        cell.metadata.update({"trusted": True})
        if cell.cell_type == "code":
            cell.outputs = [nbformat.v4.new_output("stream", text="x\n")]
            cell.execution_count = 3
            cell.metadata.update({"execution": {"iopub.status.busy": "now"}, "collapsed": False})
    return form


@pytest.mark.parametrize("path", HERE.chapters(), ids=lambda path: path.stem)
def test_saving_a_manuscript_changes_nothing(lab, path):
    folder, manager = lab
    save(manager, path.stem, as_lab_leaves_it(opened(manager, path.stem)))
    assert (folder / "book" / path.name).read_text() == path.read_text()


def test_what_is_typed_comes_into_the_manuscript_and_nothing_else(lab):
    folder, manager = lab
    (path,) = [path for path in HERE.chapters() if path.stem.startswith("06")]
    form = opened(manager, path.stem)
    form.cells.append(nbformat.v4.new_markdown_cell("Typed: {term}`rank`."))
    save(manager, path.stem, form)
    text = (folder / "book" / path.name).read_text()
    assert text == f"{path.read_text()}\n+++\n\nTyped: {{term}}`rank`.\n"
    assert manuscript.write(manuscript.read(folder / "book" / path.name)) == text
