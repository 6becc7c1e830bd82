"""Right answers to the exercise on an impossible program."""

from right_answers import right


@right("first_wrong")
def as_states(program):
    """What was done with a micro-batch in a chunk, as a word; only these can be begun."""
    words = {}
    for index, (kind, micro_batch, chunk) in enumerate(program):
        word = words.get((micro_batch, chunk), "") + kind
        if word not in ("F", "FB", "FI", "FIW"):
            return index
        words[micro_batch, chunk] = word


@right("first_wrong")
def by_looking_back(program):
    def possible(index):
        kind, *which = program[index]
        before = "".join(k for k, *other in program[:index] if other == which)
        return before == {"F": "", "B": "F", "I": "F", "W": "FI"}[kind]

    return next((index for index in range(len(program)) if not possible(index)), None)
