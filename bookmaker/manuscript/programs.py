"""The programs that a chapter writes into files: ``%%writefile name.py``, then ``#@script``."""

import re

from nbformat import NotebookNode

_BEGINS = re.compile(r"%%writefile +([a-z]\w*\.py) *\n#@script\b")


def begun_by(source: str) -> str:
    """The file of the program that a cell of this text begins; "" if it begins none."""
    begins = _BEGINS.match(source)
    return begins[1] if begins else ""


def paths(nb: NotebookNode, chapter: str) -> list[str]:
    """Where the scripts of the programs in a chapter are, below the repository's root."""
    files = (begun_by(cell.source) for cell in nb.cells if cell.cell_type == "code")
    return [path_of(chapter, file) for file in files if file]


def path_of(chapter: str, file: str) -> str:
    """Where the script of the program `file` is."""
    return f"scripts/{chapter[:2]}_{file}"
