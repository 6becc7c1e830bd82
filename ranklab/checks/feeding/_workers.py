"""Workers of a DataLoader that do not go on for ever."""

import signal
from functools import partial

LIMIT = 4  # seconds
NOT_DONE = f"a worker was not done after {LIMIT} s, and was interrupted"


def _begin(init, worker_id):
    """Begin a worker that is interrupted at the line that it is at, should it go on for long."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    if init:
        init(worker_id)


def _interrupt(*_):
    raise TimeoutError(NOT_DONE)


def forked(workers, init=None):
    """Options of a DataLoader with so many workers."""
    if not workers:
        return {}
    how = {"num_workers": workers, "multiprocessing_context": "fork"}
    return how | {"worker_init_fn": partial(_begin, init)}
