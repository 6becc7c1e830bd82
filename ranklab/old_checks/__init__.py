"""Exercises that are not yet a file each; this folder goes when the last of them has moved."""

import functools
import importlib
import pkgutil

from ranklab.exercises import model


@functools.cache
def exercises(module):
    """Return {name: exercise} of one of the modules, in the order in which they stand there."""
    there = vars(importlib.import_module(f"{__name__}.{module}")).values()
    return {one.name: one for one in there if isinstance(one, (model.Choice, model.Exercise))}


def modules():
    """Return the names of the modules, but for those that only help others (`_name`)."""
    return [one.name for one in pkgutil.iter_modules(__path__) if not one.name.startswith("_")]


def find(name):
    """Return the exercise called `name`, or None."""
    for module in modules():
        if name in exercises(module):
            return exercises(module)[name]
    return None
