"""The page "Use ranklab in your own work": its programs run when the book is built."""

import contextlib

import psutil
import pytest
from built_site import site

from bookmaker.errors import BookError
from bookmaker.folders import Folders
from bookmaker.site import recipes

pytestmark = pytest.mark.timeout(900)
__all__ = ["site"]


@pytest.fixture
def book(tmp_path):
    folders = Folders(tmp_path)
    (folders.book / "recipes").mkdir(parents=True)
    (folders.root / "ranklab").mkdir()
    return folders


def shown(book, code):
    (book.book / "recipes" / "one.py").write_text(code)
    return recipes.shown("before\n\n<!-- recipe: one.py -->\n\nafter\n", book)


def test_a_recipe_stands_above_what_it_prints_and_runs_once(book):
    code = "import pathlib\nprint('ran in', pathlib.Path().resolve().name[:3])"
    page = shown(book, code)
    assert page == f"before\n\n```python\n{code}\n```\n\n```text\nran in tmp\n```\n\nafter\n"
    (kept,) = (book.build / "recipes").iterdir()
    kept.write_text("from before")
    assert "from before" in shown(book, code)
    assert "ran in" in shown(book, f"{code}  # changed")


@pytest.mark.parametrize("changed", ["ranklab/taught/a.py", "bookmaker/script/b.py"])
def test_it_runs_again_when_the_lab_or_the_exporter_has_changed(book, changed):
    shown(book, "print(1)")
    (kept,) = (book.build / "recipes").iterdir()
    (book.root / changed).parent.mkdir(parents=True)
    (book.root / changed).write_text("x = 1")
    kept.write_text("from before")
    assert "from before" not in shown(book, "print(1)")
    assert len(list((book.build / "recipes").iterdir())) == 1  # the old one is gone


def test_one_that_does_not_end_is_ended_with_all_that_it_started(book, monkeypatch, tmp_path):
    monkeypatch.setattr(recipes, "LIMIT", 3)
    code = f"""import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
child.wait()
"""
    with pytest.raises(BookError, match=r"one\.py has not ended after 3 seconds"):
        shown(book, code)
    child = int((tmp_path / "child").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(10)


def test_what_is_not_there_is_said(book):
    with pytest.raises(BookError, match=r"shows none\.py, but it is not in book/recipes"):
        recipes.shown("<!-- recipe: none.py -->", book)
    with pytest.raises(BookError, match="has no line `<!-- recipe"):
        recipes.shown("# Own work", book)


def test_a_recipe_that_fails_fails_the_build(book):
    with pytest.raises(BookError, match=r"one.py failed:[\s\S]*ZeroDivisionError"):
        shown(book, "1 / 0")


def test_all_four_have_run(site):
    page = (site / "own_work.html").read_text(encoding="utf-8")
    for said in (
        "The collectives do not match",
        "4,004,000",
        "the sum, on every rank: [tensor([1., 1.]), tensor([1., 1.])]",
        "\nright\n",
    ):
        assert said in page.replace("<span></span>", ""), said
    assert "recipe:" not in page
