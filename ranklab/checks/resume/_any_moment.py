"""What a call leaves if it is killed, at any moment: for chapter 25's save_whole.

A process that is killed leaves the files as they are then. So none has to be killed: only built-in
functions reach the disk, and before each call of one a photograph is taken of the folder.
"""

import os
import sys
import tempfile
from pathlib import Path

NAME = "model.pt"
TRIED = 100  # photographs from which a next call begins
NUMBERS = range(1024)  # numbers that open files may have


def flaw(save, old, new):
    """Say in a sentence what is wrong with save(path, data), or return ""."""
    seen, synced = _photographs(save, old, new)
    model = [files.get(NAME, (None, None)) for _, files in seen]
    if model[-1][1] != new:
        return "A call that is not killed does not leave the new content."
    for (function, _), (_, held) in zip(seen, model, strict=True):
        if held not in (old, new):
            what = "no file" if held is None else f"{len(held)} bytes"
            return f"Killed before `{function}`, it leaves {what}, neither the old nor the new."
    if model[-1][0] == model[0][0]:
        return "It writes into the file itself: no draft was given its name."
    if not any(model[-1] in _drafts(files) for _, files in seen):
        return "The draft is in another folder. That may be another disk."
    if model[-1] not in synced:
        return "The draft gets its new name before its bytes are on the disk: no fsync before it."
    some = seen[:: 1 + len(seen) // TRIED]
    return next(filter(None, (_next_call(save, files, new) for _, files in some)), "")


def _photographs(save, old, new):
    """Call save; return (what was called next, the folder) at each change, and what was synced."""
    seen, synced = [], set()

    def look(_, event, function):
        if event == "c_call":
            files = _photograph(folder)
            if not seen or seen[-1][1] != files:
                seen.append((function.__name__, files))
            if function.__name__ in ("fsync", "fdatasync"):  # of an open file: which is not told
                there = {os.fstat(number).st_ino for number in NUMBERS if os.path.exists(number)}
                synced.update(file for file in _drafts(files) if file[0] in there)

    with tempfile.TemporaryDirectory(prefix="whole-") as folder:
        path = Path(folder, NAME)
        if old is not None:
            path.write_bytes(old)
        sys.setprofile(look)
        try:
            save(str(path), new)
        finally:
            sys.setprofile(None)  # a built-in function, too: here is the last photograph
    return seen, synced


def _photograph(folder):
    """Return {name: (its number on the disk, content)} of all files in a folder and below."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): (p.stat().st_ino, p.read_bytes()) for p in files}


def _drafts(files):
    return [file for name, file in files.items() if name != NAME]


def _next_call(save, files, new):
    """Say what is wrong with the next call, where the one before has left these files; or ""."""
    with tempfile.TemporaryDirectory(prefix="whole-") as folder:
        for name, (_, content) in files.items():
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).write_bytes(content)
        try:
            save(str(Path(folder, NAME)), new)
        except Exception as error:
            return f"The next call after a kill fails: {type(error).__name__}: {error}"
        if Path(folder, NAME).read_bytes() != new:
            return "The next call after a kill does not leave the new content."
        if others := {*os.listdir(folder)} - {NAME}:
            return f"After one more call, there are other files beside it: {min(others)}."
    return ""
