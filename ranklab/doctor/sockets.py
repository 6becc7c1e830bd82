"""The TCP sockets of this process, those of its libraries too: found by asking each one.

Linux has a table of connections, but that is the whole machine's: a look at it takes some 15 ms of
computing, and may miss one connection while others come and go.
"""

import contextlib
import errno
import gc
import os
import socket
import stat

INTERNET = (socket.AF_INET, socket.AF_INET6)
FILES = "/dev/fd"  # the numbers of this process's open files; Windows has no such thing


def listening():
    """Return the ports at which this process listens."""
    return {_port(one) for one in _each() if _listens(one)}


def shut_accepted(but):
    """Shut each connection that this process accepted, but those at the ports `but`; close none."""
    ports = listening() - but
    for one in _each():
        if _port(one) in ports and not _listens(one):
            with contextlib.suppress(OSError):  # the other end was faster
                one.shutdown(socket.SHUT_RDWR)


def listening_in_python():
    """Return the ports of Python's own sockets: they are the reader's, no library's in C++."""
    ports = set()
    for thing in gc.get_objects():
        # Not isinstance: it would ask a proxy for what is no longer there.
        if issubclass(type(thing), socket.socket) and thing.family in INTERNET:
            ports.add(_port(thing))
    return ports


def _each():
    """Yield a copy of each TCP socket of this process; it is closed when the next one comes.

    A number of a file may be another one's a moment later; a copy stays what it is.
    """
    for file in os.listdir(FILES) if os.path.isdir(FILES) else []:
        one = _copy(int(file))
        if one is not None:
            with one:
                if one.family in INTERNET and one.type == socket.SOCK_STREAM:
                    yield one


def _copy(file):
    """Return a copy of a socket; None where this file is no socket, or none that works."""
    try:
        # Nothing else is copied: a process loses its locks on a file when it closes a copy.
        if not stat.S_ISSOCK(os.fstat(file).st_mode):
            return None
        copy = os.dup(file)
    except OSError as error:
        if error.errno != errno.EBADF:  # closed meanwhile
            raise
        return None
    blocks = os.get_blocking(copy)
    try:
        one = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    os.set_blocking(copy, blocks)  # else a default timeout that the reader set would end that
    return one


def _port(one):
    """Return the port of a socket; 0 if it has none."""
    try:
        return one.getsockname()[1]
    except OSError:  # closed, or, on macOS, reset
        return 0


def _listens(one):
    try:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:  # macOS does not say; what listens has a port, and no other end
        return _port(one) != 0 and not _has_peer(one)


def _has_peer(one):
    try:
        one.getpeername()
    except OSError:
        return False
    return True
