"""What the exercises of the book check: a module for each chapter, named as the chapter is.

Each holds `Exercise` and `Choice` objects (see `ranklab.exercises`), one for each `check(...)` of
the chapter. `find` gives the one of a name. The environment variable RANKLAB_CHECKS may name a
folder with more such modules: a teacher's, say.
"""

import difflib
import importlib
import os
import pkgutil
import re
from pathlib import Path

__path__ += filter(None, os.environ.get("RANKLAB_CHECKS", "").split(os.pathsep))


def find(name):
    """Return the exercise called `name`, or None.

    Only a module that has the name in its text is imported.
    """
    for module, file in modules().items():
        if re.search(rf"[\"']{re.escape(name)}[\"']", file.read_text("utf-8")):
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
    """Return {name of a module: its file}, but for those that only help others (`_name`)."""
    found = [one for one in pkgutil.iter_modules(__path__) if not one.name.startswith("_")]
    return {one.name: Path(one.module_finder.path, f"{one.name}.py") for one in found}


def close_to(name):
    """Return up to three names of exercises that are spelled much like `name`."""
    names = [known for module in modules() for known in exercises(module)]
    return difflib.get_close_matches(name, names, n=3)
