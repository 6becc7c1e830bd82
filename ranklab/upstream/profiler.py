"""What is used of PyTorch's profiler without being promised: how it is begun, and its events.

For a message it has two: `c10d::send`, the call, with peer and tag, and in it `gloo:send`, with
size and type, which lasts until somebody has waited for its end. For a collective, the call is on
the caller's thread and the operation on one of the backend's.
"""

import re
from dataclasses import dataclass
from math import prod

# What it calls the types of numbers.
_TYPES = {
    "bool": "bool",
    "signed char": "int8",
    "short int": "int16",
    "short": "int16",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "unsigned char": "uint8",
    "unsigned short": "uint16",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "long unsigned int": "uint64",
    "float": "float32",
    "double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "complex<Half>": "complex32",
    "complex<float>": "complex64",
    "complex<double>": "complex128",
}
# What it calls a collective: the name in torch.distributed, and which input is its root.
_COLLECTIVES = {
    "allreduce_": ("all_reduce", None),
    "allreduce_coalesced_": ("all_reduce", None),
    "broadcast_": ("broadcast", 2),
    "reduce_": ("reduce", 3),
    "allgather_": ("all_gather", None),
    "_allgather_base_": ("all_gather", None),
    "allgather_coalesced_": ("all_gather", None),
    "allgather_into_tensor_coalesced_": ("all_gather", None),
    "gather_": ("gather", 3),
    "scatter_": ("scatter", 3),
    "reduce_scatter_": ("reduce_scatter", None),
    "_reduce_scatter_base_": ("reduce_scatter", None),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", None),
    "alltoall_": ("all_to_all", None),
    "alltoall_base_": ("all_to_all", None),
    "barrier": ("barrier", None),
    "monitored_barrier_": ("barrier", None),
}
_MESSAGES = {"send": "send", "recv_": "recv", "recv_any_source_": "recv"}
_CALL = "c10d::"
_BACKEND = re.compile(r"(gloo|nccl|mpi|ucc|xccl):(\w+)")
_EVALUATE = "autograd::engine::evaluate_function: "
_ANNOTATION, _BACKWARD = 7, 1  # scopes, as torch numbers them
_OF_CUDA = re.compile(r"(cuda|cu)[A-Z]")  # calls of its libraries: cudaLaunchKernel, cuLaunchKernel
# What the profiler notes of itself and of CUDA's start, beside what the program does.
_ITS_OWN = (
    "Activity Buffer",
    "Buffer Flush",
    "CUPTI",
    "Instrumentation",
    "Iteration Start",
    "Lazy Function Loading",
    "Overhead",
    "Resource",
    "Runtime Triggered Module Loading",
    "Command Buffer Full",
    "PythonDispatch",
    "record_param",
)


def runs():
    """Is this process being profiled?

    Without it: a trace within a profile of the reader's own ends in a crash.
    """
    import torch

    return torch.autograd._profiler_enabled()


def of_all_threads():
    """Return PyTorch's profiler. (torch.profiler.profile around it loads sympy, 0.9 s.)

    It records all threads, whoever started them: the other way, an operation that ends after the
    profiler writes its end into memory that is not the profiler's any more.

    Without it: there is no `trace`, and so no timeline (all chapters from 6 on).
    """
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd.profiler import profile

    device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    return profile(
        use_cpu=True,
        use_device=device,
        use_kineto=True,  # else a GPU's kernels are left out, without a word
        record_shapes=True,
        experimental_config=everywhere,
    )


@dataclass(slots=True)
class Raw:
    """One event of the profiler's. thread: the system's number of it, or a GPU's stream."""

    name: str
    start: int
    end: int
    thread: int
    ended: bool
    scope: int
    inputs: list
    nbytes: int | None
    dtype: str
    link: tuple  # of autograd: (sequence number, thread of the forward pass)
    on_gpu: bool
    backend: str = ""  # the operation, for an event of a backend's: "all_reduce"
    number: int = 0  # of an operation on the CPU; what a GPU did has the one that asked for it
    is_note: bool = False  # made by `record_function`, or on a GPU by what it stands for

    def holds(self, other):
        """Does the other one begin while this one lasts, on the same thread?"""
        return self.thread == other.thread and self.start <= other.start and other.start <= self.end

    @property
    def is_call(self):
        """Is it a call of a communication?"""
        return self.name.startswith(_CALL)

    @property
    def message(self):
        """ "send" or "recv", for a call of one; else ""."""
        return _MESSAGES.get(self.name.removeprefix(_CALL), "") if self.is_call else ""

    @property
    def collective(self):
        """(the name in torch.distributed, which input is its root), for a call of one."""
        return _COLLECTIVES.get(self.name.removeprefix(_CALL), ("", None))

    @property
    def is_in_parts(self):
        """Is it the reduce-scatter of which Gloo makes an all-reduce for each rank's part?"""
        return self.name == f"{_CALL}reduce_scatter_"

    @property
    def is_region(self):
        """Does it stand for a `record_function`?"""
        own = self.backend or self.name.startswith("ProfilerStep")
        return self.scope == _ANNOTATION and not own and not self.on_gpu

    @property
    def optimizer(self):
        """ "SGD.step", where it is the step of an optimizer; else ""."""
        return self.name.partition("#")[2] if self.name.startswith("Optimizer.") else ""

    @property
    def is_backward(self):
        """Is it a part of a backward pass?"""
        return self.scope == _BACKWARD

    @property
    def evaluated(self):
        """The node of autograd's graph that it evaluates, by its name; else ""."""
        return self.name.removeprefix(_EVALUATE) if self.name.startswith(_EVALUATE) else ""

    @property
    def computes(self):
        """Is it an operation that computes something?"""
        if self.on_gpu:
            return not (self.name.startswith("nccl") or self.is_note)
        named = self.name.startswith((_CALL, "[", *_ITS_OWN)) or _OF_CUDA.match(self.name)
        return self.scope != _ANNOTATION and not self.backend and not named


def events(profiled):
    """Return the Raw events of a profiler that has ended, in order of their starts.

    Without it: there is no `trace`, and so no timeline (all chapters from 6 on).
    """
    found = map(_read, profiled.kineto_results.events())
    return sorted(found, key=lambda event: (event.start, -event.end))


def _read(event):
    name = event.name()
    match = _BACKEND.match(name)
    scope = event.scope()
    nbytes, dtype = _content(event.shapes(), event.dtypes())
    forward = event.fwd_thread_id()
    on_gpu = "CPU" not in str(event.device_type())
    return Raw(
        name=name,
        start=event.start_ns(),
        end=event.end_ns(),
        thread=event.device_resource_id(),
        ended=event.end_thread_id() != 0,
        scope=scope,
        inputs=event.concrete_inputs() if name.startswith(_CALL) else [],
        nbytes=nbytes,
        dtype=dtype,
        link=(event.sequence_nr(), forward if scope == _BACKWARD else event.start_thread_id()),
        on_gpu=on_gpu,
        backend=match[2] if match else "",
        number=event.linked_correlation_id() if on_gpu else event.correlation_id(),
        is_note=event.is_user_annotation(),
    )


def _content(shapes, dtypes):
    """Return (bytes, type) of the tensors among an event's inputs; (None, "") if unknown."""
    import torch

    nbytes, kind = 0, ""
    for shape, name in zip(shapes, dtypes):
        name = name.removeprefix("c10::")
        name = _TYPES.get(name, name.lower() if name.startswith("Float8") else "")
        if name:  # else it is no tensor
            nbytes, kind = nbytes + prod(shape) * getattr(torch, name).itemsize, name
    return nbytes, kind
