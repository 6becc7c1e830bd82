"""What a reader does with the pages: in a browser."""

import re

import pytest
from browsing import browser, server, visits
from built_site import CHAPTERS, EXERCISED, site
from test_page_form import COLOR_RULES, EVERY_RULE, serious_violations
from tiers import few

pytestmark = pytest.mark.timeout(900)  # as in test_page_form.py

__all__ = ["browser", "server", "site", "visits"]


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


@pytest.mark.parametrize("place", few(["folder", "server"], lambda where: where == "folder"))
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
    of_both = {"light": ("tag", EVERY_RULE), "dark": ("rule", COLOR_RULES)}
    for theme, (kind, rules) in of_both.items():
        page.evaluate("t => { document.documentElement.dataset.theme = t }", theme)
        serious = serious_violations(page, "details.solution", type=kind, values=rules)
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


def test_all_code_is_shown_at_once_and_that_is_remembered(visits, server):
    """From a server: of files, a browser may forget what a page has just written down."""
    page = visits.open(f"{server}/{CHAPTERS[0]}.html")
    folds, button = page.locator("details.fold"), page.locator("button.show-code")
    assert folds.count() > 2 and not folds.first.locator("pre").is_visible()
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("[...document.querySelectorAll('details.fold')].every(d => d.open)")
    page.goto(f"{server}/{CHAPTERS[1]}.html")
    assert page.locator("details.fold pre").first.is_visible()
    page.locator("button.show-code").click()
    page.locator("details.fold pre").first.wait_for(state="hidden")
    # What came out stays in sight, but for results, which the text quotes.
    folded = page.locator("details.fold .cell_output pre").all_text_contents()
    lines = [line for text in folded for line in text.splitlines()]
    assert lines and all(re.match(r"\w+ = ", line) for line in lines)
    assert page.locator("details.fold .cell_output img").count() == 0


# The heading that the list of contents marks, when the window stands at the middle of the page.
MARKED = """() => {
  const links = [...document.querySelectorAll(".bd-sidebar-secondary a.nav-link.active")];
  const passed = [...document.querySelectorAll("article section > :is(h2, h3)")]
    .filter(h => h.getBoundingClientRect().top < innerHeight / 2);
  return [`#${passed.at(-1).parentElement.id}`, links.map(a => a.getAttribute("href"))];
}"""


@pytest.mark.parametrize("part", few([0.3, 0.6, 0.9], lambda part: part == 0.6))
def test_the_list_of_contents_follows_the_reader(visits, site, part):
    page = visits.open((site / f"{CHAPTERS[5]}.html").as_uri())
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate(f"scrollTo(0, document.body.scrollHeight * {part})")
    page.wait_for_function(
        f"() => {{ const [here, marked] = ({MARKED})(); return marked.includes(here) }}"
    )


def test_the_cheat_sheet_is_one_printed_page(visits, site):
    page = visits.open((site / "cheat_sheet.html").as_uri())
    printed = page.pdf(format="A4", prefer_css_page_size=False)
    assert printed.count(b"/Type /Page\n") == 1
    assert page.locator("#cheat-sheet table").count() == 5


def test_three_questions_lead_to_a_way_by_the_keyboard(visits, site):
    page = visits.open((site / "which.html").as_uri())
    answers = "No: weights, gradients and optimizer do not fit", "Yes", "Ethernet between hosts"
    within = page.locator(".which")
    for answer in answers:
        summary = within.locator("> details > summary", has_text=answer).first
        summary.focus()
        page.keyboard.press("Enter")
        within = summary.locator("..")
    link = within.get_by_role("link", name="Chapter 17")
    link.click()
    page.wait_for_url("**/17_pipeline.html")
