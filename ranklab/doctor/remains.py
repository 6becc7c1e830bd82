"""What can be known of a rank that does not answer: of its process, or from what it left."""

import contextlib
import json
import os
import signal
import time

import psutil

from ranklab.doctor import mismatch, places
from ranklab.doctor.diagnosis import Report
from ranklab.start import cluster
from ranklab.upstream import cpython

FOR_A_STACK = 1.0  # seconds that `faulthandler` has to write, which takes it 0.2 ms of computing
SURE = 0.25  # seconds of computing, or of rest, in which Python would have let the witness answer
FOR_A_LOOK = 2.0  # seconds to see that; on a busy machine a process may get little of them


def of_silent(ranks, rank, in_one_call):
    """Say what can be known of a rank whose process is there and does not answer.

    in_one_call: is it one of those that `in_one_call` found?
    """
    if _status(ranks, rank) == psutil.STATUS_STOPPED:
        note = "    its process is stopped (SIGSTOP); SIGCONT lets it go on"
        return Report(rank, "silent", note=note)
    frames = _stack(ranks, ranks.pids[rank]) if in_one_call else []
    note = "    a long call that lets nothing else of Python run" if frames else ""
    return Report(rank, "silent", places.in_frames(frames, ranks.cell), note=note)


def _status(ranks, rank):
    """Return the state of a rank's process, as psutil names it; None where it is out of reach."""
    try:
        return psutil.Process(ranks.pids[rank]).status() if ranks.one_host else None
    except (psutil.Error, IndexError):
        return None


def in_one_call(ranks, silent):
    """Return those of the ranks in `silent` that are in one long call.

    The others have only had no time to answer. Who runs Python hands on its lock every 5 ms, and
    the witness would get it. And who runs Python must not be asked for its stack: the signal may
    come when `faulthandler` finds no valid frame (CPython 3.11.7, kept busy, ended of a SIGSEGV
    after 1,281 to 10,622 of them).
    """
    known = {rank: _status(ranks, rank) for rank in silent}
    reached = [r for r, status in known.items() if status not in (None, psutil.STATUS_STOPPED)]
    found = _computing_or_at_rest({ranks.pids[rank] for rank in reached})
    return {rank for rank in reached if ranks.pids[rank] in found}


def _computing_or_at_rest(pids):
    """Return those of the processes that are seen to compute, or to rest, for long enough."""
    found, processes = set(), {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it has ended
            process = psutil.Process(pid)
            processes[pid] = process, _computed(process)
    began = time.monotonic()
    while (left := processes.keys() - found) and time.monotonic() - began < FOR_A_LOOK:
        time.sleep(0.02)
        for pid in left:
            try:
                if _is_seen(*processes[pid], time.monotonic() - began):
                    found.add(pid)
            except psutil.Error:
                del processes[pid]
    return found


def _is_seen(process, before, waited):
    computed = _computed(process) - before
    rests = not computed and process.status() != psutil.STATUS_RUNNING
    return computed > SURE or (rests and waited > SURE)


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
    while not cpython.is_whole_stack(text) and time.monotonic() < deadline:
        time.sleep(0.02)
        with open(path) as file:
            file.seek(before)
            text = file.read()
    return _readers_frames(text)


def _readers_frames(text):
    """Return the frames of the reader in what faulthandler wrote, outermost first."""
    found = []
    for file, line, function in cpython.frames_of_stack(text):
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
    of_the_thread = cpython.stack_of_current_thread(_at_the_fault(ranks, pid))
    frames = cpython.frames_of_stack(of_the_thread)[:most]
    return [f"{name} ({os.path.basename(file)}, line {line})" for file, line, name in frames]


def _at_the_fault(ranks, pid):
    """Return the stacks that `faulthandler` wrote at a fault such as SIGSEGV; "" without one."""
    with contextlib.suppress(OSError), open(os.path.join(ranks.folder, f"stack-{pid}")) as file:
        return cpython.stacks_at_fault(file.read())
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
