"""Reports of ranks, made up: of those that wait in a communication, that run, that have ended."""

from ranklab.doctor.diagnosis import Diagnosis
from ranklab.doctor.one_rank import Report


def call(name, kind, peer=None, ranks=(0, 1, 2), **more):
    known = {"name": name, "kind": kind, "peer": peer, "ranks": list(ranks), "group": "0"}
    known |= {"tag": 0, "payload": "float32[4]", "op": "", "root": None, "handle": False}
    return known | more


def receives(rank, peer, line=2, seconds=9.0, name="recv", **more):
    return waits(rank, call(name, "recv", peer, **more), line, seconds)


def sends(rank, peer, line=2, seconds=9.0, name="send", **more):
    return waits(rank, call(name, "send", peer, **more), line, seconds)


def collective(rank, name, line=2, seconds=9.0, **more):
    return waits(rank, call(name, "collective", **more), line, seconds)


def waits(rank, made, line, seconds):
    at = f"line {line}"
    return Report(rank, "running", f"    {at}: source", made, seconds, line=at)


def runs(rank, seconds=0.0):
    return Report(rank, "running", "    line 7: x @ x", None, seconds)


def ended(rank, state="finished"):
    return Report(rank, state)


def concluded(*reports):
    return Diagnosis(reports).conclusions()
