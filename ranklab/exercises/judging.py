"""What came of a case, in words; None where it is what it should be."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ranklab import taught
from ranklab.doctor import places
from ranklab.doctor.places import LastCell
from ranklab.errors import named
from ranklab.exercises.compare import difference, same
from ranklab.exercises.model import Seen
from ranklab.exercises.parcel import parameters
from ranklab.exercises.shown import short
from ranklab.upstream import cpython, torch_says

LONG = 120  # characters of a message: that of a library, with addresses in it
ORDINALS = ("first", "second", "third", "fourth")
# What a Finding is `of` -> what Seen says of it; of results it says "returned".
HAPPENED = {
    **{of: of for of in ("died", "stuck", "slow", "error", "changed")},
    "unfinished": "error",
}
MISSED = {"rank": "dist.get_rank()", "world_size": "dist.get_world_size()"}


@dataclass(frozen=True)
class Finding:
    """What is wrong in one case: paragraphs of text. seen: for the hints.

    of: "error", "stuck", "slow", "died", "changed", "type", "shape", "dtype", "value", "judge",
    "time" (right, but too slow) or "unfinished" (it ran into NotImplementedError).
    """

    of: str
    paragraphs: list
    seen: Seen


def judge(exercise, case, inputs, expected, outcome, order):
    """Return the Finding of one case, or None where all is as it should be.

    inputs: the arguments of each rank; expected: the result of each, or None. order: the Order.
    """
    look = _Look(exercise, case, inputs, expected, outcome, order)
    for find in (look.death, look.standstill, look.errors, look.changes, look.results):
        if found := find():
            of, paragraphs = found
            return Finding(of, paragraphs, look.seen(HAPPENED.get(of, "returned"), of))
    return None


class _Look:
    def __init__(self, exercise, case, inputs, expected, outcome, order):
        self.exercise, self.case, self.inputs, self.expected = exercise, case, inputs, expected
        self.outcome, self.name = outcome, order.names[0]
        # The arguments of a case are those of `drive`, after the answer, where there is one.
        drive = exercise.drive
        self.parameters = parameters(drive)[1:] if drive else order.parameters
        self.alone = case.ranks == 1

    def seen(self, happened, found=""):
        """Return what hints and judges get to see."""
        said = [self.outcome.returned.get(rank, {}) for rank in range(self.case.ranks)]
        errors = [f"{e['type']}: {e['message']}" for e in self.outcome.errors.values()]
        there = all("result" in one for one in said)
        return Seen(
            self.case,
            self.inputs,
            [one["result"] for one in said] if there else [],
            self.expected or [],
            happened,
            errors[0] if errors else "",
            max((one.get("seconds", 0.0) for one in said), default=0.0),
            found,
            **_traffic([one.get("trace") for one in said]),
        )

    # What kept it from returning

    def death(self):
        """A rank that is gone."""
        if not self.outcome.died:
            return None
        who_died, said = {}, []
        for rank, (report, cause) in self.outcome.died.items():
            who_died.setdefault((cause or "the process is gone.", report.place), []).append(rank)
        for (cause, place), ranks in who_died.items():
            said.append("\n".join(filter(None, [f"{self._who(ranks)} died: {cause}", place])))
        diagnosis = self.outcome.diagnosis
        if diagnosis and diagnosis.waiting:
            said += [*diagnosis.conclusions(), *diagnosis.paragraphs(diagnosis.waiting, False)]
        return "died", self._words(said)

    def standstill(self):
        """Ranks that wait in vain, or go on for too long."""
        diagnosis = self.outcome.diagnosis
        if self.outcome.ended == "stuck" and not self.outcome.errors:
            said = ["It got stuck.", *diagnosis.conclusions(), *self._where(diagnosis.reports)]
            return "stuck", self._words(said)
        if self.outcome.ended != "slow" or self.outcome.errors:
            return None
        running = [r for r in diagnosis.unfinished if r not in diagnosis.waiting]
        said = f"It was not done after {self.exercise.limit:g} s, and was ended."
        where = self._where(running or diagnosis.unfinished)
        if not where:  # in the check's own code, where no line of the reader's runs
            return "slow", [said]
        return "slow", self._words([f"{said} This is where it was then:", *where])

    def _where(self, ranks):
        """Say where ranks were when the case was ended."""
        diagnosis = self.outcome.diagnosis
        place = diagnosis.reports[0].place if self.alone else ""
        if place or self.exercise.ranks == 1:  # an exercise without ranks says nothing of them
            return [place] if place else []
        return diagnosis.paragraphs(ranks, seconds=False)

    def errors(self):
        """What ranks raised, those together that raised the same at the same place."""
        errors = self.outcome.errors
        if not errors:
            return None
        who_raised = {}
        for rank, error in errors.items():
            place = places.in_frames(error["places"], LastCell())
            raised = place, error["type"], _without_numbers(error["message"])
            who_raised.setdefault(raised, []).append(rank)
        said = []
        for (place, kind, _), ranks in who_raised.items():
            message = errors[ranks[0]]["message"]
            if kind == "NotImplementedError":
                return "unfinished", [_unfinished(place, message)]
            what = f"{kind}: {message}" if message else kind
            place = place or f"    {self._outside(ranks[0])}"
            said.append("\n".join(filter(None, [f"{self._who(ranks)} raised {what}", place])))
        said += _advice(errors.values())
        if self.outcome.ended == "stuck":
            said += self._words(self.outcome.diagnosis.conclusions())
        return "error", said

    def _outside(self, rank):
        """Say where an error comes from that none of the reader's lines raised."""
        if self.exercise.drive:
            return "while the check used your answer"
        return f"called as {self._call(rank)}"

    def changes(self):
        """Arguments that are not what they were."""
        changed = {
            r: said["changed"] for r, said in self.outcome.returned.items() if said["changed"]
        }
        if not changed:
            return None
        rank, (index, *_) = next(iter(changed.items()))
        ordinal = ORDINALS[index] if index < len(ORDINALS) else f"{index + 1}th"
        which = "its argument" if len(self.inputs[rank]) == 1 else f"its {ordinal} argument"
        which += f" {self.parameters[index]}" if index < len(self.parameters) else ""
        who = "" if self.alone else f", on {named(changed)}"
        was = short(self.inputs[rank][index])
        before = f"before, it was {was}" if self.alone else f"on rank {rank} it was {was} before"
        said = f"It changed {which}{who}; {before}. Leave what you are given as it is."
        return "changed", [said]

    # What it returned

    def results(self):
        """Results that are not the expected ones, or that the judge does not accept."""
        exercise, returned = self.exercise, self.outcome.returned
        if self.expected is not None:
            wrong = {}
            for rank, expected in enumerate(self.expected):
                got = returned[rank]["result"]
                if found := difference(expected, got, exercise.tolerance):
                    wrong[rank] = found
            if wrong:
                rank, found = next(iter(wrong.items()))
                return found.of, self._wrong(rank, found, wrong)
        seen = self.seen("returned")
        for of, says in (("judge", exercise.judge), ("time", exercise.too_slow)):
            try:
                said = says and says(seen)
            except Exception as error:  # a result that the judge has not thought of
                got = short(returned[0]["result"])
                said = f"It returned {got}, with which the check could do nothing: {error!r}."
            if said:
                return of, [said]
        return None

    def _wrong(self, rank, found, wrong):
        expected, got = self.expected[rank], self.outcome.returned[rank]["result"]
        heading, told = self._call(rank), found.told
        if self.exercise.drive:  # whose arguments the reader never sees
            heading, told = f"At {found.path}" if found.path else "The result", found.sentence
            expected, got = found.part or (expected, got)
        where = "" if self.alone else f" on rank {rank}"
        said = [
            f"{heading}{where}",
            f"    expected: {short(expected)}",
            f"    got:      {short(got)}",
        ]
        paragraphs = ["\n".join(said)]
        if told and not told.endswith(f"expected, got {short(got)}."):
            paragraphs.append(told)
        others = [r for r in wrong if r != rank]
        if others:
            are = "is" if len(others) == 1 else "are"
            paragraphs.append(f"{named(others).capitalize()} {are} wrong, too.")
        elif not self.alone:
            paragraphs.append(f"Only rank {rank} is wrong.")
        return paragraphs

    def _call(self, rank):
        args = ", ".join(short(arg) for arg in self.inputs[rank])
        return f"{self.name}({args})"

    def _who(self, ranks):
        return "It" if self.alone else named(ranks).capitalize()

    def _words(self, paragraphs):
        """Say of a function what the doctor says of a cell."""
        return [
            said.replace("finished the cell", f"returned from {self.name}") for said in paragraphs
        ]


def _unfinished(place, message):
    line = place.splitlines()[-1].strip() if place else "a line"
    where = line.partition(":")[0]
    said = f": {message}" if message else ""
    return f"It got to {where}, which still raises NotImplementedError{said}. Your code goes there."


def _without_numbers(message):
    """What a long message says on every rank, but for its ports and addresses."""
    return re.sub(r"\d+", "0", message) if len(message) > LONG else message


def _advice(errors):
    for error in errors:
        if missed := cpython.missing_name(f"{error['type']}: {error['message']}"):
            return [_on_a_name(missed)]
        if torch_says.has_a_world(error["message"]):
            return ["The check has made the process group already: leave that call out."]
    return []


def _on_a_name(name):
    """Say where a name can be had that is not defined where an answer runs."""
    if name in MISSED:
        return f"An answer has no `{name}` around it: ask {MISSED[name]}."
    for file in Path(taught.__path__[0]).glob("*.py"):
        if re.search(rf"^(def|class) {name}\b", file.read_text(encoding="utf-8"), re.MULTILINE):
            return f"A chapter has made it: from ranklab.taught.{file.stem} import {name}"
    return (
        "An answer runs with what it imports and what the notebook's own cells define, and "
        f"`{name}` is neither. What `%%px` cells define is on the notebook's ranks alone."
    )


def _traffic(traces):
    if not traces or any(trace is None for trace in traces):
        return {}
    from ranklab.traces.traffic import traffic

    table = traffic(traces)
    return {
        "sent": [table[t.rank].sent_bytes + round(table[t.rank].moved_bytes) for t in traces],
        "messages": [table[t.rank].sent for t in traces],
        "collectives": [dict(Counter(_collectives(trace))) for trace in traces],
    }


def _collectives(trace):
    """Yield the name of each collective that was called; one of objects is lengths, then bytes."""
    from ranklab.traces.data import COLLECTIVE

    before = ""
    for event in trace.communication:
        if event.kind == COLLECTIVE:
            if (before, event.dtype) != ("int64", "uint8"):
                yield event.name
            before = event.dtype


def alike(one, other):
    """Are the results of two cases the same? Lists, by rank; of the ranks that both have."""
    return bool(one) and bool(other) and all(map(same, one, other))
