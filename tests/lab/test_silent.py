"""Which processes may be asked for their stack: only those that are in one long call."""

import contextlib
import os
import subprocess
import sys

import pytest
from kernels import wait_until

from ranklab.doctor import silent, stacks


@contextlib.contextmanager
def python(program):
    """A process that runs `program` in Python, once it has begun."""
    command = [sys.executable, "-c", f"import ctypes; print(flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "program", ["sum(range(10**11))", "ctypes.PyDLL(None).sleep(60)"], ids=["computes", "rests"]
)
def test_a_process_in_a_long_call_is_asked(program, monkeypatch):
    monkeypatch.setattr(silent, "FOR_A_LOOK", 60)  # other testers compute, too
    with python(program) as process:
        assert silent._computing_or_at_rest({process.pid}) == {process.pid}


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux keeps others waiting so")
def test_a_process_that_has_no_time_to_answer_is_not():
    cpu = {min(os.sched_getaffinity(0))}
    with python("while True: pass") as process, python("while True: pass") as other:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        for one in (process, other):
            os.sched_setaffinity(one.pid, cpu)
        assert not silent._computing_or_at_rest({process.pid})


def test_a_process_that_is_gone_is_not():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not silent._computing_or_at_rest({gone.pid})


WRITES_SLOWLY = """
import os, signal, time
def write(*_):
    print("Stack (most recent call first):", file=file, flush=True)
    time.sleep(0.2)
    print('  File "/tmp/cell.py", line 3 in <module>', file=file)
    print('  File "<frozen runpy>", line 198 in _run_module_as_main', file=file, flush=True)
signal.signal(signal.SIGUSR1, write)
file = open(f"{folder}/stack-{{os.getpid()}}", "a")
time.sleep(60)
"""


def test_a_stack_is_read_to_its_end(tmp_path):
    with python(WRITES_SLOWLY.format(folder=tmp_path)) as process:
        wait_until((tmp_path / f"stack-{process.pid}").exists)
        (frame,) = stacks.of_running(tmp_path, process.pid)
    assert (frame["file"], frame["line"]) == ("/tmp/cell.py", 3)
