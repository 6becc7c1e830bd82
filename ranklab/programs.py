"""A program on ranks of its own, under MPI's launcher."""

import json
import os
import shutil
import subprocess
import sys

TOLD = ("PMI", "HYD", "MPI_", "OMPI_")  # what an mpiexec tells those that it has started


def mpiexec(program, *options, n=2, seconds=20, sleeps="1"):
    """Run the text of a Python program on n ranks, and end it after so many seconds.

    options: of Python, such as "-m", "mpi4py". sleeps: in MPICH, does a rank that waits sleep
    ("1") or spin ("0")? Returns what it printed, errors included, and its exit code, or "stuck".
    """
    beside = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    command = [beside or shutil.which("mpiexec"), "-n", str(n), sys.executable]
    fresh = {name: said for name, said in os.environ.items() if not name.startswith(TOLD)}
    fresh["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = sleeps
    running = subprocess.Popen(
        [*command, *options, "-c", program],
        env=fresh,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return running.communicate(timeout=seconds)[0], running.returncode
    except subprocess.TimeoutExpired:
        running.terminate()
        return running.communicate()[0], "stuck"


def last_line(program, **how):
    """Run a program by `mpiexec`; return what it prints in its last line, read as JSON."""
    return json.loads(mpiexec(program, **how)[0].splitlines()[-1])
