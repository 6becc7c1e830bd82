"""What the exercises of chapter 06 check: waiting, circles, and programs made of messages."""

import torch

from ranklab.exercises import Case, Choice, Exercise, Hint

seconds_of_a_chain = Choice(
    "seconds_of_a_chain",
    right="c",
    why={
        "a": "So it would be if all worked at the same time. But each works only when it has "
        "received, and sends only when it has worked.",
        "b": "Count the ranks that work, the last one too.",
        "d": "There is no circle: rank 0 waits for nobody, and every path of waits ends there.",
    },
    because="Rank r begins when rank r - 1 has worked: a staircase, and one rank works at a time. "
    "With layers in place of work(), that is a model spread over four ranks.",
)

three_swaps = Choice(
    "three_swaps",
    right="b",
    why={
        "a": "Each of the calls is safe if all make one. Here each rank makes two, and the first "
        "ones do not match: whom does each rank wait for in its first call?",
        "c": "Rank 0 waits for rank 1, which is in a call with rank 2. Who would free that one?",
        "d": "Gloo keeps the pairs apart: what comes from another rank does not fit by chance.",
    },
    because="In the first calls rank 0 waits for 1, rank 1 for 2, and rank 2 for 0. If all agree "
    "on an order of the pairs (first 0 and 1, then 0 and 2, then 1 and 2), there is no circle.",
)


def _numbers(what, shape, ranks, dtype=torch.float32):
    """Every rank's x: other numbers on each."""

    def make(rank, world_size):
        length = torch.Size(shape).numel()
        return ((torch.arange(length) % 7 + 10 * rank).to(dtype).reshape(shape),)

    return Case(what, make, ranks=ranks)


# from_left -------------------------------------------------------------------------------------


def _shifted(seen, by):
    """Is every result the x of the rank `by` places on?"""
    n = len(seen.inputs)
    return all(torch.equal(seen.results[r], seen.inputs[(r + by) % n][0]) for r in range(n))


def _without_collectives(seen):
    if any(seen.collectives):
        return (
            "The result is right, but it was to be made of messages alone, such as send and recv; "
            "a collective is none."
        )
    return None


from_left = Exercise(
    "from_left",
    cases=[
        _numbers("1 number", [1], 4),
        _numbers("2 × 3 numbers", [2, 3], 3),
        _numbers("1 MB", [1 << 18], 4),
        _numbers("int64", [5], 2, torch.int64),
        _numbers("1 number", [1], 1),
        _numbers("float64", [3], 3, torch.float64),
    ],
    expected=lambda inputs: [inputs[r - 1][0] for r in range(len(inputs))],
    judge=_without_collectives,
    trace=True,
    hints=[
        Hint(
            lambda seen: len(seen.inputs) > 2 and _shifted(seen, 1),
            "That is the right neighbor's x. Who sends to whom?",
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1 and _shifted(seen, 0),
            "Every rank has its own x still. recv fills the box that it is given, and returns "
            "the sender's rank.",
        ),
        Hint(
            lambda seen: seen.found == "type",
            "What came is in the box: return that, a tensor.",
        ),
        Hint(
            lambda seen: seen.found == "judge",
            "Each rank names two others, its left neighbor and its right one.",
        ),
        Hint(
            lambda seen: len(seen.inputs) == 1,
            "A rank alone is its own left neighbor, and there are no messages to oneself.",
            when=("stuck", "error"),
        ),
        Hint(
            lambda seen: True,
            "If all ranks begin with the same call, they wait in a circle. Which could begin with "
            "the other one? It has to be right for an odd number of ranks, too.",
            when=("stuck",),
        ),
    ],
    hint="The box of recv has the shape and the type of what is sent.",
)


# exchange --------------------------------------------------------------------------------------


def _letters(what, length, ranks, dtype=torch.float32):
    """A list with one letter for each rank; all letters are different."""

    def make(rank, world_size):
        values = [torch.arange(length) % 5 + 10 * rank + r for r in range(world_size)]
        return ([value.to(dtype) for value in values],)

    return Case(what, make, ranks=ranks)


exchange = Exercise(
    "exchange",
    cases=[
        _letters("1 number each", 1, 4),
        _letters("3 numbers each", 3, 3),
        _letters("1 MB each", 1 << 18, 4),
        _letters("bfloat16", 6, 2, torch.bfloat16),
        _letters("int64", 4, 3, torch.int64),
        _letters("1 number", 1, 1),
    ],
    expected=lambda inputs: [
        [inputs[s][0][r] for s in range(len(inputs))] for r in range(len(inputs))
    ],
    hints=[
        Hint(
            lambda seen: "not connected" in seen.error or "yourself" in seen.error,
            "There are no messages to oneself. A rank's letter to itself is copied.",
            when=("error",),
        ),
        Hint(
            lambda seen: len(seen.inputs) == 1,
            "There are no messages to oneself. A rank's letter to itself is copied.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: True,
            "Start everything that can be started (isend and irecv return at once), keep all the "
            "handles, and wait only then. A message whose handle is thrown away may never leave.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: all(
                torch.equal(seen.results[r][s], seen.inputs[r][0][s])
                for r in range(len(seen.inputs))
                for s in range(len(seen.inputs))
            ),
            "Every rank returns its own letters. What came is in the boxes, once the handles were "
            "waited for.",
        ),
        Hint(
            lambda seen: all(
                torch.equal(seen.results[r][s], seen.inputs[s][0][0])
                for r in range(len(seen.inputs))
                for s in range(len(seen.inputs))
                if r != s
            ),
            "Everybody got the first letter of the others. letters[r] is for rank r.",
        ),
        Hint(
            lambda seen: all(
                torch.equal(seen.results[r][s], seen.expected[r][s]) != (r == s)
                for r in range(len(seen.inputs))
                for s in range(len(seen.inputs))
            ),
            "The letter to oneself is missing: no message brings it.",
        ),
    ],
    hint="The boxes belong to the transfer until its handle was waited for, and so do the letters.",
)


# deliver ---------------------------------------------------------------------------------------


def _parcel(what, tensor, src, dst, ranks=4):
    def make(rank, world_size):
        return tensor.clone(memory_format=torch.preserve_format) if rank == src else None, src, dst

    return Case(f"{what}, from rank {src} to {dst}", make, ranks=ranks)


def _delivered(inputs):
    _, src, dst = inputs[0]
    parcel = inputs[src][0]
    return [parcel.contiguous() if r == dst else None for r in range(len(inputs))]


def _receipt(deliver, x, src, dst):
    """What arrived, contiguous (a transposed box would be as right)."""
    arrived = deliver(x, src, dst)
    return arrived.contiguous() if isinstance(arrived, torch.Tensor) else arrived


def _parcel_of(seen):
    return seen.inputs[seen.inputs[0][1]][0]


deliver = Exercise(
    "deliver",
    cases=[
        _parcel("2 × 3 of float32", torch.arange(6.0).reshape(2, 3), 0, 1),
        _parcel("5 of int64", torch.arange(5) - 2, 2, 0),
        _parcel(
            "1 × 2 × 1 × 3 × 2 of float64",
            torch.arange(12.0).double().reshape(1, 2, 1, 3, 2),
            0,
            2,
            3,
        ),
        _parcel("one number without a dimension", torch.tensor(7.0), 1, 0, 2),
        _parcel("0 × 3, so no number", torch.zeros(0, 3), 0, 1, 2),
        _parcel("a transposed 2 × 3", torch.arange(6.0).reshape(3, 2).t(), 3, 1),
        _parcel("4 of bool", torch.tensor([True, False, True, True]), 0, 3),
        _parcel("3 of bfloat16", torch.tensor([1.5, -2.0, 0.25], dtype=torch.bfloat16), 1, 0, 2),
        _parcel("1 MB", torch.arange(1 << 18).float(), 1, 2, 3),
    ],
    expected=_delivered,
    drive=_receipt,
    hints=[
        Hint(
            lambda seen: not _parcel_of(seen).is_contiguous(),
            "A transposed tensor is not one row of bytes. `.contiguous()` makes a copy that is.",
            when=("error", "stuck"),
        ),
        Hint(
            lambda seen: _parcel_of(seen).dim() == 0,
            "A tensor without a dimension has an empty shape. If one side leaves out the message "
            "that tells it, the other has to leave it out, too.",
            when=("error", "stuck", "died"),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error or "not None" in seen.error,
            "Only rank `src` has a tensor; x is None on all others. Whatever the receiver needs to "
            "know of it has to come in a message.",
            when=("error",),
        ),
        Hint(
            lambda seen: _parcel_of(seen).dtype != torch.float32,
            "How many bytes has a number of this type, and how many has one in the box? The "
            "receiver has to be told the type as well, as its place in DTYPES, for example.",
            when=("died",),
        ),
        Hint(
            lambda seen: True,
            "The message is larger than its box. torch.tensor makes int64 of whole numbers: is the "
            "box for them int64, too, and as long?",
            when=("died",),
        ),
        Hint(
            lambda seen: True,
            "Put the sends of `src` beside the receives of `dst`: are they as many, in one order? "
            "Ranks that are neither of the two have nothing to do.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: any(
                isinstance(r, torch.Tensor) and r.dtype != _parcel_of(seen).dtype
                for r in seen.results
            ),
            "The type has to travel as well: as its place in DTYPES, for example.",
        ),
        Hint(
            lambda seen: any(
                isinstance(r, torch.Tensor) and r.shape != _parcel_of(seen).shape
                for r in seen.results
            ),
            "The shape has to travel, and before it the number of dimensions: how else could the "
            "receiver bring a box for the shape?",
        ),
        Hint(
            lambda seen: any(
                r is not None for i, r in enumerate(seen.results) if i != seen.inputs[0][2]
            ),
            "Only the rank that receives returns something; the others return None.",
        ),
    ],
    hint="First a message of fixed size that says how many dimensions and which type, then the "
    "shape, then the numbers.",
)
