"""Waiting until Gloo's own threads rest, before the profiler begins and before it ends.

Gloo tells who waits for an operation that it is over, and only then notes its end for the
profiler. In between, the profiler must not come or go: it would lose the end, or worse, the end
would be written into memory that is not the profiler's any more.
"""

import os
import time

from ranklab.upstream.torch import is_thread_of_gloo

PATIENCE = 1.0  # seconds; an operation that lasts longer is one that nobody has waited for


def settle():
    """Return when none of Gloo's threads runs (Linux), or after a moment (elsewhere)."""
    if not os.path.isdir("/proc/self/task"):
        time.sleep(0.001)
        return
    deadline = time.monotonic() + PATIENCE
    while _gloo_runs() and time.monotonic() < deadline:
        time.sleep(0.0005)


def _gloo_runs():
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                _, _, rest = file.read().partition("(")
        except OSError:
            continue  # it has ended
        name, _, fields = rest.rpartition(")")
        if is_thread_of_gloo(name) and fields.split()[0] == "R":
            return True
    return False
