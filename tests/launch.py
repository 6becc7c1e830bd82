"""Run an exported script as a reader would: in an empty folder, without this repository."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
from places import places

from ranklab.start.launcher import can_fork

BIN = Path(sys.executable).parent
FORKED = Path(__file__).with_name("forked.py")
# What most scripts import, or what they use imports: the last is DDP's and the optimizers'.
PRELOAD = ["numpy", "matplotlib.pyplot", "torch", "torch.distributed", "torch._dynamo"]

# How a script is started, for a number of ranks; `forked` is not for readers (forked.py), and where
# one cannot fork safely it is torchrun.
LAUNCHERS = {
    "alone": lambda script, n: [sys.executable, script],
    "torchrun": lambda script, n: [
        str(BIN / "torchrun"),
        "--standalone",
        f"--nproc-per-node={n}",
        script,
    ],
    "mpiexec": lambda script, n: [str(BIN / "mpiexec"), "-n", str(n), sys.executable, script],
    "forked": lambda script, n: [sys.executable, str(FORKED), str(n), script, *PRELOAD],
}
if not can_fork():
    LAUNCHERS["forked"] = LAUNCHERS["torchrun"]

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


def run_script(script, launcher, ranks, folder, limit=180, with_ranklab=False):
    """Run a copy of `script` in the empty `folder`; return what it printed.

    with_ranklab: as where it is installed, for what a script leaves out without it.
    Fails, with the place of each rank, if it takes more than `limit` seconds, and with its
    output if it exits other than by 0.
    """
    block = folder / "block"
    block.mkdir(parents=True)
    (block / "sitecustomize.py").write_text("" if with_ranklab else BLOCK)
    empty = folder / "empty"
    empty.mkdir()
    shutil.copy(script, empty)
    environment = {**os.environ, "PYTHONPATH": str(block), "RANKLAB_RANKS": str(ranks)}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    log = folder / "output.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            LAUNCHERS[launcher](Path(script).name, ranks),
            cwd=empty,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = f"none: still running after {limit} s"
        finally:
            if process.poll() is None:
                print(places(os.getpid()))  # into the log, too
            _kill_all_with(PYTHONPATH=str(block))
            process.wait()
    text = log.read_text()
    assert code == 0, f"{launcher}, {ranks} ranks: exit code {code}\n{text[-6000:]}"
    return text


def _kill_all_with(**mark):
    """Kill every process that has `mark` in its environment: a launcher, and ranks it left."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone, or somebody else's
            if mark.items() <= process.environ().items():
                process.kill()


def results_in(text):
    """The `name = value` lines of a script's output, as a dict of strings."""
    return dict(re.findall(r"^([a-z]\w*) = (.*)$", text, re.MULTILINE))
