"""What the exercises of the book check: a module for each chapter, named as the chapter is.

Each holds `Exercise` and `Choice` objects (see `ranklab.exercises`), one for each `check(...)` of
the chapter. `find` gives the one of a name.
"""

import difflib
import importlib
import pkgutil
import re
from pathlib import Path

FOLDER = Path(__file__).parent


def find(name):
    """Return the exercise called `name`, or None.

    Only a module that has the name in its text is imported.
    """
    for module in modules():
        if re.search(rf"[\"']{re.escape(name)}[\"']", (FOLDER / f"{module}.py").read_text("utf-8")):
            found = exercises(module).get(name)
            if found is not None:
                return found
    return None


def exercises(module):
    """Return {name: exercise} of one of the modules, in the order in which they stand there."""
    from ranklab.exercises import Choice, Exercise

    there = vars(importlib.import_module(f"{__name__}.{module}")).values()
    return {one.name: one for one in there if isinstance(one, (Choice, Exercise))}


def modules():
    """Return the names of the modules here, each that of a chapter."""
    return [module.name for module in pkgutil.iter_modules([str(FOLDER)])]


def close_to(name):
    """Return up to three names of exercises that are spelled much like `name`."""
    names = [known for module in modules() for known in exercises(module)]
    return difflib.get_close_matches(name, names, n=3)
