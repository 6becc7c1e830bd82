"""The kernel's hold on a process that imports once, and forks the engines of one start or more.

What runs there is in importer_main.py. `Ranks` keeps it from one start to the next in the same
folder: where that has the same environment, it need not import anything again.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess

import psutil

PATIENCE = 120.0  # seconds that it has to import and to fork
TO_END = 5.0  # seconds that it has once its input has ended

_kept = {}  # {folder: the Importer that is kept for the next start there}


def kept_in(folder, command, environment, cwd, log):
    """Return the Importer that is kept in a folder; a new one where there is none that fits.

    The others are the arguments of Importer.
    """
    if folder not in _kept or not _kept[folder].fits(command, environment, cwd):
        forget(folder)
        _kept[folder] = Importer(command, environment, cwd, log)
    return _kept[folder]


def pid_in(folder):
    """Return the process id of the importer that is kept in a folder, or None."""
    importer = _kept.get(folder)
    return importer.pid if importer and importer.alive() else None


def forget(folder):
    """End the importer that is kept in a folder, if there is one; what it forked lives on."""
    if importer := _kept.pop(folder, None):
        importer.end()


class Importer:
    """A process that has imported some modules, and forks fork servers.

    command: starts it, and names the modules. environment: it starts with that; libraries read some
    of it when they are loaded. cwd: where it works. log: the file for what it prints.
    """

    def __init__(self, command, environment, cwd, log):
        self._began_with = command, environment, cwd
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                cwd=cwd,
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

    def fits(self, command, environment, cwd):
        """Would a new one, started with these, import the same, and is this one alive?"""
        return self.alive() and self._began_with == (command, environment, cwd)

    def fork(self, order):
        """Order a fork server; return its process id, or None where this process has ended.

        Waits until everything is imported, a second or two after the start. What takes longer than
        PATIENCE is given up, and an interrupt ends it.
        """
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            self._wait_for_reply(order["output"])
            said = self._process.stdout.readline()
        except OSError:
            said = ""
        except BaseException:
            self._abandon()
            raise
        return int(said) if said else None

    def _wait_for_reply(self, log):
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                with open(log, "a") as output:
                    print(f"Not everything was imported within {PATIENCE:g} s.", file=output)
                self._process.kill()

    def _abandon(self):
        """End the process, and the fork server that it may have forked meanwhile."""
        self._process.kill()
        if said := self._process.stdout.readline():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(said), signal.SIGKILL)

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
