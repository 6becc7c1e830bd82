"""The process that imports once, forks the engines, and looks after them.

    python -m ranklab.fork_server ORDER     what launcher.py calls; ORDER is a JSON object

It goes through three states. First it imports, on one thread and without a ZeroMQ context, for
neither threads nor sockets survive a fork. Then it forks the engines. From then on it is their
nanny: it relays what comes for them on the control channel and answers requests for signals itself
(so that a stopped or a stuck engine gets its signal), reports how each of them ended, and tells the
hub at once. It ends with the last engine; and the engines end with it.
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


def main(order):
    """Import, fork, and be the nanny of the engines; in each engine, be the engine."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # as an engine does
    gc.disable()  # nothing of what is imported is ever thrown away
    for name in (*ALWAYS, *order["preload"]):
        _import(name)
    _wait_for_the_controller(order["connection_file"])
    gc.collect()
    gc.freeze()  # a collection would write to pages that the engines share
    gc.enable()
    children = {}
    parent = os.getpid()
    with open(order["report"], "ab", buffering=0) as report:
        for i in range(order["n"]):
            ours, theirs = socket.socketpair()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                for other, _ in children.values():
                    other.close()
                ours.close()
                report.close()
                return _be_engine(parent, order["outputs"][i], theirs, order["engine_args"])
            theirs.close()
            children[pid] = (ours, i)
            _say(report, engine=i, pid=pid)
        return _be_nanny(children, report, order["nannies"])


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


def _be_engine(parent, output, server, arguments):
    """Become an engine in this process, just forked; return when it is told to end."""
    from ranklab.forked_engine import ForkedEngine

    os.setsid()  # Ctrl-C in the terminal of the kernel is not for the engines
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before this engine could ask for the signal
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _seed_anew()
    sys.argv = ["ipengine", *arguments]
    engine = ForkedEngine.instance(server=server)
    engine.initialize(arguments)
    engine.start()


def _seed_anew():
    """Give this process random numbers of its own, as a fresh one has."""
    # `random` does it by itself.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _say(report, **what):
    report.write(json.dumps(what).encode() + b"\n")


def _be_nanny(children, report, addresses):
    """Look after the engines `children`, {process id: (socket, number)}, until the last has ended.

    The nanny of engine i listens at addresses[i]. Returns 0 if all ended in order, else 1.
    """
    from ranklab.forked_engine import Nanny

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the engines
    nannies, codes = {}, {}
    loop = asyncio.new_event_loop()

    async def serve():
        done = loop.create_future()

        def reap():
            while len(codes) < len(children):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                codes[pid] = os.waitstatus_to_exitcode(status)
                _say(report, engine=children[pid][1], pid=pid, exit_code=codes[pid])
                if pid in nannies:
                    nannies[pid].notify_exit()
            if not done.done():
                done.set_result(None)

        def meet(pid):
            """An engine has registered and asks for its nanny: where is it to listen?"""
            channel, i = children[pid]
            loop.remove_reader(channel)
            if said := channel.recv(2**20):
                nanny = nannies[pid] = Nanny(pid=pid, pipe=None, **pickle.loads(said))
                _say(report, engine=i, id=nanny.engine_id)
                channel.sendall(nanny.listen(addresses[i]).encode())

        for pid, (channel, _) in children.items():
            loop.add_reader(channel, meet, pid)
        loop.add_signal_handler(signal.SIGCHLD, reap)
        loop.add_signal_handler(signal.SIGTERM, end_all)
        reap()
        await done

    def end_all():
        for pid in children.keys() - codes.keys():
            os.kill(pid, signal.SIGTERM)

    loop.run_until_complete(serve())
    for nanny in nannies.values():
        nanny.close()
    if nannies:
        nanny.context.term()  # returns when the hub knows
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
