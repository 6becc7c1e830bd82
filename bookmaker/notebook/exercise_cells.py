"""The cells of the exercises, as the notebook, the page and the script have them.

The notebook holds stubs and no solution, nor what an author says of one.
"""

import copy
import hashlib
import re

import nbformat
from nbformat import NotebookNode

from bookmaker.manuscript import exercises, markdown
from bookmaker.manuscript.exercises import ExerciseText

POINTS = {"predict": 1, "fill-in": 2, "build": 4}

_HEADING = re.compile(r"(#{1,6})[ \t]+(.*)")


def public(nb: NotebookNode) -> NotebookNode:
    """A manuscript's notebook without its solutions, with the metadata that nbgrader wants.

    It has as many cells: a text that was all about a solution is empty.
    """
    form = copy.deepcopy(nb)
    for exercise in exercises.find(nb):
        stub, check = form.cells[exercise.stub], form.cells[exercise.check]
        stub.source = exercises.stub(stub.source)
        stub.metadata.update(_graded(exercise.name, solution=True))
        stub.metadata.ranklab = nbformat.from_dict({"stub": digest(stub.source)})
        points = POINTS[exercise.kind]
        check.metadata.update(_graded(f"check_{exercise.name}", grade=True, points=points))
    for cell in form.cells:
        if cell.cell_type == "markdown":
            cell.source = _without(cell.source, "solution")
    return form


def _graded(grade_id: str, solution=False, grade=False, **points) -> NotebookNode:
    values = {"grade": grade, "grade_id": grade_id, "locked": grade, "schema_version": 3}
    return nbformat.from_dict(
        {"nbgrader": {**values, "solution": solution, "task": False, **points}}
    )


def digest(stub: str) -> str:
    """What tells a stub from one that somebody has worked on."""
    return hashlib.sha256(stub.strip().encode()).hexdigest()[:12]


def grade_id(cell: NotebookNode) -> str:
    """The name by which a notebook knows an exercise's cell; "" for another cell."""
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


# The page


def on_page(nb: NotebookNode) -> NotebookNode:
    """A manuscript's notebook as its page is made of it: stubs, a solution under each check."""
    page = copy.deepcopy(nb)
    for exercise in reversed(exercises.find(nb)):
        source = nb.cells[exercise.stub].source
        page.cells[exercise.stub].source = exercises.stub(source)
        solution = nbformat.v4.new_markdown_cell(
            _solution(exercise, exercises.solved(source)), id=f"solution-{exercise.label}"
        )
        page.cells.insert(exercise.check + 1, solution)
        text = page.cells[exercise.text]
        # Numbers would run on from chapter to chapter.
        text.source = _with_option(text.source, "exercise", ":nonumber:")
    for cell in page.cells:
        if cell.cell_type == "markdown" and not cell.id.startswith("solution-"):
            cell.source = _without(cell.source, "solution")
    page.cells = [cell for cell in page.cells if cell.source.strip()]
    return page


def _solution(exercise: ExerciseText, code: str) -> str:
    code_fence = _fence("`", code)
    fence = _fence(":", exercise.prose)
    lines = [f"{fence}{{solution}} {exercise.label}", f":label: {exercise.label}-solution", ""]
    lines += [f"{code_fence}python", code, code_fence]
    lines += ["", exercise.prose] if exercise.prose else []
    return "\n".join([*lines, fence])


def _fence(mark: str, text: str) -> str:
    longest = max((len(run) for run in re.findall(f"{mark}{{3,}}", text)), default=2)
    return mark * (longest + 1)


def _with_option(text: str, name: str, option: str) -> str:
    lines: list[str] = []
    for segment in markdown.segments(text):
        is_meant = segment.kind == "directive" and markdown.directive(segment.lines).name == name
        lines += [segment.lines[0], option, *segment.lines[1:]] if is_meant else segment.lines
    return "\n".join(lines)


# The script


def left_out(nb: NotebookNode) -> NotebookNode:
    """The notebook as its script is made of it: without the exercises, and without their section.

    A section "Exercises" that has code of its own stays, but for the exercises in it.
    """
    rest = copy.deepcopy(nb)
    section = _section(nb)
    for index, cell in enumerate(rest.cells):
        if exercises.kind_of(cell):
            cell.metadata.tags = [*cell.metadata.tags, "notebook-only"]
        elif cell.cell_type == "markdown":
            lines = enumerate(cell.source.split("\n"))
            kept = "\n".join(line for at, line in lines if (index, at) not in section)
            cell.source = _without(kept, "exercise", "solution")
    rest.cells = [cell for cell in rest.cells if cell.source.strip()]
    return rest


def _without(text: str, *names: str) -> str:
    """The text without its directives of these names."""
    lines: list[str] = []
    for segment in markdown.segments(text):
        is_directive = segment.kind == "directive"
        name = markdown.directive(segment.lines).name if is_directive else ""
        lines += segment.lines if name not in names else []
    return "\n".join(lines).strip("\n")


def _section(nb: NotebookNode) -> set[tuple[int, int]]:
    """The lines of the section "Exercises", (cell, line), if it has exercises and no other code."""
    section: set[tuple[int, int]] = set()
    level = exercises_seen = 0
    for index, cell in enumerate(nb.cells):
        if cell.cell_type != "markdown":
            if level and not exercises.kind_of(cell):
                return set()
            exercises_seen += bool(level)
            continue
        for at, heading in _lines(cell.source):
            if heading and (not level or len(heading[1]) <= level):
                level = len(heading[1]) if heading[2].strip() == "Exercises" else 0
            if level:
                section.add((index, at))
    return section if exercises_seen else set()


def _lines(text: str):
    """(number, the match of a heading or None) of every line."""
    at = 0
    for segment in markdown.segments(text):
        for line in segment.lines:
            yield at, _HEADING.match(line) if segment.kind == "text" else None
            at += 1
