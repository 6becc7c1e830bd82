"""Which mistake is it? Known ones run on the case in which an answer is wrong.

They all run in one go, as if they were one answer, and each of their results is compared with the
reader's on every rank. What a mistake gave in a case is kept for the next attempt.
"""

import pickle
import time

import cloudpickle

from ranklab.exercises.compare import difference, plain
from ranklab.exercises.on_rank import fresh, packed_result
from ranklab.exercises.parcel import Order
from ranklab.exercises.solution import Solution, solution

# Seconds that may go by, in all cases of one answer together: on quiet processors one or two are
# enough, and on busy ones a late sentence is better than a general one.
PATIENCE = 10.0

_known = {}  # {(exercise, number of a case, number of a mistake, of its way): results by rank}
NONE = object()  # a mistake that gave no result there


class Recognizer:
    """Compares the answer to an exercise with its mistakes, until time is up."""

    def __init__(self, exercise, bench):
        self.exercise, self.bench = exercise, bench
        self._until = None  # the clock begins with the first look
        self._together = True  # until one of them takes its rank along, and all that had come
        if _known and next(iter(_known))[0] != exercise.name:
            _known.clear()  # a reader stays with one exercise for a while

    def time_is_up(self):
        return self._until is not None and time.monotonic() > self._until

    def alike(self, case, packed, expected, results, among=None):
        """Return the mistakes that give these results, and wrong ones, in a case, by its number.

        packed: the arguments of each rank. among: the mistakes in question, else all.
        """
        ways = [
            (i, k)
            for i, mistake in enumerate(self.exercise.mistakes)
            if mistake.wrong and mistake.runs and (among is None or mistake in among)
            for k in range(len(mistake.wrong))
        ]
        found = []
        for (i, _), got in zip(ways, self._results(case, packed, ways)):
            mistake = self.exercise.mistakes[i]
            if mistake in found or got is NONE or not self._same(got, results):
                continue
            if expected is None or not self._same(expected, got):
                found.append(mistake)
        return found

    def _same(self, one, other):
        tolerance = self.exercise.tolerance
        try:
            return not any(difference(a, b, tolerance) for a, b in zip(one, other, strict=True))
        except Exception:  # results that no comparison has thought of
            return False

    def _results(self, case, packed, ways):
        """Return what each of the ways gives in a case; run those that are not known yet."""
        keys = [(self.exercise.name, case, *way) for way in ways]
        self._until = self._until or time.monotonic() + PATIENCE
        while (missing := [key for key in keys if key not in _known]) and not self.time_is_up():
            asked = missing if self._together else missing[:1]
            results = self._run(asked, packed)
            _known.update(zip(asked, results))
            blamed = self._together or len(asked) == 1
            if len(results) < len(asked) and blamed and not self.time_is_up():
                _known[asked[len(results)]] = NONE
        return [_known.get(key, NONE) for key in keys]

    def _run(self, keys, packed):
        """Run mistakes, one after the other; return the results of those before one that fails."""
        exercise = self.exercise
        written = [exercise.mistakes[i].wrong[k] for *_, i, k in keys]
        # An edited solution travels as text: as functions, cloudpickle would have the ranks import
        # whatever this process has of torch that could be meant by their names, for seconds.
        book = solution(exercise.name)
        packed_ones = [
            cloudpickle.dumps(book.edited(one) if isinstance(one, dict) else one) for one in written
        ]
        order = Order(
            exercise=exercise.name,
            trains=exercise.trains,
            answers=cloudpickle.dumps((packed_ones,)),
            names=["a mistake"],
            parameters=[],
            sources={},
            path=[],
            folder=self.bench.folder,
            drive=cloudpickle.dumps(_one_after_the_other),
            trace=False,
            in_place=False,
        )
        how = exercise.drive, exercise.in_place
        self.bench.make_ready(len(packed), exercise.trains)
        arguments = [cloudpickle.dumps((args, how)) for args in packed]
        outcome = self.bench.run(order, arguments, self._until - time.monotonic())
        self._together = self._together and outcome.ended != "died"
        said = [outcome.returned.get(rank, {}).get("result", []) for rank in range(len(packed))]
        return [[pickle.loads(one) for one in ranks] for ranks in zip(*said)]


def _one_after_the_other(answers, args, how):
    """On a rank: return what each of several answers gives, packed, up to one that fails."""
    drive, in_place = how
    results = []
    try:
        for packed in answers:
            answer, given = pickle.loads(packed), pickle.loads(args)
            answer = answer.answers() if isinstance(answer, Solution) else answer
            answer = answer[0] if isinstance(answer, tuple) and len(answer) == 1 else answer
            fresh()
            result = drive(answer, *given) if drive else answer(*given)
            results.append(packed_result(plain(given[0] if in_place else result)))
    except BaseException:  # SystemExit, and the interrupt of an endless loop
        pass
    return results
