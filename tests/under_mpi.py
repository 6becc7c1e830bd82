"""Programs started by mpiexec, for tests."""

import importlib.util
import os
import subprocess
import sys

import pytest

from ranklab.start import arguments
from ranklab.upstream import mpich

needs_mpi = pytest.mark.skipif(
    not (arguments.mpiexec() and importlib.util.find_spec("mpi4py")),
    reason="no MPI: pip install mpich mpi4py",
)


def mpiexec(n, *command, limit=120, cwd=None, **environment):
    """Run a program of Python on n ranks; return what became of it."""
    # A process that has started MPI hands these on, and its children take themselves for ranks.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(mpich.TOLD)}
    # Ranks that wait sleep: with fewer cores than ranks, messages are ten times as fast so.
    clean |= {"OMP_NUM_THREADS": "1", mpich.RESTING: "1", **environment}
    return subprocess.run(
        [arguments.mpiexec(), "-n", str(n), sys.executable, *map(str, command)],
        env=clean,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
