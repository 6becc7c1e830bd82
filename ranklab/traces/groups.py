"""To which process group a communication belongs.

The profiler does not record it. As long as there is one group, there is nothing to ask. If there
are several, a dispatch mode, PyTorch's own way of looking on, notes the group of each call.
It costs some 3 µs for every operation, so it is not there for nothing.
"""

import threading


def all_ranks():
    """The ranks of the default group, or those of one process."""
    import torch.distributed as dist

    return tuple(range(dist.get_world_size())) if in_a_group() else (0,)


def in_a_group():
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def several():
    """Is there another process group than the default one?"""
    import torch.distributed as dist

    return in_a_group() and len(dist.distributed_c10d._world.pg_map) > 1


def watcher():
    """Return a context manager with `calls`: (thread, operation, ranks of its group) in order."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watcher(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                name = f"c10d::{func.overloadpacket.__name__}"
                self.calls.append((threading.get_native_id(), name, _group_of(args)))
            return func(*args, **(kwargs or {}))

        @classmethod
        def _should_skip_dynamo(cls):
            """No: to be left out by torch.compile, it would load torch._dynamo, 1 to 2 s."""
            return False

    return Watcher()


def _group_of(args):
    """The global ranks of the process group among the arguments of a c10d operation."""
    import torch
    import torch.distributed as dist

    for value in args:
        if isinstance(value, torch.ScriptObject) and value._type().name() == "ProcessGroup":
            group = dist.ProcessGroup.unbox(value)
            try:
                return tuple(dist.get_process_group_ranks(group))
            except (KeyError, ValueError):
                return None  # a group that torch.distributed does not know by itself
    return None
