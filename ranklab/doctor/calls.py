"""Which communication a rank is in: read from the frames of its main thread, on the rank.

A call such as `dist.recv(box, src=1)` is a Python function of torch, so while it waits, its frame
is on the stack, and the frame holds the arguments. A handle (`dist.irecv(...).wait()`) is an object
of C++ and has no frame: for these, `keep_track` notes what each handle was made by, and lets its
`wait` leave a frame. Nothing else of torch is touched.
"""

import collections
import functools
import time
import weakref

import torch
import torch.distributed as dist

from ranklab.doctor import mismatch
from ranklab.upstream import torch as upstream

C10D = upstream.file_of_dist()
SENDS = {"send": "send", "isend": "send", "send_object_list": "send"}
RECEIVES = {"recv": "recv", "irecv": "recv", "recv_object_list": "recv"}
# What a collective of the reader is given; the first of these names that it knows.
PAYLOADS = ("tensor", "input_tensor", "input", "input_list", "input_tensor_list", "tensors")
COLLECTIVES = {
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"),
    *("all_gather_single", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"),
    *("reduce_scatter_single", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("all_reduce_coalesced", "all_gather_coalesced"),
}
# As a rule every rank of the world has to come, whoever is going to be in the group.
MEETINGS = {"init_process_group", "new_group", "split_group", "destroy_process_group"}
_last = collections.deque(maxlen=64)  # (began, ended, what it said of op and root); ns since 1970
_made_by = weakref.WeakKeyDictionary()  # handle: (name of the call, group, arguments)
_calls = 0  # so many that make a handle, as every call but a meeting does


def keep_track():
    """Note what each handle comes from, and count: once for a process, about 1 µs for each call."""
    upstream.wrap_handles(_noted, _waited)


def _noted(method, name):
    if hasattr(method, "__wrapped__"):
        return method

    @functools.wraps(method)
    def noted(group, *args, **kwargs):
        global _calls
        _calls += 1
        if method.__name__ in ("send", "recv") and len(args) > 1:
            _check_peer(args[1], group.size())
        note = [time.time_ns(), None, upstream.op_and_root(args)]
        if name not in ("isend", "irecv"):
            _last.append(note)
        try:
            handle = method(group, *args, **kwargs)
        finally:
            note[1] = time.time_ns()
        if handle is not None:
            _made_by[handle] = name, group, args
        return handle

    return noted


def _check_peer(peer, size):
    """Refuse a rank that is not there: Gloo would wait for it, or crash."""
    if not 0 <= peer < size:
        raise ValueError(f"there is no rank {peer}: the ranks of this group are 0 to {size - 1}")


def _waited(method):
    if hasattr(method, "__wrapped__"):
        return method

    @functools.wraps(method)
    def wait(handle, *args, **kwargs):
        return method(handle, *args, **kwargs)

    return wait


def op_and_root(moment):
    """Return {"op": ..., "root": rank in the group} of the call that went on at `moment` (ns)."""
    for began, ended, said in list(_last):
        if began <= moment and (ended is None or moment <= ended):
            return said
    return {}


def left_open():
    """Return the names of calls whose handles are still there and have not been waited for."""
    return [name for handle, (name, *_) in list(_made_by.items()) if not handle.is_completed()]


def count():
    """Return how many calls this process has made: while it is stuck, the number stays."""
    return _calls


def current(frames):
    """Return what `frames` (innermost first) are waiting in, as plain data, or None.

    {"name": "recv", "kind": "send", "recv", "collective" or "meeting", "peer": global rank or None,
    "ranks": the group's global ranks, "group": its name, "tag": ..., "payload": "float32[4]",
    "op": "SUM" or "", "root": global rank or None, "handle": was it called without waiting?}
    """
    for frame in reversed(frames):
        name = frame.f_code.co_name
        if frame.f_code.co_filename == C10D:
            if name in SENDS or name in RECEIVES:
                return _message(name, frame.f_locals)
            if name in COLLECTIVES:
                return _collective(name, frame.f_locals)
            if name in MEETINGS:
                return _meeting(name, frame.f_locals)
        elif frame.f_code.co_filename == __file__ and name == "wait":
            return _of_handle(frame.f_locals["handle"])
    return None


def of_record(made):
    """Return the call that an entry of torch's record stands for (witness.py)."""
    groups = upstream.groups().items()
    group = next((group for group, name in groups if name == made["group"]), None)
    return _call(made["name"], "collective", group, payload=mismatch.tensors_of(made))


def _message(name, arguments):
    kind = SENDS.get(name) or RECEIVES[name]
    end = "dst" if kind == "send" else "src"
    group, peer = arguments.get("group"), arguments.get(end)
    if peer is None and arguments.get(f"group_{end}") is not None:
        peer = _global_rank(group, arguments[f"group_{end}"])
    return _call(
        name, kind, group, peer=peer, tag=arguments.get("tag", 0), payload=_payload(arguments)
    )


def _collective(name, arguments):
    group, op = arguments.get("group"), ""
    if "op" in arguments and "reduce" in name:
        op = upstream.op_name(arguments["op"])
    end = next((end for end in ("src", "dst") if end in arguments), None)
    root = arguments.get(end) if end else None
    if end and root is None and arguments.get(f"group_{end}") is not None:
        root = _global_rank(group, arguments[f"group_{end}"])
    return _call(name, "collective", group, payload=_payload(arguments), op=op, root=root)


def _meeting(name, arguments):
    ranks = list(range(dist.get_world_size())) if dist.is_initialized() else []
    if arguments.get("use_local_synchronization") and arguments.get("ranks"):
        ranks = sorted(arguments["ranks"])
    return {**_call(name, "meeting", None), "ranks": ranks, "group": "the world"}


def _of_handle(handle):
    name, group, args = _made_by.get(handle, ("", None, ()))
    if not name:
        return None
    if name == "isend":
        tensors, peer, *tag = args
    elif name == "irecv":
        tensors, peer, *tag = args if len(args) > 2 else (args[0], None, *args[1:])
    else:
        payload = next((_described(a) for a in args if _described(a)), "")
        return {**_call(name, "collective", group, payload=payload), "handle": True}
    peer = None if peer is None else _global_rank(group, peer)
    call = _call(
        name, name[1:], group, peer=peer, tag=tag[0] if tag else 0, payload=_described(tensors)
    )
    return {**call, "handle": True}


def _call(name, kind, group, peer=None, tag=0, payload="", op="", root=None):
    known = {"name": name, "kind": kind, "peer": peer, "tag": tag, "payload": payload}
    known |= {"op": op, "root": root, "handle": False, "ranks": [], "group": ""}
    if dist.is_initialized():
        group = group if isinstance(group, dist.ProcessGroup) else dist.group.WORLD
        known["ranks"] = sorted(dist.get_process_group_ranks(group))
        known["group"] = group.group_name
    return known


def _global_rank(group, rank):
    return dist.get_global_rank(group if group is not None else dist.group.WORLD, rank)


def _payload(arguments):
    return next((_described(arguments[name]) for name in PAYLOADS if name in arguments), "")


def _described(value):
    """Return "float32[2, 3]"; for a list "2 × float32[3]"; "" for anything else."""
    if torch.is_tensor(value):
        shape = ", ".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
    if isinstance(value, (list, tuple)) and value and all(map(torch.is_tensor, value)):
        first = _described(value[0])
        return first if len(value) == 1 else f"{len(value)} × {first}"
    return ""
