"""Messages and collectives, from their calls and from what the backend did."""

from collections import defaultdict

from ranklab.traces import flight
from ranklab.traces.data import COLLECTIVE, RECV, SEND, Event


def message_calls(calls, backend, group_of):
    """Return an Event for each message that this rank posted to send or to receive.

    calls, backend: Raw events in order; group_of: gives the ranks of a call's group.
    """
    inside = _by_thread(backend)
    found = []
    for call in calls:
        kind = call.message
        if not kind:
            continue
        group = group_of(call)
        peer = call.inputs[2] if len(call.inputs) == 4 else None
        event = Event(kind, kind, call.start, call.end, group=group, thread=call.thread)
        event.peer = _global(group, peer)
        event.tag = call.inputs[-1] or 0
        did = _take(inside[call.thread], lambda e, call=call, kind=kind: _belongs(call, e, kind))
        if did:
            event.end, event.nbytes, event.dtype = did.end, did.nbytes, did.dtype
            event.state = "done" if did.ended else "unfinished"
        else:
            event.state = "failed"
        found.append(event)
    return found


def _belongs(call, event, kind):
    return call.holds(event) and event.backend.startswith(kind)


def collective_calls(calls, backend, group_of, flown):
    """Return an Event for each collective that this rank took part in.

    flown: gives what the flight recorder knows; asked where the order is in doubt.
    """
    waiting = [event for event in backend if not event.backend.startswith((SEND, RECV))]
    mine = [call for call in calls if call.collective[0]]
    usual = [(call, _usual_parts(call, group_of(call), waiting)) for call in mine]
    done = _paired(usual, list(waiting), {})
    doubtful, parts = _out_of_order(mine, done), {}
    if doubtful:
        parts = flight.parts_of(usual, flown())
        done = _paired(usual, list(waiting), parts)
    found = []
    for call, did in zip(mine, done):
        name, root = call.collective
        group = group_of(call)
        event = Event(COLLECTIVE, name, call.start, call.end, group=group, thread=call.thread)
        event.peer = _global(group, call.inputs[root]) if root else None
        event.background = _in_background(call)
        event.doubtful = id(call) in doubtful and id(call) not in parts
        _describe(event, did)
        found.append(event)
    return found


def _paired(usual, waiting, parts):
    """Take from `waiting` what the backend did for each call: a list of events for each.

    Calls whose parts are known take theirs first.
    """
    did = {}
    for call, operations in sorted(usual, key=lambda pair: id(pair[0]) not in parts):
        expected = parts.get(id(call)) or [(operation, None) for operation in operations]
        taken = [
            _take(waiting, _is_part(call, *part)) or _take(waiting, _is_part(call, part[0]))
            for part in expected
        ]
        did[id(call)] = [one for one in taken if one]
    return [did[id(call)] for call, _ in usual]


def _out_of_order(calls, done):
    """The ids of calls that may have been begun in another order, if their sizes tell them apart.

    They may where the backend began nothing for a call before the next one came.
    """
    some = {}
    for k, did in enumerate(done[:-1]):
        if did and did[0].start >= calls[k + 1].start:
            some |= {id(calls[j]): done[j][0].nbytes for j in (k, k + 1) if done[j]}
    return set(some) if len(set(some.values())) > 1 else set()


def _in_background(call):
    return any(value is True for value in call.inputs)


def _usual_parts(call, group, waiting):
    """The operations that the backend makes of a call."""
    name, _ = call.collective
    if name != "reduce_scatter" or any(_plain(event.backend) == name for event in waiting):
        return [name]
    # Gloo has no reduce-scatter: one all-reduce of everything, or one for each rank's part.
    return ["all_reduce"] * (len(group or ()) if call.is_in_parts else 1)


def _is_part(call, operation, nbytes=None):
    def fits(event):
        same_size = nbytes is None or event.nbytes == nbytes
        return same_size and event.start >= call.start and _plain(event.backend) == operation

    return fits


def _describe(event, did):
    if not did:
        event.state = "unfinished" if event.background else "failed"
        return
    event.end = max(event.end, *(one.end for one in did))
    event.nbytes = sum(one.nbytes or 0 for one in did)
    event.dtype = did[0].dtype
    event.ran_as = tuple((_plain(one.backend), one.nbytes or 0) for one in did)
    if not all(one.ended for one in did):
        event.state = "unfinished"


def _plain(name):
    return name.removeprefix("_").removesuffix("_base").removesuffix("_coalesced")


def _by_thread(events):
    found = defaultdict(list)
    for event in events:
        found[event.thread].append(event)
    return found


def _take(events, fits):
    """Remove and return the first of `events` that fits, or None."""
    for number, event in enumerate(events):
        if fits(event):
            return events.pop(number)
    return None


def _global(group, number):
    """The rank in the whole world of rank `number` of a group; None if not known."""
    if group is None or not isinstance(number, int) or not 0 <= number < len(group):
        return None
    return group[number]
