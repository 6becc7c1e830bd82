"""The soak in short: random faults in one notebook, and nothing is left of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
# One of each family, so that the time is bounded.
KINDS = (
    "recv_circle",
    "ddp",
    "sleep",
    "raises",
    "os_exit",
    "sizes",
    "targets",
    "interrupt_a_start",
    "thread_left",
    "where_closed",
)

pytestmark = pytest.mark.everything


def test_ten_random_faults_leave_nothing_behind():
    command = [sys.executable, str(SOAK), "--runs", "0", "--faults", str(len(KINDS))]
    ended = subprocess.run(
        [*command, "--seed", "11", "--kind", *KINDS], capture_output=True, text=True, timeout=280
    )
    assert ended.returncode == 0, f"{ended.stdout[-6000:]}\n{ended.stderr[-3000:]}"
    assert len(re.findall(r"^step \d+: ", ended.stdout, re.M)) == len(KINDS)
    assert ended.stdout.rstrip().endswith("nothing found")


def test_the_soak_notices_what_is_wrong(tmp_path):
    """A folder that is left behind has to be found, and the exit code to say so."""
    program = f"""
import sys
sys.path.insert(0, {str(SOAK.parent)!r})
import soak
from soaking import faults, measure

measure.GRACE = 1.0  # seconds; the folder will not go by itself

def leaves_a_folder(rng, size, timeout):
    return faults.Fault(["import tempfile\\ntempfile.mkdtemp(prefix='ranklab-')"])

faults.ALL.clear()
faults.ALL["leaves_a_folder"] = leaves_a_folder
sys.argv = ["soak.py", "--runs", "0", "--faults", "1"]
sys.exit(soak.main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, cwd=tmp_path
    )
    assert ended.returncode == 1, f"{ended.stdout[-6000:]}\n{ended.stderr[-3000:]}"
    assert "folders of former ranks" in ended.stdout
