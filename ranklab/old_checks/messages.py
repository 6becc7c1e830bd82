"""What the exercises of chapter 06 check: waiting, circles, and programs made of messages."""

import torch

from ranklab.old_checks._model import Case, Choice, Exercise, Hint

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
