"""The first instruction of a program that is impossible."""

import random

from ranklab.checks.pipeline._written import written
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.pipeline import parse

EACH = "for index, (kind, *which) in enumerate(program):"
MUST_NOT = 'must_not = {"F": ["F"], "B": ["B", "I"], "I": ["B", "I"], "W": ["W"]}'
LACKS = "done for other in must):\n            return index"
IS_GONE = "done for other in must_not[kind]):\n            return index"


def drive(answer, programs):
    return {written(program) or "(nothing)": answer(program) for program in programs}


def as_states(program):
    """What was done with a micro-batch in a chunk, as a word; only these can be begun."""
    words = {}
    for index, (kind, micro_batch, chunk) in enumerate(program):
        word = words.get((micro_batch, chunk), "") + kind
        if word not in ("F", "FB", "FI", "FIW"):
            return index
        words[micro_batch, chunk] = word


def by_looking_back(program):
    def possible(index):
        kind, *which = program[index]
        before = "".join(k for k, *other in program[:index] if other == which)
        return before == {"F": "", "B": "F", "I": "F", "W": "FI"}[kind]

    return next((index for index in range(len(program)) if not possible(index)), None)


def wants_it_finished(program):
    for index, (kind, *which) in enumerate(program):
        if kind in "BI" and ("F", *which) not in program[:index]:
            return index
        if kind == "F" and not {("B", *which), ("W", *which)} & set(program):
            return index


def counts_activations(program):
    holds = 0
    for index, (kind, *_) in enumerate(program):
        holds += {"F": 1, "B": -1, "I": 0, "W": -1}[kind]
        if holds < 0:
            return index


def broken(seed):
    """A program with one instruction changed, dropped or doubled, or none at all."""
    rng = random.Random(seed)
    left = []
    for which in [(k, c) for k in range(3) for c in range(2)]:
        left.append([(kind, *which) for kind in rng.choice(["FB", "FIW"])])
    program = []
    while left := [rest for rest in left if rest]:
        program.append(rng.choice(left).pop(0))
    at = rng.randrange(len(program))
    changed = (rng.choice("FBIW"), rng.randrange(3), rng.randrange(2))
    changes = [[], [changed], [program[at], changed], [program[at]]]
    return [*program[:at], *changes[seed % 4], *program[at + 1 :]]


def case(what, *programs):
    def make(rank, world_size):
        return ([parse(one) if isinstance(one, str) else one for one in programs],)

    return Case(what, make, ranks=1)


exercise = Exercise(
    cases=[
        case("a backward before its forward", "F0 B1 F1"),
        case("nothing is wrong", "F0 F1 B0 F2 B1 B2"),
        case("nothing in it", ""),
        case("not finished", "F0 F1 B1 F2"),
        case("a forward twice, a backward twice", "F0 F0 B0", "F0 B0 B0", "F0 F0 B0 B0"),
        case("two chunks", "F0 F0.1 B0.1 B0", "F0 B0.1 F0.1", "F1.1 F0 B1.1 B1"),
        case("in two parts", "F0 I0 W0", "F0 F1 I1 I0 W0 W1"),
        case("weights too early", "W0 F0 I0", "F0 W0 I0", "F0 F1 I0 W1", "F0 F0.1 I0.1 W0"),
        case("in two parts and whole", "F0 I0 B0", "F0 B0 I0 W0", "F0 I0 W0 B0", "F0 B0 W0"),
        case("a part twice", "F0 F1 I0 I0", "F0 F1 I0 W0 W0"),
        case("200 programs by chance", *map(broken, range(200))),
    ],
    twin=lambda inputs: [drive(as_states, *args) for args in inputs],
    drive=drive,
    limit=3.0,
    hint="Go through the program with a set of what was done. What must be in it, and what must "
    "not, before F, B, I and W?",
    also_right=[as_states, by_looking_back],
    mistakes=[
        Mistake(
            "Keep what was done in a set of your own.",
            {EACH: "for index in range(len(program)):\n        kind, *which = program.pop(0)"},
            happened="changed",
        ),
        Mistake(
            "Asked for is the place in the list, an int: `enumerate` counts along.",
            {LACKS: LACKS.replace("index", "program[index]")},
            {LACKS: LACKS.replace("index", "True")},
            test=lambda seen: any(
                isinstance(one, tuple | str | bool | list) for one in seen.results[0].values()
            ),
        ),
        Mistake("Where nothing is wrong, it is None.", {"return None": "return -1"}),
        Mistake(
            "The first instruction has the number 0.",
            {"enumerate(program)": "enumerate(program, 1)"},
        ),
        Mistake(
            "What has not been done yet may still come: an unfinished program is not wrong.",
            wants_it_finished,
        ),
        Mistake(
            "It is not enough that *some* activation is there: it has to be that of the same "
            "micro-batch and chunk.",
            counts_activations,
        ),
        Mistake(
            "No instruction may come a second time.",
            {MUST_NOT: 'must_not = {"F": [], "B": ["I"], "I": ["B"], "W": []}'},
        ),
        Mistake(
            "The same micro-batch in another chunk is another thing: it has its own forward, and "
            "its own backward.",
            {EACH: f"{EACH}\n        which = which[:1]"},
        ),
        Mistake(
            "B and I need a forward before them, and W needs I.",
            {'"B": ["F"], "I": ["F"], "W": ["I"]': '"B": [], "I": [], "W": []'},
        ),
        Mistake(
            "The gradients of the weights need what I leaves behind: a forward is not enough.",
            {'"W": ["I"]': '"W": ["F"]'},
        ),
        Mistake("Of W, too: what needs it before it?", {'"W": ["I"]': '"W": []'}),
        Mistake("I needs a forward, as B does.", {'"I": ["F"]': '"I": []'}),
        Mistake(
            "The activations are gone after one backward, be it B, or I and W.",
            {MUST_NOT: 'must_not = {"F": ["F"], "B": ["B"], "I": ["I"], "W": ["W"]}'},
        ),
        Mistake(
            "Something before that is impossible. It is the first one that is asked for.",
            {
                "done = set()": "done, found = set(), None",
                LACKS: LACKS.replace("return index", "found = index"),
                IS_GONE: IS_GONE.replace("return index", "found = index"),
                "return None": "return found",
            },
        ),
    ],
)
