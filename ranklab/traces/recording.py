"""`trace()`: record what this rank does."""

import os
import sys
import time
from contextlib import contextmanager, nullcontext

from ranklab.traces import clocks, groups, reading
from ranklab.traces.data import Trace, TraceError
from ranklab.traces.settling import settle
from ranklab.upstream import profiler

_running = False
_left_open = False  # did the last trace end before all that began in it?


@contextmanager
def trace(align=None):
    """Record what this rank computes, sends and receives in a `with` block.

        with trace() as t:
            dist.all_reduce(x)

    After the block, `t` is a `Trace` of plain data, also where an error (a timeout, say) ended
    it. It is made of what PyTorch's profiler records; nothing of yours is replaced. An operation
    of Python's own (a loop, `time.sleep`) is not recorded unless it stands in a
    `with torch.profiler.record_function("name"):`.

    align: compare this host's clock with rank 0's first. **All ranks must then call trace
        together**, for they exchange messages. By default it is done where the launcher says
        that the ranks run on several hosts (torchrun, MPI, Slurm).

    What it costs (20 November 2026, two ranks on a 2-core AMD EPYC with a load of 4 to 6; the
    fastest of 30 blocks, three runs; `benchmarks/trace.py` measures yours): an addition takes 1.3
    to 1.4 times as long (0.4 µs more), a ping-pong of 64 bytes 1.1 to 1.4 times (10 to 35 µs more),
    a small all-reduce 1.1 times (25 to 35 µs more; in one run the load hid it). With process groups
    other than the default one, a small all-reduce takes up to 1.7 times as long. The end of the
    block takes 20 ms for a thousand additions, 50 to 70 ms for a thousand communications, 90 to 110
    ms with several groups.

    Raises TraceError if this process is being traced or profiled already, and, on the lab's ranks,
    if a handle of the trace before has not been waited for: its end would be written into memory
    that the profiler has given back.
    """
    global _running
    # The profiler writes a line about probes to stderr that concerns nobody here.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if _running or profiler.runs():
        what = "trace" if _running else "profiler of PyTorch's"
        raise TraceError(f"A {what} is running on this rank already. End it before this one.")
    _check_left_open()
    _running = True
    try:
        yield from _record(align)
    finally:
        _running = False


def _check_left_open():
    global _left_open
    calls = sys.modules.get("ranklab.doctor.calls")  # the lab's ranks keep track of their handles
    names = calls.left_open() if calls and _left_open else []
    if names:
        raise TraceError(
            f"A handle of {names[0]} is left from the trace before this one. Call its wait() first."
        )
    _left_open = False


def _record(align):
    import torch

    result = Trace(**_who())
    clock = clocks.this_clock()
    if align or (align is None and result.world_size > 1 and clocks.several_hosts()):
        clocks.compare(clock)
    watcher = groups.Watcher() if groups.several() else nullcontext()
    profile = profiler.of_all_threads()
    begin = end = 0
    error = None
    settle()
    try:
        with profile, watcher:
            begin = time.time_ns()
            try:
                yield result
            except BaseException as caught:  # the trace of what went wrong matters most
                error = caught
                raise
            finally:
                if torch.cuda.is_available() and torch.cuda.is_initialized():
                    torch.cuda.synchronize()
                end = time.time_ns()
                settle()
    finally:
        if begin:
            result.error = type(error).__name__ if error else ""
            result.begin, result.end = begin - clock.offset, end - clock.offset
            result.clock = clock
            try:
                result.events = _events(profile, watcher, result.world_size, clock, error)
            except Exception as unread:
                if error is None:
                    raise
                result.error += f", and what was recorded cannot be read: {unread!r}"


def _events(profile, watcher, world_size, clock, error):
    """Return what the profiler has recorded, on the clock of rank 0's host."""
    global _left_open
    _left_open = True  # until it is known
    world = groups.all_ranks() if groups.in_a_group() else tuple(range(world_size))
    raw = profiler.events(profile)
    found = reading.events_of(raw, world, getattr(watcher, "calls", None), error)
    _left_open = any(event.state == "unfinished" for event in found)
    for event in found:
        event.start -= clock.offset
        event.end -= clock.offset
    return found


def _who():
    import torch.distributed as dist

    if not groups.in_a_group():
        return {"rank": 0, "world_size": 1}
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
