"""Gather what Sphinx reads into one folder, and touch only what changed there."""

import base64
import html
import json
import re
import sysconfig
from pathlib import Path

import vl_convert
from IPython.utils.path import compress_user
from nbformat import NotebookNode

from bookmaker import contents
from bookmaker.errors import BookError
from bookmaker.files import replace
from bookmaker.folders import Folders
from bookmaker.forms import exercise_files
from bookmaker.manuscript import manuscript, programs
from bookmaker.site import api, cache, exercises, recipes
from bookmaker.site.cache import code_cells
from ranklab.playable import VEGA_LITE

TITLE = re.compile(r"^# (?=\S)", re.MULTILINE)
# The prose pages of which a part is made here.
COMPLETED = {
    "intro.md": contents.on_start_page,
    "own_work.md": recipes.shown,
    "api.md": api.listed,
    "exercises.md": exercises.listed,
}
PLAYABLE = "application/vnd.vegalite.v5+json"
LABEL = re.compile(r'<svg[^>]* aria-label="([^"]+)"')


def stage(folders: Folders) -> None:
    """Fill _build/source from the executed chapters, the prose and the generated forms.

    Raises BookError if a chapter was not executed, has no notebook or script to take away,
    or has no place in the contents.
    """
    chapters = [path.stem for path in folders.chapters()]
    files = {Path("_toc.yml"): contents.toc(folders).encode()}
    terms = contents.terms(folders)
    for name in chapters:
        files[Path(f"{name}.ipynb")] = _page(folders, name, terms.get(name, []))
        for form in (f"notebooks/{name}.ipynb", f"scripts/{name}.py"):
            files[Path("extra", form)] = _form(folders, form)
    for path in folders.chapters():
        nb = manuscript.read(path)
        for form in [*programs.paths(nb, path.stem), *exercise_files.files(nb)]:
            files[Path("extra", form)] = _form(folders, form)
    for path in folders.book.glob("*.bib"):
        files[Path(path.name)] = path.read_bytes()
    for path in folders.prose():
        text = path.read_text(encoding="utf-8")
        if complete := COMPLETED.get(path.name):
            text = complete(text, folders)
        files[Path(path.name)] = contents.indexed(text, terms.get(path.stem, [])).encode()
    files[Path("extra", "vega", "vega.js")] = _vega(folders)
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


def _page(folders: Folders, name: str, terms: list[str]) -> bytes:
    """A chapter's executed notebook as Sphinx gets it."""
    path = folders.executed / f"{name}.ipynb"
    if not path.exists():
        raise BookError(f"{name} was not executed: there is no {path}. Run `make book`.")
    notebook = cache.stored(path)
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.execution_count is None:
            raise BookError(f"{name}, cell {number} was not executed. Run `make book`.")
        _mark_ranks(cell)
        _describe_drawing(cell)
        _let_play(cell)
        _shorten_paths(cell, folders.root)
    _number_title(notebook, int(name[:2]), terms)
    # The key and the time of the execution would make every page new after each one.
    for key in ("ranklab", "chapter"):
        notebook.metadata.pop(key, None)
    return json.dumps(notebook, ensure_ascii=False).encode()


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


def _number_title(notebook: NotebookNode, number: int, terms: list[str]) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (title := TITLE.search(cell.source)):
            before, rest = cell.source[: title.start()], cell.source[title.end() :]
            cell.source = before + contents.indexed(f"# {number}. {rest}", terms)
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


def _let_play(cell: NotebookNode) -> None:
    """A figure to play with: what the page's script (book/_static/playable.js) makes one of."""
    for output in cell.outputs:
        if (data := output.get("data", {})) and PLAYABLE in data:
            svg, spec = data["image/svg+xml"], data[PLAYABLE]
            alt = html.escape(spec["description"])
            first = base64.b64encode(svg.encode()).decode()
            table = json.dumps(spec, separators=(",", ":")).replace("</", "<\\/")
            page = f'<div class="playable"><script type="application/json">{table}</script>'
            page += f'<img alt="{alt}" src="data:image/svg+xml;base64,{first}"></div>'
            output.data = NotebookNode({"text/html": page})


def _vega(folders: Folders) -> bytes:
    """Vega, Vega-Lite and Vega-Embed as a script that works in a folder, too, where no module does.

    To put it together takes two seconds: it is kept for each version.
    """
    made = folders.build / f"vega-{VEGA_LITE}-{vl_convert.__version__}.js"
    if not made.exists():
        bundle = vl_convert.javascript_bundle(vl_version=VEGA_LITE)
        replace(made, f"(() => {{{bundle}}})();")
    return made.read_bytes()


def _form(folders: Folders, form: str) -> bytes:
    path = folders.root / form
    if not path.exists():
        raise BookError(f"{form} is missing, and the page links to it. Run `make forms`.")
    return path.read_bytes()
