"""Terms of the glossary explain themselves, by mouse and by keyboard."""

import pytest
from browsing import browser, visits
from built_site import site

pytestmark = pytest.mark.timeout(900)
__all__ = ["browser", "site", "visits"]


def test_a_term_is_explained_under_the_mouse_and_on_focus(visits, site):
    page = visits.open((site / "08_all_reduce.html").as_uri())
    term = page.locator('article a[href^="glossary.html#"]:visible').first
    tip = page.locator("#definition")
    assert not term.get_attribute("aria-describedby") and not tip.is_visible()
    term.hover()
    tip.wait_for()
    assert len(tip.inner_text()) > 40
    box = tip.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 5, steps=5)  # into the box, which stays
    page.wait_for_timeout(400)
    assert tip.is_visible()
    page.mouse.move(0, 0)
    tip.wait_for(state="hidden")
    term.focus()
    tip.wait_for()
    described = page.locator('[aria-describedby="definition"]')
    assert described.count() == 1 and described.evaluate("e => e === document.activeElement")
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")


def test_a_definition_fits_a_phone(visits, site):
    page = visits.open((site / "08_all_reduce.html").as_uri())
    page.set_viewport_size({"width": 390, "height": 800})
    for term in page.locator('article a[href^="glossary.html#"]:visible').all()[:6]:
        term.focus()
        box = page.locator("#definition").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
