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
from tiers import few

from bookmaker.site.execute import execute

ROOT = Path(__file__).parents[2]
FOLLOWS = re.compile(r"^\w+ = Ranks\((?!.*\bdevice=)", re.MULTILINE)
CHAPTERS = [
    path for path in sorted((ROOT / "book").glob("*.md")) if FOLLOWS.search(path.read_text())
]
BY_DAY = "10_sync_sgd"
# Dropout's masks are others on a GPU, and so are these.
DRAWN = {"25_resume": "final_without_|chance"}


def test_chapters_follow_the_hardware():
    expected = ["10", "11", "12", "16", "17", "18", "25"]
    assert [path.name[:2] for path in CHAPTERS if path.name[0] in "12"] == expected


@pytest.mark.parametrize(
    "chapter", few(CHAPTERS, lambda path: path.stem == BY_DAY), ids=lambda p: p.stem
)
def test_a_chapter_on_a_pretended_gpu(chapter, tmp_path):
    script = ROOT / "scripts" / f"{chapter.stem}.py"
    said = results_in(run_script(script, "forked", 2, tmp_path, limit=250, pretended=True))
    on_card = [said.pop(f"tensors_on_card_{rank}") for rank in (0, 1)]
    assert all(int(n) > 20 for n in on_card)
    page = fixed(results_of(nbformat.read(execute(chapter, ranks=2), as_version=4)))
    drawn = re.compile(DRAWN.get(chapter.stem, "$"))
    assert {
        name: value for name, value in said.items() if name in page and not drawn.match(name)
    } == {name: value for name, value in page.items() if not drawn.match(name)}
