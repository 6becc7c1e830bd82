"""What the cores do, this process, and the processes that it started: through psutil."""

import math
import os
import platform
import threading
import time

import psutil


class Cpu:
    """Reads the cores, this process, and the processes below it.

    All but memory are differences of the system's counters, which count in hundredths of a second.
    So at 10 samples a second a process's reading is 0, 10, 20, ... percent; means are exact.
    """

    def __init__(self):
        card = f"CPU, {psutil.cpu_count()} cores"
        self.about = {"card": card, "driver": platform.platform(), "uuid": None, "device": None}
        self.notes = []
        self._own = psutil.Process()
        self._below = _Descendants(self._own)

    def begin(self):
        """Take the counters' first values."""
        self._when, self._cores = time.perf_counter(), _core_seconds()
        self._seconds, self._total, self._own_seconds, self._gone = {}, 0.0, 0.0, 0.0
        self.read()

    def read(self):
        """Return (column -> reading, {}: nothing is missing) for the time since the last call.

        Percent of one core for processes, of all cores for `utilization_percent`. Memory is the
        machine's, in bytes.
        """
        now, cores = time.perf_counter(), _core_seconds()
        per_second = 100 / max(now - self._when, 1e-9)
        seconds, total = {}, 0.0
        for process in [self._own, *self._below.now()]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has just ended
                continue
            seconds[process.pid] = times.user + times.system
            # On Linux a process also has the seconds of its children that have ended.
            total += sum(times[:4]) if psutil.LINUX else seconds[process.pid]
        if not psutil.LINUX:  # those that have ended are remembered as they were last seen
            self._gone += sum(s for pid, s in self._seconds.items() if pid not in seconds)
        # One that ends between two of the lines above is in nobody's seconds, this time.
        total = max(self._total, total + self._gone)
        own = seconds[self._own.pid]
        used = own - self._own_seconds
        below = max(0.0, total - self._total - used)
        per_core = [_percent(before, after) for before, after in zip(self._cores, cores)]
        self._when, self._cores, self._seconds = now, cores, seconds
        self._total, self._own_seconds = total, own
        return {
            "utilization_percent": sum(per_core) / len(per_core),
            "own_percent": per_second * used,
            "children_percent": per_second * below,
            "cores_percent": per_core,
            "memory_bytes": psutil.virtual_memory().used,
        }, {}

    def close(self):
        """Nothing is held open."""


def _core_seconds():
    """For each core: (seconds it was busy, seconds in all), since the machine started."""
    found = []
    for core in psutil.cpu_times(percpu=True):
        total = sum(core[:8]) if hasattr(core, "guest") else sum(core)  # a guest's are the user's
        found.append((total - core.idle - getattr(core, "iowait", 0.0), total))
    return found


def _percent(before, after):
    busy, total = after[0] - before[0], after[1] - before[1]
    return min(100.0, max(0.0, 100 * busy / total)) if total > 0 else 0.0


class _Descendants:
    """The processes below one, found cheaply: it is asked ten times a second."""

    def __init__(self, process):
        self._process, self._known, self._deeper = process, {}, []
        self._looked, self._cost = -math.inf, 0.0
        thread = f"/proc/self/task/{threading.get_native_id()}/children"
        self.now = self._by_thread if os.path.exists(thread) else self._by_search

    def _by_thread(self):
        """Linux lists the children of each thread. Theirs are looked for once a second."""
        if time.perf_counter() - self._looked > 1:
            self._looked, self._deeper = time.perf_counter(), _below(_children(self._process.pid))
        pids = dict.fromkeys([*_children(self._process.pid), *self._deeper])
        self._known = {pid: self._known.get(pid) or _process(pid) for pid in pids}
        return [process for process in self._known.values() if process]

    def _by_search(self):
        """Elsewhere psutil looks at every process there is: 1/200 of the time may go there."""
        if time.perf_counter() - self._looked > 200 * self._cost:
            began = time.thread_time()
            self._known = {p.pid: p for p in self._process.children(recursive=True)}
            self._cost, self._looked = time.thread_time() - began, time.perf_counter()
        return list(self._known.values())


def _children(pid):
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:  # the process has just ended, or one of its threads has
        pass
    return found


def _below(pids):
    """The pids of all processes below these."""
    found, pids = [], list(pids)
    while pids:
        children = _children(pids.pop())
        found += children
        pids += children
    return found


def _process(pid):
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None
