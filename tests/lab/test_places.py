"""The tests' own tools: who is asked for its place when time runs out, and what is left after."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import launch
import psutil
import pytest
from kernels import wait_until
from places import places

from ranklab.start.guardian import has_ended

PARENT = """
import subprocess, sys, time
waiting = [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"]
for command in (["sleep", "100"], waiting):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(sys.argv[1], "w"))
    print(child.pid, flush=True)
child.stdout.readline()  # it is up
print(flush=True)
time.sleep(100)
"""


def test_only_python_is_asked_for_its_place(tmp_path):
    command = [sys.executable, "-c", PARENT, tmp_path / "log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        sleeping = psutil.Process(int(parent.stdout.readline()))
        answering = psutil.Process(int(parent.stdout.readline()))
        parent.stdout.readline()
        try:
            said = places(parent.pid)
            assert f"process {answering.pid}" in said and 'File "<string>", line 1' in said
            assert sleeping.status() != psutil.STATUS_ZOMBIE
        finally:
            sleeping.kill()
            parent.kill()


@pytest.mark.parametrize(
    ("message", "asked"),
    [("from pytest-timeout", True), ("browser: Timeout 20000ms exceeded", False)],
)
def test_only_a_test_that_ran_out_of_time_ends_what_it_started(message, asked, tmp_path):
    failing = "time.sleep(60)" if asked else f"raise RuntimeError({message!r})"
    (tmp_path / "test_it.py").write_text(
        f"import time\nimport pytest\n@pytest.mark.timeout(1)\ndef test_it():\n    {failing}\n"
    )
    here = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", tmp_path]
    environment = {**os.environ, "PYTHONPATH": here}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert message in run.stdout
    assert ("where each rank was" in run.stdout) == asked


LEAVES_A_CHILD = """
import subprocess, sys, time
wait = [sys.executable, "-c", "import time; time.sleep(100)"]
child = subprocess.Popen(wait, start_new_session=True)  # as torchrun starts its ranks
open("child", "w").write(str(child.pid))
time.sleep(100)
"""


@pytest.mark.parametrize("launcher", ["alone", "forked"])
def test_a_script_that_does_not_end_leaves_no_process(tmp_path, monkeypatch, launcher):
    script = tmp_path / "forever.py"
    script.write_text(LEAVES_A_CHILD)
    monkeypatch.setattr(launch, "places", lambda pid: "")  # asking alone would end them
    with pytest.raises(AssertionError, match="still running after 8 s"):
        launch.run_script(script, launcher, 1, tmp_path / "run", limit=8)
    child = int((tmp_path / "run" / "empty" / "child").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(child)
        wait_until(lambda: has_ended(child))  # it is being killed
