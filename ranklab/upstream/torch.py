"""What is used of PyTorch without being promised: its process groups from inside, and its words.

(Of its profiler: profiler.py.) torch is imported where it is used: the kernel reads the errors of
the ranks without it.
"""

import contextlib
import json
import os
import re
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
_OUTLIVED = re.compile(
    r"Group .* is not registered, please create group|is not initialized in the world group map"
)
# What a rank says when it waited in vain, or when the other end of its connection went away.
_WAITED = re.compile(
    r"[Tt]imed out|[Tt]imeout|Connection (closed|reset|refused)|pair closure|Broken pipe"
    r"|to pass monitoredBarrier"
)
# Parts of Gloo's messages that say nothing to a reader, and differ from rank to rank.
_NOISE = re.compile(
    r"\[/\S*\.(?:cc|cpp|h):\d+\] | \[[0-9a-f.:]+\]:\d+| This is typically caused by.*"
    r"|\[enforce fail at \S+\] err == 0\. ",
    re.S,
)
_ABORTED = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
_WORDS_OF_CPP = re.compile(r"what\(\): +(.*)")
# What the checks say on each rank: what this one calls, and then, not always rightly (a barrier is
# called something else), what another one does.
_FINGERPRINT = re.compile(
    r"Rank \d+ is running collective: CollectiveFingerPrint\((.*?)\), but Rank \d+ is running ",
    re.S,
)
_IN_A_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback")
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


# Process groups


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


# What its errors say


def waited_in_vain(message):
    """Does it say that a rank waited in vain, or that the other end of its connection went away?

    Without it: an error names every rank as a cause, not the one that failed or came late.
    """
    return _WAITED.search(message) is not None


def timed_out(message):
    """Does it say that the time was up, and not only that another rank went away?

    Without it: the error of a deadlock quotes the rank that knows least.
    """
    return "Timed out" in message


def without_noise(message):
    """Leave out of a message what says nothing to a reader, and differs from rank to rank.

    Without it: one failure of all ranks is told once for each, with addresses and file names.
    """
    return _NOISE.sub("", message).strip()


def has_no_world(message):
    """Does it say that there is no process group?

    Without it: who has destroyed it is not told to call `reset`.
    """
    return "Default process group has not been initialized" in message


def has_a_world(message):
    """Does it say that there is a process group already?

    Without it: who calls `init_process_group` in a cell is not told that the lab has done so.
    """
    return "initialize the default process group twice" in message


def group_is_over(message):
    """Does it say that a group's process group was ended?

    Without it: who uses a group from before `reset` is not told to make it again.
    """
    return _OUTLIVED.search(message) is not None


def words_of_cpp(output):
    """Return what C++ printed of the exception that ended a process; "" if nothing.

    Without it: the error does not say what a rank died of.
    """
    return next(reversed(_WORDS_OF_CPP.findall(output)), "")


def does_not_fit(message):
    """Return (bytes that came, bytes that fit) where Gloo says that a message does not; or None.

    Without it: the error does not say why Gloo aborted a rank.
    """
    found = _ABORTED.search(message)
    return found and (found[1], found[2])


def called_by_checks(message):
    """Return what the rank called on which torch's own checks found a mismatch; or None.

    {"name": "all_reduce", "shape": "[3]" or "", "dtype": "float32" or ""}.

    Without it: `Ranks(debug=True)` shows each rank's own words in place of one sentence.
    """
    found = _FINGERPRINT.search(message)
    if not found:
        return None
    text = found[1].replace("OpType", ", OpType")  # torch forgets this comma
    known = dict(re.findall(r"(\w+)=(\[.*?\]|[^,\]]*)", text))
    name = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather"}.get(known.get("OpType"))
    name = name or known.get("OpType", "a collective").lower()
    dtype = type_name(known.get("TensorDtypes", ""))
    return {"name": name, "shape": known.get("TensorShape", ""), "dtype": dtype}


def type_name(name):
    """Return "float32" for what the record and the checks call "Float".

    Without it: sentences on collectives that do not match call the types by other names.
    """
    return _TYPES.get(name.lower(), name.lower())


def is_of_a_worker(message):
    """Is it the text of an exception in a DataLoader's worker?

    Without it: a wrong answer that fails there (chapter 10) is told without the reader's line.
    """
    return _IN_A_WORKER.match(message) is not None
