"""The kernel's hold on the processes that import once, and fork the engines of one start or more.

There is one for each folder of a cluster. Where the next start in the same folder wants the same
modules and has the same environment, it need not import anything again.
"""

import contextlib
import json
import select
import subprocess
import sys

import psutil

PATIENCE = 60.0  # seconds that it has to import and to fork
TO_END = 5.0  # seconds that it has once its input has ended

_importers = {}  # {folder: its Importer}


def of(folder, *what):
    """Return the Importer of a folder; start one where there is none that has imported `what`.

    what: the arguments of Importer.
    """
    if folder not in _importers or not _importers[folder].fits(*what[:-1]):
        forget(folder)
        _importers[folder] = Importer(*what)
    return _importers[folder]


def pid_of(folder):
    """Return the process id of the importer of a folder, or None where none is alive."""
    there = _importers.get(folder)
    return there.pid if there and there.alive() else None


def forget(folder):
    """End the importer of a folder, if there is one; what it forked lives on."""
    if importer := _importers.pop(folder, None):
        importer.end()


class Importer:
    """A process that has imported some modules, and forks fork servers (fork_server.py).

    modules: their names. environment: with which it starts; libraries read some of that when they
    are loaded. folder: where it works. output: the file for its errors.
    """

    def __init__(self, modules, environment, folder, output):
        self._began_with = modules, environment, folder
        with open(output, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ranklab.fork_server", json.dumps(modules)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=folder,
                start_new_session=True,  # Ctrl-C in the terminal of the kernel is not for it
                text=True,
            )
        self.pid = self._process.pid

    def alive(self):
        """Is the process there, and not stopped?"""
        if self._process.poll() is not None:
            return False
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).status() != psutil.STATUS_STOPPED
        return False

    def fits(self, modules, environment, folder):
        """Would a new one, started with these, import the same, and is this one alive?"""
        return self.alive() and self._began_with == (modules, environment, folder)

    def fork(self, order):
        """Order a fork server; return its process id, or None where this one has ended.

        That is known when everything is imported, a second or two after the start. What takes
        longer than a minute is given up.
        """
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
                self._process.kill()
            if said := self._process.stdout.readline():
                return int(said)
        return None

    def end(self):
        """Let go of the process, which ends then, and wait for that."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(TO_END)
        except subprocess.TimeoutExpired:  # it is stopped, say
            self._process.kill()
            self._process.wait()
