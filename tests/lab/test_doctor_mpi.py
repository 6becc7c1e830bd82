"""What the doctor says of calls of MPI: on places that are made up, and on frames that wait."""

import ast
import sys
import threading
import time

import pytest
from reports import collective, concluded, ended, receives, sends

from ranklab.doctor import expressions
from ranklab.doctor.diagnosis import Diagnosis
from ranklab.doctor.expressions import UNKNOWN
from ranklab.doctor.sentences import wait

MPI = {"mpi": True, "known": True, "group": "MPI_COMM_WORLD"}
PAIR = {"ranks": (0, 1), **MPI}


def both(rank, source, dest, **more):
    """A rank in Sendrecv."""
    received = receives(rank, source, name="Sendrecv", **{**PAIR, **more})
    received.call["also"] = {"kind": "send", "peer": dest, "tag": 0, "known": True}
    return received


# Who waits for whom


def test_who_sends_and_receives_at_once_waits_for_both():
    three = {"ranks": (0, 1, 2)}
    stuck = [both(0, 1, 1, **three), both(1, 2, 2, **three), both(2, 0, 0, **three)]
    (said,) = concluded(*stuck)
    assert said.startswith("Ranks 0, 1 and 2 wait in a circle: rank 0 waits in Sendrecv, to ")
    assert said.endswith("and to send to rank 0 (line 2).")  # and not that nobody sends
    assert concluded(both(0, 1, 1), both(1, 0, 0)) == []
    assert concluded(both(0, 1, 1), receives(1, 0, name="Recv", **PAIR)) == []  # half of it


def test_any_tag_is_every_tag():
    sent = sends(0, 1, name="Ssend", tag=5, **PAIR)
    assert concluded(sent, receives(1, 0, tag=None, name="Recv", **PAIR)) == []
    (said,) = concluded(sent, receives(1, 0, tag=4, name="Recv", **PAIR))
    assert "with tag 5 (line 2), and rank 1 receives from rank 0 with tag 4" in said


@pytest.mark.parametrize(
    "one, other, says",
    [
        ({"name": "Bcast", "root": 0}, {"name": "Barrier"}, "Bcast of float32[4] (root 0), and"),
        (
            {"name": "Gather", "root": 0},
            {"name": "Gather", "root": 1},
            "Gather of float32[4]",
        ),
        ({"name": "allreduce", "op": "SUM"}, {"name": "Allreduce", "op": "SUM"}, "allreduce of"),
        ({"name": "Reduce", "root": 0}, {"name": "Reduce", "root": None}, ""),
    ],
)
def test_all_in_collectives_that_differ(one, other, says):
    reports = [collective(0, **one, **PAIR), collective(1, **other, **PAIR)]
    said = Diagnosis(reports).conclusions()
    assert len(said) == bool(says)
    if says:
        assert said[0].startswith("The collectives do not match: rank 0 calls ") and says in said[0]
        assert Diagnosis(reports).stuck


def test_collectives_are_compared_only_when_all_are_there_for_long():
    """One that came late is still in the first when the others are in the second."""
    first, second = {"name": "Reduce", "root": 0}, {"name": "Barrier"}
    three = {**PAIR, "ranks": (0, 1, 2)}
    for last in (ended(2), receives(2, 0, **three), collective(2, **second, **three, seconds=0.1)):
        reports = collective(0, **first, **three), collective(1, **second, **three), last
        assert Diagnosis(reports).mismatches == []


@pytest.mark.parametrize(
    "report, says",
    [
        (receives(0, 1, name="Recv", **PAIR), "waits in Recv, to receive float32[4] from rank 1"),
        (
            receives(0, 1, name="recv", payload="", tag=3, **PAIR),
            "waits in recv, to receive from rank 1 with tag 3",
        ),
        (
            receives(0, None, name="Probe", payload="", **PAIR),
            "waits in Probe, to receive from anyone",
        ),
        (
            sends(0, None, name="Ssend", **{**PAIR, "known": False}),
            "waits in Ssend, to send float32[4]",
        ),
        (
            receives(0, 1, name="irecv", payload="", handle=True, **PAIR),
            "waits for its irecv from rank 1",
        ),
        (
            collective(0, "Reduce", root=2, op="MAX", **PAIR),
            "waits in Reduce of float32[4] (MAX, root 2)",
        ),
        (
            collective(0, "Barrier", payload="", **{**PAIR, "group": "of ranks 1 and 2"}),
            "waits in Barrier (communicator of ranks 1 and 2)",
        ),
    ],
)
def test_a_wait_in_words(report, says):
    assert wait(report.call) == says


# What the source says where a frame stands


class Gate:
    """Something to wait in, in C."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()

    @property
    def by_code(self):
        raise AssertionError("this is not to be run")


def at_rest(thread):
    """The innermost frame of a thread that has come to where it waits."""
    before = None
    while True:
        frame = sys._current_frames()[thread]
        if before == (before := (frame, frame.f_lasti)) and frame.f_code.co_filename == __file__:
            return frame
        time.sleep(0.02)


def seen(waiting):
    """What is known of the call in which waiting(gate) waits."""
    gate = Gate()
    thread = threading.Thread(target=waiting, args=(gate,))
    thread.start()
    try:
        frame = at_rest(thread.ident)
        call = expressions.call_in(frame)
        names = expressions.names_of(frame)
        given = expressions.arguments(call, ["blocking", "timeout"], names)
        return {**given, "owner": expressions.value(call.func.value, names) is gate.lock}
    finally:
        gate.lock.release()
        thread.join()


TIMES, NAMED = [60, 90], {"long": {"very": 80}}


def in_a_chain(gate):
    # fmt: off
    assert (gate
            .lock
            .acquire(True, 60)), gate
    # fmt: on


def with_arithmetic(gate, n=3):
    gate.lock.acquire(timeout=(n + 1) * 20 % 100 - 10 // 3)


def with_parts(gate):
    gate.lock.acquire(True, TIMES[-1] if len == 0 else TIMES[1])


def with_parts_of_parts(gate):
    gate.lock.acquire(timeout=NAMED["long"]["very"])


def by_a_call(gate):
    gate.lock.acquire(True, max(TIMES))


def test_the_call_is_found_and_what_it_is_given():
    assert seen(in_a_chain) == {"blocking": True, "timeout": 60, "owner": True}
    assert seen(with_arithmetic) == {"timeout": 77, "owner": True}
    assert seen(with_parts_of_parts) == {"timeout": 80, "owner": True}
    assert seen(by_a_call) == {"blocking": True, "timeout": UNKNOWN, "owner": True}
    assert seen(with_parts)["timeout"] is UNKNOWN  # `len` is nothing to compare with a number


# Who made a request


def makes_requests(peer):
    once = "made", peer
    twice = "made", peer
    twice = "made again", twice
    other = 1
    of_another = "made", other
    other = 2
    for k in range(2):
        in_a_loop = "made", k
    return sys._getframe(), once, twice, of_another, in_a_loop, other


def test_what_gave_a_name_its_value_is_known_where_nothing_else_did():
    frame = makes_requests(3)[0]
    known = {name: expressions.given_once(frame, name) for name in frame.f_code.co_varnames}
    found = {name: ast.unparse(node) for name, node in known.items() if node}
    assert found == {"once": "('made', peer)", "in_a_loop": "('made', k)"}
