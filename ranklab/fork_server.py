"""The processes that import once, fork the engines, and look after them.

    python -m ranklab.fork_server NAMES     what importer.py calls; NAMES: modules, as a JSON list

There are two of them. The **importer** imports, on one thread and without a ZeroMQ context, for
neither threads nor sockets survive a fork. Then it reads orders from its standard input, JSON
objects, a line each. For each it forks a fork server, and prints its process id. It ends with its
input.

The **fork server** forks the engines that were ordered. From then on it is their nanny: it relays
what comes for them on the control channel and answers requests for signals itself (so that a
stopped or a stuck engine gets its signal), reports how each of them ended, and tells the hub at
once. It ends with the last engine; and the engines end with it.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from dataclasses import dataclass

PATIENCE = 60.0  # seconds that the controller has to write its connection file
PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends
# What every engine imports, at once or when it sets up its shell.
ALWAYS = (
    "ranklab.forked_engine",
    "ipykernel.debugger",
    "IPython.extensions.storemagic",
    "IPython.core.completer",
    "tornado.platform.asyncio",
    "sqlite3",
)


def main(names):
    """Import; then fork a fork server for each order. In that, and in each engine, be that."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a module prints when it is imported is no reply
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # as an engine does
    gc.disable()  # next to nothing of what is imported is ever thrown away
    for name in (*ALWAYS, *names):
        _import(name)
    # A collection would write to pages that the engines share. What is garbage stays, too: to find
    # it takes 0.2 s, and it is 2 % of all objects.
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the fork servers, once ended, are not kept
    for line in sys.stdin:
        if server := os.fork():
            print(server, file=replies, flush=True)
        else:
            replies.close()
            return _serve(json.loads(line))
    return 0


def _serve(order):
    """Be a fork server, just forked, until its last engine has ended; return its exit code."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _write_to(order["output"])
    os.environ.update(order["environment"])
    _wait_for_the_controller(order["connection_file"])
    server = ForkServer(order)
    me = server.fork()
    if me is None:
        return server.be_nanny()
    _be_engine(order["outputs"][me.number], me.channel, order["engine_args"])
    return 0


def _import(name):
    try:
        importlib.import_module(name)
    except Exception as error:
        sys.exit(f"{name}, which the engines are to start with: {type(error).__name__}: {error}")


def _wait_for_the_controller(file):
    """Put what the controller writes for engines where ipyparallel's own engine looks for it."""
    deadline = time.monotonic() + PATIENCE
    while "IPP_CONNECTION_INFO" not in os.environ:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # half written
            with open(file) as connection:
                text = connection.read()
            json.loads(text)
            os.environ["IPP_CONNECTION_INFO"] = text
        if time.monotonic() > deadline:
            sys.exit(f"The controller did not write {file} within {PATIENCE:g} s.")
        time.sleep(0.01)


def _be_engine(output, server, arguments):
    """Become an engine in this process, just forked; return when it is told to end."""
    from ranklab.forked_engine import ForkedEngine

    _write_to(output)
    _seed_anew()
    sys.argv = ["ipengine", *arguments]
    engine = ForkedEngine.instance(server=server)
    engine.initialize(arguments)
    engine.start()


def _write_to(file):
    """Have what this process prints at the end of `file`."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _seed_anew():
    """Give this process random numbers of its own, as a fresh one has."""
    # `random` does it by itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


@dataclass
class Child:
    """An engine as the fork server sees it."""

    number: int
    channel: socket.socket  # to the engine; in the engine itself, to the fork server
    nanny: object = None  # once it is registered
    exit_code: int | None = None  # once it has ended


class ForkServer:
    """The engines that this process forks, and looks after until the last one has ended."""

    def __init__(self, order):
        self.n = order["n"]
        self.addresses = order["nannies"]  # where the nanny of each engine listens
        self.report = os.open(order["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.children = {}  # by process id

    def fork(self):
        """Fork the engines; return the Child that this process is, or None in the fork server."""
        server = os.getpid()
        for i in range(self.n):
            # One that keeps messages apart.
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._let_go(server)
                return Child(i, theirs)
            theirs.close()
            self.children[pid] = Child(i, ours)
            self._say(engine=i, pid=pid)
        return None

    def _let_go(self, server):
        """In an engine: be a process of its own, which ends with the fork server all the same."""
        os.setsid()  # Ctrl-C in the terminal of the kernel is not for the engines
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)  # it ended before this engine could ask for the signal
        os.close(self.report)
        for other in self.children.values():
            other.channel.close()

    def _say(self, **what):
        os.write(self.report, json.dumps(what).encode() + b"\n")

    def be_nanny(self):
        """Look after the engines; return 0 if all ended in order, else 1."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the engines
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._until_the_last_has_ended())
        nannies = [child.nanny for child in self.children.values() if child.nanny]
        for nanny in nannies:
            nanny.close()
        if nannies:
            nannies[0].context.term()  # returns when the hub knows
        return int(any(child.exit_code for child in self.children.values()))

    async def _until_the_last_has_ended(self):
        self.all_ended = asyncio.Event()
        for pid, child in self.children.items():
            self.loop.add_reader(child.channel, self._meet, pid, child)
        self.loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self.loop.add_signal_handler(signal.SIGTERM, self._end_all)
        self._reap()  # those that ended before
        await self.all_ended.wait()

    def _meet(self, pid, child):
        """An engine has registered and asks where its nanny is."""
        from ranklab.forked_engine import Nanny

        self.loop.remove_reader(child.channel)
        if said := child.channel.recv(2**20):  # else it has ended
            child.nanny = Nanny(pid=pid, pipe=None, **pickle.loads(said))
            self._say(engine=child.number, id=child.nanny.engine_id)
            child.channel.sendall(child.nanny.listen(self.addresses[child.number]).encode())

    def _alive(self):
        return [pid for pid, child in self.children.items() if child.exit_code is None]

    def _reap(self):
        """Report the engines that have ended, to the launcher and to the hub."""
        while self._alive():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children[pid]
            child.exit_code = os.waitstatus_to_exitcode(status)
            self._say(engine=child.number, pid=pid, exit_code=child.exit_code)
            if child.nanny:
                child.nanny.notify_exit()
        self.all_ended.set()

    def _end_all(self):
        for pid in self._alive():
            os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
