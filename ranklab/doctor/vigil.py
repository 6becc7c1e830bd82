"""Keeping watch over one cell while the ranks run it.

A `Vigil` looks at the ranks now and then, and acts on what it sees:

- nobody has a way on: it says so below the cell, long before the timeout ends the waiting;
- a rank died, or failed while others wait for it: it frees them, as nobody is going to answer;
- the reader interrupts: it passes that on, and frees the ranks that cannot hear it.

What it saw last is part of the error in which such a cell ends.
"""

import sys
import time
from concurrent.futures import wait
from dataclasses import dataclass

from IPython import get_ipython
from IPython.display import display

from ranklab.doctor import mismatch, rounds
from ranklab.doctor.diagnosis import Diagnosis
from ranklab.upstream import ipyparallel as replies

FIRST, LONGEST = 0.5, 5.0  # seconds until the first look, and at most between two
# Of the two seconds in which an interrupt ends a cell: for a rank that runs Python to hear it (and
# for a silent one to say where it is), and for one that was freed to end its cell.
TO_STOP, TO_END = 0.3, 1.0
NOT_BEGUN = 2.0  # seconds after which it is worth a word that the cell waits for an earlier one
WENT_ON = "The ranks waited for a while, and went on."


class Vigil:
    """Watches over `result`, which is under way on `ranks`."""

    def __init__(self, ranks, result):
        self.freed = False  # were waiting ranks freed?
        self.interrupted = self.gave_up = False
        self._ranks, self._result = ranks, result
        self._began = time.monotonic()
        self._diagnosis, self._notice = None, None
        self._seen = 0.0  # when that was
        self._expires = 0.0  # when the first of those that waited then gives up
        self._moved = 0  # looks since, at which nobody was stuck
        self._first = min(FIRST, ranks.timeout / 4)
        ranks.watched += 1

    def until_next_look(self):
        """Return how many seconds to wait for the result: the longer it runs, the longer."""
        here = time.monotonic() - self._began
        if here < self._first or self._ended_badly():  # most cells are done before the first look
            return self._first
        longest = min(LONGEST, self._ranks.timeout / 4)  # no wait may begin and end unseen
        return min(max(self._first, here / 10), longest)

    def look(self):
        """See where the ranks are, and act on it."""
        if self.freed:
            return
        ended = self._ended()
        if "died" in ended.values():
            self._free()
            return
        diagnosis = self._ask(rounds.where)
        if diagnosis.stuck and "failed" in ended.values():
            self._free(seen=self._diagnosis if self._gives_up(diagnosis) else None)
        elif diagnosis.stuck or (self._waits_for_long(diagnosis) and not self._gives_up(diagnosis)):
            self._diagnosis, self._seen, self._moved = diagnosis, time.monotonic(), 0
            self._expires = self._seen + self._ranks.timeout - self._longest(diagnosis)
            self._say(self._headline(diagnosis), diagnosis)
        else:
            # Right after their time was up, ranks are no longer stuck, and not yet done.
            self._moved += 1
            if "failed" in ended.values():
                if self._moved > 2 and not diagnosis.waiting:  # else they will be freed
                    self._say(
                        "Some ranks failed; others still run. Interrupt to end it.", diagnosis
                    )
            elif self._has_not_begun(diagnosis):
                self._say("This cell has not begun: an earlier one still runs.", diagnosis)
            elif self._moved > 1:
                self._take_back()

    def _waits_for_long(self, diagnosis):
        """Does a rank wait for one that does something else, and may run out of time?"""
        return self._longest(diagnosis) > min(self._ranks.timeout / 2, LONGEST)

    def _gives_up(self, diagnosis):
        """Is one still in a wait without a way on, out of which others just ran out of time?"""
        if self._diagnosis is None or not self._diagnosis.stuck:
            return False
        began = time.monotonic() - self._longest(diagnosis)
        return began < self._seen  # what was seen then is why it waits

    def _longest(self, diagnosis):
        return max((diagnosis.reports[r].seconds for r in diagnosis.waiting), default=0)

    def _has_not_begun(self, diagnosis):
        """Are the ranks still where they were before the cell came?"""
        here = time.monotonic() - self._began
        since = [diagnosis.reports[r].seconds for r in diagnosis.unfinished]
        return here > NOT_BEGUN and bool(since) and min(since) > here + 1

    def _headline(self, diagnosis):
        if diagnosis.stuck:
            what = "No progress."
        elif len(diagnosis.waiting) == len(diagnosis.reports):
            what = "All are in a communication that takes long; it may just be large."
        else:
            what = "Ranks wait for others that still run."
        return (
            f"{what} A rank that waits gives up after {self._ranks.timeout:g} s; to end this at "
            "once, press the stop button (interrupt the kernel)."
        )

    def _say(self, headline, diagnosis):
        if not any(report.place for report in diagnosis.reports.values()):
            return  # it is none of the reader's lines that they are busy with
        text = f"{headline}\n\n{diagnosis}"
        if self._notice is None:
            self._notice = Notice(text)
        else:
            self._notice.update(text)

    def _take_back(self):
        """Say that the ranks move again, unless it is that they give up just now."""
        if time.monotonic() < self._expires - 1:
            self.went_on()

    def interrupt(self, signal):
        """End the cell on all ranks, within two seconds."""
        self.interrupted = True
        there = [rank for rank, part in replies.parts(self._result) if not part.ready()]
        there = [rank for rank in there if rank not in self._ranks.gone()]
        self._diagnosis = self._ask(rounds.where)
        sent = self._ranks.client.send_signal(signal, targets=there, block=False)
        self._result.wait(TO_STOP)
        silent = self._diagnosis.silent
        # Who runs Python may need a moment more; a group that nobody waits in need not break.
        if self._diagnosis.waiting or not self._all_end(TO_END / 2, but=silent):
            self._free(seen=self._diagnosis, but=silent)
            self._all_end(TO_END / 2, but=silent)
        wait([sent], TO_STOP)  # a signal that is still under way would end what comes next

    def _all_end(self, seconds, but):
        """Wait for the ranks, but for those in `but`; have all of them ended the cell?"""
        deadline = time.monotonic() + seconds
        hearing = [part for rank, part in replies.parts(self._result) if rank not in but]
        while not all(part.ready() for part in hearing):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def look_back(self):
        """Compare, after a death that ended the waiting by itself, what the ranks had called."""
        if self._diagnosis is None:
            self._diagnosis = self._ask(rounds.where)

    def is_over(self, began, seconds):
        """Is the time over that the ranks were given: `seconds` since `began`?"""
        late = time.monotonic() - began > seconds
        return late and self._ask(rounds.where).is_over(began, seconds)

    def give_up(self):
        """Note where the ranks are that still have not answered."""
        if self._diagnosis is None:
            self.gave_up = True
            self._diagnosis = self._ask(rounds.where)

    def end(self):
        """End the watch."""
        self._ranks.watched -= 1

    def went_on(self):
        """Say that what stands below the cell is over."""
        if self._notice:
            self._notice.update(WENT_ON)

    def clear(self):
        """Clear what stands below the cell: there is an error, which says it all."""
        if self._notice:
            self._notice.update("")

    def account(self):
        """Return the Account of the last look, if ranks were stuck then; else None."""
        if self._diagnosis is None or self._is_old():
            return None
        if self.interrupted:
            said = "Interrupted.", "Before that:"
        elif self.freed:
            said = "", "The others could not go on, and were freed. Until then:"
        elif self.gave_up:
            said = "No answer came.", "This is where the ranks are:"
        else:
            seconds = f"{self._ranks.timeout:g} s"
            said = f"No progress: after {seconds} the ranks that waited gave up.", "Until then:"
        return Account(self._diagnosis, *said, self.freed, self.gave_up)

    def _is_old(self):
        """Was it another wait, which ended well?"""
        since = time.monotonic() - self._seen
        return self._seen and not self.freed and since > self._ranks.timeout + LONGEST

    def _free(self, seen=None, but=()):
        self.freed = True
        self._diagnosis = self._ask(rounds.free, but=but, seen=seen)

    def _ask(self, question, **options):
        patience = TO_STOP if self.interrupted else rounds.PATIENCE
        return question(self._ranks, self._ended(), patience=patience, **options)

    def _ended(self):
        return replies.ended(self._ranks, self._result)

    def _ended_badly(self):
        return bool({"failed", "died"} & set(self._ended().values()))


@dataclass(frozen=True)
class Account:
    """What an error has to say of ranks that waited."""

    diagnosis: Diagnosis
    ending: str  # how the waiting ended
    before: str  # introduces the places of the ranks
    freed: bool
    gave_up: bool

    @property
    def tells_of(self):
        """The ranks of which the diagnosis says where they were."""
        # Who has no line of the reader's is between two lines, or telling of an error.
        reports = self.diagnosis.reports
        return [
            rank
            for rank in self.diagnosis.unfinished
            if reports[rank].place or reports[rank].state == "silent"
        ]

    @property
    def mismatches(self):
        """The sentences on collectives that do not match."""
        return mismatch.sentences(self.diagnosis.reports.values())

    def paragraphs(self, but=()):
        """Say how the waiting ended, why nobody went on (but `but`), and where each rank was."""
        why = [said for said in self.diagnosis.conclusions() if said not in but]
        if not self.tells_of:
            return why
        finished = [r for r, report in self.diagnosis.reports.items() if report.state == "finished"]
        where = self.diagnosis.paragraphs({*self.tells_of, *finished}, seconds=False)
        return [self.ending, *why, self.before, *where]


class Notice:
    """Text below the cell that runs, which can be replaced."""

    def __init__(self, text):
        in_kernel = hasattr(get_ipython(), "kernel")
        self._display = display(_plain(text), raw=True, display_id=True) if in_kernel else None
        if not in_kernel:
            print(text, file=sys.stderr)

    def update(self, text):
        """Put `text` in its place."""
        if self._display:
            self._display.update(_plain(text), raw=True)


def _plain(text):
    return {"text/plain": text}
