"""A reader's answers in a generated notebook: found, so that making the forms keeps them."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from bookmaker.errors import FormError
from bookmaker.notebook import exercise_cells


def in_notebook(path: Path, name: str) -> dict[str, str]:
    """name of the exercise -> the cell in which somebody has worked on its stub.

    path: of the notebook, which need not be there. name: what to call it in an error.

    Raises FormError where an answer may be in the file, and cannot be told: the file is no
    notebook any more, or an answer is spread over several cells.
    """
    if not path.exists():
        return {}
    cells = [cell for cell in _read(path, name).cells if cell.source.strip()]
    found: dict[str, str] = {}
    for at, cell in enumerate(cells):
        if cell.metadata.get("ranklab", {}).get("stub") is None:
            continue
        exercise = exercise_cells.grade_id(cell)
        _check_alone(cells, at, exercise, name)
        if _is_worked_on(cell):
            found[exercise] = cell.source
    return found


def _read(path: Path, name: str) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises errors of many kinds
        reason = str(error).split("\n")[0][:100]
        raise FormError(
            f"{name} is no notebook any more ({type(error).__name__}: {reason}). It is left as it "
            "is, for it may hold answers: repair it, or move it away, then run `make forms`."
        ) from error


def _check_alone(cells: list[NotebookNode], at: int, exercise: str, name: str) -> None:
    """Refuse an answer that more cells than its own hold."""
    twins = [cell for cell in cells if exercise_cells.grade_id(cell) == exercise]
    if len(twins) > 1 and any(map(_is_worked_on, twins)):
        raise FormError(
            f"{name}: {len(twins)} cells hold an answer to `{exercise}`. The notebook is left as "
            "it is: join them, or delete what is too much, then run `make forms`."
        )
    # A stub is made with its task above it and its check below it, and no code beside it.
    beside = cells[max(at - 1, 0) : at] + cells[at + 1 : at + 2]
    if any(cell.cell_type == "code" and not exercise_cells.grade_id(cell) for cell in beside):
        raise FormError(
            f"{name}: beside the cell for the answer to `{exercise}` stands another one, which "
            "the chapter does not have. The notebook is left as it is: join the two, or delete "
            "what is too much, then run `make forms`."
        )


def _is_worked_on(cell: NotebookNode) -> bool:
    stub = cell.metadata.get("ranklab", {}).get("stub")
    return stub != exercise_cells.digest(cell.source)


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
