"""The reader's answer on its way to another process: by value, with its source for error messages.

cloudpickle packs a function together with the functions, classes and globals that it uses, as long
as they are the reader's own. What is installed goes by its name.
"""

import contextlib
import functools
import inspect
import io
import linecache
import os
import sys
from dataclasses import dataclass

import cloudpickle

from ranklab.doctor.places import NOT_THE_READERS
from ranklab.errors import SaidInWords
from ranklab.exercises.attempted import codes_of, functions_of
from ranklab.upstream import cpython


class NotPackable(SaidInWords, TypeError):
    """The answer uses something that cannot go to another process."""


@dataclass(frozen=True)
class Parcel:
    """The reader's answers to an exercise, and what it takes to run them elsewhere: plain data.

    exercise: its name. trains: as the Exercise says. answers: the tuple of them, packed. names: of
    the answers. parameters: names of those of the first answer. sources: {file: text} of the
    reader's code. path and folder: sys.path and the working folder of the kernel.
    """

    exercise: str
    trains: bool
    answers: bytes
    names: list
    parameters: list
    sources: dict
    path: list
    folder: str


@dataclass(frozen=True)
class Order(Parcel):
    """What a rank is told to run. drive: packed; trace and in_place: as the Exercise says."""

    drive: bytes
    trace: bool
    in_place: bool


def pack(exercise, answers):
    """Return the Parcel of answers to an exercise."""
    parts = _parts(answers)
    files = {code.co_filename for part in parts for code in codes_of(part)}
    with _by_value(parts):
        try:
            packed = _packed(answers)
        except Exception as error:
            raise NotPackable(_why_not(parts, error)) from None
    return Parcel(
        exercise=exercise.name,
        trains=exercise.trains,
        answers=packed,
        names=[getattr(answer, "__name__", "the answer") for answer in answers],
        parameters=parameters(answers[0]),
        sources={file: "".join(linecache.getlines(file)) for file in sorted(files)},
        path=[os.path.abspath(entry) for entry in sys.path],
        folder=os.getcwd(),
    )


class _Pickler(cloudpickle.Pickler):
    """Packs a function with a cache by value, too; cloudpickle alone takes it for installed."""

    def reducer_override(self, value):
        if cpython.is_cached(value) and _is_readers(value.__wrapped__):
            return _with_a_cache, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _with_a_cache(function, how):
    return functools.lru_cache(**how)(function)


def _packed(value):
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def parameters(answer):
    """Return the names of what a function, or a class, is called with."""
    try:
        return list(inspect.signature(answer).parameters)
    except (TypeError, ValueError):  # something built in
        return []


def _parts(answers):
    """Return the answers, and the functions and classes of the reader's that they use."""
    found = [*answers]
    for part in found:  # grows as it is gone through
        for used in _used(part).values():
            own = inspect.isfunction(used) or inspect.isclass(used)
            if own and _is_readers(used) and not any(used is known for known in found):
                found.append(used)
    return found


def _used(part):
    """Return {name: value} of what a function, or a method of a class, takes from around it."""
    used = {}
    for function in functions_of(part):
        names = {name for code in codes_of(function) for name in code.co_names}
        there = function.__globals__
        used |= {name: there[name] for name in names if name in there}
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        used |= {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    if inspect.isclass(part):
        return used | {base.__name__: base for base in part.__bases__}
    return used | getattr(part, "__dict__", {})  # an object that decorates keeps what it calls


def _is_filled(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_readers(part):
    """Is it of the reader's own making, not installed, and not of an earlier chapter either?"""
    files = {code.co_filename for code in codes_of(part)}
    installed = str(getattr(part, "__module__", "")).partition(".")[0] == "ranklab"
    return bool(files) and not installed and not any(map(NOT_THE_READERS.search, files))


@contextlib.contextmanager
def _by_value(parts):
    """Let cloudpickle pack the contents of the reader's own modules, which are nowhere else."""
    readers = filter(_is_readers, parts)
    names = {function.__module__ for part in readers for function in functions_of(part)}
    names -= {"__main__", None, *cloudpickle.list_registry_pickle_by_value()}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _why_not(parts, error):
    """Name the global that cannot be packed, as the error itself only tells of its insides."""
    for part in parts:
        for name, value in _used(part).items():
            if inspect.ismodule(value) or any(value is known for known in parts):
                continue
            try:
                _packed(value)
            except Exception:
                user = getattr(part, "__name__", "the answer")
                return (
                    f"{user} uses `{name}` of this notebook, which cannot go to the processes that "
                    "check it. Give it to the function as an argument, or make it inside."
                )
    return f"The answer cannot go to the processes that check it: {error}."
