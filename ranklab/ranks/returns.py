"""Waiting for what the ranks answer, so that no wait is forever and every error has its rank.

ipyparallel hands back an `AsyncResult` for each request. Three things may keep a rank from
answering: it waits for a message that never comes (the group's timeout ends that), it died (its
nanny tells the hub at once), or the controller between the notebook and the ranks is gone.
"""

import contextlib
import gc
import signal as signals
import threading
import time

from ipyparallel import RemoteError
from ipyparallel.error import TaskAborted
from IPython import get_ipython

from ranklab.doctor import mismatch, remains
from ranklab.doctor.diagnosis import Report
from ranklab.doctor.telling import Failure, error_from, from_remote
from ranklab.doctor.vigil import Vigil
from ranklab.errors import RankError
from ranklab.start import cluster
from ranklab.upstream import ipyparallel as replies
from ranklab.upstream import torch_says
from ranklab.upstream.ipyparallel import answer, parts

GRACE = 0.3  # seconds that the news of a death may come after what it led to
MARGIN = 5.0  # seconds that a rank gets beyond its timeout before it counts as stuck


def values(ranks, result, first_line=None, limit=None, signal="SIGINT"):
    """Wait for `result`; return the values in rank order, or raise RankError.

    first_line: the number that the reader's editor gives to the first line of the code that runs,
    where it is a cell. limit: seconds after which a silent rank counts as stuck; without it, a rank
    may compute for as long as it likes. signal: what Ctrl-C sends to the ranks.
    """
    vigil, broken_before, interrupt = Vigil(ranks, result), ranks.broken, None
    try:
        with _pressed_once():
            _wait(ranks, result, limit, vigil)
    except KeyboardInterrupt as error:
        interrupt = error
        with _deaf_to_ctrl_c():  # who is impatient presses twice
            vigil.interrupt(signal)
        gc.collect()  # the output of an endless print may be a gigabyte of garbage by now
    except RankError:  # the controller is gone
        vigil.clear()
        raise
    finally:
        vigil.end()
    found, failures = _collect(ranks, result, first_line)
    failures += _deaths(ranks, failures, vigil.freed)
    failures = [_with_cause_of_death(ranks, failure) for failure in failures]
    if any(failure.kind == "died" for failure in failures):
        vigil.look_back()
    if failures or vigil.freed:
        vigil.clear()
        ranks.broken |= vigil.freed or any(failure.kind == "waited" for failure in failures)
        names = _names_in_kernel()
        account = vigil.account()  # who is seen in a circle is not there for an old reason
        broken_before &= not account
        raise error_from(
            failures, ranks.name, names, account, broken_before, ranks.restarted
        ) from None
    if interrupt:  # the ranks were done when it reached them
        raise interrupt
    vigil.went_on()
    _check_collectives(result, found)
    return found


def _collect(ranks, result, first_line):
    """Return ([the value of each rank that has one], [a Failure for each other rank])."""
    found, failures = [], []
    for rank, there, said in _answers(result):
        if not there:
            failures.append(Failure(rank, "busy"))
        elif isinstance(said, TaskAborted):
            failures.append(Failure(rank, "aborted", _earlier_error(ranks, rank)))
        elif isinstance(said, RemoteError):
            failures.append(from_remote(rank, said, first_line))
        else:
            found.append(said)
    return found, failures


def _answers(result):
    """Yield (rank, is its answer there, the answer) for each rank that was asked."""
    if result.ready():
        yield from ((rank, True, said) for rank, said in replies.answers(result))
        return
    for rank, part in parts(result):
        # Asked once: ipyparallel's own thread may bring the answer at any moment.
        there = part.ready()
        yield rank, there, answer(part) if there else None


def _earlier_error(ranks, rank):
    """Return the error of the `%%px` before the last one on `rank`, if it is known."""
    for other, part in parts(ranks.earlier_result) if ranks.earlier_result else ():
        if other == rank and part.ready() and isinstance(said := answer(part), RemoteError):
            return from_remote(rank, said).error
    return ""


def _check_collectives(result, answers):
    """Raise RankError where ranks made collectives that do not match, and nobody noticed."""
    made = [replies.reply_to_cell(answer).get("collectives", ()) for answer in answers]
    asked = replies.asked(result)
    reports = [Report(rank, "finished", recent=made) for rank, made in zip(asked, made)]
    if said := mismatch.sentences(reports):
        raise RankError("\n\n".join([*said, "Gloo did not notice: the results are wrong."]))


@contextlib.contextmanager
def _pressed_once():
    """Let two Ctrl-C in a row be one.

    Where the second comes while the first is leaving `threading.Condition.wait`, Python gives up a
    lock that it does not hold, and all that it tells is a RuntimeError.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


@contextlib.contextmanager
def _deaf_to_ctrl_c():
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signals.signal(signals.SIGINT, signals.SIG_IGN)
    try:
        yield
    finally:
        signals.signal(signals.SIGINT, before)


def _deaths(ranks, failures, freed):
    """Return a Failure for each rank that died and was not asked, or had answered before."""
    echoes = [failure for failure in failures if failure.kind == "waited"]
    if not echoes and not freed:
        return []
    deadline = time.monotonic() + GRACE
    lost = not freed and not any(torch_says.timed_out(failure.error) for failure in echoes)
    while lost and not ranks.gone() and time.monotonic() < deadline:
        time.sleep(0.02)  # a closed connection is noticed before the hub tells of the death
    known = {failure.rank for failure in failures}
    return [Failure(rank, "died") for rank in sorted(ranks.gone() - known)]


def _names_in_kernel():
    shell = get_ipython()
    return shell.user_ns if shell else ()


def _wait(ranks, result, limit, vigil):
    began = time.monotonic()
    while not result.wait(vigil.until_next_look()):
        if not cluster.controller_runs(ranks.cluster):
            raise RankError(
                "The controller, which carries everything between this notebook and the ranks, is "
                f"gone. Call {ranks.name}.restart(): it starts fresh processes."
            )
        vigil.look()
        if vigil.freed and limit is None:
            began, limit = time.monotonic(), MARGIN
        if limit is not None and vigil.is_over(began, limit):
            vigil.give_up()
            return


def death_of(ranks, gone):
    """Make the RankError that says that the ranks in `gone` died, and of what."""
    return error_from([_with_cause_of_death(ranks, Failure(r, "died")) for r in gone], ranks.name)


def _with_cause_of_death(ranks, failure):
    if failure.kind != "died" or failure.rank >= len(ranks.pids):
        return failure
    report = remains.last_words(ranks, failure.rank)
    cause = remains.cause_of_death(ranks, failure.rank, report)
    return Failure(failure.rank, "died", cause, report.place)
