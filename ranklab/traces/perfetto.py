"""`save()`: traces as a file for Perfetto (https://ui.perfetto.dev) or chrome://tracing."""

import json
from pathlib import Path

from ranklab.traces.clocks import agreement
from ranklab.traces.data import OP, in_order
from ranklab.traces.matching import match
from ranklab.traces.tally import span

COMPUTES, TALKS, NAMES = 1, 2, 3  # threads, as the viewer calls the lines of a process
STREAMS = 1000  # and those after it: the streams of a GPU
LINES = {COMPUTES: "computes", TALKS: "sends, receives", NAMES: "regions"}


def save(traces, path):
    """Write traces to the file `path`, to be opened in Perfetto: a process for each rank.

    It is the Trace Event Format: complete events in microseconds, and a flow from each send to
    its receive. Raises TraceError where there are no traces.
    """
    traces = in_order(traces)
    begin, _ = span(traces)
    lanes = {}
    events = [entry for trace in traces for entry in _of_rank(trace, begin, lanes)]
    for number, message in enumerate(match(traces)):
        if message.matched and message.src is not None:
            events += _flow(number, message, begin, lanes)
    hosts = [_whole(trace) for trace in traces]
    about = {"ranks": hosts, "clocks": agreement(traces)[1] or "one host, one clock"}
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})
    Path(path).write_text(text, encoding="utf-8")


def _whole(trace):
    """What there is to say of a trace as a whole."""
    clock = trace.clock
    return {
        "rank": trace.rank,
        "host": clock.host,
        "offset_ns": clock.offset,
        "uncertainty_ns": clock.uncertainty,
        "error": trace.error,
    }


def _of_rank(trace, begin, lanes):
    process = {"ph": "M", "pid": trace.rank, "tid": 0}
    yield process | {"name": "process_name", "args": {"name": f"rank {trace.rank}"}}
    yield process | {"name": "process_sort_index", "args": {"sort_index": trace.rank}}
    free = []  # until when each of the lines for communication is taken
    streams = {event.stream for event in trace.events if event.stream is not None}
    for event in trace.events:
        lane = COMPUTES if event.kind == OP else NAMES
        if event.stream is not None:
            lane = STREAMS + event.stream
        elif event.communicates:
            lane = lanes[id(event)] = _free_lane(free, event)
        yield {
            "ph": "X",
            "pid": trace.rank,
            "tid": lane,
            "name": event.name,
            "cat": event.phase or event.kind,
            "ts": (event.start - begin) / 1e3,
            "dur": (event.end - event.start) / 1e3,
            "args": _about(event),
        }
    of_streams = {STREAMS + stream: f"GPU, stream {stream}" for stream in sorted(streams)}
    for lane in (COMPUTES, NAMES, *(10 + k for k in range(len(free))), *of_streams):
        name = (LINES | of_streams).get(lane, LINES[TALKS])
        yield process | {"tid": lane, "name": "thread_name", "args": {"name": name}}


def _free_lane(free, event):
    """Overlapping communications go to lines of their own: a viewer nests what overlaps."""
    for k, until in enumerate(free):
        if until <= event.start:
            free[k] = event.end
            return 10 + k
    free.append(event.end)
    return 9 + len(free)


def _about(event):
    if not event.communicates:
        return {}
    names = ("nbytes", "dtype", "peer", "tag", "group", "state", "background")
    return {name: getattr(event, name) for name in names}


def _flow(number, message, begin, lanes):
    """An arrow: it starts in the send's event and ends in the receive's."""
    both = {"name": "message", "cat": "message", "id": number}
    sent = (message.send.start - begin) / 1e3
    arrived = (message.recv.end - begin) / 1e3
    yield both | {"ph": "s", "pid": message.src, "tid": lanes[id(message.send)], "ts": sent}
    end = {"ph": "f", "bp": "e", "pid": message.dst, "tid": lanes[id(message.recv)]}
    yield both | end | {"ts": arrived}
