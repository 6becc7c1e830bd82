"""Starting the engines that become the ranks. Another way of starting them belongs here, too."""

import logging
import os
import shutil
import time

import ipyparallel
from traitlets import Bool, List
from traitlets.config import Config

from ranklab.errors import RankError, named
from ranklab.start import exits, launcher, mpi_world
from ranklab.start.arguments import ONE_MACHINE, mpiexec
from ranklab.upstream import ipyparallel as upstream
from ranklab.upstream import mpich

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# An engine counts as there at its first heartbeat, and a stock hub asks for one every 3 s.
BEAT = 0.1  # seconds
# Seconds without one after which an engine counts as dead, as with a stock hub. Who has forked an
# engine sees it end: one that only does not answer may be stopped, and go on.
LOST = 30.0
NEVER = 10 * 365 * 86400.0

# Controller and engines start without a look into the reader's folder, which may hold a random.py.
# (Engines look there later: they import what the reader asks for.) Programs that a rank starts are
# not meant: on each rank, this runs first.
SAFE_PATH = "PYTHONSAFEPATH"
SAFE_PATH_IS_OVER = f"""
import os
if os.environ.get({SAFE_PATH!r}) == "ranklab":
    del os.environ[{SAFE_PATH!r}]
"""

CONNECT_AGAIN = 2  # seconds until a client that does not know all engines is replaced
NEEDED_ON_DISK = 1 << 20  # bytes, plenty for what controller and engines write of themselves
ASK_AGAIN = 2  # seconds until an engine that has not answered its first message gets another

# What every engine imports, once for all of them where they are forked. Who trains may name more:
# RANKLAB_PRELOAD=torch._dynamo saves each rank a second at its first optimizer, and costs one here.
PRELOAD = ["torch", "torch.distributed", *os.environ.get("RANKLAB_PRELOAD", "").split()]


class PortsTaken(RankError):
    """Ports that the controller had chosen were taken before it took them itself."""


def start(plan, folder, preload=()):
    """Start what `plan` asks for, with all files in `folder`; return (cluster, client).

    preload: what the engines import ahead, beside PRELOAD.
    Raises PortsTaken where another try may help, and RankError.
    """
    batch = is_batch(plan)
    # By itself, not by its name: an installation older than the name has the launcher all the same.
    ours = plan.engines == "ranklab" or forks(plan)
    engines = launcher.engine_set_launcher if ours else plan.engines
    cluster = _Cluster(
        n=plan.world_size,
        engines=engines,
        profile_dir=folder,
        cluster_file="",  # nobody else has to find this cluster
        controller_ip="*" if batch else "",  # "" is the loopback interface
        controller_args=_heartbeat(NEVER if forks(plan) else LOST),
        delay=0,
        # What forks the engines imports while the controller comes up; then it waits for that.
        send_engines_connection_env=not forks(plan),
        load_profile=False,
        shutdown_atexit=False,  # Ranks sees to it
        config=_config(plan, preload),
        log=_silent_log(),
    )
    try:
        cluster.start_cluster_sync()
        # The set forgets an engine that ends, and then nobody could say what it died of.
        started = cluster.engine_set
        started.all_launchers = list(getattr(started, "launchers", {}).values())
        client = connect(cluster, patience=600 if batch else 60)  # a queue takes its time
        _end_safe_path(client, patience=60)
    except BaseException as error:  # Ctrl-C, too: a job must not stay in the queue
        try:
            if batch:
                cluster.stop_cluster_sync()
        finally:
            cluster.give_up()
        if not isinstance(error, Exception):
            raise
        if shutil.disk_usage(folder).free < NEEDED_ON_DISK:
            raise RankError(
                f"The ranks did not start: the disk that {folder} is on is full. Make room there, "
                "or set TMPDIR to a folder on another one and restart the kernel."
            ) from error
        kind = PortsTaken if exits.ports_taken(cluster.engine_set) else RankError
        raise kind(f"The ranks did not start: {error}\n{_last_words(cluster)}") from error
    return cluster, client


class _Cluster(ipyparallel.Cluster):
    """A cluster that knows its clients: an interrupt may come while its thread still makes one."""

    clients = List()
    given_up = Bool()

    async def connect_client(self, **options):
        client = await super().connect_client(**options)
        self.clients.append(client)
        if self.given_up:
            client.close(linger=0)
        return client

    def give_up(self):
        """End what a start that failed has left in this process, also what is still to come."""
        self.given_up = True
        upstream.let_go(self)
        for client in self.clients:
            client.close(linger=0)


def connect(cluster, patience):
    """Return a client that knows all engines of a cluster that has been started.

    A client is told which engines there are when it connects, and from then on of each that comes.
    But what is published until its subscription has reached the hub is lost, and nobody is told. So
    a client that waits for long is replaced by another.

    Raises RuntimeError as soon as an engine cannot come any more, or after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        client = None
        try:
            client = cluster.connect_client_sync()
            client.wait_for_engines(cluster.n, timeout=CONNECT_AGAIN, interactive=False)
            return client
        except BaseException as error:  # Ctrl-C, too
            if client is not None:
                client.close(linger=0)
            if isinstance(error, ipyparallel.EngineError):  # where it is told so first
                raise RuntimeError("a process has ended.") from None
            if not isinstance(error, TimeoutError):  # of the engines, or of a hub that is busy
                raise
            late = error
        if not exits.runs(cluster.engine_set) or exits.ended(cluster.engine_set):
            raise RuntimeError("a process has ended.")
        if time.monotonic() > deadline:
            raise RuntimeError(f"they were not there after {patience} s.") from late


def _end_safe_path(client, patience):
    """End it on every engine, and return when all have answered: from now on, none is missed.

    An engine counts as there when its heart beats, which has connections of its own. What is sent
    to it before the one for messages has come up is dropped, and nobody is told. So whoever does
    not answer is asked again.
    """
    deadline = time.monotonic() + patience
    sent = {rank: [] for rank in client.ids}
    while silent := [rank for rank in sent if not any(r.ready() for r in sent[rank])]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing came from {named(silent)} for {patience} s.")
        for rank in silent:
            sent[rank].append(client[rank].apply_async(exec, SAFE_PATH_IS_OVER, {}))
        client.wait([sent[rank][-1] for rank in silent], ASK_AGAIN)
    for results in sent.values():
        _take_last(client, results)


def _take_last(client, results):
    """Wait for the last answer of an engine; what it did not answer before that was dropped."""
    results[-1].get(timeout=60)  # messages to one engine keep their order
    upstream.give_up(client, [result for result in results if not result.ready()])
    client.purge_local_results(results)


def forks(plan):
    """Are the engines forked from a process that has imported for them, the importer?"""
    if not launcher.can_fork():
        return False
    return plan.engines == "ranklab" or (plan.under_mpi and mpi_world.is_of_mpich(mpiexec()))


def is_batch(plan):
    """Is it a batch system, on other hosts, that starts the engines?"""
    return plan.engines not in (*ONE_MACHINE, "mpi")


def _heartbeat(lost):
    """Return the controller's options; lost: seconds without a heartbeat that mean death."""
    return [
        f"--HeartMonitor.period={BEAT * 1000:.0f}",
        f"--HeartMonitor.max_heartmonitor_misses={lost / BEAT:.0f}",
    ]


def _config(plan, preload=()):
    # Where the reader sets one of them, the others follow: torch takes the smallest.
    chosen = next((os.environ[name] for name in ONE_THREAD if name in os.environ), "1")
    environment = {name: os.environ.get(name, chosen) for name in ONE_THREAD}
    # What Gloo logs as an error, it also raises.
    silence = "FATAL" if plan.backend == "gloo" else "ERROR"
    environment["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", silence)
    # torch records its last collectives, which the doctor compares; and profiles without a word.
    environment["TORCH_FR_BUFFER_SIZE"] = os.environ.get("TORCH_FR_BUFFER_SIZE", "64")
    environment["KINETO_LOG_LEVEL"] = os.environ.get("KINETO_LOG_LEVEL", "99")
    environment[SAFE_PATH] = os.environ.get(SAFE_PATH) or "ranklab"
    if plan.under_mpi:
        environment[mpich.RESTING] = os.environ.get(mpich.RESTING, "1")
    if plan.debug:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    mpi_cmd = [mpiexec()] if plan.under_mpi else []
    forked = {"preload": [*PRELOAD, *preload], "keep_importer": True, "mpi_cmd": mpi_cmd}
    return Config(
        BaseLauncher={"environment": environment},
        RankEngineSetLauncher=forked,
        LocalEngineSetLauncher={"delay": 0.0},
        MPILauncher={"mpi_cmd": mpi_cmd},
    )


def _silent_log():
    log = logging.getLogger("ranklab.start.cluster")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.propagate = False
    log.setLevel(logging.CRITICAL + 1)
    return log


def _last_words(cluster):
    """Return the end of what the engines wrote before they failed to start."""
    engines = cluster.engine_set
    known = getattr(engines, "all_launchers", None) or [engines]
    outputs = [engine.get_output().strip() for engine in known]
    return "\n".join(max(outputs, key=len, default="").splitlines()[-3:])
