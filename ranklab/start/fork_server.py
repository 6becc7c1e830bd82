"""The process that forks the engines, and looks after them.

It is forked itself, by a process that has imported what the engines need (importer_main.py). After
its engines it is their nanny: it relays what comes for them on the control channel and answers
requests for signals itself (so that a stopped or a stuck engine gets its signal), reports how each
of them ended, and tells the hub at once. It ends with the last engine; and the engines end with it.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import pickle
import signal
import socket
import sys
import time
from dataclasses import dataclass

from ranklab.start import mpi_world

PATIENCE = 60.0  # seconds that the controller has to write its connection files
TO_LISTEN = 10.0  # seconds that it then has to take its ports, where it runs on this machine
LISTENING = "0A"  # in Linux's tables of connections
TO_END = 0.05  # seconds from when the files of an engine close to when its end is known
PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends


class LostPorts(RuntimeError):
    """The controller does not listen at ports that it has chosen."""

    def __init__(self, ports):
        self.ports = sorted(ports)
        super().__init__(
            "The controller does not listen at ports that it has chosen; somebody else may have "
            f"taken {', '.join(map(str, self.ports))}."
        )


def serve(order):
    """Be a fork server, just forked, until its last engine has ended; return its exit code.

    In the engines it returns, too, when they are told to end. order: what launcher.py says.
    """
    os.setsid()
    os.environ.update(order["environment"])
    try:
        _wait_for_the_controller(order["connection_files"])
    except LostPorts as taken:
        with open(order["report"], "a") as report:
            print(json.dumps({"ports_taken": taken.ports}), file=report)
        sys.exit(str(taken))
    server = ForkServer(order)
    me = server.fork()
    if me is None:
        return server.be_nanny()
    _be_engine(order["outputs"][me.number], me.channel, order["engine_args"])
    return 0


def _wait_for_the_controller(files):
    """Return when the controller is there, with all its ports.

    files: {"engine": what it writes for engines, "client": what it writes for clients}. The first
    is put where ipyparallel's own engine looks for it.
    """
    deadline = time.monotonic() + PATIENCE
    while "IPP_CONNECTION_INFO" not in os.environ:
        if text := _written(files["engine"]):
            os.environ["IPP_CONNECTION_INFO"] = text
        if time.monotonic() > deadline:
            sys.exit(f"The controller did not write {files['engine']} within {PATIENCE:g} s.")
        time.sleep(0.01)
    for_engines, for_clients = os.environ["IPP_CONNECTION_INFO"], _written(files["client"])
    _wait_for_ports(_ports(for_engines) | _ports(for_clients or "{}"))


def _wait_for_ports(chosen):
    """Return when the controller listens at all ports that it has chosen, if it runs here.

    It writes them down first and takes them after that. Until then, the system may give one of them
    to somebody else, an engine, say, as his own end of a connection.
    """
    deadline = time.monotonic() + TO_LISTEN
    while missing := chosen - _listened_to():
        if time.monotonic() > deadline:
            if missing == chosen:  # it runs elsewhere
                return
            raise LostPorts(missing)
        time.sleep(0.05)  # a look takes some 15 ms of computing


def _written(file):
    """Return the text of a file with JSON, or None where it is not there, or half written."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError), open(file) as opened:
        text = opened.read()
        json.loads(text)
        return text
    return None


def _ports(connection):
    """Return the ports in what the controller has written."""
    found = set()
    for value in json.loads(connection).values():
        found.update(value if isinstance(value, list) else [value])
    return {port for port in found if isinstance(port, int)}


def _listened_to():
    """Return the TCP ports of this machine at which somebody listens."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table) as rows:
            for _, local, _, state, *_ in map(str.split, list(rows)[1:]):
                if state == LISTENING:
                    found.add(int(local.rpartition(":")[2], 16))
    return found


def _be_engine(output, server, arguments):
    """Become an engine in this process, just forked; return when it is told to end."""
    from ranklab.start.forked_engine import ForkedEngine

    write_to(output)
    seed_anew()
    sys.argv = ["ipengine", *arguments]
    engine = ForkedEngine.instance(server=server)
    engine.initialize(arguments)
    engine.start()


def write_to(file):
    """Have what this process prints at the end of `file`."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def seed_anew():
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
    place: mpi_world.Place | None = None  # in the world of MPI, where they have one
    by_mpiexec: bool = False  # did that end it, as it does when another one has ended?


class ForkServer:
    """The engines that this process forks, and looks after until the last one has ended."""

    def __init__(self, order):
        self.n = order["n"]
        self.addresses = order["nannies"]  # where the nanny of each engine listens
        self.report = os.open(order["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.children = {}  # by process id
        self.places = [None] * self.n
        if mpiexec := order.get("mpiexec"):
            self.places = mpi_world.places(mpiexec, self.n, os.path.dirname(order["report"]))

    def fork(self):
        """Fork the engines; return the Child that this process is, or None in the fork server."""
        server = os.getpid()
        for i, place in enumerate(self.places):
            # One that keeps messages apart.
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._let_go(server)
                mpi_world.take(place, self.places)
                return Child(i, theirs)
            theirs.close()
            self.children[pid] = Child(i, ours, place=place)
            self._say(engine=i, pid=pid)
        mpi_world.hand_over(self.places)
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
            if child.place:
                self.loop.add_reader(child.place.channel, self._lose_place, pid, child)
        self.loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self.loop.add_signal_handler(signal.SIGTERM, self._end_all)
        self._reap()  # those that ended before
        await self.all_ended.wait()

    def _meet(self, pid, child):
        """An engine has registered and asks where its nanny is."""
        from ranklab.start.forked_engine import Nanny

        self.loop.remove_reader(child.channel)
        if said := child.channel.recv(2**20):  # else it has ended
            child.nanny = Nanny(pid=pid, pipe=None, **pickle.loads(said))
            self._say(engine=child.number, id=child.nanny.engine_id)
            child.channel.sendall(child.nanny.listen(self.addresses[child.number]).encode())

    def _lose_place(self, pid, child):
        """mpiexec has ended the stand-in of an engine: end that, too.

        Or the engine has ended, of which mpiexec heard first, as its files close before that.
        """
        self.loop.remove_reader(child.place.channel)
        self.loop.call_later(TO_END, self._end_for_mpiexec, pid, child)

    def _end_for_mpiexec(self, pid, child):
        if child.exit_code is None:
            child.by_mpiexec = True
            os.kill(pid, signal.SIGKILL)

    def _alive(self):
        return [pid for pid, child in self.children.items() if child.exit_code is None]

    def _reap(self):
        """Report the engines that have ended, to the launcher and to the hub."""
        while self._alive():
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.get(pid)
            if child is None:  # mpiexec
                continue
            child.exit_code = os.waitstatus_to_exitcode(status)
            killed = child.exit_code == -signal.SIGKILL
            by = {"ended_by": "mpiexec"} if killed and child.by_mpiexec else {}
            self._say(engine=child.number, pid=pid, exit_code=child.exit_code, **by)
            if child.nanny:
                child.nanny.notify_exit()
            if child.place:
                child.place.end(child.exit_code)
        self.all_ended.set()

    def _end_all(self):
        for pid in self._alive():
            os.kill(pid, signal.SIGTERM)
