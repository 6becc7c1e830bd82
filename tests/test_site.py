"""The site as a reader gets it: its files, and its pages in a browser."""

import http.server
import re
import shutil
import sysconfig
import threading
from functools import partial
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup

from ranklab.folders import HERE, Folders
from ranklab.forms import exercises, manuscript
from ranklab.plots import RANK_COLORS
from ranklab.site import mathjax
from ranklab.site.__main__ import main
from ranklab.site.build import build
from ranklab.site.cache import code_cells
from ranklab.site.errors import BookError
from ranklab.site.exercises import PLACE
from ranklab.site.pages import color_ranks, take_away
from ranklab.site.stage import check_contents, mirror, stage

# The first test that needs the site may have to execute every chapter.
pytestmark = pytest.mark.timeout(900)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHAPTERS = [path.stem for path in HERE.chapters()]
PAGES = [*CHAPTERS, *(path.stem for path in HERE.prose()), "search", "genindex"]


@pytest.fixture(scope="module")
def site():
    """The built site's folder."""
    assert main(["--root", str(HERE.root)]) == 0, "the site could not be built"
    return HERE.html


@pytest.fixture(scope="module")
def soups(site):
    """Every page, parsed: path -> its elements."""
    paths = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    return {path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths}


# ---- the files ------------------------------------------------------------------------------


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
        notebook, script, colab, binder = (link["href"] for link in links)
        assert (site / notebook).read_bytes() == (HERE.root / notebook).read_bytes()
        assert (site / script).read_bytes() == (HERE.root / script).read_bytes()
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


def test_every_picture_says_what_is_to_be_seen(soups):
    for path, soup in soups.items():
        for image in soup.select("article img"):
            alt = image.get("alt", "")
            assert len(alt) > 20 and not alt.endswith((".png", ".svg")), f"{path.name}: {image}"


def test_nothing_is_loaded_from_another_host(site, soups):
    for path, soup in soups.items():
        for tag in soup.select("script[src], img[src], iframe[src], source[src]"):
            assert not tag["src"].startswith(("http:", "https:", "//")), f"{path.name}: {tag}"
        for tag in soup.select("link[href]"):
            assert not tag["href"].startswith(("http:", "https:", "//")), f"{path.name}: {tag}"
    for css in site.rglob("*.css"):
        text = css.read_text(encoding="utf-8")
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", text), css


def test_ranks_have_the_same_colors_in_pages_and_figures():
    css = (HERE.book / "_static/book.css").read_text(encoding="utf-8")
    light = css.split("html[data-theme")[0]
    assert re.findall(r"--rank-\d: (#\w+);", light) == RANK_COLORS


def test_every_reference_says_what_it_is_good_for(soups, site):
    entries = soups[site / "references.html"].select("div.citation")
    assert len(entries) > 20
    for entry in entries:
        assert len(entry.select("p > em")[-1].text.split()) > 2, entry.text


def exercises_of(chapter):
    return exercises.find(manuscript.read(HERE.book / f"{chapter}.md"))


EXERCISED = [chapter for chapter in CHAPTERS if exercises_of(chapter)]


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


# ---- the pages in a browser -------------------------------------------------------------------


def find_browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser(site):
    executable = find_browser()
    if not executable:
        pytest.skip(
            f"No browser found ({', '.join(BROWSERS)}): the pages are not looked at in one."
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(site):
    """The site's address on a server of this machine."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=site))
    serving.handle_error = lambda *_: None  # a browser that closes a page hangs up on us
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


class Visits:
    """Opens pages in one window, with nothing but this machine in reach, and hears complaints."""

    def __init__(self, browser):
        # Without motion, a color is what it is as soon as the theme changes.
        self.context = browser.new_context(
            viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
        )
        self.context.set_default_timeout(60_000)
        self.context.add_init_script("localStorage.mode = localStorage.theme = 'light'")
        self.context.route(lambda address: not self._is_local(address), self._refuse)
        self.complaints = []

    def open(self, url):
        page = self.context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)
        page.evaluate("() => window.MathJax?.startup?.promise")
        return page

    def close(self):
        self.context.close()
        assert not self.complaints

    def _hear(self, message):
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location}")

    def _is_local(self, address):
        return address.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))

    def _refuse(self, route):
        self.complaints.append(f"asked for {route.request.url}")
        route.abort()


@pytest.fixture
def visits(browser):
    visits = Visits(browser)
    yield visits
    visits.close()


@pytest.fixture(scope="module", params=PAGES)
def page(request, browser, site):
    """Each page, opened from the folder once for all the tests that look at it."""
    visits = Visits(browser)
    yield visits.open((site / f"{request.param}.html").as_uri())
    visits.close()


# Wrong by WCAG 2.0 or 2.1, level A or AA, or by what axe advises beyond that.
EVERY_RULE = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
# What the theme can change: colors alone.
COLOR_RULES = ["color-contrast", "link-in-text-block"]


def serious_violations(page, **only):
    """What axe finds, as far as it keeps a reader out; a sentence for each."""
    from axe_playwright_python.sync_playwright import Axe

    # Without `preload`, for which axe would fetch style sheets, from the wrong addresses.
    options = {"preload": False, "resultTypes": ["violations"], "runOnly": only}
    return [
        f"{v['id']}: {v['help']}\n" + "\n".join(n["html"][:200] for n in v["nodes"][:5])
        for v in Axe().run(page, options=options).response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def test_a_page_is_accessible(page):
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    serious = serious_violations(page, type="tag", values=EVERY_RULE)
    assert not serious, "\n\n".join(serious)


def test_a_page_is_readable_in_the_dark(page):
    theme = "theme => Object.assign(document.documentElement.dataset, {theme, mode: theme})"
    page.evaluate(theme, "dark")
    serious = serious_violations(page, type="rule", values=COLOR_RULES)
    page.evaluate(theme, "light")
    assert not serious, "\n\n".join(serious)


def test_a_page_has_its_name_and_its_formulas(page):
    assert page.title().endswith("Many Ranks, One Model")
    assert page.locator(".math mjx-container").count() == page.locator(".math").count()


def test_a_page_fits_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.evaluate(
        """() => [...document.querySelectorAll('article :is(p, img, table, pre)')]
            .filter(e => e.getBoundingClientRect().right > 391)
            .filter(e => !e.closest('.pst-scrollable-table-container, .cell_output, mjx-container'))
            .map(e => e.outerHTML.slice(0, 120))"""
    )
    page.set_viewport_size({"width": 1280, "height": 900})
    assert not wide


@pytest.mark.parametrize("name", ["intro", CHAPTERS[0]])
def test_a_page_works_from_a_server(visits, server, name):
    page = visits.open(f"{server}/{name}.html")
    assert page.title().endswith("Many Ranks, One Model")
    assert page.locator(".math mjx-container").count() == page.locator(".math").count()


def test_a_reader_who_likes_it_dark_gets_it_dark(visits, site):
    visits.context.add_init_script("localStorage.mode = localStorage.theme = 'dark'")
    page = visits.open((site / "intro.html").as_uri())
    data = page.evaluate("({...document.documentElement.dataset})")
    assert (data["theme"], data["mode"]) == ("dark", "dark")


@pytest.mark.parametrize("place", ["folder", "server"])
def test_search_finds_a_word(visits, site, server, place):
    base = site.as_uri() if place == "folder" else server
    page = visits.open(f"{base}/search.html?q=deadlock")
    first = page.locator("#search-results li a").first
    first.wait_for(timeout=20_000)
    assert page.locator("#search-results li").count() >= 2
    first.click()
    page.wait_for_load_state("load")
    assert "deadlock" in page.locator("article").inner_text().lower()


def test_the_start_page_is_found_from_the_folder(visits, site):
    page = visits.open((site / "glossary.html").as_uri())
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/intro.html")
    assert page.locator("h1").first.inner_text().startswith("Many Ranks, One Model")


def test_code_can_be_copied(visits, server):
    visits.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visits.open(f"{server}/{CHAPTERS[-1]}.html")
    cell = page.locator("div.cell_input", has_text="%%px").first
    cell.hover()
    cell.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == cell.locator("pre").inner_text().strip()
    assert copied.startswith("%%px")


def test_a_solution_opens_by_the_keyboard(visits, site):
    page = visits.open((site / f"{EXERCISED[0]}.html").as_uri())
    solution = page.locator("details.solution").first
    assert not solution.locator("pre").is_visible()
    solution.locator("summary").focus()
    page.keyboard.press("Enter")
    assert solution.locator("pre").is_visible()


# The theme waits for a moment before it looks at what is wide.
WIDE_CODE_IS_REACHED = """() => [...document.querySelectorAll("pre")]
    .every(e => e.scrollWidth <= e.clientWidth || e.tabIndex === 0)"""


INSIDE_ITS_PARAGRAPH = """all => all.every(e =>
    e.getBoundingClientRect().right <= e.closest("p").getBoundingClientRect().right + 1)"""


def test_wide_code_in_a_solution_is_reached_by_the_keyboard(visits, site):
    page = visits.open((site / f"{EXERCISED[0]}.html").as_uri())
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function(WIDE_CODE_IS_REACHED)
    page.evaluate("document.querySelectorAll('details.solution').forEach(d => { d.open = true })")
    page.wait_for_function(WIDE_CODE_IS_REACHED)


def test_open_solutions_are_accessible_and_fit_a_phone(visits, site):
    page = visits.open((site / f"{EXERCISED[0]}.html").as_uri())
    page.set_viewport_size({"width": 390, "height": 900})
    page.evaluate("document.querySelectorAll('details.solution').forEach(d => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("details.solution p code").evaluate_all(INSIDE_ITS_PARAGRAPH)
    page.wait_for_function(WIDE_CODE_IS_REACHED)
    for theme in ("light", "dark"):
        page.evaluate("t => { document.documentElement.dataset.theme = t }", theme)
        serious = serious_violations(page, type="tag", values=EVERY_RULE)
        assert not serious, "\n\n".join(serious)


def test_the_list_of_exercises_is_read_on_a_phone_without_scrolling_sideways(visits, site):
    page = visits.open((site / "exercises.html").as_uri())
    page.set_viewport_size({"width": 390, "height": 900})
    tables = page.locator(".pst-scrollable-table-container")
    assert tables.count() == len(EXERCISED)
    assert tables.evaluate_all("all => all.every(e => e.scrollWidth <= e.clientWidth)")


def test_the_keyboard_reaches_the_text_first(visits, site):
    page = visits.open((site / "intro.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to main content"


# ---- what the build refuses --------------------------------------------------------------------


@pytest.fixture
def book(tmp_path):
    """A book with one executed chapter, and all that its page needs."""
    files = {
        "_toc.yml": "format: jb-book\nroot: intro\nparts:\n  - chapters:\n      - file: 01_one\n",
        "book/01_one.md": "",
        "book/intro.md": "# Start\n",
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


def test_contents_and_chapters_must_agree(book):
    with pytest.raises(BookError, match=r"book/02_two\.md is in no part of _toc\.yml"):
        check_contents(book, ["01_one", "02_two"])
    (book.book / "01_one.md").unlink()
    with pytest.raises(BookError, match=r"_toc\.yml lists 01_one"):
        check_contents(book, [])


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


def test_the_pages_load_the_mathjax_that_is_installed(site, soups):
    folder = f"_static/mathjax-{version('sphinx-mathjax-offline')}"
    sources = [tag["src"] for tag in soups[site / f"{CHAPTERS[0]}.html"].select("script[src]")]
    assert any(source.startswith(f"{folder}/tex-chtml.js") for source in sources), sources
    assert [path.name for path in site.glob("_static/mathjax*")] == [Path(folder).name]


def test_staging_touches_only_what_changed(tmp_path):
    mirror({Path("a"): b"1", Path("b/c"): b"2"}, tmp_path)
    before = (tmp_path / "a").stat().st_mtime_ns
    mirror({Path("a"): b"1", Path("d"): b"3"}, tmp_path)
    assert (tmp_path / "a").stat().st_mtime_ns == before
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"a", "d"}


def test_a_warning_fails_the_build_each_time(book):
    """Sphinx reads only what changed; what it complained about must not be forgotten."""
    save_executed(book, executed("1"))
    shutil.copy(HERE.root / "_config.yml", book.root)
    shutil.copy(HERE.book / "references.bib", book.book)
    shutil.copytree(HERE.book / "_static", book.book / "_static")
    (book.book / "intro.md").write_text("# Start\n\nSee {doc}`nowhere` and {doc}`07_later`.\n")
    stage(book)
    for _ in range(2):
        with pytest.raises(BookError, match=r"intro\.md:3.*nowhere") as raised:
            build(book)
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
    (book.book / "01_one.md").write_text(f"{manuscript.HEADER}\n# One\n\n{EXERCISE}")
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
