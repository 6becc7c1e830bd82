"""The kernel's hold on the process that checks: started when needed, ended with the kernel."""

import atexit
import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading

# Seconds that the ranks have to be there: ranks that the last answer left stuck need more than a
# minute to let go of each other, and fresh ones, on a busy machine, another one to start.
STARTING = 180.0
SLACK = 60.0  # seconds beyond a case's limit after which the checking process itself is stuck
LAST_WORDS = 3  # lines of what it wrote before it died

_checker = None  # the one of this process


class CheckerGone(RuntimeError):
    """The checking process died, or does not answer any more.

    again: may the same answer be sent once more, as the process had not begun with it? last_words:
    lines that it wrote, which may say why.
    """

    def __init__(self, what, *, again, last_words=()):
        super().__init__(f"The process that checks answers {what}.")
        self.again, self.last_words = again, last_words


def is_there():
    """Does a checking process run, that of this process?"""
    return _checker is not None and _checker.alive()


def ask(request):
    """Send a Parcel to the checking process, and return its reply; start it where there is none.

    Raises CheckerGone, and lets a KeyboardInterrupt pass; the process is ended then.
    """
    global _checker
    was_there = is_there()
    if not was_there:
        _checker = Checker()
    try:
        return _checker.ask(request)
    except CheckerGone as error:
        end()
        if was_there and error.again:  # it died while nobody looked
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
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  it is open as long as this is
        # -P: what lies in the reader's folder does not stand in for modules of the same name.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ranklab.exercises.checker_main", str(self._kernel)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # the stop button is for the kernel, which passes it on
        )
        self._replies = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def alive(self):
        """Is it there, and was it this process that started it?"""
        return self._process.poll() is None and self._kernel == os.getpid()

    def ask(self, request):
        """Send a Parcel; return the reply, {"verdict": ..., "text": ...}.

        What comes before it: {"preparing": number of a case}, while there are ranks to be made
        ready, and {"case": number, "limit": seconds} when the case begins.
        """
        patience, begun = STARTING, False
        # A process that is stopped, or stuck, reads nothing: then this waits in a thread.
        writing = threading.Thread(target=self._write, args=(pickle.dumps(request),), daemon=True)
        writing.start()
        try:
            while (said := self._replies.get(timeout=patience)) is not None:
                if "verdict" in said:
                    return said
                begun = begun or "limit" in said
                patience = said["limit"] + SLACK if "limit" in said else STARTING
        except queue.Empty:
            raise CheckerGone("does not answer", again=False) from None
        raise CheckerGone("died", again=not begun, last_words=self._last_words())

    def _write(self, packed):
        with contextlib.suppress(OSError, ValueError):  # it is gone, and _read tells
            self._process.stdin.write(packed)
            self._process.stdin.flush()

    def _read(self):
        try:
            while True:
                self._replies.put(pickle.load(self._process.stdout))
        except Exception:  # it ended, or says what cannot be understood
            pass
        finally:
            self._replies.put(None)

    def _last_words(self):
        self._process.kill()  # it may have closed its output alone
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-LAST_WORDS:]

    def end(self):
        """Kill it; the guardian of its ranks, which outlives it, ends those."""
        if self._kernel != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()


atexit.register(end)
