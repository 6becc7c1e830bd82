"""A chapter's manuscript, a MyST notebook in Markdown: read it, write it."""

import hashlib
from pathlib import Path

import jupytext
import nbformat
import yaml
from jupytext.cell_to_text import three_backticks_or_more
from nbformat import NotebookNode

from bookmaker.errors import FormError

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""
_HEADER_KEYS = {"jupytext", "kernelspec"}


def read(path: str | Path) -> NotebookNode:
    """The manuscript at ``path`` as a notebook of format 4.5, without outputs.

    A cell's id depends on its own text only, so that editing one cell leaves the ids of the
    others alone. ``nb.metadata.ranklab.manuscript`` names the file, as in "book/06_messages.md".
    """
    path = Path(path)
    return parse(text_at(path), "/".join(path.resolve().parts[-2:]))


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


def parse(text: str, manuscript: str) -> NotebookNode:
    """The notebook that the manuscript's ``text`` describes; see ``read``."""
    name = Path(manuscript).stem
    try:
        nb = jupytext.reads(text, fmt="md:myst")
    except Exception as error:  # jupytext and YAML raise errors of many kinds
        raise FormError(f"{name}: this is not a MyST notebook: {error}") from error
    extra = sorted(set(nb.metadata) - _HEADER_KEYS)
    if extra:
        raise FormError(
            f"{name}: the header has {', '.join(map(repr, extra))}, which no form would keep. "
            "Leave only `jupytext` and `kernelspec` there."
        )
    cells = [_tidy(cell) for cell in nb.cells]
    for cell, cell_id in zip(cells, cell_ids(cells), strict=True):
        cell.id = cell_id
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "ranklab": {"manuscript": manuscript},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=nbformat.from_dict(metadata))


def write(nb: NotebookNode) -> str:
    """The manuscript's text for a notebook: the inverse of ``read``, whitespace normalized."""
    parts = [HEADER]
    after_markdown = False
    for cell in nb.cells:
        is_markdown = cell.cell_type == "markdown"
        if is_markdown:
            parts.append(_markdown_text(cell, after_markdown))
        else:
            parts.append(_code_text(cell))
        after_markdown = is_markdown
    return "\n".join(parts)


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
    cell.source = without_outer_blank_lines(cell.source)
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
    return cell


def without_outer_blank_lines(text: str) -> str:
    lines = text.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


def _markdown_text(cell: NotebookNode, after_markdown: bool) -> str:
    break_line = "+++\n\n" if after_markdown else ""
    return f"{break_line}{cell.source}\n"


def _code_text(cell: NotebookNode) -> str:
    kind = "{code-cell} ipython3" if cell.cell_type == "code" else "{raw-cell}"
    fence = three_backticks_or_more(cell.source.splitlines())
    return f"{fence}{kind}\n{_options(cell)}{cell.source}\n{fence}\n"


class _Metadata(yaml.SafeDumper):
    """Mappings in block style and lists in one line, as people write a cell's metadata."""


_Metadata.add_representer(NotebookNode, yaml.SafeDumper.represent_dict)
_Metadata.add_representer(
    list,
    lambda dumper, value: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", value, flow_style=True
    ),
)


def _options(cell: NotebookNode) -> str:
    """A cell's metadata: a ``:tags:`` line where that is all, else a YAML block."""
    if not cell.metadata:
        return "\n" if cell.source.startswith(("---", ":")) else ""
    # Keys sorted and lines never folded: there is one way to write the same metadata.
    text = yaml.dump(
        cell.metadata,
        Dumper=_Metadata,
        sort_keys=True,
        default_flow_style=False,
        allow_unicode=True,
        width=float("inf"),
    )
    return f":{text}\n" if set(cell.metadata) == {"tags"} else f"---\n{text}---\n"
