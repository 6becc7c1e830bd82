"""Exercises of chapter 17 on 1F1B: what more micro-batches cost, and one stage's program."""

from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Choice, Exercise, Hint
from ranklab.taught.pipeline import alternating, name, one_f_one_b

twice_as_many = Choice(
    "twice_as_many",
    right="a",
    why={
        "b": "The bubble is right. Stage 0 holds 4 micro-batches before and after, but how many "
        "samples is that?",
        "c": "The memory is right. A stage waits for three forwards and three backwards, and each "
        "of them is half as long now.",
        "d": "That is GPipe, whose stages hold all micro-batches, and even there they are half as "
        "large. In 1F1B stage 0 begins with its backwards as soon as the first gradient is back.",
    },
    because="3/11 of the time was idle, and 3/19 is. Stage 0 holds 4 micro-batches, as many as "
    "there are stages, and each of them is half as large.",
)


# warm_program ----------------------------------------------------------------------------------


def _wanted(seen):
    stage, stages, micro_batches = seen.inputs[0]
    return one_f_one_b(stages, micro_batches)[stage]


def instructions(program):
    """A program as a list of tuples; raises where it is none."""
    found = [(kind, micro_batch, chunk) for kind, micro_batch, chunk in program]
    if not all(isinstance(kind, str) for kind, *_ in found):
        raise TypeError
    return found


def no_list(what, got):
    """What is said of an answer that is not `what`, "A program is a list of"."""
    returned = "nothing (None)" if got is None else repr(got)
    return f'{what} instructions, such as ("F", 0, 0); it returned {returned:.80}.'


def _judge_warm(seen):
    got, wanted = seen.results[0], _wanted(seen)
    try:
        if instructions(got) == wanted:
            return None
        said = " ".join(map(name, instructions(got))) or "(nothing)"
    except (TypeError, ValueError):
        return no_list("A program is a list of", got)
    called = f"warm_program({', '.join(map(str, seen.inputs[0]))})"
    return f"{called}\n    expected: {' '.join(map(name, wanted))}\n    got:      {said}"


def _as_if_warm(warm_up):
    """Is it a program with another number of forwards to warm up?"""

    def test(seen):
        stage, stages, micro_batches = seen.inputs[0]
        fs, bs = ([(kind, k, 0) for k in range(micro_batches)] for kind in "FB")
        made = alternating(fs, bs, max(0, warm_up(stage, stages, micro_batches)))
        return instructions(seen.results[0]) == made != _wanted(seen)

    return test


def _gone(seen, kind):
    """Are some micro-batches missing in one direction?"""
    there = {k for what, k, _ in seen.results[0] if what == kind}
    return len(there) < seen.inputs[0][2]


def _of_stage(stage, stages, micro_batches, what=""):
    what = what or f"stage {stage} of {stages}, {micro_batches} micro-batches"
    return Case(what, lambda rank, world_size: (stage, stages, micro_batches), ranks=1)


warm_program = Exercise(
    "warm_program",
    cases=[
        _of_stage(1, 3, 4),
        _of_stage(0, 4, 5),
        _of_stage(1, 4, 5),
        _of_stage(2, 4, 5),
        _of_stage(3, 4, 5),
        _of_stage(0, 4, 2, "fewer micro-batches than stages"),
        _of_stage(1, 4, 2, "as many micro-batches as forwards to warm up"),
        _of_stage(0, 4, 3, "stage 0, as many micro-batches as forwards to warm up"),
        _of_stage(0, 1, 3, "a stage alone"),
        _of_stage(2, 6, 1, "one micro-batch"),
        _of_stage(5, 8, 20),
    ],
    expected=None,
    judge=_judge_warm,
    limit=3.0,
    hints=[
        called_as("warm_program(stage, stages, micro_batches)"),
        Hint(
            lambda seen: seen.error.startswith("IndexError"),
            "Is there always a forward left, or a backward? There may be fewer micro-batches than "
            "stages.",
            when=("error",),
        ),
        Hint(
            lambda seen: any(not 0 <= k < seen.inputs[0][2] for _, k, _ in seen.results[0]),
            "There is no such micro-batch. With few of them, there are fewer forwards to warm up.",
        ),
        Hint(
            lambda seen: len(set(seen.results[0])) < len(seen.results[0]),
            "An instruction comes twice in it.",
        ),
        Hint(
            _as_if_warm(lambda stage, stages, m: m),
            "All forwards come first: that is GPipe. How many forwards are there before the first "
            "gradient comes back?",
        ),
        Hint(
            _as_if_warm(lambda stage, stages, m: stages - stage),
            "One forward too many to warm up: the first pair brings one of its own before the "
            "first backward.",
        ),
        Hint(
            _as_if_warm(lambda stage, stages, m: min(stages - stage - 1, m) - 1),
            "A forward is missing before the first backward. Behind those that warm up come pairs: "
            "a forward, and then a backward.",
        ),
        Hint(
            _as_if_warm(lambda stage, stages, m: stage),
            "Which stage has to wait the longest for the first gradient, the first one or the "
            "last?",
        ),
        Hint(
            lambda seen: (
                instructions(seen.results[0]) == _wanted(seen)[: len(seen.results[0])]
                and len(seen.results[0]) < len(_wanted(seen))
            ),
            "It stops too early: when all forwards are done, the rest of the backwards is left.",
        ),
        Hint(
            lambda seen: _gone(seen, "F") or _gone(seen, "B"),
            "Every micro-batch passes the stage once in each direction; some are missing.",
        ),
    ],
    hint="Three parts: forwards to warm up; a forward and a backward in turn; the backwards that "
    "are left.",
)
