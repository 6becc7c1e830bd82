"""What a rank says of itself, also while it is stuck: on the rank, from a thread of its own.

A rank that waits inside Gloo hears no signal. But Gloo lets other threads run, and ipyparallel has
one in every engine that does not wait for cells: the control thread. `testify` gives it one more
request, with these meanings:

- "where": say where the main thread is, which communication it waits in, and for how long;
- "free": say that, then end every communication of this process, by shutting the connections of
  its process groups (an interrupted wait could go on; one whose connection is gone cannot);
- "brace" and "release": a rank that receives from anyone waits on no connection, and Gloo has no
  way to end that but a message. So it is told to raise as soon as one comes, and another rank sends
  it one of no bytes.

Two cases are beyond any request. A process that Gloo aborts, because a message does not fit, leaves
its last words in a file. And where not even a thread gets to run, as in a long call of C that keeps
Python's lock, `faulthandler` writes the stack to a file when it gets SIGUSR1.
"""

import faulthandler
import functools
import json
import linecache
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from ranklab.doctor import REQUEST, calls, mpi_calls, sockets
from ranklab.doctor.places import NOT_THE_READERS
from ranklab.upstream import cpython, ipython
from ranklab.upstream import torch as upstream

STANDS_STILL = 0.8  # seconds
SAMPLE = 0.5  # seconds between two looks at whether the main thread has moved

_witness = None


def joined():
    """Note that a new process group begins: what was recorded before is of another one."""
    if _witness is not None:
        _witness.group_began = time.time_ns()


def testify(folder):
    """Make this process answer the requests above. Twice does no harm.

    folder: for what is to be read after its death; a private one, or None.
    """
    global _witness
    if _witness is None:
        from IPython import get_ipython

        _witness = Witness(get_ipython().kernel, folder)


class Witness:
    """Watches the main thread of this process, and answers for it."""

    def __init__(self, kernel, folder):
        self._kernel = kernel
        self._main = threading.main_thread().ident
        self._before = sockets.listening()  # ipyparallel's own
        self._mark, self._since = None, 0.0
        self._laps, self._asked = 0, False  # how often the main thread was seen to run Python
        self._ask_for_lap = cpython.when_it_goes_on(self._note_lap)
        self.group_began = self._cell_began = 0  # nanoseconds since 1970
        calls.keep_track()
        ipython.answer_requests(kernel, REQUEST, self._answer)
        ipython.in_control_thread(kernel, self._sample, SAMPLE)
        ipython.keep_silent_on_exit()
        ipython.write_short_tracebacks(kernel.shell)
        ipython.wrap_cells(kernel, self._telling_of_collectives)
        if folder is not None:
            self._leave_last_words(folder)

    async def _answer(self, stream, ident, request):
        asked = request["content"]
        try:
            reply = {"status": "ok", **self.where()}
            if asked["what"] == "free":
                self._shut_connections()
            elif asked["what"] == "brace" and _receives_from_anyone(reply.get("call")):
                self._raise_when_the_wait_ends()
            elif asked["what"] == "release":
                _send_nothing(asked["to"], asked["group"], asked["tag"])
        except Exception as error:  # an answer is due in any case
            reply = {"status": "ok", "error": repr(error)}
        self._kernel.session.send(stream, "ranklab_reply", reply, request, ident=ident)

    def where(self):
        """Return as plain data: the state, the reader's lines (outermost first), the call."""
        frames = self._frames()
        self._sample(frames)
        made = self._collectives()
        said = {"state": _state(frames), "recent": self._recent(made)}
        said["numbers"] = {one["group"]: one["number"] for one in made}
        if frames:
            said["places"] = [_place(f) for f in reversed(frames) if _is_readers(f)]
            said["seconds"] = time.monotonic() - self._since
            said["call"] = calls.current(frames) or mpi_calls.current(frames)
            said["call"] = said["call"] or self._call_of_torch(frames, said)
            _note_number(said["call"], made)
        return said

    def _call_of_torch(self, frames, said):
        """Return the collective that C++ waits in by itself, as in the backward pass of DDP.

        It has no frame. That the main thread stands still inside torch, and that torch's record has
        a collective that is not over, is all that can be seen of it.
        """
        inside_torch = upstream.is_of_torch(frames[0].f_code.co_filename)
        under_way = [one for one in said["recent"] if not one["over"]]
        if not inside_torch or not under_way:
            return None
        seconds = min(said["seconds"], (time.time_ns() - under_way[0]["began"]) / 1e9)
        if seconds < STANDS_STILL:
            return None
        said["seconds"] = seconds  # before that it may have computed
        return calls.of_record(under_way[0])

    def _frames(self):
        """Return the frames of the code that runs now, innermost first; [] if none does."""
        frame, frames = sys._current_frames().get(self._main), []
        while frame is not None:
            if ipython.runs_code(frame) and not _is_readers(frame):
                return frames
            frames.append(frame)
            frame = frame.f_back
        return []

    def _sample(self, frames=None):
        """Note since when the main thread is where it is."""
        frames = self._frames() if frames is None else frames
        mark = [(id(frame), frame.f_lasti) for frame in frames], calls.count(), self._laps
        if mark != self._mark:
            self._mark, self._since = mark, time.monotonic()
        # Calls of MPI are not counted: one alone, or the same again and again, only this can tell.
        if frames and not self._asked and "mpi4py.MPI" in sys.modules:
            self._asked = True
            self._ask_for_lap()

    def _note_lap(self):
        self._laps, self._asked = self._laps + 1, False

    def _collectives(self):
        """Return torch's own record of the last collectives of each group, oldest first.

        Each also with its operation and root, where Python made it.
        """
        return [
            {**one, **calls.op_and_root(one["began"])}
            for one in upstream.recorded_collectives()
            if one["began"] >= self.group_began
        ]

    def _recent(self, made):
        """Return those that this cell made: what was before has been compared already."""
        return [one for one in made if one["began"] >= self._cell_began]

    def _telling_of_collectives(self, do_execute):
        """Let the reply to a cell carry the collectives that the cell made, for comparison."""

        @functools.wraps(do_execute)
        async def telling(*args, **kwargs):
            before, self._cell_began = calls.count(), time.time_ns()
            reply = await do_execute(*args, **kwargs)
            if reply.get("ename") == "SystemExit":  # of which IPython tells no line
                reply["traceback"] = ipython.last_traceback(self._kernel.shell)
            if calls.count() != before:
                reply["collectives"] = self._recent(self._collectives())
            return reply

        return telling

    def _shut_connections(self):
        # Each connection of Gloo was accepted by one of its two ends, at a port on which that
        # process listens. So every rank shuts what it accepted, and that is all of them; the
        # reader's own connections stay as they are.
        sockets.shut_accepted(but=self._before | sockets.listening_in_python())
        if dist.is_initialized() and "nccl" in dist.get_backend():
            dist.group.WORLD.abort()

    def _raise_when_the_wait_ends(self):
        cpython.raise_in(self._main, DistWaitEnded)

    def _leave_last_words(self, folder):
        path = os.path.join(folder, f"last-words-{os.getpid()}")
        self._stacks = open(os.path.join(folder, f"stack-{os.getpid()}"), "a")  # noqa: SIM115
        faulthandler.enable(self._stacks)
        if hasattr(faulthandler, "register"):  # not on Windows
            faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=False)

        def speak():
            # Gloo aborts in a thread of its own, while the main thread waits: Python can run.
            with open(path, "w") as file:
                json.dump(self.where(), file)
            time.sleep(0.2)  # what C++ said of it goes through a pipe, which a thread has to read

        self._kept = cpython.when_aborted(speak)


class DistWaitEnded(RuntimeError):
    """Raised where a rank waited for a message from anyone, and the lab ended that."""

    def __str__(self):
        return "Connection closed: nobody sent, and the wait was ended."


def _note_number(call, made):
    """Note which collective of its group `call` is, where torch has a record of it."""
    if call and call["kind"] == "collective":
        open_ones = [one for one in made if one["group"] == call["group"] and not one["over"]]
        call["number"] = open_ones[0]["number"] if open_ones else None


def _receives_from_anyone(call):
    return bool(call) and call["kind"] == "recv" and call["peer"] is None


def _send_nothing(to, group_name, tag):
    """Send an empty message to global rank `to`; nobody waits for it to leave."""
    for group, name in upstream.groups().items():
        if name == group_name:
            empty = torch.empty(0, dtype=torch.uint8)
            group.send([empty], dist.get_group_rank(group, to), tag)


def _state(frames):
    """Say what a rank does whose main thread is in `frames`, of a cell or a call."""
    if not frames:
        return "idle"
    tells = any(ipython.tells_error(frame) and not _is_readers(frame) for frame in frames)
    return "failing" if tells else "running"


def _is_readers(frame):
    return not NOT_THE_READERS.search(frame.f_code.co_filename)


def _place(frame):
    code = frame.f_code
    line = frame.f_lineno or code.co_firstlineno  # None at an instruction that is of no line
    source = linecache.getline(code.co_filename, line).strip()
    function = "" if code.co_name == "<module>" else code.co_name
    return {"file": code.co_filename, "line": line, "in": function, "source": source}
