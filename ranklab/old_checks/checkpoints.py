"""Two exercises of chapter 11: a file that survives a kill, and a dealer that remembers.

The disk that kills is in _failing_disk.py.
"""

import torch

from ranklab.checks import _failing_disk as disk
from ranklab.old_checks._model import Case, Exercise, Hint

# A file that is whole


def _drive_save_whole(answer, old, new):
    """Call the answer, killing it at one point after the other; say what the file held then."""
    return disk.killed_everywhere(answer, old, new)


def _judge_save_whole(seen):
    return seen.results[0] or None


def _said(*words):
    return lambda seen: any(word in (seen.results[0] or "") for word in words)


def _save_case(what, old, new):
    return Case(what, lambda rank, world_size: (old, new), ranks=1)


save_whole = Exercise(
    "save_whole",
    cases=[
        _save_case("4000 bytes in place of 4000 others", b"old " * 1000, b"new " * 1000),
        _save_case("a file that was not there", None, b"new " * 1000),
        _save_case("a shorter file than before", b"old " * 1000, b"n"),
    ],
    expected=None,
    drive=_drive_save_whole,
    judge=_judge_save_whole,
    hints=[
        Hint(
            _said("neither the old nor the new", "into the file itself"),
            "Write into another file, and rename it when it is whole.",
        ),
        Hint(
            _said("fsync"),
            "`file.flush()` and then `os.fsync(file.fileno())`, before the renaming.",
        ),
        Hint(
            _said("another folder"),
            "A file is renamed in one step within one file system only: put the draft beside it.",
        ),
        Hint(_said("after a kill"), "A draft may be left from before. Is it in the way?"),
        Hint(_said("beside it"), "Give the draft one name, which the next call uses again."),
    ],
    hint="Write a draft, flush it, fsync it, rename it.",
)


# A dealer that remembers


def _drive_dealer(answer, n, seed, batches, stop, before, after):
    """Deal to `before` ranks, stop, go on with `after` ranks; return what each was dealt."""
    first = [answer(n, seed, rank, before) for rank in range(before)]
    hands = [[one.next(batch) for one in first] for batch in batches[:stop]]
    states = [one.state() for one in first]
    later = [answer(n, seed, rank, after) for rank in range(after)]
    for rank, one in enumerate(later):
        one.resume(dict(states[rank % before]))
    hands += [[one.next(batch) for one in later] for batch in batches[stop:]]
    plain = all(isinstance(state, dict) for state in states) and all(
        isinstance(value, (int, float)) for state in states for value in state.values()
    )
    return hands if plain else "state() is not a dict of plain numbers"


def _dealt_out(inputs):
    n, seed, batches, stop, before, after = inputs[0]
    hands, epoch, dealt = [], 0, 0
    for i, batch in enumerate(batches):
        if dealt + batch > n:
            epoch, dealt = epoch + 1, 0
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        whole, ranks = order[dealt : dealt + batch], before if i < stop else after
        hands.append([whole[rank::ranks] for rank in range(ranks)])
        dealt += batch
    return hands


def _judge_dealer(seen):
    got, want = seen.results[0], _dealt_out(seen.inputs)
    if isinstance(got, str):
        return got + "."
    stop = seen.inputs[0][3]
    for i, (some, right) in enumerate(zip(got, want)):
        if wrong := [hand for hand in some if not isinstance(hand, list)]:
            return f"next() should return a list, and returned {wrong[0]!r:.60}."
        if some != right:
            when = "before the stop" if i < stop else "after the stop"
            return f"Batch {i + 1}, {when}, is dealt as {some}.\nIt should be {right}."
    return None


def _dealer_case(what, *args):
    return Case(what, lambda rank, world_size: args, ranks=1)


def _wrong_at(seen):
    """The number of the first batch that is wrong."""
    return next(
        i for i, (a, b) in enumerate(zip(seen.results[0], _dealt_out(seen.inputs))) if a != b
    )


def _in_pieces(seen):
    """Has every rank a piece of the batch, in place of every so many places of it?"""
    got, want = (hands[_wrong_at(seen)] for hands in (seen.results[0], _dealt_out(seen.inputs)))
    return [s for hand in got for s in hand] == [
        hand[k] for k in range(len(want[0])) for hand in want
    ]


def _nothing_resumed(seen):
    """Is the first batch after the stop the very first one again?"""
    n, seed, batches, stop, _, after = seen.inputs[0]
    anew = _dealt_out([(n, seed, batches[stop : stop + 1], 0, after, after)])
    return _wrong_at(seen) == stop and seen.results[0][stop] == anew[0]


dealer = Exercise(
    "dealer",
    cases=[
        _dealer_case("10 samples, batches of 4, two ranks", 10, 0, [4, 4, 4, 4], 4, 2, 2),
        _dealer_case("a smaller batch at the end", 10, 0, [6, 4, 2, 2], 4, 2, 2),
        _dealer_case("a stop in the middle of epoch 1", 10, 3, [4] * 7, 3, 2, 2),
        _dealer_case("four ranks stop, two go on", 24, 1, [8] * 7, 2, 4, 2),
        _dealer_case("two ranks stop, four go on", 24, 1, [4] * 9, 4, 2, 4),
        _dealer_case("another batch after the stop", 30, 2, [6, 6, 12, 12, 12], 2, 2, 2),
        _dealer_case("a stop at the end of an epoch", 8, 5, [4] * 6, 2, 2, 2),
    ],
    expected=None,
    drive=_drive_dealer,
    judge=_judge_dealer,
    hints=[
        Hint(
            lambda seen: isinstance(seen.results[0], str),
            "What is kept must be readable anywhere, later: names and numbers, no tensors.",
        ),
        Hint(
            _in_pieces,
            "These are pieces of the batch. Rank r gets the places r, r + world_size, and so on.",
        ),
        Hint(
            lambda seen: "smaller" in seen.case.what,
            "When does an epoch end? When the batch that is asked for is larger than what is left.",
        ),
        Hint(
            _nothing_resumed, "After the stop it begins anew. What does `resume` do with the state?"
        ),
        Hint(
            lambda seen: (
                _wrong_at(seen) >= seen.inputs[0][3] and seen.inputs[0][4] != seen.inputs[0][5]
            ),
            "The position has to mean the same for any number of ranks: count the samples of all.",
        ),
        Hint(
            lambda seen: _wrong_at(seen) >= seen.inputs[0][3],
            "Is the whole position in the state? The epoch is part of it, and the batches may be "
            "of another size.",
        ),
    ],
    hint="Deal two epochs by hand, on paper: which places of the order has batch 1, batch 2?",
)
