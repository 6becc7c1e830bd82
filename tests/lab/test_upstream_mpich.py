"""What MPICH, its mpiexec and mpi4py tell, on what is installed."""

import json
import os
import subprocess
from importlib import metadata

from borrowed import Borrowed
from under_mpi import mpiexec, needs_mpi

from ranklab.start import arguments
from ranklab.upstream import mpich

pytestmark = needs_mpi
HERE = Borrowed(mpich)
WORLD = "import time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
SENDS_TOO_MUCH = """if comm.rank:
    comm.Send(b"12345678", 0)
else:
    try:
        comm.Recv(bytearray(4), 1)
    except MPI.Exception as error:
        print(error)
"""
IN_MPI4PY = """import sys
from mpi4py.util import dtlib
from ranklab.upstream import mpich
sys.setprofile(lambda frame, *_: seen.append(frame))
seen = []
dtlib.from_numpy_dtype("i")
sys.setprofile(None)
print([mpich.is_of_mpi4py(frame) for frame in (seen[0], sys._getframe())])
"""


def aborts(tries=30):
    """What two ranks write while rank 1 aborts."""
    code = f"{WORLD}if comm.rank: comm.Abort(3)\ntime.sleep(120)"
    written = ""
    while not written and (tries := tries - 1):  # mpiexec may end before it hands it on
        written = mpiexec(2, "-c", code).stdout
    return written


def told():
    """The environment of a process that mpiexec has started, in a world of two."""
    code = "import json, os; print(end=json.dumps(dict(os.environ)) + chr(10))"
    lines = mpiexec(2, "-c", code, MINE="kept").stdout.splitlines()
    return [json.loads(line) for line in lines]


@HERE.each
def test_what_is_borrowed_is_there(borrowed):
    HERE.is_there(borrowed)


def test_the_variable_that_lets_ranks_rest_is_known_to_mpich():
    """Without it: ranks that wait take the cores from those that work."""
    libraries = [file for file in metadata.files("mpich") if "libmpi.so" in file.name]
    assert any(mpich.RESTING.encode() in file.read_binary() for file in libraries)


@HERE.tries(mpich.is_meant_by)
def _(ranks):
    command = [arguments.mpiexec(), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, timeout=250).stdout
    assert mpich.is_meant_by(version) and not mpich.is_meant_by("mpiexec (OpenRTE) 4.1.2")


@HERE.tries(mpich.rank_in, mpich.forget)
def _(ranks):
    environments = told()
    assert sorted(map(mpich.rank_in, environments)) == [0, 1]
    for environment in environments:
        assert int(environment[mpich.FILE]) > 2
        mpich.forget(environment, mpich.TOLD)
        assert environment["LOCAL_WORLD_SIZE"] == "2" and environment["MINE"] == "kept"
        left = environment.keys() - os.environ.keys()
        assert not [name for name in left if name.startswith(("PMI", "HYD", "MPI_"))]


@HERE.tries(mpich.is_of_mpi4py)
def _(ranks):
    assert mpiexec(1, "-c", IN_MPI4PY).stdout == "[True, False]\n"


@HERE.tries(mpich.words)
def _(ranks):
    said = "MPI: application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1"
    assert mpich.words(aborts()) == said
    assert mpich.words("nothing of MPI") == ""


@HERE.tries(mpich.without_stack)
def _(ranks):
    text = mpiexec(2, "-c", WORLD + SENDS_TOO_MUCH).stdout
    told = mpich.without_stack(text)
    assert "Message truncated: Message from rank 1 and tag 0 truncated; 4 bytes received" in told
    assert "error stack" in text and "error stack" not in told
