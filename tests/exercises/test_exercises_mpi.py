"""Checking answers on ranks under MPI: they are started once, and replaced where MPI is stuck."""

import os

import pytest
import torch.distributed as dist
from exercises_made_up import all_of, checkers, line_of, made_up_exercises

from ranklab import checks
from ranklab.exercises import check, checker_process
from ranklab.start import arguments

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not arguments.mpiexec(), reason="no mpiexec: the extra ranklab[mpi]"),
]
__all__ = ["made_up_exercises"]


def shifted(comm, x):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    return comm.sendrecv(x, dest=right, source=left)


def synchronous(comm, x):
    comm.ssend(x, dest=(comm.rank + 1) % comm.size)
    return comm.recv(source=(comm.rank - 1) % comm.size)


def nobody_comes(comm, x):
    if comm.rank:
        comm.Barrier()
    return shifted(comm, x)


def aborts(comm, x):
    if comm.rank == 1:
        os._exit(3)
    return shifted(comm, x)


def processes():
    return {process.pid for process in all_of(checkers(os.getpid())[0])}


def test_cases_and_wrong_results_and_errors_share_the_ranks():
    assert str(check("shifted", shifted)) == "Right: 3 cases, 1 to 3 ranks."
    before = processes()
    said = str(check("shifted", lambda comm, x: shifted(comm, -x)))
    assert "Wrong in case 1 of 3: 3 numbers, 3 ranks." in said and "Hint: Shift." in said
    other = str(check("shifted", checks.find("shifted").mistakes[0].wrong[0]))
    assert "Hint: It comes from the other side." in other
    assert "Ranks 0, 1 and 2 raised TypeError" in str(check("shifted", lambda comm: comm.rank))
    assert check("shifted", shifted)
    assert processes() == before


def test_a_deadlock_is_told_with_the_place_of_each_rank_and_the_ranks_are_replaced():
    assert check("shifted", shifted)
    before = processes()
    said = str(check("shifted", synchronous))
    line = line_of(synchronous, "ssend")
    assert (
        "It got stuck.\n\nRanks 0, 1 and 2 wait in a circle: rank 0 waits in ssend, to send" in said
    )
    assert "rank 2 waits in ssend, to send to rank 0\n" in said
    assert f"    line {line} of test_exercises_mpi.py, in synchronous: comm.ssend(" in said
    assert "Hint: Nobody receives while all send." in said
    assert check("shifted", shifted)
    assert len(processes() & before) == 3  # who checks, who cleans up, who has imported


def test_a_rank_that_dies_is_told_without_those_that_mpiexec_ended():
    said = str(check("shifted", aborts))
    assert "Rank 1 died: the process is gone (exit code 3)." in said
    assert said.count("died") == 1
    assert check("shifted", shifted)


@pytest.mark.everything
def test_others_get_ranks_without_mpi_again():
    assert str(check("many", dist.get_world_size)) == "Right: 1 case, 5 ranks."
    assert check("shifted", shifted)


HIDES_MPI4PY = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "mpi4py" else found(name, *more)
"""


def test_without_mpi_the_check_says_so(tmp_path, monkeypatch):
    checker_process.end()
    (tmp_path / "sitecustomize.py").write_text(HIDES_MPI4PY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    report = check("shifted", shifted)
    assert report.verdict == "open"
    assert str(report).startswith("shifted could not be checked: engines='mpi' needs mpiexec and")
