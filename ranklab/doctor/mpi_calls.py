"""Which call of MPI a rank is in: read from the frame of the reader's line, on the rank.

mpi4py's calls are of C and leave no frame. But the frame that calls one says at which instruction
it is, and so which expression that is: the method, and the values of its arguments, as far as they
can be known without running anything (expressions.py).
"""

import ast
import sys
import types

from ranklab.doctor import expressions
from ranklab.doctor.expressions import UNKNOWN
from ranklab.errors import named
from ranklab.upstream import mpich

SENDS = {"send", "ssend", "bsend", "rsend", "isend", "issend"}
BOTH = {"sendrecv", "sendrecv_replace"}
REQUESTS = {"wait", "waitall", "waitany", "waitsome"}
# These have a root, or an operation, where their parameters name one.
REDUCE, ROOTED = "buf recvbuf op root", "buf recvbuf root"
COLLECTIVES = {
    "bcast": "buf root",
    "ibcast": "buf root",
    "Reduce": REDUCE,
    "reduce": "buf op root",
    **dict.fromkeys(("Gather", "Gatherv", "Scatter", "Scatterv"), ROOTED),
    **dict.fromkeys(("gather", "scatter"), "buf root"),
    **dict.fromkeys(("Allreduce", "Iallreduce", "Scan", "Exscan"), "buf recvbuf op"),
    **dict.fromkeys(("allreduce", "scan", "exscan"), "buf op"),
    **dict.fromkeys(("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"), "buf"),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_block", "neighbor_allgather"), "buf"),
    **dict.fromkeys(("neighbor_alltoall", "neighbor_alltoallv"), "buf"),
    **dict.fromkeys(("barrier", "ibarrier", "dup", "split", "split_type", "create", "free"), ""),
    **dict.fromkeys(("create_cart", "create_graph", "disconnect", "fence", "allocate"), ""),
}
MESSAGES = {
    **dict.fromkeys(SENDS, "buf dest tag"),
    "recv": "buf source tag",
    "irecv": "buf source tag",
    "probe": "source tag",
    "mprobe": "source tag",
    "sendrecv": "buf dest sendtag recvbuf source recvtag",
    "sendrecv_replace": "buf dest sendtag source recvtag",
}
PARAMETERS = {**MESSAGES, **COLLECTIVES}  # by name; else by name in lower case
# What the first parameter may be called; and where there is MPI.IN_PLACE, the second one.
PAYLOADS = ("buf", "obj", "sendbuf", "sendobj", "recvbuf")
OPERATIONS = ("SUM", "MAX", "MIN", "PROD", "LAND", "LOR", "BAND", "BOR", "MAXLOC", "MINLOC")


def current(frames):
    """Return the call of MPI that `frames` (innermost first) wait in, as calls.current does.

    "mpi" is True in it. Where it sends and receives at once, it is given as what it receives, and
    "also" has what it sends. "known": is the peer known? If not, it is None.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    frame = next((f for f in frames if not mpich.is_of_mpi4py(f)), None)
    call = frame and mpi and expressions.call_in(frame)
    return _Look(mpi, frame).at(call) if call else None


class _Look:
    """A look at one call, of MPI or not, in a frame."""

    def __init__(self, mpi, frame):
        self.mpi, self.frame = mpi, frame
        self.names = expressions.names_of(frame)

    def at(self, call, handle=False):
        """Return what `current` does of it, or None where it is none of MPI."""
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
            return self.at(call.func.value, handle=True)  # comm.irecv(...).wait()
        owner, name = self._method(call)
        if name.lower() in REQUESTS:
            return self._of_request(call, name)
        parameters = PARAMETERS.get(name, PARAMETERS.get(name.lower()))
        if parameters is None:
            return None
        parameters = parameters.split()
        given = expressions.arguments(call, parameters, self.names)
        payload = next(filter(None, (described(given.get(one)) for one in PAYLOADS)), "")
        about = {"name": name, "mpi": True, "handle": handle, "payload": payload}
        about |= {"tag": 0, "peer": None, "op": "", "root": None, **self._communicator(owner)}
        if name.lower() in MESSAGES:
            return {**about, **self._message(name.lower(), given, about["ranks"])}
        if "root" in parameters:
            about["root"] = _translated(given.get("root", 0), about["ranks"])
        if "op" in parameters:
            about["op"] = self._operation(given.get("op", self.mpi.SUM))
        return {**about, "kind": "collective"}

    def _method(self, call):
        """Return (the object of MPI, the name of its method), or (UNKNOWN, "") if it is none."""
        match call.func:
            case ast.Attribute(value=of, attr=name):
                owner = expressions.value(of, self.names)
            case ast.Name(id=name):  # perhaps a method under another name
                bound = self.names.get(name)
                if type(bound) is not types.BuiltinMethodType:
                    return UNKNOWN, ""
                owner, name = bound.__self__, bound.__name__
            case _:
                return UNKNOWN, ""
        kind = owner if type(owner) is type else type(owner)
        if issubclass(kind, (self.mpi.Comm, self.mpi.Request, self.mpi.Win)):
            return owner, name
        # Of an object that is not known, a name in MPI's own spelling says enough.
        return UNKNOWN, name if owner is UNKNOWN and name[0].isupper() else ""

    def _communicator(self, comm):
        """Return a communicator's {"ranks": ..., "group": its name}; ranks as in the world."""
        mpi = self.mpi
        if not issubclass(type(comm), mpi.Intracomm):
            return {"ranks": [], "group": ""}
        if comm == mpi.COMM_WORLD:
            return {"ranks": list(range(mpi.COMM_WORLD.size)), "group": "MPI_COMM_WORLD"}
        group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
        ranks = list(group.Translate_ranks(range(group.size), world))
        group.Free(), world.Free()
        return {"ranks": ranks, "group": comm.Get_name() or f"of {named(ranks)}"}

    def _message(self, name, given, ranks):
        sent = self._end("send", given.get("dest", UNKNOWN), given.get("tag", 0), ranks)
        if name in SENDS:
            return sent
        anyone, any_tag = self.mpi.ANY_SOURCE, self.mpi.ANY_TAG
        source, tag = given.get("source", anyone), given.get("tag", any_tag)
        if name not in BOTH:
            return self._end("recv", source, tag, ranks)
        received = self._end("recv", source, given.get("recvtag", any_tag), ranks)
        sent = self._end("send", given.get("dest", UNKNOWN), given.get("sendtag", 0), ranks)
        payload = given.get("recvbuf") if name == "sendrecv" else given.get("buf")
        return {**received, "payload": described(payload), "also": sent}

    def _end(self, kind, peer, tag, ranks):
        rank = _translated(peer, ranks)
        known = rank is not None or (type(peer) is int and peer == self.mpi.ANY_SOURCE)
        tag = tag if type(tag) is int and tag != self.mpi.ANY_TAG else None
        return {"kind": kind, "peer": rank, "known": known, "tag": tag}

    def _operation(self, op):
        if type(op) is not self.mpi.Op:
            return ""
        return next((name for name in OPERATIONS if op == getattr(self.mpi, name)), "")

    def _of_request(self, call, name):
        """Return what a wait for requests waits for; of one request, that may be known."""
        request = call.func.value if isinstance(call.func, ast.Attribute) else None
        named = isinstance(request, ast.Name)
        made = expressions.given_once(self.frame, request.id) if named else None
        if isinstance(made, ast.Call) and (known := self.at(made, handle=True)):
            return known
        about = {"name": name, "mpi": True, "kind": "collective", "handle": False, "payload": ""}
        return about | {"peer": None, "tag": 0, "op": "", "root": None, "ranks": [], "group": ""}


def _translated(rank, ranks):
    """Return the number in the world of a communicator's rank; None where it is not known."""
    return ranks[rank] if type(rank) is int and 0 <= rank < len(ranks) else None


def described(payload):
    """Return "float32[2, 3]" of an array or a tensor, alone or as [array, type]; else ""."""
    if type(payload) is list and payload:
        payload = payload[0]
    of = type(payload).__module__, type(payload).__name__
    if of not in (("numpy", "ndarray"), ("torch", "Tensor")):
        return ""
    shape = ", ".join(map(str, payload.shape))
    return f"{str(payload.dtype).removeprefix('torch.')}[{shape}]"
