"""The process that checks answers, on ranks of its own.

    python -m ranklab.exercises.checker_main PID

It reads requests, packed Parcels (parcel.py), from its standard input and writes packed replies to
its standard output; checker_process.py is the other end. Nothing listens anywhere. It ends as soon
as its input does, or the process PID, and its ranks end with it.
"""

import contextlib
import os
import pickle
import queue
import sys
import threading
import time
import traceback

import psutil

from ranklab.errors import SaidInWords
from ranklab.exercises.running import Bench
from ranklab.exercises.trial import try_answer
from ranklab.start.guardian import has_ended

POLL = 0.5  # seconds between two looks at whether the notebook's kernel lives


def main(kernel):
    """Check what is asked for until the kernel lets go."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything here prints is no reply
    requests = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    threading.Thread(target=_watch, args=(kernel,), daemon=True).start()
    os.environ.pop("RANKLAB_RANKS", None)  # a case says by itself how many ranks it wants
    bench = None
    while True:
        request = requests.get()
        try:
            bench = bench or Bench(training=request.trains)
            verdict, text = try_answer(bench, request, lambda **what: _say(replies, **what))
        except Exception as error:
            verdict, text = "open", _own_error(request.exercise, error)
        _say(replies, verdict=verdict, text=text)
        bench = _repaired(bench)  # while the reader reads


def _repaired(bench):
    """Return the bench, ready for the next answer, or None where there has to be another one."""
    try:
        if bench is not None:
            bench.repair()
    except Exception:
        bench.close()
        return None
    return bench


def _say(replies, **what):
    pickle.dump(what, replies)
    replies.flush()


def _own_error(name, error):
    """Say what went wrong that is not the answer's fault."""
    if isinstance(error, SaidInWords):  # too little memory for the ranks, say
        return f"{name} could not be checked: {error}"
    lines = "".join(traceback.format_exception(error)).splitlines()
    told = "\n".join(f"    {line}" for line in lines[-6:])
    return (
        f"The check of {name} itself failed, which says nothing about your answer: "
        f"{type(error).__name__}: {error}\n{told}"
    )


def _read(requests):
    """Take requests until there are no more, or one that cannot be read; end the process then."""
    try:
        while True:
            requests.put(pickle.load(sys.stdin.buffer))
    except EOFError:
        pass
    except BaseException:  # its last lines are what the kernel tells
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)  # the guardian ends the ranks


def _watch(kernel):
    # A process that the kernel forked may hold the pipe open after its death.
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(kernel)
        while not has_ended(process):
            time.sleep(POLL)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
