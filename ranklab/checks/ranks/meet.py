"""A rendezvous by files, on a disk that is slow."""

import builtins
import contextlib
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

VERY_LATE = 1.6  # seconds: later than whoever does not wait for a card, but sleeps, will expect
LONGEST_PAUSE = 1.4  # seconds that a meeting may take after the last one has come
NOBODYS = "nobody's card"
READ = "for place in places]"
WAITS = "while not all(place.exists() for place in places):\n        time.sleep(0.001)\n"


def case(what, ranks, litter=(), late=lambda rank: 0.0):
    folders = []  # a fresh one for each time that the case is run; all ranks get the same

    def make(rank, world_size):
        if rank == 0:
            folders.append(Path(tempfile.mkdtemp(prefix="meeting-")))
            for name in litter:
                Path(folders[-1], name).write_text(NOBODYS)
        return folders[-1], f"host-{'abcdefgh'[rank]}:{5000 + 7 * rank}", late(rank)

    return Case(what, make, ranks=ranks)


def in_two_halves(file, write, text):
    half = len(text) // 2
    write(text[:half])
    file.flush()
    time.sleep(0.1)
    write(text[half:])
    file.flush()
    return len(text)


@contextlib.contextmanager
def slow_disk():
    """Let what this process writes to a file come in two halves, with a pause between them."""
    quick = io.open

    def slow(file, mode="r", *args, **kwargs):
        opened = quick(file, mode, *args, **kwargs)
        if set(mode) & set("wax+"):
            opened.write = partial(in_two_halves, opened, opened.write)
        return opened

    with mock.patch.object(io, "open", slow), mock.patch.object(builtins, "open", slow):
        yield


def drive(meet, folder, card, late):
    time.sleep(late)
    with slow_disk():
        return meet(folder, card)


def judge(seen):
    if any(seen.collectives) or any(seen.messages):
        return "The cards are right, but files alone were to be used: no message, no barrier."
    return None


def too_slow(seen):
    """Say so where nobody waited for a card, but all for a long time."""
    latest = max(late for *_, late in seen.inputs)
    if seen.seconds - latest > LONGEST_PAUSE:
        return (
            f"The cards are right, but it took {seen.seconds:.1f} s, and the last rank came after "
            f"{latest:g} s."
        )
    return None


def half_read(seen):
    """Is there, in place of a card, its beginning?"""
    both = [pair for cards in seen.results for pair in zip(cards, seen.expected[0])]
    return seen.found == "value" and any(c != right and right.startswith(c) for c, right in both)


def drafts_counted_as_cards(folder, card):
    draft = folder / f"draft {dist.get_rank()}"
    draft.write_text(card)
    while len(list(folder.iterdir())) < dist.get_world_size():
        time.sleep(0.001)
    cards = [path.read_text() for path in sorted(folder.iterdir())]
    dist.barrier()  # nobody reads what another has just renamed
    draft.rename(folder / f"rank {dist.get_rank()}")
    return cards


def with_a_second_file(folder, card):
    rank, n = dist.get_rank(), dist.get_world_size()
    Path(folder, f"{rank}.card").write_bytes(card.encode())
    Path(folder, f"{rank}.there").touch()
    while len(list(Path(folder).glob("*.there"))) < n:
        time.sleep(0.002)
    found = sorted(Path(folder).glob("*.card"), key=lambda path: int(path.stem))
    return [path.read_text() for path in found]


def with_an_end_of_each_card(folder, card):
    Path(folder, f"card {dist.get_rank()}").write_text(f"{card}\n")
    cards = []
    for r in range(dist.get_world_size()):
        place, text = Path(folder, f"card {r}"), ""
        while not text.endswith("\n"):
            time.sleep(0.001)
            text = place.read_text() if place.exists() else ""
        cards.append(text.removesuffix("\n"))
    return cards


exercise = Exercise(
    cases=[
        case("all at once", 4),
        case("rank 0 comes late", 3, late=lambda rank: 0.3 * (rank == 0)),
        case("the last rank comes late", 4, late=lambda rank: VERY_LATE * (rank == 3)),
        case("a folder with other files in it", 4, litter=("readme.txt", "notes")),
        case("alone", 1),
    ],
    twin=lambda inputs: [[card for _, card, _ in inputs]] * len(inputs),
    drive=drive,
    judge=judge,
    too_slow=too_slow,
    trace=True,
    limit=6.0,
    hint="Three steps: leave a card, wait until every rank's card is there, read them all.",
    mistakes=[
        Mistake(
            "A file that is there, whole, says all that a message could say.",
            {WAITS: "dist.barrier()\n"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "Wait for the cards, not for a time: look, and look again after a few milliseconds.",
            {WAITS: "time.sleep(2)\n"},
            test=lambda seen: seen.found == "time",
        ),
        Mistake(
            "Not every file in the folder is a card. Look for those of this group, by name.",
            {
                "not all(place.exists() for place in places)": "len(places := [p for p in "
                "sorted(folder.iterdir()) if 'draft' not in p.name]) < world_size"
            },
            test=lambda seen: any(NOBODYS in cards for cards in seen.results),
        ),
        Mistake(
            "A card was read before all of it was there (the disk is slow here). Write it under "
            "another name and rename it when it is whole; and see that nobody takes a file under "
            "the other name for a card.",
            {'draft = folder / f"draft': 'draft = folder / f"rank'},
            drafts_counted_as_cards,
            test=half_read,
        ),
        Mistake(
            "All cards are there, but not in the order of the ranks: a listing of a folder has an "
            "order of its own.",
            {READ: "for place in places[::-1]]"},
            test=lambda seen: all(sorted(cards) == seen.expected[0] for cards in seen.results),
        ),
        Mistake(
            "Somebody did not wait until every card was there. Ranks can be later than any sleep.",
            {
                WAITS: "time.sleep(1)\n",
                "for place in places]": "for place in places if place.exists()]",
            },
            test=lambda seen: any(len(cards) < len(seen.inputs) for cards in seen.results),
        ),
        Mistake(
            "Somebody read a file that was not there: not yet, or, if it was a draft, not any "
            "more. Wait until the cards of all are there, under the names that they end up with.",
            {WAITS: "time.sleep(1)\n"},
            happened="error",
            test=lambda seen: "FileNotFoundError" in seen.error,
        ),
        Mistake(
            "Somebody waits for what never comes. Compare the names of the files that are written, "
            "rank by rank, with those that are waited for.",
            {"range(world_size)": "range(1, world_size + 1)"},
            happened="slow",
        ),
    ],
    also_right=[with_a_second_file, with_an_end_of_each_card],
)
