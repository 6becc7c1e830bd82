"""The exercises of a manuscript: task, stub with its solution, check; found and examined.

An exercise is a directive ``:::{exercise}``, a code cell tagged ``exercise`` in which the markers
of nbgrader surround the solution, a code cell tagged ``check``, and, if its author has something
to say of it, a directive ``:::{solution}``. CONTRIBUTING.md shows one.
"""

import ast
import re
from dataclasses import dataclass

from nbformat import NotebookNode

from bookmaker.errors import FormError
from bookmaker.manuscript import manuscript, markdown

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
# What nbgrader puts in the place of a solution.
STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")
# The class of the directive -> what the task begins with.
KINDS = {"predict": "Predict", "fill-in": "Fill in", "build": "Build"}
TAGS = frozenset({"exercise", "check"})

_LABEL = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TASK = re.compile(r"\s*\*(?P<kind>[A-Z][a-z ]+), about (?P<minutes>\d+) minutes?\.\*")


@dataclass(frozen=True)
class ExerciseText:
    """One exercise as its manuscript has it.

    task: its text, MyST. prose: what the author says of the solution, MyST.
    text, stub, check: where its directive and its two code cells are in the notebook's cells.
    """

    label: str
    title: str
    kind: str
    minutes: int
    task: str
    text: int
    stub: int
    check: int
    prose: str = ""

    @property
    def name(self) -> str:
        """Its name in Python: that of the check, and of the file to work in."""
        return self.label.replace("-", "_")


def find(nb: NotebookNode) -> list[ExerciseText]:
    """The exercises of a manuscript, in order.

    Raises FormError, which names the cell, for one that is not complete or not well made.
    """
    found: list[ExerciseText] = []
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            found += _announced(nb, index, {exercise.label for exercise in found})
        elif kind_of(cell):
            _check_place(nb, index, found)
        else:
            _check_public(nb, index)
    prose = _prose(nb, found)
    return [ExerciseText(**{**vars(e), "prose": prose.get(e.label, "")}) for e in found]


def solutions(nb: NotebookNode) -> dict[str, str]:
    """name -> the source of its exercise cell, with the solution and without the markers."""
    return {exercise.name: solved(nb.cells[exercise.stub].source) for exercise in find(nb)}


def stub(source: str) -> str:
    """An exercise cell as a reader gets it: each solution replaced as nbgrader does it."""
    lines, inside = [], False
    for line in source.split("\n"):
        if BEGIN in line:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + replacement for replacement in STUB]
            inside = True
        elif END in line:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def solved(source: str) -> str:
    """An exercise cell with its solution: without the markers, and the TODOs above them."""
    lines: list[str] = []
    for line in source.split("\n"):
        if BEGIN in line:
            lines = _without_todo(lines)
        elif END not in line:
            lines.append(line)
    return "\n".join(lines)


def kind_of(cell: NotebookNode) -> str:
    """ "exercise" or "check" for a code cell that is tagged so, else ""."""
    tags = TAGS & set(cell.metadata.get("tags", ())) if cell.cell_type == "code" else set()
    return min(tags, default="")


def directives(cell: NotebookNode, *names: str) -> list[markdown.Directive]:
    """The directives of these names in a Markdown cell."""
    found = []
    for segment in markdown.segments(cell.source):
        if segment.kind == "directive":
            parts = markdown.directive(segment.lines)
            found += [parts] if parts.name in names else []
    return found


def option(parts: markdown.Directive, name: str) -> str:
    """A directive's option, or "" where it has none of that name."""
    lines = (line.strip() for line in parts.head[1:])
    mark = f":{name}:"
    return next((line.removeprefix(mark).strip() for line in lines if line.startswith(mark)), "")


# The parts of one exercise, examined


def _announced(nb: NotebookNode, index: int, labels: set[str]) -> list[ExerciseText]:
    """The exercise whose directive ends this text, if it has one. labels: those before it."""
    found = directives(nb.cells[index], "exercise")
    if not found:
        return []
    place = manuscript.where(nb, index)
    if len(found) > 1 or not _ends_with_exercise(nb.cells[index]):
        raise FormError(
            f"{place}: after `{found[0].head[0]}` comes its cell, tagged `exercise`, with nothing "
            "in between. Put the cell directly below."
        )
    (parts,) = found
    following = [kind_of(cell) for cell in nb.cells[index + 1 : index + 3]]
    if following[:1] != ["exercise"]:
        raise FormError(
            f"{place}: `{parts.head[0]}` has no code cell tagged `exercise` below it. Put one "
            "there, with the stub and its solution."
        )
    if following[1:] != ["check"]:
        raise FormError(
            f"{manuscript.where(nb, index + 1)}: an exercise cell is followed by its check, a code "
            "cell tagged `check`. Put one there."
        )
    exercise = _exercise(parts, index, place)
    if exercise.label in labels:
        raise FormError(
            f"{place}: there is another exercise with the label `{exercise.label}`. Give one of "
            "the two another label."
        )
    _check_stub(nb, exercise)
    _check_check(nb, exercise)
    return [exercise]


def _ends_with_exercise(cell: NotebookNode) -> bool:
    parts = [s for s in markdown.segments(cell.source) if any(line.strip() for line in s.lines)]
    return parts[-1].kind == "directive" and markdown.directive(parts[-1].lines).name == "exercise"


def _exercise(parts: markdown.Directive, index: int, place: str) -> ExerciseText:
    label, kind = option(parts, "label"), option(parts, "class")
    opener, task = parts.head[0], "\n".join(parts.body).strip("\n")
    if not _LABEL.fullmatch(label):
        raise FormError(
            f"{place}: `{opener}` needs a label of small letters, digits and hyphens, as in "
            "`:label: own-broadcast`."
        )
    if kind not in KINDS:
        raise FormError(f"{place}: `{opener}` needs a `:class:`, one of {', '.join(KINDS)}.")
    if not parts.title:
        raise FormError(f"{place}: `{opener}` needs a title, as in `:::{{exercise}} A broadcast`.")
    said = _TASK.match(task)
    if not said or said["kind"] != KINDS[kind]:
        raise FormError(
            f"{place}: the text of `{opener}` must begin with its kind and its time: "
            f"`*{KINDS[kind]}, about 10 minutes.*`."
        )
    at = {"text": index, "stub": index + 1, "check": index + 2}
    return ExerciseText(label, parts.title, kind, int(said["minutes"]), task, **at)


def _check_stub(nb: NotebookNode, exercise: ExerciseText) -> None:
    """Refuse an exercise cell whose stub, or whose solution, would not be what it should."""
    place, source = manuscript.where(nb, exercise.stub), nb.cells[exercise.stub].source
    if source.lstrip().startswith(("%", "!", "#@save")):
        raise FormError(
            f"{place}: an exercise cell holds a plain function or class: no magic, no `#@save`."
        )
    _check_regions(place, source)
    for what, text in (("stub", stub(source)), ("solution", solved(source))):
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise FormError(
                f"{place}: the {what} is not Python: {error.msg} (line {error.lineno} of it)."
            ) from None


def _check_regions(place: str, source: str) -> None:
    opened: list[str] | None = None
    regions = 0
    for line in source.split("\n"):
        marks = (BEGIN in line, END in line)
        if any(marks) and line.strip() not in (BEGIN, END):
            raise FormError(f"{place}: `{line.strip()}`: a marker stands on a line of its own.")
        if marks[opened is not None]:
            if opened is None and not line[0].isspace():
                raise FormError(
                    f"{place}: `{BEGIN}` stands at the left margin, so that the notebook would "
                    "stop there. Put the solution into a function."
                )
            if opened is not None and not _has_code(opened):
                raise FormError(f"{place}: between the markers there is no code.")
            regions, opened = regions + (opened is None), [] if opened is None else None
        elif any(marks):
            missing = END if opened is not None else BEGIN
            raise FormError(f"{place}: `{line.strip()}` stands where `{missing}` is to come first.")
        elif opened is not None:
            opened.append(line)
    if opened is not None or not regions:
        what = f"`{BEGIN}` is never followed by `{END}`" if regions else "there is no solution"
        raise FormError(f"{place}: {what}. Surround it with `{BEGIN}` and `{END}`.")


def _has_code(lines: list[str]) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in lines)


def _check_check(nb: NotebookNode, exercise: ExerciseText) -> None:
    if checked_name(nb.cells[exercise.check].source) != exercise.name:
        raise FormError(
            f"{manuscript.where(nb, exercise.check)}: the check of the exercise "
            f'`{exercise.label}` ends with `check("{exercise.name}", ...)`.'
        )


def checked_name(source: str) -> str | None:
    """The name of the exercise that a check cell checks in its last line."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    match body[-1:]:
        case [ast.Expr(ast.Call(ast.Name("check"), [ast.Constant(str(name)), _, *_]))]:
            return name
    return None


def _check_place(nb: NotebookNode, index: int, found: list[ExerciseText]) -> None:
    """Refuse a tagged cell that belongs to no exercise."""
    kind = kind_of(nb.cells[index])
    if not any(index == getattr(e, "stub" if kind == "exercise" else "check") for e in found):
        above = ":::{exercise}" if kind == "exercise" else "a cell tagged `exercise`"
        raise FormError(
            f"{manuscript.where(nb, index)}: this cell is tagged `{kind}`, and what comes directly "
            f"before it is not {above}. Put the two together, or take the tag away."
        )


def _check_public(nb: NotebookNode, index: int) -> None:
    if any(mark in nb.cells[index].source for mark in (BEGIN, END)):
        raise FormError(
            f"{manuscript.where(nb, index)}: a solution stands in a cell that is not tagged "
            "`exercise`, and would be in every form. Tag the cell."
        )


def _prose(nb: NotebookNode, found: list[ExerciseText]) -> dict[str, str]:
    """label -> what the author says of the solution."""
    expected = {exercise.check + 1: exercise.label for exercise in found}
    prose: dict[str, str] = {}
    for index, cell in enumerate(nb.cells):
        said = directives(cell, "solution") if cell.cell_type == "markdown" else []
        for parts in said:
            if len(said) > 1 or parts.title != expected.get(index):
                raise FormError(
                    f"{manuscript.where(nb, index)}: `{parts.head[0]}` belongs directly below the "
                    "check of the exercise that it names by its label."
                )
            prose[parts.title] = "\n".join(parts.body).strip("\n")
    return prose


def _without_todo(lines: list[str]) -> list[str]:
    """The lines without the comment above a solution that says what is to be done."""
    start = len(lines)
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    todo = next((i for i in range(start, len(lines)) if "TODO" in lines[i]), len(lines))
    return lines[:todo]
