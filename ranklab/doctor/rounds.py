"""Asking the ranks where they are, also while they are stuck, and freeing those that are.

The answers come from witness.py, which runs on each rank; what they mean, taken together, is the
matter of diagnosis.py.
"""

import contextlib
import time

from ranklab.doctor import REQUEST, deaths, places, silent
from ranklab.doctor.diagnosis import STUCK, Diagnosis
from ranklab.doctor.one_rank import Report
from ranklab.upstream import ipyparallel as replies
from ranklab.upstream import torch as upstream

PATIENCE = 1.0  # seconds that a rank has to answer; one that is merely stuck takes milliseconds


def where(ranks, ended=None, patience=PATIENCE, but=()):
    """Return the Diagnosis of `ranks`.

    ended: {rank: "finished", "failed" or "died"}, as far as the kernel knows already.
    patience: seconds that a rank has to answer. but: ranks not to ask.
    """
    ended = dict(ended or {})
    ended.update((rank, "died") for rank in ranks.gone())
    asked = [r for r in range(len(ranks)) if ended.get(r) != "died" and r not in but]
    waiting = _send(ranks.client, "where", asked)
    said = _answers(waiting, patience)
    no_answer = set(range(len(ranks))) - said.keys() - ended.keys()
    in_one_call = silent.in_one_call(ranks, no_answer)
    said = _answers(waiting, 0)  # whoever was only late has answered meanwhile
    _forget(ranks, waiting)
    reports = []
    for rank in range(len(ranks)):
        if ended.get(rank) == "died":
            reports.append(deaths.report_of(ranks, rank))
        else:
            deaf = rank in in_one_call
            reports.append(_report(ranks, rank, said.get(rank), ended.get(rank), deaf))
    return Diagnosis(reports, patience=min(STUCK, ranks.timeout / 3))


def free(ranks, ended=None, patience=PATIENCE, but=(), seen=None):
    """End every communication that ranks wait in; return the Diagnosis from just before.

    The process group does not work any more after that; processes and variables live on.
    seen: that Diagnosis, where it was made already.
    """
    seen = seen or where(ranks, ended, patience=patience, but=but)
    _release_from_anyone(ranks, seen, patience)
    living = [r for r in seen.reports if seen.reports[r].state != "died" and r not in but]
    _ask(ranks, "free", living, patience)
    calls = [report.call for report in seen.reports.values() if report.call]
    if any(call["kind"] == "meeting" for call in calls) and isinstance(ranks.meeting, str):
        upstream.interrupt_meeting(ranks.meeting)
    return seen


def _release_from_anyone(ranks, diagnosis, patience):
    """Free the ranks that receive from anyone, by a message of another one (witness.py)."""
    for rank in diagnosis.waiting:
        call = diagnosis.reports[rank].call
        if call["kind"] != "recv" or call["peer"] is not None:
            continue
        able = [r for r in call["ranks"] if r != rank and r not in diagnosis.silent]
        if able := [r for r in able if diagnosis.reports[r].state != "died"]:
            _ask(ranks, "brace", [rank], patience)
            message = {"to": rank, "group": call["group"], "tag": call["tag"]}
            _ask(ranks, "release", able[:1], patience, **message)
            time.sleep(0.05)  # for the message to arrive, while there is a connection


def free_when_one_dies(ranks):
    """Have the others freed as soon as the hub tells that a rank died, whatever the kernel does.

    While the kernel waits for a cell, its vigil does it, which first looks where everybody was.
    """
    client = ranks.client

    def free_others():
        if ranks.client is client and not ranks.watched:
            with contextlib.suppress(OSError):  # it is being closed
                _send(client, "free", range(len(ranks)))

    replies.when_one_is_gone(client, free_others)


def _ask(ranks, what, targets, patience, **more):
    """Return {rank: its reply}, from those that answer in time."""
    waiting = _send(ranks.client, what, targets, **more)
    said = _answers(waiting, patience)
    _forget(ranks, waiting)
    return said


def _answers(waiting, patience):
    """Return {rank: its reply}, of those in {rank: the future of its reply} that come in time."""
    deadline = time.monotonic() + patience
    for future in waiting.values():
        future.wait(max(0.0, deadline - time.monotonic()))
    return {rank: future.result()["content"] for rank, future in waiting.items() if future.done()}


def _forget(ranks, waiting):
    """Wait no more for replies that may never come."""
    for future in waiting.values():
        if not future.done():
            replies.wait_no_more(ranks.client, future)


def _send(client, what, targets, **more):
    """Send a request to the control threads; return {rank: the future of its reply}."""
    return replies.ask(client, REQUEST, {"what": what, **more}, targets)


def _report(ranks, rank, said, ended, in_one_call):
    if said is None:
        return Report(rank, ended) if ended else silent.report_of(ranks, rank, in_one_call)
    if "error" in said:
        return Report(rank, ended or "silent", silence=f"the lab's own error: {said['error']}")
    recent = tuple(said.get("recent", ()))
    if ended:
        return Report(rank, ended, recent=recent, numbers=said.get("numbers", {}))
    frames = said.get("places", ())
    return Report(
        rank,
        said["state"],
        places.in_frames(frames, ranks.cell),
        said.get("call"),
        said.get("seconds", 0.0),
        recent,
        said.get("numbers", {}),
        line=places.outermost(frames, ranks.cell),
    )
