"""Every chapter says the same on its page, in its notebook and as a script, however started."""

from pathlib import Path

import nbformat
import pytest
from launch import results_in, run_script

from ranklab.site.execute import execute

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted(path.stem for path in (ROOT / "book").glob("[0-9][0-9]_*.md"))


def results_of(notebook):
    """name -> (value as text, varies) of every result in an executed notebook."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    records = [o["metadata"]["ranklab"] for o in outputs if "ranklab" in o.get("metadata", {})]
    return {r["name"]: (str(r["value"]), r["varies"]) for r in records}


@pytest.fixture(scope="module", params=CHAPTERS)
def chapter(request):
    return request.param


@pytest.fixture(scope="module", params=[4, 2])
def page(request, chapter):
    """The chapter's executed page at 4 and at 2 ranks: (ranks, its results)."""
    executed = execute(ROOT / "book" / f"{chapter}.md", ranks=request.param)
    return request.param, results_of(nbformat.read(executed, as_version=4))


def same_results(page, text):
    expected, printed = page[1], results_in(text)
    missing = sorted(set(expected) - set(printed))
    assert not missing, f"the script never prints {missing}"
    differ = {
        name: {"page": value, "script": printed[name]}
        for name, (value, varies) in expected.items()
        if not varies and printed[name] != value
    }
    assert not differ


def test_a_page_has_results(page):
    fixed = [name for name, (_, varies) in page[1].items() if not varies]
    assert fixed, "no result that can be compared"


def test_torchrun_says_what_the_page_says(page, chapter, tmp_path):
    text = run_script(ROOT / "scripts" / f"{chapter}.py", "torchrun", page[0], tmp_path)
    same_results(page, text)


@pytest.mark.parametrize("launcher", ["alone", "mpiexec"])
def test_other_launchers_say_the_same(chapter, launcher, tmp_path):
    executed = execute(ROOT / "book" / f"{chapter}.md", ranks=4)
    page = 4, results_of(nbformat.read(executed, as_version=4))
    same_results(page, run_script(ROOT / "scripts" / f"{chapter}.py", launcher, 4, tmp_path))
