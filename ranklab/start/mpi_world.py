"""One MPI world for engines that are forked: mpiexec starts stand-ins, engines take their places.

A process learns from mpiexec, which starts it, what its rank is and how to find the others: by its
environment and an open file. What mpiexec starts itself would be Pythons that each import torch by
themselves. So it starts small processes, the stand-ins (stand_in.py), which hand both on to the
fork server. For each that forks an engine, which starts MPI with what was handed on.

From then on a stand-in stands for the life of its engine. It ends as that did, of which mpiexec
takes note and ends the others, as it always does; and where mpiexec ends it, its engine is ended.
"""

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from ranklab.start import stand_in
from ranklab.upstream import mpich

LOOK = 0.2  # seconds between two looks at whether mpiexec lives
MOST = 1 << 16  # bytes of what mpiexec gives


@dataclass
class Place:
    """A rank's place in the world: what mpiexec gave, and the channel to the stand-in."""

    environment: dict
    file: int
    channel: socket.socket

    @property
    def rank(self):
        return mpich.rank_in(self.environment)

    def end(self, code):
        """Let the stand-in end by this exit code, as the engine did."""
        with contextlib.suppress(OSError):  # mpiexec was faster
            self.channel.send(str(code).encode())


@functools.cache
def is_of_mpich(mpiexec):
    """Is it an mpiexec that gives a place in this way? That of Open MPI has another."""
    try:
        asked = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return mpich.is_meant_by(asked.stdout)


def places(mpiexec, n, folder):
    """Start mpiexec, a command; return the n places, by rank. folder: for a socket."""
    with socket.socket(socket.AF_UNIX, stand_in.TOGETHER) as listener:
        where = os.open(folder, os.O_RDONLY)
        # The path of a socket must be short, and that of the folder may be long.
        path = f"/proc/{os.getpid()}/fd/{where}/stand-ins-{os.getpid()}"
        listener.bind(path)
        listener.listen(n)
        listener.settimeout(LOOK)
        command = [*mpiexec, "-n", str(n), sys.executable, "-I", "-S", stand_in.__file__]
        command += [path, mpich.FILE, *mpich.TOLD]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        found = []
        while len(found) < n:
            with contextlib.suppress(TimeoutError):
                found.append(_place(listener.accept()[0]))
            if len(found) < n and started.poll() is not None:
                sys.exit(f"mpiexec ended, with exit code {started.returncode}, before all started.")
        os.close(where)
    return sorted(found, key=lambda place: place.rank)


def _place(channel):
    channel.setblocking(True)
    text, (file,), *_ = socket.recv_fds(channel, MOST, 1)
    return Place(json.loads(text), file, channel)


def take(place, places):
    """In an engine: take one of the places, or None; MPI starts there, and nowhere else."""
    for other in filter(None, places):
        other.channel.close()
        if other is not place:
            os.close(other.file)
    if place:
        os.environ.update({**place.environment, mpich.FILE: str(place.file)})


def hand_over(places):
    """In the fork server: keep nothing of the places but the channels."""
    for place in filter(None, places):
        os.close(place.file)
