"""Scripts whose ranks talk through MPI: how they are started, and how they end."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from launch import results_in, run_script
from small_notebooks import IMPORTS, RANKS, whole, with_ranks

from ranklab.upstream import mpich

BY_MPI = 'ranks = Ranks(4, engines="mpi")'
MPI = "%%px\nfrom mpi4py import MPI\nn = MPI.COMM_WORLD.size"
INSIDE = "%%px\ndef size():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD.size"

# What a process that MPI or torchrun has started finds in its environment.
TOLD = (*mpich.TOLD, "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_")


def environment(**more):
    """This one's, without what would make a rank of a script; two ranks are enough."""
    here = {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}
    return {**here, "RANKLAB_RANKS": "2", **more}


@pytest.fixture
def script(tmp_path):
    """Writes the script of a notebook with these cells, whose ranks talk through MPI."""

    def write(*cells):
        path = tmp_path / "x.py"
        path.write_text(whole(IMPORTS, BY_MPI, *cells))
        return path

    return write


def run(*command, **more):
    """Run a command; its exit code and what it said, for which it has a minute."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, env=environment(**more)
    )
    return done.returncode, done.stdout + done.stderr


def test_a_script_says_its_launchers():
    text = whole(IMPORTS, BY_MPI, MPI)
    assert "ways:\n#     python x.py\n#     mpiexec -n 4 python x.py\n# The ranks use" in text
    assert "\n# pip install mpi4py mpich torch\n" in text
    apart = whole(IMPORTS, RANKS, MPI)
    assert "\n#     mpiexec" not in apart and "\n#     torchrun" in apart
    assert apart.index("Each rank is an MPI world") < apart.index("\n    start_ranks()\n")
    for cells in ([RANKS, "%%px\nx = 1"], [BY_MPI, "%%px\nx = 1"]):
        text = whole(IMPORTS, *cells)
        assert "MPI world" not in text and "end_all" not in text and "\n#     torchrun" in text


@pytest.mark.parametrize("cell", [MPI, INSIDE])
def test_ranks_are_started_before_mpi_is(cell):
    """To import mpi4py is to start MPI, and the process that becomes mpiexec must not have it."""
    text = whole(IMPORTS, BY_MPI, cell)
    started = text.index("\n    start_ranks()\n")
    assert "\nimport shutil\n" in text[:started] and "from mpi4py import MPI" not in text[:started]
    assert started < text.index("\nimport torch\n") < text.index("\nask_mpi()\n")
    assert "torchrun import" not in text and "\n        from mpi4py" not in with_ranks("x = 1")


def test_torchrun_is_told_once_that_it_is_the_wrong_launcher(script):
    path = script(MPI)
    code, said = run(sys.executable, path, RANK="0", WORLD_SIZE="2")
    assert code == 1 and said.strip().endswith(f"Start them with: mpiexec -n N python {path}")
    assert len(said.splitlines()) == 1
    assert run(sys.executable, path, RANK="1", WORLD_SIZE="2") == (0, "")


def test_what_is_missing_is_named(script, tmp_path):
    path = script(MPI)
    told = "The ranks talk through MPI, and {} is missing: pip install mpich mpi4py\n".format
    for started in ({}, {"PMI_RANK": "0"}):  # -S: without any package
        assert run(sys.executable, "-S", path, **started) == (1, told("mpi4py"))
    python = tmp_path / "python"  # beside which there is no mpiexec
    python.symlink_to(sys.executable)
    assert run(python, path, PATH=str(tmp_path)) == (1, told("mpiexec"))


WHOLE = (
    MPI,
    "%%px\nx = torch.full((2,), float(rank + 1))\ndist.all_reduce(x)\n"
    "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x.numpy())\ny = x[0].item()",
    "def twice(a):\n    return 2 * a + rank",
    'ranks["pushed"] = 5\nranks.reset()',
    'result("n", ranks["n"])\nresult("y", ranks["y"])\n'
    'result("values", ranks.run(twice, 3))\nresult("pushed", ranks["pushed"])',
)


def test_by_itself_it_starts_as_many_as_it_is_told(script, tmp_path):
    """Gloo and MPI in the same processes; what the kernel pulls, pushes and calls."""
    path = script(*WHOLE)
    told = results_in(run_script(path, "alone", 2, tmp_path))
    wanted = {"n": [2] * 2, "y": [6.0] * 2, "values": [6, 7], "pushed": [5] * 2}
    assert told == {name: str(value) for name, value in wanted.items()}


FAILS = (
    MPI,
    "%%px\nif rank == 1:\n    print('x' * 50_000)\n    raise ValueError('no file')\n"
    "MPI.COMM_WORLD.recv(source=1)",
)


def test_an_error_on_one_rank_ends_all_and_is_told(script):
    """The text of the error is whole, and there before MPI's Abort ends all."""
    code, said = run(sys.executable, script(*FAILS))
    assert code == 1
    before = said.partition("MPI_Abort")[0]  # which mpiexec may lose
    assert "x" * 50_000 in before and "ValueError: no file\n" in before


@pytest.mark.everything
def test_ctrl_c_ends_all(script):
    path = script(MPI, "%%px\nprint('here')\nMPI.COMM_WORLD.recv(source=(rank + 1) % 2)")
    process = subprocess.Popen(
        [sys.executable, path], stdout=subprocess.PIPE, env=environment(), start_new_session=True
    )
    lines = [process.stdout.readline() for _ in range(2)]
    ranks = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)  # mpiexec: the process has become it
    try:
        assert lines == [b"here\n"] * 2 and process.wait(30) != 0
        assert not psutil.wait_procs(ranks, timeout=10)[1]
    finally:
        for each in [process, *ranks]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
