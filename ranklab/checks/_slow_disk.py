"""For chapter 05's rendezvous: a disk that writes slowly, and a fresh folder for every case."""

import builtins
import contextlib
import io
import tempfile
import time
from pathlib import Path
from unittest import mock


class _Slow:
    """A file that is written in two halves, with a pause between them."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, text):
        half = len(text) // 2
        self.file.write(text[:half])
        self.file.flush()
        time.sleep(0.1)
        self.file.write(text[half:])
        self.file.flush()
        return len(text)


@contextlib.contextmanager
def slow_disk():
    """Let every file that is opened for writing in this process be slow."""
    quick = io.open

    def slow(file, mode="r", *args, **kwargs):
        opened = quick(file, mode, *args, **kwargs)
        return _Slow(opened) if set(mode) & set("wax+") else opened

    with mock.patch.object(io, "open", slow), mock.patch.object(builtins, "open", slow):
        yield


class Place:
    """A fresh folder for every case, the same for all ranks; it is removed with the ranks."""

    folder = None

    @classmethod
    def of(cls, rank, litter):
        if rank == 0:
            cls.folder = Path(tempfile.mkdtemp(prefix="meeting-"))
            for name in litter:
                Path(cls.folder, name).write_text("nobody's card")
        return cls.folder
