"""An all-reduce by recursive halving and doubling."""

import torch
import torch.distributed as dist

from ranklab.checks.all_reduce._numbers import names, numbers
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.traces.data import counted

SWAP = "sendrecv(give, partner, incoming, partner)"
BACK = "reversed(swaps)"
ADD = "keep += incoming"


def twin(inputs):
    return [sum(x for (x,) in inputs)] * len(inputs)


def least(length, n, itemsize):
    """The bytes that a rank sends at most, if every half is rounded up."""
    sent, part = 0, length
    for _ in range(n.bit_length() - 1):
        part = (part + 1) // 2
        sent += part
    return 2 * sent * itemsize


def judge(seen):
    """Were there few messages and few bytes, and no collectives?"""
    if any(seen.collectives):
        used = names(seen.collectives)
        return f"The result is right, but it was to be made of messages alone; this used {used}."
    n, (x,) = len(seen.inputs), seen.inputs[0]
    most = 2 * (n.bit_length() - 1)
    if max(seen.messages) > most:
        return (
            f"The result is right, but a rank sent {max(seen.messages)} messages, and {most} must "
            f"be enough for {counted(n, 'rank')}."
        )
    enough = least(len(x), n, x.element_size())
    if max(seen.sent) > enough:
        r = seen.sent.index(max(seen.sent))
        return (
            f"The result is right, but rank {r} sent {seen.sent[r]} bytes. {enough} are enough: a "
            "half, then half of that, and the same back."
        )
    return None


def by_a_collective(x):
    dist.all_reduce(x)


def by_doubling(x):
    n, me = dist.get_world_size(), dist.get_rank()
    distance, box = 1, torch.empty_like(x)
    while distance < n:
        both = [dist.P2POp(dist.isend, x, me ^ distance)]
        both += [dist.P2POp(dist.irecv, box, me ^ distance)]
        for handle in dist.batch_isend_irecv(both):
            handle.wait()
        x += box
        distance *= 2


def by_recursion(x, distance=None):
    """The halves of a half are the same task among half of the ranks."""
    n, me = dist.get_world_size(), dist.get_rank()
    distance = n // 2 if distance is None else distance
    if distance == 0:
        return
    middle = len(x) // 2
    parts = x[:middle], x[middle:]
    mine, other = parts if not me & distance else parts[::-1]

    def swap(outgoing, incoming):
        both = [dist.P2POp(dist.isend, outgoing, me ^ distance)]
        both += [dist.P2POp(dist.irecv, incoming, me ^ distance)]
        for handle in dist.batch_isend_irecv(both):
            handle.wait()

    box = torch.empty_like(mine)
    swap(other, box)
    mine += box
    by_recursion(mine, distance // 2)
    swap(mine, other)


exercise = Exercise(
    cases=[
        Case("4 numbers", lambda rank, world_size: (torch.full((4,), float(rank)),), ranks=4),
        numbers("16 numbers", 16, 4),
        numbers("7 numbers", 7, 2),
        numbers("13 numbers", 13, 4),
        numbers("2 numbers", 2, 4),
        numbers("no number at all", 0, 2),
        numbers("int64", 9, 4, torch.int64),
        numbers("5 numbers", 5, 1),
    ],
    twin=twin,
    judge=judge,
    in_place=True,
    trace=True,
    limit=3.0,
    hint="Follow one pair: which half does each of the two give away, and what has it in the end?",
    mistakes=[
        Mistake(
            "A loop over distances is asked for: in each round two ranks swap halves of what they "
            "still add up, with sendrecv.",
            by_a_collective,
            by_doubling,
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "Only one part of each rank's x is a total. Where is the way back, in which the totals "
            "are given to the partners?",
            {BACK: "[]"},
        ),
        Mistake(
            "The way back begins with the last partner: what a rank gives away must be complete.",
            {BACK: "swaps"},
        ),
        Mistake(
            "What comes is a half of the partner's numbers. Was it added, or did it replace what "
            "was there?",
            {ADD: "keep.copy_(incoming)"},
        ),
        Mistake(
            "Of two partners one keeps the lower half, and the other the upper one. Which bit of "
            "`me` tells them apart?",
            {"if me & distance:": "if me & 1:"},
        ),
        Mistake(
            "Two partners send to each other in the same round. If both receive first, or both "
            "send, neither goes on; sendrecv does both at once.",
            {SWAP: "dist.recv(incoming, partner)\n        dist.send(give, partner)"},
            happened="stuck",
        ),
    ],
    also_right=[by_recursion],
)
