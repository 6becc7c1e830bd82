"""The chapters as assignments for nbgrader: ``python -m bookmaker.forms --teacher FOLDER``."""

import re
from pathlib import Path

from nbformat import NotebookNode

from bookmaker import files
from bookmaker.folders import Folders
from bookmaker.manuscript import exercises, manuscript
from bookmaker.notebook import exercise_cells, notebook

_ORIGIN = "*Generated from [`{manuscript}`]({repository}/blob/main/{manuscript}), for nbgrader.*"

# What leads a student from the task to the solution.
_SOLUTION = re.compile(r"(?m) · \[solution\]\(\S*\)$")

# Written once: then it is the teacher's.
_CONFIG = """\
# nbgrader's configuration for this course. `python -m bookmaker.forms --teacher` wrote it once.
c = get_config()  # noqa: F821  (nbgrader defines it)

c.CourseDirectory.course_id = "one-model"
# Seconds that a cell may take: a check starts ranks, and waits for those that hang.
c.Execute.timeout = 300
"""


def write(folders: Folders, course: Path) -> list[str]:
    """Write the assignments into the folder of a course; a line for each file that has news.

    What is there already belongs to the teacher, and is never replaced.

    Raises FormError for a manuscript that cannot be translated.
    """
    lines = []
    for path in folders.chapters():
        nb = manuscript.read(path)
        if exercises.find(nb):
            target = course / "source" / path.stem / f"{path.stem}.ipynb"
            lines += _written_once(target, notebook.write(assignment(nb, folders.root)))
    config = course / "nbgrader_config.py"
    if not config.exists():
        files.replace(config, _CONFIG)
        lines.append(f"{config} written")
    return lines or ["Every assignment is as the chapters give it."]


def _written_once(target: Path, text: str) -> list[str]:
    if not target.exists():
        files.replace(target, text)
        return [f"{target} written: solutions in it, not for students"]
    if target.read_bytes() == text.encode():
        return []
    return [
        f"{target} differs from what the chapter gives now, and is left as it is: it is yours. To "
        "have the chapter's, move it away and say this again."
    ]


def assignment(nb: NotebookNode, root: Path) -> NotebookNode:
    """A chapter's notebook for nbgrader: solutions between markers, checks that must succeed."""
    form = notebook.to_notebook(nb, root)
    values = notebook.places_of(nb, root)
    form.cells[0].source = _ORIGIN.format(
        manuscript=nb.metadata.ranklab.manuscript, repository=values.repository
    )
    cells = {exercise_cells.grade_id(cell): cell for cell in form.cells}
    for exercise in exercises.find(nb):
        stub = cells[exercise.name]
        stub.source = nb.cells[exercise.stub].source
        del stub.metadata["ranklab"]
        cells[f"check_{exercise.name}"].source = _graded(nb.cells[exercise.check].source)
    for cell in form.cells:
        cell.source = _SOLUTION.sub("", cell.source)
    return form


def _graded(check: str) -> str:
    """The check cell, failing where the answer is not right, and saying why."""
    lines = check.split("\n")
    last = next(i for i in reversed(range(len(lines))) if lines[i].startswith("check("))
    lines[last] = f"report = {lines[last]}"
    return "\n".join([*lines, "assert report, report"])
