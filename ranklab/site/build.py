"""Call jupyter-book on the staged pages, with its own talk kept in a file."""

import os
import subprocess
import sys

from ranklab.site.folders import BookError, Folders

COMMAND = "from jupyter_book.cli.main import main; main(prog_name='jupyter-book')"


def build(folders: Folders) -> None:
    """Make _build/html of _build/source; every warning of Sphinx is an error.

    Raises BookError with what Sphinx complained about.
    """
    log = folders.build / "sphinx.log"
    arguments = [
        *("build", str(folders.source)),
        *("--path-output", str(folders.root)),
        *("--config", str(folders.root / "_config.yml")),
        *("--toc", str(folders.root / "_toc.yml")),
        *("-W", "--keep-going", "-n"),
    ]
    with log.open("w", encoding="utf-8") as file:
        run = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"NO_COLOR": "1"},
        )
    if run.returncode:
        raise BookError(f"{_complaints(log.read_text(encoding='utf-8'))}\nAll of it: {log}")


def _complaints(text: str) -> str:
    """The lines that matter, or the end of the log where none is marked."""
    lines = text.splitlines()
    marked = [line for line in lines if "WARNING" in line or "ERROR" in line]
    return "\n".join(marked or lines[-20:])
