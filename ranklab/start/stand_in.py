"""A stand-in: what mpiexec starts in place of an engine (mpi_world.py says why).

    python -I -S stand_in.py SOCKET FILE TOLD...

It hands on what mpiexec has given to it, and waits until its engine has ended, to end as that did.
FILE and TOLD are those of upstream/mpich.py: the variable that names an open file, and how the
names of all variables begin.
It starts in some ten milliseconds, and nothing else of ranklab is there.
"""

import contextlib
import json
import os
import signal
import socket
import sys

TOGETHER = socket.SOCK_SEQPACKET  # a socket that keeps messages apart


def main(path, file_in, *told):
    """Hand on, wait, and return the exit code of the engine."""
    given = {name: value for name, value in os.environ.items() if name.startswith(told)}
    with socket.socket(socket.AF_UNIX, TOGETHER) as server:
        server.connect(path)
        file = int(given.pop(file_in))
        socket.send_fds(server, [json.dumps(given).encode()], [file])
        os.close(file)  # the engine has it now
        said = server.recv(100)  # nothing, where the fork server has ended
    code = int(said or 1)
    if code < 0:  # by a signal
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
