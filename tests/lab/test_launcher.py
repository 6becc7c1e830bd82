"""The launcher `ranklab`, as `ipyparallel.Cluster(engines="ranklab")` gives it to anybody."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time

import ipyparallel
import psutil
import pytest
from ipyparallel.cluster.launcher import LocalEngineSetLauncher
from traitlets.config import Config

from ranklab import Ranks
from ranklab.errors import RankError
from ranklab.start import fork_server, launcher
from ranklab.start.cluster import connect
from ranklab.start.forked_engine import LINGER
from ranklab.start.guardian import belonging_to, has_ended

pytestmark = pytest.mark.skipif(not launcher.can_fork(), reason="engines are forked on Linux")

N = 3
SOON = 60  # seconds; what a test waits for takes milliseconds


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A running cluster, and its client as `cluster.client`, for tests that end no engine."""
    with running(tmp_path_factory.mktemp("shared"), config=Config()) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path):
    with running(tmp_path) as cluster:
        yield cluster


@contextlib.contextmanager
def running(folder, n=N, **options):
    cluster = new_cluster(folder, n, **options)
    try:
        cluster.start_cluster_sync()
        cluster.client = connect(cluster, patience=60)
        yield cluster
    finally:
        if hasattr(cluster, "client"):
            cluster.client.close(linger=0)
        cluster.stop_cluster_sync()
        assert wait_until(lambda: not belonging_to(str(folder)))


# Engines that import nothing before they are forked: most tests need no torch.
BARE = Config(RankEngineSetLauncher={"preload": []})


def new_cluster(folder, n=N, config=BARE, **options):
    silent = logging.getLogger(f"silent-{folder}")
    silent.setLevel(logging.CRITICAL + 1)
    return ipyparallel.Cluster(
        engines="ranklab",
        n=n,
        profile_dir=str(folder),
        delay=0,
        # Nobody is missed for his heart alone: that would hide that the hub was not told.
        controller_args=["--HeartMonitor.period=100", "--HeartMonitor.max_heartmonitor_misses=600"],
        log=silent,
        shutdown_atexit=False,
        config=config,
        **options,
    )


def wait_until(condition, seconds=SOON):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def by_value(function):
    """Have a function of this module sent to the engines as it is; they cannot import it."""
    if getattr(function, "__module__", None) == __name__:
        function.__module__ = "__main__"
    return function


def on_all(cluster, function, *args):
    """Call a function on every engine; return {engine's id: what it returned}."""
    function = by_value(function)
    result = cluster.client[:].apply_async(function, *args)
    return dict(zip(cluster.client.ids, result.get(timeout=30)))


def there(cluster, *ids):
    return wait_until(lambda: cluster.client.ids == list(ids))


# The start


def about_the_process(modules):
    import os
    import sys
    import threading

    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "folder": os.getcwd(),
        "profile": os.environ["IPP_PROFILE_DIR"],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "arguments": sys.argv,
        "main": threading.current_thread() is threading.main_thread(),
        "modules": [name for name in modules if name in sys.modules],
        "cuda": sys.modules["torch"].cuda.is_initialized(),
    }


def test_engines_are_forked_and_have_what_stock_ones_have(tmp_path, monkeypatch):
    (tmp_path / "this_is_preloaded.py").write_text(
        "import os\nimport sys\nprint('and prints', sys.stdin.read())\npid = os.getpid()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = Config(
        RankEngineSetLauncher={"preload": ["torch.distributed", "this_is_preloaded"]},
        BaseLauncher={"environment": {"OMP_NUM_THREADS": "1"}},
    )
    with running(tmp_path / "profile", config=config) as cluster:
        engines = on_all(cluster, about_the_process, config.RankEngineSetLauncher.preload)
        assert len({engine["pid"] for engine in engines.values()}) == N
        (server,) = {engine["parent"] for engine in engines.values()}
        assert server == cluster.engine_set.pid
        for engine in engines.values():
            assert engine["session"] == engine["pid"]
            assert engine["folder"] == os.getcwd()
            assert engine["profile"] == str(tmp_path / "profile")
            assert engine["threads"] == "1"
            assert engine["main"]
            assert engine["modules"] == ["torch.distributed", "this_is_preloaded"]
            assert not engine["cuda"]
        imported_by = on_all(cluster, lambda: __import__("this_is_preloaded").pid)
        assert set(imported_by.values()) == {psutil.Process(server).ppid()}
        assert psutil.Process(server).num_threads() < 8  # ZeroMQ's; no nanny has its own


def random_numbers():
    import random

    import numpy
    import torch

    return random.random(), float(numpy.random.rand()), torch.rand(1).item(), torch.initial_seed()


def test_each_engine_has_random_numbers_of_its_own(shared):
    for kind in zip(*on_all(shared, random_numbers).values()):
        assert len(set(kind)) == N


def product_on_two_threads():
    import numpy
    import torch

    torch.set_num_threads(2)
    a = torch.ones(300, 300)
    b = numpy.ones((300, 300))
    return (a @ a).sum().item(), float((b @ b).sum()), torch.get_num_threads()


def test_engines_can_have_threads(shared):
    assert set(on_all(shared, product_on_two_threads).values()) == {(300.0**3, 300.0**3, 2)}


def test_a_module_that_cannot_be_imported_is_named(tmp_path):
    """By what waits for the engines, where the cluster's loop runs, as it does in a notebook."""
    config = Config(RankEngineSetLauncher={"preload": ["no_such_module"]})
    cluster = new_cluster(tmp_path, config=config)

    async def start():
        await cluster.start_cluster()
        client = await cluster.connect_client()
        with pytest.raises(ipyparallel.EngineError, match="Engine set stopped"):
            await asyncio.wrap_future(client.wait_for_engines(N, block=False, timeout=60))
        client.close(linger=0)
        assert "no_such_module, which the engines are to" in cluster.engine_set.get_output()
        await cluster.stop_cluster()

    asyncio.run(start())
    assert wait_until(lambda: not belonging_to(str(tmp_path)))


def test_output_is_where_it_is_looked_for(shared):
    on_all(shared, lambda: __import__("os").write(2, b"said to the terminal\n"))
    output = shared.engine_set.get_output()
    assert output.count("said to the terminal") == N
    assert "Output for engine 2" in output


@pytest.mark.everything
def test_two_clusters_at_once(tmp_path, shared):
    with running(tmp_path / "other", n=1) as other:
        assert on_all(other, os.getppid) == {0: other.engine_set.pid}
    assert set(on_all(shared, os.getppid).values()) == {shared.engine_set.pid}


@pytest.mark.everything
def test_two_clusters_with_one_profile(cluster):
    other = new_cluster(cluster.profile_dir, n=1)
    other.start_cluster_sync()
    other.client = connect(other, patience=60)
    assert on_all(other, os.getppid) == {0: other.engine_set.pid}
    other.client.close(linger=0)
    other.stop_cluster_sync()
    assert set(on_all(cluster, os.getppid).values()) == {cluster.engine_set.pid}
    assert psutil.Process(cluster.engine_set.pid).parent() in psutil.Process().children()


def test_a_port_that_the_controller_does_not_get_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "TO_LISTEN", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        there, missing = (one.getsockname()[1] for one in (taken, free))
        (tmp_path / "client").write_text(
            json.dumps({"key": "1", "mux": missing, "leaves": [there]})
        )
        files = {"engine": str(tmp_path / "engine"), "client": str(tmp_path / "client")}
        monkeypatch.setenv("IPP_CONNECTION_INFO", json.dumps({"registration": there}))
        with pytest.raises(fork_server.LostPorts, match=f"somebody else may have taken {missing}"):
            fork_server._wait_for_the_controller(files)
        monkeypatch.setenv("IPP_CONNECTION_INFO", json.dumps({"registration": missing}))
        (tmp_path / "client").unlink()
        fork_server._wait_for_the_controller(files)  # that one runs elsewhere


STARTING = """
import signal, sys, ipyparallel
from traitlets.config import Config

signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
config = Config(RankEngineSetLauncher={"preload": ["takes_long"]})
cluster = ipyparallel.Cluster(engines="ranklab", n=1, profile_dir=sys.argv[1], config=config)
try:
    cluster.start_cluster_sync()
except KeyboardInterrupt:
    cluster.stop_cluster_sync()
    print("stopped")
"""


def test_an_interrupted_start_leaves_nothing(tmp_path):
    begun, profile = tmp_path / "begun", tmp_path / "profile"
    (tmp_path / "takes_long.py").write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", STARTING, str(profile)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as script:
        assert wait_until(begun.exists)
        script.send_signal(signal.SIGINT)
        assert script.communicate(timeout=SOON)[0] == "stopped\n"
    assert wait_until(lambda: not belonging_to(str(profile)))


# Signals and the end


def sleep_after_a_sign(folder):
    import os
    import time

    with open(f"{folder}/{os.getpid()}", "w"):
        time.sleep(60)


def test_an_interrupt_reaches_one_engine_or_all(shared, tmp_path):
    signs = tmp_path / "signs"
    signs.mkdir()
    sleeping = [shared.client[i].apply_async(by_value(sleep_after_a_sign), signs) for i in range(N)]
    assert wait_until(lambda: len(list(signs.iterdir())) == N)
    shared.client.send_signal("SIGINT", targets=1, block=True)
    sleeping[1].wait(SOON)
    assert [result.ready() for result in sleeping] == [False, True, False]
    shared.signal_engines_sync(signal.SIGINT)
    for result in sleeping:
        with pytest.raises(ipyparallel.RemoteError, match="KeyboardInterrupt"):
            result.get(timeout=SOON)


def end_by_signals(*names):
    def end(client, i):
        for name in names:
            client.send_signal(name, targets=i, block=True)

    return end


ENDS = [  # how an engine is made to end, and its exit code
    (end_by_signals("SIGKILL"), -signal.SIGKILL),
    (end_by_signals("SIGSTOP", "SIGKILL"), -signal.SIGKILL),  # a stopped engine cannot answer
    (end_by_signals("SIGSEGV"), -signal.SIGSEGV),
    (lambda client, i: client[i].apply_async(os._exit, 3), 3),
    (lambda client, i: client.shutdown(targets=[i], block=True), 1),  # as with the stock launcher
]


def test_however_an_engine_ends_the_hub_learns_it_and_the_launcher_knows_how(tmp_path):
    with running(tmp_path, n=len(ENDS) + 1) as cluster:
        client, engines = cluster.client, cluster.engine_set
        pids = on_all(cluster, os.getpid)
        busy = client[0].apply_async(time.sleep, 60)
        for i, (end, code) in enumerate(ENDS):
            end(client, i)
            assert there(cluster, *range(i + 1, len(ENDS) + 1))
            assert engines.end_of(pids[i], patience=SOON)[0] == code
        with pytest.raises(ipyparallel.RemoteError, match="Engine 0 died while running"):
            busy.get(timeout=SOON + 10)  # the hub gives a late answer some time
        assert engines.end_of(pids[len(ENDS)], patience=0)[0] is None
        assert on_all(cluster, os.getpid) == {len(ENDS): pids[len(ENDS)]}


@pytest.mark.everything
def test_a_busy_controller_learns_of_an_end_all_the_same(cluster):
    pids = on_all(cluster, os.getpid)
    controller = psutil.Process(cluster.controller.pid)
    controller.suspend()
    try:
        os.kill(pids[0], signal.SIGKILL)
        assert cluster.engine_set.end_of(pids[0], patience=SOON)[0] == -signal.SIGKILL
        time.sleep(2 * LINGER / 1000)  # longer than anything is kept that cannot be sent
    finally:
        controller.resume()
    assert there(cluster, 1, 2)


def test_engines_stop_and_start_again(cluster):
    before = on_all(cluster, os.getpid)
    cluster.restart_engines_sync()
    assert there(cluster, 3, 4, 5)
    after = on_all(cluster, os.getpid)
    assert not set(before.values()) & set(after.values())
    cluster.signal_engines_sync(signal.SIGTERM)
    assert there(cluster)
    codes = [engine["exit_code"] for engine in cluster.engine_set.report().values()]
    assert -signal.SIGKILL not in codes  # they had time to end in order
    cluster.stop_engines_sync()
    assert wait_until(lambda: not any(map(psutil.pid_exists, after.values())))


@pytest.mark.everything
def test_stopped_engines_stop_too(cluster):
    cluster.signal_engines_sync(signal.SIGSTOP)
    processes = cluster.engine_set.process.children()
    cluster.engine_set.stop_seconds_until_kill = 1
    cluster.stop_engines_sync()
    assert wait_until(lambda: all(map(has_ended, processes)))


def test_without_the_fork_server_no_engine_lives_and_the_hub_learns_it(cluster):
    engines = cluster.engine_set.process.children()
    assert len(engines) == N
    cluster.engine_set.process.kill()
    assert wait_until(lambda: all(map(has_ended, engines)))
    assert there(cluster)


@pytest.mark.everything
def test_a_late_look_at_the_report_brings_no_folder_back(tmp_path):
    """The thread that waits for the fork server may look when everything is removed already."""
    folder = tmp_path / "removed"
    engines = launcher.RankEngineSetLauncher(profile_dir=str(folder))
    assert engines.report() == {}
    assert not folder.exists()


@pytest.mark.everything
def test_a_saved_cluster_is_found_by_another_process(cluster):
    program = """
import json, sys, ipyparallel
cluster = ipyparallel.Cluster.from_file(sys.argv[1])
engines = cluster.engine_set
print(json.dumps([type(engines).__name__, engines.n, engines.report()]))
client = cluster.connect_client_sync()
client.wait_for_engines(3, timeout=30)
cluster.stop_engines_sync()
"""
    pids = on_all(cluster, os.getpid)
    command = [sys.executable, "-c", program, cluster.cluster_file]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr
    name, n, report = json.loads(run.stdout.splitlines()[0])
    assert (name, n) == ("RankEngineSetLauncher", N)
    assert {engine["pid"] for engine in report.values()} == set(pids.values())
    assert there(cluster)


@pytest.mark.everything
@pytest.mark.parametrize(
    ("end", "code", "codes"),
    [
        (lambda cluster, client: client[:].apply_async(os._exit, 4), 4, [4, 4]),
        (lambda cluster, client: client.shutdown(block=False), 1, [1, 1]),
        (lambda cluster, client: cluster.engine_set.process.kill(), 1, [None, None]),
    ],
)
def test_who_waits_for_the_set_hears_how_each_engine_ended(tmp_path, end, code, codes):
    cluster, heard = new_cluster(tmp_path, n=2), []

    async def run():
        client = await cluster.start_and_connect()
        cluster.engine_set.on_stop(heard.append)
        client.wait_for_engines(2, timeout=60)
        end(cluster, client)
        deadline = time.monotonic() + SOON
        while not heard and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        client.close(linger=0)
        await cluster.stop_cluster()

    asyncio.run(run())
    (data,) = heard
    assert data["exit_code"] == code
    assert [engine.get("exit_code") for engine in data["engines"].values()] == codes


# Without a fork


@pytest.mark.everything
def test_without_a_fork_the_name_stands_for_the_stock_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKLAB_NO_FORK", "1")
    with running(tmp_path, n=1) as cluster:
        assert type(cluster.engine_set) is LocalEngineSetLauncher
        assert on_all(cluster, os.getppid) == {0: os.getpid()}


@pytest.mark.everything
def test_ranks_without_a_fork(monkeypatch):
    monkeypatch.setenv("RANKLAB_NO_FORK", "1")

    def summed():
        x = torch.ones(1)  # noqa: F821
        dist.all_reduce(x)  # noqa: F821
        return x.item()

    summed.__module__ = "__main__"
    with Ranks(2, timeout=3) as ranks:
        assert ranks.run(os.getppid) == [os.getpid()] * 2
        assert ranks.run(summed) == [2.0, 2.0]
        ranks.client.send_signal("SIGKILL", targets=1, block=True)
        assert wait_until(lambda: ranks.gone() == {1})
        with pytest.raises(RankError, match=r"(?s)^rank 1 died.*SIGKILL"):
            ranks.run(summed)
        ranks.restart()
        assert ranks.run(summed) == [2.0, 2.0]
        everybody = belonging_to(ranks._guardian.folder)
    assert all(map(has_ended, everybody))
