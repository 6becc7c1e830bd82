"""Checks that have passed with the same files are skipped: in a small book of two exercises."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from bookmaker.folders import HERE

REAL = ("bookmaker/folders.py", "ranklab/errors.py", "ranklab/checks/__init__.py")
REAL += ("tests/exercises/conftest.py",)
CHECKS = """
import importlib
import pytest

@pytest.mark.parametrize("name", ["one", "two"])
def test_the_solution_is_accepted(name):
    assert importlib.import_module(f"ranklab.checks.{name}s.{name}").right
"""


@pytest.fixture
def book(tmp_path):
    """A folder with the real hooks, and a chapter for each of two exercises."""
    for name in REAL:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE.root / name, tmp_path / name)
    for name in ("one", "two"):
        write(tmp_path / f"ranklab/checks/{name}s/{name}.py", "right = True")
    write(tmp_path / "tests/exercises/test_checks.py", CHECKS)
    for name in ("bookmaker/__init__.py", "ranklab/__init__.py", "requirements.txt"):
        write(tmp_path / name, "")
    return tmp_path


def write(file, text):
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def checked(book, **more):
    """What became of the checks of both exercises."""
    around = {name: value for name, value in os.environ.items() if name != "CI"}
    around |= {"PYTHONPATH": str(book), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run(command, cwd=book, env=around, capture_output=True, text=True)
    return re.findall(r"^tests/\S+\] (\w+)", ran.stdout, re.MULTILINE)


def test_it_runs_again_only_after_its_files_have_changed(book):
    one = book / "ranklab/checks/ones/one.py"
    assert checked(book) == ["PASSED", "PASSED"]
    assert checked(book) == ["SKIPPED", "SKIPPED"]
    write(one, "right = True  # otherwise")
    assert checked(book) == ["PASSED", "SKIPPED"]
    assert checked(book) == ["SKIPPED", "SKIPPED"]
    write(book / "ranklab/errors.py", (book / "ranklab/errors.py").read_text() + "\n")
    assert checked(book) == ["PASSED", "PASSED"]  # what all of them use


def test_one_that_failed_runs_again(book):
    write(book / "ranklab/checks/ones/one.py", "right = False")
    assert checked(book) == ["FAILED", "PASSED"]
    assert checked(book) == ["FAILED", "SKIPPED"]


def test_nothing_is_skipped_on_the_code_host(book):
    assert checked(book) == ["PASSED", "PASSED"]
    assert checked(book, CI="true") == ["PASSED", "PASSED"]
    assert checked(book) == ["SKIPPED", "SKIPPED"]
