"""Gather what Sphinx reads into one folder, and touch only what changed there."""

import html
import re
import sysconfig
from pathlib import Path

import nbformat
from IPython.utils.path import compress_user
from nbformat import NotebookNode

from bookmaker import contents
from bookmaker.errors import BookError
from bookmaker.files import replace
from bookmaker.folders import Folders
from bookmaker.forms import exercise_files
from bookmaker.manuscript import manuscript, programs
from bookmaker.site import exercises
from bookmaker.site.cache import code_cells

TITLE = re.compile(r"^# (?=\S)", re.MULTILINE)
LABEL = re.compile(r'<svg[^>]* aria-label="([^"]+)"')


def stage(folders: Folders) -> None:
    """Fill _build/source from the executed chapters, the prose and the generated forms.

    Raises BookError if a chapter was not executed, has no notebook or script to take away,
    or has no place in the contents.
    """
    chapters = [path.stem for path in folders.chapters()]
    files = {Path("_toc.yml"): contents.toc(folders).encode()}
    for name in chapters:
        files[Path(f"{name}.ipynb")] = _page(folders, name)
        for form in (f"notebooks/{name}.ipynb", f"scripts/{name}.py"):
            files[Path("extra", form)] = _form(folders, form)
    for path in folders.chapters():
        nb = manuscript.read(path)
        for form in [*programs.paths(nb, path.stem), *exercise_files.files(nb)]:
            files[Path("extra", form)] = _form(folders, form)
    for path in [*folders.prose(), *folders.book.glob("*.bib")]:
        files[Path(path.name)] = path.read_bytes()
    start = Path("intro.md")
    files[start] = contents.on_start_page(files[start].decode(), folders).encode()
    if Path("exercises.md") in files:
        text = files[Path("exercises.md")].decode()
        files[Path("exercises.md")] = exercises.listed(text, folders).encode()
    for path in sorted((folders.book / "_static").rglob("*")):
        if path.is_file():
            files[path.relative_to(folders.book)] = path.read_bytes()
    mirror(files, folders.source)
    # A manuscript says ../images/x.svg, which is right on the code host and here.
    images = folders.root / "images"
    found = {p.relative_to(images): p.read_bytes() for p in images.rglob("*") if p.is_file()}
    mirror(found, folders.build / "images")


def mirror(files: dict[Path, bytes], folder: Path) -> None:
    """Make `folder` hold exactly these files; leave alone those that are the same already."""
    for relative, content in files.items():
        replace(folder / relative, content)
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        if path.is_file() and path.relative_to(folder) not in files:
            path.unlink()


def _page(folders: Folders, name: str) -> bytes:
    """A chapter's executed notebook as Sphinx gets it."""
    path = folders.executed / f"{name}.ipynb"
    if not path.exists():
        raise BookError(f"{name} was not executed: there is no {path}. Run `make book`.")
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.execution_count is None:
            raise BookError(f"{name}, cell {number} was not executed. Run `make book`.")
        _mark_ranks(cell)
        _describe_drawing(cell)
        _shorten_paths(cell, folders.root)
    _number_title(notebook, int(name[:2]))
    # The key and the time of the execution would make every page new after each one.
    for key in ("ranklab", "chapter"):
        notebook.metadata.pop(key, None)
    return nbformat.writes(notebook).encode()


def _shorten_paths(cell: NotebookNode, root: Path) -> None:
    """Where Python lies on the machine that built the book is nobody's business."""
    known = {sysconfig.get_path("purelib"): "site-packages", str(root): "one-model"}
    # Below the home folder, IPython writes ~/… in a traceback.
    places = {form: short for long, short in known.items() for form in (long, compress_user(long))}
    places.pop("~", None)
    for output in cell.outputs:
        for long, short in places.items():
            if output.output_type == "stream":
                output.text = output.text.replace(long, short)
            elif output.output_type == "error":
                output.traceback = [line.replace(long, short) for line in output.traceback]


def _number_title(notebook: NotebookNode, number: int) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and TITLE.search(cell.source):
            cell.source = TITLE.sub(f"# {number}. ", cell.source, count=1)
            return


def _mark_ranks(cell: NotebookNode) -> None:
    """Tag cells that run on the ranks: the style sheet draws them differently."""
    first = cell.source.lstrip().split("\n", 1)[0]
    if first.startswith("%%px"):
        some = "--targets" in first or "-t " in first
        tags = ["px", "px-some"] if some else ["px"]
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), *tags]


def _describe_drawing(cell: NotebookNode) -> None:
    """An SVG that carries its own description lends it to the page's <img>."""
    for output in cell.outputs:
        label = LABEL.search(output.get("data", {}).get("image/svg+xml", ""))
        if label:
            image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
            image.setdefault("alt", html.unescape(label[1]))


def _form(folders: Folders, form: str) -> bytes:
    path = folders.root / form
    if not path.exists():
        raise BookError(f"{form} is missing, and the page links to it. Run `make forms`.")
    return path.read_bytes()
