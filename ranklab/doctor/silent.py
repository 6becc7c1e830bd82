"""What can be known of a rank whose process is there and does not answer."""

import contextlib
import time

import psutil

from ranklab.doctor import places, stacks
from ranklab.doctor.one_rank import Report

SURE = 0.25  # seconds of computing, or of rest, in which Python would have let the witness answer
FOR_A_LOOK = 2.0  # seconds to see that; on a busy machine a process may get little of them


def report_of(ranks, rank, in_one_call):
    """Return the Report of a silent rank.

    in_one_call: is it one of those that `in_one_call` found?
    """
    if _status(ranks, rank) == psutil.STATUS_STOPPED:
        return Report(rank, "silent", silence="stopped", pid=ranks.pids[rank])
    frames = stacks.of_running(ranks.folder, ranks.pids[rank]) if in_one_call else []
    silence = "in one call" if frames else ""
    return Report(rank, "silent", places.in_frames(frames, ranks.cell), silence=silence)


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
