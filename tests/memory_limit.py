"""A limit on the memory of one process, beyond which the system kills it: a control group."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest

GROUPS = Path("/sys/fs/cgroup")
LIMITS = {GROUPS / "memory": "memory.limit_in_bytes", GROUPS: "memory.max"}  # version 1, 2


@contextlib.contextmanager
def limited(pid, more=200 * 2**20, skip=True):
    """Let process `pid` have `more` bytes than it has.

    Where this user may not do that: skip the test, or, with skip=False, give False.
    """
    for parent, limit in LIMITS.items():
        group = parent / f"ranklab-test-{pid}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(psutil.Process(pid).memory_info().rss + more))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.rmdir()
            continue
        try:
            yield True
        finally:
            with contextlib.suppress(OSError):  # a process that lives on goes back
                (parent / "cgroup.procs").write_text(str(pid))
            with contextlib.suppress(OSError):
                os.rmdir(group)
        return
    if skip:
        pytest.skip("this user may not limit the memory of a process here")
    yield False
