"""From executed chapters to the site: what is staged, and what the build refuses."""

import shutil
import sysconfig
from pathlib import Path

import nbformat
import pytest
from small_book import HEADER

from bookmaker.contents import BEGIN
from bookmaker.errors import BookError
from bookmaker.folders import HERE, Folders
from bookmaker.site import mathjax
from bookmaker.site.build import builder
from bookmaker.site.exercises import PLACE
from bookmaker.site.pages import color_ranks, take_away
from bookmaker.site.stage import mirror, stage


@pytest.fixture
def book(tmp_path):
    """A book with one executed chapter, and all that its page needs."""
    files = {
        "book/contents.yml": "- {caption: One, question: Which, chapters: {1: One}}\n",
        "book/01_one.md": f"{HEADER}\n# One\n",
        "book/intro.md": f"# Start\n\n{BEGIN.format('book')}\n",
        "notebooks/01_one.ipynb": "{}",
        "scripts/01_one.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return Folders(tmp_path)


def save_executed(book, *cells):
    title = nbformat.v4.new_markdown_cell("# One")
    language = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    notebook = nbformat.v4.new_notebook(cells=[title, *cells], metadata=language)
    book.executed.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, book.executed / "01_one.ipynb")


def executed(source, number=1, **more):
    return nbformat.v4.new_code_cell(source, execution_count=number, **more)


def test_a_page_that_did_not_execute_is_an_error(book):
    with pytest.raises(BookError, match="01_one was not executed"):
        stage(book)
    save_executed(book, executed("1"), executed("2", None))
    with pytest.raises(BookError, match="01_one, cell 2 was not executed"):
        stage(book)


@pytest.mark.parametrize("form", ["notebooks/01_one.ipynb", "scripts/01_one.py"])
def test_a_page_without_its_forms_is_an_error(book, form):
    save_executed(book, executed("1"))
    (book.root / form).unlink()
    with pytest.raises(BookError, match=f"{form} is missing.*make forms"):
        stage(book)


def test_a_program_can_be_taken_away(book):
    cell = "%%writefile count.py\n#@script\nx = 1"
    path = book.root / "book" / "01_one.md"
    path.write_text(path.read_text() + f"\n```{{code-cell}} ipython3\n{cell}\n```\n")
    save_executed(book, executed(cell))
    with pytest.raises(BookError, match=r"scripts/01_count\.py is missing.*make forms"):
        stage(book)
    (book.root / "scripts" / "01_count.py").write_text("x = 1\n")
    stage(book)
    assert (book.source / "extra" / "scripts" / "01_count.py").read_text() == "x = 1\n"
    links = take_away("01_one", {"Colab": "", "Binder": ""}, ["count.py"])
    assert 'href="scripts/01_count.py" download>Download count.py</a>' in links


def test_staging_numbers_the_title_and_marks_the_ranks_cells(book):
    drawing = {"image/svg+xml": '<svg role="img" aria-label="A &amp; B"></svg>'}
    output = nbformat.v4.new_output("execute_result", data=drawing)
    cells = ["%%px\nx", "%%px --targets 0\nx", "# px"]
    save_executed(book, *map(executed, cells), executed("draw", outputs=[output]))
    stage(book)
    title, every, some, none, drawn = nbformat.read(book.source / "01_one.ipynb", 4).cells
    assert title.source == "# 1. One"
    assert every.metadata.tags == ["px"] and some.metadata.tags == ["px", "px-some"]
    assert "tags" not in none.metadata
    assert drawn.metadata.mystnb.image.alt == "A & B"


def test_a_page_does_not_tell_where_python_lies(book):
    path = f"{sysconfig.get_path('purelib')}/torch/x.py"
    failed = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[f"File {path}:3"])
    said = nbformat.v4.new_output("stream", text=path)
    save_executed(book, executed("1", outputs=[failed, said]))
    stage(book)
    cell = nbformat.read(book.source / "01_one.ipynb", 4).cells[-1]
    assert cell.outputs[0].traceback == ["File site-packages/torch/x.py:3"]
    assert cell.outputs[1].text == "site-packages/torch/x.py"


def test_a_page_does_not_tell_where_the_repository_lies_in_the_home_folder(book, monkeypatch):
    monkeypatch.setenv("HOME", str(book.root.parent))
    shown = f"File ~/{book.root.name}/ranklab/x.py:3"  # as IPython writes it
    failed = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[shown])
    said = nbformat.v4.new_output("stream", text=f"{book.root}/ranklab/x.py")
    save_executed(book, executed("1", outputs=[failed, said]))
    stage(book)
    cell = nbformat.read(book.source / "01_one.ipynb", 4).cells[-1]
    assert cell.outputs[0].traceback == ["File one-model/ranklab/x.py:3"]
    assert cell.outputs[1].text == "one-model/ranklab/x.py"


def test_an_interrupted_copy_of_mathjax_is_completed(tmp_path, monkeypatch):
    monkeypatch.setattr(mathjax, "WANTED", ("one.js", "more"))
    source, target, draft = (tmp_path / name for name in ("package", "site/mathjax", "draft"))
    source.mkdir()
    (source / "one.js").write_text("1")
    with pytest.raises(FileNotFoundError):  # in the middle of the copy: there is no `more`
        mathjax.copy(source, target, draft)
    assert not target.exists()
    (source / "more").mkdir()
    (source / "more/two.js").write_text("2")
    mathjax.copy(source, target, draft)
    assert (target / "one.js").exists() and (target / "more/two.js").exists()
    assert not draft.exists()


def test_staging_touches_only_what_changed(tmp_path):
    mirror({Path("a"): b"1", Path("b/c"): b"2"}, tmp_path)
    before = (tmp_path / "a").stat().st_mtime_ns
    mirror({Path("a"): b"1", Path("d"): b"3"}, tmp_path)
    assert (tmp_path / "a").stat().st_mtime_ns == before
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"a", "d"}


@pytest.mark.everything
def test_a_warning_fails_the_build_each_time(book):
    """Sphinx reads only what changed; what it complained about must not be forgotten."""
    save_executed(book, executed("1"))
    shutil.copy(HERE.root / "_config.yml", book.root)
    shutil.copy(HERE.book / "references.bib", book.book)
    shutil.copytree(HERE.book / "_static", book.book / "_static")
    start = book.book / "intro.md"
    start.write_text(f"{start.read_text()}\nSee {{doc}}`nowhere` and {{doc}}`07_later`.\n")
    stage(book)
    for _ in range(2):
        with (
            pytest.raises(BookError, match=r"intro\.md:\d+.*nowhere") as raised,
            builder(book) as build,
        ):
            build()
        assert "07_later" not in str(raised.value)
    assert "chapter 7 (to come)" in (book.html / "intro.html").read_text()


EXERCISE = """\
:::{exercise} Which of `a|b`?
:label: which-one
:class: predict

*Predict, about 3 minutes.* Say.
:::

```{code-cell} ipython3
:tags: [exercise]

def which_one():
    ### BEGIN SOLUTION
    return "a"
    ### END SOLUTION
```

```{code-cell} ipython3
:tags: [check]

check("which_one", which_one)
```
"""


def test_the_list_of_exercises_is_made_where_its_page_has_a_place_for_it(book):
    save_executed(book, executed("1"))
    (book.book / "01_one.md").write_text(f"{HEADER}\n# One\n\n{EXERCISE}")
    page = book.book / "exercises.md"
    page.write_text("# All\n")
    with pytest.raises(BookError, match=r"exercises\.md has no line `<!-- The list"):
        stage(book)
    page.write_text(f"# All\n\n{PLACE}\n")
    stage(book)
    text = (book.source / "exercises.md").read_text()
    assert "## 1. One\n\n1 exercise in {doc}`01_one`, about 3 minutes." in text
    assert "| {ref}`Which of a\\|b? <which-one>` | predict | 3 |  |" in text


def test_links_and_rank_marks_are_escaped():
    links = take_away("01_one", {"Colab": "https://c/{}?a&b", "Binder": "https://b/{}"})
    assert 'href="https://c/01_one?a&amp;b"' in links
    marked = color_ranks("[stdout:2] <b>\nplain", "output stream")
    assert '<span class="rank rank-2">[stdout:2]</span> &lt;b&gt;\nplain' in marked
