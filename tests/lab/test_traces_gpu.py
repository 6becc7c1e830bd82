"""What a trace makes of a GPU's events: of a step with NCCL, written by hand as the profiler's
documentation and its source describe it, and of an all-reduce through Gloo, as an H200 had it.
"""

import json

import pytest
import torch
from matplotlib.figure import Figure

from ranklab import save, timeline
from ranklab.traces import reading
from ranklab.traces.data import COLLECTIVE, OP, Clock, Trace
from ranklab.traces.waiting import busy
from ranklab.upstream import profiler
from ranklab.upstream.profiler import Raw

MAIN, BACKWARD, COMPUTING, TALKING = 4711, 4712, 7, 20  # two threads and two streams


def host(name, start, end, number, thread=MAIN, scope=0, **more):
    """An operation of the CPU."""
    link = more.pop("link", (-1, 0))
    inputs = more.pop("inputs", [])
    return Raw(
        name, start, end, thread, True, scope, inputs, 400, "float32", link, False,
        number=number, **more,
    )  # fmt: skip


def gpu(name, start, end, number, stream=COMPUTING, **more):
    """What a GPU did for the operation of this number."""
    return Raw(
        name, start, end, stream, True, 0, [], None, "", (-1, 0), True, number=number, **more
    )


def events():
    """Forward, backward, and an all-reduce beside it: queued at once, done later."""
    call = {"inputs": [[], None, None, None, True], "thread": BACKWARD}
    return [
        host("aten::linear", 0, 10, 1, link=(5, MAIN)),
        host("autograd::engine::evaluate_function: AddmmBackward0", 12, 30, 2, BACKWARD, 1,
             link=(5, MAIN)),
        host("aten::mm", 13, 29, 22, BACKWARD, 1, link=(5, MAIN)),
        host("c10d::allreduce_", 31, 34, 3, **call),
        host("nccl:all_reduce", 32, 33, 4, BACKWARD, 7, backend="all_reduce", is_note=True),
        gpu("sgemm_forward", 100, 150, 1),
        gpu("sgemm_backward", 150, 250, 22),
        gpu("nccl:all_reduce", 200, 400, 4, TALKING, backend="all_reduce", is_note=True),
        gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 210, 390, 4, TALKING),
        gpu("Memcpy DtoH (Device -> Pinned)", 260, 270, 99),
    ]  # fmt: skip


def traced():
    found = reading.events_of(events(), (0, 1))
    trace = Trace(rank=0, world_size=2)
    trace.events, trace.begin, trace.end = found, 0, 500
    trace.clock = Clock("here", "now")
    return trace


def test_kernels_are_computation_in_their_phase_and_stream():
    kernels = [e for e in traced().events if e.stream is not None]
    assert {e.kind for e in kernels} == {OP}
    assert [(e.name.partition(" ")[0], e.phase, e.stream) for e in kernels] == [
        ("sgemm_forward", "forward", COMPUTING),
        ("sgemm_backward", "backward", COMPUTING),
        ("Memcpy", "", COMPUTING),
    ]


def test_a_communication_lasts_until_the_gpu_is_done_with_it():
    (all_reduce,) = [e for e in traced().events if e.kind == COLLECTIVE]
    assert (all_reduce.name, all_reduce.start, all_reduce.end) == ("all_reduce", 31, 400)
    assert all_reduce.state == "done" and all_reduce.nbytes == 400


def test_a_gpu_is_busy_and_not_the_cpu_that_queues():
    trace = traced()
    assert busy(trace) == [(100, 250), (260, 270)]
    assert busy(trace, "forward") == [(100, 150)]


def test_without_a_gpu_the_cpu_computes():
    trace = traced()
    trace.events = reading.events_of([e for e in events() if not e.on_gpu], (0, 1))
    assert busy(trace) == [(0, 10), (12, 30)]


def with_gloo():
    """A product, then its all-reduce, as rank 0 of two on one NVIDIA H200 recorded it with torch
    2.11: times in microseconds. Of the library's calls, one each is kept."""
    gloo, sending = 916, {"backend": "all_reduce", "is_note": True}
    call = {"inputs": [None, None, None, None, False, -1]}
    return [
        host("aten::matmul", 67995, 82066, 2049),
        host("aten::mm", 68003, 82055, 2050),
        host("Activity Buffer Request", 68047, 70575, 2050, thread=0),
        host("cuLaunchKernel", 81999, 82048, 2108),
        gpu("cutlass_80_simt_sgemm", 82182, 82525, 2050),
        host("c10d::allreduce_", 82220, 97099, 2051, **call),
        host("aten::empty", 96901, 96915, 2052),
        host("aten::set_", 96926, 96940, 2053),
        host("aten::copy_", 96945, 97030, 2054),
        host("cudaMemcpyAsync", 96985, 97021, 2133),
        gpu("Memcpy DtoH (Device -> Pinned)", 97022, 97326, 2054, 24),
        host("gloo:all_reduce", 97201, 107881, 2561, gloo, 7, **sending),
        host("aten::copy_", 107698, 107800, 2562, gloo),
        gpu("Memcpy HtoD (Pinned -> Device)", 107986, 108294, 2562, 24),
        gpu("gloo:all_reduce", 107986, 108294, 0, 24, **sending),
    ]  # fmt: skip


def test_what_gloo_copies_to_send_a_gpus_tensor_is_part_of_the_sending():
    found = reading.events_of(with_gloo(), (0, 1))
    assert [(e.name, e.stream) for e in found] == [
        ("aten::matmul", None),
        ("cutlass_80_simt_sgemm", COMPUTING),
        ("all_reduce", None),
    ]
    assert (found[-1].start, found[-1].end) == (82220, 108294)  # until it is on the GPU again


def test_in_a_saved_trace_each_stream_has_its_line(tmp_path):
    trace = traced()
    save(trace, tmp_path / "x.json")
    entries = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    lines = {e["tid"]: e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    kernel = next(e for e in entries if e["name"] == "sgemm_forward")
    assert lines[kernel["tid"]] == f"GPU, stream {COMPUTING}"


def test_a_gpus_kernels_are_asked_for(monkeypatch):
    """PyTorch leaves them out, without a word, unless it is told to use its newer library."""
    activity = torch.profiler.ProfilerActivity
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    both = {activity.CPU, activity.CUDA}
    monkeypatch.setattr(torch.autograd.profiler, "_supported_activities", lambda: both)
    assert profiler.of_all_threads().kineto_activities == both


def test_in_a_timeline_each_stream_that_computes_has_its_lane():
    def lanes(trace):
        """Of what computes, in full color: [(top, height)] from top to bottom."""
        bars = timeline(trace, ax=Figure().subplots()).collections
        boxes = [
            path.get_extents() for bar in bars if len(bar.get_paths()) for path in bar.get_paths()
        ]
        return sorted(
            {(round(b.y0, 3), round(b.y1, 3)) for b in boxes if b.height > 0 and b.y1 <= 0}
        )

    one = traced()
    assert len(lanes(one)) == 1
    two = traced()
    copies = next(e for e in two.events if e.name.startswith("Memcpy"))
    copies.stream = COMPUTING + 1
    (top, middle), (below, bottom) = lanes(two)
    assert top < middle <= below < bottom and (top, bottom) == pytest.approx(
        lanes(one)[0], abs=0.02
    )


@pytest.mark.parametrize(
    "name", ["Lazy Function Loading", "Runtime Triggered Module Loading", "cudaMalloc", "cuInit"]
)
def test_what_the_profiler_and_cudas_start_take_is_not_computing(name):
    assert not host(name, 0, 9, 1).computes
    assert host("cumsum", 0, 9, 1).computes


def test_events_without_a_number_are_not_taken_for_each_others():
    found = reading.events_of(
        [
            host("c10d::allreduce_", 0, 30, 9, inputs=[None, None, None, None, False, -1]),
            host("aten::copy_", 10, 20, 0),  # of the sending
            gpu("kernel", 40, 50, 0),  # of nobody knows what
        ],
        (0, 1),
    )
    assert [e.name for e in found if e.stream is not None] == ["kernel"]
