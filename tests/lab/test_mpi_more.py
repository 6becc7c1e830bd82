"""What else goes wrong under MPI, and ranks under MPI that cannot be forked. Every night."""

import os
import signal

import pytest
from kernels import Notebook, all_ended, wait_until
from under_mpi import needs_mpi

from ranklab import Ranks
from ranklab.errors import RankError
from ranklab.start import arguments, mpi_world
from ranklab.start.guardian import belonging_to

pytestmark = [pytest.mark.everything, needs_mpi]

SETUP = """%%px
import numpy
from mpi4py import MPI
comm, x, box = MPI.COMM_WORLD, numpy.ones(4), numpy.zeros(4)
left, right = (rank - 1) % 3, (rank + 1) % 3"""
CIRCLE = "wait in a circle: rank 0 waits "
FAULTS = {  # the cell, and what is said
    "comm.Ssend(x, dest=right, tag=3)": (
        f"{CIRCLE}in Ssend, to send float64[4] to rank 1 with tag 3",
    ),
    "comm.Send([numpy.ones(2**20), MPI.DOUBLE], right)\ncomm.Recv(box, left)": (
        f"{CIRCLE}in Send, to send to rank 1 (line 2)",
        "nobody receives.",
    ),
    "request = comm.Irecv(box, source=left, tag=5)\nrequest.Wait()": (
        f"{CIRCLE}for its Irecv of float64[4] from rank 2 with tag 5 (line 3)",
    ),
    "comm.irecv(source=left).wait()": (f"{CIRCLE}for its irecv from rank 2 (line 2)",),
    "comm.Sendrecv(x, right, recvbuf=box, source=right)": (
        f"{CIRCLE}in Sendrecv, to receive float64[4] from rank 1 and to send to rank 1 (line 2)",
    ),
    "if rank == 0:\n    comm.Ssend(x, 1, tag=1)\nelif rank == 1:\n    comm.Recv(box, 0, tag=2)": (
        "Rank 0 sends to rank 1 with tag 1 (line 3), and rank 1 receives from rank 0 with tag 2",
    ),
    "pair = comm.Split(rank == 0)\nif rank:\n    pair.Recv(box, source=1 - pair.rank)": (
        "Ranks 1 and 2 wait in a circle: rank 1 waits in Recv, to receive float64[4] from rank 2",
    ),
    "if rank != 1:\n    comm.Allreduce(MPI.IN_PLACE, x)": (
        "Ranks 0 and 2 wait in Allreduce of float64[4], but rank 1 has finished the cell",
    ),
    "import time\nif rank == 0:\n    time.sleep(100)\ncomm.Barrier()": (
        "rank 0 runs\n    line 4: time.sleep(100)",
        "ranks 1 and 2 wait in Barrier\n    line 5: comm.Barrier()",
    ),
    "if rank == 0:\n    dist.recv(torch.zeros(2), src=1)\nelse:\n    comm.Recv(box, 0)": (
        "rank 0 waited for another rank in vain:\n    line 3: dist.recv(",
        "waits in Recv, to receive float64[4] from rank 0",
    ),
}


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    try:
        start = 'from ranklab import Ranks\nranks = Ranks(3, engines="mpi", timeout=1.5)'
        assert notebook.run(start, 120)[1] is None
        yield notebook
    finally:
        notebook.close()


@pytest.fixture
def fresh(notebook):
    """The ranks work, whatever the test before did to them."""
    if notebook.run(SETUP)[1]:
        assert notebook.run("ranks.restart()", 120)[1] is None
        assert notebook.run(SETUP)[1] is None
    return notebook


@pytest.mark.parametrize("cell", FAULTS)
def test_what_ranks_are_stuck_in_is_told(fresh, cell):
    _, error = fresh.run(f"%%px\n{cell}")
    for text in FAULTS[cell]:
        assert text.replace("waits", "wait") in error.replace("waits", "wait"), error
    assert "Call ranks.restart()" in error


@pytest.mark.parametrize(
    "dies, says",
    [
        ("os._exit(3)", "rank 1 died: the process is gone (exit code 3)."),
        ("os._exit(0)", "rank 1 died: the process is gone (exit code 0)."),
        ("os.kill(os.getpid(), 11)", "rank 1 died: the process is gone (killed by SIGSEGV)."),
        ("comm.Abort(3)", "MPI: application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1"),
    ],
)
def test_who_dies_is_named(fresh, dies, says):
    wait = "import os, time\nif rank == 1:\n"
    _, error = fresh.run(f"%%px\n{wait}    {dies}\ncomm.Barrier()\ntime.sleep(20)")
    assert error.startswith("RankError: rank 1 died: ") and says in error
    assert "ranks 0 and 2 went with it: mpiexec ends all ranks as soon as one dies." in error


# Ranks that mpiexec starts itself


def rank_1_dies():
    import os
    import signal

    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()


rank_1_dies.__module__ = "__main__"  # so that it is sent as it is


def test_ranks_that_are_not_forked_are_the_same(monkeypatch):
    monkeypatch.setenv("RANKLAB_NO_FORK", "1")
    with Ranks(2, engines="mpi", timeout=20) as ranks:
        assert ranks["rank"] == ranks["mpi_rank"] == [0, 1]
        everybody = belonging_to(ranks.folder)
        assert "importer_main" not in str([process.cmdline() for process in everybody])
        with pytest.raises(RankError, match=r"(?s)^ranks 0 and 1 died\..*ranks\.restart\(\)"):
            ranks.run(rank_1_dies)
        wait_until(lambda: all_ended([p for p in everybody if p.pid in ranks.pids]))
        ranks.restart()
        assert ranks["mpi_rank"] == [0, 1]
    assert all_ended(everybody)


def test_an_mpiexec_that_is_none_ends_the_start_with_its_words(monkeypatch, tmp_path):
    program = tmp_path / "mpiexec"
    program.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo HYDRA && exit\necho no good; exit 3\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(arguments, "mpiexec", lambda: str(program))
    monkeypatch.setattr("ranklab.start.cluster.mpiexec", lambda: str(program))
    assert mpi_world.is_of_mpich(str(program))
    with pytest.raises(RankError, match=r"mpiexec ended, with exit code 3, before all started"):
        Ranks(2, engines="mpi")


def test_a_fork_server_that_is_killed_takes_mpiexec_along():
    with Ranks(2, engines="mpi") as ranks:
        everybody = belonging_to(ranks.folder)
        world = [p for p in everybody if p.name() in ("mpiexec", "hydra_pmi_proxy")]
        assert len(world) == 2
        os.kill(ranks.cluster.engine_set.pid, signal.SIGKILL)
        wait_until(lambda: all_ended(world))
