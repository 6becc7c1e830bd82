"""From the profiler's events to those of a trace.

For a message the profiler has two events: `c10d::send`, the call, with peer and tag, and in it
`gloo:send`, with size and type, which lasts until somebody has waited for its end. For a
collective, the call is on the caller's thread and the operation on one of the backend's.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from math import prod

from ranklab.traces import flight
from ranklab.traces.communication import collective_calls, message_calls
from ranklab.traces.data import OP, OPTIMIZER, REGION, Event

# Sizes of what the profiler calls a type, in bytes.
SIZES = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "long long": 8,
    "float": 4,
    "int": 4,
    "short int": 2,
}
SIZES |= {
    "short int": 2,
    "short": 2,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
    "Half": 2,
    "BFloat16": 2,
}
SIZES |= {"unsigned short": 2, "unsigned int": 4, "unsigned long": 8, "short unsigned int": 2}
SIZES |= {"long unsigned int": 8, "complex<float>": 8, "complex<double>": 16, "complex<Half>": 4}
TORCH_NAMES = {"double": "float64", "float": "float32", "long int": "int64", "int": "int32"}
TORCH_NAMES |= {"short int": "int16", "signed char": "int8", "unsigned char": "uint8"}
TORCH_NAMES |= {"Half": "float16", "BFloat16": "bfloat16", "complex<float>": "complex64"}

_BACKEND = re.compile(r"(gloo|nccl|mpi|ucc|xccl):(\w+)")
_EVALUATE = "autograd::engine::evaluate_function: "
_ANNOTATION, _BACKWARD = 7, 1  # scopes, as torch numbers them


@dataclass(slots=True)
class Raw:
    """One event of the profiler's. thread: the system's number of it; backend: see below."""

    name: str
    start: int
    end: int
    thread: int
    ended: bool
    scope: int
    inputs: list
    nbytes: int | None
    dtype: str
    link: tuple  # of autograd: (sequence number, thread of the forward pass)
    on_gpu: bool
    backend: str = ""  # the operation, for an event of a backend's: "all_reduce"

    def holds(self, other):
        return self.thread == other.thread and self.start <= other.start and other.start <= self.end


def events_of(profiled, world, watched=None, error=None, flown=flight.entries):
    """Return the Events, in order of their starts.

    profiled: the profiler's own events. world: the ranks of the default group. watched: what
    groups.watcher() saw, if there is more than that group. error: what ended the block, or None.
    flown: gives what the flight recorder knows.
    """
    raw = sorted((_read(event) for event in profiled), key=lambda e: (e.start, -e.end))
    backend = [event for event in raw if event.backend]
    calls = [event for event in raw if event.name.startswith("c10d::")]
    if watched is not None:
        calls = _outermost(calls)
    group_of = _groups(calls, world, watched)
    found = message_calls(calls, backend, group_of)
    found += collective_calls(calls, backend, group_of, flown)
    _mark_failure(found, error)
    workers = {e.thread for e in backend} - {call.thread for call in calls}
    found += _regions(raw) + _operations(raw, workers)
    return sorted(found, key=lambda e: (e.start, -e.end))


def _read(event):
    name = event.name()
    match = _BACKEND.match(name)
    scope = event.scope()
    nbytes, dtype = _content(event.shapes(), event.dtypes())
    forward = event.fwd_thread_id()
    return Raw(
        name=name,
        start=event.start_ns(),
        end=event.end_ns(),
        thread=event.device_resource_id(),
        ended=event.end_thread_id() != 0,
        scope=scope,
        inputs=event.concrete_inputs() if name.startswith("c10d::") else [],
        nbytes=nbytes,
        dtype=dtype,
        link=(event.sequence_nr(), forward if scope == _BACKWARD else event.start_thread_id()),
        on_gpu="CPU" not in str(event.device_type()),
        backend=match[2] if match else "",
    )


def _content(shapes, dtypes):
    """Return (bytes, type) of the tensors among an event's inputs; (None, "") if unknown."""
    nbytes, kind = 0, ""
    for shape, dtype in zip(shapes, dtypes):
        dtype = dtype.removeprefix("c10::")
        each = 1 if dtype.startswith("Float8") else SIZES.get(dtype)
        if each is None:
            continue  # not a tensor
        nbytes, kind = nbytes + prod(shape) * each, TORCH_NAMES.get(dtype, dtype)
    return nbytes, kind


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
    return "torch/distributed" in place.replace("\\", "/")


def _regions(raw):
    """What stands in a `record_function`: the user's, and the one of an optimizer's step."""
    found = []
    for event in raw:
        if event.scope != _ANNOTATION or event.backend or event.on_gpu:
            continue
        kind, name = REGION, event.name
        if name.startswith("Optimizer."):
            kind, name = OPTIMIZER, name.partition("#")[2]
        if not name.startswith("ProfilerStep"):
            found.append(Event(kind, name, event.start, event.end, thread=event.thread))
    return found


def _operations(raw, workers):
    """Computation: operations that are not inside of another one."""
    some = [e for e in raw if _computes(e) and e.thread not in workers]
    forward = _forward(some)
    found = []
    for thread, events in groupby(sorted(some, key=lambda e: (e.thread, e.start)), _thread):
        outer = None
        for event in events:
            if outer is None or event.start >= outer.end:
                name = event.name.removeprefix(_EVALUATE)
                phase = "backward" if event.scope == _BACKWARD or name != event.name else ""
                outer = Event(OP, name, event.start, event.end, phase=phase, thread=thread)
                found.append(outer)
            if not outer.phase and id(event) in forward:
                outer.phase = "forward"
    return found


def _forward(some):
    """Which operations the backward pass goes through again: their ids.

    An operation has the number that the next node of autograd's graph will get. So it is the last
    one with a node's number that made the node.
    """
    last, found = {}, set()
    for event in some:
        if event.name.startswith(_EVALUATE):
            continue
        if event.scope != _BACKWARD:
            last[event.link] = event
        elif event.link in last and event.link[0] >= 0:
            found.add(id(last[event.link]))
    return found


def _thread(event):
    return event.thread


def _computes(event):
    if event.on_gpu:
        return not event.name.startswith("nccl")
    named = event.name.startswith(("c10d::", "[", "cuda", "PythonDispatch", "record_param"))
    return event.scope != _ANNOTATION and not event.backend and not named
