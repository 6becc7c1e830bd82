"""Starting the engines that become the ranks. Another way of starting them belongs here, too."""

import logging
import os
import re
import signal

import ipyparallel
import psutil
from traitlets.config import Config

from .arguments import mpiexec
from .failure import RankError

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# An engine counts as there at its first heartbeat, and a stock hub asks for one every 3 s. As it is
# asked for more often here, more may be missed: 30 s without any, as before.
HEARTBEAT = ("--HeartMonitor.period=200", "--HeartMonitor.max_heartmonitor_misses=150")


def start(plan, folder):
    """Start what `plan` asks for, with all files in `folder`; return (cluster, client)."""
    batch = is_batch(plan)
    cluster = ipyparallel.Cluster(
        n=plan.world_size,
        engines=plan.engines,
        profile_dir=folder,
        cluster_file="",  # nobody else has to find this cluster
        controller_ip="*" if batch else "",  # "" is the loopback interface
        controller_args=list(HEARTBEAT),
        delay=0,
        load_profile=False,
        shutdown_atexit=False,  # Ranks sees to it
        config=_config(plan),
        log=_silent_log(),
    )
    client = None
    try:
        cluster.start_cluster_sync()
        # The set forgets an engine that ends, and then nobody could say what it died of.
        cluster.engine_set.all_launchers = launchers_of(cluster)
        client = cluster.connect_client_sync()
        patience = 600 if batch else 60  # a queue takes its time
        client.wait_for_engines(plan.world_size, timeout=patience, interactive=False)
    except BaseException as error:  # Ctrl-C, too: a job must not stay in the queue
        if client is not None:
            client.close(linger=0)
        if batch:
            cluster.stop_cluster_sync()
        if not isinstance(error, Exception):
            raise
        raise RankError(f"The ranks did not start: {error}\n{_last_words(cluster)}") from error
    return cluster, client


def is_batch(plan):
    """Is it a batch system, on other hosts, that starts the engines?"""
    return plan.engines not in ("local", "mpi")


def _config(plan):
    # Where the reader sets one of them, the others follow: torch takes the smallest.
    chosen = next((os.environ[name] for name in ONE_THREAD if name in os.environ), "1")
    environment = {name: os.environ.get(name, chosen) for name in ONE_THREAD}
    # What Gloo logs as an error, it also raises.
    silence = "FATAL" if plan.backend == "gloo" else "ERROR"
    environment["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", silence)
    if plan.debug:
        environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return Config(
        BaseLauncher={"environment": environment},
        LocalEngineSetLauncher={"delay": 0.0},
        MPILauncher={"mpi_cmd": [mpiexec() or "mpiexec"]},
    )


def _silent_log():
    log = logging.getLogger("ranklab.cluster")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    log.setLevel(logging.CRITICAL + 1)
    return log


def launchers_of(cluster):
    """Return the launcher of each engine, where each has one (it does with "local")."""
    engines = cluster.engine_set
    known = getattr(engines, "all_launchers", None)
    return known or list(getattr(engines, "launchers", {}).values())


def controller_runs(cluster):
    """Is the controller there, which carries everything between the kernel and the ranks?"""
    process = getattr(cluster.controller, "process", None)
    if process is None:
        return True  # it runs elsewhere
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def cause_of_death(cluster, pid):
    """Say what ended the engine with process id `pid`, as far as this machine knows."""
    launcher = next((known for known in launchers_of(cluster) if known.pid == pid), None)
    try:
        code = launcher.process.wait(1)
    except (AttributeError, psutil.Error):  # it ran elsewhere, or is not quite gone yet
        return ""
    if code is None:
        return ""  # its exit code went to somebody else
    how = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
    what = re.findall(r"what\(\): +(.*)", launcher.get_output())
    return "\n".join([f"the process is gone ({how}).", *what[-1:]])


def _last_words(cluster):
    """Return the end of what the engines wrote before they failed to start."""
    outputs = [launcher.get_output().strip() for launcher in launchers_of(cluster)]
    return "\n".join(max(outputs, key=len, default="").splitlines()[-3:])
