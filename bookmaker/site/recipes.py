"""The programs of the page "Use ranklab in your own work": run when the book is built."""

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bookmaker.errors import BookError
from bookmaker.files import replace
from bookmaker.folders import Folders

PLACE = re.compile(r"^<!-- recipe: (\w+\.py) -->$", re.MULTILINE)
LIMIT = 120  # seconds


def shown(text: str, folders: Folders) -> str:
    """The page's text with each recipe in its place, and below it what it printed.

    Raises BookError for one that fails, or is not there, and if the page has no place for any.
    """
    if not PLACE.search(text):
        raise BookError("book/own_work.md has no line `<!-- recipe: name.py -->`.")
    return PLACE.sub(lambda found: _one(folders.book / "recipes" / found[1], folders), text)


def _one(recipe: Path, folders: Folders) -> str:
    if not recipe.exists():
        raise BookError(f"book/own_work.md shows {recipe.name}, but it is not in book/recipes.")
    code = recipe.read_text(encoding="utf-8")
    printed = _printed(recipe, folders)
    return f"```python\n{code.strip()}\n```\n\n```text\n{printed.strip()}\n```"


def _printed(recipe: Path, folders: Folders) -> str:
    """What it prints; it runs again only if it, or what it may use, has changed."""
    digest = hashlib.sha256(f"{sys.version} {version('torch')}".encode() + recipe.read_bytes())
    for used in (folders.root / "ranklab", folders.root / "bookmaker" / "script"):
        for path in sorted(used.rglob("*.py")):
            digest.update(path.read_bytes())
    kept = folders.build / "recipes" / f"{recipe.stem}-{digest.hexdigest()[:20]}.txt"
    if not kept.exists():
        printed = _run(recipe)
        for old in kept.parent.glob(f"{recipe.stem}-*.txt"):
            old.unlink()
        replace(kept, printed)
    return kept.read_text(encoding="utf-8")


def _run(recipe: Path) -> str:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": beside, "OMP_NUM_THREADS": "1"}
    environment.pop("RANKLAB_RANKS", None)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, recipe],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what it starts can be ended with it
        )
        try:
            said, complaint = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise BookError(f"{recipe.name} has not ended after {LIMIT} seconds.") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        raise BookError(f"{recipe.name} failed:\n{said}{complaint}")
    return said.replace(f"{recipe.parent}{os.sep}", "")
