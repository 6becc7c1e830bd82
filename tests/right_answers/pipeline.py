"""Right answers to the exercise of chapter 17 on the program of a stage."""

from right_answers import right


@right("warm_program")
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


@right("warm_program")
def sorted_by_time(stage, stages, micro_batches):
    """Forward k in slot 2k, backward k in slot 2k + 2 (stages - stage) - 1; as lists."""
    slots = [(2 * k, ["F", k, 0]) for k in range(micro_batches)]
    slots += [(2 * (k + stages - stage) - 1, ["B", k, 0]) for k in range(micro_batches)]
    return tuple(one for _, one in sorted(slots))
