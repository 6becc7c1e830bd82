"""Chapter 1: what later chapters ask before they assert anything about times."""

import os
import subprocess
import sys
import time

from kernels import wait_until

from ranklab.taught.matmul import cores_are_free


def test_cores_on_which_others_compute_are_not_free(monkeypatch):
    """Also while the load of the last minute does not show them yet."""
    monkeypatch.delenv("RANKLAB_CORES_ARE_SHARED", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(3 * os.cpu_count())]
    try:
        wait_until(lambda: not cores_are_free())
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_cores_that_are_said_to_be_shared_are_not_free(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(time, "thread_time", time.perf_counter)  # as if nobody else had a core
    monkeypatch.delenv("RANKLAB_CORES_ARE_SHARED", raising=False)
    assert cores_are_free()
    monkeypatch.setenv("RANKLAB_CORES_ARE_SHARED", "1")
    assert not cores_are_free()
