"""Tracing real ranks: what else is recorded, what it disturbs and loads, and when it is exact."""

import importlib.util
import json
import pickle
import sys
from pathlib import Path

import pytest
from traced import N, on_ranks, ranks, ring, running

from ranklab import messages, save, timeline, traffic
from ranklab.traces.waiting import length, waits

__all__ = ["ranks", "running"]


@on_ranks
def computation():
    from ranklab import trace

    if rank != 0:  # noqa: F821
        return None  # the optimizer loads what takes each rank a second
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

    if rank != 0:  # noqa: F821
        return None  # PyTorch's profiler, too
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
    (first, second), t, after = ranks.run(nested)[0]
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
    path = Path(__file__).parents[2] / "benchmarks" / "trace.py"
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
