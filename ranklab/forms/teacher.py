"""The chapters as assignments for nbgrader: ``python -m ranklab.forms --teacher FOLDER``."""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ranklab import files
from ranklab.folders import Folders
from ranklab.forms import exercise_cells, exercises, manuscript, notebook

_ORIGIN = "*Generated from [`{manuscript}`]({repository}/blob/main/{manuscript}), for nbgrader.*"

# What leads a student from the task to the solution, and the comment in the solution's place.
_SOLUTIONS = re.compile(r"(?m) · \[solution\]\(\S*\)$|^<!-- solution: .* -->\n*")

# Written once: then it is the teacher's.
_CONFIG = """\
# nbgrader's configuration for this course. `python -m ranklab.forms --teacher` wrote it once.
c = get_config()  # noqa: F821  (nbgrader defines it)

c.CourseDirectory.course_id = "one-model"
# Seconds that a cell may take: a check starts ranks, and waits for those that hang.
c.Execute.timeout = 300
"""


def write(folders: Folders, course: Path) -> list[str]:
    """Write the assignments into the folder of a course; a line for each file that was written.

    Raises FormError for a manuscript that cannot be translated.
    """
    written = []
    for path in folders.chapters():
        nb = manuscript.read(path)
        if exercises.find(nb):
            target = course / "source" / path.stem / f"{path.stem}.ipynb"
            files.replace(target, notebook.write(assignment(nb, folders.root)))
            written.append(f"{target} written: solutions in it, not for students")
    config = course / "nbgrader_config.py"
    if not config.exists():
        files.replace(config, _CONFIG)
        written.append(f"{config} written")
    return written


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
        cell.source = _SOLUTIONS.sub("", cell.source)
    # It is the teacher's from here on: saving it in `make lab` changes no manuscript.
    form.metadata = nbformat.from_dict(
        {key: value for key, value in form.metadata.items() if key != "ranklab"}
    )
    return form


def _graded(check: str) -> str:
    """The check cell, failing where the answer is not right, and saying why."""
    lines = check.split("\n")
    last = next(i for i in reversed(range(len(lines))) if lines[i].startswith("check("))
    lines[last] = f"report = {lines[last]}"
    return "\n".join([*lines, "assert report, report"])
