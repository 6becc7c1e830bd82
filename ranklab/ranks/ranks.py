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

import contextlib
import itertools
import os
import socket
import sys
import time
from concurrent.futures import wait

import ipyparallel
from IPython import get_ipython

from ranklab import forgotten
from ranklab.doctor import places, rounds, vigil
from ranklab.doctor.telling import what_next
from ranklab.errors import ArgumentError, RankError, named
from ranklab.ranks import current, outcome, process_group, px, variables, world_order
from ranklab.start import arguments, cluster, devices, importer_process
from ranklab.start.guardian import Guardian
from ranklab.upstream import ipyparallel as replies
from ranklab.upstream import mpich, packing
from ranklab.upstream import torch as upstream

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Ranks:
    """`n` processes as the ranks of one process group.

    backend, device: by default what fits: NCCL with a GPU for each rank, else Gloo. What a rank
    makes lies on its device by default, and so does a tensor that comes to it; in the notebook
    it lies on the CPU.
    timeout: seconds that a rank waits for another one before it gives up with an error. In MPI it
    cannot give up: the cell ends all the same, and the ranks need a restart.
    debug: PyTorch's own checks for collectives that do not match. Slow: never time with it.
    engines: the name of an ipyparallel launcher: "local", "mpi", "slurm", ...

    The environment variable RANKLAB_RANKS, where set, replaces n; RANKLAB_DEVICE, cpu or cuda,
    stands for the device where none is named.
    """

    def __init__(self, n=4, *, backend=None, device=None, timeout=20.0, debug=False, engines=None):
        self.restarted = False
        self._plan = arguments.plan(n, backend, device, timeout, debug, engines, current.size())
        self._start(current.replace_by(self, self._plan))

    # What it is

    @property
    def world_size(self):
        return self._plan.world_size

    @property
    def timeout(self):
        return self._plan.timeout

    @property
    def name(self):
        """What the notebook calls this object, for sentences that say what to call next."""
        shell = get_ipython()
        names = [name for name, value in shell.user_ns.items() if value is self] if shell else []
        return next((name for name in names if not name.startswith("_")), "ranks")

    def __len__(self):
        return self.world_size

    def __repr__(self):
        many = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        if self.client is None:
            return f"{many} · closed"
        device = self._plan.devices[0].partition(":")[0]
        return f"{many} · {self._plan.backend} on {device} · ready in {self._seconds:.1f} s"

    # Start and end

    def _start(self, guardian, again=True):
        """Start the processes; guardian: that of others before them, if it was kept.

        again: where that fails, and may not fail a second time, try once more.
        """
        began = time.perf_counter()
        self._forget_the_former()
        try:
            self._guardian = guardian or Guardian()
            self.folder = self._guardian.folder
            self._start_processes()
            self._join()
        except KeyboardInterrupt:
            self.close()
            raise RankError(
                f"Interrupted while the ranks were starting. Call {self.name}.restart(), or run "
                "the cell with Ranks(...) again."
            ) from None
        except cluster.PortsTaken:
            if not again:
                self.close()
                raise
            kept = current.take_over(self, self._plan)
            current.replace_by(self, self._plan)
            return self._start(kept, again=False)
        except BaseException:
            self.close()
            raise
        if shell := get_ipython():
            shell.register_magics(px.RankMagics(shell, self))
        self._seconds = time.perf_counter() - began
        print(self)

    def _forget_the_former(self):
        """Know nothing of processes, before there are any, or fresh ones."""
        self.cluster = self.client = self.view = self._guardian = None
        self.pids = []
        self.one_host = False  # until all have said where they are
        self.watched = 0  # by how many vigils
        self.cell = places.LastCell()
        self.last_result = self.earlier_result = None  # of the last two %%px
        self.unwatched = None  # the result of the last one, if it was --noblock
        self.broken = False  # did a communication fail in this process group?
        self.lost = False  # is one in a call of MPI, for good?
        self._meetings = itertools.count()

    def _start_processes(self):
        self.cluster, self.client = cluster.start(self._plan, self.folder, process_group.PRELOAD)
        replies.keep_unreadable(self.client)
        packing.by_value()
        packing.know_devices(self._plan.devices)
        rounds.free_when_one_dies(self)
        self.view = self.client[:]
        self.view.block = True
        under_mpi = self._plan.under_mpi
        forget = (mpich.forget, mpich.TOLD) if under_mpi else ()
        processes = self._on_all(process_group.prepare, self.folder, *forget, limit=120)
        self.pids = [pid for _, pid, _ in processes]
        self.one_host = {host for host, *_ in processes} == {socket.gethostname()}
        if under_mpi:
            world_order.check_world([place for *_, place in processes])

    def _join(self, size=None):
        """Make one process group of all ranks (or the first `size`), at a fresh meeting point."""
        size = size or len(self)
        if self.one_host:
            self.meeting = os.path.join(self.folder, f"meeting-{next(self._meetings)}")
        else:
            asked = self.client[[0]].apply_async(process_group.free_address)
            self.meeting = outcome.values(self, asked, limit=60)[0]
        plan, loopback = self._plan, LOOPBACK if self.one_host else None
        group = (size, plan.under_mpi, plan.backend, plan.devices, plan.timeout, loopback)
        group += (upstream.limit_new_groups, devices.send_over_host)
        known = [None if plan.under_mpi and r else self.meeting for r in range(size)]
        results = [
            self.client[r].apply_async(process_group.join, r, known[r], *group) for r in range(size)
        ]
        outcome.take(self, ipyparallel.AsyncResult.join(*results), limit=90)
        self.broken = False

    def reset(self):
        """Give the same processes a new process group. Variables live on.

        What the ranks still run is ended first, as the stop button would end it.
        """
        self.check_alive()
        if rounds.where(self).waiting or self._busy(patience=1):
            sent = self.client.send_signal("SIGINT", block=False)
            rounds.free(self)
            wait([sent], 1)  # a signal that is still under way would end what comes next
        if busy := self._busy(patience=vigil.MARGIN):
            raise RankError(self._still_runs(busy))
        self._regroup()

    def _regroup(self, size=None):
        """Take the process group down; make a new one of all ranks, or of the first `size`."""
        self._on_all(process_group.leave, limit=self.timeout + vigil.MARGIN)
        self._join(size)

    def _busy(self, patience):
        """Return the Diagnosis of ranks of which some run after `patience` seconds, or None."""
        began = time.monotonic()
        while (diagnosis := rounds.where(self)).unfinished:
            if diagnosis.is_over(began, patience) or (diagnosis.in_mpi and diagnosis.stuck):
                return diagnosis
            time.sleep(0.02)
        return None

    def _still_runs(self, where):
        began = "There is no new process group yet, as not every rank is free for it:"
        advice = (
            f"Wait until it is, or call {self.name}.restart(): it starts fresh processes, without "
            "the variables of these."
        )
        advice = what_next({"lost"}, self.name) if where.in_mpi else advice
        return "\n\n".join([began, *where.paragraphs(where.unfinished), advice])

    def restart(self):
        """Start fresh processes in place of these. Variables are gone; `%%px` stays valid."""
        kept = current.take_over(self, self._plan)
        self.restarted = True
        self._start(current.replace_by(self, self._plan) or kept)

    def close(self):
        """End all processes of these ranks and remove their folder. Twice does no harm."""
        current.forget(self)
        guardian, engines, client = self._guardian, self.cluster, self.client
        self._guardian = self.cluster = self.client = self.view = None
        with contextlib.ExitStack() as steps:  # the last one first, each even if another one fails
            if guardian is not None:
                steps.callback(importer_process.forget, guardian.folder)
                steps.callback(guardian.end)
            if engines is not None:
                steps.callback(replies.let_go, engines)
            if engines is not None and cluster.is_batch(self._plan):
                steps.callback(engines.stop_cluster_sync)
            if client is not None:
                steps.callback(client.close, linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Values and calls

    def __getitem__(self, name):
        """Return the value that each rank has for `name`, in rank order."""
        return variables.pull(self, name)

    def __setitem__(self, name, value):
        """Give every rank `value` under `name`."""
        variables.push(self, name, value)

    def run(self, function, *args, **kwargs):
        """Call `function(*args, **kwargs)` on every rank; return the results in rank order.

        What the ranks print comes below the cell at the end, in rank order.
        """
        if not callable(function):
            raise ArgumentError(
                f"ranks.run calls a function on every rank; {function!r} is not one."
            )
        self.check_alive()
        result = self.client[:].apply_async(function, *args, **kwargs)
        return outcome.take(self, result, shown_by="engine")

    def where(self):
        """Return a Diagnosis, which says where each rank is and what it waits for.

        Also while they are stuck: after `%%px --noblock`, say. It names the line of the cell, the
        communication and its peer, for how long, and, where ranks wait in a circle, that circle.
        """
        self.check_alive(targets=())
        last = self.last_result
        pending = last is not None and not last.ready()
        diagnosis = rounds.where(self, replies.ended(self, last) if pending else None)
        if self.gone() or self.broken or self.lost:
            kind = "died" if self.gone() else "lost" if self.lost else "waited"
            diagnosis.advice = what_next({kind}, self.name)
        if self.unwatched is not None and self.unwatched.ready():
            diagnosis.advice = outcome.of_unwatched(self, self.unwatched)
        return diagnosis

    def _on_all(self, function, *args, limit):
        self.check_alive()
        return outcome.take(self, self.client[:].apply_async(function, *args), limit=limit)

    # Who is there

    def check_alive(self, targets=None):
        """Raise RankError where a rank of `targets` (ipyparallel's; default: all) is gone."""
        if self.client is None:
            raise RankError(f"These ranks are closed. Call {self.name}.restart() to start others.")
        there = range(self.world_size)
        asked = set(there)
        if targets is not None and targets != "all":
            asked = {targets} if isinstance(targets, int) else set(targets)
        if unknown := sorted(asked - set(there) - {-1}):
            raise ArgumentError(
                f"There is no {named(unknown)}: the ranks are 0 to {len(self) - 1}."
            )
        if gone := asked & self.gone():
            raise outcome.death_of(self, gone)

    def gone(self):
        """Return the ranks whose processes have ended."""
        return set(range(self.world_size)) - set(self.client.ids)


px.say_what_is_missing(get_ipython())
forgotten.explain_in(get_ipython())
