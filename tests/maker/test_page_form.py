"""What a reader sees of each chapter without opening anything, counted in a browser."""

import pytest
from built_site import CHAPTERS, site
from test_pages import Visits, browser, visits

from bookmaker.folders import HERE
from bookmaker.manuscript import lengths, manuscript

pytestmark = pytest.mark.timeout(900)

__all__ = ["browser", "site", "visits"]

# Before the exercises: (not folded) words, lines of code, the longest cell; and what is folded.
COUNT = """() => {
  const folded = e => { for (let p = e.parentElement; p; p = p.parentElement)
    if (p.tagName === "DETAILS" && !p.open && !e.closest("summary")) return true; return false };
  const exercises = [...document.querySelectorAll("article h2")]
    .find(h => h.textContent.startsWith("Exercises"));
  const before = e => !exercises ||
    exercises.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_PRECEDING;
  const text = e => e.textContent.trim();
  const words = all => all.map(e => text(e).split(/\\s+/).length).reduce((a, b) => a + b, 0);
  const lines = e => e.textContent.split("\\n").filter(line => line.trim()).length;
  const prose = [...document.querySelectorAll("article :is(p, li, td)")]
    .filter(e => before(e) && !e.closest("div.cell, summary") && !e.querySelector("p") && text(e));
  const code = [...document.querySelectorAll("article div.cell_input pre")].filter(before);
  const shown = code.filter(e => !folded(e)).map(lines);
  const sum = all => all.reduce((a, b) => a + b, 0);
  return {
    words: words(prose.filter(e => !folded(e))), shown: sum(shown), longest: Math.max(0, ...shown),
    folded: sum(code.filter(folded).map(lines)),
    extra: words(prose.filter(e => e.closest("details.extra"))),
  };
}"""
WIDE = """() => [...document.querySelectorAll("article :is(div.highlight pre, table)")]
  .filter(e => e.getClientRects().length)
  .map(e => e.tagName === "TABLE" ? e.closest(".pst-scrollable-table-container") || e : e)
  .filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.trim().slice(0, 60))"""
OPEN = "() => document.querySelectorAll('details').forEach(d => { d.open = true })"


@pytest.fixture(scope="module", params=CHAPTERS)
def chapter(request, browser, site):
    """The name of a chapter, and its page in a window of 1200 pixels, nothing opened."""
    visits = Visits(browser)
    page = visits.open((site / f"{request.param}.html").as_uri())
    page.set_viewport_size({"width": 1200, "height": 900})
    yield request.param, page
    visits.close()


def test_a_page_shows_what_can_be_read_in_45_minutes(chapter, capsys):
    name, page = chapter
    seen = page.evaluate(COUNT)
    with capsys.disabled():
        print("\n" + "  ".join([f"{name:16}", *(f"{key} {n:5}" for key, n in seen.items())]))
    assert seen["words"] <= 4000
    assert seen["shown"] <= 400
    assert seen["longest"] <= 25
    assert seen["folded"] <= seen["shown"]
    assert seen["extra"] <= 1000


def test_the_minutes_follow_from_what_the_page_shows(chapter):
    name, page = chapter
    seen = page.evaluate(COUNT)
    said = lengths.measure(manuscript.read(HERE.book / f"{name}.md"))
    assert (seen["shown"], seen["longest"], seen["folded"]) == (
        said.shown,
        said.longest,
        said.folded,
    )
    assert f"{said.minutes} minutes to read" in page.locator("article").inner_text()


@pytest.mark.parametrize("width", [1200, 1440])
def test_nothing_scrolls_sideways(chapter, width):
    _, page = chapter
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(OPEN)
    assert page.evaluate(WIDE) == []


def test_all_code_is_shown_at_once_and_that_is_remembered(visits, site):
    page = visits.open((site / f"{CHAPTERS[0]}.html").as_uri())
    folds, button = page.locator("details.fold"), page.locator("button.show-code")
    assert folds.count() > 2 and not folds.first.locator("pre").is_visible()
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("[...document.querySelectorAll('details.fold')].every(d => d.open)")
    page.goto((site / f"{CHAPTERS[1]}.html").as_uri())
    assert page.locator("details.fold pre").first.is_visible()
    page.locator("button.show-code").click()
    assert not page.locator("details.fold pre").first.is_visible()
    assert page.locator("details.fold .cell_output").count() == 0  # what came out stays in sight


# The heading that the list of contents marks, when the window stands at the middle of the page.
MARKED = """() => {
  const links = [...document.querySelectorAll(".bd-sidebar-secondary a.nav-link.active")];
  const passed = [...document.querySelectorAll("article section > :is(h2, h3)")]
    .filter(h => h.getBoundingClientRect().top < innerHeight / 2);
  return [`#${passed.at(-1).parentElement.id}`, links.map(a => a.getAttribute("href"))];
}"""


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_the_list_of_contents_follows_the_reader(visits, site, part):
    page = visits.open((site / f"{CHAPTERS[5]}.html").as_uri())
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate(f"scrollTo(0, document.body.scrollHeight * {part})")
    page.wait_for_function(
        f"() => {{ const [here, marked] = ({MARKED})(); return marked.includes(here) }}"
    )
