"""Figures to play with, in a browser: what a reader chooses is what Python has computed."""

import functools
import json

import pytest
from browsing import browser, visits
from built_site import CHAPTERS, site
from test_page_form import COLOR_RULES, EVERY_RULE, serious_violations
from tiers import few

from ranklab.playable import bar_chart, line_chart, playable
from ranklab.taught import all_reduce, feeding, layers, matmul, own_ddp, pipeline

pytestmark = pytest.mark.timeout(900)
__all__ = ["browser", "site", "visits"]

FIGURES = [
    ("01_matmul", 0),
    ("04_feeding", 0),
    ("08_all_reduce", 0),
    ("08_all_reduce", 1),
    ("12_own_ddp", 0),
    ("16_layers", 0),
    ("17_pipeline", 0),
    ("18_tensor", 0),
]
BY_DAY = {"08_all_reduce", "17_pipeline"}


def opened(visits, site, chapter, number):
    """The page and the figure, once it can be played with."""
    page = visits.open((site / f"{chapter}.html").as_uri())
    figure = page.locator("div.playable").nth(number)
    page.wait_for_function("[...document.querySelectorAll('div.playable')].every(f => f.view)")
    return page, figure


def spec_of(site, chapter, number):
    """The figure as the page holds it, before any script has run."""
    text = (site / f"{chapter}.html").read_text(encoding="utf-8")
    script = text.split('<div class="playable"><script type="application/json">')[number + 1]
    return json.loads(script.partition("</script>")[0].replace("<\\/", "</"))


def controls(spec):
    """(name, options) of each control, in their order."""
    return [(one["name"], spec["usermeta"]["controls"][one["name"]]) for one in spec["params"]]


def rows_of(spec, **chosen):
    """The rows of its table for these choices; the first one says what they mean."""
    at = 0
    for key, options in controls(spec):
        at = at * len(options) + options.index(chosen.get(key, options[0]))
    return [row for row in spec["data"]["values"] if row["at"] == at]


def test_there_are_eight_in_seven_chapters(site):
    found = [
        (name, k)
        for name in CHAPTERS
        for k in range((site / f"{name}.html").read_text().count('<div class="playable">'))
    ]
    assert found == FIGURES


@pytest.mark.parametrize("chapter, number", few(FIGURES, lambda name, _: name in BY_DAY))
def test_a_figure_is_played_with_by_keyboard_alone(visits, site, chapter, number):
    page, figure = opened(visits, site, chapter, number)
    spec, chosen = spec_of(site, chapter, number), {}
    drawn = figure.locator("svg").evaluate("svg => svg.outerHTML")
    for key, options in controls(spec):
        label = figure.locator("label", has_text=key.replace("_", " ")).first
        control = label.locator("select, input")
        control.focus()
        page.keyboard.press(
            "ArrowRight" if control.evaluate("c => c.type") == "range" else "ArrowDown"
        )
        chosen[key] = options[1]
        assert figure.evaluate("(f, key) => f.view.signal(key)", key) == options[1]
    rows = rows_of(spec, **chosen)
    page.wait_for_function(
        "([f, says]) => f.querySelector('.spoken').textContent === says",
        arg=[figure.element_handle(), rows[0]["says"]],
    )
    now = figure.locator("svg")
    assert now.evaluate("svg => svg.outerHTML") != drawn
    for line in rows[0]["says"].split("\n"):
        assert line in now.text_content()


@pytest.mark.parametrize("chapter, number", few(FIGURES, lambda name, _: name in BY_DAY))
def test_a_figure_fits_a_phone_in_both_themes(visits, site, chapter, number):
    page, figure = opened(visits, site, chapter, number)
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    page.wait_for_function(
        """f => f.querySelector('svg').getBoundingClientRect().right <= 391 &&
            [...f.querySelectorAll('text')].every(t => t.getBoundingClientRect().right <= 391)""",
        arg=figure.element_handle(),
    )
    for theme, (kind, rules) in {
        "light": ("tag", EVERY_RULE),
        "dark": ("rule", COLOR_RULES),
    }.items():
        page.evaluate("t => { document.documentElement.dataset.theme = t }", theme)
        serious = serious_violations(page, ".playable", type=kind, values=rules)
        assert not serious, "\n\n".join(serious)


@pytest.mark.parametrize("chapter, number", FIGURES)
def test_nothing_lies_outside_of_the_axes(site, chapter, number):
    spec = spec_of(site, chapter, number)
    domain = spec["layer"][0]["encoding"]["y"].get("scale", {}).get("domain")
    if domain:
        assert all(domain[0] <= r["y"] <= domain[1] for r in spec["data"]["values"] if "y" in r)


def test_where_vega_does_not_come_the_first_view_stays(visits, site):
    page = visits.context.new_page()
    page.route(
        "**/vega.js", lambda route: route.fulfill(body="window.vegaEmbed = async () => { throw 1 }")
    )
    page.goto((site / "17_pipeline.html").as_uri())
    page.wait_for_function("typeof window.vegaEmbed === 'function'")
    page.wait_for_timeout(500)
    first = page.locator("div.playable img")
    assert first.is_visible() and first.evaluate("i => i.naturalWidth") > 100


@pytest.mark.parametrize("name", sorted({name for name, _ in FIGURES}))
def test_a_page_with_figures_stays_small(site, name):
    """Beside what all pages share: Vega is one of these, and comes from the site."""
    assert len((site / f"{name}.html").read_bytes()) < 2 << 20


def test_without_a_script_there_is_the_first_view(site):
    text = (site / "17_pipeline.html").read_text(encoding="utf-8")
    after = text.split('<div class="playable">')[1].split("</script>", 1)[1]
    assert after.lstrip().startswith('<img alt="A timetable with a row for each stage')


# The numbers are those of the taught functions


def test_01_the_product_stands_under_the_roof(site):
    spec = spec_of(site, "01_matmul", 0)
    product = rows_of(spec, machine="H100, bfloat16", rows=256)[-1]
    assert product["x"] == pytest.approx(256 / 3, rel=1e-4)
    assert product["y"] == pytest.approx(matmul.roofline(256 / 3, 989e3, 3350), rel=1e-4)


def test_04_the_knee(site):
    spec = spec_of(site, "04_feeding", 0)
    rows = rows_of(spec, ms_to_load=40, ms_to_train=10, cores=1)
    for row in rows:
        core = 0.04 if row["which"] == "input computes" else 0.0
        told = feeding.predicted(row["x"], 0.04, 0.01, core, 1)
        assert row["y"] == pytest.approx(told, rel=1e-4)


def test_08_the_ring_and_the_links(site):
    ring = spec_of(site, "08_all_reduce", 0)
    n = len({row["row"] for row in rows_of(ring, step=0)})
    complete = [
        sum(row["text"].count("+") == n - 1 for row in rows_of(ring, step=k))
        for k in range(2 * n - 1)
    ]
    assert complete == [0] * (n - 1) + [n * k for k in range(1, n + 1)]
    links = spec_of(site, "08_all_reduce", 1)
    ways = all_reduce.cost_models(64, lambda s, m: 1e-5 + s / 50e9, lambda s: 0.0)
    chosen = {"number_of_ranks": 64, "link": "InfiniBand NDR, 50 GB/s", "microseconds_a_hop": 10}
    for row in rows_of(links, **chosen):
        assert row["y"] == pytest.approx(1e3 * ways[row["which"]](row["x"]), rel=1e-4)


def test_12_buckets(site):
    spec = spec_of(site, "12_own_ddp", 0)
    rows = rows_of(spec, gradient_MB=100, backward_ms=10, microseconds_a_message=10)
    for row in (row for row in rows if row["which"] == "a step"):
        k = row["x"]
        told = own_ddp.overlapped_seconds([100e6 / k] * k, 5e-3, 10e-3, 1e-5, 12.5e9 / 2)
        assert row["y"] == pytest.approx(told / 15e-3, rel=1e-4)


def test_16_bytes(site):
    spec = spec_of(site, "16_layers", 0)
    rows = rows_of(spec, model="1.3B", precision="float32", tokens=2048, owners=8)
    weights = 12 * 24 * 2048**2 + 50_257 * 2048
    held = layers.training_bytes(weights, 17 * 2048 * 2048 * 24, "float32", 8)
    assert [row["y"] for row in rows] == pytest.approx([n / 1e9 for n in held.values()], rel=1e-4)


def test_17_the_pipeline(site):
    spec = spec_of(site, "17_pipeline", 0)
    rows = rows_of(spec, stages=8, micro_batches_a_stage=1, schedule="GPipe", backward=1)
    times = pipeline.simulate(pipeline.gpipe(8, 8), 1, 0.5, 0.5)
    assert f"idle for {pipeline.idle_share(times):.1%}" in rows[0]["says"]
    assert [(row["x"], row["x2"]) for row in rows] == [
        pytest.approx((start, end), rel=1e-4) for row in times for _, start, end in row
    ]


def test_18_the_width(site):
    spec = spec_of(site, "18_tensor", 0)
    row = rows_of(spec, number_of_ranks=16, percent_of_peak=50)[-3]
    assert row["which"] == "NVLink"
    assert row["y"] == pytest.approx(15 * 2 * 0.5 * 989e12 / (9 * 32_768 * 450e9), rel=1e-4)


# What cannot be drawn is refused


def test_what_cannot_be_drawn_is_refused():
    chart = line_chart("x", "y")
    with pytest.raises(ValueError, match="'a' has no values"):
        playable(lambda a: ("", [{"x": a, "y": 1}]), chart, "n", "alt", a=[])
    with pytest.raises(ValueError, match="no rows for"):
        playable(lambda a: ("", [{"x": 1, "y": 1}] * (a < 2)), chart, "n", "alt", a=[1, 2])
    with pytest.raises(ValueError, match="cannot be called 'width': Vega uses"):
        playable(lambda width: ("", [{"x": 1, "y": 1}]), chart, "n", "alt", width=[1])
    with pytest.raises(ValueError, match="too many for a page"):
        playable(lambda a: ("", [{"x": 1, "y": 1}] * 5001), chart, "n", "alt", a=[1, 2, 3, 4])


def test_a_chart_may_be_used_again_and_an_option_say_anything():
    chart = line_chart("x", "y")
    one, two = (
        playable(
            lambda a, kinds=kinds: ("", [{"x": 1, "y": 1, "which": kind} for kind in kinds]),
            chart,
            "n",
            "alt",
            a=["it's True", "False"],
        ).spec
        for kinds in ("ab", "c")
    )
    scale = "layer", 0, "encoding", "color", "scale", "domain"
    assert [functools.reduce(lambda s, k: s[k], scale, s) for s in (one, two)] == [
        ["a", "b"],
        ["c"],
    ]
    assert """indexof(["it's True", "False"], a)""" in one["transform"][0]["filter"]


def test_a_script_gets_the_first_view_as_svg():
    figure = playable(
        lambda a: (f"a is {a}", [{"x": "b", "y": a, "which": "c", "part": 0}]),
        bar_chart(None, "GB"),
        "bars",
        'a "bar"',
        a=[3, 4],
    )
    svg = figure._repr_svg_()
    assert svg.startswith('<svg role="img" aria-label="a &quot;bar&quot;"') and "a is 3" in svg
