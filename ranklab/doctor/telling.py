"""When something goes wrong on the ranks: one short message instead of a traceback per rank."""

import re
from dataclasses import dataclass

from ranklab.doctor import mismatch, places
from ranklab.errors import RankError, named
from ranklab.upstream import cpython, torch_says
from ranklab.upstream.ipyparallel import UNREADABLE

LONGEST_MESSAGE = 2000  # characters
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """What happened to one rank: `kind` is a key of SAYS."""

    rank: int
    kind: str
    error: str = ""  # "ValueError: x must be positive"
    place: str = ""  # "line 3: y = f(x)"; several lines where functions of the reader are involved
    traceback: str = ""


SAYS = {  # causes before consequences
    "died": "died",
    "mismatch": "was told so",
    "error": "failed",
    "interrupted": "got the interrupt",
    "waited": "waited for another rank in vain",
    "busy": "did not answer: still busy, or stuck",
    "unreadable": "sent something that cannot be rebuilt here",
    "aborted": "did not start on this, because an earlier cell failed there",
}
FIRST_CONSEQUENCE = "waited"
TOLD_BY_PLACE = ("waited", "mismatch")  # each rank has words of its own for the same thing
CONSEQUENCES = ("waited", "interrupted", "busy")


def from_remote(rank, remote, first_line=None):
    """Read an ipyparallel RemoteError; `first_line` is what the reader's editor calls line 1."""
    if remote.ename == UNREADABLE:
        return Failure(rank, "unreadable", str(remote.evalue))
    if remote.ename == "EngineError":
        return Failure(rank, "died")
    text = COLOR.sub("", remote.traceback or "")
    if said := mismatch.found_by_torch(str(remote.evalue)):
        return Failure(rank, "mismatch", said, places.in_traceback(text, first_line), text)
    message = torch_says.without_noise(str(remote.evalue))
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} ... ({len(message):,} characters)"
    if remote.ename == "SyntaxError":
        message = cpython.without_file_of_cell(message)
    from_torch = remote.ename == "RuntimeError" or remote.ename.startswith("Dist")
    kind = "waited" if from_torch and torch_says.waited_in_vain(message) else "error"
    if remote.ename == "KeyboardInterrupt":
        kind = "interrupted"
    error = f"{remote.ename}: {message}" if message else remote.ename
    return Failure(rank, kind, error, places.in_traceback(text, first_line), text)


def error_from(
    failures, name, names_in_kernel=(), account=None, broken_before=False, restarted=False
):
    """Make one RankError of what happened; `name` is what the reader calls the Ranks object.

    account: a vigil's Account of what the ranks waited for, where they were seen to be stuck.
    broken_before: did the process group break in an earlier cell? restarted: are the ranks not
    the first processes of this object?
    """
    told = account.tells_of if account else ()  # these need no paragraph of their own
    paragraphs = []
    broken_before &= any(failure.kind == "waited" for failure in failures)
    if broken_before:
        paragraphs.append(
            "The process group broke in an earlier cell, so that no communication works: call "
            f"{name}.reset(), then run this cell again."
        )
    died = any(failure.kind == "died" for failure in failures)
    causes = account.mismatches if account and died else []
    paragraphs += causes
    for kind in SAYS:
        alike = {}  # ranks that waited at one place waited for one thing, whatever each was told
        for failure in failures:
            if failure.kind == kind and not (kind in CONSEQUENCES and failure.rank in told):
                key = (failure.place, failure.error if kind not in TOLD_BY_PLACE else "")
                alike.setdefault(key, []).append(failure)
        if account and kind == FIRST_CONSEQUENCE:
            paragraphs += account.paragraphs(but=causes)
        if kind == "mismatch" and alike:
            paragraphs += _of_mismatch(alike.values())
        else:
            paragraphs += [_paragraph(kind, group) for group in alike.values()]
    waited = [f.error for f in failures if f.kind == "waited" and f.rank in told]
    if waited and not account.freed:
        paragraphs.append(f"PyTorch's own words: {_most_telling(waited)}")
    paragraphs.append(elsewhere(failures, name, names_in_kernel, restarted))
    kinds = {failure.kind for failure in failures}
    if account and (account.freed or account.diagnosis.waiting):
        kinds.add("waited")
    if account and not account.diagnosis.silent and not account.gave_up:
        kinds.discard("busy")  # they were freed a moment ago
    if not broken_before or kinds & {"died", "busy"}:
        paragraphs.append(what_next(kinds, name))
    tracebacks = {failure.rank: failure.traceback for failure in failures}
    return RankError("\n\n".join(filter(None, paragraphs)), tracebacks)


def _of_mismatch(groups):
    """Say once what torch's checks told every rank, and where each of them was."""
    calls = {failure.rank: failure.error for group in groups for failure in group}
    where = [f"{named(f.rank for f in group)}:\n{group[0].place}" for group in groups]
    return [mismatch.sentence_of_calls(calls), *where]


def _most_telling(errors):
    # "Timed out" says more than "connection closed", which only says that another one timed out.
    return max(errors, key=lambda error: (torch_says.timed_out(error), -len(error)))


def _paragraph(kind, group):
    """Say what happened to ranks to which the same happened."""
    place = group[0].place
    error = _most_telling([failure.error for failure in group])
    who = named(failure.rank for failure in group)
    if kind == "died" and error:
        return "\n".join(filter(None, [f"{who} died: {error}", place]))
    return "\n".join(filter(None, [f"{who} {SAYS[kind]}{':' if place else '.'}", place, error]))


def elsewhere(failures, name, names_in_kernel, restarted=False):
    """Say so where the ranks lack what is there in the kernel, or was there before, or vice versa.

    restarted: are they fresh processes, without the variables of those before?
    """
    for failure in failures:
        if torch_says.has_no_world(failure.error):
            return f"The lab makes the process group: call {name}.reset() for a new one."
        if torch_says.has_a_world(failure.error):
            return "The lab has made the process group already: leave this call out."
        if torch_says.group_is_over(failure.error):
            return (
                f"This group was made before {name}.reset() or {name}.restart(), which ended it: "
                "make it again with dist.new_group."
            )
        what = cpython.missing_name(failure.error)
        if not what:
            continue
        if what == name:
            return f"`{name}` lives in this notebook: call it in a cell without %%px."
        if failure.kind == "unreadable":
            return (
                f"`{what}` is defined on the ranks and not in this notebook, which is another "
                "process. Pull what the object holds (numbers, tensors, a state_dict()), or define "
                f"`{what}` in a cell without %%px, too."
            )
        if what in names_in_kernel:
            return (
                f"`{what}` is there in this notebook, but not on the ranks, which are other "
                f'processes. Define it in a %%px cell, or send a value: {name}["{what}"] = {what}'
            )
        if restarted:
            return (
                f"If an earlier cell made `{what}`: {name}.restart() started fresh processes, "
                "without the variables of those before. Run that cell again, and what it needs."
            )
    return ""


def what_next(kinds, name):
    """Return the sentence that says what to call next."""
    if kinds & {"died", "busy"}:
        return f"Call {name}.restart(): it starts fresh processes, without the variables of these."
    if kinds & {"waited", "mismatch"}:
        return (
            f"The process group does not work any more. Call {name}.reset() for a new one: "
            "the variables stay."
        )
    if "aborted" in kinds:
        return f"Call {name}.reset(), then run the cell again."
    if "interrupted" in kinds:
        return (
            f"The ranks may be out of step now. Call {name}.reset() before they communicate again: "
            "the variables stay."
        )
    return ""
