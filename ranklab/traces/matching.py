"""Which message went where: sends and receives of several ranks, put together."""

from collections import defaultdict
from dataclasses import dataclass

from .clocks import agreement
from .data import COLLECTIVE, RECV, SEND, Event


@dataclass(slots=True)
class Message:
    """A send, a receive, or both ends of a message.

    src, dst: ranks; src is None for a receive from anyone that got nothing.
    send, recv: the Events of its ends; None where no trace has one.
    why: for a message with one end, why it has no other one.
    guessed: a receive from anyone took it, and there were others that it might have taken.
    """

    src: int | None
    dst: int | None
    send: Event | None = None
    recv: Event | None = None
    why: str = ""
    guessed: bool = False

    @property
    def matched(self):
        return self.send is not None and self.recv is not None

    @property
    def arrived(self):
        """When the wait for it ended, in ns; None if it did not, or not well."""
        return self.recv.end if self.matched and self.recv.state == "done" else None

    @property
    def nbytes(self):
        known = self.send or self.recv
        return known.nbytes

    @property
    def tag(self):
        return (self.send or self.recv).tag


def match(traces):
    """Return the Messages of these traces (a list in rank order), in order of time.

    Messages of one sender to one receiver, in one group and with one tag, arrive in the order in
    which they are sent, and fill the receives in the order in which those were posted. A pair that
    cannot be one (it arrived before it left, or did not fit) shows that one end of the row is
    outside of the trace; the row is then moved on by as many messages as it takes.
    """
    traced = {trace.rank for trace in traces}
    slack, _ = agreement(traces)
    sends, recvs, from_anyone = defaultdict(list), defaultdict(list), []
    for trace in traces:
        for event in trace.events:
            if event.kind == SEND:
                sends[trace.rank, event.peer, event.group, event.tag].append(event)
            elif event.kind == RECV and event.peer is None:
                from_anyone.append((trace.rank, event))
            elif event.kind == RECV:
                recvs[event.peer, trace.rank, event.group, event.tag].append(event)
    found, left = [], {}
    for row in sends.keys() | recvs.keys():
        matched, over = _match_row(row, sends[row], recvs[row], slack, bool(from_anyone))
        found += matched
        left[row] = over
    found += _match_anyone(from_anyone, left, slack)
    for (src, dst, _, _), over in left.items():
        found += [Message(src, dst, send=event, why=_no_receive(dst, traced)) for event in over]
    for message in found:
        if message.send is None:
            message.why = _no_send(message, traced)
    return sorted(found, key=lambda m: (m.send or m.recv).start)


def _match_row(row, sends, recvs, slack, others_may_take):
    """Return (Messages of one row, sends that are left over)."""
    src, dst = row[:2]
    shift = _shift(sends, recvs, slack, others_may_take)
    if shift is None:
        pairs = _one_by_one(sends, recvs, slack)
    else:
        pairs = {i: i + shift for i in range(len(recvs)) if 0 <= i + shift < len(sends)}
    found = [
        Message(src, dst, sends[pairs[i]] if i in pairs else None, recv)
        for i, recv in enumerate(recvs)
    ]
    taken = set(pairs.values())
    return found, [send for i, send in enumerate(sends) if i not in taken]


def _shift(sends, recvs, slack, others_may_take):
    """By how much the row of the sends is ahead of that of the receives; None if nothing fits."""

    def fits(shift):
        pairs = [(sends[i + shift], r) for i, r in enumerate(recvs) if 0 <= i + shift < len(sends)]
        return bool(pairs) and all(_possible(send, recv, slack) for send, recv in pairs), pairs

    if not sends or not recvs:
        return 0
    best = None
    for shift in sorted(range(1 - len(recvs), len(sends)), key=lambda s: (abs(s), s)):
        good, pairs = fits(shift)
        if not good or (others_may_take and shift > 0 and best is not None):
            continue
        if all(send.nbytes == recv.nbytes for send, recv in pairs) and (best is None or shift == 0):
            return shift
        best = shift if best is None else best
        if abs(shift) > 50:  # a window cut so badly is matched one by one
            break
    return best


def _one_by_one(sends, recvs, slack):
    """Give each receive the first send that is left and possible."""
    pairs, following = {}, 0
    for i, recv in enumerate(recvs):
        for j in range(following, len(sends)):
            if _possible(sends[j], recv, slack):
                pairs[i], following = j, j + 1
                break
    return pairs


def _possible(send, recv, slack):
    if send.nbytes is not None and recv.nbytes is not None and send.nbytes > recv.nbytes:
        return False
    return recv.state != "done" or recv.end + slack >= send.start


def _match_anyone(receives, left, slack):
    """Receives from anyone take what is left, in the order in which it was sent."""
    found = []
    for dst, recv in sorted(receives, key=lambda pair: pair[1].start):
        rows = [
            (row, over[0])
            for row, over in left.items()
            if over
            and row[1:] == (dst, recv.group, recv.tag)
            and recv.state == "done"
            and _possible(over[0], recv, slack)
        ]
        if not rows:
            found.append(Message(None, dst, recv=recv))
            continue
        row, send = min(rows, key=lambda pair: pair[1].start)
        left[row].pop(0)
        found.append(Message(row[0], dst, send, recv, guessed=len(rows) > 1))
    return found


def _no_receive(dst, traced):
    return "never received" if dst in traced else "its receiver was not traced"


def _no_send(message, traced):
    if message.src is not None and message.src not in traced:
        return "its sender was not traced"
    if message.recv.state == "done":
        return "sent outside of the trace"
    return "no message came"


def meetings(traces):
    """Return the collectives of these traces: a list of {rank: Event}, one for each.

    The k-th collective of a group on one rank belongs to the k-th of the same group on the
    others. Where the numbers differ (a trace began later, or a rank left one out) and they do not
    fit from the start, they are put together from the end, or not at all.
    """
    slack, _ = agreement(traces)
    rows = defaultdict(dict)
    for trace in traces:
        for event in trace.events:
            if event.kind == COLLECTIVE and event.group is not None:
                rows[event.group].setdefault(trace.rank, []).append(event)
    found = []
    for group, row in rows.items():
        if set(group) <= set(row):
            found += _meet(row, slack)
    return found


def _meet(row, slack):
    least = min(len(events) for events in row.values())
    from_start = [{r: events[k] for r, events in row.items()} for k in range(least)]
    from_end = [{r: events[k - least] for r, events in row.items()} for k in range(least)]
    for tried in (from_start, from_end):
        if all(_one_meeting(events.values(), slack) for events in tried):
            return tried
    common = []
    for events in from_start:  # up to the first that does not fit
        if not _one_meeting(events.values(), slack):
            break
        common.append(events)
    return common


def _one_meeting(events, slack):
    """Can these be one collective? The same operation, and no one done before all had begun."""
    events = list(events)
    if len({event.name for event in events}) > 1:
        return False
    everybody_waits = events[0].name in ("all_reduce", "all_gather", "reduce_scatter", "barrier")
    done = [event.end for event in events if event.state == "done"]
    if not everybody_waits or not done:
        return True
    return min(done) + slack >= max(event.start for event in events)
