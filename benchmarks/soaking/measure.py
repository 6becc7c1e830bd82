"""What is there after each fault: processes, threads, open files, memory, files; and the table."""

import contextlib
import os
import statistics
import time
from pathlib import Path

import psutil

from ranklab.start.guardian import has_ended

GRACE = 10.0  # seconds in which what is ending may end


class Ledger:
    """Keeps the figures of one soak."""

    def __init__(self):
        self.times = {}  # way: seconds of each fault that ended that way
        self.findings, self.second_steps = [], []
        self._seen = {}  # (process id, start time): process
        self._rows = []  # {"kernel MB": ..., ...} after each step
        self._resets = 0

    def begin(self, notebook):
        """Note what a kernel has that has just started its ranks."""
        self.see(notebook)
        self._processes = self._count(notebook)
        self._files = _files(notebook.home)
        self._resets = 0

    def note(self, way, seconds):
        """Note how long something took."""
        self.times.setdefault(way, []).append(seconds)
        self._resets += way == "ranks.reset()"

    def fresh(self):
        """Note that the processes of the ranks are new ones."""
        self._resets = 0

    def see(self, notebook):
        """Remember all processes that there are, so as to know later whether they ended."""
        for process in notebook.processes().values():
            with contextlib.suppress(psutil.Error):
                self._seen[process.pid, process.create_time()] = process

    def measure(self, notebook):
        """Note the figures of this moment; return what is not as it should be."""
        self.see(notebook)
        problems = self.left_behind(notebook, after=self._processes)
        self._rows.append({"resets": self._resets, **_figures(notebook)})
        return problems

    def growth(self):
        """Return what the kernel has more and more of, in words; the first steps load things."""
        problems = []
        for name, allowed in (("kernel, threads", 3), ("kernel, open files", 8)):
            values = [row[name] for row in self._rows if name in row]
            some = max(1, min(10, len(values) // 3))
            first, last = statistics.median(values[:some]), statistics.median(values[-some:])
            if last > first + allowed:
                problems.append(f"{name}: {first:.0f} at first, {last:.0f} in the end")
        return problems

    def last(self):
        """Return the figures of the kernel after the last step, in words."""
        row = self._rows[-1]
        return ", ".join(f"{name} {row[name]:.0f}" for name in row if name.startswith("kernel"))

    def left_behind(self, notebook, after):
        """Return what is left that should be gone, in words; `after`: how many processes may be."""
        deadline = time.monotonic() + GRACE
        while True:
            problems = self._left(notebook, after)
            if not problems or time.monotonic() > deadline:
                return problems
            time.sleep(0.1)

    def _left(self, notebook, after):
        alive = [process for process in self._seen.values() if not has_ended(process)]
        there = notebook.processes() if notebook.process.is_running() else {}
        problems = []
        if orphans := [one for one in alive if one.pid not in there]:
            problems.append(f"orphans: {_described(orphans)}")
        present = [one for one in there.values() if not has_ended(one)]
        if len(present) > after:
            problems.append(f"{len(present)} processes, not {after}: {_described(present)}")
        folders = notebook.folders()
        if len(folders) > bool(after):
            problems.append(f"folders of former ranks: {[folder.name for folder in folders]}")
        others = {one.name for one in notebook.temporary.iterdir()} - {one.name for one in folders}
        # torch keeps that one for all its programs.
        if others := sorted(one for one in others if not one.startswith("torchinductor_")):
            problems.append(f"in the temporary folder: {others}")
        if new := _files(notebook.home) - self._files:
            problems.append(f"in the home folder: {sorted(new)}")
        return problems

    def _count(self, notebook):
        return len([one for one in notebook.processes().values() if not has_ended(one)])

    def table(self):
        """Print the figures."""
        print(f"\n{'ended by':24} {'n':>4} {'median':>8} {'longest':>8}")
        for way, seconds in sorted(self.times.items()):
            median = statistics.median(seconds)
            print(f"{way:24} {len(seconds):4} {median:6.2f} s {max(seconds):6.2f} s")
        print(f"\n{'':24} {'first':>8} {'last':>8} {'most':>8}")
        for name in [name for name in self._rows[0] if name != "resets"]:
            values = [row[name] for row in self._rows if name in row]
            # The first few steps load what is loaded once.
            first = statistics.median(values[:10])
            last = statistics.median(values[-10:])
            print(f"{name:24} {first:8.0f} {last:8.0f} {max(values):8.0f}")
        for line in self.second_steps:
            print(line)


def _figures(notebook):
    """Return {what: how much} for kernel, controller and ranks."""
    figures = {}
    with contextlib.suppress(psutil.Error, OSError):
        figures["kernel, MB"] = memory(notebook.process)
        figures["kernel, open files"] = notebook.process.num_fds()
        figures["kernel, threads"] = notebook.process.num_threads()
        controllers = notebook.named("ipyparallel.controller")
        figures["controller, MB"] = sum(map(memory, controllers))
        ranks = [child for server in notebook.fork_servers() for child in server.children()]
        figures["a rank, MB"] = max(map(memory, ranks))
        figures["a rank, open files"] = max(rank.num_fds() for rank in ranks)
        figures["a rank, threads"] = max(rank.num_threads() for rank in ranks)
    return figures


def memory(process):
    """Return the memory of a process in MB; what n processes share counts as 1/n (PSS)."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def _files(home):
    return {
        os.path.join(folder, name)
        for folder, _, names in os.walk(home)
        for name in names
        if "history.sqlite" not in name and ".cache" not in folder
    }


def _described(processes):
    said = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            said.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:80]}")
    return said
