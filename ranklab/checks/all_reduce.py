"""What the exercises of chapter 08 check: what rings send, and the reader's own all-reduces."""

import torch

from ranklab.exercises import Case, Choice, Exercise, Hint

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


def _plural(ranks):
    return f"{ranks} rank" + "s" * (ranks > 1)


# faster_way ------------------------------------------------------------------------------------


def _faster(inputs):
    nbytes, n, alpha, beta = inputs[0]
    rounds = n.bit_length() - 1
    doubling = rounds * (alpha + nbytes / beta)
    ring = 2 * (n - 1) * (alpha + nbytes / (n * beta))
    return ["doubling" if doubling <= ring else "ring"]


def _way(nbytes, n, alpha=50e-6, beta=1e9):
    what = f"{nbytes:,} bytes, {n} ranks, {1e6 * alpha:.0f} µs and {beta / 1e9:g} GB/s"
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
            lambda seen: seen.inputs[0][1] == 2,
            "With two ranks, doubling is one round of the whole tensor, the ring two of a half.",
        ),
        Hint(
            lambda seen: seen.expected[0] == "doubling",
            "How many messages does a rank of the ring send, one by one? Each costs alpha.",
        ),
    ],
    hint="A message of doubling is the whole tensor, one of the ring is the n-th part of it; there "
    "are log2(n) rounds of the one and 2 (n - 1) steps of the other.",
)


# ring_reduce_scatter ---------------------------------------------------------------------------


def _numbers(what, length, ranks, dtype=torch.float32, constant=False):
    def make(rank, world_size):
        if constant:
            return (torch.full((length,), rank, dtype=dtype),)
        return ((torch.arange(length) * (rank + 1) % 19).to(dtype),)

    return Case(what, make, ranks=ranks)


def _parts(inputs, shift=0):
    total = sum(x for (x,) in inputs)
    parts = total.tensor_split(len(inputs))
    return [parts[(r + shift) % len(inputs)] for r in range(len(inputs))]


def _of_another(seen):
    """Does every rank return the total of another rank's part?"""
    n = len(seen.inputs)
    return seen.happened == "returned" and any(
        all(torch.equal(a, b) for a, b in zip(seen.results, _parts(seen.inputs, shift)))
        for shift in range(1, n)
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
    ],
    expected=_parts,
    judge=_half_of_an_all_reduce,
    trace=True,
    hints=[
        Hint(_of_another, "That is a total, but of another rank's part: begin with another one."),
        Hint(
            lambda seen: seen.happened in ("died", "stuck"),
            "What a rank sends must be as long as what its right neighbor expects: if I receive "
            "part p, my left neighbor sends part p.",
        ),
        Hint(
            lambda seen: seen.happened == "returned",
            "Not a total. What is sent in a step must be what was received, and added to, in the "
            "step before.",
        ),
    ],
    hint="Follow one part around the ring: which rank has it in step 0, which in step 1?",
)


# mean_all_reduce -------------------------------------------------------------------------------

_VISIBLE = [[256.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]


def _gradients(shape, rank):
    generator = torch.Generator().manual_seed(rank)
    return (8 * torch.randn(shape, generator=generator)).to(torch.bfloat16)


def _thirds(shape, rank):
    """Whole numbers; their sum over 3 ranks is never divisible by 3.

    So no mean is half-way between two numbers of bfloat16, where dividing before the addition,
    which is as right, could round the other way.
    """
    generator = torch.Generator().manual_seed(rank)
    numbers = 3 * torch.randint(-85, 85, shape, generator=generator) + (rank == 0)
    return numbers.to(torch.bfloat16)


def _bf16(what, ranks, layout):
    return Case(what, lambda rank, n: (layout(rank),), ranks=ranks)


def _mean(inputs):
    total = torch.zeros(inputs[0][0].shape)
    for (x,) in inputs:
        total += x.float()
    return [(total / len(inputs)).to(torch.bfloat16)] * len(inputs)


def _driven(answer, x):
    """What is in x after the call, whatever the call returns."""
    answer(x)
    return x.clone(memory_format=torch.contiguous_format)


def _unchanged(seen):
    return all(torch.equal(got, x) for got, (x,) in zip(seen.results, seen.inputs))


def _is_sum(seen):
    sums = [mean.float() * len(seen.inputs) for mean in seen.expected]
    return len(seen.inputs) > 1 and all(
        torch.allclose(got.float(), total, rtol=0.02, atol=0.5)
        for got, total in zip(seen.results, sums)
    )


mean_all_reduce = Exercise(
    "mean_all_reduce",
    cases=[
        _bf16("[256, 1] and [1, 1]", 4, lambda r: torch.tensor(_VISIBLE[r]).to(torch.bfloat16)),
        _bf16("1000 numbers", 4, lambda r: _gradients((1000,), r)),
        _bf16("a column of a matrix", 3, lambda r: _thirds((50, 3), r)[:, 1]),
        _bf16("a transposed matrix", 2, lambda r: _gradients((4, 6), r).t()),
        _bf16("every third number", 3, lambda r: _thirds((60,), r)[::3]),
        _bf16("no number at all", 2, lambda r: _gradients((0,), r)),
        _bf16("100 numbers", 1, lambda r: _gradients((100,), r)),
    ],
    expected=_mean,
    drive=_driven,
    in_place=True,
    tolerance=(0.0, 0.0),
    hints=[
        Hint(
            lambda seen: len(seen.inputs) > 1 and _unchanged(seen),
            "x is what it was. Did the mean go into a copy that nobody looks at again?",
        ),
        Hint(_is_sum, "That is the sum. A mean is divided by the number of ranks."),
        Hint(
            lambda seen: all(
                torch.allclose(got.float(), mean.float(), rtol=0.05, atol=0.5)
                for got, mean in zip(seen.results, seen.expected)
            ),
            "Nearly: it was rounded more than once. What type has the tensor that is added up, and "
            "what type the one that is divided?",
        ),
    ],
    hint="Three lines: a float32 copy, its all-reduce, and x.copy_() of what is to be in x.",
)


# max_all_reduce --------------------------------------------------------------------------------


def _largest(inputs):
    largest = inputs[0][0]
    for (x,) in inputs:
        largest = torch.maximum(largest, x)
    return [largest] * len(inputs)


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
            f"be enough for {_plural(len(seen.inputs))}."
        )
    return None


def _pair(rank, world_size):
    return (torch.tensor([float(rank), -float(rank)]),)


max_all_reduce = Exercise(
    "max_all_reduce",
    cases=[
        Case("2 numbers", _pair, ranks=4),
        _numbers("9 numbers", 9, 3),
        _numbers("9 numbers", 9, 2),
        _numbers("4 numbers", 4, 1),
        Case("all below zero", lambda r, n: (torch.tensor([-2.0 - r]),), ranks=3),
        # Two ranks beyond a power of two: that takes six, which have to be started.
        _numbers("int64", 4, 6, torch.int64),
    ],
    expected=_largest,
    judge=_by_messages,
    trace=True,
    hints=[
        Hint(
            lambda seen: (len(seen.inputs) & (len(seen.inputs) - 1)) != 0,
            "That number of ranks is no power of two. Let each rank beyond the largest power of "
            "two give its x to a partner first, and get the result from it in the end.",
        ),
        Hint(
            lambda seen: len(seen.inputs) == 1,
            "A rank alone has the largest already, and nobody to send to.",
        ),
    ],
    hint="In the round with distance d a rank swaps what it has so far, not its x, with rank "
    "me ^ d.",
)
