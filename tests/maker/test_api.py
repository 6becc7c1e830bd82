"""The page of the lab's names."""

import re

import pytest
from built_site import site

import ranklab
import ranklab.gpu
from bookmaker.errors import BookError
from bookmaker.folders import HERE
from bookmaker.site import api

pytestmark = pytest.mark.timeout(900)
__all__ = ["site"]


def test_every_public_name_is_on_the_page(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    for module in (ranklab, ranklab.gpu):
        assert set(api.NAMES[module.__name__]) == set(module.__all__)
    listed = [
        title
        for names in api.NAMES.values()
        for name, methods in names.items()
        for title in [name, *(f"{name}.{method}" for method in methods)]
    ]
    assert re.findall(r"<h[34]>(.*?)<a", page) == listed


def test_a_page_without_a_place_for_them_is_refused():
    with pytest.raises(BookError, match="has no line `<!-- The names of ranklab"):
        api.listed("# Names\n", HERE)


def test_parameters_become_a_list_and_examples_code():
    def f(a, b=1):
        """Do something with `a_b` and <c>.

            f(1)

        a: the first,
            on two lines.
        b: the second.

        Raises ValueError.
        """

    assert api._entry("###", "f", f) == (
        "### f\n\n```python\nf(a, b=1)\n```\n\n"
        "Do something with `a_b` and \\<c\\>.\n\n"
        "```python\nf(1)\n```\n\n"
        "- a: the first, on two lines.\n- b: the second.\n\n"
        "Raises ValueError."
    )
