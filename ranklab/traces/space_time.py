"""`messages()`: the space-time diagram, an arrow for each message."""

from collections import defaultdict

import matplotlib
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from ranklab.plots import STYLE, pale
from ranklab.traces import headings, picture, tally
from ranklab.traces.data import in_order, size
from ranklab.traces.matching import match, meetings
from ranklab.traces.waiting import waits

MOST = 600  # arrows that a figure shows
WITH_HEADS = 150
WITH_LABELS = 12
STUB = 0.05  # the length of an arrow that lacks an end, as a share of the figure's time
CROSS = "#B00020"


def messages(traces, ax=None, name="messages"):
    """Draw an arrow for each message, from the moment it was sent to the moment it arrived.

    A message has the color of its sender. It is sent when both ends are there: if `send` was called
    before the receive, its rank first waits, and the arrow begins where that waiting ends. It has
    arrived when the receiver's wait for it ends. A cross marks a message that nobody received, or
    a receive that got nothing. A thick pale line is the time in which a rank waited; a grey band, a
    collective. The names of collectives and of regions (`record_function`) stand above.

    traces: `ranks["t"]`, where a `%%px` cell set `t` by `with trace() as t:`; or one trace.
    ax: draw there, and return it. By default: a figure of its own, a `Picture`, which a notebook
        shows, and a script saves under `name`. Its `alt` says what is to be seen.

    Raises TraceError where there are no traces.
    """
    traces = in_order(traces)
    found = match(traces)
    height = 1.35 + len(traces) * (0.6 if len(traces) <= 8 else 0.36)
    with matplotlib.rc_context(STYLE):
        figure, axes = picture.canvas(ax, height)
        sentences = _draw(axes, traces, found)
        parts, told = headings.name_parts(axes, traces)
        sentences += [told] * bool(told) + tally.caveats(traces, found)
        picture.time_axis(axes, tally.scale(traces)[1], tally.lost(found) + sentences)
    if ax is not None:
        return ax
    alt = tally.alternative(
        f"Space-time diagram: {tally.opening(traces, found)}",
        f"regions: {', '.join(parts)}" if parts else "",
        tally.waiting(traces),
        tally.lost(found),
        sentences,
    )
    return picture.Picture(figure, axes, name, alt)


def _draw(ax, traces, found):
    """Draw lines and arrows; return what is to be said of them."""
    time_of, _, last = tally.scale(traces)
    rows = {trace.rank: row for row, trace in enumerate(traces)}
    _lifelines(ax, traces, rows, time_of)
    _collectives(ax, traces, rows, time_of)
    matched = [m for m in found if m.matched and m.src in rows and m.dst in rows]
    shown = thinned(matched, MOST)
    lines = [_ends(m, rows, time_of, last) for m in shown]
    colors = [picture.color(m.src) for m in shown]
    if len(shown) <= WITH_HEADS:
        for line, color, message in zip(lines, colors, shown):
            _arrow(ax, line, color, message.src == message.dst)
    else:
        ax.add_collection(LineCollection(lines, colors=colors, linewidths=0.7, zorder=3))
        tips = [line[1] for line in lines]
        ax.scatter(*zip(*tips), s=1, c=colors, zorder=4)
    sentences = []
    told = {_told(m) for m in found}
    if len(told) == 1 and found:
        sentences.append(f"each message: {told.pop()}")
    elif len(found) <= WITH_LABELS:
        _labels(ax, shown, lines, last, len(traces))
    broken = [m for m in found if not m.matched]
    right = [1.01 * last]
    for message in thinned(broken, MOST // 4):
        right.append(_broken(ax, message, rows, time_of, last, len(broken) <= WITH_LABELS))
    picture.rank_axis(ax, traces, below=0.6)
    ax.set_xlim(-0.01 * last, max(right) or 1)
    if len(shown) < len(matched):
        sentences.append(f"{len(shown)} of {len(matched)} messages are drawn, evenly for all pairs")
    return sentences


def thinned(messages, most):
    """Return at most about `most` messages, the same share of each pair of ranks."""
    if len(messages) <= most:
        return messages
    pairs = defaultdict(list)
    for message in messages:
        pairs[message.src, message.dst].append(message)
    step = len(messages) / max(1, most - len(pairs))
    kept = []
    for some in pairs.values():
        kept += [some[int(k * step)] for k in range(int((len(some) - 1) / step) + 1)]
    return kept


def _lifelines(ax, traces, rows, time_of):
    waited = waits(traces)
    for trace in traces:
        row, color = rows[trace.rank], picture.color(trace.rank)
        ax.hlines(row, time_of(trace.begin), time_of(trace.end), color=color, linewidth=1.5)
        lines = [[(time_of(a), row), (time_of(b), row)] for a, b in waited[trace.rank]]
        ax.add_collection(
            LineCollection(lines, colors=[pale(color, 0.3)], linewidths=7, capstyle="butt")
        )


def _collectives(ax, traces, rows, time_of):
    """A grey band for each collective, from the first rank's start to the last one's end."""
    for events in meetings(traces):
        starts = [(time_of(events[r].start), rows[r]) for r in events]
        ends = [(time_of(events[r].end), rows[r]) for r in events]
        outline = sorted(starts, key=_row) + sorted(ends, key=_row, reverse=True)
        ax.fill(*zip(*outline), color=picture.GREY, alpha=1, facecolor="#E4E4E4", zorder=0.5)


def _row(point):
    return point[1]


def _ends(message, rows, time_of, last):
    """Return ((time, row) of the departure, (time, row) of the arrival)."""
    arrived = message.arrived
    if arrived is None:
        arrived = max(message.send.start, message.recv.start)
    return (time_of(message.left), rows[message.src]), (time_of(arrived), rows[message.dst])


def _arrow(ax, line, color, to_itself):
    bend = "arc3,rad=-1.2" if to_itself else "arc3"
    look = {"arrowstyle": "-|>", "color": color, "linewidth": 1.3, "mutation_scale": 10}
    look |= {"shrinkA": 0, "shrinkB": 0, "connectionstyle": bend}
    ax.annotate("", xy=line[1], xytext=line[0], arrowprops=look, zorder=3)


def _labels(ax, shown, lines, last, rows):
    """Say what each message is, wherever that does not cover what another one is."""
    placed = []
    for message, ((x0, y0), (x1, y1)) in zip(shown, lines):
        x, y = x0 + 0.42 * (x1 - x0), y0 + 0.42 * (y1 - y0)
        if all(abs(x - a) > 0.2 * last or abs(y - b) > 0.05 * rows for a, b in placed):
            picture.label(ax, x, y, _told(message))
            placed.append((x, y))


def _told(message):
    """Return "64 KiB · tag 7"."""
    text = "size unknown" if message.nbytes is None else size(message.nbytes)
    if message.tag:
        text += f" · tag {message.tag}"
    return text + " · from anyone" if message.guessed else text


def _broken(ax, message, rows, time_of, last, named):
    """An arrow with one end: a cross where the other one should be. Return where it ends."""
    if message.send is not None:
        here, other, at = message.src, message.dst, time_of(message.send.start)
        cross_at = at + STUB * last
    else:
        here, other = message.dst, message.src
        cross_at = time_of(message.recv.start)
        at = cross_at + STUB * last
    row = rows[here]
    towards = row + 0.3 if rows.get(other, row + 1) >= row else row - 0.3
    color = picture.color(message.src) if message.src is not None else picture.GREY
    ax.add_line(Line2D([at, cross_at], [row, towards], color=color, linewidth=1.3, linestyle=":"))
    ax.plot([cross_at], [towards], "x", color=CROSS, markersize=7, markeredgewidth=2, zorder=6)
    ends = f"to {message.dst}" if message.send else f"from {_or_anyone(message.src)}"
    if named:
        side = {"ha": "left", "va": "center", "fontsize": 8, "clip_on": True}
        ax.text(max(at, cross_at) + 0.015 * last, towards, ends, **side)
    return max(at, cross_at) + (0.03 + 0.018 * len(ends) if named else 0.02) * last


def _or_anyone(rank):
    return "anyone" if rank is None else rank
