"""Processes as ranks: ipyparallel's engines, joined into one `torch.distributed` process group.

    ranks = Ranks(4)          # 4 ranks · gloo on cpu · ready in 4.1 s

ipyparallel starts the processes ("engines"), runs the `%%px` cells on them, and moves values. What
`Ranks` adds is what `torch.distributed` needs:

- a **rank** for each engine. A fresh cluster numbers its engines 0 to n-1; engine i becomes rank i.
  As ipyparallel never gives a number twice, `restart()` starts a fresh cluster;
- a **meeting point** where the ranks find each other: a file in a private folder, so that no port
  is open for others to reach;
- a **process group** with a short timeout. It is the only thing that ends the wait of a rank whose
  message never comes;
- a **guardian** (guardian.py), which ends all of it with the kernel, whatever the kernel dies of.
"""

import atexit
import itertools
import logging
import os
import sys
import time

import ipyparallel
from IPython import get_ipython
from traitlets.config import Config

from . import arguments, engine, failure
from .guardian import Guardian

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
MARGIN = 5.0  # seconds that a rank gets beyond its timeout before it counts as stuck
IN_NAMESPACE = ("rank", "world_size", "device", "torch", "dist")

_current = None  # the ranks of this kernel: one Ranks at a time


class Ranks:
    """`n` processes as the ranks of one process group.

    backend, device: what fits this machine, unless given (NCCL with a GPU for each rank, else Gloo).
    timeout: seconds that a rank waits for another one before it gives up with an error.
    debug: turn on PyTorch's own checks for collectives that do not match (slow: never time with it).
    engines: the name of an ipyparallel launcher: "local", "mpi", "slurm", ...

    The environment variable RANKLAB_RANKS, where set, replaces n.
    """

    def __init__(self, n=4, *, backend=None, device=None, timeout=20.0, debug=False, engines=None):
        self._plan = arguments.plan(n, backend, device, timeout, debug, engines)
        _replace_current(self)
        self._start()

    # What it is

    @property
    def world_size(self):
        return self._plan.world_size

    @property
    def timeout(self):
        return self._plan.timeout

    @property
    def closed(self):
        return self.client is None

    @property
    def name(self):
        """What the notebook calls this object, for sentences that say what to call next."""
        shell = get_ipython()
        names = [k for k, v in shell.user_ns.items() if v is self] if shell else []
        return next((k for k in names if not k.startswith("_")), "ranks")

    def __len__(self):
        return self.world_size

    def __repr__(self):
        if self.closed:
            return f"{self.world_size} ranks · closed"
        device = self._plan.devices[0].partition(":")[0]
        many = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{many} · {self._plan.backend} on {device} · ready in {self._seconds:.1f} s"

    # Start and end

    def _start(self):
        began = time.perf_counter()
        self.cluster = self.client = self.view = None
        self._guardian = Guardian()
        self._meetings = itertools.count()
        try:
            self._start_engines()
            processes = self._on_all(engine.prepare, limit=120)
            self.pids = [pid for _, pid in processes]
            self._one_host = len({host for host, _ in processes}) == 1
            self._join()
        except BaseException:
            self.close()
            raise
        self._activate()
        self._seconds = time.perf_counter() - began
        print(self)

    def _start_engines(self):
        """Start the cluster. This is the place for another way of starting engines."""
        local = self._plan.engines == "local"
        self.cluster = ipyparallel.Cluster(
            n=self.world_size,
            engines=self._plan.engines,
            profile_dir=self._guardian.folder,
            cluster_file="",  # nobody else has to find this cluster
            controller_ip="" if local or self._plan.engines == "mpi" else "*",
            delay=0,
            load_profile=False,
            shutdown_atexit=False,  # Ranks sees to it
            config=self._config(),
            log=_silent_log(),
        )
        self.cluster.start_cluster_sync()
        self.client = self.cluster.connect_client_sync()
        patience = 60 if local else 600  # a queue takes its time
        self.client.wait_for_engines(self.world_size, timeout=patience, interactive=False)
        self.view = self.client[:]
        self.view.block = True

    def _config(self):
        environment = (
            {}
            if self._plan.engines != "local"
            else {
                name: os.environ.get(name, "1")
                for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
            }
        )
        environment["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
        if self._plan.debug:
            environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        # An engine counts as there at its first heartbeat, and a stock hub asks for one every 3 s.
        # Ten times as often, ten times as many may be missed.
        heartbeat = {"period": 200, "max_heartmonitor_misses": 150}
        return Config(
            BaseLauncher={"environment": environment},
            LocalEngineSetLauncher={"delay": 0.0},
            Cluster={"controller_args": [f"--HeartMonitor.{k}={v}" for k, v in heartbeat.items()]},
        )

    def _join(self):
        """Make one process group of all ranks, at a fresh meeting point."""
        if self._one_host:
            meeting = os.path.join(self._guardian.folder, f"meeting-{next(self._meetings)}")
        else:
            meeting = self.client[0].apply_sync(engine.free_address)
        plan = self._plan
        loopback = LOOPBACK if self._one_host else None
        results = [
            self.client[rank].apply_async(
                engine.join,
                rank,
                plan.world_size,
                plan.backend,
                plan.devices[rank],
                meeting,
                plan.timeout,
                loopback,
            )
            for rank in range(plan.world_size)
        ]
        self.collect(ipyparallel.AsyncResult.join(*results), limit=90)

    def _activate(self):
        if shell := get_ipython():
            from .magics import RankMagics

            shell.register_magics(RankMagics(shell, self))

    def reset(self):
        """Give the same processes a new process group. Variables live on."""
        self.check_alive()
        self._on_all(engine.leave, limit=self.timeout + MARGIN)
        self._join()

    def restart(self):
        """Start fresh processes in place of these. Variables are gone; `%%px` stays valid."""
        self.close()
        _replace_current(self)
        self._start()

    def close(self):
        """End all processes of these ranks and remove their folder. Twice does no harm."""
        global _current
        if _current is self:
            _current = None
        if self._guardian is None:
            return
        guardian, cluster, client = self._guardian, self.cluster, self.client
        self._guardian = self.cluster = self.client = self.view = None
        if client is not None:
            client.close(linger=0)
        if cluster is not None and self._plan.engines not in ("local", "mpi"):
            cluster.stop_cluster_sync()  # a batch system has to be told
        guardian.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Values

    def __getitem__(self, name):
        """Return the value that each rank has for `name`, in rank order."""
        self.check_alive()
        result = self.client[:].pull(name, block=False)
        return self.collect(result)

    def __setitem__(self, name, value):
        """Give every rank `value` under `name`."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} is not a name that a variable can have.")
        if name in IN_NAMESPACE:
            raise ValueError(f"`{name}` is what each rank calls its own; take another name.")
        self.check_alive()
        self.collect(self.client[:].push({name: value}, block=False))

    def run(self, function, *args, **kwargs):
        """Call `function(*args, **kwargs)` on every rank; return the results in rank order."""
        return self._on_all(function, *args, **kwargs)

    # Waiting for the ranks

    def _on_all(self, function, *args, limit=None, **kwargs):
        self.check_alive()
        return self.collect(self.client[:].apply_async(function, *args, **kwargs), limit=limit)

    def check_alive(self, targets=None):
        if self.closed:
            raise failure.RankError(f"These ranks are closed. Call {self.name}.restart().")
        if gone := set(range(self.world_size)) - set(self.client.ids):
            raise failure.error_from([failure.Failure(r, "died") for r in gone], self.name)

    def parts(self, result):
        """Return [(rank, the part of the result that comes from it), ...]."""
        return list(zip(result._targets, result.split(), strict=True))

    def collect(self, result, first_line=1, limit=None):
        """Wait for an ipyparallel result; return the values in rank order, or raise RankError."""
        deadline = limit and time.monotonic() + limit
        while not result.wait(0.5):
            if deadline is None and self._lost_somebody():
                # The others notice by themselves, at their timeout at the latest.
                deadline = time.monotonic() + self.timeout + MARGIN
            if deadline is not None and time.monotonic() > deadline:
                break
        values, failures = [], []
        for rank, part in self.parts(result):
            outcome = part.get(return_exceptions=True) if part.ready() else None
            if not part.ready():
                failures.append(failure.Failure(rank, "busy"))
            elif isinstance(outcome, ipyparallel.error.TaskAborted):
                failures.append(failure.Failure(rank, "aborted"))
            elif isinstance(outcome, ipyparallel.RemoteError):
                failures.append(failure.from_remote(rank, outcome, first_line))
            else:
                values.append(outcome)
        if failures:
            raise failure.error_from(failures, self.name) from None
        return values

    def _lost_somebody(self):
        return set(self.client.ids) != set(range(self.world_size))


def _silent_log():
    log = logging.getLogger("ranklab.cluster")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    log.setLevel(logging.CRITICAL)
    return log


def _replace_current(ranks):
    """Close the ranks that this kernel has, so that it never has two."""
    global _current
    if _current is not None:
        _current.close()
    _current = ranks


@atexit.register
def _close_current():
    if _current is not None:
        _current.close()
