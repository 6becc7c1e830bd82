"""Private names of other packages are used in ranklab/upstream and bookmaker/upstream.py alone."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ("ranklab", "bookmaker")
FILES = sorted(file for package in OWN for file in (ROOT / package).rglob("*.py"))
BORROWS = (ROOT / "ranklab" / "upstream", ROOT / "bookmaker" / "upstream.py")
REST = [file for file in FILES if not any(file.is_relative_to(place) for place in BORROWS)]
# Documented all the same: https://docs.python.org/3/library (os, sys, collections).
PROMISED = {"os._exit", "sys._current_frames", "sys._getframe", "_asdict", "_replace", "_fields"}
TAUGHT = {"_execution_engine"}  # chapter 12 shows it to the reader; test_upstream_torch.py tries it
ASKS_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
PRIVATE_MODULE = re.compile(r"[a-z]\w*(\.\w+)*\._[a-z]\w*(\.\w+)*", re.IGNORECASE)


def is_private(name):
    """Does it begin with one underscore? (`_repr_svg_`, with one behind, IPython documents.)"""
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("_")


def tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def defined_in(node):
    """The private names that source defines: of modules and classes, and what `self` gets."""
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=value) if is_self(value):
                yield name


def used_in(node):
    """(line, text, private name) of each use of a private name of something else's."""
    for part in ast.walk(node):
        match part:
            case ast.Attribute(attr=name):
                yield part.lineno, ast.unparse(part), name
            case ast.Call(func=ast.Name(asks), args=[_, ast.Constant(str(name)), *_]) if (
                asks in ASKS_BY_NAME
            ):
                yield part.lineno, ast.unparse(part), name
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Call(func=ast.Name("vars"))),
                    args=[ast.Constant(str(name)), *_],
                )
                | ast.Subscript(
                    value=ast.Call(func=ast.Name("vars")), slice=ast.Constant(str(name))
                )
            ):
                yield part.lineno, ast.unparse(part), name
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] not in OWN:
                for name in (*module.split("."), *(alias.name for alias in part.names)):
                    yield part.lineno, ast.unparse(part), name
            case ast.Import():
                for name in ".".join(alias.name for alias in part.names).split("."):
                    yield part.lineno, ast.unparse(part), name
            case ast.Constant(str(text)) if PRIVATE_MODULE.fullmatch(text):
                yield part.lineno, text, text.rpartition("._")[1] + text.rpartition("._")[2]


def borrowed(source, own):
    """ "line: what", for each private name in the source that nobody here defines."""
    return [
        f"{line}: {text}"
        for line, text, name in used_in(source)
        if is_private(name.removeprefix("."))
        and name not in own
        and text not in PROMISED
        and name not in PROMISED
    ]


OWN_NAMES = {name for file in REST for name in defined_in(tree(file)) if is_private(name)}


def test_no_private_name_of_others_outside_upstream():
    found = {file.relative_to(ROOT): borrowed(tree(file), OWN_NAMES | TAUGHT) for file in REST}
    found = [f"{file}:{text}" for file, texts in found.items() for text in texts]
    assert not found, "these belong into upstream, behind names that say what they do"


@pytest.mark.parametrize(
    "source",
    [
        "client._futures",
        "self._start_waiting()",
        "super()._wait()",
        "result._fname = 1",
        "torch._C._distributed_c10d",
        "import torch._dynamo",
        "from torch._C._profiler import x",
        "from functools import _lru_cache_wrapper",
        "getattr(x, '_dump_fr_trace_json', None)",
        "vars(cluster).get('_thread_loop')",
        "preload = ['torch._dynamo']",
    ],
)
def test_private_names_are_found(source):
    assert borrowed(ast.parse(source), {"_own"})


@pytest.mark.parametrize(
    "source", ["self._own", "other._own", "os._exit(1)", "type(x).__name__", "figure._repr_svg_()"]
)
def test_what_is_no_private_name_of_others_is_left_alone(source):
    assert not borrowed(ast.parse(source), {"_own"})


def private_parts():
    """(module, class, private names in its body), of the classes that inherit."""
    for file in REST:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef) and node.bases:
                names = {name for part in node.body for name in defined_in(part)}
                if private := {name for name in names if is_private(name)}:
                    yield module, node.name, private


@pytest.mark.parametrize(("module", "name", "parts"), list(private_parts()))
def test_no_private_method_of_others_is_replaced_outside_upstream(module, name, parts):
    ours = getattr(importlib.import_module(module), name)
    theirs = [base for base in ours.__mro__ if base.__module__.partition(".")[0] not in OWN]
    assert not {part for part in parts for base in theirs if part in vars(base)}


@pytest.mark.parametrize(
    "module", ["cpython", "ipython", "mpich", "torch", "torch_says", "profiler"]
)
def test_importing_one_of_upstream_loads_no_library(module):
    code = f"import sys, ranklab.upstream.{module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "ipyparallel", "IPython", "ipykernel", "mpi4py"} & {*ran.stdout.split()}
