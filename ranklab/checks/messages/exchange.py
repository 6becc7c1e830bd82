"""A letter from every rank to every rank."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

SENDS = "handles.append(dist.isend(letters[other], other))"
RECEIVES = "handles.append(dist.irecv(boxes[other], other))"
COPIES = "boxes[rank].copy_(letters[rank])"


def case(what, length, ranks, dtype=torch.float32):
    """A list with one letter for each rank; all letters are different."""

    def make(rank, world_size):
        values = [torch.arange(length) % 5 + 10 * rank + r for r in range(world_size)]
        return ([value.to(dtype) for value in values],)

    return Case(what, make, ranks=ranks)


def own_letter_wrong(seen):
    """Is that alone wrong? What stands there in its place is not known: torch.empty."""
    return all(
        torch.equal(*pair) == (source != rank)
        for rank, both in enumerate(zip(seen.results, seen.expected))
        for source, pair in enumerate(zip(*both))
    )


def partner_by_partner(letters):
    me, n = dist.get_rank(), len(letters)
    boxes = [letter.clone() for letter in letters]
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        handle = dist.isend(letters[to], to)
        dist.recv(boxes[source], source)
        handle.wait()
    return boxes


def in_one_batch(letters):
    me = dist.get_rank()
    boxes = list(torch.stack(letters).unbind())
    others = [r for r in range(len(letters)) if r != me]
    sends = [dist.P2POp(dist.isend, letters[r], r) for r in others]
    receives = [dist.P2POp(dist.irecv, boxes[r], r) for r in others]
    for handle in dist.batch_isend_irecv(receives + sends) if others else ():
        handle.wait()
    return boxes


exercise = Exercise(
    cases=[
        case("1 number each", 1, 4),
        case("3 numbers each", 3, 3),
        case("1 MB each", 1 << 18, 4),
        case("bfloat16", 6, 2, torch.bfloat16),
        case("int64", 4, 3, torch.int64),
        case("1 number", 1, 1),
    ],
    twin=lambda inputs: [list(letters) for letters in zip(*(letters for (letters,) in inputs))],
    hint="The boxes belong to the transfer until its handle was waited for, and so do the letters.",
    mistakes=[
        Mistake(
            "There are no messages to oneself. A rank's letter to itself is copied.",
            {"if other == rank": "if other < 0"},
            happened=("error", "stuck"),
            test=lambda seen: (
                len(seen.inputs) == 1 or seen.error.startswith(("RuntimeError", "ValueError"))
            ),
        ),
        Mistake(
            "Start everything that can be started (isend and irecv return at once), keep all the "
            "handles, and wait only then. A message whose handle is thrown away may never leave.",
            {SENDS: "dist.send(letters[other], other)", RECEIVES: "dist.recv(boxes[other], other)"},
            happened="stuck",
        ),
        Mistake(
            "Every rank returns its own letters. What came is in the boxes, once the handles were "
            "waited for.",
            {"return boxes": "return [*letters]"},
        ),
        Mistake(
            "Everybody got the first letter of the others. letters[r] is for rank r.",
            {SENDS: "handles.append(dist.isend(letters[0], other))"},
            {COPIES: "boxes[rank].copy_(letters[0])", "isend(letters[other]": "isend(letters[0]"},
        ),
        Mistake(
            "The letter to oneself is missing: no message brings it.",
            {COPIES: "boxes[rank].fill_(-1)"},
            test=own_letter_wrong,
        ),
    ],
    also_right=[partner_by_partner, in_one_batch],
)
