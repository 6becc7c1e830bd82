"""The guardian: a small process that outlives the kernel just long enough to clean up after it.

A kernel that is killed cannot stop its ranks, so somebody else has to. The guardian holds the
reading end of a pipe whose writing end only the kernel has. When that pipe closes, for whatever
reason (`Ranks.close()`, the end of the kernel, SIGKILL), the guardian kills every process that
belongs to the ranks, removes their folder, and ends. `Ranks.close()` uses the very same way, so
the way out in an emergency is the way out that is taken every day.

How does it know what belongs to the ranks? ipyparallel starts the controller and the engines with
`IPP_PROFILE_DIR` in their environment, which names the private folder of these ranks; every process
that they start inherits it. So nobody has to report process ids, and a start that failed halfway
is cleaned up like any other.

Where kernel and guardian are killed together, nobody is left to clean up. The next start does it
then: a kernel holds a lock on a file in its folder, and the system lets go of the lock when the
kernel dies, of whatever.
"""

import contextlib
import glob
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time

import psutil

try:
    import fcntl
except ImportError:  # on Windows, where a start does not clean up after another one
    fcntl = None

PREFIX = "ranklab-"  # of the folders' names
LOCK = "kernel.lock"
GRACE = 600.0  # seconds that a folder may be without a lock: its kernel is just making it
MARK = "IPP_PROFILE_DIR"  # set by ipyparallel for all that it starts
GOODBYE = b"."  # what an orderly kernel says last


def belonging_to(folder):
    """Return the processes that were started for `folder`, and all their descendants."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == folder:
                found[process.pid] = process
                found.update((child.pid, child) for child in process.children(recursive=True))
        except (psutil.Error, OSError):
            continue  # ended meanwhile, a zombie, or somebody else's
    found.pop(os.getpid(), None)
    return list(found.values())


def has_ended(process):
    """Is the process gone, or left only as an entry that its parent has not read yet?"""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def end_all(folder, patience=10.0, but=()):
    """Kill all that belongs to `folder`, but for the process ids in `but`; return whether it ended.

    patience: seconds that it has to.
    """
    deadline = time.monotonic() + patience
    dying = []
    # A process that is being killed loses its environment before it is gone: wait for it, too.
    while (found := _others(folder, but)) or not all(map(has_ended, dying)):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil kills nobody who was given the same id later
        dying += found
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _others(folder, but):
    return [process for process in belonging_to(folder) if process.pid not in but]


def clean(folder):
    """Kill all that belongs to `folder` and remove it."""
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


def hold(folder):
    """Lock `folder` for as long as this process lives; return the open file that is the lock."""
    # It gets its name when it is locked, so that nobody ever sees it there and free.
    unlocked = os.path.join(folder, f"{LOCK}.new")
    file = os.open(unlocked, os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename(unlocked, os.path.join(folder, LOCK))
    return file


def clean_after_the_dead():
    """Clean up after kernels of this user that died together with their guardian."""
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), f"{PREFIX}*")):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:  # or it is gone by now
            about = os.lstat(folder)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            try:
                file = held.enter_context(open(os.path.join(folder, LOCK)))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except FileNotFoundError:
                if time.time() - about.st_mtime < GRACE:
                    continue
            except BlockingIOError:
                continue  # its kernel lives
            clean(folder)


def watch(kernel_pid, folder):
    """Wait until the kernel lets go of the pipe or is no more, then clean up."""
    said = []
    # A process that the kernel forked may hold the pipe open after its death: look at both.
    pipe = threading.Thread(target=lambda: said.append(sys.stdin.buffer.read(1)), daemon=True)
    pipe.start()
    with contextlib.suppress(psutil.NoSuchProcess):  # where it was killed before this began
        kernel = psutil.Process(kernel_pid)
        while pipe.is_alive() and not has_ended(kernel):
            pipe.join(0.5)
    clean(folder)
    if said != [GOODBYE]:  # killed, maybe while it was starting a process that shows up only now
        time.sleep(1)
        clean(folder)


class Guardian:
    """The kernel's side: makes the private folder and starts the process that watches over it."""

    def __init__(self):
        if fcntl:
            clean_after_the_dead()
        self.folder = tempfile.mkdtemp(prefix=PREFIX)  # mode 0700: nobody else gets into it
        try:
            self._lock = hold(self.folder) if fcntl else None
            self._process = self._start()
        except BaseException:  # Ctrl-C, too
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _start(self):
        # -P: the folder of this file holds modules with names that the standard library has, too.
        return subprocess.Popen(
            [sys.executable, "-P", __file__, str(os.getpid()), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=os.path.dirname(self.folder),
            start_new_session=True,  # Ctrl-C in the terminal of the kernel is not for the guardian
        )

    def clear(self, but):
        """End what belongs to the folder, remove what is in it; return whether that was possible.

        but: the process ids of those that stay.
        """
        elsewhere = os.path.dirname(self.folder) != tempfile.gettempdir()  # if the reader wants so
        if elsewhere or self._process.poll() is not None or not end_all(self.folder, but=but):
            return False
        try:
            for entry in list(os.scandir(self.folder)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                elif entry.name != LOCK:
                    os.unlink(entry.path)
        except OSError:  # somebody has removed it, say
            return False
        return True

    def end(self):
        """Have everything that belongs to the folder killed and removed; return when it is."""
        with contextlib.suppress(OSError):  # where the guardian itself was killed
            self._process.stdin.write(GOODBYE)
            self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        clean(self.folder)  # finds nothing, unless the guardian was killed
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
