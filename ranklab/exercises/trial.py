"""One answer against all cases of its exercise: what a check is, once there are ranks."""

import pickle
import re
import tempfile
from unittest import mock

import cloudpickle

from ranklab import checks
from ranklab.errors import named
from ranklab.exercises.judging import alike, judge
from ranklab.exercises.on_rank import remember
from ranklab.exercises.parcel import Order
from ranklab.exercises.recognize import Recognizer
from ranklab.exercises.solution import solution

LINES, WIDTH = 8, 100  # that are shown of what an answer printed
# After which the next case may be tried:
OF_RESULTS = ("type", "shape", "dtype", "value", "judge", "time")
# What Python says to an answer that is called otherwise than it can be:
NOT_SO = re.compile(r"TypeError: (?:[\w.<>]+\.)?([\w<>]+?)(?:\.__init__)?\(\) (?:takes|missing) ")


def try_answer(bench, request, say):
    """Run an answer on the ranks of `bench`; return (verdict, text).

    request: a Parcel. say(preparing=i) tells that the ranks are made ready for case i, and
    say(case=i, limit=seconds) that it begins.
    """
    return _Trial(bench, request, say).run()


class _Trial:
    def __init__(self, bench, request, say):
        self.exercise = checks.find(request.exercise)
        self.bench, self.say = bench, say
        remember(request.sources)
        self.order = Order(
            **vars(request),
            drive=cloudpickle.dumps(self.exercise.drive),
            trace=self.exercise.trace,
            in_place=self.exercise.in_place,
        )
        self.expected = {}  # {number of a case: the results}
        self.packed, self.results = {}, {}  # the same: arguments, and what came, both by rank
        self.printed = {}  # of the case that is shown

    def run(self):
        """Go through the cases; the others, too, where the first one is right and another wrong."""
        wrong = {}  # {number of the case: Finding}
        for i in range(len(self.exercise.cases)):
            finding = self._case(i, fresh=i == 0)
            if finding:
                wrong[i] = finding
            if 0 in wrong or (finding and finding.of not in OF_RESULTS):
                break
        if not wrong:
            return "right", "\n\n".join([self._right(), *self._output()])
        return "wrong", "\n\n".join(self._wrong(wrong))

    def _case(self, i, fresh=False):
        """Run case i; return what is wrong, or None.

        fresh: in a process group of its own. Else it may be that of the case before, and what is
        wrong among several ranks there counts for nothing: a message may be left over.
        """
        finding, came, first_of_its_group = self._run(i, fresh)
        left_over = self.exercise.cases[i].ranks > 1 and not first_of_its_group
        # Too slow may be the answer, or a machine that was busy.
        if finding and (finding.of == "time" or left_over):
            finding, came, _ = self._run(i, fresh=True)
        if finding:
            self.printed = came.printed or self.printed
        self.results[i] = [said.get("result") for _, said in sorted(came.returned.items())]
        return finding

    def _run(self, i, fresh):
        """Run case i once; return (what is wrong or None, its Outcome, was the group fresh?)."""
        case, exercise = self.exercise.cases[i], self.exercise
        self.say(preparing=i)
        fresh = self.bench.make_ready(case.ranks, exercise.trains, fresh)
        # What a case puts on disk goes where the ranks' end removes it.
        with mock.patch.object(tempfile, "tempdir", self.bench.folder):
            packed = [cloudpickle.dumps(case.make(r, case.ranks)) for r in range(case.ranks)]
        expected = None
        if exercise.twin is not None:
            expected = list(exercise.twin([pickle.loads(args) for args in packed]))
            if len(expected) != case.ranks:
                raise ValueError(f"the twin gave {len(expected)} results for {case.ranks} ranks")
        self.packed[i], self.expected[i] = packed, expected
        self.say(case=i, limit=exercise.limit)
        outcome = self.bench.run(self.order, packed, exercise.limit)
        if i == 0 or (outcome.printed and not self.printed):
            self.printed = outcome.printed
        inputs = [pickle.loads(args) for args in packed]
        return judge(exercise, case, inputs, expected, outcome, self.order), outcome, fresh

    def _right(self):
        cases = self.exercise.cases
        many = "1 case" if len(cases) == 1 else f"{len(cases)} cases"
        sizes = sorted({case.ranks for case in cases})
        if sizes == [1]:
            return f"Right: {many}."
        ranks = f"{sizes[0]} to {sizes[-1]} ranks" if len(sizes) > 1 else f"{sizes[0]} ranks"
        return f"Right: {many}, {ranks}."

    def _wrong(self, wrong):
        first = min(wrong)
        finding, case, total = wrong[first], self.exercise.cases[first], len(self.exercise.cases)
        alone = self.exercise.ranks == 1
        ranks = "" if alone else f", {_ranks(case)}"
        where = f"case {first + 1} of {total}" if total > 1 else "its case"
        if finding.of == "unfinished":
            return [f"Not finished yet: {where} ({case.what}{ranks}).", *finding.paragraphs]
        said = [f"Wrong in {where}: {case.what}{ranks}.", *finding.paragraphs]
        if written := self._written_for_the_first(wrong):
            said.append(written)
        return [*said, *self._hint(first, finding), *self._output()]

    def _written_for_the_first(self, wrong):
        """Say so where the answer looks as if it was made for the case that the reader sees."""
        results = self.results
        others = range(1, len(results))
        if 0 in wrong or len(results) < 3 or len(results) < len(self.exercise.cases):
            return ""
        failed = [i for i in others if i in wrong]
        repeated = all(alike(results[0], results[i]) for i in failed)
        if len(failed) >= 2 and repeated and self._wants_many():
            return (
                "It gives the result of the first case here, too: it looks written for that case, "
                "the one that the exercise shows."
            )
        if len(failed) >= max(2, 0.75 * len(others)):
            return (
                f"Right in the case that the exercise shows, it is wrong in {len(failed)} of the "
                f"{len(others)} others."
            )
        return ""

    def _wants_many(self):
        """Do the cases want three different results at least? Of two, one repeats by chance."""
        different = []
        for one in self.expected.values():
            if one is not None and not any(alike(one, other) for other in different):
                different.append(one)
        return len(different) > 2

    def _hint(self, i, finding):
        """Return one hint on what was found in case i: that of a mistake, or the usual one.

        What is to be done about an exception, it says by itself.
        """
        said = self._on_the_call(finding) or self._of_a_mistake(i, finding)
        if not said and finding.of in (*OF_RESULTS, "stuck", "slow"):
            said = self.exercise.cases[i].hint or self.exercise.hint
        return [f"Hint: {said}"] if said else []

    def _on_the_call(self, finding):
        """Say how an answer is called that cannot be called so; "" where that is not the matter."""
        missed, book = NOT_SO.match(finding.seen.error), solution(self.exercise.name)
        if not missed or missed[1] not in self.order.names or book is None:
            return ""
        return f"It is called as {book.called_as(self.order.names.index(missed[1]))}."

    def _of_a_mistake(self, i, finding):
        """Return the sentence of the first mistake that fits, or ""."""
        alike = None
        for mistake in self.exercise.mistakes:
            if mistake.fits(finding.seen):
                return mistake.sentence
            if mistake.runs and finding.seen.happened == "returned":
                alike = self._alike(i) if alike is None else alike
                if mistake in alike:
                    return mistake.sentence
        return ""

    def _alike(self, i):
        """Return the mistakes that give the answer's results in case i, and so far as is known."""
        book = Recognizer(self.exercise, self.bench)
        alike = book.alike(i, self.packed[i], self.expected[i], self.results[i])
        others = iter(j for j in range(len(self.exercise.cases)) if j != i)
        while len({one.sentence for one in alike}) > 1 and not book.time_is_up():
            j = next(others, None)
            if j is None or (j not in self.results and not self._returns(j)):
                break
            alike = book.alike(j, self.packed[j], None, self.results[j], alike) or alike
        return alike

    def _returns(self, j):
        """Run case j for its results alone; does the answer return any?"""
        finding = self._case(j, fresh=True)
        return finding is None or finding.of in OF_RESULTS

    def _output(self):
        """Return what the ranks printed, those together that printed the same."""
        who_printed = {}
        for rank, text in sorted(self.printed.items()):
            who_printed.setdefault(text.rstrip(), []).append(rank)
        said = []
        for text, ranks in who_printed.items():
            who = "it" if self.exercise.ranks == 1 else named(ranks)
            said.append(f"What {who} printed:\n{_shortened(text)}")
        return said


def _shortened(text):
    lines = [line if len(line) <= WIDTH else f"{line[:WIDTH]} ..." for line in text.splitlines()]
    lines = lines[:LINES] + ["..."] * (len(lines) > LINES)
    return "\n".join(f"    {line}" for line in lines)


def _ranks(case):
    return "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
