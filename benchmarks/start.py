"""How soon, how fast and how large: four ranks of ranklab against four engines of ipyparallel.

    python benchmarks/start.py [PAIRS]

Side by side in one run: five pairs, the two in alternating order, each in a Python of its own.

- start: from just before that Python is started to the first all-reduce done on all four ranks. The
  stock way is what a reader would write with ipyparallel alone, and its defaults.
- restart: from the call until an all-reduce is done on four fresh ranks.
- %%px: the median of 300 round trips of a cell that does nothing, through the real magic.
- memory: proportional set size (memory that n processes share counts as 1/n for each of them), read
  right after the first all-reduce. What the ranks need: the stock engines and their nannies, or the
  importer, the fork server, and the engines. Then all that was started, the controller included.

Prints a table, medians over the pairs, and exits with 1 where a ratio is above its bound.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RANKS = 4
ROUND_TRIPS = 300
BOUNDS = {"start": 0.40, "restart": 0.40, "%%px": 1.1, "memory": 0.7}
UNITS = {"start": "s", "restart": "s", "%%px": "ms", "memory": "MB", "memory, all": "MB"}
OF_THE_RANKS = (
    "ipyparallel.engine",
    "ranklab.start.importer_main",
)  # stands in their command lines

STOCK = """
import sys
import ipyparallel

cluster = ipyparallel.Cluster(n=4)
client = cluster.start_and_connect_sync()

def first(rank, world_size, meeting_point):
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=world_size
    )
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def all_reduce(engines):
    meeting_point = f"{sys.argv[1]}/meeting-{engines[0]}"
    results = [client[i].apply_async(first, r, 4, meeting_point) for r, i in enumerate(engines)]
    assert [result.get() for result in results] == [4.0] * 4

all_reduce(client.ids)

def magic(shell):
    view = client[:]
    view.block = True
    view.activate()

def restart():
    before = set(client.ids)
    cluster.restart_engines_sync()
    while len(fresh := set(client.ids) - before) < 4:
        time.sleep(0.01)
    all_reduce(sorted(fresh))

end = cluster.stop_cluster_sync
"""

OURS = """
from ranklab import Ranks

ranks = Ranks(4)

def first():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

assert ranks.run(first) == [4.0] * 4

def magic(shell):
    from ranklab.ranks.px import RankMagics

    shell.register_magics(RankMagics(shell, ranks))

def restart():
    ranks.restart()
    assert ranks.run(first) == [4.0] * 4

end = ranks.close
"""

MEASURE = """
print("ready", flush=True)
input()  # somebody reads the memory
import json, time
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
magic(shell)

def round_trip():
    began = time.perf_counter()
    result = shell.run_cell("%%px\\npass")
    result.raise_error()
    return time.perf_counter() - began

for _ in range(20):
    round_trip()
print(json.dumps([round_trip() for _ in range(ROUND_TRIPS)]), flush=True)
began = time.perf_counter()
restart()
print(json.dumps([time.perf_counter() - began]), flush=True)
end()
""".replace("ROUND_TRIPS", str(ROUND_TRIPS))


def measure(program):
    """Run `program` in a Python of its own; return {what: value in its unit}."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program + MEASURE, folder]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "IPYTHONDIR": folder},
        ) as process:
            _line_after(process, "ready")
            seconds = time.monotonic() - began
            ranks, everything = memory_below(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            round_trips = json.loads(_line_after(process, "["))
            (again,) = json.loads(_line_after(process, "["))
    return {
        "start": seconds,
        "restart": again,
        "%%px": 1000 * statistics.median(round_trips),
        "memory": ranks,
        "memory, all": everything,
    }


def _line_after(process, beginning):
    """Return the next line that begins so; the programs print other lines, too."""
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise SystemExit(f"A program ended before it printed a line with {beginning!r}.")


def memory_below(pid):
    """Return the MB (of the ranks, of all processes) that were started by process `pid`."""
    ranks = everything = 0
    for process in psutil.Process(pid).children(recursive=True):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            command = " ".join(process.cmdline())
        except (OSError, psutil.Error):
            continue  # ended meanwhile
        size = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
        everything += size
        if any(name in command for name in OF_THE_RANKS):
            ranks += size
    return ranks, everything


def main(pairs=5):
    """Measure, print the table; return 1 if a ratio is above its bound, else 0."""
    load = os.getloadavg()[0]
    print(f"{RANKS} ranks, {pairs} pairs, {os.cpu_count()} cores, load before {load:.1f}")
    runs = {"stock": [], "ranklab": []}
    for pair in range(pairs):
        programs = [("stock", STOCK), ("ranklab", OURS)]
        for name, program in programs if pair % 2 == 0 else reversed(programs):
            runs[name].append(measure(program))
    print(f"\n{'':>12} {'stock':>10} {'ranklab':>10} {'ratio':>6}  {'pairs':>11}  bound")
    failed = False
    for what, unit in UNITS.items():
        stock, ours = ([run[what] for run in runs[name]] for name in ("stock", "ranklab"))
        ratio = statistics.median(ours) / statistics.median(stock)
        each = [mine / theirs for mine, theirs in zip(ours, stock)]
        bound = BOUNDS.get(what)
        holds = bound is None or ratio <= bound
        failed = failed or not holds
        print(
            f"{what:>12} {statistics.median(stock):7.1f} {unit:2} {statistics.median(ours):7.1f} "
            f"{unit:2} {ratio:6.2f}  {min(each):4.2f} - {max(each):4.2f}  "
            + ("" if bound is None else f"{bound:.2f} {'holds' if holds else 'FAILS'}")
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
