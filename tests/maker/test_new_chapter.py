"""What a new chapter costs: its manuscript and a file for each exercise. All else follows."""

import shutil

import pytest
from bs4 import BeautifulSoup
from exercise_sample import run_file
from small_book import forms
from tiers import few

from bookmaker.folders import HERE, Folders
from bookmaker.site.__main__ import main

MANUSCRIPT = """\
---
chapter:
  about: one sum, counted twice
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---

# A tally

```{code-cell} ipython3
#@save
def tally(numbers):
    return sum(numbers)
```

```{code-cell} ipython3
from ranklab import result

result("total", tally([1, 2]))
```

The total is {glue:text}`total`.

## Exercises

"""
EXERCISE = """\
:::{exercise} The %(name)s
:label: %(name)s
:class: build

*Build, about 3 minutes.* Write `%(name)s(numbers)`.
:::

```{code-cell} ipython3
:tags: [exercise]

def %(name)s(numbers):
    ### BEGIN SOLUTION
    return %(solution)s
    ### END SOLUTION
```

```{code-cell} ipython3
:tags: [check]

from ranklab.exercises import check

check("%(name)s", %(name)s)
```
"""
CHECK = """\
from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("three", lambda rank, world_size: ([1, 2, 6],), ranks=1)],
    twin=lambda inputs: [%(solution)s for (numbers,) in inputs],
    hint="Look again.",
)
"""
SOLUTIONS = {"tallest": "max(numbers)", "tallied": "numbers[0] * numbers[1] * numbers[2]"}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The book without its chapters, and with one that is new: written by hand, forms, site."""
    root = tmp_path_factory.mktemp("book")
    chapters = [path.name for path in HERE.chapters()]
    shutil.copytree(HERE.book, root / "book", ignore=lambda *_: chapters)
    for name in ("_config.yml", "README.md"):
        shutil.copy(HERE.root / name, root)
    shutil.copytree(HERE.root / "images", root / "images")
    (root / "checks").mkdir()
    text = MANUSCRIPT
    for name, solution in SOLUTIONS.items():
        parts = {"name": name, "solution": solution}
        text += EXERCISE % parts + "\n"
        (root / "checks" / f"{name}.py").write_text(CHECK % parts)
    (root / "book" / "09_tally.md").write_text(text.rstrip("\n") + "\n")
    status, lines = forms(root)
    assert status == 0, lines
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKLAB_CHECKS", str(root / "checks"))
        assert main(["--root", str(root)]) == 0
    return Folders(root)


def page(book, name):
    return BeautifulSoup((book.html / f"{name}.html").read_text("utf-8"), "html.parser")


def test_every_form_of_it_is_there(book):
    files = [
        *("notebooks/09_tally.ipynb", "scripts/09_tally.py"),
        *(f"scripts/exercises/09_{name}.py" for name in SOLUTIONS),
    ]
    for name in files:
        assert "enerated from" in (book.root / name).read_text()
        assert (book.html / name).read_bytes() == (book.root / name).read_bytes()
    assert "def tally" in (book.root / "ranklab" / "taught" / "tally.py").read_text()


def test_its_page_was_executed_and_has_its_exercises(book):
    text = page(book, "09_tally").select_one("article").get_text()
    assert "9. A tally" in text and "The total is 3." in text
    assert text.count("not attempted yet") == 2 and SOLUTIONS["tallest"] in text


def test_the_contents_and_the_lists_have_it(book):
    start = page(book, "intro")
    (sidebar,) = start.select('nav.bd-links a[href="09_tally.html"]')
    part = sidebar.find_parent("ul").find_previous_sibling("p")
    assert part.get_text() == "Part II: Many ranks"
    (listed,) = start.select('article li:has(a[href="09_tally.html"])')
    assert listed.get_text() == "9. A tally: one sum, counted twice"
    text = start.get_text()
    assert "1 of 27 chapters are written" in text and "27. Scale (to come)" in text
    assert "9 [A tally](notebooks/09_tally.ipynb)" in (book.root / "README.md").read_text()
    rows = page(book, "exercises").select("article tbody tr")
    assert [row.td.get_text() for row in rows] == ["The tallest", "The tallied"]


@pytest.mark.parametrize("name", few(SOLUTIONS, lambda name: name == "tallest"))
def test_its_checks_are_found(book, name):
    path = book.root / "scripts" / "exercises" / f"09_{name}.py"
    text = path.read_text().replace("raise NotImplementedError()", f"return {SOLUTIONS[name]}")
    answer = path.with_name(f"answer_{name}.py")
    answer.write_text(text)
    run = run_file(book.root, answer)
    assert run.returncode == 0 and "Right" in run.stdout, run.stdout + run.stderr
