"""A kernel that is forked from a process which has imported what most chapters import.

A fresh one would import it again for each chapter, a seventh of what a short chapter takes.
"""

import contextlib
import json
import os
import sys

import psutil
from jupyter_client.provisioning import LocalProvisioner

from bookmaker.upstream import LOADED_BY_OPTIMIZERS
from ranklab.start import importer_process
from ranklab.start.launcher import can_fork

IMPORTED = json.dumps(["torch", "torch.distributed", LOADED_BY_OPTIMIZERS])
COMMAND = [sys.executable, "-m", "ranklab.start.importer_main", IMPORTED]
# Libraries read some of it when they are imported. What is forked gets one of its own.
ENVIRONMENT = {**os.environ, "PYTHONSAFEPATH": "1"}


def importer(log):
    """Return the process to fork from, a ranklab.start.importer_process.Importer.

    log: the file for what it prints.
    """
    return importer_process.kept_in(__name__, COMMAND, ENVIRONMENT, os.sep, log)


class ForkedKernel(LocalProvisioner):
    """Starts a kernel with a fork; as any other where there is none, or nothing to fork from."""

    async def launch_kernel(self, cmd, **options):
        """Start the kernel and say how it is reached.

        cmd: [python, file, *arguments]. options: `env` and `cwd` of the kernel, and `stdout`, the
        open file for what it prints.
        """
        if not can_fork() or (pid := self._fork(cmd[1:], **options)) is None:
            return await super().launch_kernel(cmd, **options)
        self.process = Forked(pid)
        self.pid = self.pgid = pid
        self.cwd = options["cwd"]
        return self.connection_info

    def _fork(self, argv, *, env, cwd, stdout, **_):
        process = importer(stdout.name)
        order = {
            "argv": [*argv, f"--IPKernelApp.parent_handle={process.pid}"],  # they end together
            "environment": env,
            "cwd": str(cwd),
            "output": stdout.name,
        }
        return process.fork(order)


class Forked(psutil.Process):
    """A process that somebody else has started, with the methods of one that we have."""

    stdin = stdout = stderr = None

    def poll(self):
        """Return None while it runs. What it ended with is not known."""
        return None if self.is_running() else 0

    def send_signal(self, signum):
        """Send a signal, if it is still there."""
        with contextlib.suppress(psutil.NoSuchProcess):
            super().send_signal(signum)
