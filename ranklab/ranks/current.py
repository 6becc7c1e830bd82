"""One `Ranks` at a time in a kernel, and what the next one takes over: the process that imports."""

import atexit
import os

from ranklab.start import cluster, importer_process

_current = None  # the ranks of this kernel


def size():
    """Return how many ranks this kernel has."""
    return _current.world_size if _current else 0


def current():
    """Return the ranks of this kernel, or None."""
    return _current


def replace_by(ranks, plan):
    """Close the ranks that this kernel has, so that it never has two; return what stays of them."""
    global _current
    replaced = _current is not None and _current is not ranks
    kept = take_over(_current, plan) if replaced else None
    _current = ranks
    return kept


def forget(ranks):
    """Note that these ranks are being closed."""
    global _current
    if _current is ranks:
        _current = None


def take_over(former, plan):
    """Close former ranks, but for their importer, where it can make the next start faster.

    Return their guardian then, which goes on to watch over it, else None. plan: of that start.
    """
    guardian, kept = former._guardian, False
    pid = importer_process.pid_in(guardian.folder) if guardian else None
    if pid is None or not cluster.forks(plan):
        former.close()
        return None
    former._guardian = None
    try:
        former.close()
        kept = guardian.clear(but=[pid])
    finally:
        if not kept:
            former._guardian = guardian
            former.close()
    return guardian if kept else None


def _close_at_exit(kernel):
    if _current is not None and os.getpid() == kernel:  # not in a process that the kernel forked
        _current.close()


atexit.register(_close_at_exit, os.getpid())
