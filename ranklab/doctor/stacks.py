"""The stack of a process, as `faulthandler` writes it to a file: at a fault, or when asked."""

import contextlib
import os
import signal
import time

from ranklab.doctor import places
from ranklab.upstream import cpython

PATIENCE = 1.0  # seconds that `faulthandler` has to write, which takes it 0.2 ms of computing


def of_running(folder, pid):
    """Have `faulthandler` write the stack of a process; return the reader's frames in it."""
    path = _file(folder, pid)
    try:
        before = os.path.getsize(path)
        os.kill(pid, signal.SIGUSR1)
    except (OSError, AttributeError):
        return []
    deadline = time.monotonic() + PATIENCE
    text = ""
    while not cpython.is_whole_stack(text) and time.monotonic() < deadline:
        time.sleep(0.02)
        with open(path) as file:
            file.seek(before)
            text = file.read()
    return readers_frames(text)


def at_the_fault(folder, pid):
    """Return the stacks that `faulthandler` wrote at a fault such as SIGSEGV; "" without one."""
    with contextlib.suppress(OSError), open(_file(folder, pid)) as file:
        return cpython.stacks_at_fault(file.read())
    return ""


def readers_frames(text):
    """Return the frames of the reader in what faulthandler wrote, outermost first."""
    found = []
    for file, line, function in cpython.frames_of_stack(text):
        if places.NOT_THE_READERS.search(file):
            continue
        inside = "" if function == "<module>" else function
        found.append({"file": file, "line": int(line), "in": inside, "source": ""})
    return found[::-1]


def last_lines(fault, most=3):
    """Return the last lines of Python at a fault, innermost first, whoever wrote them."""
    frames = cpython.frames_of_stack(cpython.stack_of_current_thread(fault))[:most]
    return [f"{name} ({os.path.basename(file)}, line {line})" for file, line, name in frames]


def _file(folder, pid):
    return os.path.join(folder, f"stack-{pid}")
