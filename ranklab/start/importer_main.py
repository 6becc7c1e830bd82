"""The process that imports once what the engines need, and forks their fork servers.

    python -m ranklab.start.importer_main NAMES     NAMES: the modules, as a JSON list

It imports on one thread and without a ZeroMQ context, for neither threads nor sockets survive a
fork. Then it reads orders from its standard input, JSON objects, a line each. For each it forks a
fork server (fork_server.py), and prints its process id. It ends with its input; the fork servers
live on. The kernel's end of it is importer_process.py.

An order may name a Python file instead ("argv", with "environment" and "cwd"): what is forked runs
it as a Python that had just been started would. So the book is built and tested.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys

from ranklab.start import fork_server

# What every engine imports, at once or when it sets up its shell.
ALWAYS = (
    "ranklab.start.forked_engine",
    "ipykernel.debugger",
    "IPython.extensions.storemagic",
    "IPython.core.completer",
    "tornado.platform.asyncio",
    "sqlite3",
)


def main(names):
    """Import, and fork for each order; in what is forked, be the fork server, or an engine."""
    orders, replies = _own_pipes()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # as an engine does
    gc.disable()  # next to nothing of what is imported is ever thrown away
    for name in (*ALWAYS, *names):
        _import(name)
    # A collection would write to pages that the engines share. What is garbage stays, too: to find
    # it takes 0.2 s, and it is 2 % of all objects.
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, _reap)
    for line in orders:
        order = json.loads(line)
        fork_server.write_to(order["output"])
        if server := os.fork():
            print(server, file=replies, flush=True)
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            replies.close()
            return _run_file(order) if "argv" in order else fork_server.serve(order)
    return 0


def _run_file(order):
    """Run a Python file in this process, just forked, as if it had been started with the order."""
    os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    fork_server.seed_anew()
    # What happens when ranklab is imported, such as how figures look, is to happen there, too.
    for name in [name for name in sys.modules if name.partition(".")[0] == "ranklab"]:
        del sys.modules[name]
    sys.argv = order["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


def _own_pipes():
    """Return (orders, replies), and leave nothing of them to modules that read or print."""
    orders, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return orders, replies


def _import(name):
    try:
        importlib.import_module(name)
    except Exception as error:
        sys.exit(f"{name}, which the engines are to start with: {type(error).__name__}: {error}")


def _reap(*_):
    """Take note of the end of fork servers: their seconds count as those of this process then."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
