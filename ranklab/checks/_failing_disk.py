"""For chapter 11's file that is whole or not there: a disk that kills whoever writes to it.

What reaches the disk is counted: each half of a write, each fsync, rename and removal. A call is
made again and again, and dies at another point each time.
"""

import builtins
import contextlib
import inspect
import io
import os
import stat
import tempfile
from pathlib import Path
from unittest import mock

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC  # flags of os.open


class Killed(BaseException):
    """What stands for a SIGKILL here. Nothing that catches exceptions as it should catches it."""


class _Disk:
    """Counts what reaches the disk, and kills at the `last` of these points."""

    def __init__(self, last):
        self.last, self.points, self.dead = last, 0, False
        self.only_handed_over = set()  # files that were written to since their last fsync
        self.too_early = False  # was one of them renamed?
        self.drafts = {}  # the old name of a file that was renamed, by the new one

    def point(self):
        """Something is about to reach the disk, or just has."""
        if self.dead or self.points == self.last:
            self.dead = True
            raise Killed
        self.points += 1

    def write(self, number, data, write):
        """Let `write` write the data to the file of this number, half by half."""
        half = len(data) // 2
        self.only_handed_over.add(_file_of(number))
        written = 0
        for part in (data[:half], data[half:]):
            self.point()
            written += write(part)
        return written

    def renamed(self, old, new):
        self.too_early |= _file_of(old) in self.only_handed_over
        self.drafts[os.path.realpath(new)] = os.path.realpath(old)


def _file_of(number_or_path):
    """Return what is the same for all the names and numbers of one file; None if there is none."""
    try:
        found = os.stat(number_or_path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _File:
    """A file whose writes are kept back until it is flushed, and come to the disk in two halves."""

    def __init__(self, file, disk):
        self.file, self.disk, self.kept = file, disk, []

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def write(self, data):
        self.kept.append(data if isinstance(data, str) else bytes(data))
        if isinstance(self.file, io.RawIOBase):  # opened with buffering=0
            self.flush()
        return len(data)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        kept, self.kept = self.kept, []
        if kept:
            self.disk.write(self.fileno(), kept[0][:0].join(kept), self._at_once)

    def _at_once(self, data):
        self.file.write(data)
        self.file.flush()
        return len(data)

    def close(self):
        try:
            if not self.file.closed:
                self.flush()
        finally:
            self.file.close()


def _stand_ins(disk):
    """Return {(module, name): function} for what a process writes with: all go through `disk`."""
    real_open, real_os_open, real_write = io.open, os.open, os.write

    def opened(file, mode="r", *args, **kwargs):
        if not set(mode) & set("wax+") or isinstance(file, int):
            found = real_open(file, mode, *args, **kwargs)
            return _File(found, disk) if found.writable() and _on_disk(found.fileno()) else found
        disk.point()
        watched = _File(real_open(file, mode, *args, **kwargs), disk)
        disk.point()  # opened with "w", it is empty now
        return watched

    def os_opened(path, flags, *args, **kwargs):
        if not flags & WRITING:
            return real_os_open(path, flags, *args, **kwargs)
        disk.point()
        number = real_os_open(path, flags, *args, **kwargs)
        disk.point()
        return number

    def written(number, data):
        if not _on_disk(number):
            return real_write(number, data)
        return disk.write(number, bytes(data), lambda part: real_write(number, part))

    def synced(real):
        def call(file):
            disk.point()
            real(file)
            number = file if isinstance(file, int) else file.fileno()
            disk.only_handed_over.discard(_file_of(number))

        return call

    def renamed(real):
        def call(src, dst, **kwargs):
            disk.point()
            disk.renamed(src, dst)
            real(src, dst, **kwargs)
            disk.point()

        return call

    def removed(real):
        def call(path, **kwargs):
            disk.point()
            real(path, **kwargs)
            disk.point()

        return call

    there = {(io, "open"): opened, (builtins, "open"): opened}
    there |= {(os, "open"): os_opened, (os, "write"): written}
    for stand_in, names in (
        (synced, ("fsync", "fdatasync")),
        (renamed, ("replace", "rename")),
        (removed, ("remove", "unlink")),
    ):
        there |= {(os, name): stand_in(getattr(os, name)) for name in names if hasattr(os, name)}
    return there


def _on_disk(number):
    return stat.S_ISREG(os.fstat(number).st_mode)


@contextlib.contextmanager
def _replaced(disk, names):
    """Let all that this process writes go through `disk`; names: the globals of the answer.

    An answer may hold what is replaced under a name of its own: `from os import replace`, say. And
    where it comes from a notebook, it has IPython's `open`, which wraps the real one.
    """
    there = _stand_ins(disk)
    with contextlib.ExitStack() as stack:
        stood_in = [(getattr(module, name), new) for (module, name), new in there.items()]
        own = {
            name: new
            for name, value in names.items()
            for real, new in stood_in
            if callable(value) and inspect.unwrap(value) is real
        }
        stack.enter_context(mock.patch.dict(names, own))
        for (module, name), new in there.items():
            stack.enter_context(mock.patch.object(module, name, new))
        yield


def killed_everywhere(save, old, new, most=200):
    """Say in a sentence what is wrong with save(path, data), or return "".

    It is called with a kill at each point, and after each of them once more without.
    """
    with tempfile.TemporaryDirectory(prefix="whole-") as folder:  # the plainest mistakes first
        path = Path(folder, "model.pt")
        save(str(path), new)
        if not path.exists() or path.read_bytes() != new:
            return "A call that is not killed does not leave the new content."
    for last in range(most):
        with tempfile.TemporaryDirectory(prefix="whole-") as folder:
            disk, path = _Disk(last), Path(folder).resolve() / "model.pt"
            if old is not None:
                path.write_bytes(old)
            with _replaced(disk, getattr(save, "__globals__", {})), contextlib.suppress(Killed):
                save(str(path), new)
            if not disk.dead:
                return _at_the_end(disk, path, new)
            if said := _after_a_kill(save, path, old, new, last + 1):
                return said
    return "It writes to the disk in too many pieces to be killed at each of them."


def _after_a_kill(save, path, old, new, point):
    """Say what is wrong with what a kill left, and with the next call; or return ""."""
    held = path.read_bytes() if path.exists() else None
    if held not in (old, new):
        what = f"{len(held)} bytes" if held is not None else "no file"
        return f"Killed at point {point}, it leaves {what}, neither the old nor the new."
    try:
        save(str(path), new)
    except Exception as error:
        return f"The next call after a kill fails: {type(error).__name__}: {error}"
    if path.read_bytes() != new:
        return "The next call after a kill does not leave the new content."
    if others := _beside(path):
        return f"After a kill and one more call, there are other files beside it: {others[0]}."
    return ""


def _beside(path):
    return [other.name for other in path.parent.iterdir() if other != path]


def _at_the_end(disk, path, new):
    """Say what is wrong with a call that was not killed, or return ""."""
    if path.read_bytes() != new:
        return "Where there was a file already, it does not leave the new content."
    if others := _beside(path):
        return f"A call that is not killed leaves another file beside it: {others[0]}."
    draft = disk.drafts.get(str(path))
    if draft is None:
        return "It writes into the file itself: no draft was given its name."
    if path.parent not in Path(draft).parents:
        return f"The draft is {draft}, in another folder. That may be another disk."
    if disk.too_early:
        return "The draft gets its new name before its bytes are on the disk: no fsync before it."
    return ""
