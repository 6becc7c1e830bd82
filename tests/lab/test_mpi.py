"""Ranks under MPI, in a notebook's kernel: used as others are, told of as others are."""

import os
import signal

import pytest
from kernels import Notebook, all_ended, ended_by_a_restart, wait_until

from ranklab.start import arguments
from ranklab.start.guardian import belonging_to

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not arguments.mpiexec(), reason="no mpiexec: pip install ranklab[mpi]"),
]

START = 'from ranklab import Ranks\nranks = Ranks(3, engines="mpi", timeout=2)'
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
    # Who waits in MPI computes all the time, unless it is told to rest.
    notebook = Notebook(IPP_NONINTERACTIVE="1", MPIR_CVAR_CH4_PROGRESS_THROTTLE="1")
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


def test_values_go_and_come(notebook):
    notebook.run("ranks['n'] = {'a': [1, 2]}\ndef plus(k):\n    return rank + k")
    assert notebook.value("ranks['n']") == [{"a": [1, 2]}] * 3
    assert notebook.value("ranks.run(plus, 5)") == [5, 6, 7]


def test_reset_gives_a_new_group_whatever_messages_of_mpi_are_left_over(notebook):
    left = "from mpi4py import MPI\nif rank == 0:\n    MPI.COMM_WORLD.bcast('for nobody')"
    assert notebook.run(f"%%px\n{left}\nkept = 7")[1] is None
    before = notebook.value("ranks.pids")
    assert notebook.run("ranks.reset()") == ("", None)
    assert notebook.run("%%px\nx = torch.ones(1)\ndist.all_reduce(x)")[1] is None
    assert notebook.value("[x.item() for x in ranks['x']] + ranks['kept']") == [3.0] * 3 + [7] * 3
    assert (
        notebook.run("%%px\nfrom mpi4py import MPI\nif rank:\n    MPI.COMM_WORLD.bcast(None)")[1]
        is None
    )
    assert notebook.value("ranks.run(lambda: __import__('os').getpid())") == before


# The end


def test_a_rank_that_dies_is_named_and_mpiexec_ends_the_others(notebook):
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
    wait_until(lambda: len(os.listdir(tmp_path)) == 3, 20)
    everybody = belonging_to(folder)
    names = [process.name() for process in everybody]
    assert "mpiexec" in names and "hydra_pmi_proxy" in names
    os.kill(notebook.pid, signal.SIGKILL)
    wait_until(lambda: all_ended(everybody) and not os.path.exists(folder), 10)
