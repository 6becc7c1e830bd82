"""Run an exported script as a reader would: in an empty folder, without this repository."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from places import places

from bookmaker.site import forked_kernel
from ranklab.start import arguments
from ranklab.start.launcher import can_fork
from ranklab.upstream import mpich

BIN = Path(sys.executable).parent
FORKED = Path(__file__).with_name("forked.py")

# How readers start a script, for a number of ranks.
LAUNCHERS = {
    "alone": lambda script, n: [sys.executable, script],
    "torchrun": lambda script, n: [
        str(BIN / "torchrun"),
        "--standalone",
        f"--nproc-per-node={n}",
        script,
    ],
    "mpiexec": lambda script, n: [arguments.mpiexec(), "-n", str(n), sys.executable, script],
}

# Ranks that are forked here -> how they are started where one cannot fork.
UNFORKED = {"forked": "torchrun", "forked-mpi": "mpiexec"}

# Python runs a `sitecustomize` when it starts. This one makes ranklab, which is installed
# beside the packages that a script may use, as absent as it is on a reader's cluster.
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ranklab":
            raise ModuleNotFoundError("No module named 'ranklab' (a script stands alone)")

sys.meta_path.insert(0, Blocked())
"""

# And this one finds a GPU: see pretend.py.
PRETEND = f"""
import sys

sys.path.append({str(FORKED.parent)!r})
import pretend

pretend.on()
pretend.say_at_the_end()
"""


def run_script(script, launcher, ranks, folder, limit=500, with_ranklab=False, pretended=False):
    """Run a copy of `script` in the empty `folder`; return what it printed.

    launcher: one of LAUNCHERS; or `forked` or `forked-mpi`, ranks that are forked from a process
    which has imported torch, which costs a third less (forked.py). Where one cannot fork, that is
    torchrun or mpiexec.
    with_ranklab: as where it is installed, for what a script leaves out without it.
    pretended: on ranks that share a GPU, as it seems to them (pretend.py).
    Fails, with the place of each rank, if it takes more than `limit` seconds, and with its
    output if it exits other than by 0.
    """
    block = folder / "block"
    block.mkdir(parents=True)
    first = ("" if with_ranklab else BLOCK) + (PRETEND if pretended else "")
    (block / "sitecustomize.py").write_text(first)
    empty = folder / "empty"
    empty.mkdir()
    shutil.copy(script, empty)
    environment = {**os.environ, "PYTHONPATH": str(block), "RANKLAB_RANKS": str(ranks)}
    environment.setdefault(mpich.RESTING, "1")
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    log = folder / "output.txt"
    if launcher in UNFORKED and can_fork():
        process = _Forked(script, launcher, ranks, empty, environment, log)
    else:
        process = _launched(script, launcher, ranks, empty, environment, log)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = f"none: still running after {limit} s"
    finally:
        if process.poll() is None:
            print(places(os.getpid()))  # into the log, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _kill_all_with(PYTHONPATH=str(block))  # torchrun's ranks are in sessions of their own
        process.wait()
    text = log.read_text()
    first = text[text.find("Traceback") :][:6000]  # the others' errors are its echo
    assert code == 0, f"{launcher}, {ranks} ranks: exit code {code}\n{first}\n{text[-6000:]}"
    return text


def _launched(script, launcher, ranks, cwd, environment, log):
    command = LAUNCHERS[UNFORKED.get(launcher, launcher)](Path(script).name, ranks)
    with log.open("w") as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class _Forked(forked_kernel.Forked):
    """A script on ranks that are forked from the process which the kernels are forked from."""

    def __init__(self, script, launcher, ranks, cwd, environment, log):
        self._code = log.with_name("code.txt")
        mpi = [arguments.mpiexec()] if launcher == "forked-mpi" else []
        order = {
            "argv": [str(FORKED), str(self._code), str(ranks), Path(script).name, *mpi],
            "environment": environment,
            "cwd": str(cwd),
            "output": str(log),
        }
        pid = forked_kernel.importer(str(log)).fork(order)
        assert pid, log.read_text()
        super().__init__(pid)

    def wait(self, limit=None):
        try:
            super().wait(limit)
        except psutil.TimeoutExpired:
            raise subprocess.TimeoutExpired(FORKED, limit) from None
        return int(self._code.read_text()) if self._code.exists() else "none: it was killed"


def _kill_all_with(**mark):
    """Kill every process that has `mark` in its environment: a launcher, and ranks it left."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone, or somebody else's
            if mark.items() <= process.environ().items():
                process.kill()


def results_in(text):
    """The `name = value` lines of a script's output, as a dict of strings."""
    return dict(re.findall(r"^([a-z]\w*) = (.*)$", text, re.MULTILINE))
