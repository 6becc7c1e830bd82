"""Small notebooks for the tests of the script exporter, and what becomes of them."""

import re
from textwrap import dedent

from nbformat import v4

from bookmaker.script import to_script
from bookmaker.script.parts import PARTS, kept

# Every notebook with ranks begins with these two cells, so the test's own begin at 3.
IMPORTS = "from ranklab import Ranks, result"
RANKS = 'ranks = Ranks(4, device="cpu")'
MARK = "The test's own cells"


def notebook(*cells):
    """A notebook of code cells; a cell is its text, or (text, tag, ...)."""
    nb = v4.new_notebook()
    for cell in cells:
        text, *tags = (cell,) if isinstance(cell, str) else cell
        nb.cells.append(v4.new_code_cell(text, metadata={"tags": tags} if tags else {}))
    return nb


def whole(*cells, **metadata):
    """The script of a notebook that has no ranks unless a cell makes them."""
    nb = notebook(*cells)
    nb.metadata.update(metadata)
    return to_script(nb, "x")


def with_ranks(*cells):
    """The script of a notebook that has ranks."""
    nb = notebook(IMPORTS, RANKS, *cells)
    nb.cells.insert(2, v4.new_markdown_cell(f"### {MARK}"))
    return to_script(nb, "x")


def body(*cells):
    """What the script has for these cells, behind its preamble and before its last line."""
    text = with_ranks(*cells)
    _, _, text = text.partition(f"# --- {MARK} ")
    for part in PARTS:  # stands where it is first needed
        own = re.escape(kept(part, {"ranks"}))
        text = re.sub(rf"\n{{2,3}}{own}\n{{2,3}}", "\n\n", text)
    return text.partition("\n")[2].strip("\n").removesuffix("leave_group()").strip("\n")


def same(got, wanted):
    """Assert that a script's text is what is wanted, which may be indented."""
    assert got == dedent(wanted).strip("\n").rstrip()
