"""What the exercises of the book check: a module for each chapter, named as the chapter is.

Some exercises share a module of their own, so that none gets long; its first line says of which
chapter it is (accumulation, autograd, bf16, blocks, checkpoints, clipping, first_wrong, gated,
mean_all_reduce, meet, mlp, own_collectives, pass_along, seeds, split_backward, split_sums, stages,
sync_step, uneven, within_limit and wrapper are such). Each holds `Exercise` and `Choice` objects
(see `ranklab.exercises`), one for each `check(...)`. `find` gives the one of a name. The
environment variable RANKLAB_CHECKS may name a folder with more such modules: a teacher's, say.
"""

import difflib
import importlib
import os
import pkgutil
import re
from pathlib import Path

from ranklab.errors import ArgumentError

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
    found = {}
    for folder in dict.fromkeys(map(os.path.abspath, __path__)):
        for one in pkgutil.iter_modules([folder]):
            if one.name.startswith("_") or one.ispkg:
                continue
            if one.name in found:
                raise ArgumentError(
                    f"{folder} has a module of exercises called {one.name}, and so has "
                    f"{found[one.name].parent}: one of them would never be found. Rename one."
                )
            found[one.name] = Path(folder, f"{one.name}.py")
    return found


def close_to(name):
    """Return up to three names of exercises that are spelled much like `name`."""
    names = [known for module in modules() for known in exercises(module)]
    return difflib.get_close_matches(name, names, n=3)
