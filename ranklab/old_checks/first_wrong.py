"""The exercise of chapter 17 on one stage's program: what is impossible in it."""

import random
from numbers import Integral

from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint
from ranklab.taught.pipeline import name, parse

NEEDS = {"B": "F", "I": "F", "W": "I"}
ENDS = {"B": "I", "I": "B"}  # one of the two uses up the activations


def _first_wrong(program, needs=NEEDS, ends=ENDS, twice=True, chunks=True):
    """The index of the first that is impossible, or None; the rules can be left out."""
    done = set()
    for at, (kind, micro_batch, chunk) in enumerate(program):
        which = micro_batch, chunk if chunks else 0
        lacks = kind in needs and (needs[kind], which) not in done
        if lacks or (ends.get(kind), which) in done or (twice and (kind, which) in done):
            return at
        done.add((kind, which))
    return None


def _by_counting(program):
    """Is there an activation left? Nothing else is asked."""
    holds = 0
    for at, (kind, *_) in enumerate(program):
        holds += {"F": 1, "B": -1, "I": 0, "W": -1}[kind]
        if holds < 0:
            return at
    return None


def _broken(seed):
    """A program with one instruction changed, dropped or doubled, or none at all."""
    rng = random.Random(seed)
    left = [(("F", k, c), *back) for k in range(3) for c in range(2) for back in [_back(rng, k, c)]]
    program = []
    while left := [rest for rest in left if rest]:
        at = rng.randrange(len(left))
        program.append(left[at][0])
        left[at] = left[at][1:]
    at = rng.randrange(len(program))
    changed = (rng.choice("FBIW"), rng.randrange(3), rng.randrange(2))
    changes = [[], [changed], [program[at], changed], [program[at]]]
    return [*program[:at], *changes[seed % 4], *program[at + 1 :]]


def _back(rng, k, c):
    return rng.choice([(("B", k, c),), (("I", k, c), ("W", k, c))])


def _program(what, *texts):
    return Case(what, lambda rank, world_size: ([parse(text) for text in texts],), ranks=1)


def _first_of_each(answer, programs):
    return [answer(program) for program in programs]


def _wrong_one(seen):
    """(program, what was returned, what is right) of the first program with a wrong answer."""
    for program, got in zip(seen.inputs[0][0], seen.results[0]):
        want = _first_wrong(program)
        if got is not None and (isinstance(got, bool) or not isinstance(got, Integral)):
            return program, got, want
        if got != want:
            return program, got, want
    return None


def _is_unfinished(program, at):
    """Is instruction `at` one that just has nothing behind it?"""
    kind, *which = program[at]
    later = {"F": {("B", *which), ("W", *which)}, "I": {("W", *which)}}.get(kind, set(program))
    return at != _first_wrong(program) and not later & set(program)


def _judge_first(seen):
    if not (found := _wrong_one(seen)):
        return None
    program, got, want = found
    written = " ".join(map(name, program)) or "(nothing)"
    is_so = "nothing in it is impossible: None is expected"
    if want is not None:
        is_so = f"{name(program[want])} is the first that is impossible: {want} is expected"
    return f"Of the program {written}\n{is_so}, and it returned {got!r:.60}."


def _as_if_first(**rules):
    """Is that what comes out with other rules?"""

    def test(seen):
        program, got, want = _wrong_one(seen)
        return got == _first_wrong(program, **rules) != want and not isinstance(got, bool)

    return test


def _returned(test):
    return lambda seen: test(*_wrong_one(seen))


first_wrong = Exercise(
    "first_wrong",
    cases=[
        _program("a backward before its forward", "F0 B1 F1"),
        _program("nothing is wrong", "F0 F1 B0 F2 B1 B2"),
        _program("nothing in it", ""),
        _program("not finished", "F0 F1 B1 F2"),
        _program("a forward twice, a backward twice", "F0 F0 B0", "F0 B0 B0", "F0 F0 B0 B0"),
        _program("two chunks", "F0 F0.1 B0.1 B0", "F0 B0.1 F0.1", "F1.1 F0 B1.1 B1"),
        _program("in two parts", "F0 I0 W0", "F0 F1 I1 I0 W0 W1"),
        _program("weights too early", "W0 F0 I0", "F0 W0 I0", "F0 F1 I0 W1", "F0 F0.1 I0.1 W0"),
        _program("in two parts and whole", "F0 I0 B0", "F0 B0 I0 W0", "F0 I0 W0 B0", "F0 B0 W0"),
        _program("a part twice", "F0 F1 I0 I0", "F0 F1 I0 W0 W0"),
        Case(
            "200 programs by chance",
            lambda rank, world_size: ([_broken(seed) for seed in range(200)],),
            ranks=1,
        ),
    ],
    expected=None,
    drive=_first_of_each,
    judge=_judge_first,
    limit=3.0,
    hints=[
        called_as("first_wrong(program)"),
        Hint(lambda seen: True, "Keep what was done in a set of your own.", when=("changed",)),
        Hint(
            _returned(lambda program, got, want: isinstance(got, (tuple, str, bool, list))),
            "Asked for is the place in the list, an int: `enumerate` counts along.",
        ),
        Hint(
            _returned(lambda program, got, want: want is None and got == -1),
            "Where nothing is wrong, it is None.",
        ),
        Hint(
            _returned(lambda program, got, want: want is not None and got == want + 1),
            "The first instruction has the number 0.",
        ),
        Hint(
            _returned(lambda program, got, want: _is_unfinished(program, got)),
            "What has not been done yet may still come: an unfinished program is not wrong.",
        ),
        Hint(
            _as_if_first(twice=False),
            "No instruction may come a second time.",
        ),
        Hint(
            _as_if_first(chunks=False),
            "The same micro-batch in another chunk is another thing: it has its own forward, and "
            "its own backward.",
        ),
        Hint(
            _as_if_first(needs=NEEDS | {"W": "F"}),
            "The gradients of the weights need what I leaves behind: a forward is not enough.",
        ),
        Hint(_as_if_first(needs={"B": "F", "I": "F"}), "Of W, too: what needs it before it?"),
        Hint(_as_if_first(needs={"B": "F", "W": "I"}), "I needs a forward, as B does."),
        Hint(
            _as_if_first(ends={}),
            "The activations are gone after one backward, be it B, or I and W.",
        ),
        Hint(
            _returned(lambda program, got, want: got == _by_counting(program)),
            "It is not enough that *some* activation is there: it has to be that of the same "
            "micro-batch and chunk.",
        ),
        Hint(
            _returned(lambda program, got, want: want is not None and (got or -1) > want),
            "Something before that is impossible. It is the first one that is asked for.",
        ),
    ],
    hint="Go through the program with a set of what was done. What must be in it, and what must "
    "not, before F, B, I and W?",
)
