"""The exercise of chapter 17 on a limit to memory."""

from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint
from ranklab.old_checks.pipeline import instructions, no_list
from ranklab.taught.pipeline import (
    ScheduleError,
    alternating,
    check_schedule,
    name,
    simulate,
    with_messages,
)


def _timetable(stages, micro_batches, limit):
    """The best: on stage 0 a micro-batch starts when there is room, 3 s after the one before it."""
    starts = []
    for k in range(micro_batches):
        back = starts[k - limit] + 3 * stages if k >= limit else 0
        starts.append(max(back, starts[-1] + 3) if k else 0)
    schedule = []
    for stage in range(stages):
        times = [(start + stage, ("F", k, 0)) for k, start in enumerate(starts)]
        times += [(at + 3 * stages - 2 * stage - 2, ("B", k, 0)) for k, at in enumerate(starts)]
        schedule.append([instruction for _, instruction in sorted(times)])
    return schedule


def _seconds(schedule):
    rows = simulate(with_messages(schedule), forward=1, backward_input=1, backward_weight=1)
    return max(end for row in rows for _, _, end in row)


def _schedule(seen):
    return [instructions(program) for program in seen.results[0]]


def _judge_limit(seen):
    called = f"within_limit{seen.inputs[0]}"
    try:
        schedule = _schedule(seen)
    except (TypeError, ValueError):
        what = "A schedule is a list of programs, each of them a list of"
        return no_list(what, seen.results[0])
    if other := _of_another_kind(schedule, *seen.inputs[0]):
        return f"{called} {other}"
    written = "\n".join(
        f"    stage {stage}: {' '.join(map(name, program))}"
        for stage, program in enumerate(schedule)
    )
    for rule in (_not_in_it, _refused, _too_many, _too_slow):
        if wrong := rule(schedule, *seen.inputs[0]):
            return f"{called}:\n{written}\n{wrong}"
    return None


def _of_another_kind(schedule, stages, micro_batches, limit):
    if len(schedule) != stages:
        return f"should have a program for each of {stages}, and has {len(schedule)}."
    if others := [one for program in schedule for one in program if one[0] not in ("F", "B")]:
        return f"should have no other instructions than F and B, and {others[0]!r} is in it."


def _not_in_it(schedule, stages, micro_batches, limit):
    wanted = {(kind, k, 0) for kind in "FB" for k in range(micro_batches)}
    for stage, program in enumerate(schedule):
        if wrong := sorted(set(program) ^ wanted):
            what = "is missing on" if wrong[0] in wanted else "does not belong to"
            return f"{wrong[0]!r} {what} stage {stage}."


def _refused(schedule, *_):
    try:
        check_schedule(schedule)
    except ScheduleError as error:
        return f"The checker says: {error}"


def _too_many(schedule, stages, micro_batches, limit):
    peaks = check_schedule(schedule)
    if max(peaks) > limit:
        stage = peaks.index(max(peaks))
        return f"Stage {stage} holds {max(peaks)} activations at a time, and {limit} is the limit."


def _too_slow(schedule, *numbers):
    took, enough = _seconds(schedule), _seconds(_timetable(*numbers))
    if took > enough:
        return f"It takes {took:g} s, and {enough:g} s are enough."


def _says(text):
    """Does the judge say this?"""
    return lambda seen: text in (_judge_limit(seen) or "")


def _made_with(warm_up):
    """Is it 1F1B with these numbers of forwards to warm up?"""

    def test(seen):
        stages, micro_batches, limit = seen.inputs[0]
        fs, bs = ([(kind, k, 0) for k in range(micro_batches)] for kind in "FB")
        warm_ups = [max(0, warm_up(stages - stage - 1, limit)) for stage in range(stages)]
        return _schedule(seen) == [alternating(fs, bs, some) for some in warm_ups]

    return test


def _in_groups(seen):
    """Is every stage empty again after each so many micro-batches?"""
    _, _, limit = seen.inputs[0]
    return limit > 1 and all(
        program[: 2 * limit] == [(kind, k, 0) for kind in "FB" for k in range(limit)]
        for program in _schedule(seen)
    )


def _limited(stages, micro_batches, limit, what=""):
    what = what or f"{stages} stages, {micro_batches} micro-batches, {limit} at a time"
    return Case(what, lambda rank, world_size: (stages, micro_batches, limit), ranks=1)


within_limit = Exercise(
    "within_limit",
    cases=[
        _limited(4, 6, 2),
        _limited(4, 8, 3),
        _limited(4, 8, 4),
        _limited(4, 8, 100, "a limit that limits nothing"),
        _limited(4, 3, 1, "one at a time"),
        _limited(6, 2, 3, "fewer micro-batches than the limit"),
        _limited(3, 1, 2, "one micro-batch"),
        _limited(1, 4, 2, "one stage"),
        _limited(8, 20, 5),
    ],
    expected=None,
    judge=_judge_limit,
    limit=3.0,
    hints=[
        called_as("within_limit(stages, micro_batches, limit)"),
        Hint(
            _made_with(lambda usual, limit: usual),
            "That is 1F1B, which holds as many as there are stages. What decides how many a stage "
            "holds?",
        ),
        Hint(
            _made_with(lambda usual, limit: min(usual, limit)),
            "One forward comes on top of those that warm up, before the first backward.",
        ),
        Hint(
            _says("at a time, and"),
            "A stage holds the forwards of its warm-up, and one more.",
        ),
        Hint(
            _made_with(lambda usual, limit: min(usual, limit - 1)),
            "1F1B takes a forward after each backward, also where none can come: it waits for "
            "stage 0, which has no room until the first micro-batch is back. Another backward may "
            "be there before that.",
        ),
        Hint(
            _in_groups,
            "It lets every group of micro-batches leave before the next one enters, and each time "
            "the stages run empty. After *one* backward there is room for one forward.",
        ),
        Hint(
            _says("Deadlock"),
            "A stage waits for a gradient that needs a forward which it has not done, or the other "
            "way around. All stages take the micro-batches in the same order.",
        ),
        Hint(
            _says("s are enough"),
            "When does stage 0 have room for the next micro-batch? From that follows when each of "
            "them is on each stage, there and back, and that is an order.",
        ),
    ],
    hint="Write a timetable: when does each micro-batch start on stage 0, and when is it where?",
)
