"""A file that is whole, or not there. The disk that kills is in _failing_disk.py."""

import os
import shutil
import tempfile
from os import fsync, replace
from pathlib import Path

from ranklab.checks._failing_disk import killed_everywhere
from ranklab.exercises import Case, Exercise, Mistake

DRAFT, FLUSHED, SYNCED = 'f"{path}.draft"', "file.flush()", "os.fsync(file.fileno())"
RENAMED = "    os.replace(draft, path)\n"
IMPORT = "import os\n"


def case(what, old, new):
    return Case(what, lambda *_: (old, new), ranks=1)


def drive(answer, old, new):
    """Call the answer, killing it at one point after the other; say what the file held then."""
    return killed_everywhere(answer, old, new)


def said(*words):
    return lambda seen: any(word in seen.results[0] for word in words)


def over_the_old_bytes(path, data):
    number = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(number, data)
    os.ftruncate(number, len(data))
    os.fsync(number)
    os.close(number)


def with_a_name_of_its_own(path, data):
    Path(f"{path}.draft").write_bytes(data)
    replace(f"{path}.draft", path)


def by_its_number(path, data):
    draft = path + ".new"
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    while data:
        data = data[os.write(number, data) :]
    os.fdatasync(number)
    os.close(number)
    replace(draft, path)


def with_pathlib(path, data):
    """The bytes reach the disk by another number of the same file; the folder's names, too."""
    target = Path(path)
    draft = target.with_suffix(".draft")
    draft.write_bytes(data)
    with draft.open("rb") as file:
        fsync(file.fileno())
    draft.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def in_a_folder_below(path, data):
    below = path + ".drafts"
    shutil.rmtree(below, ignore_errors=True)
    os.mkdir(below)
    number, draft = tempfile.mkstemp(dir=below)
    with os.fdopen(number, "wb") as file:
        file.write(memoryview(data))
        file.flush()
        os.fsync(number)
    os.replace(draft, path)
    os.rmdir(below)


exercise = Exercise(
    cases=[
        case("4000 bytes in place of 4000 others", b"old " * 1000, b"new " * 1000),
        case("a file that was not there", None, b"new " * 1000),
        case("a shorter file than before", b"old " * 1000, b"n"),
    ],
    twin=None,
    drive=drive,
    judge=lambda seen: seen.results[0] or None,
    hint="Write a draft, flush it, fsync it, rename it.",
    mistakes=[
        Mistake(
            "Write into another file, and rename it when it is whole.",
            {DRAFT: "path", RENAMED: ""},
            {RENAMED: f"    if os.path.exists(path):\n        os.remove(path)\n{RENAMED}"},
            over_the_old_bytes,
            test=said("neither the old nor the new", "into the file itself"),
        ),
        Mistake(
            "`file.flush()` and then `os.fsync(file.fileno())`, before the renaming.",
            {SYNCED: "pass"},
            {FLUSHED: "pass"},
            {SYNCED: f"{RENAMED.strip()}\n        {SYNCED}", RENAMED: ""},
            with_a_name_of_its_own,
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
        by_its_number,
        with_pathlib,
        in_a_folder_below,
        {'"wb"': '"wb", buffering=0', FLUSHED: "pass"},
    ],
)
