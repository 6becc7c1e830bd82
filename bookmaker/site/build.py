"""Call jupyter-book on the staged pages, with its own talk kept in a file."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from nbconvert.filters import strip_ansi

from bookmaker.errors import BookError
from bookmaker.folders import Folders

# Without looking for garbage, it takes a quarter less time (15 s become 11) and 100 MB more memory;
# bookmaker leaves out another third, which is of no use to it. And of each citation it would ask
# anew what is installed.
COMMAND = """
import functools
import gc
import importlib.metadata
import sys

import bookmaker

gc.disable()
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
import jupyter_book.config
import jupyter_book.sphinx
import sphinx_book_theme
from jupyter_book.cli.main import main

if sys.stdin.readline():
    main(prog_name="jupyter-book")
"""


@contextlib.contextmanager
def builder(folders: Folders) -> Iterator[Callable[[], None]]:
    """What builds the site, when it is called; it imports what it needs meanwhile."""
    arguments = [
        *("build", str(folders.source)),
        *("--path-output", str(folders.root)),
        *("--config", str(folders.root / "_config.yml")),
        *("-W", "--keep-going", "-n"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    with process:
        try:
            yield lambda: _build(process, folders)
        finally:
            process.kill()


def _build(process: subprocess.Popen, folders: Folders) -> None:
    """Make _build/html of _build/source; every warning of Sphinx is an error.

    Raises BookError with what Sphinx complained about.
    """
    try:
        said = strip_ansi(process.communicate("now\n")[0])
    finally:
        if process.returncode != 0:
            # Sphinx would not read the same pages again, and so not complain a second time.
            shutil.rmtree(folders.build / ".doctrees", ignore_errors=True)
    log = folders.build / "sphinx.log"
    log.write_text(said, encoding="utf-8")
    if process.returncode != 0:
        raise BookError(f"{_complaints(said)}\nAll of it: {log}")


def _complaints(text: str) -> str:
    """The lines that matter, or the end of the log where none is marked."""
    lines = text.splitlines()
    marked = [line for line in lines if "WARNING" in line or "ERROR" in line]
    return "\n".join(marked or lines[-20:])
