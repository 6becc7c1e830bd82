"""Exercises on the page, in a teacher's course, and in JupyterLab."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from exercise_sample import cell_of, form_of, forms, make_book, sample
from kernels import Notebook
from traitlets.config import PyFileConfigLoader

from bookmaker.folders import HERE
from bookmaker.manuscript import exercises
from bookmaker.notebook import exercise_cells

ROOT = HERE.root
BIN = Path(sys.executable).parent
NEWS = "@jupyterlab/apputils-extension:notification"


# The page


def test_a_page_is_executed_with_stubs_and_has_a_solution_under_each_check():
    page = exercise_cells.on_page(sample())
    code = [cell.source for cell in page.cells if cell.cell_type == "code"]
    assert not any("BEGIN" in source or "x + x" in source for source in code)
    for exercise in exercises.find(sample()):
        check = next(i for i, c in enumerate(page.cells) if f'check("{exercise.name}"' in c.source)
        solution = page.cells[check + 1].source
        head = f":::{{solution}} {exercise.label}\n:label: {exercise.label}-solution\n"
        assert solution.lstrip(":").startswith(head.lstrip(":"))
        assert exercises.solutions(sample())[exercise.name] in solution
        assert exercise.prose in solution
    assert sum("{solution}" in cell.source for cell in page.cells) == 3


# The teacher


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A teacher's course of the sample, released by nbgrader."""
    book = make_book(tmp_path_factory.mktemp("course"))
    status, lines = forms(book, "--teacher", book / "course")
    assert status == 0 and any("not for students" in line for line in lines)
    nbgrader(book / "course", "generate_assignment", "93_exercises")
    return book / "course"


def nbgrader(course, *arguments):
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RANKLAB_CHECKS": str(course.parent / "checks"),
        "JUPYTER_CONFIG_DIR": str(course / "jupyter"),
    }
    run = subprocess.run(
        [BIN / "nbgrader", *arguments],
        cwd=course,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def released(course):
    return nbformat.read(course / "release/93_exercises/93_exercises.ipynb", as_version=4)


@pytest.mark.everything
def test_nbgrader_releases_the_stubs_that_the_book_has(course):
    theirs, ours = released(course), form_of(sample())
    text = nbformat.writes(theirs)
    assert "secret" not in text.replace("checked(secret)", "") and "[solution]" not in text
    for exercise in exercises.find(sample()):
        assert cell_of(theirs, exercise.name).source == cell_of(ours, exercise.name).source
        assert "assert report, report" in cell_of(theirs, f"check_{exercise.name}").source


RIGHT = exercises.solutions(sample())
SUBMITTED = {
    "right": RIGHT,
    "stubs": {},
    "wrong": {"twice_two": RIGHT["twice_two"].replace('"a"', '"b"'), "twice": "twice = abs"},
}


@pytest.mark.everything
def test_nbgrader_gives_points_for_what_is_right(course):
    for student, answers in SUBMITTED.items():
        form = released(course)
        for name, source in answers.items():
            cell_of(form, name).source = source
        path = course / "submitted" / student / "93_exercises" / "93_exercises.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(form, path)
    nbgrader(course, "autograde", "93_exercises")
    assert points(course) == {"right": (7, 7), "stubs": (0, 7), "wrong": (0, 7)}


def points(course):
    """student -> points, and points that there are to have."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        submissions = gradebook.assignment_submissions("93_exercises")
        return {s.student.id: (s.score, s.max_score) for s in submissions}


def test_what_a_teacher_has_changed_is_left_alone(tmp_path):
    book = make_book(tmp_path)
    course = book / "course"
    assert forms(book, "--teacher", course)[0] == 0
    path = course / "source" / "93_exercises" / "93_exercises.ipynb"
    made = path.read_bytes()
    form = nbformat.read(path, as_version=4)
    form.cells[0].source = "Hand it in by Friday."
    nbformat.write(form, path)
    changed = path.read_bytes()
    status, lines = forms(book, "--teacher", course)
    assert status == 0 and path.read_bytes() == changed
    assert lines == [
        f"{path} differs from what the chapter gives now, and is left as it is: it is yours. To "
        "have the chapter's, move it away and say this again."
    ]
    path.rename(course / "mine.ipynb")
    assert forms(book, "--teacher", course) == (
        0,
        [f"{path} written: solutions in it, not for students"],
    )
    assert path.read_bytes() == made
    assert forms(book, "--teacher", course) == (0, ["Every assignment is as the chapters give it."])


# JupyterLab


@pytest.mark.everything
def test_the_lab_is_quiet_and_without_clutter(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [BIN / "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    command += [f"--notebook-dir={tmp_path}", "--ServerApp.port_retries=0"]
    command += [
        "--IdentityProvider.token=",
        f"--config={ROOT}/bookmaker/notebook/jupyter_config.py",
    ]
    own = {"JUPYTER_CONFIG_DIR": tmp_path / "jupyter", "IPYTHONDIR": tmp_path / "ipython"}
    environment = {**os.environ, **{name: str(folder) for name, folder in own.items()}}
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        page = opened(f"http://127.0.0.1:{port}/lab", server)
        asked = f"http://127.0.0.1:{port}/lab/api/settings/{NEWS}"
        news = json.loads(opened(asked, server))["schema"]["properties"]["fetchNews"]
    finally:
        server.terminate()
        server.wait(30)
    names = re.findall(r'"extension": "[^"]*", "load": "[^"]*", "name": "([^"]*)"', page)
    assert "jupyterlab-jupytext" in names
    assert "ipyparallel-labextension" not in names and "nbgrader" not in page
    assert news["default"] == "false"  # and so nobody is asked
    assert "jupyterlab | extension was successfully loaded" in log.read_text()
    assert "nbgrader" not in log.read_text()


def test_px_in_a_kernel_that_has_just_been_started_again_is_told(tmp_path, monkeypatch):
    config = HERE.root / "bookmaker" / "notebook" / "jupyter_config.py"
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.delenv("JUPYTER_CONFIG_DIR", raising=False)
    PyFileConfigLoader(config.name, str(config.parent)).load_config()
    notebook = Notebook()
    try:
        _, error = notebook.run("%%px\nx = 1")
    finally:
        notebook.close()
    assert error.startswith("RankError: There are no ranks yet: first run the cell with")


def opened(url, server):
    """The page, as soon as the server answers."""
    end = time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(url, timeout=30).read().decode()
        except OSError:
            if time.monotonic() > end or server.poll() is not None:
                raise
            time.sleep(0.2)
