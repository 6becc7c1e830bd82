"""Where is each rank? For a test that ran out of time, so that a hang tells its place."""

import os
import signal
import time
from pathlib import Path

import psutil

from ranklab.start.guardian import has_ended

# Set in the environment of everything that the tests start: Python then answers SIGABRT with
# the line that each of its threads is on.
ANSWER = {"PYTHONFAULTHANDLER": "1"}


def places(pid):
    """Abort every Python process below `pid`; return what those with a log said on dying.

    A process whose stderr is a pipe says it to the reader of that pipe instead.
    """
    said = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.environ().get("PYTHONFAULTHANDLER") != "1" or not _is_python(process):
                continue
            log = _log_of(process)
            before = log.stat().st_size if log else 0
            title = " ".join(process.cmdline())[-100:]
            process.send_signal(signal.SIGABRT)
            _wait_for_the_end(process)
        except (psutil.Error, OSError):
            continue
        if log:
            said.append(f"process {process.pid} ({title}):\n{_read_after(log, before)}")
    return "\n".join(said)


def _wait_for_the_end(process, limit=5):
    deadline = time.monotonic() + limit
    while not has_ended(process) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_python(process):
    """Is it one that answers? Its environment also went to the browsers, shells, ... it started."""
    return "python" in Path(process.exe()).name.lower()


def _log_of(process):
    """Return the file that the process writes its errors to, or None: a pipe, or no /proc here."""
    try:
        log = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
    except OSError:
        return None
    return log if log.is_file() else None


def _read_after(log, offset, limit=5):
    """What was written to `log` after `offset`, once there is something."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        text = log.read_bytes()[offset:].decode(errors="replace") if log.exists() else ""
        if "most recent call first" in text:
            return text
        time.sleep(0.05)
    return "(said nothing)"
