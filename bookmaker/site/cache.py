"""When a chapter's outputs can be used again, and how they come into its edited prose.

An executed notebook carries the key of what its outputs depend on: the chapter's code, what it
uses of the lab, the pins, the interpreter, the number of ranks. While the key is the same, the
outputs are those that an execution would give (but for the noise in what it measures), and only
the prose around them is taken from the manuscript.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from bookmaker.folders import Folders

# What a text imports of it: `ranklab.taught.a import f`, `ranklab.taught import a, b`.
_TAUGHT = re.compile(r"\branklab\.taught\b([\w ,.]*(?:\([^)]*\))?)")


def key(notebook: NotebookNode, folders: Folders, ranks: int | None) -> str:
    """The key of a chapter's outputs. `ranks` as for `execute`."""
    cells = code_cells(notebook)
    code = [[cell.source, sorted(cell.metadata.get("tags", []))] for cell in cells]
    world = str(ranks) if ranks else os.environ.get("RANKLAB_RANKS", "")
    digest = hashlib.sha256(json.dumps([code, world, sys.version]).encode())
    for name, content in _used("\n".join(cell.source for cell in cells), folders):
        digest.update(f"\n{name}\n".encode() + content)
    return digest.hexdigest()


def _used(code: str, folders: Folders) -> Iterator[tuple[str, bytes]]:
    """What may change the outputs of a chapter with this code: (name, content) of files.

    That is all of the lab but the taught modules that the chapter does not reach, and the checks:
    on a page nothing is attempted, so that of a check it matters only whether it is there.
    """
    lab, taught, checks = (folders.root / f"ranklab{part}" for part in ("", "/taught", "/checks"))
    core = [path for path in _files(lab) if not {taught, checks} & set(path.parents)]
    texts = [code, *(path.read_text("utf-8") for path in core if path.suffix == ".py")]
    recordings = _files(folders.root / "images" / "recorded")
    pins = [path for path in [folders.root / "requirements.txt"] if path.exists()]
    read = [path for path in recordings if path.stem in code]
    for path in [*core, *_reached(texts, taught), *read, *pins]:
        yield path.relative_to(folders.root).as_posix(), path.read_bytes()
    yield from ((path.stem, b"") for path in _files(checks) if f'"{path.stem}"' in code)


def _reached(texts: list[str], taught: Path) -> list[Path]:
    """The taught modules that texts import, and those import in turn."""
    modules = {path.stem: path for path in taught.glob("*.py")}
    found: list[Path] = []
    while texts:
        named = " ".join(_TAUGHT.findall(texts.pop()))
        for name in sorted(modules.keys() & set(re.findall(r"\w+", named))):
            found.append(modules.pop(name))
            texts.append(found[-1].read_text("utf-8"))
    return sorted(found)


def _files(folder: Path) -> list[Path]:
    """The files below a folder that somebody wrote."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [p for p in paths if "__pycache__" not in p.parts and not p.name.startswith(".")]


def stored(path: Path) -> NotebookNode | None:
    """The executed notebook at `path`, if one is there."""
    try:
        return nbformat.v4.reads(path.read_text("utf-8"))  # we wrote it: it need not be validated
    except (OSError, ValueError):  # not there, or cut off in the middle of writing
        return None


def merge(notebook: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """Put the outputs of `executed` into `notebook`, whose code is the same."""
    for cell, source in zip(code_cells(notebook), code_cells(executed), strict=True):
        cell.outputs = source.outputs
        cell.execution_count = source.execution_count
    notebook.metadata["ranklab"] |= {k: executed.metadata["ranklab"][k] for k in ("key", "seconds")}
    notebook.metadata["language_info"] = executed.metadata["language_info"]
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
