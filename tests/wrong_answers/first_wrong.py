"""Wrong answers to the exercise on an impossible program."""

from wrong_answers import wrong


def _with(must, must_not, chunks=True):
    """The chapter's answer with other rules."""

    def first_wrong(program):
        done = set()
        for index, (kind, *which) in enumerate(program):
            which = which if chunks else which[:1]
            if not all((other, *which) in done for other in must[kind]):
                return index
            if any((other, *which) in done for other in must_not[kind]):
                return index
            done.add((kind, *which))
        return None

    return (first_wrong,)


MUST = {"F": [], "B": ["F"], "I": ["F"], "W": ["I"]}
MUST_NOT = {"F": ["F"], "B": ["B", "I"], "I": ["B", "I"], "W": ["W"]}
NONE = dict.fromkeys("FBIW", ())


def _wrong(*says):
    return wrong("first_wrong", says=says, several=True)


@_wrong("a forward twice", "F0 is the first that is impossible", "No instruction may come a second")
def what_comes_twice():
    return _with(MUST, {"F": [], "B": ["I"], "I": ["B"], "W": []})


@_wrong("two chunks", "in another chunk is another thing")
def chunks_are_alike():
    return _with(MUST, MUST_NOT, chunks=False)


@_wrong("weights too early", "need what I leaves behind")
def weights_after_a_forward():
    return _with(MUST | {"W": ["F"]}, MUST_NOT)


@_wrong("weights too early", "Of W, too")
def weights_at_any_time():
    return _with(MUST | {"W": []}, MUST_NOT)


@_wrong("200 programs by chance", "I needs a forward")
def input_at_any_time():
    return _with(MUST | {"I": []}, MUST_NOT)


@_wrong("in two parts and whole", "The activations are gone after one backward")
def both_backwards():
    return _with(MUST, {"F": ["F"], "B": ["B"], "I": ["I"], "W": ["W"]})


@_wrong("a backward before its forward", "B1 is the first", "it returned None")
def only_what_comes_twice():
    return _with(NONE, MUST_NOT)


@wrong("first_wrong", says=["it returned 0", "may still come"])
def wants_it_finished(program):
    for index, (kind, *which) in enumerate(program):
        if kind in "BI" and ("F", *which) not in program[:index]:
            return index
        if kind == "F" and not {("B", *which), ("W", *which)} & set(program):
            return index
    return None


@wrong("first_wrong", says=["it returned ('B', 1, 0)", "the place in the list"])
def the_instruction_itself(program):
    done = set()
    for kind, *which in program:
        if kind != "F" and ("F", *which) not in done:
            return (kind, *which)
        done.add((kind, *which))


@wrong("first_wrong", says=["1 is expected", "it returned 2", "has the number 0"])
def counted_from_one(program):
    done = set()
    for number, (kind, *which) in enumerate(program, 1):
        if kind != "F" and ("F", *which) not in done:
            return number
        done.add((kind, *which))


@wrong("first_wrong", says=["nothing is wrong", "it returned -1", "it is None"])
def minus_one(program):
    done = set()
    for index, (kind, *which) in enumerate(program):
        if kind != "F" and ("F", *which) not in done:
            return index
        done.add((kind, *which))
    return -1


@wrong("first_wrong", says=["it returned None", "that of the same"])
def counts_activations(program):
    holds = 0
    for index, (kind, *_) in enumerate(program):
        holds += {"F": 1, "B": -1, "I": 0, "W": -1}[kind]
        if holds < 0:
            return index
    return None


@wrong("first_wrong", says=["a backward twice", "the first one that is asked for"])
def the_last_that_is_wrong(program):
    found, done = None, set()
    for index, (kind, *which) in enumerate(program):
        lacks = any((other, *which) not in done for other in MUST[kind])
        if lacks or any((other, *which) in done for other in MUST_NOT[kind]):
            found = index
        done.add((kind, *which))
    return found


@wrong("first_wrong", says=["It changed", "a set of your own"])
def takes_them_away(program):
    done, index = set(), 0
    while program:
        kind, *which = program.pop(0)
        if kind != "F" and ("F", *which) not in done:
            return index
        done.add((kind, *which))
        index += 1
