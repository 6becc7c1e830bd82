"""What a chapter's text may quote, and the drawings that it shows."""

import pytest
import torch

from ranklab import result
from ranklab.plots import drawing, pale


@pytest.fixture
def shown(monkeypatch):
    """The metadata of everything that is displayed."""
    records = []
    monkeypatch.setattr(
        "ranklab.results.display", lambda data, metadata, raw: records.append(metadata["ranklab"])
    )
    return records


def test_a_result_is_printed_and_recorded(shown, capsys):
    result("bytes_sent", torch.tensor(12))
    result("pairs", (1, torch.tensor(0.5)), varies=True)
    assert capsys.readouterr().out == "bytes_sent = 12\npairs = [1, 0.5]\n"
    assert shown == [
        {"name": "bytes_sent", "value": 12, "varies": False},
        {"name": "pairs", "value": [1, 0.5], "varies": True},
    ]


def test_floats_are_shown_with_four_digits_and_recorded_with_all(shown, capsys):
    result("third", 1 / 3)
    result("many", [2 / 3, "a", 123456.7, 3e-9 / 7, 2])
    assert capsys.readouterr().out == (
        "third = 0.3333\nmany = [0.6667, 'a', 123457, 4.286e-10, 2]\n"
    )
    assert [record["value"] for record in shown] == [
        1 / 3,
        [2 / 3, "a", 123456.7, 3e-9 / 7, 2],
    ]


def test_what_a_text_cannot_quote(shown):
    with pytest.raises(ValueError, match="'bytes sent' cannot be quoted"):
        result("bytes sent", 1)
    with pytest.raises(TypeError, match="x is a Tensor; give a number"):
        result("x", torch.zeros(2))
    assert shown == []


def test_a_drawing_says_what_is_to_be_seen():
    picture = drawing("digraph { a -> b }", name="edge", alt='an arrow from "a" to "b"')
    assert picture._repr_svg_().startswith(
        '<svg role="img" aria-label="an arrow from &quot;a&quot;'
    )
    assert ">a</text>" in picture.svg and picture.name == "edge"


def test_a_graph_that_cannot_be_read():
    with pytest.raises(ValueError, match="Graphviz could not draw 'broken'"):
        drawing("digraph { a -> ", name="broken", alt="nothing")


def test_a_pale_color_is_mixed_with_white():
    assert pale("black", 0.25) == (0.75, 0.75, 0.75)
    assert pale("black", 0) == (1, 1, 1)
