"""The notebook form of a manuscript, and the manuscript of a notebook that was edited."""

from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

from bookmaker.errors import FormError
from bookmaker.folders import HERE
from bookmaker.manuscript import manuscript
from bookmaker.notebook import exercise_cells, plain_markdown
from bookmaker.notebook.plain_markdown import Places

# The metadata of a cell that belongs to the chapter. The rest is a notebook program's own:
# whether a cell is folded, when it ran.
_OURS = ("mystnb", "tags")

_ORIGIN = """\
*Generated from [`{manuscript}`]({repository}/blob/main/{manuscript}) by `make forms`. To edit the \
chapter, edit that file and run `make forms`; or run `make lab` and edit here: saving the notebook \
then updates the manuscript.*"""

_INSTALL = """\
# On Colab and Binder this installs the lab. Where the lab is there already, it does nothing.
from importlib.util import find_spec

if find_spec("ranklab") is None:
    %pip install -q "ranklab @ git+{repository}\""""


def to_notebook(nb: NotebookNode, root: Path = HERE.root) -> NotebookNode:
    """The notebook form of ``manuscript.read(path)``; ``root`` is where _config.yml lies."""
    places = places_of(nb, root)
    cells = _generated_cells(nb, places)
    shown = exercise_cells.public(nb)
    for index, cell in enumerate(shown.cells):
        _check_cell(nb, index)
        cells.append(_shown_cell(shown, index, places) if cell.cell_type == "markdown" else cell)
    form = nbformat.v4.new_notebook(
        cells=[nbformat.from_dict(cell) for cell in cells],
        metadata={
            "kernelspec": nb.metadata.kernelspec,
            "language_info": {"name": "python"},
            "ranklab": nb.metadata.ranklab,
        },
    )
    if to_manuscript(form, nb) != manuscript.write(nb):
        raise FormError(
            f"{manuscript.name_of(nb)}: the notebook of this manuscript would not give it back. "
            "Look for a line in a text that begins a cell, as `+++` or three backticks do."
        )
    return form


def to_manuscript(form: NotebookNode, base: NotebookNode | None = None) -> str:
    """The manuscript's text for a notebook that ``to_notebook`` made and a reader edited.

    Outputs, empty cells, and what a notebook program writes into the metadata are left out.
    Stubs, checks and solutions are those of the manuscript ``base``, as far as it is at hand.
    """
    if not form.metadata.get("ranklab", {}).get("manuscript"):
        raise FormError("notebook: it does not say which manuscript it was generated from.")
    restored = exercise_cells.Restored(base)
    cells = [_chapter_cell(cell, restored) for cell in form.cells if _is_chapters(cell)]
    cells = [cell for cell in cells if cell.source.strip()]
    nb = nbformat.v4.new_notebook(cells=cells, metadata=form.metadata)
    text = manuscript.write(nb)
    back = manuscript.parse(text, form.metadata.ranklab.manuscript)
    for index, cell in enumerate(cells):
        if index >= len(back.cells) or not _same(back.cells[index], cell):
            raise FormError(
                f"{manuscript.where(nb, index)}: this cell would not come back from the manuscript "
                "as it is. Look for a line that begins a cell, as `+++` or three backticks do."
            )
    restored.check(back)
    return text


def write(form: NotebookNode) -> str:
    """The notebook's bytes, always the same for the same notebook."""
    return nbformat.writes(form, version=4).rstrip("\n") + "\n"


def places_of(nb: NotebookNode, root: Path = HERE.root) -> Places:
    """Where links lead, from the repository's address in _config.yml, the one place for it."""
    config = root / "_config.yml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {}
    url = ((settings or {}).get("repository") or {}).get("url", "").rstrip("/")
    if not url:
        raise FormError(f"{config.name}: there is no `repository: url:` in it. Add the address.")
    site = ((settings.get("html") or {}).get("baseurl") or _pages(url)).rstrip("/")
    return Places(url, site, manuscript.name_of(nb))


def _pages(repository: str) -> str:
    """Where the code host publishes the repository's site."""
    owner, name = repository.split("/")[-2:]
    return f"https://{owner}.github.io/{name}"


def _generated_cells(nb: NotebookNode, places: Places) -> list[NotebookNode]:
    values = {"manuscript": nb.metadata.ranklab.manuscript, "repository": places.repository}
    mark = {"ranklab": {"generated": True}}
    origin = nbformat.v4.new_markdown_cell(
        _ORIGIN.format(**values), id="ranklab-origin", metadata=mark
    )
    install = nbformat.v4.new_code_cell(
        _INSTALL.format(**values),
        id="ranklab-install",
        metadata={"tags": ["notebook-only"], **mark},
    )
    return [origin, install]


def _check_cell(nb: NotebookNode, index: int) -> None:
    cell = nb.cells[index]
    extra = sorted(set(cell.metadata) - set(_OURS))
    if extra:
        raise FormError(
            f"{manuscript.where(nb, index)}: the metadata {', '.join(map(repr, extra))} would be "
            "lost in the notebook. A cell may have `tags` and `mystnb`."
        )
    if not cell.source.strip():
        raise FormError(f"{manuscript.where(nb, index)}: the cell is empty. Remove it.")


def _shown_cell(nb: NotebookNode, index: int, places: Places) -> NotebookNode:
    cell = nbformat.from_dict(nb.cells[index])
    try:
        cell.source = plain_markdown.to_notebook(cell.source, places)
    except FormError as error:
        raise FormError(f"{manuscript.where(nb, index)}: {error}") from None
    return cell


def _is_chapters(cell: NotebookNode) -> bool:
    return bool(cell.source.strip()) and not cell.metadata.get("ranklab", {}).get("generated")


def _chapter_cell(cell: NotebookNode, restored: exercise_cells.Restored) -> NotebookNode:
    cell = restored.code(cell)
    source = manuscript.without_outer_blank_lines(cell.source)
    metadata = {key: cell.metadata[key] for key in _OURS if cell.metadata.get(key)}
    if cell.cell_type == "markdown":
        source = restored.text(plain_markdown.to_myst(source)).strip("\n")
        return nbformat.v4.new_markdown_cell(source, metadata=metadata)
    make = {"code": nbformat.v4.new_code_cell, "raw": nbformat.v4.new_raw_cell}[cell.cell_type]
    return make(source, metadata=metadata)


def _same(one: NotebookNode, other: NotebookNode) -> bool:
    keys = ("cell_type", "source", "metadata")
    return all(one[key] == other[key] for key in keys)
