"""Exercises that no book has, for the tests of checking: where they are, and who runs them."""

import os
from pathlib import Path

import psutil
import pytest

from ranklab import checks
from ranklab.exercises import checker_process
from ranklab.guardian import belonging_to

MADE_UP = Path(__file__).parent / "made_up"
SOON = 30  # seconds


@pytest.fixture(scope="module", autouse=True)
def made_up_exercises():
    """Let `check` find the exercises of the tests, here and in processes that are started."""
    os.environ["RANKLAB_CHECKS"] = str(MADE_UP)
    checks.__path__.append(str(MADE_UP))
    yield
    checker_process.end()
    checks.__path__.remove(str(MADE_UP))
    del os.environ["RANKLAB_CHECKS"]


def checkers(pid):
    """Return the checking processes of the process `pid`."""
    children = psutil.Process(pid).children()
    return [child for child in children if "ranklab.exercises.checker_main" in child.cmdline()]


def guardian_of(checker):
    """Return the newest process that watches over the ranks of a checking process."""
    return [c for c in checker.children() if any("guardian" in part for part in c.cmdline())][-1]


def folder_of(checker):
    """Return the folder of its ranks."""
    return guardian_of(checker).cmdline()[-1]


def all_of(checker):
    """Return a checking process and all that belongs to its ranks."""
    return [checker, guardian_of(checker), *belonging_to(folder_of(checker))]
