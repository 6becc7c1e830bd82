"""A chapter that follows the hardware says the same on a GPU, as far as one can be pretended here.

What is found in this way: a tensor on the wrong device, and results that depend on where random
numbers are drawn. pretend.py says what is not.
"""

import re
from pathlib import Path

import nbformat
import pytest
from launch import results_in, run_script
from test_chapters import fixed, results_of

from bookmaker.site.execute import execute

ROOT = Path(__file__).parents[2]
BOOK = sorted((ROOT / "book").glob("[0-9][0-9]_*.md"))
NAMES_NO_DEVICE = re.compile(r"^\w+ = Ranks\((?!.*\bdevice=)", re.MULTILINE)
FOLLOW = {f"{path.stem[:2]}": path for path in BOOK if NAMES_NO_DEVICE.search(path.read_text())}
TESTED = [FOLLOW[number] for number in ("10", "11", "12", "16", "17", "18", "25")]
# A batch that is work for a card is too much for what pretends to be one.
FOR_A_CARD = "else 2048  # windows: work for a card", "else 16"
# Dropout's masks are others on a GPU, and so are these.
DRAWN = {"25_resume": "final_without_|chance$"}


def test_no_other_chapter_follows_the_hardware():
    """03 trains without ranks that talk, and 01 has none that compute on a GPU."""
    assert set(FOLLOW.values()) >= set(TESTED)


@pytest.mark.everything
@pytest.mark.parametrize("chapter", TESTED, ids=lambda path: path.stem)
def test_a_chapter_on_a_pretended_gpu(chapter, tmp_path):
    script = tmp_path / f"{chapter.stem}.py"
    script.write_text((ROOT / "scripts" / script.name).read_text().replace(*FOR_A_CARD))
    said = results_in(run_script(script, "forked", 2, tmp_path, pretended=True))
    assert all(int(said[f"tensors_on_card_{rank}"]) > 20 for rank in (0, 1))
    page = fixed(results_of(nbformat.read(execute(chapter, ranks=2), as_version=4)))
    drawn = re.compile(DRAWN.get(chapter.stem, "$"))
    expected = {name: value for name, value in page.items() if not drawn.match(name)}
    assert {name: said.get(name) for name in expected} == expected
