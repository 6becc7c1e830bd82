"""When a chapter's outputs can be used again, and how they come into its edited prose.

An executed notebook carries the key of what its outputs depend on: the chapter's code, the
lab, the pins, the interpreter, the number of ranks. While the key is the same, the outputs are
those that an execution would give (but for the noise in what it measures), and only the prose
around them is taken from the manuscript.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from bookmaker.folders import Folders


def fingerprint(folders: Folders) -> str:
    """A hash of all that may change the outputs of every chapter: lab, recordings and pins."""
    shown = [folders.root / "ranklab", folders.root / "images" / "recorded"]
    paths = (path for folder in shown for path in sorted(folder.rglob("*")))
    files = [path for path in paths if path.is_file() and _matters(path)]
    pins = folders.root / "requirements.txt"
    digest = hashlib.sha256(sys.version.encode())
    for path in [*files, *([pins] if pins.exists() else [])]:
        digest.update(f"\n{path.relative_to(folders.root).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key(notebook: NotebookNode, lab: str, ranks: int | None) -> str:
    """The key of a chapter's outputs. `lab` is the fingerprint, `ranks` as for `execute`."""
    code = [[cell.source, sorted(cell.metadata.get("tags", []))] for cell in code_cells(notebook)]
    world = str(ranks) if ranks else os.environ.get("RANKLAB_RANKS", "")
    return hashlib.sha256(json.dumps([code, lab, world]).encode()).hexdigest()


def stored(path: Path, wanted: str) -> NotebookNode | None:
    """The executed notebook at `path` if its outputs have the key `wanted`, else None."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError):  # not there, or cut off in the middle of writing
        return None
    return notebook if notebook.metadata.get("ranklab", {}).get("key") == wanted else None


def merge(notebook: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """Put the outputs of `executed` into `notebook`, whose code is the same."""
    for cell, source in zip(code_cells(notebook), code_cells(executed), strict=True):
        cell.outputs = source.outputs
        cell.execution_count = source.execution_count
    notebook.metadata["ranklab"] = executed.metadata["ranklab"]
    notebook.metadata["language_info"] = executed.metadata["language_info"]
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _matters(path: Path) -> bool:
    return "__pycache__" not in path.parts and not path.name.startswith(".")
