"""Asking the ranks where they are, also while they are stuck, and freeing those that are.

The answers come from witness.py, which runs on each rank; what they mean, taken together, is the
matter of diagnosis.py.
"""

import contextlib
import json
import linecache
import os
import re
import signal
import time
from dataclasses import dataclass, replace

import psutil
from ipyparallel import RemoteError

from .. import cluster
from ..failure import KERNEL_CELL, NOT_THE_READERS, shortened
from . import REQUEST, mismatch
from .diagnosis import STUCK, Diagnosis, Report

PATIENCE = 1.0  # seconds that a rank has to answer; one that is merely stuck takes milliseconds
FOR_A_STACK = 0.3  # seconds that `faulthandler` has to write


@dataclass(frozen=True)
class LastCell:
    """The last `%%px` cell, for ranks that can say no more than a number of a line."""

    text: str = ""
    first_line: int = 2  # what the reader's editor calls the first line

    def line(self, number):
        """Return the line that Python counts as `number`, from 1."""
        lines = self.text.lstrip("\n").splitlines()  # IPython drops empty lines ahead
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def parts(result):
    """Return [(rank, the part of the result that comes from it), ...]."""
    # Not through the cache that ipyparallel has for it: that keeps the values of the last 128.
    split = type(result).split.__wrapped__(result)
    return list(zip(result._targets, split, strict=True))


def ended(ranks, result):
    """Return {rank: "finished", "failed" or "died"} for those that are through with `result`."""
    gone = ranks.gone()
    known = dict.fromkeys(gone, "died")
    for rank, part in parts(result):
        if rank not in gone and part.ready():
            answer = part.get(return_exceptions=True)
            answer = answer if part._single_result else answer[0]
            known[rank] = "failed" if isinstance(answer, RemoteError) else "finished"
    return known


def where(ranks, ended=None, patience=PATIENCE, but=()):
    """Return the Diagnosis of `ranks`.

    ended: {rank: "finished", "failed" or "died"}, as far as the kernel knows already.
    patience: seconds that a rank has to answer. but: ranks not to ask.
    """
    ended = dict(ended or {})
    ended.update((rank, "died") for rank in ranks.gone())
    asked = [r for r in range(len(ranks)) if ended.get(r) != "died" and r not in but]
    said = _ask(ranks, "where", asked, patience)
    reports = []
    for rank in range(len(ranks)):
        if ended.get(rank) == "died":
            report = last_words(ranks, rank)
            cause = cause_of_death(ranks, rank, report)
            reports.append(replace(report, note=f"    {cause}".rstrip()))
        else:
            reports.append(_report(ranks, rank, said.get(rank), ended.get(rank)))
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
        _interrupt_meeting(ranks.meeting)
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
    forget = client._notification_handlers["unregistration_notification"]

    def handle(message):
        forget(message)
        if ranks.client is client and not ranks.watched:
            with contextlib.suppress(OSError):  # it is being closed
                _send(client, "free", range(len(ranks)))

    client._notification_handlers["unregistration_notification"] = handle


def _interrupt_meeting(meeting):
    """Make ranks fail that wait at the meeting point (in `new_group`, say) for others to come.

    Every 10 ms they read a file, until it says what they wait for. From a folder of that name they
    get an error. Then the file is put back: a store without it ends its process.
    """
    aside = f"{meeting}-aside"
    with contextlib.suppress(OSError):
        os.rename(meeting, aside)
        os.mkdir(meeting)
        time.sleep(0.2)
        os.rmdir(meeting)
        os.rename(aside, meeting)


def _ask(ranks, what, targets, patience, **more):
    """Return {rank: its reply}, from those that answer in time."""
    waiting = _send(ranks.client, what, targets, **more)
    deadline = time.monotonic() + patience
    said = {}
    for rank, future in waiting.items():
        future.wait(max(0.0, deadline - time.monotonic()))
        if future.done():
            said[rank] = future.result()["content"]
        else:
            ranks.client._futures.pop(future.msg_id, None)  # its answer may never come
    return said


def _send(client, what, targets, **more):
    """Send a request to the control threads; return {rank: the future of its reply}."""
    engines = dict(client._engines)  # another thread takes out those that end
    return {
        rank: client._send(
            client._control_stream,
            REQUEST,
            content={"what": what, **more},
            ident=engines[rank].encode(),
        )
        for rank in targets
        if rank in engines
    }


def _report(ranks, rank, said, ended):
    if said is None:
        return Report(rank, ended) if ended else _silent(ranks, rank)
    if "error" in said:
        return Report(rank, ended or "silent", note=f"    the lab's own error: {said['error']}")
    recent = tuple(said.get("recent", ()))
    if ended:
        return Report(rank, ended, recent=recent, numbers=said.get("numbers", {}))
    place = _places(said.get("places", ()), ranks.cell)
    seconds = said.get("seconds", 0.0)
    return Report(
        rank, said["state"], place, said.get("call"), seconds, recent, said.get("numbers", {})
    )


def _places(places, cell):
    """Return the reader's lines, outermost first, as an error of a cell would show them."""
    said, this_cell = [], None
    for place in places:
        file, line = place["file"], place["line"]
        source = linecache.getline(file, line).strip()  # a cell of this notebook, or a file
        suffix = ""
        if KERNEL_CELL.search(file) and not source:  # a %%px cell: only the rank knows it
            this_cell = this_cell or file
            source = place["source"] or (cell.line(line) if file == this_cell else "")
            line += (cell.first_line if file == this_cell else 2) - 1
            suffix = "" if file == this_cell else " of an earlier cell"
        elif not KERNEL_CELL.search(file):
            suffix = f" of {os.path.basename(file)}"
        inside = f", in {place['in']}" if place["in"] else ""
        said.append(f"    line {line}{suffix}{inside}: {source or place['source']}")
    return "\n".join(shortened(said))


# Ranks that cannot answer


def _silent(ranks, rank):
    """Say what can be known of a rank whose process is there and does not answer."""
    pid = ranks.pids[rank] if rank < len(ranks.pids) else None
    try:
        status = psutil.Process(pid).status() if pid and ranks.one_host else None
    except psutil.Error:
        status = None
    if status == psutil.STATUS_STOPPED:
        note = "    its process is stopped (SIGSTOP); SIGCONT lets it go on"
        return Report(rank, "silent", note=note)
    places = _stack(ranks, pid) if status else []
    note = "    a long call that lets nothing else of Python run" if places else ""
    return Report(rank, "silent", _places(places, ranks.cell), note=note)


FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def _stack(ranks, pid):
    """Have `faulthandler` write the stack of a process; return the reader's places in it."""
    path = os.path.join(ranks.folder, f"stack-{pid}")
    try:
        before = os.path.getsize(path)
        os.kill(pid, signal.SIGUSR1)
    except (OSError, AttributeError):
        return []
    deadline = time.monotonic() + FOR_A_STACK
    text = ""
    while "(most recent call first)" not in text and time.monotonic() < deadline:
        time.sleep(0.02)
        with open(path) as file:
            file.seek(before)
            text = file.read()
    return _readers_frames(text)


def _readers_frames(text):
    """Return the places of the reader in what faulthandler wrote, outermost first."""
    found = []
    for file, line, function in FRAME.findall(text):
        if NOT_THE_READERS.search(file):
            continue
        inside = "" if function == "<module>" else function
        found.append({"file": file, "line": int(line), "in": inside, "source": ""})
    return found[::-1]


def cause_of_death(ranks, rank, report):
    """Say what ended the process of `rank`; report: its last words."""
    cause = cluster.cause_of_death(ranks.cluster, ranks.pids[rank])
    return mismatch.why_aborted(cause, report) or cause


def last_words(ranks, rank):
    """Return the Report of a rank that died, from what its process left behind, if anything."""
    pid = ranks.pids[rank] if rank < len(ranks.pids) else None
    try:
        with open(os.path.join(ranks.folder, f"last-words-{pid}")) as file:
            said = json.load(file)
    except (OSError, ValueError):
        said = {}
    places, recent = said.get("places", ()), tuple(said.get("recent", ()))
    if not places:  # a fault such as SIGSEGV: faulthandler wrote the stack
        with contextlib.suppress(OSError), open(os.path.join(ranks.folder, f"stack-{pid}")) as file:
            places = _readers_frames(file.read().rpartition("Fatal Python error")[2])
    return Report(rank, "died", _places(places, ranks.cell), said.get("call"), recent=recent)
