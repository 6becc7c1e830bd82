"""A chapter's manuscript, a MyST notebook in Markdown: read it, write it."""

import copy
import functools
import hashlib
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from bookmaker.errors import FormError
from bookmaker.folders import HERE

# What jupytext wants at the head of every manuscript, as JupyterLab writes it.
_HEAD = {
    "jupytext": {
        "text_representation": {"extension": ".md", "format_name": "myst", "format_version": 0.13},
    },
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
}
_HEADER_KEYS = {*_HEAD, "chapter"}


def read(path: str | Path) -> NotebookNode:
    """The manuscript at ``path`` as a notebook of format 4.5, without outputs.

    A cell's id depends on its own text only, so that editing one cell leaves the ids of the
    others alone. ``nb.metadata.ranklab.manuscript`` names the file, as in "book/06_messages.md".
    """
    path = Path(path)
    # Those who build a site ask for the same chapter many times, and each may change what it gets.
    return copy.deepcopy(_parsed(text_at(path), "/".join(path.resolve().parts[-2:])))


def text_at(path: Path) -> str:
    """The text of the manuscript at ``path``."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise FormError(
            f"{path.stem}: line {line} of the manuscript has a byte that is not UTF-8 "
            f"(0x{error.object[error.start]:02x}). Save the file as UTF-8."
        ) from error


@functools.lru_cache(maxsize=64)
def _parsed(text: str, manuscript: str) -> NotebookNode:
    return parse(text, manuscript)


def parse(text: str, manuscript: str) -> NotebookNode:
    """The notebook that the manuscript's ``text`` describes; see ``read``."""
    import jupytext  # here, and in `write`: who has a notebook exports a script without it

    name = Path(manuscript).stem
    try:
        nb = jupytext.reads(text, fmt="md:myst")
    except Exception as error:  # jupytext and YAML raise errors of many kinds
        raise FormError(f"{name}: this is not a MyST notebook: {error}") from error
    extra = sorted(set(nb.metadata) - _HEADER_KEYS)
    if extra:
        raise FormError(
            f"{name}: the header has {', '.join(map(repr, extra))}, which no form would keep. "
            "Leave only `chapter`, `jupytext` and `kernelspec` there."
        )
    cells = [_tidy(cell) for cell in nb.cells]
    for cell, cell_id in zip(cells, cell_ids(cells), strict=True):
        cell.id = cell_id
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "ranklab": {"manuscript": manuscript},
    }
    if "chapter" in nb.metadata:
        metadata["chapter"] = nb.metadata.chapter
    return nbformat.v4.new_notebook(cells=cells, metadata=nbformat.from_dict(metadata))


def write(nb: NotebookNode) -> str:
    """The manuscript's text for what ``read`` gave: the same for all that mean the same.

    It is what jupytext writes, so that saving a manuscript in JupyterLab changes nothing else.
    """
    import jupytext
    from jupytext.config import load_jupytext_configuration_file

    head = {key: nb.metadata[key] for key in ("chapter",) if key in nb.metadata} | _HEAD
    lexer = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    form = nbformat.v4.new_notebook(cells=nb.cells, metadata=nbformat.from_dict(head | lexer))
    config = load_jupytext_configuration_file(str(HERE.root / "pyproject.toml"))
    return jupytext.writes(form, fmt="md:myst", config=config)


def cell_ids(cells: list[NotebookNode]) -> list[str]:
    """An id for each cell, made from its own text; equal cells are told apart by counting."""
    seen: dict[str, int] = {}
    ids = []
    for cell in cells:
        key = f"{cell.cell_type}\n{cell.source}".encode()
        digest = hashlib.sha256(key).hexdigest()[:12]
        count = seen[digest] = seen.get(digest, 0) + 1
        ids.append(digest if count == 1 else f"{digest}-{count}")
    return ids


def name_of(nb: NotebookNode) -> str:
    """The chapter's name ("06_messages"), or "notebook" for one that is not ours."""
    manuscript = nb.metadata.get("ranklab", {}).get("manuscript")
    return Path(manuscript).stem if manuscript else "notebook"


def title_of(nb: NotebookNode) -> str:
    """The text of the first heading, or the chapter's name if it has none."""
    for cell in nb.cells:
        if cell.cell_type != "markdown" or cell.metadata.get("ranklab", {}).get("generated"):
            continue
        for line in cell.source.splitlines():
            if line.startswith("# "):
                return line[2:].strip()
    return name_of(nb)


def origin(nb: NotebookNode) -> str:
    """The sentence that every generated file begins with."""
    return (
        f"Generated from {nb.metadata.ranklab.manuscript} by `make forms`: "
        "edit the manuscript, not this file."
    )


def where(nb: NotebookNode, index: int) -> str:
    """Where ``nb.cells[index]`` is, as a message's beginning: "06_messages, cell 7 (`x = 1`)".

    Code cells are counted from 1, as a reader counts them; a text is named by the cell before.
    """
    cell = nb.cells[index]
    count = sum(c.cell_type == "code" for c in nb.cells[: index + 1])
    first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
    first = first if len(first) <= 60 else first[:57] + "..."
    place = f"cell {count}" if cell.cell_type == "code" else f"the text after cell {count}"
    return f"{name_of(nb)}, {place} (`{first}`)"


def _tidy(cell: NotebookNode) -> NotebookNode:
    cell.source = _without_outer_blank_lines(cell.source)
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
    return cell


def _without_outer_blank_lines(text: str) -> str:
    lines = text.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)
