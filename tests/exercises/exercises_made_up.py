"""Exercises that no book has, for the tests of checking: where they are, and who runs them."""

import os
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from ranklab import checks
from ranklab.exercises import checker_process
from ranklab.start.guardian import belonging_to

MADE_UP = Path(__file__).parent / "made_up"


@pytest.fixture(scope="module", autouse=True)
def made_up_exercises():
    """Let `check` find the exercises of the tests, here and in processes that are started."""
    os.environ["RANKLAB_CHECKS"] = str(MADE_UP)
    checks.__path__.append(str(MADE_UP))
    checker_process.end()  # one of the tests before these does not know of them
    yield
    checker_process.end()
    checks.__path__.remove(str(MADE_UP))
    del os.environ["RANKLAB_CHECKS"]


def spread(x, src):
    box = x.clone()
    if dist.get_rank() == src:
        for other in range(dist.get_world_size()):
            if other != src:
                dist.send(x, other)
    else:
        dist.recv(box, src)
    return box


def line_of(function, text):
    """Return the number of the line of `function` that has `text` in it, as the editor counts."""
    lines = Path(function.__code__.co_filename).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[first - 1 :], first) if text in line)


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
