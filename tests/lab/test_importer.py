"""The process that imports for the ranks, and outlives a restart: importing again takes longest."""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

import ipyparallel
import psutil
import pytest
import torch
from kernels import all_ended, ended_by_a_restart, wait_until

from ranklab import Ranks
from ranklab.errors import RankError
from ranklab.start import cluster, importer_process, launcher
from ranklab.start.guardian import has_ended

pytestmark = pytest.mark.skipif(not launcher.can_fork(), reason="engines are forked on Linux")
MODULE = "this_is_preloaded"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts two ranks, with a module preloaded that knows which process imported it.

    To be called by the test itself: pytest tells in the environment what it is doing.
    """
    (tmp_path / f"{MODULE}.py").write_text("import os\npid = os.getpid()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(cluster, "PRELOAD", [*cluster.PRELOAD, MODULE])
    with contextlib.ExitStack() as until_the_end:
        yield lambda: until_the_end.enter_context(Ranks(2))


def server_of(ranks):
    """The process that forked the ranks."""
    (server,) = set(ranks.run(os.getppid))
    return server


def imported_by(ranks):
    """The process that imported what the ranks have."""

    def who(name):
        import importlib

        return importlib.import_module(name).pid

    who.__module__ = "__main__"
    (process,) = set(ranks.run(who, MODULE))
    return process


def random_numbers():
    import random

    import numpy
    import torch

    return random.random(), float(numpy.random.rand()), torch.rand(1).item()


random_numbers.__module__ = "__main__"


def test_a_restart_imports_nothing_and_leaves_nothing_else(start):
    ranks = start()
    folder, drawn = ranks.folder, ranks.run(random_numbers)
    its = importer_process.pid_in(folder)
    assert imported_by(ranks) == its == psutil.Process(server_of(ranks)).ppid()
    for _ in range(2):
        before = ended_by_a_restart(folder)
        Path(folder, "of-a-rank").mkdir()
        Path(folder, "of-a-rank", "file").touch()
        ranks.restart()
        assert len(before) > 4
        assert all_ended(before)
        assert ranks.folder == folder
        assert not Path(folder, "of-a-rank").exists()
        assert imported_by(ranks) == its
        assert ranks.run(os.getsid, 0) == ranks.pids
        drawn += ranks.run(random_numbers)
    for kind in zip(*drawn):
        assert len(set(kind)) == len(kind) == 6
    # A kernel finds what belongs to its ranks below itself, too: when it samples the cores, say.
    below = psutil.Process().children(recursive=True)
    assert {*ranks.pids, its} <= {process.pid for process in below}
    its = psutil.Process(its)
    ranks.close()
    assert has_ended(its)
    assert not os.path.exists(folder)


def test_what_the_reader_changed_holds_after_a_restart(start, monkeypatch):
    ranks = start()
    before = psutil.Process(imported_by(ranks))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    ranks.restart()
    assert has_ended(before)
    assert imported_by(ranks) == importer_process.pid_in(ranks.folder) != before.pid
    assert ranks.run(torch.get_num_threads) == [2, 2]


@pytest.mark.everything
def test_one_that_would_import_something_else_is_not_kept(tmp_path):
    command, folder = (
        [sys.executable, "-m", "ranklab.start.importer_main", '["wave"]'],
        str(tmp_path),
    )
    its = importer_process.Importer(command, dict(os.environ), folder, tmp_path / "log")
    try:
        assert its.fits(command, dict(os.environ), folder)
        assert not its.fits([*command[:-1], "[]"], dict(os.environ), folder)
        assert not its.fits(command, {**os.environ, "OMP_NUM_THREADS": "7"}, folder)
        assert not its.fits(command, dict(os.environ), os.path.dirname(folder))
        os.kill(its.pid, signal.SIGSTOP)
        wait_until(lambda: not its.fits(command, dict(os.environ), folder))
        os.kill(its.pid, signal.SIGCONT)
    finally:
        its.end()
    assert not its.alive()


@pytest.mark.everything
def test_one_that_does_not_import_in_time_is_given_up(tmp_path, monkeypatch):
    (tmp_path / f"{MODULE}.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(cluster, "PRELOAD", [MODULE])
    monkeypatch.setattr(importer_process, "PATIENCE", 1)
    with pytest.raises(RankError, match=r"(?s)a process has ended\..*Not everything was imported"):
        Ranks(2)


@pytest.mark.everything
def test_a_second_ranks_has_the_importer_of_the_first(start):
    assert imported_by(start()) == imported_by(start())


@pytest.mark.everything
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_restart_needs_no_importer(start, name):
    ranks = start()
    its = psutil.Process(imported_by(ranks))
    its.send_signal(getattr(signal, name))
    wait_until(lambda: importer_process.pid_in(ranks.folder) is None)
    ranks.restart()
    assert has_ended(its)
    assert ranks["rank"] == [0, 1]


LOSES_A_PORT = """
from ranklab.start import fork_server

really = fork_server._wait_for_ports

def once(chosen):
    try:
        open({mark!r}, "x").close()
    except FileExistsError:
        return really(chosen)
    fork_server.TO_LISTEN = 0.5
    fork_server._listened_to = lambda: set(sorted(chosen)[1:])
    really(chosen)

fork_server._wait_for_ports = once
"""


@pytest.mark.everything
def test_a_start_whose_controller_lost_a_port_is_tried_again(start, monkeypatch, tmp_path):
    (tmp_path / "loses_a_port.py").write_text(LOSES_A_PORT.format(mark=str(tmp_path / "lost")))
    monkeypatch.setattr(cluster, "PRELOAD", [*cluster.PRELOAD, "loses_a_port"])
    assert start()["rank"] == [0, 1]
    assert (tmp_path / "lost").exists()


@pytest.mark.everything
def test_a_start_is_tried_twice_at_most(monkeypatch):
    folders = []

    def lose_a_port(plan, folder, preload):
        folders.append(folder)
        raise cluster.PortsTaken("The ranks did not start")

    monkeypatch.setattr(cluster, "start", lose_a_port)
    with pytest.raises(RankError, match="did not start"):
        Ranks(2)
    assert len(folders) == 2
    assert not any(map(os.path.exists, folders))


@pytest.mark.everything
def test_a_client_that_misses_that_the_engines_came_is_replaced(start, monkeypatch):
    """It was told of those that were there, none, and what was published then did not reach it."""
    update, clients = ipyparallel.Client._update_engines, []

    def miss(client, engines):
        if client not in clients:
            clients.append(client)
        if client is not clients[0]:
            update(client, engines)

    monkeypatch.setattr(ipyparallel.Client, "_update_engines", miss)
    assert start()["rank"] == [0, 1]
    assert len(clients) >= 2  # on a busy machine, the second may give up, too


@pytest.mark.everything
def test_a_hub_that_is_busy_when_the_client_comes_is_asked_again(start, monkeypatch):
    connect, asked = ipyparallel.Cluster.connect_client, []

    async def busy_at_first(cluster, **options):
        asked.append(cluster)
        if len(asked) == 1:
            raise TimeoutError("Hub connection request timed out")
        return await connect(cluster, **options)

    monkeypatch.setattr(ipyparallel.Cluster, "connect_client", busy_at_first)
    assert start()["rank"] == [0, 1]
    assert len(asked) >= 2


@pytest.mark.everything
def test_a_restart_needs_no_folder(start):
    ranks = start()
    folder, its = ranks.folder, psutil.Process(imported_by(ranks))
    shutil.rmtree(folder)
    ranks.restart()
    assert ranks["rank"] == [0, 1]
    assert ranks.folder != folder
    assert has_ended(its)


@pytest.mark.everything
def test_engines_that_are_not_forked_keep_no_importer(start, monkeypatch):
    ranks = start()
    its = psutil.Process(imported_by(ranks))
    monkeypatch.setenv("RANKLAB_NO_FORK", "1")
    ranks.restart()
    assert ranks["rank"] == [0, 1]
    assert has_ended(its)


@pytest.mark.everything
def test_a_guardian_that_was_killed_is_replaced_with_the_rest(start):
    ranks = start()
    folder, guardian, its = ranks.folder, ranks._guardian, psutil.Process(imported_by(ranks))
    guardian._process.kill()
    guardian._process.wait()
    ranks.restart()
    assert ranks.folder != folder
    assert ranks._guardian._process.poll() is None
    assert has_ended(its)
    assert not os.path.exists(folder)
