"""Views of traces that are made up: whatever their size, and whatever is missing."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib.pyplot as plt
import pytest
from tiers import few

from ranklab import messages, save, timeline, traffic
from ranklab.traces import clocks
from ranklab.traces.communication import collective_calls
from ranklab.traces.data import Clock, Event, Trace, TraceError, duration, size
from ranklab.traces.headings import regions
from ranklab.traces.matching import match, meetings
from ranklab.traces.space_time import thinned
from ranklab.traces.timeline import per_slice
from ranklab.traces.traffic import would_send
from ranklab.traces.waiting import length, union, waiting_share, waits, without
from ranklab.upstream.profiler import Raw

HERE = Clock("host", "boot")


def made_up(rank, events, n=2, end=1000, clock=HERE):
    events = sorted(events, key=lambda event: event.start)
    return Trace(rank, n, events, 0, end, clock)


def send(start, to, nbytes=8, tag=0, group=(0, 1), end=None, **more):
    end = start + 1 if end is None else end
    return Event("send", "send", start, end, nbytes, "int8", to, tag, group, **more)


def recv(start, end, source, nbytes=8, tag=0, group=(0, 1), **more):
    return Event("recv", "recv", start, end, nbytes, "int8", source, tag, group, **more)


def collective(name, start, end, group=(0, 1), root=None, nbytes=8):
    return Event("collective", name, start, end, nbytes, peer=root, group=group)


def ring(n, rounds):
    """A ring of messages among n ranks: `rounds` for each."""
    group = tuple(range(n))
    traces = []
    for r in range(n):
        events = []
        for k in range(rounds):
            at = 1000 * k + 7 * r
            events.append(Event("op", "aten::mm", at, at + 300))
            events.append(send(at + 300, (r + 1) % n, group=group))
            events.append(recv(at + 310, at + 900, (r - 1) % n, group=group))
        traces.append(made_up(r, events, n, end=1000 * rounds))
    return traces


def ends(found):
    return [
        (m.src, m.send.start if m.send else None, m.recv.end if m.recv else None) for m in found
    ]


# Matching


def test_order_within_a_pair_group_and_tag():
    a = made_up(0, [send(10, 1), send(20, 1, tag=1), send(30, 1), send(40, 1, group=(0, 1, 2))])
    b = made_up(
        1,
        [recv(5, 50, 0, tag=1), recv(51, 60, 0), recv(61, 70, 0), recv(1, 71, 0, group=(0, 1, 2))],
    )
    assert ends(match([a, b])) == [(0, 10, 60), (0, 20, 50), (0, 30, 70), (0, 40, 71)]


def test_a_message_sent_before_the_trace_began_is_not_given_to_the_next_send():
    a = made_up(0, [send(100, 1), send(200, 1)])
    b = made_up(1, [recv(10, 20, 0), recv(90, 120, 0), recv(190, 220, 0)])
    found = match([a, b])
    assert ends(found) == [(0, None, 20), (0, 100, 120), (0, 200, 220)]
    assert found[0].why == "sent outside of the trace"


def test_sizes_tell_where_a_row_begins():
    a = made_up(0, [send(1, 1, 8), send(2, 1, 16), send(3, 1, 32)])
    b = made_up(1, [recv(10, 20, 0, 16), recv(21, 30, 0, 32)])
    found = match([a, b])
    assert ends(found) == [(0, 1, None), (0, 2, 20), (0, 3, 30)]
    assert found[0].why == "never received"


def test_boxes_larger_than_their_messages_do_not_move_the_row_on():
    a = made_up(0, [send(1, 1, 4, end=30), send(2, 1, 8, end=30)])
    b = made_up(1, [recv(3, 20, 0, 8), recv(21, 30, 0, 8)])
    assert ends(match([a, b])) == [(0, 1, 20), (0, 2, 30)]
    assert traffic([a, b])[1].received_bytes == 12


def test_a_message_leaves_when_its_sender_need_not_wait_any_more():
    a, b = made_up(0, [send(100, 1, end=420)]), made_up(1, [recv(300, 500, 0)])
    assert match([a, b])[0].left == 300
    a = made_up(0, [send(100, 1, end=101)])  # it did not wait for the receiver
    assert match([a, b])[0].left == 100
    a = made_up(0, [send(400, 1, end=420)])
    assert match([a, b])[0].left == 400


def test_a_message_may_be_smaller_than_its_box_but_not_larger():
    a, b = made_up(0, [send(1, 1, 8)]), made_up(1, [recv(2, 20, 0, 16)])
    assert match([a, b])[0].matched
    assert traffic([a, b])[1].received_bytes == 8
    a = made_up(0, [send(1, 1, 32)])
    assert not any(m.matched for m in match([a, b]))


def test_a_receive_from_anyone_takes_what_was_sent_first():
    group = (0, 1, 2)
    a = made_up(0, [send(30, 2, group=group)], 3)
    b = made_up(1, [send(10, 2, group=group)], 3)
    c = made_up(2, [recv(5, 40, None, group=group), recv(41, 60, None, group=group)], 3)
    found = match([a, b, c])
    assert ends(found) == [(1, 10, 40), (0, 30, 60)]
    assert [m.guessed for m in found] == [True, False]
    assert "is a guess" in messages([a, b, c]).alt


def test_a_directed_receive_after_one_from_anyone_gets_the_next_message():
    a = made_up(0, [send(10, 1), send(20, 1)])
    b = made_up(1, [recv(5, 30, None), recv(31, 40, 0)])
    assert ends(match([a, b])) == [(0, 10, 30), (0, 20, 40)]


def test_ends_that_nobody_traced():
    b = made_up(1, [recv(2, 20, 0), send(30, 0)])
    assert [m.why for m in match([b])] == [
        "its sender was not traced",
        "its receiver was not traced",
    ]


# Collectives in flight together


def in_flight(begun, flown):
    """Two all-reduces of 4 and 8 bytes; begun: when the backend begins each."""

    def raw(name, start, nbytes, thread, backend=""):
        return Raw(name, start, 90, thread, True, 0, [], nbytes, "float32", (), False, backend)

    calls = [raw("c10d::allreduce_", start, None, 1) for start in (0, 2)]
    backend = [raw("gloo:all_reduce", at, 4 * k, 2, "all_reduce") for k, at in enumerate(begun, 1)]
    backend.sort(key=lambda event: event.start)
    return collective_calls(calls, backend, lambda call: (0, 1), flown)


def test_the_record_tells_which_of_several_is_which():
    found = in_flight((11, 10), lambda: [("all_reduce", 4), ("all_reduce", 8)])
    assert [(e.nbytes, e.doubtful) for e in found] == [(4, False), (8, False)]
    found = in_flight((11, 10), lambda: [("all_reduce", 8)])  # the first one is not kept any more
    assert [(e.nbytes, e.doubtful) for e in found] == [(4, True), (8, False)]
    found = in_flight((10, 11), list)
    assert [e.doubtful for e in found] == [True, True]


def test_the_record_is_not_asked_where_there_is_no_doubt():
    found = in_flight((1, 3), lambda: 1 / 0)
    assert [(e.nbytes, e.doubtful) for e in found] == [(4, False), (8, False)]


# Waiting


def test_who_waits_for_a_message():
    a = made_up(0, [send(400, 1, end=420)])
    b = made_up(1, [recv(100, 500, 0)])
    assert waits([a, b]) == {0: [], 1: [(100, 400)]}
    a = made_up(0, [send(100, 1, end=420)])  # a large one: it does not leave before it is awaited
    b = made_up(1, [recv(300, 500, 0)])
    assert waits([a, b]) == {0: [(100, 300)], 1: []}


def test_who_waits_in_a_collective():
    def both(name, root=None):
        a = made_up(0, [collective(name, 100, 500, root=root)])
        b = made_up(1, [collective(name, 300, 500, root=root)])
        return waits([a, b])

    assert both("all_reduce") == {0: [(100, 300)], 1: []}
    assert both("broadcast", root=0) == {0: [], 1: []}
    assert both("broadcast", root=1) == {0: [(100, 300)], 1: []}
    assert both("reduce", root=0) == {0: [(100, 300)], 1: []}
    assert both("gather", root=1) == {0: [], 1: []}


def test_collectives_are_put_together_from_the_end_if_a_trace_began_later():
    a = made_up(0, [collective("all_reduce", 10, 20), collective("all_reduce", 100, 120)])
    b = made_up(1, [collective("all_reduce", 90, 120)])
    (events,) = meetings([a, b])
    assert events[0].start == 100
    other = made_up(1, [collective("barrier", 90, 120)])
    assert meetings([a, other]) == []


def test_waiting_while_computing_is_not_waiting():
    a = made_up(0, [send(600, 1)])
    b = made_up(1, [recv(0, 700, 0), Event("op", "aten::mm", 100, 400)])
    # What began at 100 shows that the receive was only posted: nobody waited before.
    assert waiting_share([a, b])[1] == pytest.approx(0.2)
    assert "rank 1 waits 20 % of the time" in timeline([a, b]).alt


def test_intervals():
    assert union([(5, 7), (1, 3), (2, 4)]) == [(1, 4), (5, 7)]
    assert without([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)]) == [(0, 2), (3, 8), (22, 29)]
    assert without([(0, 10), (5, 8)], []) == [(0, 10), (5, 8)]
    assert length([(0, 2), (5, 6)]) == 3


def test_shares_of_slices_of_time():
    edges = [0, 10, 20, 40]
    assert per_slice([(0, 5), (8, 12), (25, 40)], edges) == [0.7, 0.2, 0.75]
    assert per_slice([(-5, 50)], edges) == [1, 1, 1]
    assert per_slice([], edges) == [0, 0, 0]


# Traffic


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_formulas_agree_with_who_must_get_what(n):
    """A root's data must reach n-1 ranks: that many copies travel in all, whatever the tree."""
    group = tuple(range(n))

    def total(name, root):
        event = collective(name, 0, 1, group, root)
        return sum(would_send(event, r, name, 8 * n) for r in group)

    assert total("broadcast", n - 1) == (n - 1) * 8 * n
    assert total("gather", 1) == (n - 1) * 8 * n
    assert total("scatter", 1) == pytest.approx((n - 1) * 8)
    assert total("all_reduce", None) == pytest.approx(2 * (n - 1) * 8 * n)
    assert total("barrier", None) == 0


# Figures

SIZES = [(1, 1), (16, 10), (4, 750), (2, 1), (4, 3), (8, 20)]  # of ranks, and rounds of a ring


@pytest.mark.parametrize("draw", [timeline, messages])
@pytest.mark.parametrize(("n", "rounds"), few(SIZES, lambda *size: size in SIZES[:3]))
def test_figures_of_any_size(draw, n, rounds):
    picture = draw(ring(n, rounds))
    root = ElementTree.fromstring(picture.svg)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"] == picture.alt
    width, height = (
        float(root.attrib[side].removesuffix("pt")) / 72 for side in ("width", "height")
    )
    assert width == pytest.approx(5.2) and height < 8.5
    assert len(picture.svg) < 1_000_000
    assert picture.alt.split(": ")[1].startswith("1 rank," if n == 1 else f"{n} ranks,")


def test_what_is_left_out_is_said_in_the_figure_and_in_its_text():
    many = ring(4, 750)
    for draw, words in ((messages, "of 3000 messages are drawn"), (timeline, "120 slices")):
        picture = draw(many)
        assert words in picture.alt
        assert words in picture.axes.get_xlabel().replace("\n", " ")


def test_thinning_keeps_every_pair():
    found = match(ring(16, 300))
    kept = thinned(found, 600)
    assert 300 <= len(kept) <= 616
    assert len({id(m) for m in kept}) == len(kept)
    assert {(m.src, m.dst) for m in kept} == {(m.src, m.dst) for m in found}


def test_figures_draw_where_they_are_told():
    _, ax = plt.subplots()
    assert timeline(ring(2, 2), ax=ax) is ax
    assert messages(ring(2, 2), ax=ax) is ax
    plt.close("all")


def test_a_figure_of_its_own_is_not_shown_a_second_time():
    timeline(ring(2, 2)), messages(ring(2, 2))
    assert plt.get_fignums() == []


def test_the_same_traces_give_the_same_picture():
    assert timeline(ring(2, 2)).svg == timeline(ring(2, 2)).svg


def test_lost_messages_are_crosses():
    a = made_up(0, [send(10, 1, tag=3)])
    b = made_up(1, [recv(10, 900, 0, state="failed")])
    picture = messages([a, b])
    crosses = [line for line in picture.axes.lines if line.get_marker() == "x"]
    assert len(crosses) == 2
    assert "1 message was never received; for 1 receive no message came" in picture.alt


def test_a_cross_at_the_end_of_the_window_is_in_the_picture():
    a, b = made_up(0, [send(998, 1, state="unfinished")]), made_up(1, [])
    ax = messages([a, b]).axes
    (cross,) = (line for line in ax.lines if line.get_marker() == "x")
    assert cross.get_xdata()[0] < ax.get_xlim()[1] - 0.05


def test_parts_have_their_names_above():
    def rank(number, late):
        events = [collective("barrier", 1 + late, 90 + late)]
        for k, name in enumerate(("chain", "parity")):
            at = 50 + 480 * k + late
            events.append(Event("region", name, at, at + 400))
            events.append(Event("region", "inner", at + 10, at + 20))
        return made_up(number, events)

    traces = [rank(0, 0), rank(1, 50)]
    assert [[e.name for e in part] for part in regions(traces)] == [["chain"] * 2, ["parity"] * 2]
    picture = messages(traces)
    assert [text.get_text() for text in picture.axes.texts] == ["barrier", "chain", "parity"]
    assert "regions: chain, parity" in picture.alt


def test_collectives_without_room_for_their_names_are_named_below():
    events = [collective("all_reduce", 10 * k, 10 * k + 9) for k in range(90)]
    picture = messages([made_up(0, events), made_up(1, events)])
    assert not picture.axes.texts and "each grey band: all_reduce" in picture.alt


def test_what_is_too_thin_for_hatching_has_none():
    a = made_up(0, [send(0, 1, end=5), send(500, 1, end=900)])
    hatched = [bars for bars in timeline([a]).axes.collections if bars.get_hatch()]
    assert [len(bars.get_paths()) for bars in hatched] == [1]


# Clocks


def test_clocks_that_were_not_compared_are_told():
    far = Clock("other", "another boot")
    a, b = made_up(0, [send(400, 1)]), made_up(1, [recv(1, 2, 0)], clock=far)
    picture = messages([a, b])
    assert "the clocks of 2 hosts were not compared" in picture.alt
    assert match([a, b])[0].matched  # nothing is known of what came first


def test_remaining_uncertainty_is_told():
    clock = [Clock("a", "1", 0, 0), Clock("b", "2", 500, 20_000)]
    traces = [made_up(r, [], clock=clock[r]) for r in range(2)]
    assert "compared to within 20 µs" in timeline(traces).alt


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, False),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, True),
        ({"MPI_LOCALNRANKS": "2", "PMI_SIZE": "4"}, True),
        ({"SLURM_JOB_NUM_NODES": "2"}, True),
        ({"SLURM_JOB_NUM_NODES": "2", "GLOO_SOCKET_IFNAME": "lo"}, False),
    ],
)
def test_whether_there_are_several_hosts_is_the_launchers_word(environment, several):
    assert clocks.several_hosts(environment) is several


# What is not a trace


def test_what_is_not_a_trace_is_refused(tmp_path):
    for view in (timeline, messages, traffic):
        with pytest.raises(TraceError, match="NoneType in place of a trace"):
            view([None, None])
        with pytest.raises(TraceError, match="int in place of a trace"):
            view(3)
        with pytest.raises(TraceError, match="empty"):
            view([])
        with pytest.raises(TraceError, match="has ended"):
            view(Trace())
        with pytest.raises(TraceError, match="Two of these traces are of rank 0"):
            view([made_up(0, []), made_up(0, [])])
    with pytest.raises(TraceError):
        save([None], tmp_path / "x.json")


def test_units():
    assert [size(n) for n in (0, 1000, 1023, 64 << 10, 3 << 20)] == [
        "0 B",
        "1000 B",
        "1023 B",
        "64 KiB",
        "3 MiB",
    ]
    assert [duration(s) for s in (2, 0.0034, 5e-6)] == ["2 s", "3.4 ms", "5 µs"]


# Without ranks


ALONE = """
import sys, torch
from ranklab import trace
assert "matplotlib" not in sys.modules, "a rank must not load what draws"
with trace() as t:
    torch.ones(3) + 1
print(t, t.world_size, sorted({e.name for e in t.events}))
try:
    with trace() as t:
        raise ValueError
except ValueError:
    print(t)
"""


def test_one_process_without_a_group():
    run = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=250, check=True
    )
    first, second = run.stdout.splitlines()
    assert first.startswith("trace of rank 0: ") and first.endswith("1 ['aten::add', 'aten::ones']")
    assert "ended by ValueError" in second
    assert run.stderr == ""
