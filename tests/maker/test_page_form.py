"""What there is to be seen on each page, without doing anything: looked at in a browser."""

import pytest
from browsing import Visits, browser
from built_site import CHAPTERS, PAGES, site
from tiers import few

from bookmaker.folders import HERE
from bookmaker.manuscript import lengths, manuscript

# The first test that needs the site may have to execute every chapter.
pytestmark = pytest.mark.timeout(900)

__all__ = ["browser", "site"]


# By day, of pages that are no chapter, these stand for all.
OTHERS = {"intro", "exercises", "glossary"}


@pytest.fixture(scope="module", params=few(PAGES, lambda name: name in {*CHAPTERS, *OTHERS}))
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
# What axe looks at, chapters have all alike: it comes from the site's templates and style sheets.
SOME_PAGES = {*CHAPTERS[::4], *OTHERS}
looked_at_by_axe = pytest.mark.parametrize(
    "page", few(PAGES, lambda name: name in SOME_PAGES), indirect=True
)
PLAIN_CODE = """document.querySelectorAll("div.highlight pre").forEach(
    code => { code.textContent = code.textContent })"""


def serious_violations(page, within=None, but=(), **only):
    """What axe finds, as far as it keeps a reader out; a sentence for each.

    within: a selector, of what alone is looked at. but: rules that are left out.
    """
    from axe_playwright_python.sync_playwright import Axe

    # Without `preload`, for which axe would fetch style sheets, from the wrong addresses.
    options = {"preload": False, "resultTypes": ["violations"], "runOnly": only}
    options["rules"] = {rule: {"enabled": False} for rule in but}
    if not page.url.endswith(WITH_WORDS):
        page.evaluate(PLAIN_CODE)
    return [
        f"{v['id']}: {v['help']}\n" + "\n".join(n["html"][:200] for n in v["nodes"][:5])
        for v in Axe().run(page, within, options).response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@looked_at_by_axe
def test_a_page_is_accessible(page):
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    serious = serious_violations(page, but=COLOR_RULES, type="tag", values=EVERY_RULE)
    assert not serious, "\n\n".join(serious)


@looked_at_by_axe
def test_a_page_is_readable_in_the_light(page):
    serious = serious_violations(page, type="rule", values=COLOR_RULES)
    assert not serious, "\n\n".join(serious)


@looked_at_by_axe
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


# How long a chapter is


each_chapter = pytest.mark.parametrize("page", CHAPTERS, indirect=True)


def chapter_of(page):
    return page.url.rpartition("/")[2].removesuffix(".html")


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
  const toPlay = e => e.closest("details.fold")?.textContent.trim().startsWith("TO_PLAY");
  const code = [...document.querySelectorAll("article div.cell_input pre")]
    .filter(e => before(e) && !toPlay(e));
  const shown = code.filter(e => !folded(e)).map(lines);
  const sum = all => all.reduce((a, b) => a + b, 0);
  return {
    words: words(prose.filter(e => !folded(e))), shown: sum(shown), longest: Math.max(0, ...shown),
    folded: sum(code.filter(folded).map(lines)),
    extra: words(prose.filter(e => e.closest("details.extra"))),
  };
}""".replace("TO_PLAY", lengths.TO_PLAY)
WIDE = """() => [...document.querySelectorAll("article :is(div.highlight pre, table)")]
  .filter(e => e.getClientRects().length)
  .map(e => e.tagName === "TABLE" ? e.closest(".pst-scrollable-table-container") || e : e)
  .filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.trim().slice(0, 60))"""
OPEN = "() => document.querySelectorAll('details').forEach(d => { d.open = true })"


@each_chapter
def test_a_page_shows_what_can_be_read_in_45_minutes(page, capsys):
    seen, name = page.evaluate(COUNT), chapter_of(page)
    with capsys.disabled():
        print("\n" + "  ".join([f"{name:16}", *(f"{key} {n:5}" for key, n in seen.items())]))
    assert seen["words"] <= 4000
    assert seen["shown"] <= 400
    assert seen["longest"] <= 25
    assert seen["folded"] <= seen["shown"]
    assert seen["extra"] <= 1000


@each_chapter
def test_the_minutes_follow_from_what_the_page_shows(page):
    seen = page.evaluate(COUNT)
    said = lengths.measure(manuscript.read(HERE.book / f"{chapter_of(page)}.md"))
    assert (seen["shown"], seen["longest"], seen["folded"]) == (
        said.shown,
        said.longest,
        said.folded,
    )
    assert f"{said} ·" in page.locator("article").inner_text()


@each_chapter
@pytest.mark.parametrize("width", [1200, 1440])  # last, as it leaves everything open
def test_nothing_scrolls_sideways(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(OPEN)
    assert page.evaluate(WIDE) == []
