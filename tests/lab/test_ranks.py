"""Ranks, driven from an ordinary process: values, calls, failures, and the end."""

import ctypes
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from kernels import ended_by_a_restart, wait_until

from ranklab import Ranks
from ranklab.doctor import ctrl_c, failures, vigil
from ranklab.doctor.failures import Failure
from ranklab.errors import MissingOnRanks, RankError
from ranklab.gpu import utilization_plot
from ranklab.ranks import outcome, process_group
from ranklab.ranks.ranks import LOOPBACK
from ranklab.start import arguments, cluster
from ranklab.start.guardian import belonging_to, has_ended

TIMEOUT = 2.0  # seconds that a rank waits for another one in these tests
N = 3
GAVE_UP_IN_A_CIRCLE = (
    r"(?s)^No progress: after 2 s the ranks that waited gave up\..*\n\n"
    r"Ranks 0, 1 and 2 wait in a circle: .*Timed out.*Call ranks\.reset\(\)"
)


@pytest.fixture(scope="module")
def running():
    with Ranks(N, timeout=TIMEOUT) as ranks:
        yield ranks


@pytest.fixture
def ranks(running):
    """Ranks with a working process group, whatever the test before did to it."""
    running.reset()
    return running


# What runs on the ranks. Sent by value, so that `rank`, `dist`, ... are the rank's own.


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def namespace():
    return rank, world_size, str(device), dist.get_rank(), torch.get_num_threads()  # noqa: F821


@on_ranks
def summed():
    x = torch.full((3,), float(rank))  # noqa: F821
    dist.all_reduce(x)  # noqa: F821
    return x.tolist()


@on_ranks
def everybody_receives():
    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)  # noqa: F821


@on_ranks
def rank_1_fails_the_others_wait():
    if rank == 1:  # noqa: F821
        raise ValueError("no good")
    dist.recv(torch.zeros(1), src=1)  # noqa: F821


@on_ranks
def rank_1_fails_and_leaves():
    dist.barrier()  # noqa: F821
    if rank == 1:  # noqa: F821
        dist.destroy_process_group()  # noqa: F821
        raise ValueError("no good")
    dist.recv(torch.zeros(1), src=1)  # noqa: F821


@on_ranks
def slow_in_reverse():
    import time

    time.sleep(0.2 * (world_size - rank))  # noqa: F821
    return rank  # noqa: F821


@on_ranks
def rank_1_dies_in_an_all_reduce():
    import os
    import signal

    if rank == 1:  # noqa: F821
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(4))  # noqa: F821


@on_ranks
def sleep_deaf_to_interrupts(seconds):
    import signal
    import time

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(seconds)
    signal.signal(signal.SIGINT, before)


@on_ranks
def start_a_child():
    import subprocess

    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def all_ended(processes):
    return all(map(has_ended, processes))


# Start


def test_each_rank_finds_its_names_and_one_thread(ranks):
    assert ranks.run(namespace) == [(r, N, "cpu", r, 1) for r in range(N)]


def test_repr(ranks):
    assert repr(ranks).startswith(f"{N} ranks · gloo on cpu · ready in ")
    assert len(ranks) == ranks.world_size == N


def test_all_reduce_is_right(ranks):
    assert ranks.run(summed) == [[float(sum(range(N)))] * 3] * N


def test_nothing_listens_but_on_loopback(ranks):
    ranks.run(summed)  # so that Gloo has its connections
    listening = [
        connection.laddr.ip
        for process in belonging_to(ranks._guardian.folder)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening  # ipyparallel's own
    assert set(listening) <= {"127.0.0.1", "::1"}
    # Gloo does not listen any longer once it is connected; where it would have, this says.
    assert (
        ranks.run(on_ranks(lambda: __import__("os").environ["GLOO_SOCKET_IFNAME"]))
        == [LOOPBACK] * N
    )


def test_the_folder_is_private(ranks):
    assert stat.S_IMODE(os.stat(ranks._guardian.folder).st_mode) == 0o700


# Values and calls


def test_pull_is_in_rank_order(ranks):
    assert ranks["rank"] == list(range(N))


def test_recordings_of_utilization_travel(ranks):
    cell = """
        import time
        from ranklab.gpu import sampled
        with sampled(device="cpu", hz=50) as s, s.phase("asleep"):
            time.sleep(0.1)
    """
    ranks.view.execute(textwrap.dedent(cell), block=True)
    recordings = ranks["s"]
    assert [s.about["rank"] for s in recordings] == list(range(N))
    assert [[name for name, *_ in s.phases] for s in recordings] == [["asleep"]] * N
    said = utilization_plot(recordings).svg
    assert "rank 0: " in said and f"Phases of rank {N - 1}: asleep" in said


def test_run_is_in_rank_order_whoever_comes_first(ranks):
    assert ranks.run(slow_in_reverse) == list(range(N))


def test_push_reaches_every_rank(ranks):
    ranks["n"] = {"a": [1, 2]}
    assert ranks["n"] == [{"a": [1, 2]}] * N


def test_run_passes_arguments(ranks):
    assert ranks.run(on_ranks(lambda a, b: a - b), 5, b=2) == [3] * N


def test_pull_of_a_name_that_some_lack(ranks):
    ranks.client[0].push({"only_here": 1}, block=True)
    with pytest.raises(MissingOnRanks, match=r"^ranks 1 and 2 have no `only_here`") as caught:
        ranks["only_here"]
    assert isinstance(caught.value, KeyError)


def test_a_dict_keeps_its_order(ranks):
    ranks["d"] = {"b": 1, 2: 0, "a": {"z": 3, "y": 4}}
    for there in ranks["d"]:
        assert list(there) == ["b", 2, "a"] and list(there["a"]) == ["z", "y"]
    assert ranks.run(on_ranks(lambda d: list(d)), {"b": 1, "a": 2})[0] == ["b", "a"]


@pytest.mark.parametrize("name", ["rank", "world_size", "device", "torch", "dist", "a b", 3])
def test_push_refuses_the_ranks_own_names_and_what_is_no_name(ranks, name):
    with pytest.raises(ValueError, match=r"own|not a name"):
        ranks[name] = 1


def test_run_refuses_what_is_no_function(ranks):
    with pytest.raises(ValueError, match="is not one"):
        ranks.run(3)


# Failure, and going on


def test_reset_after_a_deadlock_keeps_processes_and_variables(ranks):
    ranks["kept"] = 7
    before = ranks.run(os.getpid)
    began = time.monotonic()
    with pytest.raises(RankError, match=GAVE_UP_IN_A_CIRCLE):
        ranks.run(everybody_receives)
    assert TIMEOUT * 0.9 < time.monotonic() - began < TIMEOUT + 5
    ranks.reset()
    assert ranks.run(summed) == [[3.0] * 3] * N
    assert ranks["kept"] == [7] * N
    assert ranks.run(os.getpid) == before == ranks.pids


def test_reset_after_one_failed_and_the_others_waited(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(rank_1_fails_the_others_wait)
    said = str(caught.value)
    assert said.index("rank 1 failed") < said.index(
        "ranks 0 and 2 wait to receive"
    )  # the cause comes first
    assert "ValueError: no good" in said
    assert "ranks.reset()" in said
    assert sorted(caught.value.tracebacks) == [0, 1, 2]
    ranks.reset()
    assert ranks.run(summed) == [[3.0] * 3] * N


def test_reset_says_so_when_a_rank_does_not_come_back(ranks):
    busy = ranks.client[1].apply_async(sleep_deaf_to_interrupts, 8)
    try:
        with pytest.raises(RankError, match=r"(?s)^There is no new .*rank 1 runs.*\.restart\(\)"):
            ranks.reset()
    finally:
        busy.wait(20)


@pytest.mark.everything
def test_a_rank_that_is_stopped_is_not_dead_and_goes_on(ranks, monkeypatch):
    monkeypatch.setattr(cluster, "LOST", 1.0)
    ranks.restart()
    os.kill(ranks.pids[1], signal.SIGSTOP)
    goes_on = rf"(?s)rank 1 does not answer\n.* goes on with kill -CONT {ranks.pids[1]}\n"
    with pytest.raises(RankError, match=goes_on):  # it is silent for longer than it may be lost
        ranks.reset()
    assert not ranks.gone()
    os.kill(ranks.pids[1], signal.SIGCONT)
    ranks.reset()
    assert ranks.run(summed) == [[3.0] * 3] * N


# An error that IPython writes for two seconds, which no interrupt ends: a machine may be that slow.
WRITES_FOR_LONG = """
class Long(Exception):
    def _render_traceback_(self):
        import signal, time
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(2)
        signal.signal(signal.SIGINT, before)
        return ["Long"]
"""


def test_reset_waits_for_an_error_that_is_being_written(ranks, monkeypatch):
    monkeypatch.setattr(vigil, "MARGIN", 0.3)
    failing = ranks.view.execute(f"{WRITES_FOR_LONG}\nif rank == 1: raise Long", block=False)
    wait_until(lambda: "rank 1 has failed, and still writes its error" in str(ranks.where()))
    ranks.reset()
    assert failing.ready()
    assert ranks.run(summed) == [[3.0] * 3] * N


def test_a_rank_that_was_freed_has_the_time_to_write_its_error(ranks, monkeypatch):
    monkeypatch.setattr(vigil, "MARGIN", 0.3)
    cell = f"""{WRITES_FOR_LONG}
if rank == 1: raise ValueError("no good")
try: dist.recv(torch.ones(1), src=1)
except RuntimeError: raise Long
"""
    with pytest.raises(RankError, match="rank 1 failed") as caught:
        outcome.values(ranks, ranks.view.execute(cell, block=False))
    assert "were freed" in str(caught.value)
    assert {r: text.strip() for r, text in caught.value.tracebacks.items() if r != 1} == {
        0: "Long",
        2: "Long",
    }


class LatePart:
    """A rank's part of a result that arrives just after somebody asked for it."""

    def __init__(self):
        self.arrived = False

    def ready(self):
        before, self.arrived = self.arrived, True
        return before


class PressedOnTheWayOut(threading.Condition):
    """A condition: whoever waits for it in the main thread presses while its lock is held."""

    def __exit__(self, *how):
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        return super().__exit__(*how)


def test_a_ctrl_c_is_noted_and_leaves_no_lock_behind():
    event = threading.Event()
    event._cond = PressedOnTheWayOut(threading.Lock())
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ctrl_c.noted() as pressed:
        pressed.wait(event, 60)
    assert signal.getsignal(signal.SIGINT) is before
    other = threading.Thread(target=event.set, daemon=True)  # needs the lock
    other.start()
    other.join(60)
    assert event.is_set()


def test_an_answer_that_comes_too_late_is_no_none(monkeypatch):
    monkeypatch.setattr(failures, "parts", lambda _: [(0, LatePart())])
    result = SimpleNamespace(ready=lambda: False)
    assert failures.read(None, result) == ([], [Failure(0, "busy")])


def test_groups_that_broke_leave_no_files_and_threads(ranks):
    def held():
        process = psutil.Process(ranks.pids[0])
        return process.num_fds(), process.num_threads()

    def break_and_reset():
        with pytest.raises(RankError):
            ranks.run(rank_1_fails_and_leaves)
        ranks.reset()

    break_and_reset()
    files, threads = held()
    for _ in range(8):
        break_and_reset()
    # The last one's may be held for a while; those of eight groups would be 32 files, 8 threads.
    assert held()[0] < files + 12
    assert held()[1] < threads + 6


def test_a_new_group_has_the_short_timeout_too(ranks):
    def wait_in_a_new_group():
        group = dist.new_group([0, 1])  # noqa: F821
        if rank == 0:  # noqa: F821
            dist.recv(torch.zeros(1), src=1, group=group)  # noqa: F821
        elif rank == 1:  # noqa: F821
            import time

            time.sleep(3)  # stays, so that rank 0 is not told by a closed connection

    with pytest.raises(
        RankError, match=r"(?s)after 2 s the ranks that waited gave up.*rank 0 waits.*Timed out"
    ):
        ranks.run(on_ranks(wait_in_a_new_group))


def test_a_new_group_of_nccl_has_the_short_timeout_too(ranks):
    def timeout_of_nccl(before=None):
        from datetime import timedelta

        c10d = dist.distributed_c10d  # noqa: F821
        found = c10d.default_pg_nccl_timeout
        if before is not None:  # as in a torch with NCCL, whether this one is or not
            c10d.default_pg_nccl_timeout = timedelta(seconds=before)
        return found and found.total_seconds()

    ranks.run(on_ranks(timeout_of_nccl), 600)
    ranks.reset()
    assert ranks.run(on_ranks(timeout_of_nccl)) == [TIMEOUT] * N


# Wrong arguments: one sentence, before anything is started or ended


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": 0}, "whole number from 1 up"),
        ({"n": -1}, "whole number from 1 up"),
        ({"n": 2.0}, "whole number from 1 up"),
        ({"n": "4"}, "whole number from 1 up"),
        ({"n": True}, "whole number from 1 up"),
        ({"n": 100_000}, "would fit"),
        ({"backend": "smoke"}, "There are: gloo, nccl, mpi"),
        ({"backend": "mpi"}, "no MPI in it"),
        ({"device": "tpu"}, "There are: 'cpu' and 'cuda'"),
        ({"timeout": 0}, "positive number of seconds"),
        ({"timeout": "long"}, "positive number of seconds"),
        ({"timeout": float("inf")}, "positive number of seconds"),
        ({"engines": "pigeons"}, r"There are: .*local, .*mpi, .*slurm"),
    ],
)
def test_wrong_arguments(ranks, wrong, says):
    with pytest.raises(ValueError, match=says) as caught:
        Ranks(**wrong)
    assert "\n" not in str(caught.value)
    assert ranks.run(os.getpid) == ranks.pids  # nobody was harmed


def test_gpus_that_are_not_there(monkeypatch):
    monkeypatch.setattr(arguments, "count_gpus", lambda: 1)
    with pytest.raises(ValueError, match=r"needs a GPU for each of the 2 ranks.*finds 1"):
        arguments.plan(2, "nccl", None, 20, False, None)
    with pytest.raises(ValueError, match="counted from 0"):
        arguments.plan(2, None, "cuda:1", 20, False, None)
    monkeypatch.setattr(arguments, "count_gpus", lambda: 0)
    with pytest.raises(ValueError, match="no GPU here"):
        arguments.plan(2, None, "cuda", 20, False, None)


@pytest.mark.parametrize(
    ("n", "gpus", "backend", "devices"),
    [
        (2, 0, "gloo", ("cpu", "cpu")),
        (2, 2, "nccl", ("cuda:0", "cuda:1")),
        (3, 2, "gloo", ("cuda:0", "cuda:1", "cuda:0")),
    ],
)
def test_what_fits_is_chosen(monkeypatch, n, gpus, backend, devices):
    monkeypatch.delenv("RANKLAB_RANKS", raising=False)
    monkeypatch.setattr(arguments, "count_gpus", lambda: gpus)
    plan = arguments.plan(n, None, None, 20, False, None)
    assert (plan.backend, plan.devices) == (backend, devices)


def test_the_environment_may_replace_the_number(monkeypatch):
    monkeypatch.setenv("RANKLAB_RANKS", "2")
    assert arguments.plan(4, None, None, 20, False, None).world_size == 2
    monkeypatch.setenv("RANKLAB_RANKS", "none")
    with pytest.raises(ValueError, match="RANKLAB_RANKS=none"):
        arguments.plan(4, None, None, 20, False, None)


@pytest.mark.parametrize(
    ("set_by_reader", "given"),
    [
        ({}, "111"),
        ({"OMP_NUM_THREADS": "2"}, "222"),
        ({"MKL_NUM_THREADS": "3"}, "333"),
        ({"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "2"}, "442"),
    ],
)
def test_threads_are_one_or_what_the_reader_sets(monkeypatch, set_by_reader, given):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # as testers side by side have it
    for name, value in set_by_reader.items():
        monkeypatch.setenv(name, value)
    plan = arguments.plan(1, None, "cpu", 20, False, None)
    environment = cluster._config(plan).BaseLauncher.environment
    assert "".join(environment[name] for name in cluster.ONE_THREAD) == given


# Death and the end; from here on the ranks of this module are used up


def test_a_killed_rank_is_named_and_restart_brings_it_back(ranks):
    before = ranks.pids
    everybody = ended_by_a_restart(ranks._guardian.folder)
    began = time.monotonic()
    with pytest.raises(RankError, match=r"(?s)^rank 1 died: .*SIGKILL.*\.restart\(\)"):
        ranks.run(rank_1_dies_in_an_all_reduce)
    assert time.monotonic() - began < TIMEOUT + 8
    with pytest.raises(RankError, match=r"^rank 1 died"):
        ranks["rank"]  # and at once, from then on
    ranks.restart()
    assert ranks["rank"] == list(range(N))
    assert ranks.run(summed) == [[3.0] * 3] * N
    assert not set(before) & set(ranks.pids)
    assert all_ended(everybody)


def test_a_fault_in_none_of_the_readers_lines_is_told_with_those_of_python(ranks):
    ranks.client[1].apply_async(ctypes.string_at, 0)
    with pytest.raises(
        RankError, match=r"^rank 1 died: .*SIGSEGV\)\.\s+Python was in string_at \("
    ):
        ranks.run(summed)
    ranks.restart()


def test_close_leaves_nothing_even_where_a_step_of_it_fails(ranks):
    folder = ranks._guardian.folder
    children = ranks.run(start_a_child)
    everybody = belonging_to(folder)
    assert set(ranks.pids) | set(children) <= {process.pid for process in everybody}
    guardian = ranks._guardian._process
    client, close_client = ranks.client, ranks.client.close

    def fail_in_the_end(**options):
        close_client(**options)
        raise OSError("no good")

    client.close = fail_in_the_end
    with pytest.raises(OSError, match="no good"):
        ranks.close()
    del client.close  # it is called again when the client is collected, in some later test
    assert all_ended(everybody)
    assert not os.path.exists(folder)
    assert guardian.poll() is not None
    assert repr(ranks) == f"{N} ranks · closed"
    with pytest.raises(RankError, match="closed"):
        ranks.run(os.getpid)
    ranks.close()  # twice does no harm


def test_close_cleans_up_without_the_guardian():
    with Ranks(1) as ranks:
        assert ranks["rank"] == ranks.run(on_ranks(lambda: rank)) == [0]  # noqa: F821
        folder, everybody = ranks._guardian.folder, belonging_to(ranks._guardian.folder)
        os.kill(ranks._guardian._process.pid, signal.SIGKILL)
    assert all_ended(everybody)
    assert not os.path.exists(folder)


@pytest.mark.parametrize("lacking", ["mpiexec", "find_spec"])
def test_without_mpi_the_extra_is_named(monkeypatch, lacking):
    monkeypatch.setattr(arguments, lacking, lambda *_: None)
    with pytest.raises(ValueError, match=r"needs mpiexec and mpi4py, .* extra ranklab\[mpi\]"):
        arguments.plan(2, None, None, 20, False, "mpi")


def test_ranks_that_do_not_answer_while_they_get_ready_are_waited_for(monkeypatch):
    def prepare(folder):
        import ctypes

        from ranklab.ranks import process_group

        ctypes.PyDLL(None).sleep(2)  # nothing else of Python runs, as in an import of C code
        return process_group.prepare(folder)

    prepare.__module__ = "__main__"
    monkeypatch.setattr(process_group, "prepare", prepare)
    with Ranks(2, timeout=3) as ranks:
        assert ranks["rank"] == [0, 1]


def dropping_the_first_message_to_rank_1(first_messages, arrives_again):
    """What the scheduler has no connection for, it drops: here it is for a name that nobody has."""

    def send(client, patience):
        wait, name = client.wait, client._engines[1]
        client._engines[1] = "nobody"
        answered = []

        def wait_and_connect(results, timeout):
            answered.append(wait(results, timeout))
            if arrives_again:
                client._engines[1] = name
            return answered[-1]

        client.wait = wait_and_connect
        first_messages(client, patience if arrives_again else 0.1)
        del client.wait
        assert answered == [False, True]

    return send


def test_a_first_message_that_is_dropped_is_sent_again(monkeypatch):
    send = dropping_the_first_message_to_rank_1(cluster._end_safe_path, arrives_again=True)
    monkeypatch.setattr(cluster, "_end_safe_path", send)
    with Ranks(2) as ranks:
        assert ranks.run(os.getenv, cluster.SAFE_PATH) == [None, None]
        assert not ranks.client.outstanding
        assert not any(ranks.client._outstanding_dict.values())


def test_an_engine_that_never_answers_is_named(monkeypatch):
    send = dropping_the_first_message_to_rank_1(cluster._end_safe_path, arrives_again=False)
    monkeypatch.setattr(cluster, "_end_safe_path", send)
    with pytest.raises(RankError, match=r"did not start: nothing came from rank 1 for 0\.1 s\."):
        Ranks(2)


def test_a_start_that_fails_leaves_nothing(monkeypatch):
    folders = []

    def break_down(self, *_, **__):
        folders.append(self._guardian.folder)
        assert belonging_to(self._guardian.folder)
        raise RuntimeError("halfway")

    monkeypatch.setattr(Ranks, "_on_all", break_down)
    with pytest.raises(RuntimeError, match="halfway"):
        Ranks(1)
    assert not belonging_to(folders[0])
    assert not os.path.exists(folders[0])


def test_a_full_disk_before_the_start_is_told_so(tmp_path):
    mounted = f"mount -t tmpfs -o size=100k none {tmp_path} || exit 3"
    fill = f"head -c 98304 /dev/zero > {tmp_path}/fill"
    start = f"TMPDIR={tmp_path} {sys.executable} -c 'from ranklab import Ranks; Ranks(2)'"
    disk_of_its_own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        tried = [*disk_of_its_own, f"{mounted}; {fill}; {start}"]
        ran = subprocess.run(tried, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs Linux' unshare")
    if ran.returncode == 3 or "unshare" in ran.stderr:
        pytest.skip(f"no disk of its own here: {ran.stderr.splitlines()[-1:]}")
    assert f"the disk that {tmp_path}/ranklab-" in ran.stderr
    assert "is full. Make room there" in ran.stderr


def test_ctrl_c_takes_the_job_out_of_the_queue(monkeypatch, tmp_path):
    """With a Slurm whose queue is long: the job never starts."""
    monkeypatch.chdir(tmp_path)  # where ipyparallel leaves the script that it submits
    for command, says in {"sbatch": "Submitted batch job 77", "scancel": ""}.items():
        (tmp_path / command).write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/calls\necho '{says}'\n")
        (tmp_path / command).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    asked = []

    def interrupted(client, *_, **__):
        asked.append(client)
        raise KeyboardInterrupt

    monkeypatch.setattr("ipyparallel.Client.wait_for_engines", interrupted)
    with pytest.raises(RankError, match=r"^Interrupted while the ranks were starting"):
        Ranks(2, engines="slurm")
    assert asked
    assert (tmp_path / "calls").read_text().splitlines()[-1].split()[-1] == "77"


KERNEL = """
import os, time
from ranklab.start.guardian import Guardian
guardian = Guardian()
child = os.fork()  # it holds the pipe open
if child:
    print(child, guardian._process.pid, guardian.folder, flush=True)
time.sleep(100)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_dead_kernel_counts_as_gone_before_its_parent_has_noticed():
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True)
    child, guardian, folder = kernel.stdout.readline().split()
    guardian = psutil.Process(int(guardian))
    try:
        kernel.kill()  # and nobody waits for it: it stays as a zombie
        guardian.wait(10)
        assert psutil.Process(kernel.pid).status() == psutil.STATUS_ZOMBIE
        assert not os.path.exists(folder)
    finally:
        os.kill(int(child), signal.SIGKILL)
        kernel.wait()
