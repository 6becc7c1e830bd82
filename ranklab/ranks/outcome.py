"""What came of a request to the ranks: their values, in rank order, or one error."""

from IPython import get_ipython

from ranklab.doctor import failures, telling, vigil
from ranklab.upstream import ipyparallel as replies


def values(ranks, result, first_line=None, limit=None, signal="SIGINT"):
    """Wait for `result`; return the values in rank order, or raise RankError.

    first_line: the number that the reader's editor gives to the first line of the code that runs,
    where it is a cell. limit, signal: as for vigil.watch.
    """
    broken_before = ranks.broken
    watched = vigil.watch(ranks, result, limit, signal, first_line)
    if watched.failures or watched.freed:
        raise _error(ranks, watched, broken_before) from None
    if watched.interrupt:  # the ranks were done when it reached them
        raise watched.interrupt
    if watched.mismatches:
        raise telling.unnoticed(watched.mismatches)
    return watched.values


def take(ranks, result, limit=None, shown_by=None):
    """Do as `values` does, for the last who wants to know of `result`.

    shown_by: show what was printed, ordered as `display` does.
    """
    try:
        return values(ranks, result, limit=limit)
    finally:
        if shown_by:
            replies.wait_for_output(result)
            replies.display(result, shown_by)
        replies.forget(ranks, result)


def of_unwatched(ranks, result):
    """Say how a cell with --noblock ended, which tells of no error by itself."""
    _, failed = failures.read(ranks, result, ranks.cell.first_line)
    if not failed:
        return "The last cell, with --noblock, has ended on every rank."
    ranks.broken |= _broke(failed)
    return f"The last cell, with --noblock, has ended.\n\n{_told(ranks, failed, None, False)}"


def _broke(failed):
    return any(failure.kind == "waited" for failure in failed)


def _error(ranks, watched, broken_before):
    failed, account = watched.failures, watched.account
    ranks.broken |= watched.freed or _broke(failed)
    ranks.lost |= account is not None and bool(account.lost)
    # Who is seen in a circle is not there for an old reason.
    return _told(ranks, failed, account, broken_before and not account)


def _told(ranks, failed, account, broken_before):
    shell = get_ipython()
    names = shell.user_ns if shell else ()
    return telling.error_from(failed, ranks.name, names, account, broken_before, ranks.restarted)


def death_of(ranks, gone):
    """Make the RankError that says that the ranks in `gone` died, and of what."""
    return telling.error_from([failures.of_dead(ranks, rank) for rank in gone], ranks.name)
