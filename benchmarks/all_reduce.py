"""How fast chapter 8's all-reduces are: beside Gloo's, and beside what copying memory takes.

    python benchmarks/all_reduce.py [REPEATS]

Four ranks, one run, float32. At each size the ways take turns; before each call there is a
barrier, and what counts is the median of the slowest rank. Small sizes are called several times in
a row. The code is what the chapter teaches (ranklab.taught.all_reduce); "best" is FastAllReduce, by
a table that is measured first, at the same sizes and with few repeats.

The estimate, at 32 MB: what the way through shared memory reads and writes (the chapter counts it),
over the bandwidth of a copy, measured with all ranks copying at once. On fewer cores than
ranks they take turns, and that shows only in a row of copies which is longer than the operating
system lets one of them run: so it is a row that is timed. "one copy" is without the row, and lower.

Prints a table and exits with 1 where a ratio is above its bound.
"""

import os
import statistics
import sys

from ranklab import Ranks
from ranklab.taught.all_reduce import winners

RANKS = 4
MB = 1 << 20
SIZES = [4**k for k in range(1, 13)] + [32 * MB, 64 * MB]
OWN = ("gather", "tree", "doubling", "ring", "pieces", "shared")
WAYS = (*OWN, "best", "Gloo")
RING = 1.1  # of Gloo's time, at 32 MB
BEST, BEST_AT_32_MB = 0.8, 0.5  # of Gloo's time; a copy of memory decides the latter
ESTIMATES = 4  # how many times the estimate, at 32 MB


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def prepare():
    """Make the ways, once for all sizes."""
    global ways
    from ranklab.taught import all_reduce as taught

    ways = {
        "gather": taught.gather_all_reduce,
        "tree": taught.tree_all_reduce,
        "doubling": taught.doubling_all_reduce,
        "ring": taught.ring_all_reduce,
        "pieces": taught.pipelined_all_reduce,
        "shared": taught.SharedMemory().all_reduce,
        "Gloo": dist.all_reduce,  # noqa: F821
    }


@on_ranks
def choose(table):
    """Make the one that chooses, of the ways that there are."""
    from ranklab.taught.all_reduce import FastAllReduce

    ways["best"] = FastAllReduce(dict(ways), table)


@on_ranks
def measure(nbytes, repeats, row):
    """Return {what: [seconds of a call, one for each row]}, for all ways and for copies."""
    import time

    x, y = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)  # noqa: F821
    calls = {name: lambda way=way: way(x) for name, way in ways.items()}
    rows = dict.fromkeys(calls, row)
    calls["copy"] = calls["one copy"] = lambda: y.copy_(x)
    rows |= {"copy": 8 * row, "one copy": 1}
    times = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            dist.barrier()  # noqa: F821
            began = time.perf_counter()
            for _ in range(rows[name]):
                call()
            if repeat:  # the first time warms up
                times[name].append((time.perf_counter() - began) / rows[name])
    return times


def slowest_medians(of_ranks):
    """Return {what: the median of the slowest rank}."""
    return {name: max(statistics.median(times[name]) for times in of_ranks) for name in of_ranks[0]}


def traffic_in_copies(n):
    """What an all-reduce of n ranks through shared memory reads and writes, in copies of a tensor.

    All but a rank's own part is put and taken, (n - 1) / n of a copy each; of its own part a rank
    reads all n versions and writes the sum twice, to where it belongs and to where others see it.
    """
    return 2 * (n - 1) / n + (1 + 2 / n) / 2


def judge(what, ratio, bound):
    """Print a ratio beside its bound; return whether it holds."""
    holds = ratio <= bound
    print(f"{what:>34} {ratio:6.2f}  {bound:.2f} {'holds' if holds else 'FAILS'}")
    return holds


def main(repeats=15):
    """Measure, print the tables; return 1 if a ratio is above its bound, else 0."""
    print(f"{RANKS} ranks, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    with Ranks(RANKS, backend="gloo", device="cpu", timeout=60) as ranks:
        ranks.run(prepare)
        first = _measured(ranks, max(1, repeats // 5))
        times = {way: [first[nbytes][way] for nbytes in SIZES] for way in OWN}
        table = winners(SIZES, times, gain=1.5)
        ranks.run(choose, table)
        seconds = _measured(ranks, repeats)
    print("best:", *(f"from {nbytes:,} bytes on {way}," for nbytes, way in table))
    print(f"\n{'ms':>12}", *(f"{name:>9}" for name in WAYS))
    for nbytes, times in seconds.items():
        print(f"{nbytes:>12,}", *(f"{1e3 * times[name]:9.2f}" for name in WAYS))
    print(f"\n{'of Gloo’s time':>34}  ratio  bound")
    at_32 = seconds[32 * MB]
    held = [judge("ring, 32 MB", at_32["ring"] / at_32["Gloo"], RING)]
    for nbytes, times in seconds.items():
        bound = BEST_AT_32_MB if nbytes == 32 * MB else BEST
        held.append(judge(f"best, {nbytes:,} bytes", times["best"] / times["Gloo"], bound))
    print(f"\n{'of the estimate':>34}  ratio  bound")
    estimate, lower = (traffic_in_copies(RANKS) * at_32[name] for name in ("copy", "one copy"))
    what = f"best, 32 MB, estimate {1e3 * estimate:.2f} ms"
    held.append(judge(what, at_32["best"] / estimate, ESTIMATES))
    print(f"{f'one copy: {1e3 * lower:.2f} ms':>34} {at_32['best'] / lower:6.2f}")
    return int(not all(held))


def _measured(ranks, repeats):
    """Return {nbytes: {what: the median of the slowest rank}}."""
    return {
        nbytes: slowest_medians(ranks.run(measure, nbytes, *_plan(nbytes, repeats)))
        for nbytes in SIZES
    }


def _plan(nbytes, repeats):
    """Return (repeats, calls in a row) for a size: about a second in all."""
    return (3 * repeats, 10) if nbytes < MB else (repeats, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
