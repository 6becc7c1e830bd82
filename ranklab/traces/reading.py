"""From the profiler's events to those of a trace."""

from collections import defaultdict, deque
from itertools import groupby

from ranklab.traces import flight
from ranklab.traces.communication import collective_calls, message_calls
from ranklab.traces.data import OP, OPTIMIZER, REGION, Event
from ranklab.upstream import torch as upstream


def events_of(raw, world, watched=None, error=None, flown=flight.entries):
    """Return the Events, in order of their starts.

    raw: the profiler's (upstream/profiler.py). world: the ranks of the default group. watched: what
    groups.Watcher saw, if there is more than that group. error: what ended the block, or None.
    flown: gives what the flight recorder knows.
    """
    raw = _until_done(raw)
    backend = [event for event in raw if event.backend]
    calls = [event for event in raw if event.is_call]
    if watched is not None:
        calls = _outermost(calls)
    group_of = _groups(calls, world, watched)
    found = message_calls(calls, backend, group_of)
    found += collective_calls(calls, backend, group_of, flown)
    _mark_failure(found, error)
    workers = {e.thread for e in backend} - {call.thread for call in calls}
    found += _regions(raw) + _operations(raw, workers)
    return sorted(found, key=lambda e: (e.start, -e.end))


def _until_done(raw):
    """Let a communication of NCCL's last until the GPU is done with it: the call only queues it.

    Of each name the GPU does one after the other, in the order of the calls.
    """
    ends = defaultdict(deque)
    for event in raw:
        if event.on_gpu and event.backend:
            ends[event.name].append(event.end)
    for event in raw:
        if event.backend and not event.on_gpu and ends[event.name]:
            event.end = max(event.end, ends[event.name].popleft())
    return [event for event in raw if not (event.on_gpu and event.is_note)]


def _outermost(calls):
    """Leave out calls inside of the same call: whoever looks on makes it a second time."""
    kept = {}
    for call in calls:
        outer = kept.get(call.thread)
        if not outer or not (outer[-1].holds(call) and outer[-1].name == call.name):
            kept.setdefault(call.thread, []).append(call)
    return sorted((call for some in kept.values() for call in some), key=lambda call: call.start)


def _groups(calls, world, watched):
    """Return a function that gives the ranks of a call's group, None if nobody saw it."""
    if watched is None:
        return lambda call: world
    seen, made = defaultdict(list), defaultdict(list)
    for thread, name, ranks in watched:
        seen[thread].append((name, ranks))
    for call in calls:
        made[call.thread].append(call)
    known = {}
    for thread, some in made.items():
        if [name for name, _ in seen[thread]] == [call.name for call in some]:
            known |= {id(call): ranks for call, (_, ranks) in zip(some, seen[thread])}
    return lambda call: known.get(id(call))


def _mark_failure(found, error):
    """Mark the operation that raised `error`: the last one to end."""
    if not (error and found and _is_of_communication(error)):
        return
    last = max(found, key=lambda event: event.end)
    if last.state == "done":
        last.state = "failed"


def _is_of_communication(error):
    text = str(error).lower()
    if any(word in text for word in ("gloo", "nccl", "process group", "timed out")):
        return True
    step = error.__traceback__
    while step and step.tb_next:
        step = step.tb_next
    place = step.tb_frame.f_code.co_filename if step else ""
    return upstream.is_of_distributed(place)


def _regions(raw):
    """What stands in a `record_function`: the user's, and the one of an optimizer's step."""
    found = []
    for event in raw:
        if not event.is_region:
            continue
        kind, name = (OPTIMIZER, event.optimizer) if event.optimizer else (REGION, event.name)
        found.append(Event(kind, name, event.start, event.end, thread=event.thread))
    return found


def _operations(raw, workers):
    """Computation: operations that are not inside of another one, and what GPUs did for them.

    What Gloo does to send a GPU's tensor, copies to the host and back, is part of the sending.
    """
    some, of_sending, call_ends = [], set(), defaultdict(int)
    for event in raw:
        if event.is_call:
            call_ends[event.thread] = max(call_ends[event.thread], event.end)
        elif event.computes and not event.on_gpu:
            if event.thread in workers or event.start < call_ends[event.thread]:
                of_sending.add(event.number or None)  # 0: it has none
            else:
                some.append(event)
    forward = _forward(some)
    found, asked = [], {}
    for thread, events in groupby(sorted(some, key=lambda e: (e.thread, e.start)), _thread):
        outer = None
        for event in events:
            if outer is None or event.start >= outer.end:
                name = event.evaluated or event.name
                phase = "backward" if event.is_backward or event.evaluated else ""
                outer = Event(OP, name, event.start, event.end, phase=phase, thread=thread)
                found.append(outer)
            if not outer.phase and id(event) in forward:
                outer.phase = "forward"
            if event.number:
                asked[event.number] = outer
    for event in raw:
        if event.on_gpu and event.computes and event.number not in of_sending:
            phase = asked[event.number].phase if event.number in asked else ""
            kernel = Event(OP, event.name, event.start, event.end, phase=phase)
            kernel.stream = event.thread
            found.append(kernel)
    return found


def _forward(some):
    """Which operations the backward pass goes through again: their ids.

    An operation has the number that the next node of autograd's graph will get. So it is the last
    one with a node's number that made the node.
    """
    last, found = {}, set()
    for event in some:
        if event.evaluated:
            continue
        if not event.is_backward:
            last[event.link] = event
        elif event.link in last and event.link[0] >= 0:
            found.add(id(last[event.link]))
    return found


def _thread(event):
    return event.thread
