"""An exercise as a file to work in, without a notebook: ``scripts/exercises/06_name.py``."""

import ast
import re

from nbformat import NotebookNode

from bookmaker.manuscript import exercises, manuscript, markdown
from bookmaker.manuscript.exercises import ExerciseText
from bookmaker.notebook import exercise_cells
from bookmaker.script.emit import prose

FOLDER = "scripts/exercises"

_MARK = re.compile(r"# .* \(as generated: (\w+)\)\.\n")
_HEAD = """\
# Generated from {manuscript} by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: {digest}).
"""
_RUN = """\
#     python {path}
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`)."""
_MAIN = """\
if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if {call} else 1)"""


def files(nb: NotebookNode) -> dict[str, str]:
    """path -> text of the file for every exercise of a manuscript that is to be programmed."""
    chapter = manuscript.name_of(nb)
    return {
        path_of(chapter, exercise): _text(nb, exercise)
        for exercise in exercises.find(nb)
        if exercise.kind != "predict"
    }


def path_of(chapter: str, exercise: ExerciseText) -> str:
    """Where the file of a chapter's exercise is, below the repository's root."""
    return f"{FOLDER}/{chapter[:2]}_{exercise.name}.py"


def is_worked_on(text: str) -> bool:
    """Whether somebody has changed the text since `make forms` wrote it."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != exercise_cells.digest(text[mark.end() :])


def _text(nb: NotebookNode, exercise: ExerciseText) -> str:
    path = path_of(manuscript.name_of(nb), exercise)
    check = nb.cells[exercise.check].source
    call = ast.get_source_segment(check, ast.parse(check).body[-1])
    task = [
        prose.heading(markdown.plain(exercise.title), 1),
        "#",
        *prose.comments(exercise.task),
        "#",
    ]
    stub = exercises.stub(nb.cells[exercise.stub].source)
    above = "\n".join([*task, _RUN.format(path=path)])
    body = f"#\n{above}\n\n{stub}\n\n\n{_MAIN.format(call=call)}\n"
    values = {"manuscript": nb.metadata.ranklab.manuscript, "digest": exercise_cells.digest(body)}
    return _HEAD.format(**values) + body
