"""A trace as plain data: what a rank recorded, and what travels to the kernel."""

from collections.abc import Iterable
from dataclasses import dataclass, field

# Kinds of events.
SEND, RECV, COLLECTIVE = "send", "recv", "collective"
REGION, OPTIMIZER, OP = "region", "optimizer", "op"
COMMUNICATION = (SEND, RECV, COLLECTIVE)


class TraceError(RuntimeError):
    """A trace that cannot be made, or something that is not one."""


@dataclass(slots=True)
class Event:
    """Something that a rank did, from `start` to `end`.

    kind: "send", "recv", "collective"; "op" for computation; "region" for the user's
        `record_function`, "optimizer" for an optimizer's step.
    start, end: nanoseconds since 1970, on the clock of rank 0's host. A send or a receive begins
        when it is posted and ends with the end of the wait for it.
    nbytes: what the program handed over or brought as a box, in bytes; None if not recorded.
    peer: for a message, the other rank, as the whole world numbers it; None for a receive from
        anyone. For a collective, its root, if it has one.
    group: the ranks of the process group, as the whole world numbers them; None if not recorded.
    phase: for computation, "backward", or "forward" where the backward pass goes through it.
    background: a collective called with `async_op=True`.
    state: "done"; "failed": it ended with an error; "unfinished": nobody waited for its end.
    ran_as: what the backend made of a collective, as (name, bytes) pairs.
    doubtful: one of several collectives in flight together, and which size is whose is a guess.
    stream: for computation on a GPU, the number of the stream that it was in.
    """

    kind: str
    name: str
    start: int
    end: int
    nbytes: int | None = None
    dtype: str = ""
    peer: int | None = None
    tag: int = 0
    group: tuple[int, ...] | None = None
    phase: str = ""
    thread: int = 0
    background: bool = False
    state: str = "done"
    ran_as: tuple = ()
    doubtful: bool = False
    stream: int | None = None

    @property
    def communicates(self):
        return self.kind in COMMUNICATION


@dataclass(slots=True)
class Clock:
    """Whose clock the times of a trace are from.

    host: the host's name; boot: what tells two running systems apart, whatever their names.
    offset: nanoseconds that were taken from this host's times to get rank 0's.
    uncertainty: nanoseconds by which that may be wrong; None where it was not measured.
    """

    host: str
    boot: str
    offset: int = 0
    uncertainty: int | None = None


@dataclass
class Trace:
    """What one rank did between the begin and the end of a `with trace()` block.

    events: in the order of their starts; operations inside of other operations are left out.
    begin, end: of the block, in nanoseconds since 1970. error: what ended it, or "".
    """

    rank: int = 0
    world_size: int = 1
    events: list[Event] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    clock: Clock | None = None
    error: str = ""

    @property
    def seconds(self):
        return (self.end - self.begin) / 1e9

    @property
    def communication(self):
        """The events that send, receive, or do something with all ranks."""
        return [event for event in self.events if event.communicates]

    def __repr__(self):
        if not self.clock:
            return "trace that has not ended: it is complete after its `with` block"
        events = counted(len(self.events), "event")
        ended = f", ended by {self.error}" if self.error else ""
        return f"trace of rank {self.rank}: {events} in {duration(self.seconds)}{ended}"


def counted(number, what):
    """Return "1 event", "2 events"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def listed(parts):
    """Return "a", "a and b", "a, b and c"."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def duration(seconds):
    """Return a time in the unit that suits it: "3.4 ms"."""
    factor, unit = time_unit(seconds)
    return f"{seconds * factor:.3g} {unit}"


def time_unit(seconds):
    """Return (units in a second, name of the unit) for times of about `seconds`."""
    if seconds >= 1:
        return 1, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def size(nbytes):
    """Return a number of bytes in the unit that suits it: "64 KiB"."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}" if value < 1000 else f"{value:.0f} {units[0]}"


def in_order(traces):
    """Return traces, one or several, as a list in rank order.

    Raises TraceError for something that is not a trace, or one that two ranks claim to be.
    """
    if isinstance(traces, Trace):
        traces = [traces]
    if not isinstance(traces, Iterable):  # the Ranks themselves, say, or a number
        raise TraceError(_instead(traces))
    found = list(traces)
    for trace in found:
        if not isinstance(trace, Trace):
            raise TraceError(_instead(trace))
        if not trace.clock:
            raise TraceError("A trace is complete only after its `with trace()` block has ended.")
    if not found:
        raise TraceError("There is no trace here: the list is empty.")
    found.sort(key=lambda trace: trace.rank)
    ranks = [trace.rank for trace in found]
    if twice := sorted({r for r in ranks if ranks.count(r) > 1}):
        raise TraceError(f"Two of these traces are of rank {twice[0]}; give one for each rank.")
    return found


def _instead(thing):
    return (
        f"Here is a {type(thing).__name__} in place of a trace. Give what the ranks recorded: "
        '`with trace() as t:` in a %%px cell, then ranks["t"].'
    )
