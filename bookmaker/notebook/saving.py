"""Saving a notebook in JupyterLab updates its manuscript: the two hooks of the server."""

from pathlib import Path

import nbformat

from bookmaker import files
from bookmaker.errors import FormError
from bookmaker.manuscript import manuscript
from bookmaker.notebook import notebook

# For each notebook, the manuscript's text when the two were last in step.
_in_step: dict[Path, str] = {}


def before(model, path, contents_manager, **_):
    """Note, before a notebook is written, whether it and its manuscript are in step."""
    if model["type"] == "notebook":
        note(Path(contents_manager.root_dir, path.strip("/")))


def after(model, os_path, contents_manager, **_):
    """Write the manuscript of a notebook that was saved; what is wrong goes to the log."""
    path = Path(os_path)
    if model["type"] != "notebook":
        return
    try:
        if _manuscript_of(path) is not None:
            line = write_manuscript(path, only_if_in_step=True)
            contents_manager.log.info(line)
    except Exception as error:  # the notebook is saved: nothing may look as if it were not
        contents_manager.log.error(
            "%s The notebook is saved; its manuscript is left as it was.", error
        )


def note(path: Path) -> None:
    """Remember the manuscript's text if the notebook on disk still gives exactly that."""
    try:
        target = _manuscript_of(path)
        if target is not None and _normal(target) == _text_of(path, target):
            _in_step[path] = manuscript.text_at(target)
    except (FormError, OSError, ValueError):
        return  # `write_manuscript` says what is wrong


def write_manuscript(path: Path, only_if_in_step: bool = False) -> str:
    """Write the manuscript of the notebook at ``path``; a sentence that says what was done.

    Raises FormError if the notebook is not one of ours or cannot be translated, and, on demand,
    if somebody else changed the manuscript since notebook and manuscript were in step.
    """
    target = _manuscript_of(path)
    if target is None:
        raise FormError(f"{path.name}: this notebook was not generated from a manuscript here.")
    name = f"{target.parent.name}/{target.name}"
    text = _text_of(path, target)
    now = manuscript.text_at(target)
    if text == _normal(target):
        _in_step[path] = now
        return f"{name} says the same as the notebook."
    if only_if_in_step and _in_step.get(path) != now:
        raise FormError(
            f"{name} was changed since this notebook was generated from it. To keep the "
            f"manuscript, run `make forms` and reload the notebook; to keep the notebook, run "
            f"`python -m bookmaker.forms --from-notebook notebooks/{path.name}`."
        )
    files.replace(target, text)
    _in_step[path] = text
    return f"{name} updated from the notebook."


def _manuscript_of(path: Path) -> Path | None:
    """The manuscript that a notebook names, if it lies beside and has the same name."""
    if not path.exists():
        return None
    named = _load(path).metadata.get("ranklab", {}).get("manuscript")
    target = path.parent.parent / "book" / f"{path.stem}.md"
    return target if named == f"book/{target.name}" and target.exists() else None


def _load(path: Path):
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises errors of many kinds
        raise FormError(f"{path.name}: this file is not a notebook ({error}).") from error


def _text_of(path: Path, target: Path) -> str:
    """What the notebook says, with the exercises' stubs and solutions of its manuscript."""
    return notebook.to_manuscript(_load(path), manuscript.read(target))


def _normal(target: Path) -> str:
    return manuscript.write(manuscript.read(target))
