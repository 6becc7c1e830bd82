"""Start a script on ranks that are forked from this process, which has imported what they import.

    forked.py CODE RANKS SCRIPT [MPIEXEC]

launch.py has it run in a process that is itself forked from one that has imported torch: not to
import it in each rank is a third of what most scripts cost on two cores. Each rank finds in its
environment what torchrun would have noted there; or, where MPIEXEC is named, what that has noted:
the ranks take places in a world of MPI, as those of `Ranks(engines="mpi")` do. CODE is the file for
the exit code, that of the first rank that fails; the others are killed then.
"""

import contextlib
import importlib
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

from ranklab.start import mpi_world

MODULES = ["numpy", "matplotlib.pyplot"]  # what most scripts import, beside torch


def main(code, ranks, script, mpiexec=None):
    """Import, fork, wait, note the exit code. In a rank, which is forked: run the script."""
    as_if_just_started()
    for module in MODULES:
        with contextlib.suppress(ImportError):  # the script says so itself, if it needs it
            importlib.import_module(module)
    folder = os.path.dirname(code)
    places = mpi_world.places([mpiexec], ranks, folder) if mpiexec else [None] * ranks
    told = [{} for _ in places] if mpiexec else by_torchrun(ranks)
    started = {}
    for rank, place in enumerate(places):
        if child := os.fork():
            started[child] = place
        else:
            mpi_world.take(place, places)
            return be_rank(script, told[rank])
    mpi_world.hand_over(places)
    Path(code).write_text(str(wait_for(started)))


def as_if_just_started():
    """Heed PYTHONPATH, and the `sitecustomize` there, which may make ranklab absent (launch.py)."""
    for folder in reversed(os.environ["PYTHONPATH"].split(os.pathsep)):
        sys.path.insert(0, folder)
        runpy.run_path(os.path.join(folder, "sitecustomize.py"))


def by_torchrun(ranks):
    """What torchrun would have noted in the environment of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [{"RANK": str(r), "LOCAL_RANK": str(r), **size, **meeting} for r in range(ranks)]


def be_rank(script, told):
    """Run the script in this process, as the rank that it is told to be."""
    os.environ.update(told)
    sys.argv = [script]
    sys.path.insert(0, os.getcwd())  # as Python does for a script
    runpy.run_path(script, run_name="__main__")


def wait_for(started):
    """Return 0 when all have ended well, or the code of the first that has not. started: process
    id -> its place in the world of MPI, or None."""
    left = dict(started)
    while left:
        child, status = os.wait()
        place, code = left.pop(child, None), os.waitstatus_to_exitcode(status)
        if place:
            place.end(code)
        if code:
            for other in left:
                os.kill(other, signal.SIGKILL)
            return code
    return 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
