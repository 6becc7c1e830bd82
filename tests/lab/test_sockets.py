"""The doctor's look at its own sockets: which connections it shuts, and which it does not."""

import fcntl
import os
import socket
import subprocess
import sys

import pytest

from ranklab.doctor import sockets


class Library:
    """A listener, a connection to it and its accepted end, as a library in C++ has them.

    Python knows the connecting end only: the others are numbers of files.
    """

    def __init__(self, address="127.0.0.1", family=socket.AF_INET):
        server = socket.create_server((address, 0), family=family)
        self.port = server.getsockname()[1]
        self.connected = socket.create_connection((address, self.port), timeout=5)
        accepted, _ = server.accept()
        self._files = [server.detach(), accepted.detach()]

    def is_shut(self):
        """Has the accepted end been shut? Its other end then reads the end of the stream."""
        self.connected.settimeout(0.2)
        try:
            return self.connected.recv(1) == b""
        except TimeoutError:
            return False

    def close(self):
        self.connected.close()
        for file in self._files:
            os.close(file)


@pytest.fixture
def library():
    made = Library()
    yield made
    made.close()


def test_a_librarys_port_is_found(library):
    assert library.port in sockets.listening()
    assert library.port not in sockets.listening_in_python()


def test_what_a_library_accepted_is_shut(library):
    sockets.shut_accepted(but=sockets.listening() - {library.port})
    assert library.is_shut()
    assert library.connected.send(b"!") == 1  # from here: it is the other end that was shut


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_so_is_what_came_by_ipv6():
    try:
        library = Library("::1", socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    sockets.shut_accepted(but=sockets.listening() - {library.port})
    assert library.is_shut()
    library.close()


def test_what_was_accepted_at_another_port_is_not(library):
    later = Library()
    sockets.shut_accepted(but=sockets.listening() - {later.port})
    assert later.is_shut() and not library.is_shut()
    later.close()


def test_shut_sockets_can_be_shut_again_and_the_listener_goes_on(library):
    others = sockets.listening() - {library.port}
    for _ in range(2):
        sockets.shut_accepted(but=others)
    assert library.port in sockets.listening()
    socket.create_connection(("127.0.0.1", library.port), timeout=5).close()


def test_what_a_process_connected_itself_is_not_shut():
    """Where it is to end, whoever accepted it shuts it."""
    before = sockets.listening()
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = socket.create_connection(server.getsockname(), timeout=5).detach()
        accepted, _ = server.accept()
    with accepted:  # nobody listens any more, as where the listener is another process
        sockets.shut_accepted(but=before)
        os.write(file, b"!")
        assert accepted.recv(1) == b"!"
    os.close(file)


def test_a_server_in_python_is_the_readers_own():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in sockets.listening_in_python()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not say whether a socket listens")
def test_a_socket_that_waits_for_nobody_is_none_that_listens():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert bound.getsockname()[1] not in sockets.listening()


def look():
    sockets.listening()
    sockets.shut_accepted(but=sockets.listening())


def test_a_look_leaves_no_file_open(library):
    with open(os.devnull), socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        before = os.listdir("/dev/fd")
        look()
        assert os.listdir("/dev/fd") == before


def test_a_look_leaves_blocking_as_it_is():
    """A new socket of Python's does not block where there is a default timeout; a copy is new."""
    first, second = socket.socketpair()
    with first, second:
        second.setblocking(False)
        socket.setdefaulttimeout(5)
        try:
            look()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(first.fileno()) and not os.get_blocking(second.fileno())


def test_a_look_leaves_locks_as_they_are(tmp_path):
    """A process gives up its locks on a file as soon as it closes the file or a copy of it."""
    asks = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with open(tmp_path / "locked", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        look()
        asked = [sys.executable, "-c", asks, file.name]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in said.stderr
