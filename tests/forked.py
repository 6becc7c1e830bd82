"""Start a script on ranks that are forked from one process, which has imported what they import.

    python forked.py RANKS SCRIPT [MODULE ...]

Each rank finds in its environment what torchrun would have noted there. To import torch once, and
not once a rank, is a third of what most scripts cost on two cores. The exit code is that of the
first rank that fails; the others are killed then.
"""

import contextlib
import importlib
import os
import runpy
import signal
import socket
import sys


def main(ranks, script, modules):
    """Import, fork, wait; return the exit code. In a rank, which is forked: run the script."""
    for module in modules:
        with contextlib.suppress(ImportError):  # the script says so itself, if it needs it
            importlib.import_module(module)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        if child := os.fork():
            started.append(child)
        else:
            return be_rank(rank, ranks, port, script)
    return wait_for(started)


def be_rank(rank, ranks, port, script):
    """Run the script in this process, as the rank that it is told to be."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.argv = [script]
    sys.path[0] = os.getcwd()  # as Python does for a script
    runpy.run_path(script, run_name="__main__")
    return 0


def wait_for(started):
    """Return 0 when all have ended well, or the code of the first that has not."""
    left = set(started)
    while left:
        child, status = os.wait()
        left.discard(child)
        if code := os.waitstatus_to_exitcode(status):
            for other in left:
                os.kill(other, signal.SIGKILL)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
