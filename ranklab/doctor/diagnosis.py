"""What the places of all ranks, taken together, say: who waits for whom, and why nobody goes on.

Nothing here talks to a rank: a `Diagnosis` reads the reports that rounds.py collects. sentences.py
puts it into words. A circle of waiting ranks is found by following each rank to one that
it waits for (the wait-for graph; E. Knapp, "Deadlock Detection in Distributed Databases", ACM
Computing Surveys 19(4), 1987).
"""

import time
from functools import cached_property

from ranklab.doctor import mismatch, sentences
from ranklab.doctor.one_rank import ENDED, Report

STUCK = 1.0  # seconds in one communication after which a rank counts as stuck
# Seconds after which nothing is on its way any more. The ranks are asked one after another: of two
# that only take turns, either may be seen to wait for the other.
SETTLED = 0.25
NOBODY = Report(-1, "silent")
TO_WRITE = 30.0  # seconds for an error: IPython reads and parses the files of all its frames


class Diagnosis:
    """Where all ranks are, and what follows from it. `str()` of it says both."""

    def __init__(self, reports, patience=STUCK):
        self.reports = {report.rank: report for report in reports}
        self.patience = patience
        self.advice = ""  # what to do, where that is known

    def __str__(self):
        return "\n\n".join(filter(None, [*self.conclusions(), *self.paragraphs(), self.advice]))

    __repr__ = __str__

    # Who waits for whom

    @cached_property
    def waiting(self):
        """The ranks that wait in a communication."""
        return [
            r for r, report in self.reports.items() if report.call and report.state not in ENDED
        ]

    @property
    def in_mpi(self):
        """The ranks that wait in a call of MPI, out of which nothing can get them."""
        return [rank for rank in self.waiting if self.reports[rank].call.get("mpi")]

    @property
    def unfinished(self):
        """The ranks that have not ended the cell."""
        return [rank for rank, report in self.reports.items() if report.state not in ENDED]

    def is_over(self, began, seconds):
        """Is the time over that ranks were given to end something: `seconds` since `began`?

        Who has failed, and writes the error, is about to end, and gets the time for it.
        """
        about_to_end = {self.reports[rank].state for rank in self.unfinished} == {"failing"}
        given = max(seconds, TO_WRITE) if about_to_end else seconds
        return time.monotonic() - began > given

    @property
    def silent(self):
        """The ranks that did not even say where they were."""
        return [rank for rank, report in self.reports.items() if report.state == "silent"]

    @cached_property
    def waits_for(self):
        """{rank: the ranks of whom each (or, where it waits for anyone, one) must act first}"""
        return {rank: self._awaited(rank) for rank in self.waiting}

    def _awaited(self, rank):
        call = self.reports[rank].call
        others = [r for r in call["ranks"] if r != rank]
        if call["kind"] in ("collective", "meeting"):
            return [r for r in others if not self._has_come(rank, r)]
        ends = [one for one in _ends(call) if not self._is_answered(rank, one)]
        return [r for one in ends for r in ([one["peer"]] if one["peer"] is not None else others)]

    def _has_come(self, rank, other):
        """Has `other` made the collective that `rank` is in? By now it may be somewhere else."""
        mine, theirs = self.reports[rank].call, self.reports.get(other, Report(other, "silent"))
        if mine.get("number"):
            return theirs.numbers.get(mine["group"], 0) >= mine["number"]
        call = theirs.call
        return call and all(mine[key] == call[key] for key in ("name", "group"))

    def _is_answered(self, rank, mine):
        """Is one end of a rank's message answered by its peer? Then that is on its way."""
        call, theirs = self.reports[rank].call, self.reports.get(mine["peer"], NOBODY).call
        return theirs is not None and any(
            {mine["kind"], one["kind"]} == {"send", "recv"}
            and one["peer"] in (rank, None)
            and _same_tag(mine, one)
            and call["group"] == theirs["group"]
            for one in _ends(theirs)
        )

    @cached_property
    def circle(self):
        """The ranks that wait for each other, in that order; [] where there is no circle."""
        for start in self.waiting:
            path = [start]
            while len(path) <= len(self.reports):
                ahead = [r for r in self._blockers(path[-1]) if r in self.waits_for]
                if not ahead:
                    break
                if again := [r for r in ahead if r in path]:
                    circle = path[max(path.index(r) for r in again) :]
                    turn = circle.index(min(circle))
                    return circle[turn:] + circle[:turn]
                path.append(ahead[0])
        return []

    def _blockers(self, rank):
        """Those that keep `rank` from going on; nobody, if anyone may send and somebody runs."""
        awaited = self.waits_for.get(rank, [])
        runs = [r for r in awaited if r in self.reports and self.reports[r].state == "running"]
        if self._receives_from_anyone(rank) and any(not self.reports[r].call for r in runs):
            return []
        return awaited

    def waits_in_vain(self):
        """Return {rank: those that it waits for and that have ended}, where nobody else will do."""
        found = {}
        for rank in self.waiting:
            awaited = self.waits_for[rank]
            ended = [r for r in awaited if r in self.reports and self.reports[r].state in ENDED]
            enough = len(awaited) if self._receives_from_anyone(rank) else 1
            if len(ended) >= enough > 0:
                found[rank] = ended
        return found

    def _receives_from_anyone(self, rank):
        call = self.reports[rank].call
        return call["kind"] == "recv" and call["peer"] is None

    @cached_property
    def stuck(self):
        """Has somebody no way on: in a circle, for a rank that has ended, or as nobody runs?"""
        patient = {r for r in self.waiting if self.reports[r].seconds >= self.patience}
        if not patient:
            return False
        all_wait = patient == set(self.unfinished) and any(self.waits_for.values())
        in_a_circle = bool(self.circle) and set(self.circle) <= patient
        in_vain = bool(patient & set(self.waits_in_vain()))
        return all_wait or in_a_circle or in_vain or bool(self.mismatches)

    @property
    def mismatches(self):
        """The collectives that ranks do not agree on."""
        reports = self.reports.values()
        return [*mismatch.found(reports), *mismatch.under_mpi(reports, self.patience)]

    @cached_property
    def crossed(self):
        """(sender, receiver) who wait for each other, and whose message does not fit; or ()."""
        for rank in self.waiting:
            call = self.reports[rank].call
            other = self.reports.get(call["peer"], NOBODY).call
            facing = other and (call["kind"], other["kind"], other["peer"]) == (
                "send",
                "recv",
                rank,
            )
            if facing and not (_same_tag(call, other) and call["group"] == other["group"]):
                return rank, call["peer"]
        return ()

    def settled(self, ranks):
        """Do they wait for longer than messages are on their way?"""
        return all(self.reports[rank].seconds >= SETTLED for rank in ranks)

    # In words

    def paragraphs(self, only=None, seconds=True):
        """Say where the ranks are (all, or those in `only`), those at the same place together.

        seconds: say for how long, too.
        """
        return sentences.places_of(self.reports.values(), only, seconds)

    def conclusions(self, mismatches=True):
        """Say why nobody goes on, one sentence for each reason; mismatches: also those."""
        return sentences.reasons(self, mismatches)


def _ends(call):
    """Return the ends of messages that a call waits for: of one that sends and receives, two."""
    return [call, call["also"]] if "also" in call else [call]


def _same_tag(one, other):
    """Can they be ends of the same message? MPI receives with any tag, too: None."""
    return one["tag"] == other["tag"] or None in (one["tag"], other["tag"])
