"""Running one case on ranks, whatever the answer does there: get stuck, compute forever, die.

The ranks are the lab's own, in a process that is not the reader's notebook. For each case as many
of them as it asks for form a process group of their own. The doctor tells who waits for whom.
"""

import itertools
import os
import pickle
import time
from dataclasses import dataclass, field

import ipyparallel

from ranklab.doctor import deaths, rounds, sentences
from ranklab.doctor.diagnosis import Diagnosis
from ranklab.errors import RankError
from ranklab.exercises import on_rank
from ranklab.ranks.ranks import Ranks
from ranklab.start import cluster
from ranklab.upstream import ipyparallel as replies
from ranklab.upstream import torch as upstream
from ranklab.upstream import torch_says

LOOK = 0.25  # seconds between two looks at the ranks
SURE = 0.5  # seconds that nobody must have moved for the ranks to count as stuck
TO_END = 2.0  # seconds that a rank has to end its case once it is freed or interrupted
TIMEOUT = 60.0  # seconds that a rank waits in a communication; a case is over long before


@dataclass
class Outcome:
    """What came of one case on ranks 0 to n-1.

    returned: {rank: what on_rank.run said of it}, also where the answer raised an error. died:
    {rank: (its last Report, what ended it)}. ended: "returned" (on all ranks, or with an error),
    "stuck", "slow" or "died". diagnosis: where the ranks were then, and failed: the ranks on which
    the answer had raised an error by then. printed: {rank: text}.
    """

    returned: dict = field(default_factory=dict)
    died: dict = field(default_factory=dict)
    ended: str = "returned"
    diagnosis: Diagnosis | None = None
    failed: set = field(default_factory=set)
    printed: dict = field(default_factory=dict)

    @property
    def errors(self):
        """{rank: error}, but for those that come of the end of another rank, or of the case."""
        errors = {r: said["error"] for r, said in self.returned.items() if "error" in said}
        if self.ended in ("stuck", "slow"):
            errors = {r: error for r, error in errors.items() if r in self.failed}
        causes = {r: error for r, error in errors.items() if not _is_consequence(error)}
        return causes or ({} if self.died else errors)


class Bench:
    """The ranks on which answers are checked. They are there after each case, whatever it did."""

    def __init__(self, size=4, training=False):
        self._start(size, training)

    def _start(self, size, training):
        if training and upstream.LOADED_BY_OPTIMIZERS not in cluster.PRELOAD:
            cluster.PRELOAD.append(upstream.LOADED_BY_OPTIMIZERS)
        self._training = upstream.LOADED_BY_OPTIMIZERS in cluster.PRELOAD
        self.ranks = Ranks(size, backend="gloo", device="cpu", timeout=TIMEOUT)
        self._cases = itertools.count()
        self._lost = False
        self._group = 0  # how many ranks have a process group in which a case ended well

    def run(self, order, inputs, limit):
        """Run one case on ranks that are ready; return its Outcome.

        order: the Order that on_rank.run gets. inputs: the arguments of each rank, packed; there
        are as many ranks as these. limit: seconds.
        """
        number, packed = next(self._cases), pickle.dumps(order)
        files = [os.path.join(self.ranks.folder, f"said-{number}-{r}") for r in range(len(inputs))]
        parts = [
            self.ranks.client[r].apply_async(on_rank.run, packed, args, file)
            for r, (args, file) in enumerate(zip(inputs, files))
        ]
        outcome, self._group = Outcome(), 0
        self.ranks.watched += 1  # whoever waits for a dead one is freed here, after a look at them
        try:
            self._watch(ipyparallel.AsyncResult.join(*parts), outcome, limit)
        finally:
            self.ranks.watched -= 1
        if outcome.ended == "returned" and not outcome.errors:
            self._group = len(inputs)
        outcome.printed = {r: text for r, file in enumerate(files) if (text := _taken(file))}
        return outcome

    def _watch(self, result, outcome, limit):
        """Wait for the end of the case, and end it where it does not end by itself."""
        began = since = time.monotonic()
        before, interrupted = None, []
        while not result.wait(LOOK):
            now, ended = time.monotonic(), self._ended(result)
            diagnosis = self._where(ended, result)
            if not diagnosis.stuck or before is None or _moved(before, diagnosis):
                since = now
            before = diagnosis
            if how := _how_it_ends(ended, stuck_for=now - since, left=began + limit - now):
                outcome.ended, outcome.diagnosis = how, diagnosis
                outcome.failed = {rank for rank, what in ended.items() if what == "failed"}
                interrupted = self._end(result)
                self._lost = bool(interrupted)  # until it is known where that was
                break
        self._collect(result, outcome)
        self._lost = not all(_in_own_lines(outcome.returned.get(r)) for r in interrupted)

    def _end(self, result):
        """End the case on all ranks; return those that had to be interrupted."""
        seen = rounds.free(self.ranks, self._ended(result))
        if result.wait(TO_END / 2 if seen.waiting else 0):
            return []
        there = [r for r, part in replies.parts(result) if not part.ready()]
        there = [r for r in there if r not in self.ranks.gone()]
        if there:
            self.ranks.client.send_signal("SIGINT", targets=there, block=False)
            result.wait(TO_END / 2)
        return there

    def _collect(self, result, outcome):
        for rank, part in replies.parts(result):
            said = replies.answer(part) if part.ready() else None
            if isinstance(said, tuple):
                outcome.returned[rank] = _unpacked(said[1])
            elif rank in self.ranks.gone() or getattr(said, "ename", "") == "EngineError":
                outcome.ended = "died"
                outcome.died[rank] = self._last_report(rank)
            elif said is not None and not (self._lost and said.ename == "KeyboardInterrupt"):
                # The interrupt that `_end` sends may come when the answer itself has just ended.
                raise RankError(f"rank {rank}: {said.ename}: {said.evalue}")
        replies.forget(self.ranks, result)

    def _last_report(self, rank):
        report = deaths.report_of(self.ranks, rank)
        return report, sentences.death(report)

    def _ended(self, result):
        """Return {rank: "finished", "failed" or "died"} of those that are through."""
        known = replies.ended(self.ranks, result)
        for rank, part in replies.parts(result):
            if known.get(rank) == "finished" and replies.answer(part)[0]:
                known[rank] = "failed"
        return known

    def _where(self, ended, result):
        diagnosis = rounds.where(self.ranks, ended)
        taking_part = [diagnosis.reports[rank] for rank in replies.asked(result)]
        return Diagnosis(taking_part, patience=diagnosis.patience)

    # The ranks before and after

    @property
    def folder(self):
        """The folder of the ranks, which goes when they do."""
        return self.ranks.folder

    def make_ready(self, size, training=False, fresh=True):
        """Have ranks 0 to size-1 in a process group of their own; is it a fresh one?

        fresh=False: the one in which a case of as many ranks ended well will do, if it is there.
        """
        training = training or self._training
        if not fresh and size == self._group and training == self._training:
            return False
        if size > len(self.ranks) or training != self._training:
            self.ranks.close()
            self._start(max(size, len(self.ranks)), training)
        self.repair()
        try:
            self.ranks._regroup(size)
        except RankError:  # the last answer left more behind than could be seen
            self.ranks.restart()
            self.ranks._regroup(size)
        return True

    def repair(self):
        """Have fresh processes where a rank died, or cannot be relied on any more."""
        if self._lost or self.ranks.gone():
            self.ranks.restart()
        self._lost = False

    def close(self):
        self.ranks.close()


def _unpacked(said):
    from ranklab.exercises.shown import Thing

    said = pickle.loads(said)
    if "result" in said:
        try:
            said["result"] = pickle.loads(said["result"])
        except Exception:  # an object that lives on a rank only
            said["result"] = Thing("something that cannot leave its process")
    return said


def _how_it_ends(ended, stuck_for, left):
    """Return "died", "stuck" or "slow" where a case has to be ended; "" where it may go on.

    ended: {rank: how}. stuck_for: seconds since somebody moved. left: seconds of the limit.
    """
    if "died" in ended.values():
        return "died"
    if stuck_for >= SURE:
        return "stuck"
    return "slow" if left < 0 else ""


def _moved(before, now):
    """Is some rank somewhere else than it was?"""
    return any(before.reports[r].place != report.place for r, report in now.reports.items())


def _in_own_lines(said):
    """Did the interrupt reach a rank in the answer's own lines, as any exception might?

    Elsewhere, in an import, say, it may have left something half done that others rely on.
    """
    error = said.get("error", {}) if said else {}
    return error.get("type") == "KeyboardInterrupt" and error["own"]


def _is_consequence(error):
    """Does the error say no more than that another rank went away, or was freed?"""
    from_torch = error["from_torch"] or error["type"].startswith("Dist")
    return from_torch and torch_says.waited_in_vain(error["message"])


def _taken(file):
    """Return the text of a file, and remove it; "" where there is none."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            text = opened.read()
        os.remove(file)
    except OSError:
        return ""
    return text
