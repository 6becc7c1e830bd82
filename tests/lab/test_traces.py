"""Traces of real ranks: which communication is recorded, how it is matched, what it adds up to."""

import pytest
from traced import N, on_ranks, ranks, ring, running

from ranklab import messages, traffic
from ranklab.errors import RankError
from ranklab.traces.data import TraceError
from ranklab.traces.matching import match, meetings
from ranklab.traces.waiting import length, waits

__all__ = ["ranks", "running"]


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
    import sys

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
    assert "torch._dynamo" not in sys.modules  # it takes 1 to 2 s, and nobody needs it here
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
