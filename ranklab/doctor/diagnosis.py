"""What the places of all ranks, taken together, say: who waits for whom, and why nobody goes on.

Nothing here talks to a rank. A `Report` is what is known of one rank, a `Diagnosis` reads all of
them; rounds.py collects them. A circle of waiting ranks is found by following each rank to one that
it waits for (the wait-for graph; E. Knapp, "Deadlock Detection in Distributed Databases", ACM
Computing Surveys 19(4), 1987).
"""

import time
from dataclasses import dataclass, field
from functools import cached_property

from ranklab.doctor import mismatch
from ranklab.errors import named

STUCK = 1.0  # seconds in one communication after which a rank counts as stuck
# Seconds after which nothing is on its way any more. The ranks are asked one after another: of two
# that only take turns, either may be seen to wait for the other.
SETTLED = 0.25
TO_WRITE = 30.0  # seconds for an error: IPython reads and parses the files of all its frames
UNDER_WAY = {"running": "runs", "failing": "has failed, and still writes its error"}
ENDED = {  # the gravest first
    "died": "has died",
    "failed": "has failed",
    "finished": "has finished the cell",
    "idle": "runs nothing",
}


@dataclass(frozen=True)
class Report:
    """What is known of one rank. `state`: "silent", or a key of UNDER_WAY or of ENDED.

    place: "    line 3: y = f(x)", one line for each function of the reader that it is in.
    call: the communication that it waits in, as calls.current gives it, or None.
    seconds: for how long it has been there. recent: its last collectives (witness.py).
    """

    rank: int
    state: str
    place: str = ""
    call: dict | None = None
    seconds: float = 0.0
    recent: tuple = ()
    numbers: dict = field(default_factory=dict)  # {group: of its last collective there}
    note: str = ""  # where it is silent: what else is known

    @property
    def line(self):
        """Return "line 3", where the rank is in its cell."""
        return self.place.strip().partition("\n")[0].partition(":")[0].partition(",")[0]


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
        if call["peer"] is None:
            return others
        return [] if self._is_answered(rank, call["peer"]) else [call["peer"]]

    def _has_come(self, rank, other):
        """Has `other` made the collective that `rank` is in? By now it may be somewhere else."""
        mine, theirs = self.reports[rank].call, self.reports.get(other, Report(other, "silent"))
        if mine.get("number"):
            return theirs.numbers.get(mine["group"], 0) >= mine["number"]
        call = theirs.call
        return call and all(mine[key] == call[key] for key in ("name", "group"))

    def _is_answered(self, rank, peer):
        """Are the two in calls that answer each other? Then the message is on its way."""
        mine, theirs = self.reports[rank].call, self.reports.get(peer, Report(peer, "silent")).call
        return (
            theirs is not None
            and {mine["kind"], theirs["kind"]} == {"send", "recv"}
            and theirs["peer"] in (rank, None)
            and (mine["tag"], mine["group"]) == (theirs["tag"], theirs["group"])
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
        differ = bool(mismatch.sentences(self.reports.values()))
        return all_wait or in_a_circle or in_vain or differ

    # In words

    def paragraphs(self, only=None, seconds=True):
        """Say where the ranks are (all, or those in `only`), those at the same place together.

        seconds: say for how long, too.
        """
        alike = {}
        for report in self.reports.values():
            if only is not None and report.rank not in only:
                continue
            key = (_state(report), report.place, report.note)
            alike.setdefault(key, []).append(report)
        said = []
        for (state, place, note), group in alike.items():
            who = named(report.rank for report in group)
            longest = max(report.seconds for report in group)
            verb = _plural(state) if len(group) > 1 else state
            timed = seconds and group[0].state == "running"
            how_long = f", for {longest:.1f} s" if timed else ""
            said.append("\n".join(filter(None, [f"{who} {verb}{how_long}", place, note])))
        return said

    def conclusions(self):
        """Say why nobody goes on, one sentence for each reason."""
        said = mismatch.sentences(self.reports.values())
        if self.crossed and self._settled(self.crossed):
            said.insert(0, self._crossed_in_words())
        elif (
            self.circle
            and self._settled(self.circle)
            and not (said and self._all_in_collectives(self.circle))
        ):
            said.insert(0, self._circle_in_words())
        return said or self._in_vain()

    def _settled(self, ranks):
        """Do they wait for longer than messages are on their way?"""
        return all(self.reports[rank].seconds >= SETTLED for rank in ranks)

    def _all_in_collectives(self, ranks):
        return all(self.reports[rank].call["kind"] == "collective" for rank in ranks)

    @cached_property
    def crossed(self):
        """(sender, receiver) who wait for each other, and whose message does not fit; or ()."""
        for rank in self.waiting:
            call = self.reports[rank].call
            other = self.reports.get(call["peer"], Report(-1, "silent")).call
            facing = other and (call["kind"], other["kind"], other["peer"]) == (
                "send",
                "recv",
                rank,
            )
            if facing and any(call[what] != other[what] for what in ("tag", "group")):
                return rank, call["peer"]
        return ()

    def _crossed_in_words(self):
        sender, receiver = (self.reports[rank] for rank in self.crossed)
        what = "tag" if sender.call["tag"] != receiver.call["tag"] else "group"
        return (
            f"Rank {sender.rank} sends to rank {receiver.rank} with {what} {sender.call[what]} "
            f"({sender.line}), and rank {receiver.rank} receives from rank {sender.rank} with "
            f"{what} {receiver.call[what]} ({receiver.line}): that is another message."
        )

    def _circle_in_words(self):
        links = [
            f"rank {rank} {wait(self.reports[rank].call, self._next_in_circle(rank))} "
            f"({self.reports[rank].line})"
            for rank in self.circle
        ]
        kinds = {self.reports[rank].call["kind"] for rank in self.circle}
        nobody = {"recv": ": nobody sends.", "send": ": nobody receives."}
        end = nobody.get(kinds.pop(), ".") if len(kinds) == 1 else "."
        return f"{named(self.circle).capitalize()} wait in a circle: {', '.join(links)}{end}"

    def _next_in_circle(self, rank):
        return self.circle[(self.circle.index(rank) + 1) % len(self.circle)]

    def _in_vain(self):
        alike = {}  # {(what it waits for, who has ended): ranks}
        for rank, ended in self.waits_in_vain().items():
            went_well = all(self.reports[r].state not in ("died", "failed") for r in ended)
            if went_well and not self._settled([rank]):
                continue  # what it waits for may have been sent
            alike.setdefault((wait(self.reports[rank].call), tuple(ended)), []).append(rank)
        said = []
        for (waits, ended), ranks in alike.items():
            # The gravest names the cause: who merely ended may only have heard of a death first.
            gravest = min((self.reports[r].state for r in ended), key=list(ENDED).index)
            ended = [r for r in ended if self.reports[r].state == gravest]
            who, whom = named(ranks).capitalize(), named(ended)
            sends = self.reports[ranks[0]].call["kind"] == "send"
            end = "nobody there receives any more" if sends else "nothing more comes from there"
            waits = _plural(waits) if len(ranks) > 1 else waits
            state = _plural(ENDED[gravest]) if len(ended) > 1 else ENDED[gravest]
            said.append(f"{who} {waits}, but {whom} {state}: {end}.")
        return said


def _state(report):
    if report.call and report.state not in ENDED:
        return wait(report.call)
    return {**UNDER_WAY, **ENDED}.get(report.state, "does not answer")


def _plural(state):
    first, _, rest = state.partition(" ")
    plural = {"has": "have", "does": "do", "is": "are"}.get(first, first.removesuffix("s"))
    return f"{plural} {rest}".strip()


def wait(call, whom=None):
    """Say what a call waits for: "waits to receive float32[2] from rank 1".

    whom: the rank to name where the call itself waits for several.
    """
    what = f" {call['payload']}" if call["payload"] else ""
    tag = f" with tag {call['tag']}" if call["tag"] else ""
    if call["kind"] in ("send", "recv"):
        peer = "anyone" if call["peer"] is None else f"rank {call['peer']}"
        verb, way = ("send", "to") if call["kind"] == "send" else ("receive", "from")
        if call["handle"]:
            return f"waits for its {call['name']} of{what} {way} {peer}{tag}"
        return f"waits to {verb}{what} {way} {peer}{tag}"
    details = [call["op"] if call["op"] != "SUM" else ""]
    details += [f"root {call['root']}"] if call["root"] is not None else []
    details = f" ({', '.join(filter(None, details))})" if any(details) else ""
    others = "" if whom is None else f" for rank {whom}"
    return f"waits in {call['name']}{' of' if what else ''}{what}{details}{others}"
