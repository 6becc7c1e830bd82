"""A reader's answers in a generated notebook: found, so that making the forms keeps them."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ranklab.forms import exercise_cells
from ranklab.forms.errors import FormError


def in_notebook(path: Path) -> dict[str, str]:
    """name of the exercise -> the cell in which somebody has worked on its stub."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception:  # not there, or no notebook: nothing that could be kept
        return {}
    return {exercise_cells.grade_id(cell): cell.source for cell in cells if _is_worked_on(cell)}


def _is_worked_on(cell: NotebookNode) -> bool:
    stub = cell.metadata.get("ranklab", {}).get("stub")
    return stub is not None and stub != exercise_cells.digest(cell.source)


def put(form: NotebookNode, answers: dict[str, str], name: str) -> NotebookNode:
    """The notebook ``name``, generated anew, with the answers that were in it.

    Raises FormError if one of them is to an exercise that the chapter no longer has.
    """
    places = {exercise_cells.grade_id(cell): cell for cell in form.cells}
    for exercise, answer in answers.items():
        if exercise not in places:
            raise FormError(
                f"{name} holds an answer to `{exercise}`, which is no exercise of the chapter any "
                "more. The notebook is left as it is: keep the answer elsewhere, then run "
                "`make forms ARGS=--stubs`."
            )
        places[exercise].source = answer
    return form
