"""What can be known of a rank that does not answer: of its process, or from what it left."""

import contextlib
import json
import os
import re
import signal
import time

import psutil

from .. import cluster, places
from . import mismatch
from .diagnosis import Report

FOR_A_STACK = 1.0  # seconds that `faulthandler` has to write, which takes it 0.2 ms of computing
SURE = 0.25  # seconds of computing, or of rest, in which Python would have let the witness answer
FOR_A_LOOK = 2.0  # seconds to see that; on a busy machine a process may get little of them
FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def of_silent(ranks, rank):
    """Say what can be known of a rank whose process is there and does not answer."""
    pid = ranks.pids[rank] if rank < len(ranks.pids) else None
    try:
        status = psutil.Process(pid).status() if pid and ranks.one_host else None
    except psutil.Error:
        status = None
    if status == psutil.STATUS_STOPPED:
        note = "    its process is stopped (SIGSTOP); SIGCONT lets it go on"
        return Report(rank, "silent", note=note)
    frames = _stack(ranks, pid) if status and _in_one_call(pid) else []
    note = "    a long call that lets nothing else of Python run" if frames else ""
    return Report(rank, "silent", places.in_frames(frames, ranks.cell), note=note)


def _in_one_call(pid):
    """Is a process that does not answer in one long call, or has it only had no time to answer?

    Who runs Python hands on its lock every 5 ms, and the witness would get it. And who runs Python
    must not be asked for its stack: the signal may come when `faulthandler` finds no valid frame
    (CPython 3.11.7, kept busy, ended of a SIGSEGV after 1,281 to 10,622 of them).
    """
    try:
        process = psutil.Process(pid)
        began, before = time.monotonic(), _computed(process)
        while (waited := time.monotonic() - began) < FOR_A_LOOK:
            time.sleep(0.02)
            computed = _computed(process) - before
            rests = not computed and process.status() != psutil.STATUS_RUNNING
            if computed > SURE or (rests and waited > SURE):
                return True
    except psutil.Error:
        pass  # it has ended
    return False


def _computed(process):
    """Seconds of processor time that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def _stack(ranks, pid):
    """Have `faulthandler` write the stack of a process; return the reader's frames in it."""
    path = os.path.join(ranks.folder, f"stack-{pid}")
    try:
        before = os.path.getsize(path)
        os.kill(pid, signal.SIGUSR1)
    except (OSError, AttributeError):
        return []
    deadline = time.monotonic() + FOR_A_STACK
    text = ""
    while "(most recent call first)" not in text and time.monotonic() < deadline:
        time.sleep(0.02)
        with open(path) as file:
            file.seek(before)
            text = file.read()
    return _readers_frames(text)


def _readers_frames(text):
    """Return the frames of the reader in what faulthandler wrote, outermost first."""
    found = []
    for file, line, function in FRAME.findall(text):
        if places.NOT_THE_READERS.search(file):
            continue
        inside = "" if function == "<module>" else function
        found.append({"file": file, "line": int(line), "in": inside, "source": ""})
    return found[::-1]


def cause_of_death(ranks, rank, report):
    """Say what ended the process of `rank`; report: its last words."""
    cause = cluster.cause_of_death(ranks.cluster, ranks.pids[rank])
    if said := mismatch.why_aborted(cause, report):
        return said
    lines = [] if report.place else _last_lines(ranks, ranks.pids[rank])
    return f"{cause}\nPython was in {', called by '.join(lines)}." if cause and lines else cause


def _last_lines(ranks, pid, most=3):
    """Return the last lines of Python at a fault, innermost first, whoever wrote them."""
    of_the_thread = _at_the_fault(ranks, pid).partition("Current thread")[2].partition("\n\n")[0]
    frames = FRAME.findall(of_the_thread)[:most]
    return [f"{name} ({os.path.basename(file)}, line {line})" for file, line, name in frames]


def _at_the_fault(ranks, pid):
    """Return the stacks that `faulthandler` wrote at a fault such as SIGSEGV; "" without one."""
    with contextlib.suppress(OSError), open(os.path.join(ranks.folder, f"stack-{pid}")) as file:
        return file.read().rpartition("Fatal Python error")[2]
    return ""


def last_words(ranks, rank):
    """Return the Report of a rank that died, from what its process left behind, if anything."""
    pid = ranks.pids[rank] if rank < len(ranks.pids) else None
    try:
        with open(os.path.join(ranks.folder, f"last-words-{pid}")) as file:
            said = json.load(file)
    except (OSError, ValueError):
        said = {}
    frames, recent = said.get("places", ()), tuple(said.get("recent", ()))
    frames = frames or _readers_frames(_at_the_fault(ranks, pid))
    return Report(
        rank, "died", places.in_frames(frames, ranks.cell), said.get("call"), recent=recent
    )
