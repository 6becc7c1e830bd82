"""The exercises on the pages: their boxes and folded solutions (a Sphinx extension), their list."""

import html
from pathlib import Path

from docutils import nodes
from sphinx_exercise.nodes import is_exercise_node, solution_node

from bookmaker.errors import BookError
from bookmaker.folders import Folders
from bookmaker.forms import exercise_files
from bookmaker.manuscript import exercises, manuscript, markdown
from bookmaker.manuscript.exercises import ExerciseText

# What stands for the list in book/exercises.md.
PLACE = "<!-- The list: made when the book is built. -->"


def setup(app):
    """Register with Sphinx."""
    app.connect("doctree-resolved", _complete)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _complete(app, doctree, name):
    titles = {node["label"]: _name(node) for node in list(doctree.findall(is_exercise_node))}
    for node in list(doctree.findall(solution_node)):
        _fold(node, titles[node["target_label"]])


def _name(node) -> str:
    """Give an exercise's box its own title, "Exercise: ..."; return the title's text.

    The extension says "Exercise (...)", and puts the same id into every box.
    """
    title, section = node.children
    own = title.children[2:-1]  # without "Exercise", " (" and ")"
    text = "".join(part.astext() for part in own)
    node.children = []
    node += [nodes.title("", "", nodes.Text("Exercise: "), *own), *section.children]
    return text


def _fold(node, title: str) -> None:
    """Make a solution something that opens: by mouse, by keyboard, without a script."""
    _, section = node.children
    summary = f"<summary>Solution: {html.escape(title)}</summary>"
    opened = f'<details class="solution" id="{node["label"]}">{summary}'
    node["ids"], node["classes"] = [], []  # they would go to what is put in its place
    begin, end = (nodes.raw("", text, format="html") for text in (opened, "</details>"))
    node.replace_self([begin, *section.children, end])


# The list of all exercises


def listed(text: str, folders: Folders) -> str:
    """The page of all exercises, with the list in its place.

    Raises BookError if the page has no place for it.
    """
    if PLACE not in text:
        raise BookError(f"book/exercises.md has no line `{PLACE}`, where the list is to stand.")
    return text.replace(PLACE, "\n\n".join(_of_each_chapter(folders)))


def _of_each_chapter(folders: Folders):
    for path in folders.chapters():
        nb = manuscript.read(path)
        found = exercises.find(nb)
        if found:
            minutes = sum(exercise.minutes for exercise in found)
            yield f"## {int(path.stem[:2])}. {manuscript.title_of(nb)}"
            count = "1 exercise" if len(found) == 1 else f"{len(found)} exercises"
            yield f"{count} in {{doc}}`{path.stem}`, about {minutes} minutes."
            head = ["| exercise | kind | minutes | as a file |", "| --- | --- | --: | --- |"]
            yield "\n".join([*head, *(_row(exercise, path) for exercise in found)])


def _row(exercise: ExerciseText, chapter: Path) -> str:
    title = markdown.plain(exercise.title).replace("`", "").replace("|", r"\|")
    kind, file = exercises.KINDS[exercise.kind].lower(), ""
    if exercise.kind != "predict":
        path = exercise_files.path_of(chapter.stem, exercise)
        shown = Path(path).name.replace("_", "_<wbr>")  # on a phone, in several lines
        file = f'<a href="{path}" download>{shown}</a>'
    return f"| {{ref}}`{title} <{exercise.label}>` | {kind} | {exercise.minutes} | {file} |"
