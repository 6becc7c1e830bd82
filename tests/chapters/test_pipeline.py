"""Chapter 17's schedules without ranks, beside what happens_before.py finds out in another way."""

import itertools
from fractions import Fraction

import pytest
from happens_before import (
    COMPUTES,
    at_random,
    drawn,
    formula,
    in_order,
    is_right,
    paired,
    played,
    times,
)

from ranklab.taught import pipeline as own

STAGES, MICRO_BATCHES, CHUNKS = range(1, 7), range(1, 10), range(1, 4)


def layouts():
    """(name, stages, micro-batches, chunks, schedule) of all that the chapter can make."""
    for p, m in itertools.product(STAGES, MICRO_BATCHES):
        yield "gpipe", p, m, 1, own.gpipe(p, m)
        yield "one_f_one_b", p, m, 1, own.one_f_one_b(p, m)
        yield "zero_bubble", p, m, 1, own.zero_bubble(p, m)
        yield "zero_bubble_2", p, m, 1, own.zero_bubble(p, m, memory=2)
        for v in CHUNKS:
            if m % p == 0 and not (p == 1 and v > 1):
                yield "interleaved", p, m, v, own.interleaved(p, m, v)


ALL = list(layouts())
NAMES = ["gpipe", "one_f_one_b", "interleaved", "zero_bubble", "zero_bubble_2"]


def of(name):
    return [layout[1:] for layout in ALL if layout[0] == name]


# The chapter's schedules


@pytest.mark.parametrize("name", NAMES)
def test_every_micro_batch_passes_every_piece_once_each_way_at_any_depth(name):
    for p, m, v, schedule in of(name):
        full = own.with_messages(schedule)
        assert [[one for one in program if one[0] in COMPUTES] for program in full] == schedule
        for depth in (1, 2, 3, None):
            assert is_right(full, m, v, depth), (p, m, v, depth)
        assert own.size(schedule) == own.size(full) == (p, m, v)


@pytest.mark.parametrize("name", NAMES)
def test_the_checker_accepts_them_with_and_without_messages_and_counts_what_is_held(name):
    rng = drawn(name)
    for p, m, v, schedule in of(name):
        full = own.with_messages(schedule)
        done, most = played(full, rng.choice([1, 2, None]), rng)
        assert len(done) == sum(map(len, full))
        assert own.check_schedule(schedule) == own.check_schedule(full) == most, (p, m, v)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_the_formulas_say_what_the_schedules_do_whatever_the_computations_take(name):
    rng = drawn(name)
    for p, m, v, schedule in of(name):
        if m < p and name in ("interleaved", "zero_bubble"):
            continue
        f, i, w = (Fraction(rng.randint(1, 9), v) for _ in range(3))
        found = times(own.with_messages(schedule), {"F": f, "B": i + w, "I": i, "W": w}, 0, None)
        idle = max(end for _, end in found.values()) - m * v * (f + i + w)
        said = formula(name, p, m, v, f * v, i * v, w * v)
        assert said == (idle, own.check_schedule(schedule)[0]), (p, m, v, f, i, w)


def test_what_the_chapter_says_of_memory():
    for p, m, _, schedule in of("gpipe"):
        assert own.check_schedule(schedule) == [m] * p
    for p, m, _, schedule in of("one_f_one_b"):
        assert own.check_schedule(schedule) == [min(p - stage, m) for stage in range(p)]
    for p, m, _, schedule in of("zero_bubble"):
        assert own.check_schedule(schedule) == [min(p, m)] * p
    for p, m, _, schedule in of("zero_bubble_2"):
        assert own.check_schedule(schedule) == [min(2 * p - 1, m)] * p
    for p, m, v, schedule in of("interleaved"):
        peaks = own.check_schedule(schedule)
        assert peaks == [min((v - 1) * p + 2 * (p - s) - 1, v * m) for s in range(p)]


def test_interleaving_wants_whole_groups_of_micro_batches():
    for p, m, v in itertools.product(STAGES, MICRO_BATCHES, CHUNKS):
        if m % p:
            with pytest.raises(own.ScheduleError, match=rf"{m} micro-batches.*{p}"):
                own.interleaved(p, m, v)


def test_one_chunk_interleaved_takes_as_long_as_1f1b():
    for p, m, v, schedule in of("interleaved"):
        if v == 1:
            ends = [
                max(end for row in own.simulate(own.with_messages(s)) for *_, end in row)
                for s in (schedule, own.one_f_one_b(p, m))
            ]
            assert ends[0] == ends[1]


def test_only_the_first_zero_bubble_is_idle_within_a_stages_own_span():
    for p, m, _, schedule in of("zero_bubble"):
        if m >= p:
            assert own.idle_within(own.simulate(schedule)) == [*reversed(range(p))]
    for p, m, _, schedule in of("zero_bubble_2"):
        if m >= 2 * p - 1:
            assert own.idle_within(own.simulate(schedule)) == [0] * p


@pytest.mark.parametrize("p, v", [*itertools.product(range(2, 7), range(1, 4))])
def test_a_shorter_warm_up_takes_as_long_and_holds_what_1f1b_holds(p, v):
    for m in (p, 2 * p, 4 * p):
        ends, held = [], []
        for each in (1, 2):
            schedule = own.interleaved(p, m, v, each)
            ends.append(own.end_of(own.simulate(schedule)))
            held.append(own.held(schedule[0]))
        assert ends[0] == ends[1]
        assert held == [v * p, min(v * p + p - 1, v * m)]


# The simulation


def simulated(schedule, f, i, w, message):
    return {
        (stage, one): (start, end)
        for stage, row in enumerate(own.simulate(schedule, f, i, w, message))
        for one, start, end in row
    }


def expected_times(schedule, f, i, w, message):
    """Of computations alone, where each receive stands right before what needs it."""
    full = own.with_messages(schedule)
    found = times(full, {"F": f, "B": i + w, "I": i, "W": w}, message, None)
    nodes = {node: full[node[0]][node[1]] for node in found}
    return {(at[0], one): found[at] for at, one in nodes.items() if one[0] in COMPUTES}


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_the_longest_ways_through_the_graph(seed):
    rng = drawn(seed)
    schedule = at_random(rng.randint(1, 4), rng.randint(1, 4), 1 + seed % 2, rng)
    full = own.with_messages(schedule)
    if len(schedule) == 1 or not paired(full) or not in_order(full, None):
        schedule = rng.choice(ALL)[-1]
    f, i, w, message = (Fraction(rng.randint(0, 9)) for _ in range(4))
    assert simulated(schedule, f, i, w, message) == expected_times(schedule, f, i, w, message)


@pytest.mark.parametrize("name", NAMES)
def test_each_stage_may_take_its_own_time(name):
    for p, m, _, schedule in of(name)[::11]:
        slow = [Fraction(1)] * p
        alike = own.simulate(schedule, slow, slow, slow)
        assert alike == own.simulate(schedule, Fraction(1), Fraction(1), Fraction(1))
        slow[-1] = Fraction(3)
        slower = own.end_of(own.simulate(schedule, slow, slow, slow))
        assert slower >= 9 * m and slower > own.end_of(alike)


def test_stages_that_wait_for_each_other_are_told():
    with pytest.raises(own.ScheduleError, match="Deadlock"):
        own.simulate([own.parse("F0 B0 F1 B1"), own.parse("F0 F1 B0 B1")])


def test_it_lists_the_computations_of_each_stage_in_order():
    schedule = own.interleaved(3, 3, 2)
    rows = own.simulate(own.with_messages(schedule))
    assert [[one for one, *_ in row] for row in rows] == schedule


@pytest.mark.parametrize("name", NAMES)
def test_the_share_that_is_idle(name):
    for _, m, v, schedule in of(name)[::7]:
        rows = own.simulate(own.with_messages(schedule), 1, 1, 1)
        whole = max(end for row in rows for *_, end in row)
        assert own.idle_share(rows) == pytest.approx(1 - 3 * m * v / whole)


def test_messages_make_no_share_of_the_work():
    rows = own.simulate(own.gpipe(2, 1), 1, 1, 1, message=2)
    assert own.idle_share(rows) == pytest.approx(1 - 6 / (2 * 10))


# Names


def test_names_are_read_as_they_are_written():
    for *_, schedule in ALL[::5]:
        for program in own.with_messages(schedule):
            short = [one for one in program if one[0] in COMPUTES]
            assert own.parse(" ".join(map(own.name, short))) == short
    assert own.parse("F0 B12 I3.1 W0.2") == [("F", 0, 0), ("B", 12, 0), ("I", 3, 1), ("W", 0, 2)]
    assert own.name(("send activation", 3, 0)) == "send activation 3"
    assert own.name(("receive gradient", 3, 1)) == "receive gradient 3.1"
