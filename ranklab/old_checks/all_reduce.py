"""What the exercises of chapter 08 check: what rings send, and the reader's own all-reduces."""

import torch

from ranklab.checks._said import breaks_a_rule
from ranklab.old_checks._model import Case, Choice, Exercise, Hint
from ranklab.traces.data import counted

ring_sends = Choice(
    "ring_sends",
    right="b",
    why={
        "a": "The ring: 80 MB is what the reduce-scatter and the all-gather send together only if "
        "there are two ranks. Count the steps, and what a part is. Doubling: one round doubles "
        "the ranks that have been added, and in each of them the whole tensor is sent.",
        "c": "That is right for the ring. Doubling needs as many rounds as it takes to come from 1 "
        "to 8 by doubling, and not one for each other rank.",
        "d": "The ring sends less than two tensors, and doubling one for each round.",
    },
    because="The ring: 14 steps of 10 MB. Doubling: 3 rounds of 80 MB. With 1000 ranks it would be "
    "160 MB against 800.",
)


# faster_way ------------------------------------------------------------------------------------


def _faster(inputs):
    nbytes, n, alpha, beta = inputs[0]
    rounds = n.bit_length() - 1
    doubling = rounds * (alpha + nbytes / beta)
    ring = 2 * (n - 1) * (alpha + nbytes / (n * beta))
    return ["doubling" if doubling <= ring else "ring"]


def _way(nbytes, n, alpha=50e-6, beta=1e9):
    what = f"{nbytes:,} bytes, {counted(n, 'rank')}, {1e6 * alpha:.0f} µs and {beta / 1e9:g} GB/s"
    return Case(what, lambda rank, world_size: (nbytes, n, alpha, beta), ranks=1)


faster_way = Exercise(
    "faster_way",
    cases=[
        _way(4, 4),
        _way(100_000_000, 4),
        _way(390_000, 4),
        _way(410_000, 4),
        _way(1 << 30, 2),
        _way(1000, 2, 1e-9),
        _way(1_000_000, 64),
        _way(20_000_000, 64),
        _way(1_000_000, 64, 1e-6),
        _way(1_000_000, 1024, 5e-6, 25e9),
        _way(100, 1),
    ],
    expected=_faster,
    hints=[
        Hint(
            lambda seen: seen.results[0] not in ("ring", "doubling"),
            'The answer is one of two words, "doubling" or "ring".',
        ),
        Hint(
            lambda seen: seen.inputs[0][1] == 1,
            "A rank alone sends nothing, so both ways take no time. Which is to be said if the "
            "times are the same?",
        ),
        Hint(
            lambda seen: seen.inputs[0][1] == 2,
            "With two ranks, doubling is one round of the whole tensor, the ring two of a half.",
        ),
        Hint(
            lambda seen: seen.inputs[0][0] < 1000,
            "For so few bytes only alpha counts. Which way has fewer messages one after the other?",
        ),
        Hint(
            lambda seen: seen.expected[0] == "doubling",
            "How many messages does a rank of the ring send, one by one? Each costs alpha.",
        ),
        Hint(
            lambda seen: seen.expected[0] == "ring",
            "How many bytes has one message of the ring, if the tensor is cut into n parts?",
        ),
    ],
    hint="Count for each way the messages that a rank sends one after the other, and the bytes of "
    "each of them.",
)


# ring_reduce_scatter ---------------------------------------------------------------------------


def _numbers(what, length, ranks, dtype=torch.float32, constant=False):
    def make(rank, world_size):
        if constant:
            return (torch.full((length,), rank, dtype=dtype),)
        return ((torch.arange(length) * (rank + 1) % 19).to(dtype),)

    return Case(what, make, ranks=ranks)


def _parts(inputs, shift=0):
    """Each rank's part of the sum, added up as a ring to the right does: from rank r + 1 to r."""
    n = len(inputs)
    parts = [x.tensor_split(n) for (x,) in inputs]
    totals = []
    for r in range(n):
        total = parts[(r + 1) % n][r].clone()
        for k in range(2, n + 1):
            total += parts[(r + k) % n][r]
        totals.append(total)
    return [totals[(r + shift) % n] for r in range(n)]


def _order_tells(rank, world_size):
    """Numbers whose float32 sum is another one in another order than that of the ring."""
    return (torch.full((8,), [2.0**25, -(2.0**25), 1.0, 1.0][rank]),)


def _of_another(seen):
    """Does every rank return the total of another rank's part?"""
    n = len(seen.inputs)
    return seen.happened == "returned" and any(
        all(torch.equal(a, b) for a, b in zip(seen.results, _parts(seen.inputs, shift)))
        for shift in range(1, n)
    )


def _its_own_part(seen):
    """Does every rank return its part of its own x?"""
    n = len(seen.inputs)
    return n > 1 and all(
        torch.equal(got, x.tensor_split(n)[r])
        for r, (got, (x,)) in enumerate(zip(seen.results, seen.inputs, strict=True))
    )


def _half_of_an_all_reduce(seen):
    """Say so where collectives were used, or more bytes sent than n - 1 parts have."""
    if any(seen.collectives):
        used = _names(seen.collectives)
        return f"The result is right, but it was to come around the ring; this used {used}."
    xs = [x for (x,) in seen.inputs]
    enough = (len(xs) - 1) * xs[0].tensor_split(len(xs))[0].nbytes
    if max(seen.sent) > enough:
        r = seen.sent.index(max(seen.sent))
        return (
            f"The result is right, but rank {r} sent {seen.sent[r]} bytes. {enough} are enough: in "
            "each step one part, to the right neighbor."
        )
    return None


def _names(collectives):
    return ", ".join(sorted({name for each in collectives for name in each}))


ring_reduce_scatter = Exercise(
    "ring_reduce_scatter",
    cases=[
        _numbers("4 numbers", 4, 4, constant=True),
        _numbers("8 numbers", 8, 4),
        _numbers("7 numbers", 7, 3),
        _numbers("2 numbers", 2, 4),
        _numbers("no number at all", 0, 3),
        _numbers("int64", 11, 2, torch.int64),
        _numbers("float64", 23, 3, torch.float64),
        _numbers("5 numbers", 5, 1),
        Case("8 numbers whose sum depends on the order", _order_tells, ranks=4),
    ],
    expected=_parts,
    judge=_half_of_an_all_reduce,
    trace=True,
    hints=[
        Hint(
            breaks_a_rule,
            "The loop of the stub sends what is to be sent, one part a step. Only which part goes "
            "and which one comes is for you to say.",
        ),
        Hint(
            lambda seen: seen.found == "value" and seen.case.make is _order_tells,
            "The sums are rounded in another order than around a ring to the right, where part r "
            "begins at rank r + 1 and ends at rank r. Chapter 7's went to the left.",
        ),
        Hint(_of_another, "That is a total, but of another rank's part: begin with another one."),
        Hint(
            _its_own_part,
            "That is part r of rank r's own x: nothing was added to it. In your loop, which part "
            "comes in last, and has the total? It should be part r.",
        ),
        Hint(
            lambda seen: True,
            "What a rank sends must be as long as what its right neighbor expects: if I receive "
            "part p, my left neighbor sends part p.",
            when=("died", "stuck"),
        ),
        Hint(
            lambda seen: "size" in seen.error or "shape" in seen.error,
            "Parts differ in length where n does not divide it. What a rank sends must be as long "
            "as what its right neighbor expects.",
            when=("error",),
        ),
        Hint(
            lambda seen: seen.found == "value",
            "Not a total. What is sent in a step must be what was received, and added to, in the "
            "step before.",
        ),
    ],
    hint="Follow one part around the ring: which rank has it in step 0, which in step 1?",
)


# sum_and_max -----------------------------------------------------------------------------------


def _sums_and_maxima(inputs):
    xs = torch.stack([x for (x,) in inputs])
    return [(xs.sum(0), xs.max(0).values)] * len(inputs)


def _not_of_a_power_of_two(seen):
    return len(seen.inputs) & (len(seen.inputs) - 1) != 0


def _right_alone(seen, which):
    """Are all sums (0) or all maxima (1) right, and some of the others not?"""
    pairs = [
        [torch.equal(one, other) for one, other in zip(got, right, strict=True)]
        for got, right in zip(seen.results, seen.expected, strict=True)
    ]
    return all(pair[which] for pair in pairs) and not all(pair[1 - which] for pair in pairs)


def _swapped(seen):
    return seen.found == "value" and all(
        torch.equal(got[0], right[1]) and torch.equal(got[1], right[0])
        for got, right in zip(seen.results, seen.expected, strict=True)
    )


def _by_messages(seen):
    """Were there few messages, and no collectives?"""
    if seen.collectives and any(seen.collectives):
        used = _names(seen.collectives)
        return f"The result is right, but it was to be made of messages alone; this used {used}."
    most = len(seen.inputs).bit_length()  # log2, rounded down, and one
    if seen.messages and max(seen.messages) > most:
        r = seen.messages.index(max(seen.messages))
        return (
            f"The result is right, but rank {r} sent {seen.messages[r]} messages, and {most} must "
            f"be enough for {counted(len(seen.inputs), 'rank')}."
        )
    return None


def _pair(rank, world_size):
    return (torch.tensor([float(rank), -float(rank)]),)


sum_and_max = Exercise(
    "sum_and_max",
    cases=[
        Case("2 numbers", _pair, ranks=4),
        _numbers("9 numbers", 9, 3),
        _numbers("9 numbers", 9, 2),
        _numbers("4 numbers", 4, 1),
        Case("all below zero", lambda r, n: (torch.tensor([-2.0 - r]),), ranks=3),
        # Two ranks beyond a power of two: that takes six, which have to be started.
        _numbers("int64", 4, 6, torch.int64),
    ],
    expected=_sums_and_maxima,
    judge=_by_messages,
    trace=True,
    limit=3.0,
    hints=[
        Hint(
            lambda seen: breaks_a_rule(seen) and any(seen.collectives),
            "Recursive doubling: in each round two ranks swap what they have, with sendrecv.",
        ),
        Hint(
            breaks_a_rule,
            "Sum and maximum of a round fit into one tensor, and so into one message.",
        ),
        Hint(
            lambda seen: seen.found == "dtype",
            "The results have the type of x. Which type has the tensor in which both travel?",
        ),
        Hint(
            lambda seen: seen.found in ("type", "shape"),
            "A pair is asked for: a tensor of sums, and a tensor of maxima, each as long as x.",
        ),
        Hint(_swapped, "The sums come first, then the maxima."),
        Hint(
            lambda seen: _not_of_a_power_of_two(seen) and _right_alone(seen, 1),
            "The maxima are right, and the sums are not: a number that comes twice does no harm to "
            "a maximum, and is counted twice in a sum.",
        ),
        Hint(
            lambda seen: _right_alone(seen, 0),
            "The sums are right, and the maxima are not. Is there a place where what comes is "
            "added as a whole, the maxima too?",
        ),
        Hint(
            lambda seen: not breaks_a_rule(seen) and _not_of_a_power_of_two(seen),
            "That number of ranks is no power of two. Let each rank beyond the largest power of "
            "two give its x to a partner first, and get the result from it in the end.",
            when=("returned", "stuck", "died"),
        ),
        Hint(
            lambda seen: "no rank" in seen.error,
            "Not every rank has a partner me ^ d where the number of ranks is no power of two.",
            when=("error",),
        ),
        Hint(
            lambda seen: len(seen.inputs) == 1,
            "A rank alone has both already, and nobody to send to.",
            when=("returned", "error"),
        ),
        Hint(
            lambda seen: True,
            "Two partners send to each other in the same round. If both receive first, or both "
            "send, neither goes on; sendrecv does both at once.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: True,
            "The distance doubles from round to round, up to the largest power of two that is not "
            "above the number of ranks. Does your loop end there?",
            when=("slow",),
        ),
    ],
    hint="In the round with distance d a rank swaps what it has so far, not its x, with rank "
    "me ^ d.",
)
