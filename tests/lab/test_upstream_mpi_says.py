"""What MPICH and its mpiexec write, on what is installed."""

import subprocess
import sys

import pytest
from borrowed import Borrowed

from ranklab.start import arguments
from ranklab.upstream import mpi_says

pytestmark = pytest.mark.skipif(not arguments.mpiexec(), reason="no mpiexec: ranklab[mpi]")
HERE = Borrowed(mpi_says)
WORLD = "import time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
RECEIVES_TOO_MUCH = """else:
    try:
        comm.Recv(bytearray(4), 1)
    except MPI.Exception as error:
        print(error, flush=True)
        comm.Abort()
"""


def ended(rank_1_does):
    """What two ranks write while rank 1 ends in its own way."""
    code = f"{WORLD}if comm.rank: {rank_1_does}\ntime.sleep(30)"
    command = [arguments.mpiexec(), "-n", "2", sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return ran.stdout + ran.stderr


@HERE.each
def test_what_is_borrowed_is_there(borrowed):
    HERE.is_there(borrowed)


@HERE.tries(mpi_says.words)
def _(ranks):
    text = ended("comm.Abort(3)")
    assert mpi_says.words(text) == (
        "MPI: application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1"
    )
    assert mpi_says.words("nothing of MPI") == ""


@HERE.tries(mpi_says.without_stack)
def _(ranks):
    text = ended(f"comm.Send(b'12345678', 0)\n{RECEIVES_TOO_MUCH}")
    told = mpi_says.without_stack(text)
    assert "Message truncated: Message from rank 1 and tag 0 truncated; 4 bytes received" in told
    assert "error stack" in text and "error stack" not in told
