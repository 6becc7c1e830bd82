"""What came back from each rank: its value, or how it failed, as plain data.

ipyparallel hands back an `AsyncResult` for each request; `read` takes it apart. telling.py puts
failures into words.
"""

import re
from dataclasses import dataclass

from ipyparallel import RemoteError
from ipyparallel.error import TaskAborted

from ranklab.doctor import deaths, mismatch, places
from ranklab.doctor.one_rank import Report
from ranklab.upstream import cpython, mpich, torch_says
from ranklab.upstream import ipyparallel as replies
from ranklab.upstream.ipyparallel import UNREADABLE, answer, parts

LONGEST_MESSAGE = 2000  # characters
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """What happened to one rank: `kind` is a key of telling.SAYS.

    lacks: the name that is not there. timed_out: did it wait in vain for as long as it may?
    called: what it called where torch's own checks found a mismatch. report: of a dead one.
    """

    rank: int
    kind: str
    error: str = ""  # "ValueError: x must be positive"
    place: str = ""  # "line 3: y = f(x)"; several lines where functions of the reader are involved
    traceback: str = ""
    lacks: str = ""
    timed_out: bool = False
    called: mismatch.Called | None = None
    report: Report | None = None


def read(ranks, result, first_line=None):
    """Return ([the value of each rank that has one], [a Failure for each other rank]).

    first_line: what the reader's editor calls line 1 of the code that ran, where it is a cell.
    """
    found, failures = [], []
    for rank, there, said in _answers(result):
        if not there:
            failures.append(Failure(rank, "busy"))
        elif isinstance(said, TaskAborted):
            failures.append(_aborted(ranks, rank))
        elif isinstance(said, RemoteError):
            failures.append(_failure(ranks, rank, said, first_line))
        else:
            found.append(said)
    return found, failures


def unnoticed(result, answers):
    """Return the collectives that do not match, though all ranks went through the cell."""
    made = [replies.reply_to_cell(answer).get("collectives", ()) for answer in answers]
    asked = replies.asked(result)
    return mismatch.found(Report(r, "finished", recent=some) for r, some in zip(asked, made))


def _answers(result):
    """Yield (rank, is its answer there, the answer) for each rank that was asked."""
    if result.ready():
        yield from ((rank, True, said) for rank, said in replies.answers(result))
        return
    for rank, part in parts(result):
        # Asked once: ipyparallel's own thread may bring the answer at any moment.
        there = part.ready()
        yield rank, there, answer(part) if there else None


def _aborted(ranks, rank):
    """Return the Failure of a rank that did not begin: the `%%px` before this one failed there."""
    for other, part in parts(ranks.earlier_result) if ranks.earlier_result else ():
        if other == rank and part.ready() and isinstance(said := answer(part), RemoteError):
            earlier = _failure(ranks, rank, said)
            return Failure(rank, "aborted", earlier.error, lacks=earlier.lacks)
    return Failure(rank, "aborted")


def of_dead(ranks, rank):
    """Return the Failure of a rank whose process is gone."""
    report = deaths.report_of(ranks, rank)
    how = report.death.exit
    kind = "ended" if how and how.by_mpiexec else "died"
    return Failure(rank, kind, place=report.place, report=report)


def _failure(ranks, rank, remote, first_line=None):
    """Read ipyparallel's RemoteError."""
    if remote.ename == UNREADABLE:
        said = str(remote.evalue)
        return Failure(rank, "unreadable", said, lacks=cpython.missing_name(said))
    if remote.ename == "EngineError":
        return of_dead(ranks, rank)
    text = COLOR.sub("", remote.traceback or "")
    place = places.in_traceback(text, first_line)
    if called := mismatch.found_by_torch(str(remote.evalue)):
        return Failure(rank, "mismatch", place=place, traceback=text, called=called)
    message = _message(remote)
    error = f"{remote.ename}: {message}" if message else remote.ename
    kind, late = _kind(remote.ename, message), torch_says.timed_out(message)
    return Failure(rank, kind, error, place, text, cpython.missing_name(error), timed_out=late)


def _message(remote):
    """Return what an error says, without what is of no use to a reader."""
    message = torch_says.without_noise(mpich.without_stack(str(remote.evalue)))
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} ... ({len(message):,} characters)"
    if remote.ename == "SyntaxError":
        message = cpython.without_file_of_cell(message)
    return message


def _kind(name, message):
    if name == "KeyboardInterrupt":
        return "interrupted"
    from_torch = name == "RuntimeError" or name.startswith("Dist")
    return "waited" if from_torch and torch_says.waited_in_vain(message) else "error"
