"""A repository with one small chapter, for the tests of its forms."""

import contextlib
import io
import shutil

import pytest

from bookmaker.folders import HERE
from bookmaker.forms.__main__ import main

HEADER = """\
---
chapter:
  about: what it is about
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---
"""
SAMPLES = HERE.root / "tests" / "maker" / "manuscripts"


@pytest.fixture
def book(tmp_path):
    """A repository with one small chapter that saves a function, and nothing generated."""
    for folder in ("book", "notebooks", "scripts", "ranklab/taught"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SAMPLES / "92_saved.md", tmp_path / "book" / "92_saved.md")
    (tmp_path / "ranklab" / "taught" / "__init__.py").write_text('"""Ours."""\n')
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://host.example/me/mine\n")
    return tmp_path


def forms(book, *options):
    """Run the command: (exit status, its lines)."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = main(["--root", str(book), *map(str, options)])
    return status, printed.getvalue().splitlines()


def contents(book):
    """Every file below a folder: path -> its bytes."""
    return {path: path.read_bytes() for path in sorted(book.rglob("*")) if path.is_file()}
