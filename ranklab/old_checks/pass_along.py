"""The exercise on a pipeline, of the chapter on messages."""

import time

import torch
import torch.distributed as dist

from ranklab.old_checks._model import Case, Exercise, Hint
from ranklab.traces.data import counted

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

    return Case(f"{counted(pieces, 'piece')}, {what}", make, ranks=ranks)


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
            lambda seen: len(seen.inputs) == 1,
            "A single rank is the first and the last: it receives from nobody and sends to nobody.",
            when=("stuck", "error"),
        ),
        Hint(
            lambda seen: True,
            "To receive, bring a box of your own: torch.empty_like(piece).",
            when=("changed",),
        ),
        Hint(
            lambda seen: True,
            "Does every rank receive just what the one before it sends, and rank 0 nothing? And if "
            "isend sends it: the message may never leave where its handle was not kept, and waited "
            "for before the end.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: any(arrived is not None for arrived, _ in seen.results[:-1]),
            "Who passes everything on has nothing to return.",
        ),
        Hint(
            lambda seen: (
                len(seen.results[-1][0]) > 1
                and all(
                    torch.equal(piece, _worked(seen.inputs[0][0], len(seen.inputs))[-1])
                    for piece in seen.results[-1][0]
                )
            ),
            "All entries are one and the same tensor, which the next piece overwrites.",
        ),
        Hint(
            lambda seen: seen.found == "time",
            "Pass a piece on as soon as it is done, before you begin with the next one. Then the "
            "next rank has something to do meanwhile.",
        ),
    ],
    hint="For each piece: receive it (unless you are the first), work, send it on (unless you are "
    "the last). A box that irecv fills may be read only after the wait() of its handle.",
)
