"""What a vigil keeps of what it saw, when ranks run out of time one after another: made up."""

from types import SimpleNamespace

import pytest

from ranklab.doctor import vigil
from ranklab.doctor.diagnosis import Diagnosis
from ranklab.doctor.one_rank import Report

TIMEOUT = 2.0


def receives(rank, peer, seconds):
    call = {"name": "recv", "kind": "recv", "peer": peer, "ranks": [0, 1, 2], "group": "0"}
    call |= {"tag": 0, "payload": "float32[1]", "op": "", "root": None, "handle": False}
    return Report(rank, "running", "    line 2: dist.recv(x)", call, seconds)


def raises(rank):
    return Report(rank, "running", "", None, 0.1)


@pytest.fixture
def sees(monkeypatch):
    """A vigil that sees what it is given, and when: sees(seconds, reports, ended)."""
    now = SimpleNamespace(seconds=0.0, reports=[], ended={})
    monkeypatch.setattr(vigil, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(vigil.replies, "ended", lambda ranks, result: now.ended)
    seen = {"where": lambda *_, **__: Diagnosis(now.reports), "free": free}
    for name, function in seen.items():
        monkeypatch.setattr(vigil.rounds, name, function)
    ranks = SimpleNamespace(timeout=TIMEOUT, watched=0)
    watch = vigil.Vigil(ranks, result=None)

    def look(seconds, reports, ended):
        now.seconds, now.reports, now.ended = seconds, reports, ended
        watch.look()
        return watch.account()

    return look


def free(ranks, ended, patience, but=(), seen=None):
    return seen or vigil.rounds.where()


CIRCLE = [receives(0, 1, 1.2), receives(1, 2, 1.2), receives(2, 0, 1.2)]
ONE_LEFT = [raises(0), receives(1, 2, 2.0), raises(2)]
IN_A_CIRCLE = "Ranks 0, 1 and 2 wait in a circle"


def test_the_circle_is_kept_while_its_ranks_run_out_of_time_one_by_one(sees):
    sees(1.2, CIRCLE, {})
    account = sees(2.0, ONE_LEFT, {})
    assert IN_A_CIRCLE in str(account.diagnosis)
    assert not account.freed


def test_the_circle_is_kept_when_the_last_of_it_has_to_be_freed(sees):
    sees(1.2, CIRCLE, {})
    gone = [Report(0, "failed"), receives(1, 2, 2.2), Report(2, "failed")]
    account = sees(2.2, gone, {0: "failed", 2: "failed"})
    assert IN_A_CIRCLE in str(account.diagnosis)
    assert account.freed


def test_the_circle_is_kept_when_the_rest_of_it_have_ended_unheard(sees):
    sees(1.2, CIRCLE, {})
    unheard = [Report(0, "idle"), receives(1, 2, 2.1), Report(2, "idle")]  # no answer came yet
    account = sees(2.1, unheard, {})
    assert IN_A_CIRCLE in str(account.diagnosis)


def test_a_rank_that_joins_the_circle_is_told_of(sees):
    sees(1.0, [receives(0, 1, 1.0), receives(1, 0, 1.0), raises(2)], {})
    account = sees(1.5, [receives(0, 1, 1.5), receives(1, 0, 1.5), receives(2, 0, 0.5)], {})
    assert account.tells_of == [0, 1, 2]


def test_a_later_wait_takes_the_place_of_an_earlier_one(sees):
    sees(1.2, CIRCLE, {})
    account = sees(4.0, [raises(0), receives(1, 2, 1.5), raises(2)], {})
    assert IN_A_CIRCLE not in str(account.diagnosis)
    assert account.tells_of == [1]
