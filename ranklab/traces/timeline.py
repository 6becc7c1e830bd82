"""`timeline()`: a row for each rank, with computation and communication over time."""

import matplotlib
from matplotlib.patches import Patch

from ranklab.plots import STYLE, pale
from ranklab.traces import picture, tally
from ranklab.traces.data import OP, OPTIMIZER, RECV, REGION, SEND, in_order
from ranklab.traces.matching import match
from ranklab.traces.waiting import busy, union, waits, without

HATCH = "//////"
COMPUTE, TALK = (-0.36, 0.34), (0.02, 0.30)  # lanes of a row: (top, height), the row being at 0
MOST = 400  # parts of a row; of more, no part can be seen
SLICES = 120  # then, the figure shows shares of so many slices of time
THIN = 0.012  # below it, as a share of the figure, a part is too thin for hatching


def timeline(traces, ax=None, name="timeline"):
    """Draw what each rank did over time: computation above, communication, hatched, below.

    An empty box is the part of a communication in which the rank waited for another rank. Regions
    of `record_function`, forward, backward and optimizer's steps stand above, with their names.
    A communication that is too short for hatching is pale. Where a GPU computed in several streams,
    each has a lane of its own, in the order of their numbers.

    traces: `ranks["t"]`, where a `%%px` cell set `t` by `with trace() as t:`; or one trace.
    ax: draw there, and return it. By default: a figure of its own, a `Picture`, which a notebook
        shows, and a script saves under `name`. Its `alt` says what is to be seen.

    Raises TraceError where there are no traces.
    """
    traces = in_order(traces)
    messages = match(traces)
    height = 1.25 + len(traces) * (0.62 if len(traces) <= 8 else 0.4)
    with matplotlib.rc_context(STYLE):
        figure, axes = picture.canvas(ax, height)
        sentences = _draw(axes, traces) + tally.caveats(traces, messages)
        picture.time_axis(axes, tally.scale(traces)[1], sentences)
    if ax is not None:
        return ax
    alt = tally.alternative(
        f"Timeline: {tally.opening(traces, messages)}",
        tally.waiting(traces),
        tally.lost(messages),
        sentences,
    )
    return picture.Picture(figure, axes, name, alt)


def _draw(ax, traces):
    """Draw all rows; return what is to be said of them."""
    time_of, _, last = tally.scale(traces)
    waited = waits(traces)
    lanes = {trace.rank: _lanes(trace, waited[trace.rank]) for trace in traces}
    many = max(sum(map(len, lane.values())) for lane in lanes.values()) > MOST
    for row, trace in enumerate(traces):
        if many:
            _shares(ax, row, trace, waited[trace.rank], time_of, tally.span(traces))
            continue
        color = picture.color(trace.rank)
        ax.hlines(row, time_of(trace.begin), time_of(trace.end), color=pale(color), linewidth=1)
        for (top, tall, look), intervals in lanes[trace.rank].items():
            bars = [(time_of(a), time_of(b) - time_of(a)) for a, b in intervals]
            for some, how in _by_length(bars, look, THIN * last):
                ax.broken_barh(some, (row + top, tall), **how(color))
        _name_regions(ax, trace, row, time_of, last)
        _name_communication(ax, trace, row, time_of, last)
    picture.rank_axis(ax, traces)
    ax.set_xlim(0, last or 1)
    _explain(ax, any(e.phase == "forward" for trace in traces for e in trace.events) and not many)
    if not many:
        return []
    return [f"each of {SLICES} slices shows the shares of its time, in full height"]


def _by_length(bars, look, thin):
    """Yield (bars, look): of a hatched bar that is thin, only some dots of the hatch would show."""
    if look is not _hatched:
        yield bars, look
        return
    yield [bar for bar in bars if bar[1] >= thin], _hatched
    yield [bar for bar in bars if bar[1] < thin], _thin


def _lanes(trace, waited):
    """What a row shows: {(top, height, look): intervals in ns}, the first one at the bottom."""
    streams = sorted({e.stream for e in trace.events if e.stream is not None}) or [None]
    (top, height), lanes = COMPUTE, {}
    for k, stream in enumerate(streams):
        lane = top + k * height / len(streams), 0.9 * height / len(streams)
        lane = lane if len(streams) > 1 else COMPUTE
        lanes[*lane, _full] = busy(trace, stream=stream)
        lanes[*lane, _light] = busy(trace, "forward", stream)
    return lanes | {(*TALK, _hatched): _talks(trace), (*TALK, _empty): waited}


def _talks(trace):
    return union((e.start, e.end) for e in trace.communication if e.end > e.start)


def _shares(ax, row, trace, waited, time_of, whole):
    """A row of too many parts: how much of each slice of time was spent on what."""
    computed, talks = busy(trace), _talks(trace)
    waits_only = without(waited, computed)
    talks_only = without(without(talks, waited), computed)
    begin, end = whole
    edges = [begin + (end - begin) * k // SLICES for k in range(SLICES + 1)]
    color, floor = picture.color(trace.rank), [row + 0.36] * (SLICES + 1)
    for intervals, look in ((computed, _full), (talks_only, _hatched), (waits_only, _empty)):
        parts = per_slice(intervals, edges)
        top = [y - 0.78 * part for y, part in zip(floor, [*parts, parts[-1]])]
        times = [time_of(edge) for edge in edges]
        ax.fill_between(times, floor, top, step="post", **look(color) | {"linewidth": 0.2})
        floor = top


def per_slice(intervals, edges):
    """Return the share of each slice of time that disjoint, ordered `intervals` fill."""
    filled, number = [0] * (len(edges) - 1), 0
    for start, end in intervals:
        while number and edges[number] > start:
            number -= 1
        while number < len(filled) and edges[number] < end:
            inside = min(end, edges[number + 1]) - max(start, edges[number])
            filled[number] += max(0, inside)
            number += 1
    return [part / max(1, b - a) for part, a, b in zip(filled, edges, edges[1:])]


def _full(color):
    return {"facecolor": color, "edgecolor": color, "linewidth": 0.4}


def _hatched(color):
    return {
        "facecolor": pale(color, 0.25),
        "edgecolor": color,
        "hatch": HATCH,
        "linewidth": 0.4,
    }


def _thin(color):
    return _hatched(color) | {"hatch": None}


def _light(color):
    return {"facecolor": pale(color, 0.55), "edgecolor": color, "linewidth": 0.4}


def _empty(color):
    return {"facecolor": "white", "edgecolor": color, "linewidth": 0.8, "zorder": 2}


def _explain(ax, forward):
    grey = picture.GREY
    handles = [
        Patch(**_full(grey), label="computes"),
        *([Patch(**_light(grey), label="forward")] if forward else []),
        Patch(**_hatched(grey), label="sends, receives"),
        Patch(**_empty(grey), label="waits"),
    ]
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        fontsize="small",
        borderpad=0.1,
        columnspacing=1.2,
        handlelength=1.4,
    )


def _name_regions(ax, trace, row, time_of, last):
    """Draw a line above the computation for each region, with its name where there is room."""
    taken = -1.0
    for name, start, end in _regions(trace):
        left, right = time_of(start), time_of(end)
        ax.hlines(row - 0.42, left, right, color=picture.GREY, linewidth=1.2)
        if left >= taken and right - left > len(name) * picture.LETTER * last:
            picture.label(ax, (left + right) / 2, row - 0.42, name)
        taken = max(taken, right)


def _regions(trace):
    """The named parts of a trace: (name, start, end), the outer ones first."""
    found = [(e.name, e.start, e.end) for e in trace.events if e.kind == REGION]
    found += [(e.name, e.start, e.end) for e in trace.events if e.kind == OPTIMIZER]
    phase, start, end = "", 0, 0
    for event in trace.events:
        if event.kind != OP or (not event.phase and event.start < end):
            continue
        if event.phase != phase:
            if phase:
                found.append((phase, start, end))
            phase, start = event.phase, event.start
        end = event.end
    if phase:
        found.append((phase, start, end))
    return sorted(found, key=lambda region: (region[1], -region[2]))


def _name_communication(ax, trace, row, time_of, last):
    """Name each communication that is long enough for its name."""
    free_from = 0.0
    for event in trace.communication:
        left, right = time_of(event.start), time_of(event.end)
        name = _what(event)
        if left < free_from - 0.01 * last or right - left < len(name) * picture.LETTER * last:
            continue
        picture.label(ax, (left + right) / 2, row + TALK[0] + TALK[1] / 2, name)
        free_from = right


def _what(event):
    other = "anyone" if event.peer is None else event.peer
    if event.kind == SEND:
        return f"to {other}"
    return f"from {other}" if event.kind == RECV else event.name
