"""What follows from several traces together: who waited, and for how long."""

from bisect import bisect_left
from collections import defaultdict

from ranklab.traces.data import COLLECTIVE, OP, OPTIMIZER
from ranklab.traces.matching import match, meetings

# In these, a rank has to wait for the root only, or the root for all others.
FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")


def waits(traces):
    """Return {rank: intervals} (ns) in which a rank's communication waited for another rank.

    A receive waits until its message is sent, a large send until the receive is posted, and a
    collective until the last rank that it needs has called it. What never got an answer waited
    all the time.

    The `wait()` of a handle leaves no record. What the rank began after the post shows that it
    did not wait yet: it is taken to wait from the last such beginning on.
    """
    found = defaultdict(list)
    since = _blocked_since(traces)
    for message in match(traces):
        _message_waits(message, found, since)
    met = meetings(traces)
    for events in met:
        for rank, event in events.items():
            needed = [e for r, e in events.items() if _needs(event, rank, r)]
            came = max((e.start for e in needed), default=event.start)
            _add(found, rank, since[id(event)], min(event.end, came))
    told = {id(event) for events in met for event in events.values()}
    for trace in traces:
        for event in trace.communication:
            if event.kind == COLLECTIVE and event.state == "failed" and id(event) not in told:
                _add(found, trace.rank, since[id(event)], event.end)
    return {trace.rank: union(found[trace.rank]) for trace in traces}


def _blocked_since(traces):
    """Return {id of a communication: since when (ns) it may have kept its rank from going on}."""
    since = {}
    for trace in traces:
        starts = defaultdict(list)
        for event in trace.events:
            starts[event.thread].append(event.start)
        for event in trace.communication:
            since[id(event)] = event.start
            if event.kind != COLLECTIVE or event.background:
                some = starts[event.thread]
                since[id(event)] = max(event.start, some[bisect_left(some, event.end) - 1])
    return since


def _message_waits(message, found, since):
    send, recv = message.send, message.recv
    if message.matched:
        _add(found, message.dst, since[id(recv)], min(recv.end, send.start))
        _add(found, message.src, since[id(send)], message.left)
    elif send is not None and send.state == "failed":
        _add(found, message.src, since[id(send)], send.end)
    elif recv is not None and recv.state == "failed":
        _add(found, message.dst, since[id(recv)], recv.end)


def _needs(event, rank, other):
    if event.name in FROM_ROOT and event.peer is not None:
        return other == event.peer
    if event.name in TO_ROOT and event.peer is not None:
        return rank == event.peer
    return True


def _add(found, rank, start, end):
    if rank is not None and end > start:
        found[rank].append((start, end))


def busy(trace, phase=None, stream=None):
    """The intervals (ns) in which a rank computed.

    phase: only in operations of that phase. stream: only in that one of a GPU's.

    An autograd function that communicates is an operation, too. What it sends and receives, from
    the post to the end of the wait, is not computing, as far as it lies in the operation. Where a
    GPU computes, that is what counts, and not the calls that queue its work.
    """
    kernels = [op for op in trace.events if op.stream is not None]
    if kernels:
        of = [op for op in kernels if phase in (None, op.phase) and stream in (None, op.stream)]
        return union((op.start, op.end) for op in of)
    talks, starts, found = defaultdict(list), defaultdict(list), []
    for event in trace.communication:
        if not event.background:
            talks[event.thread].append(event)
            starts[event.thread].append(event.start)
    for op in trace.events:
        if op.kind in (OP, OPTIMIZER) and phase in (None, op.phase):
            begun = starts[op.thread]
            some = talks[op.thread][bisect_left(begun, op.start) : bisect_left(begun, op.end)]
            # A message with a longer life was only posted here.
            some = [e for e in some if e.end <= op.end or e.kind == COLLECTIVE]
            found += without([(op.start, op.end)], union((e.start, e.end) for e in some))
    return union(found)


def waiting_share(traces):
    """Return {rank: share of its trace} in which a rank waited and did not compute."""
    waited = waits(traces)
    shares = {}
    for trace in traces:
        idle = without(waited[trace.rank], busy(trace))
        shares[trace.rank] = length(idle) / max(1, trace.end - trace.begin)
    return shares


def union(intervals):
    """Return intervals joined where they overlap or touch."""
    joined = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def without(intervals, others):
    """Return the parts of `intervals` that no interval of `others` covers; both joined."""
    left, number = [], 0
    for start, end in intervals:
        while number and others[number - 1][1] > start:
            number -= 1
        while number < len(others) and others[number][0] < end:
            begins, ends = others[number]
            if ends > start:
                if begins > start:
                    left.append((start, begins))
                start = max(start, ends)
            number += 1
        if start < end:
            left.append((start, end))
    return left


def length(intervals):
    return sum(end - start for start, end in intervals)
