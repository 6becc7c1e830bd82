"""A file that is whole, or not there."""

import os
import shutil
import tempfile
from os import fsync, replace
from pathlib import Path

from ranklab.checks.resume._any_moment import flaw
from ranklab.exercises import Case, Exercise, Mistake

DRAFT, FLUSHED, SYNCED = 'f"{path}.draft"', "file.flush()", "os.fsync(file.fileno())"
RENAMED = "    os.replace(draft, path)\n"
FOLDER_SYNCED = "    os.fsync(os.open(os.path.dirname(path), 0))\n"
IMPORT = "import os\n"


def case(what, old, new):
    return Case(what, lambda *_: (old, new), ranks=1)


def said(*words):
    return lambda seen: any(word in seen.results[0] for word in words)


def by_other_names(path, data):
    """In a folder below; and the bytes reach the disk by another number of the same file."""
    below = Path(f"{path}.drafts")
    shutil.rmtree(below, ignore_errors=True)
    below.mkdir()
    number, draft = tempfile.mkstemp(dir=below)
    while data:
        data = data[os.write(number, data) :]
    os.close(number)
    with Path(draft).open("rb") as file:
        fsync(file)
    replace(src=draft, dst=path)
    below.rmdir()


exercise = Exercise(
    cases=[
        case("4000 bytes in place of 4000 others", b"old " * 1000, b"new " * 1000),
        case("a file that was not there", None, b"new " * 1000),
        case("a shorter file than before", b"old " * 1000, b"n"),
    ],
    twin=None,
    drive=flaw,
    judge=lambda seen: seen.results[0] or None,
    hint="Write a draft, flush it, fsync it, rename it.",
    mistakes=[
        Mistake(
            "Write into another file, and rename it when it is whole.",
            {DRAFT: "path", RENAMED: ""},
            {RENAMED: f"    if os.path.exists(path):\n        os.remove(path)\n{RENAMED}"},
            {DRAFT: "path", RENAMED: "", '"wb"': '"r+b" if os.path.exists(path) else "wb"'},
            test=said("neither the old nor the new", "into the file itself"),
        ),
        Mistake(
            "`file.flush()` and then `os.fsync(file.fileno())`, before the renaming.",
            {SYNCED: "pass"},
            {FLUSHED: "pass"},
            {SYNCED: f"{RENAMED.strip()}\n        {SYNCED}", RENAMED: ""},
            {SYNCED: "pass", RENAMED: FOLDER_SYNCED + RENAMED},
            test=said("fsync"),
        ),
        Mistake(
            "A file is renamed in one step within one file system only: put the draft beside it.",
            {
                IMPORT: f"{IMPORT}import tempfile\n",
                DRAFT: 'f"{tempfile.gettempdir()}/draft-of-{os.getpid()}"',
            },
            test=said("another folder"),
        ),
        Mistake(
            "A draft may be left from before. Is it in the way?",
            {'"wb"': '"xb"'},
            test=said("after a kill"),
        ),
        Mistake(
            "Give the draft one name, which the next call uses again.",
            {IMPORT: f"{IMPORT}import time\n", DRAFT: 'f"{path}.{time.time_ns()}"'},
            test=said("beside it"),
        ),
    ],
    also_right=[
        by_other_names,
        {'"wb"': '"wb", buffering=0', FLUSHED: "pass"},
    ],
)
