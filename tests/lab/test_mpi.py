"""Ranks under MPI, in a notebook's kernel: used as others are, told of as others are."""

import os
import signal

import pytest
from kernels import Notebook, all_ended, ended_by_a_restart, wait_until
from under_mpi import needs_mpi

from ranklab.start.guardian import belonging_to

pytestmark = needs_mpi

RESTART = (
    "A call of MPI that waits hears no interrupt, and nothing else ends it. Call ranks.restart(): "
    "it starts fresh processes, without the variables of these."
)
TIMEOUT = 4  # seconds: on a busy machine ranks come to a call a second apart
START = f'from ranklab import Ranks\nranks = Ranks(3, engines="mpi", timeout={TIMEOUT})'
BOTH = """%%px
import numpy
from mpi4py import MPI
comm = MPI.COMM_WORLD
x, y = torch.full((3,), float(rank)), numpy.full(3, float(rank))
dist.all_reduce(x)
comm.Allreduce(MPI.IN_PLACE, y)
same = x.tolist() == y.tolist() == [3.0] * 3"""


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook(IPP_NONINTERACTIVE="1")
    try:
        shown, error = notebook.run(START, 120)
        assert error is None, error
        assert shown.strip().startswith("3 ranks · gloo on cpu · ready in ")
        assert len(shown.strip().splitlines()) == 1
        yield notebook
    finally:
        notebook.close()


def works(notebook):
    """Do both, Gloo and MPI, give the right sum on every rank?"""
    assert notebook.run(BOTH) == ("", None)
    return notebook.value("ranks['same']") == [True] * 3


# As other ranks


def test_a_rank_has_its_names_and_the_rank_of_mpi_and_gloo_works_beside_mpi(notebook):
    assert works(notebook)
    cell = "%%px\nhere = rank, world_size, str(device), dist.get_rank(), comm.rank, comm.size"
    assert notebook.run(cell)[1] is None
    assert notebook.value("ranks['here']") == [(r, 3, "cpu", r, r, 3) for r in range(3)]
    assert works(notebook)  # the cell again


def test_a_process_that_a_rank_starts_is_no_rank(notebook):
    """It would take the words of mpiexec, where it found them, for its own."""
    alone = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    starts = (
        f"import subprocess, sys\nsays = subprocess.check_output([sys.executable, '-c', {alone!r}])"
    )
    assert notebook.run(f"%%px\n{starts}")[1] is None
    assert notebook.value("ranks['says']") == [b"1\n"] * 3


def test_a_rank_knows_how_many_are_on_its_host_as_under_torchrun(notebook):
    """And nothing else of what mpiexec has told it is left."""
    left = "[name for name in os.environ if name.startswith(('PMI', 'HYDI', 'MPI_LOCAL'))]"
    cell = f"%%px\nimport os\ntold = os.environ.get('LOCAL_WORLD_SIZE'), {left}"
    assert notebook.run(cell)[1] is None
    assert notebook.value("ranks['told']") == [("3", [])] * 3


def test_values_go_and_come(notebook):
    notebook.run("ranks['n'] = {'a': [1, 2]}\ndef plus(k):\n    return rank + k")
    assert notebook.value("ranks['n']") == [{"a": [1, 2]}] * 3
    assert notebook.value("ranks.run(plus, 5)") == [5, 6, 7]


def test_reset_gives_a_new_group_whatever_messages_of_mpi_are_left_over(notebook, tmp_path):
    # Whoever takes it for a meeting point makes this file.
    for_nobody = str(tmp_path / "nobody")
    left = f"from mpi4py import MPI\nif rank == 0:\n    MPI.COMM_WORLD.bcast({for_nobody!r})"
    assert notebook.run(f"%%px\n{left}\nkept = 7")[1] is None
    before = notebook.value("ranks.pids")
    assert notebook.run("ranks.reset()") == ("", None)
    summed = "x = torch.ones(1)\ndist.all_reduce(x)\nx = x.item()"
    assert notebook.run(f"%%px\n{summed}")[1] is None
    assert notebook.value("ranks['x'] + ranks['kept']") == [3.0] * 3 + [7] * 3
    assert (
        notebook.run("%%px\nfrom mpi4py import MPI\nif rank:\n    MPI.COMM_WORLD.bcast(None)")[1]
        is None
    )
    assert notebook.value("ranks.run(lambda: __import__('os').getpid())") == before


# Told of as others


FACTS = """{
    rank: (call["name"], call["kind"], call["peer"], call["root"], call["tag"], call["payload"])
    for rank, report in ranks.where().reports.items() if (call := report.call)
}"""
IN_MPI = {
    "%%px --noblock\nif rank == 1:\n    comm.Ssend(y, dest=rank - 1, tag=3)\n"
    "if rank == 2:\n    request = comm.Irecv([y, MPI.DOUBLE], 0)\n    request.Wait()": (
        {1: ("Ssend", "send", 0, None, 3, "float64[3]")}
        | {2: ("Irecv", "recv", 0, None, None, "float64[3]")},
        "%%px --targets 0\ncomm.Recv(y, source=1)\ncomm.Send(y, 2)",
    ),
    "%%px --noblock\npair = comm.Split(rank == 0)\nif rank:\n"
    "    pair.bcast('x', root=1) if rank == 1 else comm.sendrecv(rank, 0, source=MPI.ANY_SOURCE)": (
        {1: ("bcast", "collective", None, 2, 0, "")}
        | {2: ("sendrecv", "recv", None, None, None, "")},
        "%%px --targets 0\ncomm.send(comm.recv(source=2), dest=2)",
    ),
    "%%px --noblock\ndef gather(c, many):\n    return c.Gather(y, many, root=world_size - 1)\n"
    "if rank == 2:\n    gather(comm, numpy.empty((3, 3)))": (
        {2: ("Gather", "collective", None, 2, 0, "float64[3]")},
        "%%px --targets 0,1\ngather(comm, None)",
    ),
}


@pytest.mark.parametrize("cell", IN_MPI)
def test_where_names_the_calls_that_ranks_wait_in(notebook, cell):
    facts, frees_them = IN_MPI[cell]
    assert works(notebook)
    assert notebook.run(cell)[1] is None
    wait_until(lambda: notebook.value(FACTS) == facts)
    shown, _ = notebook.run("ranks.where()")
    assert "line " in shown
    notebook.run(frees_them)
    if "bcast" in cell:
        notebook.run("%%px --targets 2\npair.bcast('x', root=1)")
    wait_until(lambda: notebook.value("ranks.last_result.ready()"))
    assert works(notebook)


BACK_AND_FORTH = f"""%%px
import time
end = time.time() + {TIMEOUT + 1}
if rank == 0:
    while time.time() < end:
        comm.Send(y, 1); comm.Recv(y, 1)
    comm.Send(numpy.zeros(3), 1)
elif rank == 1:
    while comm.Recv(y, 0) or y.any():
        comm.Send(y, 0)"""


def test_many_calls_are_not_taken_for_one_that_is_stuck(notebook):
    """For longer than a rank may wait."""
    assert works(notebook)
    assert notebook.run(BACK_AND_FORTH) == ("", None)


def test_who_is_stuck_in_mpi_is_given_up_after_the_timeout_and_restart_goes_on(notebook):
    cell = "%%px\nif rank:\n    comm.Barrier()\nelse:\n    comm.Bcast(numpy.ones(2**20), root=0)"
    assert works(notebook)
    message = notebook.start(cell)
    shown, _ = notebook.outputs(message, until="The collectives do not match")
    # Not the first that is shown, where one rank came late: the others only waited then.
    assert f"No progress. A rank that waits gives up after {TIMEOUT} s" in shown
    _, error = notebook.outputs(message)
    assert error.startswith(
        f"RankError: No progress: after {TIMEOUT} s the cell was given up.\n\nThe collectives do "
        "not match: rank 0 calls Bcast (root 0), and rank 1 calls Barrier. "
    )
    for rest in ("    line 5: comm.Bcast(", "ranks 1 and 2 wait in Barrier\n    line 3: comm.Barr"):
        assert rest in error
    assert error.endswith(RESTART)
    _, error = notebook.run("ranks['same']")
    assert error.startswith("RankError: This cell has not begun, as an earlier one has not ended.")
    assert error.endswith(RESTART)
    _, error = notebook.run("ranks.reset()")
    assert error.startswith("RankError: There is no new process group yet") and RESTART in error
    assert notebook.run("ranks.restart()", 120)[1] is None
    assert works(notebook)


def test_an_interrupt_says_where_they_were_and_an_error_of_one_frees_the_cell_at_once(notebook):
    message = notebook.start("%%px\ncomm.recv(source=(rank + 1) % world_size, tag=7)")
    notebook.outputs(message, until="in a circle")
    notebook.manager.interrupt_kernel()
    _, error = notebook.outputs(message)
    assert error.startswith(
        "RankError: Interrupted.\n\nRanks 0, 1 and 2 wait in a circle: rank 0 waits in recv, to "
        "receive from rank 1 with tag 7 (line 2), rank 1 "
    )
    assert error.endswith(RESTART)
    assert notebook.run("ranks.restart()", 120)[1] is None
    assert works(notebook)
    _, error = notebook.run("%%px\nif rank == 1:\n    1 / 0\ncomm.Barrier()")
    assert error.startswith("RankError: rank 1 failed:\n    line 3: 1 / 0\nZeroDivisionError: ")
    assert "Ranks 0 and 2 wait in Barrier, but rank 1 has failed: nothing more comes" in error
    assert error.endswith(RESTART)
    assert notebook.run("ranks.restart()", 120)[1] is None


# The end


def test_a_rank_that_dies_is_named_and_mpiexec_ends_the_others(notebook):
    assert works(notebook)
    before = ended_by_a_restart(notebook.value("ranks.folder"))
    _, error = notebook.run(
        "%%px\nimport os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "comm.Barrier()"
    )
    assert error.startswith(
        "RankError: rank 1 died: the process is gone (killed by SIGKILL).\n\n"
        "ranks 0 and 2 went with it: mpiexec ends all ranks as soon as one dies.\n\n"
        "Call ranks.restart()"
    )
    assert notebook.run("%%px\n1")[1].startswith("RankError: rank 1 died")
    assert notebook.run("ranks.restart()", 120)[1] is None
    assert all_ended(before)
    assert works(notebook)


def test_a_killed_kernel_leaves_nothing_even_with_ranks_stuck(notebook, tmp_path):
    folder = notebook.value("ranks.folder")
    notebook.start(
        f"%%px\nopen(f'{tmp_path}/{{rank}}', 'w').close()\ncomm.Recv(y, source=(rank + 1) % 3)"
    )
    wait_until(lambda: len(os.listdir(tmp_path)) == 3)
    everybody = belonging_to(folder)
    names = [process.name() for process in everybody]
    assert "mpiexec" in names and "hydra_pmi_proxy" in names
    os.kill(notebook.pid, signal.SIGKILL)
    wait_until(lambda: all_ended(everybody) and not os.path.exists(folder))
