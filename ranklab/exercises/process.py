"""The kernel's hold on the process that checks: started when needed, ended with the kernel."""

import atexit
import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading

STARTING = 120.0  # seconds that the checking process and its ranks have to be there
SLACK = 60.0  # seconds beyond a case's limit after which the checking process itself is stuck

_checker = None  # the one of this process


class CheckerGone(RuntimeError):
    """The checking process died, or does not answer any more. had_begun: with this answer?"""

    def __init__(self, what, had_begun):
        super().__init__(f"The process that checks answers {what}.")
        self.had_begun = had_begun


def ask(request):
    """Send a request to the checking process, and return its reply; start it where there is none.

    Raises CheckerGone, and lets a KeyboardInterrupt pass; the process is ended then.
    """
    global _checker
    was_there = _checker is not None and _checker.alive()
    if not was_there:
        _checker = Checker()
    try:
        return _checker.ask(request)
    except CheckerGone as error:
        end()
        if was_there and not error.had_begun:  # it died while nobody looked
            return ask(request)
        raise
    except BaseException:
        end()
        raise


def end():
    """End the checking process, if there is one, and its ranks."""
    global _checker
    checker, _checker = _checker, None
    if checker is not None:
        checker.end()


class Checker:
    """One checking process."""

    def __init__(self):
        self._kernel = os.getpid()
        # -P: what lies in the reader's folder does not stand in for modules of the same name.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ranklab.exercises.checker", str(self._kernel)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the stop button is for the kernel, which passes it on
        )
        self._replies = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def alive(self):
        """Is it there, and was it this process that started it?"""
        return self._process.poll() is None and self._kernel == os.getpid()

    def ask(self, request):
        """Send a request; return the reply."""
        patience, begun = STARTING, False
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            while True:
                said = self._replies.get(timeout=patience)
                if said is None:
                    raise OSError("nothing more comes")
                if "verdict" in said:
                    return said
                patience, begun = said["limit"] + SLACK, True
        except queue.Empty:
            raise CheckerGone("does not answer", True) from None
        except OSError:
            raise CheckerGone("died", begun) from None

    def _read(self):
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            while True:
                self._replies.put(pickle.load(self._process.stdout))
        self._replies.put(None)

    def end(self):
        """Kill it; the guardian of its ranks, which outlives it, ends those."""
        if self._kernel != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()


atexit.register(end)
