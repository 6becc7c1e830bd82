"""Sentences about traces, for figures and their descriptions."""

from ranklab.traces.clocks import agreement
from ranklab.traces.data import COLLECTIVE, counted, duration, listed, time_unit
from ranklab.traces.waiting import waiting_share


def span(traces):
    """Return (begin, end) of all traces together, in ns."""
    return min(trace.begin for trace in traces), max(trace.end for trace in traces)


def scale(traces):
    """Return (a function from ns to the figure's time, the unit's name, the last time)."""
    begin, end = span(traces)
    factor, unit = time_unit((end - begin) / 1e9)

    def time_of(ns):
        return (ns - begin) / 1e9 * factor

    return time_of, unit, time_of(end)


def opening(traces, messages):
    """Return "4 ranks, 12 messages in 3.4 ms"."""
    begin, end = span(traces)
    parts = [counted(len(traces), "rank")]
    if sent := sum(message.send is not None for message in messages):
        parts.append(counted(sent, "message"))
    if calls := collectives(traces):
        parts.append(f"{counted(calls, 'collective')} on each")
    if len(parts) > 2:
        parts[1:] = [f"{parts[1]} and {parts[2]}"]
    return f"{', '.join(parts)} in {duration((end - begin) / 1e9)}"


def collectives(traces):
    """The number of collectives of the rank that took part in most."""
    return max(sum(e.kind == COLLECTIVE for e in trace.events) for trace in traces)


def waiting(traces):
    """Return who waits longest: "rank 2 waits 40 % of the time", or ""."""
    shares = waiting_share(traces)
    most = max(shares.values())
    if most < 0.05:
        return ""
    who = [rank for rank, share in shares.items() if share > 0.9 * most]
    percent = f"{most:.0%}".replace("%", " %")
    if len(who) == len(traces) > 1:
        return f"all ranks wait about {percent} of the time"
    if len(who) > 3:
        return f"ranks wait up to {percent} of the time"
    if len(who) > 1:
        return f"ranks {listed(map(str, who))} wait about {percent} of the time"
    return f"rank {who[0]} waits {percent} of the time"


def lost(messages):
    """Return what is known of messages with one end: ["1 message was never received"]."""
    reasons = {}
    for message in messages:
        if message.why:
            reasons[message.why] = reasons.get(message.why, 0) + 1
    said = []
    for why, number in sorted(reasons.items()):
        was = "was" if number == 1 else "were"
        if why == "no message came":
            said.append(f"for {counted(number, 'receive')} no message came")
        elif why.startswith("its"):
            said.append(f"{counted(number, 'message')} with one end here: {why}")
        else:
            said.append(f"{counted(number, 'message')} {was} {why}")
    return said


def caveats(traces, messages):
    """Return what the reader of a figure must know of what it does not show."""
    said = [agreement(traces)[1]]
    if errors := [trace for trace in traces if trace.error]:
        who = listed(f"rank {trace.rank}" for trace in errors)
        who = "all ranks" if len(errors) == len(traces) > 1 else who
        said.append(f"{who} ended with an error ({listed(sorted({t.error for t in errors}))})")
    unfinished = sum(e.state == "unfinished" for t in traces for e in t.communication)
    if unfinished:
        said.append(f"nobody waited for the end of {counted(unfinished, 'operation')}")
    if guessed := sum(message.guessed for message in messages):
        said.append(f"the sender of {counted(guessed, 'message')} to a recv from anyone is a guess")
    if doubtful := sum(e.doubtful for t in traces for e in t.communication):
        said.append(f"which size belongs to which of {doubtful} collectives is a guess")
    return [sentence for sentence in said if sentence]


def alternative(*parts):
    """Join what is to be seen into one text: parts are strings or lists of them."""
    said = [s for part in parts for s in ([part] if isinstance(part, str) else part) if s]
    return "; ".join(said)
