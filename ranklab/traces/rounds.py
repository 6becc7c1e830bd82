"""How many messages of a trace must come one after the other."""

from ranklab.traces.matching import match


def rounds(traces):
    """Count the rounds of these traces (a list in rank order): the longest chain of messages.

    A message is in the round after the last one that either of its ends had to finish before.
    """
    done = {trace.rank: [(0, 0)] for trace in traces}  # (when it ended, in which round)
    for message in sorted(match(traces), key=lambda m: max(m.send.start, m.recv.start)):
        ends = (message.src, message.send), (message.dst, message.recv)
        turn = 1 + max(k for who, e in ends for over, k in done[who] if over <= e.start)
        for who, e in ends:
            done[who].append((e.end, turn))
    return max(k for all_of_rank in done.values() for _, k in all_of_rank)
