"""Sum and maximum in one all-reduce, by doubling."""

import torch
import torch.distributed as dist

from ranklab.checks.all_reduce._numbers import names, numbers
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.messages import sendrecv
from ranklab.traces.data import counted

CORE, LOOP = "core = 1 << (n.bit_length() - 1)", "while distance < core:"
SWAP = "sendrecv(both, me ^ distance, incoming, me ^ distance)"
SWAP_ONE = SWAP.replace("both", "both[0]").replace("incoming", "incoming[0]")
SWAP_AND_TAKE_IN = f"{SWAP}\n        take_in()"
ADDS, TAKES_MAXIMUM = "both[0] += incoming[0]", "torch.maximum(both[1], incoming[1], out=both[1])"
FROM_BEYOND = "dist.recv(incoming, me + core)\n        take_in()"
TO_BEYOND = "        dist.send(both, me + core)\n    return both[0], both[1]"


def twin(inputs):
    xs = torch.stack([x for (x,) in inputs])
    return [(xs.sum(0), xs.max(0).values)] * len(inputs)


def judge(seen):
    """Were there few messages, and no collectives?"""
    if any(seen.collectives):
        used = names(seen.collectives)
        return f"The result is right, but it was to be made of messages alone; this used {used}."
    most = len(seen.inputs).bit_length()  # log2, rounded down, and one
    if max(seen.messages) > most:
        r = seen.messages.index(max(seen.messages))
        return (
            f"The result is right, but rank {r} sent {seen.messages[r]} messages, and {most} must "
            f"be enough for {counted(len(seen.inputs), 'rank')}."
        )
    return None


def by_a_collective(x):
    total, largest = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return total, largest


def pairs_first(x):
    """As MPICH does it: of the first ranks, each even one gives its x to its right neighbor."""
    n, me = dist.get_world_size(), dist.get_rank()
    rounds = n.bit_length() - 1
    beyond = n - 2**rounds
    both = torch.cat([x, x])
    box = torch.empty_like(both)

    def combine():
        both[: len(x)] += box[: len(x)]
        both[len(x) :] = both[len(x) :].maximum(box[len(x) :])

    if me < 2 * beyond and me % 2 == 0:
        dist.send(both, me + 1)
        dist.recv(both, me + 1)
        return both[: len(x)], both[len(x) :]
    if me < 2 * beyond:
        dist.recv(box, me - 1)
        combine()
    new = me // 2 if me < 2 * beyond else me - beyond
    for k in range(rounds):
        partner = new ^ (1 << k)
        partner = 2 * partner + 1 if partner < beyond else partner + beyond
        sendrecv(both, partner, box, partner)
        combine()
    if me < 2 * beyond:
        dist.send(both, me - 1)
    return both[: len(x)], both[len(x) :]


exercise = Exercise(
    cases=[
        Case("2 numbers", lambda r, n: (torch.tensor([float(r), -float(r)]),), ranks=4),
        numbers("9 numbers", 9, 3),
        numbers("9 numbers", 9, 2),
        numbers("4 numbers", 4, 1),
        Case("all below zero", lambda r, n: (torch.tensor([-2.0 - r]),), ranks=3),
        # Two ranks beyond a power of two: that takes six, which have to be started.
        numbers("int64", 4, 6, torch.int64),
    ],
    twin=twin,
    judge=judge,
    trace=True,
    limit=3.0,
    hint="In the round with distance d a rank swaps what it has so far, not its x, with rank "
    "me ^ d.",
    mistakes=[
        Mistake(
            "Recursive doubling: in each round two ranks swap what they have, with sendrecv.",
            by_a_collective,
            test=lambda seen: seen.found == "judge" and any(seen.collectives),
        ),
        Mistake(
            "Sum and maximum of a round fit into one tensor, and so into one message.",
            {SWAP: f"{SWAP_ONE}\n        {SWAP}"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "The results have the type of x. Which type has the tensor in which both travel?",
            {"torch.stack([x, x])": "torch.stack([x, x]).float()"},
            test=lambda seen: seen.found == "dtype",
        ),
        Mistake(
            "A pair is asked for: a tensor of sums, and a tensor of maxima, each as long as x.",
            {TO_BEYOND: TO_BEYOND.replace("both[0], both[1]", "both")},
            test=lambda seen: seen.found in ("type", "shape"),
        ),
        Mistake(
            "The sums come first, then the maxima.",
            {ADDS: ADDS.replace("0", "1"), TAKES_MAXIMUM: TAKES_MAXIMUM.replace("1", "0")},
        ),
        Mistake(
            "The maxima are right, and the sums are not: a number that comes twice does no harm to "
            "a maximum, and is counted twice in a sum.",
            {
                CORE: "core = n",
                SWAP: "sendrecv(both, (me + distance) % n, incoming, (me - distance) % n)",
            },
        ),
        Mistake(
            "The sums are right, and the maxima are not. Is there a place where what comes is "
            "added as a whole, the maxima too?",
            {FROM_BEYOND: FROM_BEYOND.replace("take_in()", "both += incoming")},
            {TAKES_MAXIMUM: "both[1] += incoming[1]"},
        ),
        Mistake(
            "That number of ranks is no power of two. Let each rank beyond the largest power of "
            "two give its x to a partner first, and get the result from it in the end.",
            {
                CORE: "core = n",
                SWAP_AND_TAKE_IN: f"if me ^ distance < n:\n            {SWAP}; take_in()",
            },
            {TO_BEYOND: TO_BEYOND.replace("dist.send(both, me + core)", "pass")},
            happened=("returned", "stuck", "died"),
            test=lambda seen: seen.found != "judge" and len(seen.inputs) not in (1, 2, 4),
        ),
        Mistake(
            "A rank alone has both already, and nobody to send to.",
            {LOOP: "while distance < max(core, 2):"},
            happened=("returned", "error"),
            test=lambda seen: len(seen.inputs) == 1,
        ),
        Mistake(
            "Not every rank has a partner me ^ d where the number of ranks is no power of two.",
            {CORE: "core = n"},
            happened="error",
            test=lambda seen: "no rank" in seen.error,
        ),
        Mistake(
            "Two partners send to each other in the same round. If both receive first, or both "
            "send, neither goes on; sendrecv does both at once.",
            {SWAP: "dist.recv(incoming, me ^ distance)\n        dist.send(both, me ^ distance)"},
            happened="stuck",
        ),
        Mistake(
            "The distance doubles from round to round, up to the largest power of two that is not "
            "above the number of ranks. Does your loop end there?",
            {"        distance *= 2\n": ""},
            happened="slow",
        ),
        Mistake(
            "In the round with distance d a rank swaps what it has so far, not its x, with rank "
            "me ^ d.",
            {SWAP: SWAP.replace("sendrecv(both", "sendrecv(torch.stack([x, x])")},
        ),
    ],
    also_right=[pairs_first],
)
