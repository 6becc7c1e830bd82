"""To which process group a communication belongs.

The profiler does not record it. As long as there is one group, there is nothing to ask. If there
are several, a dispatch mode, PyTorch's own way of looking on, notes the group of each call.
It costs some 3 µs for every operation, so it is not there for nothing.
"""

import threading

from ranklab.upstream import torch as upstream


def all_ranks():
    """The ranks of the default group, or those of one process."""
    import torch.distributed as dist

    return tuple(range(dist.get_world_size())) if in_a_group() else (0,)


def in_a_group():
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def several():
    """Is there another process group than the default one?"""
    return in_a_group() and len(upstream.groups()) > 1


class Watcher:
    """A context manager with `calls`: (thread, operation, ranks of its group) in order."""

    def __init__(self):
        self.calls = []
        self._mode = upstream.watcher(self._note)

    def __enter__(self):
        self._mode.__enter__()
        return self

    def __exit__(self, *error):
        return self._mode.__exit__(*error)

    def _note(self, operation, group):
        self.calls.append((threading.get_native_id(), operation, group and _ranks_of(group)))


def _ranks_of(group):
    import torch.distributed as dist

    try:
        return tuple(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return None  # a group that torch.distributed does not know by itself
