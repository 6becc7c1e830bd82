"""Keeping watch over one cell while the ranks run it, so that no wait is forever.

Three things may keep a rank from answering: it waits for a message that never comes (the group's
timeout ends that), it died (deaths.py), or the controller between the notebook and the ranks is
gone. A `Vigil` looks at the ranks now and then, and acts on what it sees:

- nobody has a way on: it says so below the cell, long before the timeout ends the waiting;
- a rank died, or failed while others wait for it: it frees them, as nobody is going to answer;
- the reader interrupts: it passes that on, and frees the ranks that cannot hear it.

Then it reads what came back. What it saw last is part of the error in which such a cell ends.
"""

import gc
import time
from concurrent.futures import wait
from dataclasses import dataclass

from ranklab.doctor import ctrl_c, failures, notice, rounds
from ranklab.doctor.diagnosis import Diagnosis
from ranklab.errors import RankError
from ranklab.start import exits
from ranklab.upstream import ipyparallel as replies

FIRST, LONGEST = 0.5, 5.0  # seconds until the first look, and at most between two
# Of the two seconds in which an interrupt ends a cell: for a rank that runs Python to hear it (and
# for a silent one to say where it is), and for one that was freed to end its cell.
TO_STOP, TO_END = 0.3, 1.0
MARGIN = 5.0  # seconds that a rank gets beyond its timeout before it counts as stuck
GRACE = 0.3  # seconds that the news of a death may come after what it led to
NOT_BEGUN = 2.0  # seconds after which it is worth a word that the cell waits for an earlier one


@dataclass(frozen=True)
class Watched:
    """What came of a cell: the values of the ranks, or how they failed, and what was seen of it.

    mismatches: where nobody failed, the collectives that do not match all the same. account: of
    ranks that waited, or None. interrupt: the reader's Ctrl-C.
    """

    values: list
    failures: list
    mismatches: list
    account: "Account | None"
    freed: bool
    interrupt: KeyboardInterrupt | None


def watch(ranks, result, limit=None, signal="SIGINT", first_line=None):
    """Wait for `result`, with a vigil over it; return what came, a Watched.

    limit: seconds after which a silent rank counts as stuck; without it, a rank may compute for as
    long as it likes. signal: what Ctrl-C sends to the ranks. first_line: as for failures.read.
    """
    return Vigil(ranks, result).keep(limit, signal, first_line)


class Vigil:
    """Watches over `result`, which is under way on `ranks`."""

    def __init__(self, ranks, result):
        self.freed = False  # were waiting ranks freed?
        self.interrupted = self.gave_up = False
        self.lost = ""  # where a rank is in MPI for good: a key of telling.LOST
        self._ranks, self._result = ranks, result
        self._began = time.monotonic()
        self._diagnosis, self._notice = None, notice.Notice()
        self._seen = 0.0  # when that was
        self._expires = 0.0  # when the first of those that waited then gives up
        self._moved = 0  # looks since, at which nobody was stuck
        self._first = min(FIRST, ranks.timeout / 4)
        ranks.watched += 1

    def keep(self, limit, signal, first_line):
        """Wait until all have answered, or are given up; read what they answered."""
        interrupt = None
        try:
            with ctrl_c.noted() as pressed:  # also while it is acted on: the impatient press twice
                try:
                    self._wait(limit, pressed)
                except KeyboardInterrupt as error:
                    interrupt = error
                    self.interrupt(signal)
                    gc.collect()  # the output of an endless print may be a gigabyte by now
        except RankError:  # the controller is gone
            self._notice.clear()
            raise
        finally:
            self._ranks.watched -= 1
        values, failed = failures.read(self._ranks, self._result, first_line)
        failed += self._deaths(failed)
        if self._diagnosis is None and any(failure.kind == "died" for failure in failed):
            # It ended the waiting by itself: compare what the ranks had called.
            self._diagnosis = self._ask(rounds.where)
        if failed or self.freed:
            self._notice.clear()
        elif not interrupt:
            self._notice.went_on()
        differ = [] if failed else failures.unnoticed(self._result, values)
        return Watched(values, failed, differ, self.account(), self.freed, interrupt)

    def _wait(self, limit, pressed):
        began = time.monotonic()
        while not pressed.wait(self._result, self.until_next_look()):
            if not exits.controller_runs(self._ranks.cluster):
                raise RankError(
                    "The controller, which carries everything between this notebook and the ranks, "
                    f"is gone. Call {self._ranks.name}.restart(): it starts fresh processes."
                )
            self.look()
            if self.lost:
                return
            if self.freed and limit is None:
                began, limit = time.monotonic(), MARGIN
            if limit is not None and self._is_over(began, limit):
                self._give_up()
                return

    def _deaths(self, failed):
        """Return a Failure for each rank that died and was not asked, or had answered before."""
        echoes = [failure for failure in failed if failure.kind == "waited"]
        if not echoes and not self.freed:
            return []
        deadline = time.monotonic() + GRACE
        lost = not self.freed and not any(failure.timed_out for failure in echoes)
        while lost and not self._ranks.gone() and time.monotonic() < deadline:
            time.sleep(0.02)  # a closed connection is noticed before the hub tells of the death
        known = {failure.rank for failure in failed}
        return [failures.of_dead(self._ranks, r) for r in sorted(self._ranks.gone() - known)]

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
        if lost := self._loses(diagnosis, ended):
            self._diagnosis, self.lost, self.gave_up = diagnosis, lost, True
        elif diagnosis.stuck and "failed" in ended.values():
            self._free(seen=self._diagnosis if self._gives_up(diagnosis) else None)
        elif self._tells_more(diagnosis):
            self._diagnosis, self._seen, self._moved = diagnosis, time.monotonic(), 0
            self._expires = self._seen + self._ranks.timeout - self._longest(diagnosis)
            self._notice.say(notice.waiting(diagnosis, self._ranks.timeout), diagnosis)
        else:
            # Right after their time was up, ranks are no longer stuck, and not yet done.
            self._moved += 1
            if "failed" in ended.values():
                if self._moved > 2 and not diagnosis.waiting:  # else they will be freed
                    self._notice.say(notice.OTHERS_RUN, diagnosis)
            elif self._has_not_begun(diagnosis):
                self._notice.say(notice.NOT_BEGUN, diagnosis)
            elif self._moved > 1:
                self._take_back()

    def _loses(self, diagnosis, ended):
        """Say how a rank is lost that waits in MPI, where only its end gets it out; "" for none."""
        inside = [r for r in diagnosis.in_mpi if r in replies.asked(self._result)]
        waited = max((diagnosis.reports[r].seconds for r in inside), default=0)
        if not inside or "failing" in {report.state for report in diagnosis.reports.values()}:
            return ""  # of the error that is being written, more can be told then
        if self._ranks.lost:
            return "before"
        if diagnosis.stuck and "failed" in ended.values():
            return "failure"
        return "timeout" if waited >= self._ranks.timeout else ""

    def _tells_more(self, diagnosis):
        """Does it show a wait to tell of, and not only what is left of one that ends just now?"""
        waits = diagnosis.stuck or self._waits_for_long(diagnosis)
        return waits and not self._gives_up(diagnosis)

    def _waits_for_long(self, diagnosis):
        """Does a rank wait for one that does something else, and may run out of time?"""
        return self._longest(diagnosis) > min(self._ranks.timeout / 2, LONGEST)

    def _gives_up(self, diagnosis):
        """Is one still in a wait without a way on, out of which others just ran out of time?"""
        if self._diagnosis is None or not self._diagnosis.stuck:
            return False
        if set(self._diagnosis.waiting) <= set(diagnosis.waiting):
            return False  # nobody did
        began = time.monotonic() - self._longest(diagnosis)
        return began < self._seen  # what was seen then is why it waits

    def _longest(self, diagnosis):
        return max((diagnosis.reports[r].seconds for r in diagnosis.waiting), default=0)

    def _has_not_begun(self, diagnosis):
        """Are the ranks still where they were before the cell came?"""
        here = time.monotonic() - self._began
        since = [diagnosis.reports[r].seconds for r in diagnosis.unfinished]
        return here > NOT_BEGUN and bool(since) and min(since) > here + 1

    def _take_back(self):
        """Say that the ranks move again, unless it is that they give up just now."""
        if time.monotonic() < self._expires - 1:
            self._notice.went_on()

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
            if not self._all_end(TO_END / 2, but=silent):
                self.lost = "interrupt" if self._ask(rounds.where).in_mpi else ""
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

    def _is_over(self, began, seconds):
        """Is the time over that the ranks were given: `seconds` since `began`?"""
        late = time.monotonic() - began > seconds
        return late and self._ask(rounds.where).is_over(began, seconds)

    def _give_up(self):
        """Note where the ranks are that still have not answered."""
        if self._diagnosis is None:
            self.gave_up = True
            self._diagnosis = self._ask(rounds.where)

    def account(self):
        """Return the Account of the last look, if ranks were stuck then; else None."""
        if self._diagnosis is None or self._is_old():
            return None
        ended = self.interrupted, self.freed, self.gave_up, self.lost
        return Account(self._diagnosis, self._ranks.timeout, *ended)

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
    """What was seen of ranks that waited, and what ended that: if none of these, their timeout.

    lost: "", or how a rank was lost that waits in MPI for good, a key of telling.LOST.
    """

    diagnosis: Diagnosis
    timeout: float  # seconds
    interrupted: bool
    freed: bool
    gave_up: bool
    lost: str

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
