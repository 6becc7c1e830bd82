"""Which message went where: sends and receives of several ranks, put together."""

from collections import defaultdict
from dataclasses import dataclass

from ranklab.traces.clocks import agreement
from ranklab.traces.data import COLLECTIVE, RECV, SEND, Event

MOST_SHIFT = 50  # messages by which a trace may have begun late


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
    def left(self):
        """When it left, in ns: a sender that waits for its receiver sends when that is there."""
        if self.matched and self.send.start < self.recv.start < self.send.end:
            return self.recv.start
        return self.send.start if self.send else None

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
    boxes = defaultdict(_Box)
    for trace in traces:
        for event in trace.events:
            if event.kind == SEND:
                box = boxes[event.peer, event.group, event.tag]
                box.sends[trace.rank].append(event)
            elif event.kind == RECV:
                box = boxes[trace.rank, event.group, event.tag]
                box.recvs[event.peer].append(event)
    found = []
    for (dst, _, _), box in boxes.items():
        found += box.in_any_order(dst, slack) if None in box.recvs else box.in_rows(dst, slack)
    for message in found:
        if message.recv is None:
            message.why = _no_receive(message.dst, traced)
        elif message.send is None:
            message.why = _no_send(message, traced)
    return sorted(found, key=lambda m: (m.send or m.recv).start)


class _Box:
    """What is sent to one rank in one group with one tag, by sender, and what it receives."""

    def __init__(self):
        self.sends, self.recvs = defaultdict(list), defaultdict(list)

    def in_rows(self, dst, slack):
        """Match each sender's row."""
        found = []
        for src in self.sends.keys() | self.recvs.keys():
            sends, recvs = self.sends[src], self.recvs[src]
            shift = _shift(sends, recvs, slack)
            if shift is None:
                pairs = _one_by_one(sends, recvs, slack)
            else:
                pairs = {i: i + shift for i in range(len(recvs)) if 0 <= i + shift < len(sends)}
            for i, recv in enumerate(recvs):
                found.append(Message(src, dst, sends[pairs[i]] if i in pairs else None, recv))
            taken = set(pairs.values())
            left = (send for i, send in enumerate(sends) if i not in taken)
            found += [Message(src, dst, send) for send in left]
        return found

    def in_any_order(self, dst, slack):
        """Match where a receive from anyone may take each message: the first one sent is first."""
        found = []
        recvs = [(src, recv) for src, row in self.recvs.items() for recv in row]
        for src, recv in sorted(recvs, key=lambda pair: pair[1].start):
            rows = [r for r, row in self.sends.items() if row and src in (None, r)]
            rows = [r for r in rows if _possible(self.sends[r][0], recv, slack)]
            if not rows or (src is None and recv.state != "done"):
                found.append(Message(src, dst, recv=recv))
                continue
            first = min(rows, key=lambda r: self.sends[r][0].start)
            found.append(Message(first, dst, self.sends[first].pop(0), recv))
            found[-1].guessed = len(rows) > 1
        return found + [Message(r, dst, send) for r, row in self.sends.items() for send in row]


def _shift(sends, recvs, slack):
    """By how much the row of the sends is ahead of that of the receives; None if nothing fits.

    Of several that are possible: none if the rows are equally long (a box may be larger than its
    message), then one at which all sizes are equal, then the smallest.
    """
    if not sends or not recvs:
        return 0
    best = None
    for shift in range(1 - min(len(recvs), MOST_SHIFT), min(len(sends), MOST_SHIFT)):
        first, end = max(0, -shift), min(len(recvs), len(sends) - shift)
        pairs = [(sends[i + shift], recvs[i]) for i in range(first, end)]
        if not pairs or not all(_possible(send, recv, slack) for send, recv in pairs):
            continue
        unequal = any(send.nbytes != recv.nbytes for send, recv in pairs)
        rank = shift != 0 or len(sends) != len(recvs), unequal, abs(shift)
        if best is None or rank < best[0]:
            best = rank, shift
    return best[1] if best else None


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
