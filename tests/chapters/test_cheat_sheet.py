"""What the cheat sheet says, against what the chapters teach."""

import re
from pathlib import Path

import pytest

from ranklab.taught import layers, pipeline

TEXT = (Path(__file__).parents[2] / "book" / "cheat_sheet.md").read_text(encoding="utf-8")


def test_its_calls_are_there():
    import torch.distributed as dist

    for name in re.findall(r"`dist\.(\w+)", TEXT):
        assert hasattr(dist, name), name


def bubble(row, p, m, v=1):
    """What the formula in this row of the sheet gives."""
    (formula,) = re.findall(rf"^\| {row}.*bubble (\(.*?\)/\(.*?\))", TEXT, re.MULTILINE)
    formula = formula.replace("\N{MINUS SIGN}", "-").replace("v m", "v * m")
    return eval(formula, {"p": p, "m": m, "v": v})


@pytest.mark.parametrize("p, m", [(4, 8), (8, 8), (2, 6)])
def test_its_bubbles(p, m):
    for make in (pipeline.gpipe, pipeline.one_f_one_b):
        idle = pipeline.idle_share(pipeline.simulate(make(p, m)))
        assert idle == pytest.approx(bubble("pipeline", p, m))
    two = pipeline.simulate(pipeline.interleaved(p, m, 2), 0.5, 0.5, 0.5)
    assert pipeline.idle_share(two) == pytest.approx(bubble("interleaved", p, m, 2))
    assert "1F1B holds up to p, GPipe m |" in TEXT
    assert pipeline.held(pipeline.one_f_one_b(p, m)[0]) == min(p, m)
    assert pipeline.held(pipeline.gpipe(p, m)[0]) == m


@pytest.mark.parametrize("precision, row", [("float32", "float32"), ("mixed", "mixed: bfloat16")])
def test_its_bytes(precision, row):
    held = layers.training_bytes(1, 0, precision)
    cells = next(line for line in TEXT.splitlines() if line.startswith(f"| {row}")).split("|")
    assert [int(cell) for cell in cells[2:6]] == [
        *(held[what] for what in ("weights", "gradients", "optimizer")),
        sum(held.values()),
    ]
