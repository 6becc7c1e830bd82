"""The programs that a chapter writes into files: ``%%writefile name.py``, then ``#@script``."""

import re
from collections.abc import Iterable

from nbformat import NotebookNode

_PART = re.compile(
    r"(?:[ \t]*\r?\n)*%%writefile[ \t]+(?:(-a|--append)[ \t]+)?(\S.*?)[ \t]*\r?\n#@script\b"
)


def part_of(source: str) -> tuple[str, bool] | None:
    """(file, as it is named there; whether it goes on with it) of a program's cell, else None."""
    found = _PART.match(source)
    return (found[2], bool(found[1])) if found else None


def begun(sources: Iterable[str]) -> list[str]:
    """The files of the programs that cells of these texts begin."""
    parts = filter(None, map(part_of, sources))
    return [file for file, goes_on in parts if not goes_on]


def paths(nb: NotebookNode, chapter: str) -> list[str]:
    """Where the scripts of the programs in a chapter are, below the repository's root."""
    sources = (cell.source for cell in nb.cells if cell.cell_type == "code")
    return [path_of(chapter, file) for file in begun(sources)]


def path_of(chapter: str, file: str) -> str:
    """Where the script of the program `file` is."""
    return f"scripts/{chapter[:2]}_{file}"
