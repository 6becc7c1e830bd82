"""What stands above a space-time diagram: the names of its collectives and of its regions."""

from collections import defaultdict

from matplotlib.transforms import offset_copy

from ranklab.traces import picture, tally
from ranklab.traces.data import REGION
from ranklab.traces.matching import meetings

MOST = 16  # regions; of more, no name would have room
LOW, HIGH = 2, 14  # points above the diagram


def name_parts(ax, traces):
    """Name collectives and regions above the diagram.

    Return (the regions' names, in order; a sentence on collectives that have no room, or "").
    """
    time_of, _, last = tally.scale(traces)
    bands = _in_time([_whole(events.values()) for events in meetings(traces)], time_of)
    parts = _in_time([_whole(events) for events in regions(traces)], time_of)
    names = {name for name, *_ in bands}
    room = _with_room(bands, last)
    told = ""
    if len(names) == 1 and len(room) < len(bands):  # with and without a name would look different
        told, room = f"each grey band: {names.pop()}", []
    _write(ax, room, LOW)
    if len(parts) > MOST:
        return [], told
    height = HIGH if room else LOW
    above = offset_copy(ax.get_xaxis_transform(), ax.figure, y=height, units="points")
    for _, begin, end in parts:
        style = {"color": picture.GREY, "linewidth": 1.2, "clip_on": False}
        ax.plot([begin, end], [1, 1], transform=above, **style)
    _write(ax, _with_room(parts, last), height + 2)
    return [name for name, *_ in parts], told


def regions(traces):
    """Return the regions that are not inside of another one: lists of the ranks' Events.

    The k-th region of a name on one rank belongs to the k-th of that name on the others.
    """
    found = defaultdict(list)
    for trace in traces:
        seen, end = defaultdict(int), trace.begin
        for event in trace.events:
            if event.kind == REGION and event.start >= end:
                found[event.name, seen[event.name]].append(event)
                seen[event.name] += 1
                end = event.end
    return list(found.values())


def _whole(events):
    """Return (name, begin, end) in ns: from the first rank's begin to the last one's end."""
    events = list(events)
    return events[0].name, min(e.start for e in events), max(e.end for e in events)


def _in_time(parts, time_of):
    found = [(name, time_of(begin), time_of(end)) for name, begin, end in parts]
    return sorted(found, key=lambda part: part[1])


def _with_room(parts, last):
    """Return (name, where its middle is) of the parts whose names cover no name before them."""
    taken, found = -last, []
    for name, begin, end in parts:
        half = len(name) * picture.LETTER * last / 2
        middle = min(max((begin + end) / 2, half), last - half)
        if middle - half >= taken:
            found.append((name, middle))
            taken = middle + half + picture.LETTER * last
    return found


def _write(ax, names, height):
    """Write names above the diagram, `height` points over it."""
    where = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
    look = {"ha": "center", "va": "bottom", "fontsize": 8, "annotation_clip": False}
    for name, middle in names:
        ax.annotate(name, (middle, 1), xytext=(0, height), **where, **look)
