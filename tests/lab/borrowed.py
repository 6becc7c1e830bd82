"""What is borrowed without a promise (ranklab/upstream): each of it is tried on what is installed.

The checks stand in a file for each module, test_upstream_<module>.py. A failure says what stops
working. Two ranks answer for a file, and one process that Gloo aborts (gloo_told.py) for what a
healthy one does not say.
"""

import functools
import inspect
import json
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import FunctionType

import ipyparallel as ipp
import pytest

from ranklab import Ranks
from ranklab.upstream import ipyparallel

INSTALLED = ", ".join(
    f"{name} {version(name)}" for name in ("torch", "ipyparallel", "ipython", "ipykernel")
)
TIMEOUT = 10.0
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, backend="gloo", device="cpu", timeout=TIMEOUT) as ranks:
        yield ranks


class Borrowed:
    """What modules of ranklab/upstream borrow, and classes elsewhere: `more`; with their checks."""

    def __init__(self, *modules, more=()):
        self._all = [one for module in modules for one in functions_of(module)] + [*more]
        self._checks = {}  # {what is borrowed: a function that tries it}

    def tries(self, *borrowed):
        """Note that the function below tries these; it gets the ranks."""

        def note(check):
            self._checks.update(dict.fromkeys(borrowed, check))
            return check

        return note

    @property
    def each(self):
        names = [f"{one.__module__}.{one.__name__}" for one in self._all]
        return pytest.mark.parametrize("borrowed", self._all, ids=names)

    def is_there(self, borrowed, ranks=None):
        """Fail with what is lost where a check fails, or where there is none."""
        assert lost_without(borrowed), "say in its docstring what is lost without it"
        assert borrowed in self._checks, "try it here"
        if failed := failure(self._checks[borrowed], ranks):
            said = f"{borrowed.__name__} does not work with {INSTALLED}. {lost_without(borrowed)}"
            raise AssertionError(said) from failed


def functions_of(module):
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and not name.startswith("_")
        and value.__module__ in (module.__name__, "__main__")
    ]


def lost_without(borrowed):
    _, without, what = inspect.getdoc(borrowed).rpartition("Without it: ")
    return " ".join([without.strip(), *what.split()]) if without else ""


@functools.cache
def failure(check, ranks):
    """What a check ends in, once for all that it tries."""
    try:
        check(ranks)
    except (Exception, pytest.fail.Exception) as error:
        return error


# What several of the files use


def cell(ranks, code):
    """What rank 0 answers to a cell."""
    run = functools.partial(ranks.client[0].execute, silent=False, block=False)
    # Right after a cell that failed, others are dropped.
    while isinstance(answer_to(run("pass")), ipp.error.TaskAborted):
        pass
    return run(code)


def answer_to(result):
    assert result.wait(10)
    return ipyparallel.answers(result)[0][1]


def failure_of(ranks, code):
    """The RemoteError in which the cell ends."""
    return answer_to(cell(ranks, code))


@functools.cache
def gloo_told():
    """What gloo_told.py printed: (as JSON, its errors as text)."""
    command = [sys.executable, Path(__file__).with_name("gloo_told.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == -signal.SIGABRT, ran.stderr
    told, _, last_words = ran.stdout.strip().partition("\n")
    return {**json.loads(told), "last words": last_words.strip(), "stderr": ran.stderr}
