"""What the exercises of chapter 06 check: waiting, circles, and programs made of messages."""

import time

import torch
import torch.distributed as dist

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
    "With layers in place of sleep, that is a model spread over four ranks.",
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


def _number(n, thing):
    return f"{n} {thing}{'' if n == 1 else 's'}"


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
        return "The result is right, but it was to be made of send and recv alone."
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
            lambda seen: not seen.results and len(seen.inputs) == 1,
            "A rank alone is its own left neighbor, and there are no messages to oneself.",
        ),
        Hint(
            lambda seen: not seen.results,
            "Break the circle in one place at least: one rank that receives first. It has to be "
            "right for an odd number of ranks, too.",
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
        ),
        Hint(
            lambda seen: not seen.results,
            "Start everything that can be started (isend and irecv return at once), and wait only "
            "then.",
        ),
        Hint(
            lambda seen: all(
                torch.equal(seen.results[r][s], seen.inputs[r][0][s])
                for r in range(len(seen.inputs))
                for s in range(len(seen.inputs))
            ),
            "Every rank returns its own letters.",
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
            lambda seen: any(
                not torch.equal(seen.results[r][r], seen.expected[r][r])
                for r in range(len(seen.inputs))
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
            lambda seen: not seen.results and not _parcel_of(seen).is_contiguous(),
            "A transposed tensor is not one row of bytes. `.contiguous()` makes a copy that is.",
        ),
        Hint(
            lambda seen: not seen.results and _parcel_of(seen).dim() == 0,
            "A tensor without a dimension has an empty shape. Can the message that tells the shape "
            "be empty, too?",
        ),
        Hint(
            lambda seen: not seen.results,
            "Which message tells what, and how large is the box for it? Only boxes whose size both "
            "know beforehand can come first.",
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


# pass_along ------------------------------------------------------------------------------------

WORK_SECONDS = 0.05


def double_slowly(piece):
    """The work of the pipeline: it takes WORK_SECONDS, and returns 2 * piece + rank."""
    time.sleep(WORK_SECONDS)
    return 2 * piece + dist.get_rank()


def _train(what, pieces, shape, ranks, dtype=torch.float32):
    """Rank 0 has the pieces, the others have zeros of their shape."""

    def make(rank, world_size):
        full = [torch.full(shape, i + 1, dtype=dtype) for i in range(pieces)]
        return full if rank == 0 else [torch.zeros_like(piece) for piece in full], double_slowly

    return Case(f"{_number(pieces, 'piece')}, {what}", make, ranks=ranks)


def _timed_train(pass_along, pieces, work):
    """Start together; return what came, and the seconds that it took."""
    dist.barrier()
    start = time.perf_counter()
    arrived = pass_along(pieces, work)
    return arrived, time.perf_counter() - start


def _worked(pieces, ranks):
    for r in range(ranks):
        pieces = [2 * piece + r for piece in pieces]
    return pieces


def _same(got, expected):
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


def _arrived(seen):
    """Say what came wrong at the end of the line."""
    pieces, ranks = seen.inputs[0][0], len(seen.inputs)
    for r, (arrived, _) in enumerate(seen.results[:-1]):
        if arrived is not None:
            return f"Rank {r} returned something; only the last rank returns the pieces."
    arrived, _ = seen.results[-1]
    expected = _worked(pieces, ranks)
    if not isinstance(arrived, list) or not _same(arrived, expected):
        return f"The last rank should return {expected}, and returned {arrived}."
    return None


def _one_by_one(seen):
    """Say so where the ranks worked one after another."""
    pieces, ranks = seen.inputs[0][0], len(seen.inputs)
    _, seconds = seen.results[-1]
    in_turn, overlapped = len(pieces) * ranks, len(pieces) + ranks - 1
    if in_turn > 2 * overlapped and seconds > WORK_SECONDS * (in_turn + overlapped) / 2:
        return (
            f"Right, but it took {seconds / WORK_SECONDS:.1f} pieces' time. One rank after the "
            f"other takes {in_turn}; if all work at once, {overlapped} are enough."
        )
    return None


pass_along = Exercise(
    "pass_along",
    cases=[
        _train("1 number each", 6, [1], 4),
        _train("2 × 3 of float64", 3, [2, 3], 3, torch.float64),
        _train("1 number each", 1, [1], 2),
        _train("int64", 2, [4], 1, torch.int64),
        _train("1 MB each", 4, [1 << 18], 2),
    ],
    expected=None,
    drive=_timed_train,
    judge=_arrived,
    too_slow=_one_by_one,
    hints=[
        Hint(
            lambda seen: not seen.results and len(seen.inputs) == 1,
            "A single rank is the first and the last: it receives from nobody and sends to nobody.",
        ),
        Hint(
            lambda seen: seen.happened == "changed",
            "To receive, bring a box of your own: torch.empty_like(piece).",
        ),
        Hint(
            lambda seen: any(arrived is not None for arrived, _ in seen.results[:-1]),
            "Who passes everything on has nothing to return.",
        ),
        Hint(
            lambda seen: (
                len(seen.results[-1][0]) > 1
                and all(
                    torch.equal(piece, seen.results[-1][0][-1]) for piece in seen.results[-1][0]
                )
            ),
            "All entries are one and the same tensor, which the next piece overwrites.",
        ),
        Hint(
            lambda seen: _same(seen.results[-1][0], _worked(seen.inputs[0][0], len(seen.inputs))),
            "Pass a piece on as soon as it is done, before you begin with the next one. Then the "
            "next rank has something to do meanwhile.",
        ),
    ],
    hint="For each piece: receive it (unless you are the first), work, send it on (unless you are "
    "the last).",
)
