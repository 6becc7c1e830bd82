"""Wrong answers to the exercise on a limit to memory."""

from wrong_answers import wrong


def _in_turn(warm_up, micro_batches):
    """What the book has behind its count of forwards to warm up."""
    program = [("F", k, 0) for k in range(warm_up)]
    for k in range(micro_batches):
        if warm_up + k < micro_batches:
            program.append(("F", warm_up + k, 0))
        program.append(("B", k, 0))
    return program


@wrong("within_limit", says=["Stage 0 holds 4 activations", "2 is the limit", "That is 1F1B"])
def no_limit(stages, micro_batches, limit):
    return [
        _in_turn(min(stages - stage - 1, micro_batches), micro_batches) for stage in range(stages)
    ]


@wrong("within_limit", says=["Stage 0 holds 3 activations", "One forward comes on top"])
def one_over_the_limit(stages, micro_batches, limit):
    return [
        _in_turn(min(stages - stage - 1, limit, micro_batches), micro_batches)
        for stage in range(stages)
    ]


@wrong("within_limit", says=["s are enough", "the stages run empty"])
def in_groups(stages, micro_batches, limit):
    program = []
    for first in range(0, micro_batches, limit):
        some = range(first, min(first + limit, micro_batches))
        program += [(kind, k, 0) for kind in "FB" for k in some]
    return [program] * stages


@wrong("within_limit", says=["It takes 72 s, and 39 s", "have room for the next micro-batch"])
def one_at_a_time(stages, micro_batches, limit):
    return [_in_turn(0, micro_batches)] * stages


@wrong("within_limit", says=["It takes 51 s, and 39 s", "Another backward may be there"])
def shorter_warm_up(stages, micro_batches, limit):
    return [
        _in_turn(min(stages - stage - 1, limit - 1, micro_batches), micro_batches)
        for stage in range(stages)
    ]


@wrong("within_limit", says=["s are enough", "have room for the next micro-batch"])
def all_warm_up_alike(stages, micro_batches, limit):
    return [_in_turn(min(limit - 1, micro_batches), micro_batches)] * stages


@wrong("within_limit", says=["Deadlock", "waits for a gradient that needs a forward"])
def the_last_stages_first(stages, micro_batches, limit):
    return [
        _in_turn(min(stage, limit - 1, micro_batches), micro_batches) for stage in range(stages)
    ]


@wrong("within_limit", says=["('B', 6, 0) does not belong to stage 0"])
def one_too_many(stages, micro_batches, limit):
    return [_in_turn(0, micro_batches + 1)] * stages


@wrong("within_limit", says=["should have a program for each of 4, and has 3"])
def a_stage_too_few(stages, micro_batches, limit):
    return [_in_turn(0, micro_batches)] * (stages - 1)


@wrong("within_limit", says=["A schedule is a list of programs"])
def one_long_program(stages, micro_batches, limit):
    return _in_turn(min(stages, limit) - 1, micro_batches)


@wrong("within_limit", says=["A schedule is a list of programs"])
def a_dict(stages, micro_batches, limit):
    return {stage: _in_turn(min(stages - stage, limit) - 1, micro_batches) for stage in [0]}


@wrong("within_limit", says=["is missing on stage 0"])
def forgets_the_rest(stages, micro_batches, limit):
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage, limit) - 1
        program = _in_turn(warm_up, micro_batches)
        schedule.append(program[: len(program) - warm_up])
    return schedule
