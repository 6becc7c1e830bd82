"""A manuscript with exercises of every kind, for the tests of their forms; and its book."""

import os
import shutil
import subprocess
import sys

import nbformat
from small_book import forms

from bookmaker.folders import HERE
from bookmaker.manuscript import manuscript
from bookmaker.notebook import exercise_cells, notebook

__all__ = ["forms"]
SAMPLE = HERE.root / "tests" / "maker" / "manuscripts" / "93_exercises.md"
TWICE = "scripts/exercises/93_twice.py"
NOTEBOOK = "notebooks/93_exercises.ipynb"
ANSWER = "def twice(x):\n    return 2 * x\n"
CHECKS = {
    "twice_two": """
from ranklab.exercises import Choice

exercise = Choice(right="a", why={"b": "That is a string."}, because="2 + 2")
""",
    "twice": """
from ranklab.exercises import Case, Exercise

def number(x):
    return Case(f"the number {x}", lambda rank, world_size: (x,), ranks=1)

exercise = Exercise(
    [number(3), number(0), number(-1)], lambda inputs: [2 * x for x, in inputs], hint="+"
)
""",
    "pair_of_answers": """
from ranklab.exercises import Case, Exercise

def values(answers):
    first, Second = answers
    return first(), Second().value()

exercise = Exercise(
    [Case("both", lambda rank, world_size: (), ranks=1)],
    lambda inputs: [(1, 2)],
    drive=values,
    answers=2,
    hint="Count.",
)
""",
}


def sample():
    return manuscript.read(SAMPLE)


def form_of(nb):
    """The notebook as it comes from its file."""
    return nbformat.reads(notebook.write(notebook.to_notebook(nb)), as_version=4)


def cell_of(form, grade_id):
    return next(cell for cell in form.cells if exercise_cells.grade_id(cell) == grade_id)


def make_book(folder):
    """Make the folder a repository whose one chapter has exercises, and their checks; no forms."""
    for name in ("book", "notebooks", "scripts", "ranklab/taught", "checks"):
        (folder / name).mkdir(parents=True)
    shutil.copy(SAMPLE, folder / "book")
    (folder / "_config.yml").write_text("repository:\n  url: https://host.example/me/mine\n")
    for name, text in CHECKS.items():
        (folder / "checks" / f"{name}.py").write_text(text)
    return folder


def answer(book, name, source):
    """Write an answer into the notebook, as a reader does; the outputs that Jupyter adds, too."""
    path = book / NOTEBOOK
    form = nbformat.read(path, as_version=4)
    cell_of(form, name).source = source
    cell_of(form, name).outputs = [nbformat.v4.new_output("stream", text="x\n")]
    nbformat.write(form, path)


def run_file(book, path):
    environment = {**os.environ, "RANKLAB_CHECKS": str(book / "checks")}
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, env=environment
    )
