"""What is true of a schedule of a pipeline, found in another way than chapter 17 finds it.

A schedule with messages is a graph: an edge from each instruction to the next one of its stage,
from the k-th send of a link to the k-th receive, and from the k-th receive to the send that has to
wait for its place in the queue. It ends if and only if that graph has no circle.
"""

import random
from collections import Counter, defaultdict, deque
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

COMPUTES = "FBIW"


def link(kind, stage, stages):
    """The queue of a message: what it carries, from whom, to whom."""
    what = kind.split()[1]
    forward = what == "activation"
    if kind.startswith("send"):
        return what, stage, (stage + 1 if forward else stage - 1) % stages
    return what, (stage - 1 if forward else stage + 1) % stages, stage


def of_links(schedule):
    """{link: (its sends, its receives)}, each (stage, place in the program), in order."""
    found = defaultdict(lambda: ([], []))
    for stage, program in enumerate(schedule):
        for at, (kind, *_) in enumerate(program):
            if kind not in COMPUTES:
                which = kind.startswith("receive")
                found[link(kind, stage, len(schedule))][which].append((stage, at))
    return found


def cargo(schedule, node):
    """What a message is about: its micro-batch, and the piece of the model that it goes to."""
    kind, micro_batch, chunk = schedule[node[0]][node[1]]
    piece = chunk * len(schedule) + node[0]
    step = 1 if kind == "send activation" else -1 if kind == "send gradient" else 0
    return micro_batch, piece + step


def graph(schedule, depth):
    """{instruction: those that are before it}; None if a link has a message too many."""
    before = {(s, at): set() for s, program in enumerate(schedule) for at in range(len(program))}
    for stage, program in enumerate(schedule):
        for one, two in pairwise((stage, at) for at in range(len(program))):
            before[two].add(one)
    for sends, receives in of_links(schedule).values():
        if len(sends) != len(receives):
            return None
        for send, receive in zip(sends, receives):
            before[receive].add(send)
        if depth:
            for receive, send in zip(receives, sends[depth:]):
                before[send].add(receive)
    return before


def in_order(schedule, depth):
    """All instructions in an order in which they can happen; None if there is none."""
    before = graph(schedule, depth)
    try:
        return None if before is None else list(TopologicalSorter(before).static_order())
    except CycleError:
        return None


def paired(schedule):
    """Is the k-th message that a link is given the k-th that is taken from it?"""
    return all(
        [cargo(schedule, node) for node in sends] == [cargo(schedule, node) for node in receives]
        for sends, receives in of_links(schedule).values()
    )


def complete(schedule, micro_batches, chunks):
    """Does each micro-batch pass each piece once in each direction, with just its messages?"""
    stages = len(schedule)
    last = stages * chunks - 1
    for stage, program in enumerate(schedule):
        counts = Counter(program)
        for which in [(k, c) for k in range(micro_batches) for c in range(chunks)]:
            piece = which[1] * stages + stage
            n = {kind: counts.pop((kind, *which), 0) for kind in COMPUTES}
            whole = (n["F"], n["B"], n["I"], n["W"])
            wanted = {"receive activation": piece > 0, "send activation": piece < last}
            wanted |= {"receive gradient": piece < last, "send gradient": piece > 0}
            has = {kind: counts.pop((kind, *which), 0) for kind in wanted}
            if whole not in ((1, 1, 0, 0), (1, 0, 1, 1)) or has != wanted:
                return False
        if counts:
            return False
    return True


def local_order(schedule, chunks):
    """Does every stage do everything after what it needs from itself?"""
    stages = len(schedule)
    last = stages * chunks - 1
    for stage, program in enumerate(schedule):
        at = {one: place for place, one in enumerate(program)}
        for (kind, *which), place in at.items():
            piece, needed = which[1] * stages + stage, []
            if kind == "F" and piece > 0:
                needed = ["receive activation"]
            if kind in "BI":
                needed = ["F"] + ["receive gradient"] * (piece < last)
            if kind in ("W", "send gradient"):
                needed = ["I"] if ("I", *which) in at else ["B"]
            if kind == "send activation":
                needed = ["F"]
            if any(at.get((one, *which), place) >= place for one in needed):
                return False
    return True


def is_right(schedule, micro_batches, chunks=1, depth=1):
    """All of it together; schedule: with messages."""
    return (
        complete(schedule, micro_batches, chunks)
        and local_order(schedule, chunks)
        and paired(schedule)
        and in_order(schedule, depth) is not None
    )


def played(schedule, depth, rng):
    """Let whoever can go on do so, in an order by chance, and carry the messages as tokens.

    Return (instructions done, the most that each stage held). A token that nobody expected ends it.
    """
    stages = len(schedule)
    at, queues = [0] * stages, defaultdict(deque)
    holds, most, done = [0] * stages, [0] * stages, []
    while able := [s for s in range(stages) if _can(schedule, s, at[s], queues, depth)]:
        s = rng.choice(able)
        kind, *_ = schedule[s][at[s]]
        if kind.startswith("send"):
            queues[link(kind, s, stages)].append(cargo(schedule, (s, at[s])))
        elif kind.startswith("receive"):
            if queues[link(kind, s, stages)].popleft() != cargo(schedule, (s, at[s])):
                break
        elif kind in "FBW":
            holds[s] += 1 if kind == "F" else -1
            most[s] = max(most[s], holds[s])
        done.append((s, at[s]))
        at[s] += 1
    return done, most


def _can(schedule, stage, at, queues, depth):
    if at == len(schedule[stage]):
        return False
    kind = schedule[stage][at][0]
    if kind in COMPUTES:
        return True
    waiting = queues[link(kind, stage, len(schedule))]
    return len(waiting) < (depth or 1e9) if kind.startswith("send") else bool(waiting)


def times(schedule, seconds, message, depth):
    """{(stage, place): (start, end)}: the longest ways through the graph.

    seconds: {kind: of a computation}. Sending takes its stage no time.
    """
    before, found = graph(schedule, depth), {}
    for node in TopologicalSorter(before).static_order():
        stage, at = node
        kind = schedule[stage][at][0]
        start = found[stage, at - 1][1] if at else 0
        end = start + seconds[kind] if kind in COMPUTES else start
        for other in before[node]:
            if other != (stage, at - 1):
                arrives = message if kind.startswith("receive") else 0
                end = max(end, found[other][1] + arrives)
        found[node] = start, end
    return found


def formula(order, stages, micro_batches, chunks, forward, backward_input, backward_weight):
    """(idle seconds of a stage in a step, activations that stage 0 holds), as the papers say.

    "interleaved" and "zero_bubble" (ZB-H1): with at least as many micro-batches as stages.
    Seconds: of a micro-batch in all chunks of a stage.
    """
    ways, work = stages - 1, forward + backward_input + backward_weight
    urgent = max(forward, backward_input, forward + backward_input - backward_weight)
    return {
        "gpipe": (ways * work, micro_batches),
        "one_f_one_b": (ways * work, min(stages, micro_batches)),
        "interleaved": (ways * work / chunks, min(chunks * stages + ways, chunks * micro_batches)),
        "zero_bubble": (ways * urgent, min(stages, micro_batches)),
    }[order]


def at_random(stages, micro_batches, chunks, rng, depth=1):
    """A right schedule with messages, as a run by chance over links of this depth leaves it.

    Some backwards are in two parts.
    """
    last, schedule = stages * chunks - 1, [[] for _ in range(stages)]
    pieces = [(k, p) for k in range(micro_batches) for p in range(last + 1)]
    splits = {one: rng.random() < 0.5 for one in pieces}
    queues, done = defaultdict(deque), set()

    def able():
        for k, p in pieces:
            stage, which = p % stages, (k, p // stages)
            back = "I" if splits[k, p] else "B"
            needs = {
                "F": ["receive activation"] * (p > 0),
                back: ["F"] + ["receive gradient"] * (p < last),
                **({"W": ["I"]} if splits[k, p] else {}),
                **({"send activation": ["F"], "receive gradient": []} if p < last else {}),
                **({"send gradient": [back], "receive activation": []} if p > 0 else {}),
            }
            for kind, before in needs.items():
                if (kind, k, p) in done or any((one, k, p) not in done for one in before):
                    continue
                waiting = kind not in COMPUTES and queues[link(kind, stage, stages)]
                if kind.startswith("send") and len(waiting) >= depth:
                    continue
                if kind.startswith("receive") and (not waiting or waiting[0] != (k, p)):
                    continue
                yield kind, k, p, stage, which

    while choices := list(able()):
        kind, k, p, stage, which = rng.choice(choices)
        if kind.startswith("send"):
            step = 1 if kind == "send activation" else -1
            queues[link(kind, stage, stages)].append((k, p + step))
        elif kind.startswith("receive"):
            queues[link(kind, stage, stages)].popleft()
        done.add((kind, k, p))
        schedule[stage].append((kind, *which))
    return schedule


def drawn(seed):
    """A generator of random numbers of its own for each of these."""
    return random.Random(repr(seed))
