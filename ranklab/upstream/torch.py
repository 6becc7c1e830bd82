"""What is used of PyTorch without being promised: its process groups from inside.

(Of its profiler: profiler.py. What its errors say: torch_says.py.) torch is imported where it is
used: the kernel does without it.
"""

import contextlib
import json
import os
import time

# The methods of a process group that give a handle, by the name that the reader knows.
_METHODS = {
    "send": "isend",
    "recv": "irecv",
    "recv_anysource": "irecv",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
}
# The record and the checks call the types by their names in C++.
_TYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
# Imported by the first optimizer, and by DDP: a second, on each rank, unless it is there already.
LOADED_BY_OPTIMIZERS = "torch._dynamo"


def file_of_dist():
    """Return the file in which `dist.recv` and the others are: what their frames are known by.

    Without it: `ranks.where()` does not know what a rank waits for.
    """
    import torch.distributed as dist

    return dist.distributed_c10d.__file__


def is_of_torch(file):
    """Is it a file of torch's?

    Without it: `ranks.where()` does not know that a rank waits in the backward pass of DDP.
    """
    return "/torch/" in file.replace("\\", "/")


def is_of_distributed(file):
    """Is it a file of torch.distributed's?

    Without it: the timeline does not mark the communication that failed.
    """
    return "torch/distributed" in file.replace("\\", "/")


def wrap_handles(made, waited):
    """Put made(method, name) in the place of what makes a handle, waited(wait) in that of its wait.

    Without it: `ranks.where()` does not know what a rank waits for that waits for a handle.
    """
    import torch.distributed as dist

    for method, name in _METHODS.items():
        if hasattr(dist.ProcessGroup, method):
            setattr(dist.ProcessGroup, method, made(getattr(dist.ProcessGroup, method), name))
    dist.Work.wait = waited(dist.Work.wait)


def op_and_root(arguments):
    """Return {"op": "SUM" or None, "root": rank in the group or None} of what a method was given.

    Without it: the doctor does not see that ranks reduce by other operations, or to other roots.
    """
    options = (a for a in arguments if hasattr(a, "reduceOp") or hasattr(a, "rootRank"))
    options = next(options, None)
    op = op_name(options.reduceOp) if hasattr(options, "reduceOp") else None
    return {"op": op, "root": getattr(options, "rootRank", None)}


def op_name(op):
    """Return "SUM" for dist.ReduceOp.SUM, in whichever of its two forms.

    Without it: the doctor names operations by numbers, or not at all.
    """
    return str(getattr(op, "op", op)).rpartition(".")[2]


def groups():
    """Return {process group: its name}, of all that this process is in.

    Without it: of a rank stuck in another group than the world, the doctor does not know whom it
    waits for; traces give every communication to the world; and the check of `in_turn` ends.
    """
    import torch.distributed as dist

    return dict(dist.distributed_c10d._world.pg_names)


def calls_begun(group):
    """Return how many messages and collectives this process has begun in a group.

    Without it: the check of `in_turn`, an exercise of chapter 5, ends in an error of its own.
    """
    return group._get_sequence_number_for_group()


def limit_new_groups(timeout):
    """Have groups that `dist.new_group` makes wait for so long, instead of 30 minutes.

    It is sent to the ranks by value, which need not have ranklab.

    Without it: a deadlock in a group of the reader's own is not over after the timeout.
    """
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    c10d.default_pg_timeout = timeout
    if c10d.default_pg_nccl_timeout is not None:  # there is NCCL in this build of torch
        c10d.default_pg_nccl_timeout = timeout


limit_new_groups.__module__ = "__main__"  # else ipyparallel would look for it in this module


def recorded_collectives():
    """Return what PyTorch's flight recorder has of the last collectives, in the order of the calls.

    Each with its group (a name), its number in that group (from 1), name, sizes and dtypes of its
    tensors, whether it is over, and when it began (ns since 1970). It keeps 2000, or
    TORCH_FR_BUFFER_SIZE.

    Without it: the doctor cannot say which collectives do not match, or that DDP waits in its
    backward pass; and a trace guesses the sizes of collectives that overlap.
    """
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json
    except ImportError:  # another version of torch
        return []
    return [
        {
            "group": entry["process_group"][0],
            "number": entry["collective_seq_id"],
            "name": entry["profiling_name"].partition(":")[2],
            "sizes": entry["input_sizes"],
            "dtypes": entry["input_dtypes"],
            "over": entry["retired"],
            "began": entry["time_created_ns"],
        }
        for entry in json.loads(_dump_fr_trace_json()).get("entries", [])
        if not entry["is_p2p"]
    ]


def type_name(name):
    """Return "float32" for what the record and the checks call "Float".

    Without it: sentences on collectives that do not match call the types by other names.
    """
    return _TYPES.get(name.lower(), name.lower())


def interrupt_meeting(file):
    """Make processes fail that wait in a FileStore (in `new_group`, say) for others to come.

    Every 10 ms they read the file, until it says what they wait for. From a folder of that name
    they get an error. Then the file is put back: a store without it ends its process.

    Without it: a rank that alone calls `dist.new_group` is freed by the timeout only.
    """
    aside = f"{file}-aside"
    with contextlib.suppress(OSError):
        os.rename(file, aside)
        os.mkdir(file)
        time.sleep(0.2)
        os.rmdir(file)
        os.rename(aside, file)


def watcher(note):
    """Return a context manager that calls note(operation, process group) for each communication.

    It is a dispatch mode, PyTorch's own way of looking on.

    Without it: a trace with several process groups does not know to which a message belongs.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watcher(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                group = next(filter(None, map(_process_group, args)), None)
                note(f"c10d::{func.overloadpacket.__name__}", group)
            return func(*args, **(kwargs or {}))

        @classmethod
        def _should_skip_dynamo(cls):
            """No: to be left out by torch.compile, it would load torch._dynamo, 1 to 2 s."""
            return False

    return Watcher()


def _process_group(value):
    import torch

    if isinstance(value, torch.ScriptObject) and value._type().name() == "ProcessGroup":
        return torch.distributed.ProcessGroup.unbox(value)
    return None


def is_thread_of_gloo(name):
    """Is it the name of a thread in which Gloo works?

    Without it: a trace that ends right after a communication may crash the rank.
    """
    return name.startswith("pt_gloo")
