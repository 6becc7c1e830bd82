"""Ranks made with stock ipyparallel, as a reader would without ranklab: groups in one cluster.

What the reader would not do is freed here by a thread on each rank: the connections of a group that
hangs are shut, so that the next fault can be provoked in the same processes.

Many engines may be forked from one process, as ranklab's launcher does it: what is seen of a fault
is the same while none of them dies, and each does not have to import torch by itself.
"""

import os
import re
import signal
import time
from pathlib import Path

import psutil
from kernels import Notebook

ROOT = Path(__file__).parents[2]
PATIENCE = 8.0  # seconds after which a cell counts as hung; by itself it would end after 30 minutes
NOISE = re.compile(r"\x1b\[[0-9;]*m|\r[^\n]*")  # colors, and progress bars
MARK = "RANKLAB_TEST_STOCK"  # in the environment of all that belongs to a Stock

SETUP = f"""%%px
import os, runpy, threading, time
import torch, torch.distributed as dist

sockets = runpy.run_path({str(ROOT / "ranklab/doctor/sockets.py")!r})  # without the rest of ranklab

def free_when_asked():
    while True:
        with lock:
            if os.path.exists(f"{{folder}}/free-{{world}}"):
                sockets['shut_accepted'](but=before)  # one end of each connection of Gloo
        time.sleep(0.1)

before, world = sockets['listening'](), ""
lock = threading.Lock()  # else the next group's connections might be shut for those of this one
threading.Thread(target=free_when_asked, daemon=True).start()
"""
JOIN = """%%px --targets {targets}
if dist.is_initialized():
    dist.destroy_process_group()
with lock:
    rank, world_size, world = ranks[engine]
store = dist.FileStore(f"{{folder}}/store-{{world}}", world_size)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
"""


class Stock:
    """A notebook with a stock cluster, whose engines can be joined to several groups."""

    def __init__(self, engines, folder, forked=False):
        """folder: where the groups meet. forked: are the engines to be forked from one process?"""
        self.folder, self.joined = folder, 0
        self.notebook = Notebook(**{"IPP_NONINTERACTIVE": "", MARK: str(folder)})
        self.must("import ipyparallel as ipp, os, time")
        how = ", engines='ranklab'" if forked else ""
        self.must(f"cluster = ipp.Cluster(n={engines}{how})")
        self.must("rc = cluster.start_and_connect_sync(); rc.activate()", 150)
        self.must(
            f"for i in rc.ids: rc[i].push(dict(engine=i, folder={str(folder)!r}), block=True)"
        )
        self.must(SETUP, 150)
        self.pids = self.value("rc[:].apply_sync(os.getpid)")

    def must(self, code, timeout=60):
        """Run a cell; return what it shows, without the noise."""
        shown, error = self.notebook.run(code, timeout)
        assert error is None, f"{error}\n{shown}"
        return NOISE.sub("", shown).strip()

    def value(self, expression):
        """Return the value of an expression; what ranks print meanwhile may stand beside it."""
        shown = self.must(f"print('\\nvalue:', repr({expression}))")
        return eval(re.search("^value: (.*)$", shown, re.MULTILINE)[1])

    def join(self, *groups):
        """Make each list of engines a process group."""
        ranks = {}
        for group in groups:
            self.joined += 1
            ranks |= {e: (rank, len(group), f"w{self.joined}") for rank, e in enumerate(group)}
        targets = ",".join(map(str, ranks))
        self.must(f"rc[[{targets}]].push(dict(ranks={ranks}), block=True)")
        self.must(JOIN.format(targets=targets))
        self.world = {engine: world for engine, (_, _, world) in ranks.items()}

    def free(self, group):
        """End what the ranks of a group are in, if that can be done from outside."""
        (self.folder / f"free-{self.world[group[0]]}").touch()
        os.kill(self.pids[group[1]], signal.SIGCONT)
        os.kill(self.pids[group[1]], signal.SIGINT)

    def see(self, group, cell):
        """Run a cell on a group as a reader does; return all it said, or None if it hung."""
        message = self.notebook.start(f"%%px --targets {','.join(map(str, group))}\n{cell}")
        self.notebook.traceback = ""
        try:
            shown, error = self.notebook.outputs(message, PATIENCE)
        except TimeoutError:
            return None
        return NOISE.sub("", f"{shown}\n{self.notebook.traceback}\n{error or ''}")

    def see_at_once(self, cells, final=False):
        """Run a cell on each group, [(group, cell), ...]; return for each what it said, or None.

        Those that hang are freed, unless that is `final`.
        """
        self.must("results = []")
        for group, cell in cells:
            self.must(f"results.append(rc[{group}].execute({cell!r}, block=False))")
        self._wait(PATIENCE)
        said = self.value("[r.ready() and repr(r.get(return_exceptions=True)) for r in results]")
        if not final:
            self._end_all([group for group, _ in cells])
        return [text or None for text in said]

    def _wait(self, seconds):
        self.must(f"end = time.time() + {seconds}")
        self.must("for r in results: r.wait(max(0, end - time.time()))")

    def _end_all(self, groups):
        """Free the groups until each has ended its cell."""
        for _ in range(6):  # an interrupt may come when nobody hears it
            running = self.value("[i for i, r in enumerate(results) if not r.ready()]")
            if not running:
                return
            for i in running:
                self.free(groups[i])
            self._wait(10)
        raise AssertionError(f"these cannot be freed: {[groups[i] for i in running]}")

    def processes(self):
        """Return all processes that belong to this notebook, as far as they are alive."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.folder):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]

    def close(self):
        self.notebook.close()
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                process.kill()
            time.sleep(0.1)
