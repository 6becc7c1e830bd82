"""The pages of the site, in a browser."""

import http.server
import shutil
import threading
from functools import partial

import pytest
from built_site import CHAPTERS, EXERCISED, PAGES, site
from tiers import few

# The first test that needs the site may have to execute every chapter.
pytestmark = pytest.mark.timeout(900)

__all__ = ["site"]
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

# Each word of code is an element, which takes axe most of its time. They are colored alike on all
# pages: elsewhere than on this one, a cell's code is one element.
WITH_WORDS = f"{CHAPTERS[0]}.html"
# Of the dark theme, what chapters have is the same in all of them: style sheets set its colors.
SOME_PAGES = {*CHAPTERS[::4], *PAGES[len(CHAPTERS) :]}
PLAIN_CODE = """document.querySelectorAll("div.highlight pre").forEach(
    code => { code.textContent = code.textContent })"""


def serious_violations(page, within=None, **only):
    """What axe finds, as far as it keeps a reader out; a sentence for each.

    within: a selector, of what alone is looked at.
    """
    from axe_playwright_python.sync_playwright import Axe

    # Without `preload`, for which axe would fetch style sheets, from the wrong addresses.
    options = {"preload": False, "resultTypes": ["violations"], "runOnly": only}
    if not page.url.endswith(WITH_WORDS):
        page.evaluate(PLAIN_CODE)
    return [
        f"{v['id']}: {v['help']}\n" + "\n".join(n["html"][:200] for n in v["nodes"][:5])
        for v in Axe().run(page, within, options).response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def test_a_page_is_accessible(page):
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    serious = serious_violations(page, type="tag", values=EVERY_RULE)
    assert not serious, "\n\n".join(serious)


@pytest.mark.parametrize("page", few(PAGES, lambda name: name in SOME_PAGES), indirect=True)
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
    cell = page.locator("div.cell_input:visible", has_text="%%px").first
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
        serious = serious_violations(page, "details.solution", type="tag", values=EVERY_RULE)
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
