"""What ipyparallel's results hold: the part of each rank, and what it keeps for too long."""

import contextlib

from ipyparallel import AsyncResult, RemoteError

UNREADABLE = "Unreadable"  # stands where the name of a rank's error stands


def keep_unreadable(client):
    """Have `client` report what cannot be rebuilt here, such as an object of a rank's own class.

    Left alone, it logs the error in a thread of its own, and who waits for the answer waits on.
    """
    read = client._queue_handlers["apply_reply"]

    def handle(message):
        try:
            read(message)
        except Exception as error:
            request = message["parent_header"]["msg_id"]
            said = RemoteError(UNREADABLE, f"{type(error).__name__}: {error}", "")
            client.results[request] = said
            client._futures[request].set_result(said)

    client._queue_handlers["apply_reply"] = handle


def parts(result):
    """Return [(rank, the part of the result that comes from it), ...]."""
    # Not through the cache that ipyparallel has for it: that keeps the values of the last 128.
    split = type(result).split.__wrapped__(result)
    return list(zip(result._targets, split, strict=True))


def answer(part):
    """Return the value or the exception that came from one rank."""
    value = part.get(return_exceptions=True)
    return value if part._single_result else value[0]  # the only part of a list of one


def ended(ranks, result):
    """Return {rank: "finished", "failed" or "died"} for those that are through with `result`."""
    gone = ranks.gone()
    known = dict.fromkeys(gone, "died")
    for rank, part in parts(result):
        if rank not in gone and part.ready():
            known[rank] = "failed" if isinstance(answer(part), RemoteError) else "finished"
    return known


def forget(ranks, result):
    """Drop what ipyparallel keeps of a result for good, large values and long errors included."""
    # A rank may still work on it, and the ranks may be closed by now.
    with contextlib.suppress(RuntimeError, KeyError, TimeoutError, AttributeError):
        result.get(0, return_exceptions=True)
        ranks.client.purge_local_results(result)
    for cached in (AsyncResult.split, AsyncResult.__len__, AsyncResult._count_chunks):
        cached.cache_clear()  # each has the last 128 in it


def display(result, groupby):
    """Show what the ranks printed, as far as it has come; some may be stuck."""
    finished = [part for _, part in parts(result) if part.ready() and part.wait_for_output(0)]
    if finished:
        AsyncResult.join(*finished).display_outputs(groupby)
