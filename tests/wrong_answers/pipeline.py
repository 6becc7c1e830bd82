"""Wrong answers to the exercise of chapter 17 on the program of a stage."""

from wrong_answers import wrong


def _in_turn(warm_up, micro_batches):
    """What the book has behind its count of forwards to warm up."""
    program = [("F", k, 0) for k in range(warm_up)]
    for k in range(micro_batches):
        if warm_up + k < micro_batches:
            program.append(("F", warm_up + k, 0))
        program.append(("B", k, 0))
    return program


@wrong("warm_program", says=["F0 F1 F2 B0 F3 B1", "One forward too many to warm up"])
def one_too_many(stage, stages, micro_batches):
    return _in_turn(min(stages - stage, micro_batches), micro_batches)


@wrong("warm_program", says=["has to wait the longest"])
def from_the_other_end(stage, stages, micro_batches):
    return _in_turn(min(stage, micro_batches), micro_batches)


@wrong("warm_program", says=["that is GPipe"])
def all_forwards_first(stage, stages, micro_batches):
    return _in_turn(micro_batches, micro_batches)


@wrong("warm_program", says=["fewer micro-batches than stages", "fewer forwards to warm up"])
def more_than_there_are(stage, stages, micro_batches):
    return _in_turn(stages - stage - 1, micro_batches)


@wrong("warm_program", says=["F0 B0 F1 B1 F2 B2 F3 B3", "a forward, and then a backward"])
def backward_first(stage, stages, micro_batches):
    warm_up = min(stages - stage - 1, micro_batches)
    program = [("F", k, 0) for k in range(warm_up)]
    for k in range(micro_batches):
        program.append(("B", k, 0))
        if warm_up + k < micro_batches:
            program.append(("F", warm_up + k, 0))
    return program


@wrong("warm_program", says=["stops too early", "the rest of the backwards"])
def no_end(stage, stages, micro_batches):
    warm_up = min(stages - stage - 1, micro_batches)
    pairs = [[("F", warm_up + k, 0), ("B", k, 0)] for k in range(micro_batches - warm_up)]
    return [("F", k, 0) for k in range(warm_up)] + [one for pair in pairs for one in pair]


@wrong("warm_program", says=["F0 F1 B0 B1 F2 F3 B2 B3", "in turn"])
def two_by_two(stage, stages, micro_batches):
    program = _in_turn(min(stages - stage - 1, micro_batches), micro_batches)
    return sorted(program, key=lambda one: (one[1] // 2, one[0] == "B"))


@wrong("warm_program", says=["fewer micro-batches than stages", "IndexError"])
def takes_from_lists(stage, stages, micro_batches):
    forwards = [("F", k, 0) for k in range(micro_batches)]
    backwards = [("B", k, 0) for k in range(micro_batches)]
    program = [forwards.pop(0) for _ in range(stages - stage - 1)]
    while backwards:
        program += [forwards.pop(0)] if forwards else []
        program.append(backwards.pop(0))
    return program


@wrong("warm_program", says=["list of instructions", "('F', 0)"])
def without_the_chunk(stage, stages, micro_batches):
    return [one[:2] for one in _in_turn(min(stages - stage - 1, micro_batches), micro_batches)]


@wrong("warm_program", says=["list of instructions", "F0 F1"])
def as_text(stage, stages, micro_batches):
    program = _in_turn(min(stages - stage - 1, micro_batches), micro_batches)
    return " ".join(f"{kind}{k}" for kind, k, _ in program)


@wrong("warm_program", says=["returned nothing"])
def no_return(stage, stages, micro_batches):
    _in_turn(min(stages - stage - 1, micro_batches), micro_batches)


@wrong("warm_program", says=["stage 0 of 4, 5 micro-batches"])
def for_the_case_in_the_text(stage, stages, micro_batches):
    return _in_turn(min(1, micro_batches), micro_batches)
