"""The notebook form of a manuscript."""

import re
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

from bookmaker.errors import FormError
from bookmaker.folders import CHAPTER, HERE
from bookmaker.manuscript import manuscript
from bookmaker.notebook import exercise_cells, plain_markdown
from bookmaker.notebook.plain_markdown import Places

_ORIGIN = """\
*{chapter} of [Many Ranks, One Model]({site}), generated from \
[`{manuscript}`]({repository}/blob/main/{manuscript}). Run the cells in order, from the top, with \
Shift+Enter. Where the text says a name such as `total`, a cell beside it prints a value \
under that name. What you write into the exercises is kept when the book is updated.{device}*"""

_DEVICE = (
    " The ranks use the GPUs that are there; the environment variable `RANKLAB_DEVICE=cpu` (or "
    "`cuda`) decides otherwise."
)
_NAMES_NO_DEVICE = re.compile(r"^\w+ = Ranks\((?!.*\bdevice=)", re.MULTILINE)

_WITHIN_THE_BOOK = re.compile(
    r"\[((?:\\.|[^\[\]\\])*)\]"
    r"\((?:\S+/)?(?:glossary|references|\d\d_[\w-]+)\.(?:html(?:#[^\s()]*)?|ipynb)\)"
)

_INSTALL = """\
# On Colab and Binder this installs the lab. Where the lab is there already, it does nothing.
from importlib.util import find_spec

if find_spec("ranklab") is None:
    %pip install -q "ranklab @ git+{repository}\""""


def to_notebook(nb: NotebookNode, root: Path = HERE.root) -> NotebookNode:
    """The notebook form of ``manuscript.read(path)``; ``root`` is where _config.yml lies."""
    places = places_of(nb, root)
    shown = exercise_cells.public(nb).cells
    for index, cell in enumerate(shown):
        _check_cell(nb, index)
        if cell.cell_type == "markdown":
            cell.source = _plain(nb, index, cell.source, places)
    shown = [cell for cell in shown if cell.source.strip()]
    return nbformat.v4.new_notebook(
        cells=[nbformat.from_dict(cell) for cell in [*_generated_cells(nb, places), *shown]],
        metadata={
            "kernelspec": nb.metadata.kernelspec,
            "language_info": {"name": "python"},
            "ranklab": nb.metadata.ranklab,
        },
    )


def chapters_own(form: NotebookNode) -> NotebookNode:
    """What of a notebook that ``to_notebook`` made, and a reader edited, is the chapter's.

    A link to another page of the book is its text again: in a script's comments nobody follows it.
    """
    own = nbformat.from_dict(form)
    own.cells = [
        cell
        for cell in own.cells
        if cell.source.strip() and not cell.metadata.get("ranklab", {}).get("generated")
    ]
    for cell in own.cells:
        if cell.cell_type == "markdown":
            cell.source = _WITHIN_THE_BOOK.sub(r"\1", cell.source)
    return own


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
    name = manuscript.name_of(nb)
    values = {
        "manuscript": nb.metadata.ranklab.manuscript,
        "repository": places.repository,
        "site": places.site,
        "chapter": f"Chapter {int(name[:2])}" if CHAPTER.fullmatch(name) else "A chapter",
    }
    follows = any(
        cell.cell_type == "code" and _NAMES_NO_DEVICE.search(cell.source) for cell in nb.cells
    )
    values["device"] = _DEVICE if follows else ""
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
    extra = sorted(set(cell.metadata) - {"fold", "mystnb", "tags"})
    if extra:
        raise FormError(
            f"{manuscript.where(nb, index)}: the metadata {', '.join(map(repr, extra))} would be "
            "lost in the notebook. A cell may have `fold`, `tags` and `mystnb`."
        )
    if not cell.source.strip():
        raise FormError(f"{manuscript.where(nb, index)}: the cell is empty. Remove it.")


def _plain(nb: NotebookNode, index: int, source: str, places: Places) -> str:
    try:
        return plain_markdown.to_notebook(source, places).strip("\n")
    except FormError as error:
        raise FormError(f"{manuscript.where(nb, index)}: {error}") from None
