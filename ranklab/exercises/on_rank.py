"""What runs on a rank: one case of an exercise, from packed answer to packed result."""

import io
import linecache
import os
import pickle
import random
import sys
import time
import traceback
from contextlib import contextmanager, nullcontext, redirect_stdout

import cloudpickle
import torch

from ranklab.doctor.places import NOT_THE_READERS
from ranklab.exercises.compare import plain, same
from ranklab.exercises.shown import Thing, kind
from ranklab.upstream import cpython, torch_says

LONGEST_MESSAGE = 500  # characters
LONGEST_OUTPUT = 4000  # characters that a rank may print in one case; the rest is dropped


def run(order, args, printed):
    """Run the answer in `order`, an Order, on `args`, both packed; return (failed, what came).

    printed: the path of the file that takes what the answer prints, so that it is there also after
    the death of this process. What came is a packed dict: "result", packed by itself, or "error" as
    `_described` gives it; "changed": which arguments the answer changed; "seconds"; "trace".
    """
    order = pickle.loads(order)
    _make_ready(order)
    said = {}
    with (
        open(printed, "w", encoding="utf-8") as file,
        redirect_stdout(_Output(file)),
        _kept(torch.distributed),
    ):
        try:
            answers, drive = pickle.loads(order.answers), pickle.loads(order.drive)
            given, before = pickle.loads(args), pickle.loads(args)
            result = _call(answers, drive, given, order.trace, said)
            kept = order.in_place
            said["result"] = packed_result(plain(given[0] if kept else result))
            said["changed"] = [
                i for i, pair in enumerate(zip(before, given)) if i >= kept and not same(*pair)
            ]
            return False, cloudpickle.dumps(said)
        except BaseException as error:  # SystemExit, and the interrupt of an endless loop
            described = _described(error)
            # Its frames hold on to one another, and to what the answer has made: files, workers.
            traceback.clear_frames(error.__traceback__)
            return True, cloudpickle.dumps({**said, "error": described})


@contextmanager
def _kept(module):
    """Give a module back the names that an answer replaces, for the answers after it."""
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)


def packed_result(result):
    """Pack what an answer returned, or, where it cannot travel, what kind of thing it is."""
    try:
        return cloudpickle.dumps(result)
    except Exception:  # a handle, a generator, an open file
        return cloudpickle.dumps(Thing(kind(result)))


def _make_ready(order):
    """Put this process into a state that does not depend on the answers before."""
    os.chdir(order.folder)
    sys.path += [entry for entry in order.path if entry not in sys.path]
    remember(order.sources)
    fresh()


def fresh():
    """Have the same random numbers, and PyTorch's own defaults, for each answer."""
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    seed = 1000 + (torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def remember(sources):
    """Let tracebacks find the text of the reader's cells and files, {file: text}."""
    for file, text in sources.items():
        cpython.remember_source(file, text)


def _call(answers, drive, args, traced, said):
    answer = answers[0] if len(answers) == 1 else answers
    with _trace() if traced else nullcontext() as trace:
        began = time.perf_counter()
        try:
            return drive(answer, *args) if drive else answer(*args)
        finally:
            said["seconds"] = time.perf_counter() - began
            said["trace"] = trace


def _trace():
    from ranklab.traces.recording import trace

    return trace()


def _described(error):
    """Return an exception as plain data, with the reader's lines, outermost first.

    own: was it raised in one of these lines, and in nothing that they call?
    """
    message, frames = str(error).strip(), list(_frames(error.__traceback__))
    own = bool(frames) and not NOT_THE_READERS.search(frames[-1]["file"])
    if isinstance(error, SyntaxError):
        message = " ".join(message.split())
    if torch_says.is_of_a_worker(message):
        message, frames = _of_a_worker(message)
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} ..."
    return {
        "type": type(error).__name__,
        "message": message,
        "from_torch": isinstance(error, RuntimeError) and type(error).__module__ != "__main__",
        "own": own,
        "places": [one for one in frames if not NOT_THE_READERS.search(one["file"])],
    }


def _frames(tb):
    for frame, line in traceback.walk_tb(tb):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        line = line or frame.f_code.co_firstlineno  # None at an instruction that is of no line
        source = linecache.getline(file, line).strip()
        yield {"file": file, "line": line, "in": function, "source": source}


def _of_a_worker(text):
    """Return the message of the exception in a worker, and its frames: PyTorch gives the text."""
    message, found = cpython.read_traceback(text)
    frames = [
        {"file": file, "line": int(line), "in": function, "source": source.strip()}
        for file, line, function, source in found
    ]
    return message, frames


class _Output(io.TextIOBase):
    """Takes what is printed, as far as there is room, and writes it to disk at once."""

    def __init__(self, file):
        self._file, self._room = file, LONGEST_OUTPUT

    def writable(self):
        return True

    def write(self, text):
        part = text[: self._room]
        if part:
            self._room -= len(part)
            self._file.write(part)
            self._file.flush()
        return len(text)
