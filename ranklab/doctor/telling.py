"""When something goes wrong on the ranks: one short message instead of a traceback per rank.

It is made of what was found: failures (failures.py), and what a vigil saw (vigil.py).
"""

from ranklab.doctor import mismatch, sentences
from ranklab.errors import RankError, named
from ranklab.forgotten import OF_EACH_RANK
from ranklab.upstream import torch_says

SAYS = {  # causes before consequences
    "died": "died",
    "mismatch": "was told so",
    "error": "failed",
    "ended": "went with it: mpiexec ends all ranks as soon as one dies",
    "interrupted": "got the interrupt",
    "waited": "waited for another rank in vain",
    "busy": "did not answer: still busy, or stuck",
    "unreadable": "sent something that cannot be rebuilt here",
    "aborted": "did not start on this, because an earlier cell failed there",
}
LOST = {  # how ranks are lost that wait in MPI, what comes first in the error
    "timeout": "No progress: after {:g} s the cell was given up.",
    "failure": "",
    "before": "This cell has not begun, as an earlier one has not ended.",
    "interrupt": "Interrupted.",
}
FIRST_CONSEQUENCE = "waited"
TOLD_BY_PLACE = ("waited", "mismatch")  # each rank has words of its own for the same thing
CONSEQUENCES = ("waited", "interrupted", "busy")


def error_from(
    failures, name, names_in_kernel=(), account=None, broken_before=False, restarted=False
):
    """Make one RankError of what happened; `name` is what the reader calls the Ranks object.

    account: a vigil's Account of what the ranks waited for, where they were seen to be stuck.
    broken_before: did the process group break in an earlier cell? restarted: are the ranks not
    the first processes of this object?
    """
    kinds = {failure.kind for failure in failures}
    broken_before = broken_before and "waited" in kinds
    paragraphs = [_of_broken_group(name)] if broken_before else []
    # Of what one died, the collectives may say: that comes before the death then.
    causes = account.diagnosis.mismatches if account and "died" in kinds else ()
    paragraphs += map(sentences.difference, causes)
    paragraphs += _by_kind(failures, account, mismatches=not causes)
    paragraphs.append(_words_of_torch(failures, account))
    paragraphs.append(elsewhere(failures, name, names_in_kernel, restarted))
    if account and (account.freed or account.diagnosis.waiting):
        kinds.add("waited")
    if account and not account.diagnosis.silent and not account.gave_up:
        kinds.discard("busy")  # they were freed a moment ago
    if account and account.lost:
        kinds.add("lost")
    if not broken_before or kinds & {"died", "busy", "lost"}:
        paragraphs.append(what_next(kinds, name))
    return RankError("\n\n".join(filter(None, paragraphs)), failures)


def unnoticed(mismatches):
    """Make the RankError of collectives that do not match, where nobody failed of it."""
    said = map(sentences.difference, mismatches)
    return RankError("\n\n".join([*said, "Gloo did not notice: the results are wrong."]))


def _of_broken_group(name):
    return (
        "The process group broke in an earlier cell, so that no communication works: call "
        f"{name}.reset(), then run this cell again."
    )


def _by_kind(failures, account, mismatches):
    """Say what happened to the ranks, and where those were that waited; causes first."""
    told = account.tells_of if account else ()  # these need no paragraph of their own
    paragraphs = []
    for kind in SAYS:
        alike = {}  # ranks that waited at one place waited for one thing, whatever each was told
        for failure in failures:
            if failure.kind == kind and not (kind in CONSEQUENCES and failure.rank in told):
                key = failure.place, "" if kind in TOLD_BY_PLACE else _error(failure)
                alike.setdefault(key, []).append(failure)
        if account and kind == FIRST_CONSEQUENCE:
            paragraphs += _of_waits(account, mismatches)
        if kind == "mismatch" and alike:
            paragraphs += _of_mismatch(alike.values())
        else:
            paragraphs += [_paragraph(kind, group) for group in alike.values()]
    return paragraphs


def _error(failure):
    return sentences.death(failure.report) if failure.report else failure.error


def _of_waits(account, mismatches):
    """Say how the waiting ended, why nobody went on, and where each rank was."""
    why = account.diagnosis.conclusions(mismatches)
    if not account.tells_of:
        return why
    reports = account.diagnosis.reports.values()
    finished = [report.rank for report in reports if report.state == "finished"]
    where = account.diagnosis.paragraphs({*account.tells_of, *finished}, seconds=False)
    ending, before = _ending(account)
    return [ending, *why, before, *where]


def _ending(account):
    """Return (how the waiting ended, what introduces the places of the ranks)."""
    if account.interrupted:
        return "Interrupted.", "Before that:"
    if account.freed:
        return "", "The others could not go on, and were freed. Until then:"
    if account.lost:
        return LOST[account.lost].format(account.timeout), "This is where the ranks are:"
    if account.gave_up:
        return "No answer came.", "This is where the ranks are:"
    seconds = f"{account.timeout:g} s"
    return f"No progress: after {seconds} the ranks that waited gave up.", "Until then:"


def _words_of_torch(failures, account):
    """Return what those ranks were told that waited, where the places say the rest."""
    if not account or account.freed:
        return ""
    waited = [f for f in failures if f.kind == "waited" and f.rank in account.tells_of]
    return f"PyTorch's own words: {_most_telling(waited).error}" if waited else ""


def _of_mismatch(groups):
    """Say once what torch's checks told every rank, and where each of them was."""
    calls = {failure.rank: failure.called for group in groups for failure in group}
    where = [f"{named(f.rank for f in group)}:\n{group[0].place}" for group in groups]
    return [sentences.difference(mismatch.of_calls(calls)), *where]


def _most_telling(failures):
    # "Timed out" says more than "connection closed", which only says that another one timed out.
    return max(failures, key=lambda failure: (failure.timed_out, -len(failure.error)))


def _paragraph(kind, group):
    """Say what happened to ranks to which the same happened."""
    place, error = group[0].place, _error(_most_telling(group))
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
        what = failure.lacks
        if not what or failure.kind == "unreadable":
            continue
        if what == name:
            return f"`{name}` lives in this notebook: call it in a cell without %%px."
        if what in OF_EACH_RANK:  # there in each %%px cell, so it is no cell that lacks it
            return (
                f"`{what}` is a name of the %%px cells. A function that a module defines knows the "
                f"names of that module alone, on the ranks, too: give it what `{what}` is as an "
                "argument, or define the function in a cell."
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
    if "lost" in kinds:
        return (
            "A call of MPI that waits hears no interrupt, and nothing else ends it. Call "
            f"{name}.restart(): it starts fresh processes, without the variables of these."
        )
    if kinds & {"died", "busy", "ended"}:
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
