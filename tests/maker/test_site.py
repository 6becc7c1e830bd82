"""The files of the site as a reader gets it."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from built_site import CHAPTERS, EXERCISED, PAGES, exercises_of, site, soups

from bookmaker.folders import HERE
from bookmaker.manuscript import exercises, manuscript
from bookmaker.site.cache import code_cells
from ranklab.plots import RANK_COLORS

# The first test that needs the site may have to execute every chapter.
pytestmark = pytest.mark.timeout(900)

__all__ = ["site", "soups"]

# What Markdown should have turned into something else; and where it is not read.
MARKUP = re.compile(r"\$|`|\*\*|\]\(|^\s*(- |:::|#+ )", re.MULTILINE)
AS_IT_IS = "pre, code, script, style, svg, .math, .cell_output"


def test_every_page_is_there(site):
    assert {path.stem for path in site.glob("*.html")} >= set(PAGES)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_cell_of_a_chapter_was_executed(soups, site, chapter):
    notebook = nbformat.read(HERE.source / f"{chapter}.ipynb", as_version=4)
    cells = code_cells(notebook)
    assert all(cell.execution_count for cell in cells)
    shown = soups[site / f"{chapter}.html"].select("div.cell")
    assert len(shown) == len(cells)
    assert sum(bool(cell.select(".cell_output")) for cell in shown) > 5


def test_a_chapter_offers_its_notebook_its_script_and_machines_to_run_it(soups, site):
    for chapter in CHAPTERS:
        links = soups[site / f"{chapter}.html"].select("nav.take-away a")
        notebook, *scripts, colab, binder = (link["href"] for link in links)
        assert scripts[0] == f"scripts/{chapter}.py"  # and the chapter's programs behind it
        for taken in (notebook, *scripts):
            assert (site / taken).read_bytes() == (HERE.root / taken).read_bytes()
        assert colab.endswith(f"/blob/main/notebooks/{chapter}.ipynb")
        assert binder.endswith(f"/main?urlpath=lab/tree/notebooks/{chapter}.ipynb")


def test_no_link_is_broken(soups):
    ids = {path: {tag["id"] for tag in soup.select("[id]")} for path, soup in soups.items()}
    broken = []
    for path, soup in soups.items():
        for tag, attribute in ((t, a) for a in ("href", "src") for t in soup.select(f"[{a}]")):
            url = urlsplit(tag[attribute])
            if url.scheme in ("http", "https", "data", "mailto"):
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            anchor = unquote(url.fragment)
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                broken.append(f"{path.name}: {tag[attribute]}")
    assert not broken


def markup_shown(soup):
    found = [text for article in soup("article") for text in article(string=MARKUP)]
    return [text for text in found if not text.parent.css.closest(AS_IT_IS)]


def test_no_page_shows_its_markup(soups):
    for line, shown in (("in $n$ steps", 1), ("like this:\n- one", 1), ("a - b", 0)):
        page = f"<article><p>{line}</p><pre>$HOME</pre></article>"
        assert len(markup_shown(BeautifulSoup(page, "html.parser"))) == shown
    for path, soup in soups.items():
        assert not markup_shown(soup), path.name


def test_every_picture_says_what_is_to_be_seen(soups):
    for path, soup in soups.items():
        for image in soup.select("article img"):
            alt = image.get("alt", "")
            assert len(alt) > 20 and not alt.endswith((".png", ".svg")), f"{path.name}: {image}"


def test_the_start_pages_picture_is_what_its_program_draws(tmp_path):
    images = HERE.root / "images"
    program = shutil.copy(images / "ways.py", tmp_path)
    subprocess.run([sys.executable, program], check=True)
    drawn = (tmp_path / "ways.svg").read_text()
    assert drawn == (images / "ways.svg").read_text(), "run: python images/ways.py"
    alt = re.search(r'aria-label="([^"]+)"', drawn)[1]
    assert f":alt: {alt}\n" in (HERE.book / "intro.md").read_text()


def test_the_picture_above_it_is_what_the_tour_draws(site):
    page = nbformat.read(HERE.executed / "00_tour.ipynb", as_version=4)
    outputs = [out for cell in page.cells for out in cell.get("outputs", [])]
    drawn = [out.get("data", {}).get("image/svg+xml", "") for out in outputs]
    picture = (HERE.root / "images" / "all-reduce.svg").read_text(encoding="utf-8")
    assert picture in drawn, "copy 00_tour-all-reduce.svg, which scripts/00_tour.py writes"


def test_nothing_is_loaded_from_another_host(site, soups):
    for path, soup in soups.items():
        for tag in soup.select("script[src], img[src], iframe[src], source[src]"):
            assert not tag["src"].startswith(("http:", "https:", "//")), f"{path.name}: {tag}"
        for tag in soup.select("link[href]"):
            assert not tag["href"].startswith(("http:", "https:", "//")), f"{path.name}: {tag}"
    for css in site.rglob("*.css"):
        text = css.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", text), css


def test_the_pages_load_the_mathjax_that_is_installed(site, soups):
    folder = f"_static/mathjax-{version('sphinx-mathjax-offline')}"
    sources = [tag["src"] for tag in soups[site / f"{CHAPTERS[1]}.html"].select("script[src]")]
    assert any(source.startswith(f"{folder}/tex-chtml.js") for source in sources), sources
    assert [path.name for path in site.glob("_static/mathjax*")] == [Path(folder).name]


def test_ranks_have_the_same_colors_in_pages_and_figures():
    css = (HERE.book / "_static/book.css").read_text(encoding="utf-8")
    light = css.split("html[data-theme")[0]
    assert re.findall(r"--rank-\d: (#\w+);", light) == RANK_COLORS


def test_every_reference_says_what_it_is_good_for(soups, site):
    entries = soups[site / "references.html"].select("div.citation")
    assert len(entries) > 20
    for entry in entries:
        assert len(entry.select("p > em")[-1].text.split()) > 2, entry.text


@pytest.mark.parametrize("chapter", EXERCISED)
def test_an_exercise_is_a_task_a_stub_a_check_and_a_folded_solution(soups, site, chapter):
    soup = soups[site / f"{chapter}.html"]
    solutions = exercises.solutions(manuscript.read(HERE.book / f"{chapter}.md"))
    for exercise in exercises_of(chapter):
        task = soup.select_one(f"#{exercise.label}.exercise.{exercise.kind}")
        title = task.select_one(".admonition-title").get_text()
        assert title.startswith("Exercise: ") and not title.endswith(")")
        stub, check, solution = task.find_next_siblings(limit=3)
        assert "NotImplementedError" in stub.get_text() and "tag_exercise" in stub["class"]
        assert "not attempted yet" in check.select_one(".cell_output").get_text()
        assert (solution.name, solution["id"]) == ("details", f"{exercise.label}-solution")
        assert not solution.has_attr("open") and solution.find("summary")
        code = solution.select_one("pre").get_text()
        assert code.strip() == solutions[exercise.name].strip()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_id_is_on_a_page_twice(soups, site, chapter):
    ids = [tag["id"] for tag in soups[site / f"{chapter}.html"].select("article [id]")]
    assert sorted(ids) == sorted(set(ids))


def test_one_page_lists_all_exercises(soups, site):
    rows = soups[site / "exercises.html"].select("article tbody tr")
    listed = [[cell.get_text() for cell in row.select("td")] for row in rows]
    links = [[a["href"] for a in row.select("a")] for row in rows]
    every = [(chapter, exercise) for chapter in EXERCISED for exercise in exercises_of(chapter)]
    assert len(rows) == len(every)
    for (chapter, exercise), (_, kind, minutes, file), targets in zip(every, listed, links):
        assert targets[0] == f"{chapter}.html#{exercise.label}"
        assert (kind, minutes) == (exercises.KINDS[exercise.kind].lower(), str(exercise.minutes))
        if exercise.kind == "predict":
            assert (file, targets[1:]) == ("", [])
        else:
            assert targets[1:] == [f"scripts/exercises/{file}"]
            assert (site / targets[1]).read_bytes() == (HERE.root / targets[1]).read_bytes()
