"""Communication inside of an operation: a rank that waits there does not compute."""

import pytest

from ranklab import Ranks
from ranklab.traces.data import OP, OPTIMIZER, SEND, Event, Trace
from ranklab.traces.timeline import _lanes
from ranklab.traces.waiting import busy, length, waiting_share, waits, without

PAUSE = 0.3  # s


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, timeout=20) as some:
        yield some


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def exchange_inside(pause, collective):
    """Rank 1 sleeps before forward and before backward; rank 0 waits, in an autograd function."""
    import time

    from ranklab import trace

    def meet(x):
        x = x.clone()
        if collective:
            dist.all_reduce(x)  # noqa: F821
        elif rank == 0:  # noqa: F821
            dist.recv(x, 1)  # noqa: F821
            dist.send(x, 1)  # noqa: F821
        else:
            dist.send(x, 0)  # noqa: F821
            dist.recv(x, 0)  # noqa: F821
        return x

    class Exchange(torch.autograd.Function):  # noqa: F821
        @staticmethod
        def forward(ctx, x):
            return meet(x)

        @staticmethod
        def backward(ctx, gradient):
            return meet(gradient)

    x = torch.ones(1000, requires_grad=True)  # noqa: F821
    dist.barrier()  # noqa: F821
    with trace() as t:
        time.sleep(pause * rank)  # noqa: F821
        y = Exchange.apply(x)
        time.sleep(pause * rank)  # noqa: F821
        y.sum().backward()
    return t


@pytest.mark.parametrize("collective", [False, True])
def test_waiting_inside_of_an_autograd_function_is_not_computing(ranks, collective):
    traces = ranks.run(exchange_inside, PAUSE, collective)
    for phase in ("forward", "backward"):  # each holds one of the waits
        held = [(e.start, e.end) for e in traces[0].events if e.phase == phase]
        assert length(held) > 0.8 * PAUSE * 1e9
        assert length(busy(traces[0], phase)) < 0.3 * PAUSE * 1e9
    waited = waits(traces)[0]
    assert length(waited) > 1.6 * PAUSE * 1e9
    assert without(waited, busy(traces[0])) == waited
    assert waiting_share(traces)[0] > 0.4
    full, light, *_ = _lanes(traces[0], waited).values()
    assert max(length(full), length(light)) < 0.6 * PAUSE * 1e9
    assert busy(traces[1])  # what it computed is still there


def event(kind, start, end, thread=1, background=False):
    return Event(kind, kind, start, end, thread=thread, background=background)


def test_only_what_the_operation_itself_waits_for_is_taken_off():
    step = event(OPTIMIZER, 0, 100)
    inner = event(OP, 20, 30)  # between the post and the wait, in the same step
    posted = event(SEND, 10, 40)
    assert busy(Trace(events=[step, posted, inner])) == [(0, 10), (20, 30), (40, 100)]


@pytest.mark.parametrize(
    "other",
    [
        event(SEND, 10, 200),  # posted inside, awaited later
        event(SEND, 10, 40, thread=2),
        event("collective", 10, 40, background=True),
    ],
)
def test_an_operation_that_goes_on_meanwhile_computes(other):
    assert busy(Trace(events=[event(OP, 0, 100), other])) == [(0, 100)]


def test_a_collective_that_outlives_the_operation_by_a_little_is_not_computing():
    assert busy(Trace(events=[event(OP, 0, 100), event("collective", 10, 101)])) == [(0, 10)]
