"""Who reaches the ranks: nobody from outside, nobody without the key. And what stays behind."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ipyparallel
import psutil
import pytest
import zmq
from ipyparallel.serialize import pack_apply_message
from jupyter_client.session import Session
from kernels import wait_until
from tiers import few

from ranklab import Ranks
from ranklab.errors import RankError
from ranklab.start import guardian, launcher
from ranklab.start.guardian import belonging_to, has_ended

N = 3
LOOPBACK = {"127.0.0.1", "::1"}
ZEROS = b"\0" * 5000


def on_ranks(function):
    function.__module__ = "__main__"  # sent by value
    return function


@on_ranks
def summed():
    x = torch.ones(1)  # noqa: F821
    dist.all_reduce(x)  # noqa: F821
    return x.item()


@on_ranks
def make_a_group():
    global group
    group = dist.new_group()  # noqa: F821


@on_ranks
def summed_in_the_group():
    x = torch.ones(1)  # noqa: F821
    dist.all_reduce(x, group=group)  # noqa: F821
    return x.item()


@pytest.fixture(scope="module")
def ranks():
    """Ranks that were started by somebody whose files are open to everybody."""
    before = os.umask(0)
    try:
        with Ranks(N, timeout=20) as ranks:
            assert ranks.run(summed) == [N] * N
            yield ranks
    finally:
        os.umask(before)


def listening(processes):
    """Return the addresses, (host, port), on which `processes` take connections or messages."""
    found = set()
    for process in processes:
        for connection in process.net_connections(kind="inet"):
            waits = connection.status == psutil.CONN_LISTEN
            if waits or connection.type == socket.SOCK_DGRAM:
                found.add(tuple(connection.laddr))
    return found


# Where the ranks listen


def test_the_kernel_and_what_belongs_to_the_ranks_listen_on_loopback_alone(ranks):
    processes = belonging_to(ranks._guardian.folder)
    assert set(ranks.pids) < {process.pid for process in processes}
    addresses = listening([*processes, psutil.Process()])
    assert addresses  # the controller's, at least
    assert {host for host, _ in addresses} <= LOOPBACK


def test_a_group_that_is_being_made_listens_on_loopback_alone(ranks):
    with half_made_group(ranks) as addresses:
        assert addresses  # Gloo's own
        assert {host for host, _ in addresses} == {"127.0.0.1"}


@contextlib.contextmanager
def half_made_group(ranks):
    """Have all ranks but the last make a group; yield where they listen; then come the last."""
    members = [psutil.Process(pid) for pid in ranks.pids]
    before = listening(members)
    first = [ranks.client[r].apply_async(make_a_group) for r in range(N - 1)]
    wait_until(lambda: len(listening(members) - before) == N - 1)
    yield listening(members) - before
    last = ranks.client[N - 1].apply_async(make_a_group)
    for result in [*first, last]:
        result.get(timeout=30)
    assert ranks.run(summed_in_the_group) == [N] * N


@pytest.mark.skipif(not launcher.can_fork(), reason="a fork server listens on no port at all")
def test_the_fork_server_listens_where_only_its_owner_can_go(ranks):
    server = ranks.cluster.engine_set.process
    assert not listening([server])
    folders = {Path(c.laddr).parent for c in server.net_connections(kind="unix") if c.laddr}
    assert folders == {Path(ranks._guardian.folder) / "security"}
    assert stat.S_IMODE(folders.pop().stat().st_mode) == 0o700


# Who speaks to them without the key


@on_ranks
def write_to(path):
    with open(path, "a") as file:
        file.write("executed\n")


def requests(session, path):
    """Yield (type, content, buffers) of all that could do something, if it were believed."""
    yield "execute_request", {"code": f"open({path!r}, 'a').write('executed')", "silent": False}, []
    yield "apply_request", {}, pack_apply_message(write_to, (path,), {})
    yield "signal_request", {"sig": "SIGKILL"}, []
    yield "shutdown_request", {"restart": False}, []
    for engine in range(N):
        yield "unregistration_request", {"id": engine}, []
    yield "new_heart", {"hearts": ["nobody"]}, []


@pytest.mark.parametrize("key", few([b"", b"wrong"], lambda key: key))
def test_without_the_key_nothing_is_executed_at_any_port(ranks, tmp_path, key):
    path = str(tmp_path / "executed")
    engines = [identity.encode() for identity in ranks.client._engines.values()]
    stranger = Session(key=key)
    with zmq.Context() as context:
        for host, port in listening(belonging_to(ranks._guardian.folder)):
            # A socket that listens talks to sockets of some types alone: these are all the others.
            for kind in (zmq.DEALER, zmq.PUB, zmq.XPUB, zmq.ROUTER):
                with context.socket(kind) as door:
                    door.LINGER = 200  # milliseconds
                    door.SNDTIMEO = 200
                    door.connect(f"tcp://{host}:{port}")
                    for topic in [*engines, None]:
                        for name, content, buffers in requests(stranger, path):
                            with contextlib.suppress(zmq.Again):  # nobody behind this door
                                stranger.send(door, name, content, ident=topic, buffers=buffers)
    assert ranks.run(summed) == [N] * N
    assert not os.path.exists(path)
    assert ranks.client.ids == list(range(N))


@pytest.mark.parametrize("channel", ["mux", "control"])
def test_the_same_request_is_executed_with_the_key_and_only_then(ranks, tmp_path, channel):
    """In one connection, so that what came before the request that is executed has arrived, too."""
    path = tmp_path / "executed"
    info = json.loads(next(Path(ranks._guardian.folder).glob("security/*client.json")).read_text())
    engine = next(iter(ranks.client._engines.values())).encode()
    with zmq.Context() as context, context.socket(zmq.DEALER) as door:
        door.LINGER = 0
        door.connect(f"{info['interface']}:{info[channel]}")
        for key in (b"", b"wrong", info["key"].encode()):
            session = Session(key=key)
            for name, content, buffers in list(requests(session, str(path)))[:2]:
                session.send(door, name, content, ident=engine, buffers=buffers)
        wait_until(path.exists)
    assert ranks.run(summed) == [N] * N
    assert path.read_text().count("executed") <= 2  # the two that had the key


def noise():
    chance = random.Random(0)
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield from (chance.randbytes(size) for size in (1, 64, 5000))
    yield b"\xff" * 5000


def send_garbage(addresses, garbage):
    for address in addresses:
        for data in garbage:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=2) as door:
                door.sendall(data)
                door.settimeout(0.05)
                door.recv(100)


def test_the_ranks_survive_garbage_at_every_port(ranks):
    addresses = listening(belonging_to(ranks._guardian.folder))
    send_garbage(addresses, [*noise(), ZEROS])
    assert ranks.run(summed) == [N] * N
    assert ranks.client.ids == list(range(N))
    ranks.reset()
    assert ranks.run(summed) == [N] * N


def test_a_group_that_is_being_made_survives_garbage(ranks):
    with half_made_group(ranks) as addresses:
        send_garbage(addresses, noise())


@pytest.mark.everything
def test_a_group_that_a_stranger_breaks_is_replaced(ranks):
    """Gloo has no key: it takes who says 0 first for the rank that it expects next.

    So another user of this machine can break a group in the moment in which it is made. It is then
    as any other group that broke.
    """
    with contextlib.suppress(RankError, ipyparallel.RemoteError), half_made_group(ranks) as doors:
        send_garbage(doors, [ZEROS])
    ranks.reset()
    assert ranks.run(summed) == [N] * N


# What stands in files


def test_files_with_keys_are_for_their_owner_alone(ranks):
    folder = Path(ranks._guardian.folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    info = json.loads(next(folder.glob("security/*client.json")).read_text())
    keys = [file for file in folder.rglob("*") if file.is_file() and info["key"] in _text(file)]
    assert len(keys) == 2
    for file in keys:
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0
        assert stat.S_IMODE(file.parent.stat().st_mode) & 0o077 == 0


def _text(file):
    return file.read_bytes().decode(errors="replace")


# What stays behind: nothing after close, and after a crash nothing from the next start on


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """A folder for temporary files that nothing else uses; with a short name, for sockets."""
    folder = tempfile.mkdtemp(prefix="t-")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", folder)
    yield Path(folder)
    for left in Path(folder).glob("ranklab-*"):  # where a test failed halfway: its processes, too
        guardian.clean(str(left))
    shutil.rmtree(folder)


def test_close_leaves_no_temporary_file(temporary):
    with Ranks(2) as ranks:
        assert ranks.run(summed) == [2.0] * 2
        ranks.reset()
        assert list(temporary.iterdir())
    assert not list(temporary.iterdir())


KERNEL = """
import time
from ranklab import Ranks
ranks = Ranks(2)
print(ranks._guardian._process.pid, ranks._guardian.folder, flush=True)
time.sleep(1000)
"""


def start_a_kernel():
    """Start a kernel with ranks; return it, its guardian's process id and its folder."""
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True)
    kernel.stdout.readline()  # "2 ranks ..."
    guardian_pid, folder = kernel.stdout.readline().split()
    return kernel, int(guardian_pid), folder


@pytest.mark.everything
def test_the_next_start_cleans_up_after_a_crash_and_leaves_the_living_alone(temporary):
    dead, its_guardian, stale = start_a_kernel()
    living, _, folder = start_a_kernel()
    try:
        left = belonging_to(stale)
        for pid in (its_guardian, dead.pid):  # all at once: nobody is left to clean up
            os.kill(pid, signal.SIGSTOP)
        for pid in (its_guardian, dead.pid):
            os.kill(pid, signal.SIGKILL)
        dead.wait()
        assert not all(map(has_ended, left))
        assert os.path.exists(stale)
        there = belonging_to(folder)
        with Ranks(1):
            assert not os.path.exists(stale)
            assert all(map(has_ended, left))
            assert os.path.exists(folder)
            assert not any(map(has_ended, there))
    finally:
        for process in (dead, living):
            process.kill()
            process.wait()
            process.stdout.close()
    wait_until(lambda: not list(temporary.iterdir()))


def test_a_folder_is_stale_only_when_its_kernel_is_dead(temporary):
    kept = [temporary / name for name in ("ranklab-new", "ranklab-held", "another-0")]
    stale = [temporary / name for name in ("ranklab-dead", "ranklab-never-used")]
    for folder in [*kept, *stale]:
        folder.mkdir(mode=0o700)
    (temporary / "ranklab-link").symlink_to(kept[1])
    (temporary / "ranklab-file").write_text("")
    (stale[0] / guardian.LOCK).write_text("")  # locked by nobody
    long_ago = time.time() - 2 * guardian.GRACE
    for folder in (stale[1], kept[2]):
        os.utime(folder, (long_ago, long_ago))
    lock = guardian.hold(str(kept[1]))
    try:
        guardian.clean_after_the_dead()
    finally:
        os.close(lock)
    assert all(folder.exists() for folder in kept)
    assert (temporary / "ranklab-link").is_symlink()
    assert (temporary / "ranklab-file").exists()
    assert not any(folder.exists() for folder in stale)


def test_folders_of_others_are_not_ours_to_touch(temporary, monkeypatch):
    folder = temporary / "ranklab-other"
    folder.mkdir()
    (folder / guardian.LOCK).write_text("")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    guardian.clean_after_the_dead()
    assert folder.exists()
