"""Which processes may be asked for their stack: only those that are in one long call."""

import contextlib
import os
import subprocess
import sys

import pytest

from ranklab.doctor import remains

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def python(program):
    """A process that runs `program` in Python, once it has begun."""
    command = [sys.executable, "-c", f"import ctypes; print(flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize(
    "program", ["sum(range(10**11))", "ctypes.PyDLL(None).sleep(60)"], ids=["computes", "rests"]
)
def test_a_process_in_a_long_call_is_asked(program):
    with python(program) as process:
        assert remains._computing_or_at_rest({process.pid}) == {process.pid}


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux keeps others waiting so")
def test_a_process_that_has_no_time_to_answer_is_not():
    cpu = {min(os.sched_getaffinity(0))}
    with python("while True: pass") as process, python("while True: pass") as other:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        for one in (process, other):
            os.sched_setaffinity(one.pid, cpu)
        assert not remains._computing_or_at_rest({process.pid})


def test_a_process_that_is_gone_is_not():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not remains._computing_or_at_rest({gone.pid})
