"""A kernel as a notebook has it, with hard limits, and with hands that reach in from outside."""

import contextlib
import os
import queue
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager

from ranklab.start.guardian import belonging_to

PREPARE = """
import faulthandler, signal
_stacks = open({stacks!r}, "w")
faulthandler.register(signal.SIGUSR2, _stacks, all_threads=True)
from ranklab import Ranks
"""


class Hang(Exception):
    """A cell did not end within its limit; the message says where the kernel was."""


@dataclass
class Outcome:
    """What one cell did: `seconds` counts from the last thing that was done to it from outside."""

    shown: str = ""
    error: str = ""
    seconds: float = 0.0
    actions: list = field(default_factory=list)


class Notebook:
    """A kernel with a temporary folder and a home of its own below `folder`."""

    def __init__(self, folder):
        self.home, self.temporary = Path(folder) / "home", Path(folder) / "t"
        self.home.mkdir(exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self._stacks = Path(folder) / "stacks"
        environment = {**os.environ, "TMPDIR": str(self.temporary), "HOME": str(self.home)}
        environment["IPP_NONINTERACTIVE"] = "1"
        environment.pop("IPYTHONDIR", None)
        environment.pop("RANKLAB_RANKS", None)
        self._log = open(Path(folder) / "kernel.log", "a")  # noqa: SIM115
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(env=environment, stdout=self._log, stderr=self._log)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)
        self.process = psutil.Process(self._manager.provisioner.process.pid)
        self.run(PREPARE.format(stacks=str(self._stacks)), limit=120)

    def run(self, code, limit=60.0, during=()):
        """Run a cell; return its Outcome, or raise Hang.

        during: [(seconds after the start of the cell, a function), ...]; each is called if the
        cell is still running then.
        """
        request = self._client.execute(code, store_history=False)
        outcome, began = Outcome(), time.monotonic()
        since, due = began, sorted(during, key=lambda one: one[0])
        while True:
            now = time.monotonic()
            while due and now - began >= due[0][0]:
                outcome.actions.append(due.pop(0)[1]())
                since = time.monotonic()
            if now - since > limit:
                raise Hang(f"still running after {limit:g} s: {self._where()}")
            try:
                message = self._client.get_iopub_msg(timeout=0.05 if due else 0.5)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == request and _take(outcome, message):
                outcome.seconds = time.monotonic() - since
                return outcome

    def value(self, expression, limit=30.0):
        """Return the value of an expression, by its repr; raise ValueError where it fails."""
        outcome = self.run(f"print('VALUE', repr({expression}))", limit)
        if outcome.error:
            raise ValueError(outcome.error)
        return eval(outcome.shown.partition("VALUE ")[2].splitlines()[0])

    # From outside

    def interrupt(self):
        """Press the button."""
        self.process.send_signal(signal.SIGINT)
        return "interrupt"

    def signal_rank(self, rank, number):
        """Send a signal to the process of a rank; return what was done, in words."""
        pids = [pid for process in self.fork_servers() for pid in _children(process)]
        with contextlib.suppress(psutil.Error, IndexError):
            psutil.Process(pids[rank]).send_signal(number)
        return f"{signal.Signals(number).name} to rank {rank}"

    def kill(self, name):
        """Kill the process of ours whose command line holds `name`; return what was done."""
        _kill(self.named(name))
        return f"killed {name}"

    def kill_fork_server(self):
        """Kill the parent of all ranks; return what was done."""
        _kill(self.fork_servers())
        return "killed the fork server"

    def named(self, name):
        """Return the processes below the kernel whose command line holds `name`, not forked."""
        found = []
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                of_parent = " ".join(parent.cmdline()) if parent else ""
                if name in " ".join(process.cmdline()) and name not in of_parent:
                    found.append(process)
        return found

    def fork_servers(self):
        """Return the processes that forked the ranks, forked themselves by the importer."""
        found = []
        for importer in self.named("ranklab.start.importer_main"):
            with contextlib.suppress(psutil.Error):
                found += importer.children()
        return found

    def processes(self):
        """Return all processes that the kernel has started, directly or not."""
        found = {child.pid: child for child in self.process.children(recursive=True)}
        for folder in self.folders():
            found.update((one.pid, one) for one in belonging_to(str(folder)))
        return found

    def folders(self):
        """Return the folders of ranks that exist."""
        return sorted(self.temporary.glob("ranklab-*"))

    def end(self, kill=False):
        """End the kernel, by SIGKILL or in order."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if kill:
                self.process.kill()
        self._client.stop_channels()
        with contextlib.suppress(Exception):
            self._manager.shutdown_kernel(now=kill)
        self._log.close()

    def _where(self):
        """Return where the threads of the kernel are."""
        with contextlib.suppress(OSError, psutil.Error):
            self.process.send_signal(signal.SIGUSR2)
            time.sleep(1)
            return self._stacks.read_text()
        return "the kernel is gone"


def _kill(processes):
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _children(process):
    return sorted(child.pid for child in process.children())


def _take(outcome, message):
    """Note what a message of a cell says; return whether the cell has ended."""
    content, kind = message["content"], message["msg_type"]
    if kind == "stream":
        outcome.shown += content["text"]
    elif kind in ("display_data", "execute_result", "update_display_data"):
        outcome.shown += content["data"].get("text/plain", "") + "\n"
    elif kind == "error":
        outcome.error = f"{content['ename']}: {content['evalue']}"
    return content.get("execution_state") == "idle"
