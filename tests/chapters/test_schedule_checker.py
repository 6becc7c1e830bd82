"""Chapter 17's checker: what it accepts and refuses, beside what happens_before.py finds out."""

import itertools
import re

import pytest
from happens_before import (
    COMPUTES,
    at_random,
    complete,
    drawn,
    in_order,
    is_right,
    of_links,
    paired,
    played,
)

from ranklab.taught import pipeline as own


def accepts(schedule):
    """(Does the chapter's checker accept it?, what it says.)"""
    try:
        return True, own.check_schedule(schedule)
    except own.ScheduleError as error:
        return False, str(error)


# Any schedule


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_run_by_chance_leaves_is_accepted(seed):
    rng = drawn(seed)
    p, m, v = rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 3)
    v = v if p > 1 else 1
    schedule = at_random(p, m, v, rng)
    assert is_right(schedule, m, v)
    assert accepts(schedule) == (True, played(schedule, 1, rng)[1])


@pytest.mark.parametrize(
    "stages, micro_batches, chunks, instructions",
    [
        (2, 2, 1, "F0 B0 F1 B1"),
        (2, 1, 2, "F0 B0 F0.1 B0.1"),
        (1, 2, 1, "F0 I0 W0 F1 I1 W1"),
        (2, 1, 1, "F0 I0 W0"),
        (3, 1, 1, "F0 B0"),
    ],
)
def test_of_all_orders_it_accepts_the_right_ones(stages, micro_batches, chunks, instructions):
    programs = [list(one) for one in itertools.permutations(own.parse(instructions))]
    verdicts = set()
    for schedule in map(list, itertools.product(programs, repeat=stages)):
        wanted = is_right(own.with_messages(schedule), micro_batches, chunks)
        assert accepts(schedule)[0] == wanted, schedule
        verdicts.add(wanted)
    assert verdicts == {True, False}


# Broken schedules


def dropped(schedule, rng):
    program = rng.choice([one for one in schedule if len(one) > 1])
    program.pop(rng.randrange(len(program)))


def doubled(schedule, rng):
    program = rng.choice(schedule)
    program.insert(rng.randint(0, len(program)), rng.choice(program))


def swapped(schedule, rng):
    program = rng.choice([one for one in schedule if len(one) > 1])
    at = rng.randrange(len(program) - 1)
    program[at : at + 2] = program[at : at + 2][::-1]


def moved(schedule, rng):
    """A message comes earlier or later."""
    program = rng.choice([one for one in schedule if any(kind not in COMPUTES for kind, *_ in one)])
    messages = [at for at, (kind, *_) in enumerate(program) if kind not in COMPUTES]
    one = program.pop(rng.choice(messages))
    program.insert(rng.randint(0, len(program)), one)


def renamed(schedule, rng):
    """An instruction is about another micro-batch or chunk."""
    program = rng.choice(schedule)
    at = rng.randrange(len(program))
    kind, _, chunk = program[at]
    _, m, v = own.size(schedule)
    program[at] = kind, rng.randint(-1, m), rng.choice([chunk, chunk, v, -1])


def reversed_receives(schedule, rng):
    """Two receives of a stage change places."""
    program = rng.choice(schedule)
    receives = [at for at, (kind, *_) in enumerate(program) if kind.startswith("receive")]
    if len(receives) > 1:
        one, two = rng.sample(receives, 2)
        program[one], program[two] = program[two], program[one]


WAYS = [dropped, doubled, swapped, moved, renamed, reversed_receives]


@pytest.mark.parametrize("way", WAYS)
def test_of_broken_schedules_it_refuses_those_that_are_wrong(way):
    rng, refused, accepted = drawn(way.__name__), 0, 0
    for _ in range(100):
        p, m, v = rng.randint(2, 4), rng.randint(1, 4), rng.randint(1, 2)
        made = [own.gpipe(p, m), own.one_f_one_b(p, m), own.zero_bubble(p, m)]
        made += [own.interleaved(p, p, v)]
        schedule = own.with_messages(rng.choice(made)) if rng.random() < 0.5 else None
        schedule = schedule or at_random(p, m, v, rng)
        _, m, v = own.size(schedule)
        way(schedule, rng)
        wanted = is_right(schedule, m, v) if way is not renamed else still_right(schedule)
        accepts_it, said = accepts(schedule)
        assert accepts_it == wanted, (schedule, said)
        refused, accepted = refused + (not wanted), accepted + wanted
        if not wanted:
            assert re.search(r"[Ss]tage \d", said) and said.endswith("."), said
    assert refused > 20
    if way in (dropped, doubled):
        assert accepted == 0


def still_right(schedule):
    """Where the numbers themselves have changed, the largest ones say how many there are."""
    _, m, v = own.size(schedule)
    return is_right(schedule, m, v)


SENTENCES = {
    "an F that is missing": ("F0 B0 F1 B1", "F0 B0 B1", "Stage 1: `B1` needs `F1` before it."),
    "a B that is missing": ("F0 F1 B0 B1", "F0 F1 B0", "Stage 1 does F with micro-batch 1"),
    "nothing of it": ("F0 F1 B0 B1", "F0 B0", "Stage 1 does nothing with micro-batch 1"),
    "twice": ("F0 F0 B0", "F0 B0", "Stage 0: `F0` comes twice."),
    "twice, after a message": ("F0 B0", "F0 F0 B0", "Stage 1: `F0` comes twice."),
    "backward twice": ("F0 B0 B0", "F0 B0", "Stage 0: `B0` comes twice."),
    "no such instruction": ("F0 X0 B0", "F0 B0", "Stage 0 has no use for `X0`."),
    "backward first": ("B0 F0", "F0 B0", "Stage 0: `B0` needs `F0` before it."),
    "W before I": ("F0 W0 I0", "F0 B0", "Stage 0: `W0` needs `I0` before it."),
    "I without W": ("F0 I0", "F0 B0", "Stage 0 does F I with micro-batch 0"),
    "both ways": ("F0 B0 I0 W0", "F0 B0", "Stage 0 does F B I W with micro-batch 0"),
    "forwards in another order": (
        "F0 F1 B0 B1",
        "F1 F0 B0 B1",
        "Stage 1 wants to `receive activation 1`, and the next message on that link is for "
        "`receive activation 0`.",
    ),
    "backwards in another order": (
        "F0 F1 B0 B1",
        "F0 F1 B1 B0",
        "Stage 0 wants to `receive gradient 0`, and the next message on that link is for "
        "`receive gradient 1`.",
    ),
    "who waits for whom": (
        "F0 B0 F1 B1",
        "F0 F1 B0 B1",
        "Deadlock: stage 0 waits for stage 1 in `receive gradient 0`, stage 1 waits for stage 0 in "
        "`receive activation 1`.",
    ),
}


@pytest.mark.parametrize("what", SENTENCES)
def test_it_says_what_is_wrong(what):
    *programs, sentence = SENTENCES[what]
    with pytest.raises(own.ScheduleError, match=re.escape(sentence)):
        own.check_schedule([own.parse(program) for program in programs])


def in_words(*programs):
    """A schedule with messages: "F0, send activation 0"."""
    found = []
    for program in programs:
        found.append([])
        for word in program.split(", "):
            kind, _, number = word.rpartition(" ")
            found[-1] += [(kind, int(number), 0)] if kind else own.parse(word)
    return found


MESSAGES = {
    "both receive first": (
        "receive gradient 0, F0, send activation 0, B0",
        "receive activation 0, F0, B0, send gradient 0",
        "Deadlock: stage 0 waits for stage 1 in `receive gradient 0`, stage 1 waits for stage 0 in "
        "`receive activation 0`.",
    ),
    "sent before it is made": (
        "send activation 0, F0, receive gradient 0, B0",
        "receive activation 0, F0, B0, send gradient 0",
        "Stage 0: `send activation 0` needs `F0` before it.",
    ),
    "received after its use": (
        "F0, send activation 0, receive gradient 0, B0",
        "F0, receive activation 0, B0, send gradient 0",
        "Stage 1: `F0` needs `receive activation 0` before it.",
    ),
    "a gradient that is never sent": (
        "F0, send activation 0, receive gradient 0, B0",
        "receive activation 0, F0, B0",
        "Stage 1 never does `send gradient 0`.",
    ),
    "an activation that nobody takes": (
        "F0, send activation 0, receive gradient 0, B0",
        "receive activation 0, F0, B0, send gradient 0, send activation 0",
        "Stage 1 has no use for `send activation 0`.",
    ),
    "sent twice": (
        "F0, send activation 0, send activation 0, receive gradient 0, B0",
        "receive activation 0, F0, B0, send gradient 0",
        "Stage 0: `send activation 0` comes twice.",
    ),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_it_says_what_is_wrong_with_messages(what):
    *programs, sentence = MESSAGES[what]
    with pytest.raises(own.ScheduleError, match=re.escape(sentence)):
        own.check_schedule(in_words(*programs))


def only_with_deeper_links():
    """A schedule whose links must hold two messages."""
    for seed in itertools.count():
        schedule = at_random(2, 3, 2, drawn(seed), depth=2)
        if not in_order(schedule, 1):
            return schedule


def test_a_schedule_that_needs_deep_queues_is_refused():
    schedule = only_with_deeper_links()
    assert is_right(schedule, 3, 2, depth=2)
    accepts_it, said = accepts(schedule)
    assert not accepts_it and said.startswith("Deadlock: stage ")
    own.play(schedule, depth=2)
    own.play(schedule, depth=None)
    with pytest.raises(own.ScheduleError, match=r"Deadlock.*`send"):
        own.play(schedule, depth=1)


def test_nothing_to_do_and_a_stage_that_would_send_to_itself_are_refused():
    for schedule in ([], [[]], [own.parse("F0 B0"), []]):
        with pytest.raises(own.ScheduleError, match="something to do"):
            own.check_schedule(schedule)
    with pytest.raises(own.ScheduleError, match="to itself"):
        own.check_schedule([own.parse("F0 F0.1 B0.1 B0")])


@pytest.mark.parametrize("one", [("F", -1, 0), ("F", 0, -1), ("send activation", -1, 0)])
def test_there_are_no_numbers_below_0(one):
    for more in ([one], [one, ("B", *one[1:])]):
        with pytest.raises(own.ScheduleError, match=f"Stage 0 .*{re.escape(own.name(one))}"):
            own.check_schedule([own.parse("F0 B0") + more, own.parse("F0 B0")])


def test_the_reference_itself_tells_right_from_wrong():
    right = own.with_messages(own.one_f_one_b(2, 2))
    assert is_right(right, 2) and complete(right, 2, 1) and paired(right)
    assert not is_right(right[::-1], 2)
    assert not is_right([right[0], right[1][:-1]], 2)
    assert len(of_links(right)) == 2
