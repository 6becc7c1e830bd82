"""A schedule in which no stage holds more than some activations, as quick as can be."""

from ranklab.checks.pipeline._written import written
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.pipeline import (
    ScheduleError,
    alternating,
    check_schedule,
    one_f_one_b,
    simulate,
    with_messages,
)


def drive(answer, *args):
    schedule = answer(*args)
    if not isinstance(schedule, (list, tuple)):
        raise TypeError(f"A schedule is a list of programs; it returned {schedule!r:.80}.")
    for program in schedule:
        written(program)
    return [[tuple(one) for one in program] for program in schedule]


def judge(seen):
    schedule, args = seen.results[0], seen.inputs[0]
    if len(schedule) != args[0]:
        return f"It should have a program for each of {args[0]} stages, and has {len(schedule)}."
    lines = [f"    stage {stage}: {written(program)}" for stage, program in enumerate(schedule)]
    for rule in (not_in_it, refused, too_many, too_slow):
        if wrong := rule(schedule, *args):
            return "\n".join([f"within_limit{args}:", *lines, wrong])


def not_in_it(schedule, stages, micro_batches, limit):
    wanted = {(kind, k, 0) for kind in "FB" for k in range(micro_batches)}
    for stage, program in enumerate(schedule):
        if wrong := sorted(set(program) ^ wanted):
            what = "is missing on" if wrong[0] in wanted else "does not belong to"
            return f"{wrong[0]!r} {what} stage {stage}."


def refused(schedule, *_):
    try:
        check_schedule(schedule)
    except ScheduleError as error:
        return f"The checker says: {error}"


def too_many(schedule, stages, micro_batches, limit):
    peaks = check_schedule(schedule)
    if max(peaks) > limit:
        stage = peaks.index(max(peaks))
        return f"Stage {stage} holds {max(peaks)} activations at a time, and {limit} is the limit."


def too_slow(schedule, *args):
    took, enough = seconds(schedule), seconds(in_groups_that_follow_closely(*args))
    if took > enough:
        return f"It takes {took:g} s, and {enough:g} s are enough."


def seconds(schedule):
    rows = simulate(with_messages(schedule), forward=1, backward_input=1, backward_weight=1)
    return max(end for row in rows for _, _, end in row)


def in_groups_that_follow_closely(stages, micro_batches, limit):
    """Within each group as 1F1B; sorted by time."""
    many = min(stages, limit)

    def when(kind, k, stage):
        group, place = divmod(k, many)
        way = stage if kind == "F" else 3 * stages - 2 * stage - 2
        return 3 * stages * group + 3 * place + way

    both = [(kind, k) for kind in "FB" for k in range(micro_batches)]
    return [
        [(*one, 0) for one in sorted(both, key=lambda one: when(*one, stage))]
        for stage in range(stages)
    ]


def as_if_played(stages, micro_batches, limit):
    """Second by second: a stage that is free takes a backward if one is there, else a forward."""
    ready = {("F", k, 0): 0 for k in range(micro_batches)}  # (kind, k, stage): from when on
    free, schedule = [0] * stages, [[] for _ in range(stages)]
    for now in range(3 * stages * micro_batches + 1):
        for stage in range(stages):
            held = sum(1 if kind == "F" else -1 for kind, *_ in schedule[stage])
            has_room = held < min(limit, stages - stage)
            able = sorted(
                (one[0] == "F", one[1], one[0])
                for one, since in ready.items()
                if one[2] == stage and since <= now and (one[0] == "B" or has_room)
            )
            if free[stage] > now or not able:
                continue
            _, k, kind = able[0]
            del ready[kind, k, stage]
            schedule[stage].append((kind, k, 0))
            free[stage] = end = now + (1 if kind == "F" else 2)
            if kind == "F":
                ready["F" if stage < stages - 1 else "B", k, min(stage + 1, stages - 1)] = end
            elif stage > 0:
                ready["B", k, stage - 1] = end
    return schedule


def warmed_up(count):
    """As 1F1B, but each stage warms up with count(stage, stages, limit) forwards."""

    def within_limit(stages, micro_batches, limit):
        fs, bs = ([(kind, k, 0) for k in range(micro_batches)] for kind in "FB")
        counts = [max(0, count(stage, stages, limit)) for stage in range(stages)]
        return [alternating(fs, bs, some) for some in counts]

    return within_limit


def in_groups(stages, micro_batches, limit):
    groups = [range(k, min(k + limit, micro_batches)) for k in range(0, micro_batches, limit)]
    return [[(kind, k, 0) for group in groups for kind in "FB" for k in group]] * stages


def says(text):
    return lambda seen: text in judge(seen)


def case(stages, micro_batches, limit, what=""):
    what = what or f"{stages} stages, {micro_batches} micro-batches, {limit} at a time"
    return Case(what, lambda rank, world_size: (stages, micro_batches, limit), ranks=1)


exercise = Exercise(
    cases=[
        case(4, 6, 2),
        case(4, 8, 3),
        case(4, 8, 4),
        case(4, 8, 100, "a limit that limits nothing"),
        case(4, 3, 1, "one at a time"),
        case(6, 2, 3, "fewer micro-batches than the limit"),
        case(3, 1, 2, "one micro-batch"),
        case(1, 4, 2, "one stage"),
        case(8, 20, 5),
    ],
    twin=None,
    drive=drive,
    judge=judge,
    limit=3.0,
    hint="Write a timetable: when does each micro-batch start on stage 0, and when is it where?",
    also_right=[as_if_played, in_groups_that_follow_closely],
    mistakes=[
        Mistake(
            "That is 1F1B, which holds as many as there are stages. What decides how many a stage "
            "holds?",
            lambda stages, micro_batches, limit: one_f_one_b(stages, micro_batches),
        ),
        Mistake(
            "One forward comes on top of those that warm up, before the first backward.",
            warmed_up(lambda stage, stages, limit: min(stages - stage - 1, limit)),
        ),
        Mistake(
            "A stage holds the forwards of its warm-up, and one more.",
            warmed_up(lambda stage, stages, limit: limit),
            test=says("at a time, and"),
        ),
        Mistake(
            "1F1B takes a forward after each backward, also where none can come: it waits for "
            "stage 0, which has no room until the first micro-batch is back. Another backward may "
            "be there before that.",
            warmed_up(lambda stage, stages, limit: min(stages - stage - 1, limit - 1)),
        ),
        Mistake(
            "It lets every group of micro-batches leave before the next one enters, and each time "
            "the stages run empty. After *one* backward there is room for one forward.",
            in_groups,
        ),
        Mistake(
            "A stage waits for a gradient that needs a forward which it has not done, or the other "
            "way around. All stages take the micro-batches in the same order.",
            warmed_up(lambda stage, stages, limit: min(stage, limit - 1)),
            test=says("Deadlock"),
        ),
        Mistake(
            "When does stage 0 have room for the next micro-batch? From that follows when each of "
            "them is on each stage, there and back, and that is an order.",
            warmed_up(lambda stage, stages, limit: 0),
            {"k >= limit": "k > 0"},
            test=says("s are enough"),
        ),
    ],
)
