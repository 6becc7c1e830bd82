"""`traffic()`: messages and bytes that each rank sent and received."""

import html
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from math import ceil, log2

from ranklab.traces.data import RECV, SEND, TraceError, in_order, listed, size
from ranklab.traces.matching import match

HEADS = {  # what stands above a column, and above several
    "rank": ("", "rank"),
    "sent": ("sent", "messages"),
    "sent_bytes": ("sent", "bytes"),
    "received": ("received", "messages"),
    "received_bytes": ("received", "bytes"),
    "collectives": ("collectives", "calls"),
    "payload_bytes": ("collectives", "payload"),
    "moved_bytes": ("collectives", "an algorithm sends"),
}
SAYS = (
    "Messages: what send and recv were given. Payload: the bytes that the rank's program "
    "handed over to collectives. The last column is a formula, not measured: ring "
    "(all_reduce, all_gather, reduce_scatter, reduce), binomial tree (broadcast), each part "
    "straight to its owner (gather, scatter, all_to_all)."
)
CAPTION = '<caption style="color: inherit">'  # the site's own is too pale in the dark theme
ROOM = "padding: 0.2em 0.8em"
RIGHT = f"text-align: right; {ROOM}"


@dataclass
class Row:
    """What one rank sent and received. The bytes are exact, `moved_bytes` excepted.

    payload_bytes: what its program handed over to collectives. moved_bytes: what the rank would
        send for these in a usual algorithm (see `would_send`).
    """

    rank: int | str
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    collectives: int = 0
    payload_bytes: int = 0
    moved_bytes: float = 0


class Traffic:
    """A table with a row for each rank. `table[2].sent_bytes` is a number; `rows`: all of it."""

    def __init__(self, rows, calls):
        self.rows = rows
        self.calls = calls  # {operation: {rank: (calls, payload bytes)}}

    @property
    def total(self):
        names = [field.name for field in fields(Row) if field.name != "rank"]
        return Row("all", **{name: sum(getattr(r, name) for r in self.rows) for name in names})

    def __getitem__(self, rank):
        for row in self.rows:
            if row.rank == rank:
                return row
        there = listed(str(row.rank) for row in self.rows)
        raise TraceError(f"There is no trace of rank {rank!r} here, only of {there}.")

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def _shown(self):
        """The columns that hold anything, and all cells as text."""
        rows = [asdict(row) for row in [*self.rows, self.total]]
        names = ["rank", "sent", "sent_bytes", "received", "received_bytes"]
        if self.total.collectives:
            names += ["collectives", "payload_bytes", "moved_bytes"]
        cells = [[_text(row[name], name) for name in names] for row in rows]
        return [HEADS[name] for name in names], cells

    def __repr__(self):
        heads, cells = self._shown()
        names = [name for _, name in heads]
        widths = [max(map(len, column)) for column in zip(names, *cells)]
        groups = [
            (group, sum(widths[k] + 3 for k, _ in some) - 3) for group, some in _grouped(heads)
        ]
        lines = ["   ".join(group.center(width) for group, width in groups)]
        lines += ["   ".join(c.rjust(w) for c, w in zip(line, widths)) for line in [names, *cells]]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self):
        heads, cells = self._shown()
        groups = "".join(
            f'<th scope="colgroup" colspan="{len(some)}" style="text-align: center; {ROOM}">'
            f"{html.escape(group)}</th>"
            for group, some in _grouped(heads)
        )
        top = "".join(f'<th scope="col" style="{RIGHT}">{name}</th>' for _, name in heads)
        body = "".join(
            f'<tr><th scope="row" style="{RIGHT}">{line[0]}</th>'
            + "".join(f'<td style="{RIGHT}">{cell}</td>' for cell in line[1:])
            + "</tr>"
            for line in cells
        )
        caption = f"{CAPTION}{html.escape(SAYS)}</caption>" if self.total.collectives else ""
        return (
            f'<table style="margin-left: 0">{caption}<thead><tr>{groups}</tr><tr>{top}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )


def _grouped(heads):
    """Yield (what stands above several columns, [(number, head) of each])."""
    for group, some in groupby(enumerate(heads), key=lambda head: head[1][0]):
        yield group, list(some)


def _text(value, name):
    if name == "moved_bytes":
        return f"≈ {size(value)}" if value else "0"
    return f"{value:,}" if isinstance(value, int) else str(value)


def traffic(traces):
    """Count messages and bytes of each rank: a table to show, and to compute with.

    What a rank sent is what its program gave to `send` (or got ready to send with `isend`). What
    it received are the bytes of the messages that arrived; of a message whose sender was not
    traced, those of the box that the program brought.

    For collectives, the payload is what the rank's program handed over. What travels is decided by
    an algorithm that the profiler does not see: `moved_bytes` is a formula's.

    traces: `ranks["t"]`, or one trace. Raises TraceError where there are no traces.
    """
    traces = in_order(traces)
    rows = {trace.rank: Row(trace.rank) for trace in traces}
    for message in match(traces):
        if message.send is not None and message.send.nbytes is not None:
            rows[message.src].sent += 1
            rows[message.src].sent_bytes += message.send.nbytes
        if message.recv is not None and message.recv.state == "done":
            rows[message.dst].received += 1
            rows[message.dst].received_bytes += (message.send or message.recv).nbytes or 0
    calls = {}
    for trace in traces:
        for event in trace.communication:
            if event.kind not in (SEND, RECV):
                _add_collective(rows[trace.rank], event, calls)
    return Traffic(list(rows.values()), calls)


def _add_collective(row, event, calls):
    payload = handed_over(event, row.rank)
    row.collectives += 1
    row.payload_bytes += payload
    row.moved_bytes += sum(would_send(event, row.rank, *did) for did in event.ran_as)
    number, nbytes = calls.setdefault(event.name, {}).get(row.rank, (0, 0))
    calls[event.name][row.rank] = number + 1, nbytes + payload


def handed_over(event, rank):
    """The bytes that the program on `rank` gave to a collective. Of a broadcast: the root's."""
    if event.name == "broadcast" and event.peer is not None and event.peer != rank:
        return 0
    return event.nbytes or 0


def would_send(event, rank, name, nbytes):
    """The bytes that `rank` sends in the usual algorithm for an operation.

    event: the collective; name, nbytes: what the backend made of it (Gloo turns a reduce-scatter
    into all-reduces, which costs twice as much).
    """
    ranks = event.group or ()
    n = len(ranks)
    if n < 2 or rank not in ranks:
        return 0
    position = 0 if event.peer is None else (ranks.index(rank) - ranks.index(event.peer)) % n
    share = {
        "all_reduce": 2 * (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_gather": n - 1,
        "all_to_all": (n - 1) / n,
        "reduce": (n - 1) / n + (position > 0) / n,
        "gather": float(position > 0),
        "scatter": (n - 1) / n * (position == 0),
        "broadcast": _children(position, n),
    }
    return share.get(name, 0) * nbytes


def _children(position, n):
    """To how many ranks one passes a broadcast on, in a binomial tree of n ranks."""
    first = 0 if position == 0 else position.bit_length()
    return sum(position + 2**k < n for k in range(first, ceil(log2(n))))
