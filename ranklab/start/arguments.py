"""What `Ranks(...)` was asked for, checked before anything is started.

`plan` turns the arguments into a `Plan`, or raises `ArgumentError` with one sentence that says what
is wrong and what to do.
"""

import math
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import psutil

from ranklab.errors import ArgumentError
from ranklab.start.devices import choose_device

BACKENDS = ("gloo", "nccl", "mpi")
ONE_MACHINE = ("ranklab", "local")  # launchers whose engines run beside the kernel
GIB = 2**30
WITHOUT_MPI = (
    "engines='mpi' needs mpiexec and mpi4py, which are not both here. The extra ranklab[mpi] has "
    "them, and so has `pip install mpi4py mpich`; on Windows, inside WSL."
)
MEMORY_PER_RANK = 0.35 * GIB  # a rank that has imported torch; the rest is the reader's tensors


@dataclass(frozen=True)
class Plan:
    """What to start. `devices` holds the name of each rank's device, in rank order."""

    world_size: int
    backend: str
    devices: tuple[str, ...]
    timeout: float  # seconds
    debug: bool
    engines: str  # the name of an ipyparallel launcher

    @property
    def under_mpi(self):
        """Are the ranks those of an MPI world, too?"""
        return self.engines == "mpi"


def plan(n, backend, device, timeout, debug, engines, replaced=0):
    """Check the arguments of `Ranks` and fill in what was left open.

    `replaced` is the number of ranks that will be gone when these start.
    """
    world_size = _world_size(n)
    engines = _launcher(engines)
    if engines in ONE_MACHINE:
        _check_memory(world_size, replaced * MEMORY_PER_RANK)
    gpus = count_gpus()
    backend, devices = _where(world_size, gpus, device, backend, engines)
    return Plan(world_size, backend, devices, _seconds(timeout), bool(debug), engines)


def count_gpus():
    """Return how many CUDA devices torch can use, without importing torch where there is none."""
    if "torch" not in sys.modules and not shutil.which("nvidia-smi"):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _world_size(n):
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ArgumentError(f"Ranks({n!r}): the number of ranks is a whole number from 1 up.")
    wanted = os.environ.get("RANKLAB_RANKS")
    if not wanted:
        return n
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ArgumentError(
            f"RANKLAB_RANKS={wanted}: this environment variable replaces the number of ranks, "
            "so it holds a whole number from 1 up, or is not set at all."
        )
    return int(wanted)


def _launcher(engines):
    if engines is None:
        return "ranklab"
    known = sorted(point.name for point in entry_points(group="ipyparallel.engine_launchers"))
    if not isinstance(engines, str) or engines.lower() not in known:
        raise ArgumentError(
            f"engines={engines!r} names no ipyparallel launcher. There are: {', '.join(known)}."
        )
    if engines.lower() == "mpi" and not (mpiexec() and find_spec("mpi4py")):
        raise ArgumentError(WITHOUT_MPI)
    return engines.lower()


def mpiexec():
    """Return the path of mpiexec, the one that was installed beside this Python first, or None."""
    return shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")


def _seconds(timeout):
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not number or not math.isfinite(timeout) or timeout <= 0:
        raise ArgumentError(
            f"timeout={timeout!r}: a rank waits for another one for a positive number of seconds."
        )
    return float(timeout)


def _where(world_size, gpus, device, backend, engines):
    """Return the backend and each rank's device."""
    if backend not in (None, *BACKENDS):
        raise ArgumentError(
            f"backend={backend!r} is not known. There are: {', '.join(BACKENDS)}. "
            "Leave it out to get the one that fits this machine."
        )
    here = engines in ONE_MACHINE  # else nobody knows yet how many ranks will share a host
    if backend == "nccl" and here and gpus < world_size:
        raise ArgumentError(
            f"backend='nccl' needs a GPU for each of the {world_size} ranks, and torch finds "
            f"{gpus} here. Take backend='gloo'."
        )
    if backend == "mpi":
        _check_mpi()
    wish = (str(device) if device is not None else None, backend or (None if here else "gloo"))
    try:
        found = [choose_device(rank, world_size, gpus, *wish) for rank in range(world_size)]
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    devices, backends = zip(*found, strict=True)
    if backend == "nccl" and "cpu" in devices:
        raise ArgumentError("backend='nccl' moves tensors between GPUs only. Take device='cuda'.")
    return backends[0], devices


def _check_mpi():
    import torch.distributed

    if not torch.distributed.is_mpi_available():
        raise ArgumentError(
            "backend='mpi': this build of torch has no MPI in it (the published ones never have). "
            "Take backend='gloo'; engines='mpi' starts the ranks by mpiexec all the same."
        )


def _check_memory(world_size, to_be_freed):
    free = available_memory() + to_be_freed
    fitting = int(free // MEMORY_PER_RANK)
    if world_size > fitting:
        raise ArgumentError(
            f"{world_size} ranks need about {world_size * MEMORY_PER_RANK / GIB:.1f} GiB of "
            f"memory, and {free / GIB:.1f} GiB are free: {fitting} would fit. Ask for fewer, or "
            "close other programs."
        )


def available_memory():
    """Return the bytes still to be had: the machine's, or its container's where that is less."""
    free = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return free
    if limit == "max":
        return free
    # Files that the system keeps in memory only because there is room for them.
    cache = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return min(free, int(limit) - used + cache)
