"""What became of the processes that were started: do they run, and how did they end?"""

import contextlib
import signal as signals
from dataclasses import dataclass

import psutil

from ranklab.start.guardian import has_ended
from ranklab.upstream import ipyparallel as upstream
from ranklab.upstream import mpich
from ranklab.upstream.torch_says import words_of_cpp


@dataclass(frozen=True)
class Exit:
    """How a process ended. code: its exit code; negative where a signal killed it.

    said: what C++ said of an error that nobody caught, or MPI. by_mpiexec: did mpiexec end it, as
    it does when another one has ended?
    """

    code: int
    said: str = ""
    by_mpiexec: bool = False

    @property
    def signal(self):
        """The name of the signal that killed it, "SIGKILL" say, or ""."""
        return signals.Signals(-self.code).name if self.code < 0 else ""


def of_engine(cluster, pid):
    """Return the Exit of the engine with process id `pid`.

    None where it ran elsewhere, is not quite gone yet, or nobody was told how it ended.
    """
    code, output, by_mpiexec = _end_of(cluster.engine_set, pid)
    of_mpi = mpich.words(output)  # who aborts MPI is the first that mpiexec ends
    by_mpiexec = by_mpiexec and not of_mpi
    return None if code is None else Exit(code, words_of_cpp(output) or of_mpi, by_mpiexec)


def _end_of(engines, pid):
    """Return (exit code or None, output, did mpiexec end it?) of an engine that has ended."""
    if hasattr(engines, "end_of"):  # ranklab's own launcher
        return engines.end_of(pid)
    for engine in getattr(engines, "all_launchers", ()):
        if engine.pid == pid:
            with contextlib.suppress(AttributeError, psutil.Error):
                return upstream.exit_code(engine), engine.get_output(), False
    return None, "", False


def controller_runs(cluster):
    """Is the controller there, which carries everything between the kernel and the ranks?"""
    return runs(cluster.controller)


def runs(launcher):
    """Does the process run that a launcher of ipyparallel's has started?"""
    process = getattr(launcher, "process", None)
    return process is None or not has_ended(process)  # without a process, it runs elsewhere


def ended(engines):
    """Return those of ranklab's own engines that have ended; of others it is not known."""
    report = engines.report() if hasattr(engines, "report") else {}
    return [engine for engine in report.values() if "exit_code" in engine]


def ports_taken(engines):
    """Did ranklab's own engines not start as the controller had lost ports to somebody else?"""
    return hasattr(engines, "ports_taken") and engines.ports_taken()
