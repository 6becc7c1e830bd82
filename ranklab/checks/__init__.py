"""What the exercises of the book check: a folder for each chapter, a file for each exercise.

`check("own_broadcast", ...)` finds `own_broadcast.py` by its name. In it, `exercise` is an
`Exercise` or a `Choice` (see `ranklab.exercises`). Files called `_something.py` hold what several
exercises share, or what is long in one; `solutions.py`, which `make forms` writes, the solutions of
a chapter's manuscript.
The environment variable RANKLAB_CHECKS may name folders with more such files: a teacher's, say.
"""

import dataclasses
import difflib
import importlib
import os
from pathlib import Path

from ranklab.errors import ArgumentError

SOLUTIONS = "solutions.py"

__path__ += filter(None, os.environ.get("RANKLAB_CHECKS", "").split(os.pathsep))


def find(name):
    """Return the exercise called `name`, or None. No other file is imported."""
    file = files().get(name)
    if file is None:
        return None
    module = ".".join([__name__, *[file.parent.name] * (file.parent not in _roots()), name])
    return dataclasses.replace(importlib.import_module(module).exercise, name=name)


def files():
    """Return {name of an exercise: its file}."""
    found = {}
    for root in _roots():
        for file in sorted([*root.glob("[a-z]*.py"), *root.glob("[a-z]*/[a-z]*.py")]):
            if file.name == SOLUTIONS:
                continue
            if file.stem in found:
                raise ArgumentError(
                    f"There are two exercises called {file.stem}, {found[file.stem]} and {file}: "
                    "one of them would never be found. Rename one."
                )
            found[file.stem] = file
    return found


def close_to(name):
    """Return up to three names of exercises that are spelled much like `name`."""
    return difflib.get_close_matches(name, files(), n=3)


def _roots():
    return [Path(folder) for folder in dict.fromkeys(map(os.path.abspath, __path__))]
