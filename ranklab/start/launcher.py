"""An ipyparallel launcher that imports once and forks: `ipyparallel.Cluster(engines="ranklab")`.

The stock launcher starts every engine as a Python of its own, and each of them imports torch by
itself. This one starts a single process, which imports what the engines need (importer_main.py).
That forks the fork server (fork_server.py), which forks the engines. They share the memory of what
was imported, and the fork server is also what ipyparallel calls the nanny of each engine.

What the fork server has to report (the process id of each engine, how each one ended, and ports
that the controller did not get) it appends to a file beside the engines' output, one JSON object a
line. So a cluster that is loaded from its file in another process knows it as well.

With `mpi_cmd` the engines are the ranks of one MPI world (mpi_world.py).

Where there is no fork to be had, `RANKLAB_NO_FORK=1` or a system other than Linux, the name
"ranklab" stands for the stock launcher. (macOS has a fork, and system libraries that must not be
used after it.)
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from textwrap import indent

import psutil
from ipyparallel.cluster.launcher import (
    LocalEngineSetLauncher,
    ProcessStateError,
)
from traitlets import Bool, Dict, List, Unicode

from ranklab.start import importer_process
from ranklab.start.importer_process import Importer
from ranklab.upstream.ipyparallel import OneProcessLauncher, unregister

OF_ONE_START = ["IPP_CLUSTER_ID"]  # what is different in the environment of the next one
LONGEST_SOCKET = 100  # bytes in the path of a Unix socket; Linux has room for 107


def can_fork():
    """May engines be forked, on this system and by the wish of the reader?"""
    return sys.platform == "linux" and os.environ.get("RANKLAB_NO_FORK", "0") in ("", "0")


class RankEngineSetLauncher(OneProcessLauncher):
    """Engines that are forked from one process, which has imported what they need."""

    entrypoint_name = "ranklab"  # what a saved cluster calls this class

    preload = List(
        Unicode(),
        default_value=["torch", "torch.distributed"],
        config=True,
        help="""Modules to import once, before the engines are forked. None may start a thread or
        touch a GPU: neither survives a fork.""",
    )
    keep_importer = Bool(
        False,
        config=True,
        help="""Let the process that has imported them outlive the engines, so that the next start
        in the same folder is faster. Whoever wants that also ends it, in the end, with
        ranklab.start.importer_process.forget(profile_dir).""",
    )
    mpi_cmd = List(
        Unicode(),
        config=True,
        help="The mpiexec, of MPICH, that makes the engines the ranks of one MPI world.",
    )
    stop_data = Dict()
    _importer = None  # where the engines were started by this process

    def find_args(self):
        """Return the command that starts the importer."""
        return [sys.executable, "-m", "ranklab.start.importer_main", json.dumps(self.preload)]

    def _order(self):
        """Return all that the fork server has to know."""
        return {
            "n": self.n,
            "environment": {name: self.get_env()[name] for name in OF_ONE_START},
            "connection_files": self.connection_files,
            "engine_args": self.cluster_args + self.engine_args + ["--mpi"] * bool(self.mpi_cmd),
            "report": str(self.report_file),
            "output": self.output_file,
            "outputs": [str(self._output_of(i)) for i in range(self.n)],
            "nannies": [self._nanny_address(i) for i in range(self.n)],
            "mpiexec": self.mpi_cmd,
        }

    def _nanny_address(self, i):
        """Return where nanny and engine meet: a socket in a folder that is closed to others.

        Where the path is too long for a socket, it is a port that the system chooses.
        """
        path = os.path.join(self.profile_dir, "security", f"nanny-{self.engine_set_id}-{i}")
        return f"ipc://{path}" if len(path) <= LONGEST_SOCKET else "tcp://127.0.0.1:*"

    def start(self, n):
        """Start the fork server, which starts `n` engines; return when all is imported."""
        if self.state != "before":
            raise ProcessStateError(f"These engines were started already; they are {self.state}.")
        self.n = n
        # Only here: who looks for a report later must not bring back a folder that was removed.
        self._logs.mkdir(parents=True, exist_ok=True)
        self.output_file = str(self._log("server.log"))
        self._importer = self._get_importer()
        # Its own end, where it cannot import, is noticed as that of a fork server is.
        self.pid = self._importer.fork(self._order()) or self._importer.pid
        self.process = psutil.Process(self.pid)
        self.notify_start(self.pid)
        self.watch()

    def _get_importer(self):
        around = {**os.environ, **self.get_env()}
        for name in OF_ONE_START:
            del around[name]
        what = self.args, around, os.path.abspath(self.work_dir), self.output_file
        if self.keep_importer:
            return importer_process.kept_in(self.profile_dir, *what)
        return Importer(*what)

    # What the fork server reports

    @property
    def report_file(self):
        return self._log("report.jsonl")

    @property
    def _logs(self):
        return Path(self.profile_dir) / "log"

    def _log(self, ending):
        return self._logs / f"ipengine-{self.cluster_id}-{self.engine_set_id}-{ending}"

    def _output_of(self, i):
        return self._log(f"{i}.log")

    def report(self):
        """Return what is known of each engine, {number: {"pid": ..., "id": ..., "exit_code": ...}}.

        It has an id once it is registered, and an exit code once it has ended, which is negative
        where a signal killed it.
        """
        engines = {}
        for said in self._reported():
            if "engine" in said:
                engines.setdefault(said.pop("engine"), {}).update(said)
        return engines

    def ports_taken(self):
        """Was the controller late for ports that it had chosen, and found them taken?"""
        return any("ports_taken" in said for said in self._reported())

    def _reported(self):
        with contextlib.suppress(FileNotFoundError):
            lines = self.report_file.read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]  # else not yet whole
        return []

    def end_of(self, pid, patience=1.0):
        """Return (exit code, output, did mpiexec end it?) of the engine `pid`.

        The code is None while it is alive.
        """
        deadline = time.monotonic() + patience
        while True:
            engines = self.report()
            i = next((i for i, engine in engines.items() if engine["pid"] == pid), None)
            code = engines.get(i, {}).get("exit_code")
            if code is not None or not self.process.is_running() or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        output = "" if i is None else _read(self._output_of(i))
        return code, output, "ended_by" in engines.get(i, {})

    # The end

    def has_ended(self):
        """End what the fork server leaves behind."""
        if self._importer and not self.keep_importer:
            self._importer.end()
        # Killed, it could not say that its engines ended with it.
        lost = [engine for engine in self.report().values() if "exit_code" not in engine]
        if ids := [engine["id"] for engine in lost if "id" in engine]:
            with contextlib.suppress(OSError):  # its file is gone, and so is the controller
                unregister(ids, self.connection_files["engine"])

    def signal(self, sig):
        """Send a signal to every engine. SIGTERM and SIGKILL end the fork server with them."""
        if self.state != "running":
            return
        if sig == signal.SIGTERM:
            self.process.send_signal(sig)  # it passes it on
            return
        engines = self.process.children()
        for engine in engines:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.send_signal(sig)
        if sig == signal.SIGKILL:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._end_server(grace=1.0 if engines else 0.0)

    def _end_server(self, grace):
        """Let the fork server report the end of its engines; then it ends, too."""
        with contextlib.suppress(psutil.TimeoutExpired):
            self.process.wait(grace)
            return
        self.process.kill()

    def notify_stop(self, data):
        """Add how each engine ended, as the stock launcher does."""
        engines = {str(i): {"identifier": str(i), **engine} for i, engine in self.report().items()}
        # What the fork server itself ended with, only its parent is told.
        codes = [engine.get("exit_code", 1) for engine in engines.values()]
        code = next(filter(None, codes), 0) if codes else data.get("exit_code") or 1
        return super().notify_stop({**data, "engines": engines, "exit_code": code})

    def get_output(self, remove=False):
        """Return what the fork server and the engines wrote, those that wrote anything."""
        files = {"the fork server": Path(self.output_file)} if self.output_file else {}
        files.update((f"engine {i}", self._output_of(i)) for i in range(self.n))
        parts = []
        for name, file in files.items():
            if lines := _read(file).splitlines(keepends=True)[-(self.output_limit or 0) :]:
                parts.append(f"Output for {name}\n{indent(''.join(lines), '  ')}")
        if remove:
            for file in [*files.values(), self.report_file]:
                file.unlink(missing_ok=True)
        return "\n".join(parts)


def _read(file):
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


def __getattr__(name):
    # The entry point asks for it anew for each cluster, so that the environment decides each time.
    if name == "engine_set_launcher":
        return RankEngineSetLauncher if can_fork() else LocalEngineSetLauncher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
