"""What a trace makes of a GPU's events. No GPU has made these: they are written by hand, as the
profiler's documentation and its source describe them, a step of training with NCCL."""

from ranklab.traces import reading
from ranklab.traces.data import COLLECTIVE, OP, Trace
from ranklab.traces.waiting import busy
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
