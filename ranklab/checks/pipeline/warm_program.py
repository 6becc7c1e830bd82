"""The program of a stage in 1F1B."""

from ranklab.checks.pipeline._written import written
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.pipeline import one_f_one_b

WARM_UP = "min(stages - stage - 1, micro_batches)"
FIRST = 'program.append(("F", k, 0))'
FORWARD = """        if warm_up + k < micro_batches:
            program.append(("F", warm_up + k, 0))
"""
BACKWARD = '        program.append(("B", k, 0))\n'


def with_a_queue(stage, stages, micro_batches):
    """Another forward whenever fewer are under way than there is room for."""
    program, under_way, forwards, backwards = [], 0, 0, 0
    while backwards < micro_batches:
        if forwards < micro_batches and under_way < stages - stage:
            program.append(("F", forwards, 0))
            forwards, under_way = forwards + 1, under_way + 1
        else:
            program.append(("B", backwards, 0))
            backwards, under_way = backwards + 1, under_way - 1
    return program


def sorted_by_time(stage, stages, micro_batches):
    """Forward k in slot 2k, backward k in slot 2k + 2 (stages - stage) - 1; as lists."""
    slots = [(2 * k, ["F", k, 0]) for k in range(micro_batches)]
    slots += [(2 * (k + stages - stage) - 1, ["B", k, 0]) for k in range(micro_batches)]
    return tuple(one for _, one in sorted(slots))


def case(stage, stages, micro_batches, what=""):
    what = what or f"stage {stage} of {stages}, {micro_batches} micro-batches"
    return Case(what, lambda rank, world_size: (stage, stages, micro_batches), ranks=1)


exercise = Exercise(
    cases=[
        case(1, 3, 4),
        case(0, 4, 5),
        case(1, 4, 5),
        case(2, 4, 5),
        case(3, 4, 5),
        case(0, 4, 2, "fewer micro-batches than stages"),
        case(1, 4, 2, "as many micro-batches as forwards to warm up"),
        case(0, 4, 3, "stage 0, as many micro-batches as forwards to warm up"),
        case(0, 1, 3, "a stage alone"),
        case(2, 6, 1, "one micro-batch"),
        case(5, 8, 20),
    ],
    twin=lambda inputs: [written(one_f_one_b(args[1], args[2])[args[0]]) for args in inputs],
    drive=lambda answer, *args: written(answer(*args)),
    limit=3.0,
    hint="Three parts: forwards to warm up; a forward and a backward in turn; the backwards that "
    "are left.",
    also_right=[with_a_queue, sorted_by_time],
    mistakes=[
        Mistake(
            "Is there always a forward left, or a backward? There may be fewer micro-batches than "
            "stages.",
            {
                WARM_UP: "stages - stage - 1",
                FIRST: 'program.append(("F", range(micro_batches)[k], 0))',
            },
            happened="error",
            test=lambda seen: seen.error.startswith("IndexError"),
        ),
        Mistake(
            "There is no such micro-batch. With few of them, there are fewer forwards to warm up.",
            {WARM_UP: "stages - stage - 1"},
        ),
        Mistake("An instruction comes twice in it.", {'("F", warm_up + k, 0)': '("F", k, 0)'}),
        Mistake(
            "All forwards come first: that is GPipe. How many forwards are there before the first "
            "gradient comes back?",
            {WARM_UP: "micro_batches"},
        ),
        Mistake(
            "One forward too many to warm up: the first pair brings one of its own before the "
            "first backward.",
            {"stages - stage - 1": "stages - stage"},
        ),
        Mistake(
            "A forward is missing before the first backward. Behind those that warm up come pairs: "
            "a forward, and then a backward.",
            {FORWARD + BACKWARD: BACKWARD + FORWARD},
            {"stages - stage - 1": "max(0, stages - stage - 2)"},
        ),
        Mistake(
            "Which stage has to wait the longest for the first gradient, the first one or the "
            "last?",
            {"stages - stage - 1": "stage"},
        ),
        Mistake(
            "It stops too early: when all forwards are done, the rest of the backwards is left.",
            {f"range(micro_batches):\n{FORWARD}": f"range(micro_batches - warm_up):\n{FORWARD}"},
        ),
        Mistake(
            "Every micro-batch passes the stage once in each direction; some are missing.",
            {FIRST: "pass"},
            {BACKWARD: ""},
            {FORWARD: ""},
        ),
    ],
)
