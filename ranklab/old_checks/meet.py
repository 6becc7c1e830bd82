"""The exercise on a rendezvous of one's own, of the chapter on ranks."""

import time

from ranklab.checks._slow_disk import Place, slow_disk
from ranklab.old_checks._model import Case, Exercise, Hint

# meet ------------------------------------------------------------------------------------------


VERY_LATE = 1.6  # seconds: later than whoever does not wait for a card, but sleeps, will expect
LONGEST_PAUSE = 1.4  # seconds that a meeting may take after the last one has come


def _meet_slowly(meet, folder, card, late):
    time.sleep(late)
    with slow_disk():
        return meet(folder, card)


def _meeting(what, ranks, *, litter=(), late=lambda rank: 0.0):
    def make(rank, world_size):
        card = f"host-{'abcdefgh'[rank]}:{5000 + 7 * rank}"
        return Place.of(rank, litter), card, late(rank)

    return Case(what, make, ranks=ranks)


def _by_files_alone(seen):
    if any(seen.collectives) or any(seen.messages):
        return "The cards are right, but files alone were to be used: no message, no barrier."
    return None


def _too_long(seen):
    """Say so where nobody waited for a card, but all for a long time."""
    latest = max(late for *_, late in seen.inputs)
    if seen.seconds - latest > LONGEST_PAUSE:
        return (
            f"The cards are right, but it took {seen.seconds:.1f} s, and the last rank came after "
            f"{latest:g} s."
        )
    return None


meet = Exercise(
    "meet",
    cases=[
        _meeting("all at once", 4),
        _meeting("rank 0 comes late", 3, late=lambda rank: 0.3 * (rank == 0)),
        _meeting("the last rank comes late", 4, late=lambda rank: VERY_LATE * (rank == 3)),
        _meeting("a folder with other files in it", 4, litter=("readme.txt", "notes")),
        _meeting("alone", 1),
    ],
    expected=lambda inputs: [[card for _, card, _ in inputs]] * len(inputs),
    drive=_meet_slowly,
    judge=_by_files_alone,
    too_slow=_too_long,
    trace=True,
    limit=6.0,
    hints=[
        Hint(
            lambda seen: seen.found == "judge",
            "A file that is there, whole, says all that a message could say.",
        ),
        Hint(
            lambda seen: seen.found == "time",
            "Wait for the cards, not for a time: look, and look again after a few milliseconds.",
        ),
        Hint(
            lambda seen: any("nobody's card" in cards for cards in seen.results),
            "Not every file in the folder is a card. Look for those of this group, by name.",
        ),
        Hint(
            lambda seen: any(
                card != right and right.startswith(card)
                for cards in seen.results
                if isinstance(cards, list)
                for card, right in zip(cards, seen.expected[0], strict=True)
            ),
            "A card was read before all of it was there (the disk is slow here). Write it under "
            "another name and rename it when it is whole; and see that nobody takes a file under "
            "the other name for a card.",
        ),
        Hint(
            lambda seen: all(sorted(cards) == sorted(seen.expected[0]) for cards in seen.results),
            "All cards are there, but not in the order of the ranks: a listing of a folder has an "
            "order of its own.",
        ),
        Hint(
            lambda seen: any(len(cards) < len(seen.inputs) for cards in seen.results),
            "Somebody did not wait until every card was there. Ranks can be later than any sleep.",
        ),
        Hint(
            lambda seen: "FileNotFoundError" in seen.error,
            "Somebody read a file that was not there: not yet, or, if it was a draft, not any "
            "more. Wait until the cards of all are there, under the names that they end up with.",
            when=("error",),
        ),
        Hint(
            lambda seen: True,
            "Somebody waits for what never comes. Compare the names of the files that are written, "
            "rank by rank, with those that are waited for.",
            when=("slow",),
        ),
    ],
    hint="Three steps: leave a card, wait until every rank's card is there, read them all.",
)
