"""Traces of real ranks: what is recorded, how it is put together, and what it adds up to."""

import importlib.util
import json
import pickle
import sys
from pathlib import Path

import pytest

from ranklab import Ranks, messages, save, timeline, traffic
from ranklab.failure import RankError
from ranklab.traces.data import TraceError
from ranklab.traces.matching import match, meetings
from ranklab.traces.waiting import length, waits

pytestmark = pytest.mark.timeout(120)

N = 4
TIMEOUT = 5  # s: a whole one passes in the test of a deadlock


@pytest.fixture(scope="module")
def running():
    with Ranks(N, timeout=TIMEOUT) as ranks:
        yield ranks


@pytest.fixture
def ranks(running):
    """Ranks with a working process group, whatever the test before did to it."""
    if running.run(is_broken)[0]:
        running.reset()
    return running


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def is_broken():
    global broken
    was = globals().get("broken", False)
    broken = False
    return was


@on_ranks
def point_to_point():
    import time

    from ranklab import trace

    x, box = torch.ones(5), torch.zeros(5)  # noqa: F821
    with trace() as t:
        if rank == 0:  # noqa: F821
            dist.send(x, 1, tag=7)  # noqa: F821
            handle = dist.isend(torch.ones(3, dtype=torch.float64), 1)  # noqa: F821
            time.sleep(0.05)
            handle.wait()
            dist.recv(box, tag=3)  # noqa: F821
        elif rank == 1:  # noqa: F821
            dist.recv(box, 0, tag=7)  # noqa: F821
            dist.irecv(torch.zeros(3, dtype=torch.float64), 0).wait()  # noqa: F821
            time.sleep(0.2)
            dist.send(x, 0, tag=3)  # noqa: F821
    return t


def communications(trace):
    return [(e.kind, e.peer, e.tag, e.nbytes, e.dtype) for e in trace.communication]


def test_messages_have_peer_tag_size_and_type(ranks):
    zero, one, *others = ranks.run(point_to_point)
    assert communications(zero) == [
        ("send", 1, 7, 20, "float32"),
        ("send", 1, 0, 24, "float64"),
        ("recv", None, 3, 20, "float32"),
    ]
    assert communications(one) == [
        ("recv", 0, 7, 20, "float32"),
        ("recv", 0, 0, 24, "float64"),
        ("send", 0, 3, 20, "float32"),
    ]
    assert [t.communication for t in others] == [[], []]
    posted_and_waited_for = zero.communication[1]
    assert posted_and_waited_for.end - posted_and_waited_for.start > 40e6  # ns
    assert repr(zero).startswith("trace of rank 0: ")


def test_messages_are_matched_and_waits_known(ranks):
    traces = ranks.run(point_to_point)
    found = match(traces)
    ends = [(m.src, m.dst, m.tag, m.matched) for m in found]
    assert sorted(ends) == [(0, 1, 0, True), (0, 1, 7, True), (1, 0, 3, True)]
    assert all(m.arrived >= m.send.start for m in found)
    waited = waits(traces)
    assert length(waited[0]) > 0.1e9  # ns: rank 1 sleeps while rank 0 waits for its answer
    assert waited[2] == []


def test_clocks_of_processes_agree(ranks):
    """No message arrives before it left, and two ranks' barriers overlap."""
    for found in (match(ranks.run(point_to_point)), match(ranks.run(ring))):
        assert found and all(m.recv.end > m.send.start for m in found)


@on_ranks
def ring():
    from ranklab import trace

    x, box = torch.ones(7), torch.zeros(7)  # noqa: F821
    with trace() as t:
        for _ in range(world_size):  # noqa: F821
            sent = dist.isend(x, (rank + 1) % world_size)  # noqa: F821
            dist.recv(box, (rank - 1) % world_size)  # noqa: F821
            sent.wait()
    return t


def test_traffic_is_exact(ranks):
    table = traffic(ranks.run(ring))
    for row in table:
        assert (row.sent, row.sent_bytes) == (N, N * 28)
        assert (row.received, row.received_bytes) == (N, N * 28)
    assert (table.total.sent, table.total.sent_bytes) == (N * N, N * N * 28)
    assert table[2].rank == 2 and len(table) == N
    assert repr(table).split("\n")[0].split() == ["sent", "received"]
    assert f"{N * N * 28:,}" in repr(table)
    assert 'colspan="2"' in table._repr_html_()
    with pytest.raises(TraceError, match="no trace of rank 7 here, only of 0, 1, 2 and 3"):
        table[7]


@on_ranks
def batch_and_tags():
    from ranklab import trace

    right, left = (rank + 1) % world_size, (rank - 1) % world_size  # noqa: F821
    with trace() as t:
        boxes = [torch.zeros(n) for n in (1, 2)]  # noqa: F821
        # The receives are posted in the other order than the sends: only the tag tells.
        operations = [
            dist.P2POp(dist.irecv, boxes[1], left, tag=2),  # noqa: F821
            dist.P2POp(dist.irecv, boxes[0], left, tag=1),  # noqa: F821
            dist.P2POp(dist.isend, torch.ones(1), right, tag=1),  # noqa: F821
            dist.P2POp(dist.isend, torch.ones(2), right, tag=2),  # noqa: F821
        ]
        for handle in dist.batch_isend_irecv(operations):  # noqa: F821
            handle.wait()
    return t


def test_receives_posted_first_and_in_another_order_match_by_tag(ranks):
    found = match(ranks.run(batch_and_tags))
    assert len(found) == 2 * N
    assert all(m.matched and m.send.nbytes == m.recv.nbytes == 4 * m.tag for m in found)


@on_ranks
def collectives():
    from ranklab import trace

    n, x = world_size, torch.ones(6)  # noqa: F821
    parts = [torch.zeros(6) for _ in range(n)]  # noqa: F821
    with trace() as t:
        dist.broadcast(x, 1)  # noqa: F821
        dist.all_reduce(x)  # noqa: F821
        dist.all_reduce(x, async_op=True).wait()  # noqa: F821
        dist.reduce(x, 2)  # noqa: F821
        dist.all_gather(parts, x)  # noqa: F821
        dist.gather(x, parts if rank == 0 else None, 0)  # noqa: F821
        dist.scatter(x, parts if rank == 0 else None, 0)  # noqa: F821
        dist.reduce_scatter(x, parts)  # noqa: F821
        dist.all_to_all(parts, [torch.zeros(6) for _ in range(n)])  # noqa: F821
        dist.all_to_all_single(torch.zeros(n), torch.zeros(n))  # noqa: F821
        dist.barrier()  # noqa: F821
        dist.all_gather_object([None] * n, "x")  # noqa: F821
    return t


def test_collectives_have_name_payload_and_root(ranks):
    traces = ranks.run(collectives)
    whole = 24 * N
    expected = [
        ("broadcast", 1, 24),
        ("all_reduce", None, 24),
        ("all_reduce", None, 24),
        ("reduce", 2, 24),
        ("all_gather", None, 24),
        ("gather", 0, 24),
        ("scatter", 0, whole),
        ("reduce_scatter", None, whole),
        ("all_to_all", None, whole),
        ("all_to_all", None, 4 * N),
        ("barrier", None, 0),
    ]
    zero = [(e.name, e.peer, e.nbytes) for e in traces[0].communication]
    assert zero[:11] == expected
    assert [name for name, *_ in zero[11:]] == ["all_gather", "all_gather"]  # sizes, then objects
    assert traces[3].communication[6].nbytes == 0  # only the root has something to scatter
    assert [e.background for e in traces[0].communication[:4]] == [False, False, True, False]
    assert all(e.state == "done" and e.group == tuple(range(N)) for e in traces[0].communication)
    assert len(meetings(traces)) == 13


def test_payload_and_what_an_algorithm_would_send(ranks):
    table = traffic(ranks.run(one_all_reduce))
    for row in table:
        assert (row.collectives, row.payload_bytes) == (1, 4000)
        assert row.moved_bytes == 2 * (N - 1) / N * 4000
        assert (row.sent, row.received) == (0, 0)
    assert "formula" in table._repr_html_()


@on_ranks
def one_all_reduce():
    from ranklab import trace

    x = torch.ones(1000)  # noqa: F821
    with trace() as t:
        dist.all_reduce(x)  # noqa: F821
    return t


@on_ranks
def groups():
    from ranklab import trace

    group = dist.new_group([1, 3])  # noqa: F821
    with trace() as t:
        x = torch.ones(4)  # noqa: F821
        if rank in (1, 3):  # noqa: F821
            dist.all_reduce(x, group=group)  # noqa: F821
        if rank == 1:  # noqa: F821
            handle = dist.isend(x, 3, group=group)  # noqa: F821
            dist.send(torch.ones(2), 3)  # noqa: F821
            handle.wait()
        elif rank == 3:  # noqa: F821
            dist.recv(torch.ones(2), 1)  # noqa: F821
            dist.recv(x, group_src=0, group=group)  # noqa: F821
    dist.destroy_process_group(group)  # noqa: F821
    return t


def test_groups_are_told_apart_and_peers_are_of_the_world(ranks):
    traces = ranks.run(groups)
    assert [(e.name, e.peer, e.group, e.nbytes) for e in traces[3].communication] == [
        ("all_reduce", None, (1, 3), 16),
        ("recv", 1, tuple(range(N)), 8),
        ("recv", 1, (1, 3), 16),
    ]
    found = match(traces)
    assert len(found) == 2 and all(m.matched and m.send.nbytes == m.recv.nbytes for m in found)
    (events,) = meetings(traces)
    assert sorted(events) == [1, 3]


@on_ranks
def deadlock():
    global t, broken
    from ranklab import trace

    broken = True
    with trace() as t:
        dist.recv(torch.zeros(3), (rank + 1) % world_size)  # noqa: F821


def test_a_trace_survives_a_deadlock(ranks):
    with pytest.raises(RankError):
        ranks.run(deadlock)
    traces = ranks["t"]
    assert all(t.error for t in traces)
    assert [(e.state, e.nbytes) for t in traces for e in t.communication] == [("failed", 12)] * N
    found = match(traces)
    assert not any(m.matched for m in found)
    assert {m.why for m in found} == {"no message came"}
    assert traffic(traces).total.received == 0
    picture = messages(traces)
    assert f"for {N} receives no message came" in picture.alt
    assert "all ranks wait about" in picture.alt
    assert "ended by" in repr(traces[0])


@on_ranks
def one_is_never_received():
    import time

    from ranklab import trace

    handle = None
    with trace() as t:
        if rank == 0:  # noqa: F821
            handle = dist.isend(torch.ones(4), 1, tag=9)  # noqa: F821
        time.sleep(0.01)
    if rank == 1:  # noqa: F821
        dist.recv(torch.ones(4), 0, tag=9)  # noqa: F821
    if handle:
        handle.wait()
    return t


def test_a_message_received_outside_of_the_trace_is_unmatched(ranks):
    traces = ranks.run(one_is_never_received)
    (message,) = match(traces)
    assert (message.src, message.dst, message.matched) == (0, 1, False)
    assert message.send.state == "unfinished"
    assert traffic(traces).total.sent_bytes == 16
    assert "1 message was never received" in messages(traces).alt


@on_ranks
def computation():
    from ranklab import trace

    layers = torch.nn.Sequential(  # noqa: F821
        torch.nn.Linear(8, 8),  # noqa: F821
        torch.nn.Tanh(),  # noqa: F821
    )
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)  # noqa: F821
    x = torch.ones(4, 8)  # noqa: F821
    with trace() as t:
        with torch.profiler.record_function("my region"):  # noqa: F821
            loss = layers(x).sum()
        loss.backward()
        optimizer.step()
    return t


def test_regions_and_phases_of_training(ranks):
    (trace, *_) = ranks.run(computation)
    assert "my region" in [e.name for e in trace.events if e.kind == "region"]
    assert "SGD.step" in [e.name for e in trace.events if e.kind == "optimizer"]
    forward = [e.name for e in trace.events if e.phase == "forward"]
    assert forward == ["aten::linear", "aten::tanh", "aten::sum"]
    backward = [e.name for e in trace.events if e.phase == "backward"]
    assert "TanhBackward0" in backward and "AddmmBackward0" in backward
    last_forward = max(e.end for e in trace.events if e.phase == "forward")
    assert min(e.start for e in trace.events if e.phase == "backward") >= last_forward


@on_ranks
def nested():
    from ranklab import trace

    said = []
    with trace() as t:
        try:
            with trace():
                pass
        except RuntimeError as error:
            said.append(str(error))
        torch.ones(3) + 1  # noqa: F821
    with torch.profiler.profile() as _:  # noqa: F821
        try:
            with trace():
                pass
        except RuntimeError as error:
            said.append(str(error))
    with trace() as after:
        pass
    return said, t, after


def test_a_trace_in_a_trace_is_refused_and_does_no_harm(ranks):
    for (first, second), t, after in ranks.run(nested):
        assert "already" in first and "already" in second and "profiler" in second
        assert any(e.name == "aten::add" for e in t.events)
        assert after.events == []


@on_ranks
def what_is_loaded():
    import sys

    import ranklab.traces.recording  # noqa: F401

    return sorted({name.partition(".")[0] for name in sys.modules} & {"matplotlib", "pandas"})


def test_tracing_does_not_load_what_draws(ranks):
    assert ranks.run(what_is_loaded) == [[]] * N


def test_figures_of_real_traces(ranks):
    traces = ranks.run(ring)
    for draw in (timeline, messages):
        picture = draw(traces)
        assert f"{N} ranks, {N * N} messages in " in picture.alt
        assert picture.svg.startswith('<svg role="img" aria-label="')


def test_saved_traces_are_what_perfetto_reads(ranks, tmp_path):
    traces = ranks.run(ring)
    save(traces, tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_text())
    events = document["traceEvents"]
    assert {e["pid"] for e in events} == set(range(N))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == [f"rank {r}" for r in range(N)]
    complete = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and "tid" in e for e in complete)
    flows = {ph: [e for e in events if e["ph"] == ph] for ph in "sf"}
    assert len(flows["s"]) == len(flows["f"]) == N * N
    for start, end in zip(flows["s"], flows["f"]):
        assert start["id"] == end["id"] and end["bp"] == "e"
        for flow in (start, end):  # a flow begins and ends in a slice of its line
            assert any(
                e["pid"] == flow["pid"]
                and e["tid"] == flow["tid"]
                and e["ts"] <= flow["ts"] <= e["ts"] + e["dur"] + 1e-6
                for e in complete
            )


def test_traces_are_plain_data(ranks):
    traces = ranks.run(ring)
    assert repr(pickle.loads(pickle.dumps(traces))) == repr(traces)
    assert len(pickle.dumps(traces[0])) < 20_000


@on_ranks
def many_at_once():
    from ranklab import trace

    xs = [torch.ones(1 + 10 * (k % 7)) for k in range(60)]  # noqa: F821
    with trace() as t:
        for handle in [dist.all_reduce(x, async_op=True) for x in xs]:  # noqa: F821
            handle.wait()
    return t


def test_sizes_of_collectives_in_flight_together(ranks):
    expected = [4 * (1 + 10 * (k % 7)) for k in range(60)]
    for trace in ranks.run(many_at_once):
        assert [e.nbytes for e in trace.communication] == expected


@on_ranks
def more_than_are_kept():
    from functools import partial

    from ranklab import trace
    from ranklab.traces import flight, reading

    xs = [torch.ones(1 + k % 7, 10_000) for k in range(20)]  # noqa: F821
    real = reading.events_of
    reading.events_of = partial(real, flown=lambda: flight.entries()[-5:])
    try:
        with trace() as t:
            for handle in [dist.all_reduce(x, async_op=True) for x in xs]:  # noqa: F821
                handle.wait()
    finally:
        reading.events_of = real
    return t


def test_sizes_that_no_record_tells_are_said_to_be_guessed(ranks):
    traces = ranks.run(more_than_are_kept)
    for trace in traces:
        assert sum(e.nbytes for e in trace.communication) == sum(
            40_000 * (1 + k % 7) for k in range(20)
        )
        assert [e.nbytes for e in trace.communication[-5:]] == [
            40_000 * (1 + k % 7) for k in range(15, 20)
        ]
        assert not any(e.doubtful for e in trace.communication[-5:])
    assert any(e.doubtful for trace in traces for e in trace.communication)
    assert "collectives is a guess" in messages(traces).alt


@on_ranks
def work_between_post_and_wait():
    import time

    from ranklab import trace

    x, box = torch.ones(5), torch.zeros(5)  # noqa: F821
    dist.barrier()  # noqa: F821
    with trace() as t:
        if rank == 0:  # noqa: F821
            time.sleep(0.3)
            dist.send(x, 1)  # noqa: F821
        elif rank == 1:  # noqa: F821
            handle = dist.irecv(box, 0)  # noqa: F821
            for _ in range(50):
                time.sleep(0.01)
                x + x
            handle.wait()
    return t


def test_a_receive_that_was_only_posted_is_not_waiting(ranks):
    waited = waits(ranks.run(work_between_post_and_wait))
    assert length(waited[1]) < 0.1e9  # ns


@on_ranks
def threads_of_gloo():
    from pathlib import Path

    from ranklab.traces import settling

    names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
    seen, x = False, torch.ones(1 << 22)  # noqa: F821
    for _ in range(20):
        handle = dist.all_reduce(x, async_op=True)  # noqa: F821
        while not handle.is_completed():
            seen = seen or settling._gloo_runs()
        handle.wait()
    settling.settle()
    return any(name.startswith("pt_gloo") for name in names), seen, settling._gloo_runs()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does")
def test_threads_of_gloo_are_known_by_name_and_settle(ranks):
    assert ranks.run(threads_of_gloo) == [(True, True, False)] * N


@on_ranks
def unreadable():
    from ranklab import trace
    from ranklab.traces import reading

    real = reading.events_of
    reading.events_of = lambda *_: 1 / 0
    try:
        with trace() as t:
            raise ValueError("the reader's own")
    except ValueError:
        return t
    finally:
        reading.events_of = real


def test_an_error_of_the_readers_is_not_lost_where_a_trace_cannot_be_read(ranks):
    for trace in ranks.run(unreadable):
        assert trace.error.startswith("ValueError, and what was recorded cannot be read: ZeroDiv")


@on_ranks
def compare_clocks(shifts, align):
    """Trace with clocks that are off by `shifts` (ns): each rank's real time and trace."""
    import time

    from ranklab import trace
    from ranklab.traces import clocks

    real = clocks.compare
    shift = shifts[rank]  # noqa: F821
    clocks.compare = lambda clock: real(clock, now=lambda: time.time_ns() + shift)
    try:
        with trace(align=align) as t:
            before = time.time_ns()
            dist.barrier()  # noqa: F821
    finally:
        clocks.compare = real
    return before, t


def test_clocks_of_hosts_are_compared_within_the_stated_uncertainty(ranks):
    shifts = [0, 3_000_000_000, -4_000_000_000, 1_234]
    for shift, (before, trace) in zip(shifts, ranks.run(compare_clocks, shifts, True)):
        assert abs(trace.clock.offset - shift) <= trace.clock.uncertainty
        assert trace.clock.uncertainty < 0.5e9  # ns, on a machine that has other things to do
        assert abs(trace.begin - (before - trace.clock.offset)) < 0.5e9
        assert all(e.tag != 0x7ACE for e in trace.communication)


def test_on_one_host_no_clock_is_compared(ranks):
    for _, trace in ranks.run(compare_clocks, [0] * N, None):
        assert (trace.clock.offset, trace.clock.uncertainty) == (0, None)


def load_benchmark():
    path = Path(__file__).parents[1] / "benchmarks" / "trace.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_traces", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a socket sent")
def test_formulas_are_what_gloo_really_sends(ranks):
    benchmark = load_benchmark()
    for collective in benchmark.WIRE:
        sent, traces = zip(*ranks.run(benchmark.bytes_on_the_wire, collective))
        for nbytes, row in zip(sent, traffic(list(traces))):
            # Some kilobytes are Gloo's own headers, and the barrier after it.
            assert nbytes == pytest.approx(row.moved_bytes, rel=0.01, abs=20_000), collective


@on_ranks
def bracketed():
    """Regions, each with the system's time before and after it."""
    import time

    from ranklab import trace

    times = []
    with trace() as t:
        for _ in range(20):
            before = time.time_ns()
            with torch.profiler.record_function("here"):  # noqa: F821
                pass
            times.append((before, time.time_ns()))
    return times, t


def test_times_are_those_of_the_systems_clock(ranks):
    """All processes of a host share it: this is why their traces fit together."""
    for times, trace in ranks.run(bracketed):
        regions = [e for e in trace.events if e.kind == "region"]
        off = [max(a - e.start, e.end - b, 0) for (a, b), e in zip(times, regions, strict=True)]
        assert sorted(off)[len(off) // 2] < 50_000  # ns
