"""Results compared, and shown: what needs no ranks."""

import re

import pytest
import torch

from ranklab.exercises.compare import difference
from ranklab.exercises.report import Report
from ranklab.exercises.shown import Raised, short


@pytest.mark.parametrize(
    "expected, got, says",
    [
        (1, 1.0, None),
        (1, torch.tensor(1), None),
        (1, True, "It should return a number (int), and returned True or False."),
        (True, 1, "It should return True or False, and returned a number (int)."),
        (0.1, 0.1 + 1e-9, None),
        (0.1, 0.2, ""),
        (float("nan"), float("nan"), None),
        ("a", "b", ""),
        ("a", 1, "It should return a string, and returned a number (int)."),
        (Raised("ValueError"), Raised("ValueError"), None),
        (Raised("ValueError"), Raised("KeyError"), ""),
        (Raised("ValueError"), None, "It should raise ValueError, and returned None."),
        ([1], Raised("ValueError"), "It should return a list of 1, and raised ValueError."),
        ([1, 2], (1, 2), None),
        ([1, 2], [1], "It should return 2 values, and returned 1."),
        (
            [1, 2],
            torch.tensor([1, 2]),
            "should return a list of 2, and returned a tensor (int64[2])",
        ),
        ([1, [2, 3]], [1, [2, 4]], "At [1][1]: 3 expected, got 4."),
        ([{"a": "b"}], [{"a": 1}], "At [0]['a']: it should be a string, and is a number (int)."),
        ([[1, 2]], [None], "At [0]: it should be a list of 2, and is None."),
        ([[1, 2]], [[1]], "At [0]: it should have 2 values, and has 1."),
        ({"a": 1}, {"b": 1}, "The key 'a' is missing in the dict."),
        ({"a": 1}, {"a": 1, "b": 2}, "There is a key 'b' too many in the dict."),
        (
            torch.ones(2),
            [1.0, 1.0],
            "should return a tensor (float32[2]), and returned a list of 2",
        ),
        (torch.ones(2), torch.ones(2) + 1e-7, None),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "first at [1]: 2 expected, got 3."),
        (torch.ones(3, 2), torch.ones(2, 3), "The shape should be [3, 2], and is [2, 3]."),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), None),
        (torch.zeros(200, 200), torch.eye(200), "differ at 200 of 40,000 places, first at [0, 0]"),
        (None, 3, "It should return None, and returned a number (int)."),
        (None, None, None),
    ],
)
def test_differences(expected, got, says):
    found = difference(expected, got)
    assert (found is None) == (says is None)
    if says is not None:
        assert says in found.told


def test_the_tolerance_can_be_chosen():
    assert difference(torch.ones(1), torch.full((1,), 1.1), (0.2, 0)) is None
    assert difference(1.0, 1.1, (0.2, 0)) is None
    assert difference(1.0, 1.1, (0.01, 0)).of == "value"


def test_values_in_short_form():
    assert short(torch.arange(3)) == "[0, 1, 2] (int64[3])"
    assert short(torch.arange(10.0)) == "[0, 1, 2, 3, ..., 9] (float32[10])"
    assert short((1,)) == "(1,)"
    assert short([0.1 + 0.2, difference]) == "[0.3, difference]"
    assert len(short("x" * 1000)) < 300


def test_a_report_in_a_page_is_text_beside_a_color():
    report = Report("spread", "wrong", "Wrong <here>.\n\nrank 0 waits\n    line 3: x < y")
    page = report._repr_html_()
    assert "Wrong &lt;here&gt;." in page
    assert re.search(r"rank 0 waits<br><code[^>]*>line 3: x &lt; y</code>", page)
    assert " color:" not in page  # the page's own is legible in both of its themes
