"""A pipeline: every rank works on a piece while the others work on other pieces."""

import time

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake
from ranklab.traces.data import counted

WORK_SECONDS = 0.05
SENDS = "handles.append(dist.isend(done[-1], rank + 1))"


def double_slowly(piece):
    """The work of the pipeline: it takes WORK_SECONDS, and returns 2 * piece + rank."""
    time.sleep(WORK_SECONDS)
    return 2 * piece + dist.get_rank()


def case(what, pieces, shape, ranks, dtype=torch.float32):
    """Rank 0 has the pieces, the others have zeros of their shape."""

    def make(rank, world_size):
        full = [torch.full(shape, i + 1, dtype=dtype) for i in range(pieces)]
        return full if rank == 0 else [torch.zeros_like(piece) for piece in full], double_slowly

    return Case(f"{counted(pieces, 'piece')}, {what}", make, ranks=ranks)


def twin(inputs):
    pieces = inputs[0][0]
    for r in range(len(inputs)):
        pieces = [2 * piece + r for piece in pieces]
    return [None] * (len(inputs) - 1) + [pieces]


def one_by_one(seen):
    """Say so where the ranks worked one after another."""
    pieces, ranks = len(seen.inputs[0][0]), len(seen.inputs)
    in_turn, overlapped = pieces * ranks, pieces + ranks - 1
    if in_turn > 2 * overlapped and seen.seconds > WORK_SECONDS * (in_turn + overlapped) / 2:
        return (
            f"Right, but it took {seen.seconds / WORK_SECONDS:.1f} pieces' time. One rank after "
            f"the other takes {in_turn}; if all work at once, {overlapped} are enough."
        )
    return None


def all_boxes_at_once(pieces, work):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    boxes = [torch.empty_like(piece) for piece in pieces] if rank else pieces
    arriving = [dist.irecv(box, rank - 1) for box in boxes] if rank else []
    done, leaving = [], []
    for k, box in enumerate(boxes):
        if arriving:
            arriving[k].wait()
        done.append(work(box))
        if rank != last:
            leaving.append(dist.isend(done[k], rank + 1))
    for handle in leaving:
        handle.wait()
    if rank == last:
        return done


exercise = Exercise(
    cases=[
        case("1 number each", 6, [1], 4),
        case("2 × 3 of float64", 3, [2, 3], 3, torch.float64),
        case("1 number each", 1, [1], 2),
        case("int64", 2, [4], 1, torch.int64),
        case("1 MB each", 4, [1 << 18], 2),
    ],
    twin=twin,
    too_slow=one_by_one,
    hint="For each piece: receive it (unless you are the first), work, send it on (unless you are "
    "the last). A box that irecv fills may be read only after the wait() of its handle.",
    mistakes=[
        Mistake(
            "A single rank is the first and the last: it receives from nobody and sends to nobody.",
            {"if rank < last": "if rank < max(last, 1)"},
            happened=("stuck", "error"),
            test=lambda seen: len(seen.inputs) == 1,
        ),
        Mistake(
            "To receive, bring a box of your own: torch.empty_like(piece).",
            {"box = torch.empty_like(piece)": "box = piece"},
            happened="changed",
        ),
        Mistake(
            "Does every rank receive just what the one before it sends, and rank 0 nothing? And if "
            "isend sends it: the message may never leave where its handle was not kept, and waited "
            "for before the end.",
            {"if rank > 0": "if True", "rank - 1)": "(rank - 1) % world_size)"},
            happened="stuck",
        ),
        Mistake(
            "Who passes everything on has nothing to return.",
            {" if rank == last else None": ""},
            test=lambda seen: any(arrived is not None for arrived in seen.results[:-1]),
        ),
        Mistake(
            "All entries are one and the same tensor, which the next piece overwrites.",
            {"done.append(work(piece))": "done = [work(piece)] * (len(done) + 1)"},
        ),
        Mistake(
            "Pass a piece on as soon as it is done, before you begin with the next one. Then the "
            "next rank has something to do meanwhile.",
            {
                SENDS: "pass",
                "handle in handles": "piece in done * (rank < last)",
                "handle.wait()": "dist.send(piece, rank + 1)",
            },
            test=lambda seen: seen.found == "time",
        ),
    ],
    also_right=[all_boxes_at_once],
)
