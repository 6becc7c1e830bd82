"""The ladder of chapter 01 and the reader's own blocked product, beside three Python loops.

    python benchmarks/matmul.py [FILE]

FILE: where `blocked_product` stands, such as scripts/exercises/01_blocked_product.py once it is
solved; without one it is the solution in the manuscript. Its small products are NumPy's.

Side by side in one run: every rung multiplies the same two float64 matrices, in rounds, one rung
after the other. The fastest product counts, for whatever else the machine does can only make one
slower. NumPy computes on one thread, as the loops do, unless the name says "all cores". The peak is
the largest rate that any product of this run reached on one thread.

Prints a table, and exits with 1 where a product is wrong or a ratio is below its bound.
"""

import os
import runpy
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from ranklab.taught.matmul import by_blocks, by_loops, by_rows, reordered, strassen

SMALL, LARGE = 256, 1024  # rows
QUICK = 1  # GFLOP/s; what is slower is measured on the small matrices alone
BLOCK = 64
ROUNDS = 3
TURN = 0.2  # seconds of a rung in each round, or one product if that takes longer
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
LOOPS, OWN, BLAS = "three loops", "your blocks", "BLAS"
BOUNDS = {OWN: 100.0}  # times the three loops, same matrices


def own_blocked_product(file=None):
    """Return `blocked_product` from a file, or the manuscript's solution."""
    if file is not None:
        found = runpy.run_path(file).get("blocked_product")
        if found is None:
            raise SystemExit(f"{file} has no function called blocked_product.")
        return found
    from bookmaker.folders import HERE
    from bookmaker.manuscript import exercises, manuscript

    chapter = next(path for path in HERE.chapters() if path.stem == "01_matmul")
    there = {}
    exec(exercises.solutions(manuscript.read(chapter))["blocked_product"], there)
    return there["blocked_product"]


def rungs(own):
    """Return {name: multiply(A, B)}, slowest first."""
    return {
        LOOPS: by_loops,
        "loops reordered": lambda A, B: np.array(reordered(A.tolist(), B.tolist())),
        "NumPy rows": by_rows,
        "NumPy blocks": lambda A, B: by_blocks(A, B, BLOCK),
        OWN: lambda A, B: own(A, B, BLOCK, np.matmul),
        "Strassen, one level": lambda A, B: strassen(A, B, len(A) // 2, np.matmul),
        BLAS: np.matmul,
        "BLAS, all cores": on_all_cores,
    }


def on_all_cores(A, B):
    """The product by BLAS, with a thread on every core."""
    with threadpool_limits(CORES, user_api="blas"):
        return A @ B


def measure(ladder, n):
    """Return {name: GFLOP/s} of all rungs, for n-by-n matrices."""
    A, B = np.random.default_rng(n).random((2, n, n))
    right = A @ B
    seconds = {name: [] for name in ladder}
    for _ in range(ROUNDS):
        for name in seconds:
            try:
                C = take_turn(ladder[name], A, B, seconds[name])
            except NotImplementedError:
                raise SystemExit(f"{name}: there is no answer yet, it is the stub still.") from None
            if not np.allclose(C, right):
                raise SystemExit(f"{name}: the product of two {n}×{n} matrices is wrong.")
    return {name: 2 * n**3 / min(times) / 1e9 for name, times in seconds.items()}


def take_turn(multiply, A, B, seconds):
    """Multiply until the turn is over; append what each product took, return the last one."""
    end = time.perf_counter() + TURN
    while (began := time.perf_counter()) < end:
        C = multiply(A, B)
        seconds.append(time.perf_counter() - began)
    return C


def verdict(name, ratio):
    """Return what stands in the last column for a rung, and whether it holds."""
    if name not in BOUNDS:
        return "", True
    holds = ratio >= BOUNDS[name]
    return f"{BOUNDS[name]:5.0f}  {'holds' if holds else 'FAILS'}", holds


def main(file=None):
    """Measure, print the table; return 1 if a ratio is below its bound, else 0."""
    print(f"{CORES} cores, load before {os.getloadavg()[0]:.1f}; blocks of {BLOCK}")
    ladder = rungs(own_blocked_product(file))
    with threadpool_limits(1, user_api="blas"):
        small = measure(ladder, SMALL)
        quick = {name: ladder[name] for name, rate in small.items() if rate > QUICK}
        large = measure(quick, LARGE)
    on_one_thread = [
        rates[name] for rates in (small, large) for name in rates if "cores" not in name
    ]
    peak = max(on_one_thread)
    print(
        f"\n{'GFLOP/s, float64':>20} {f'n={SMALL}':>9} {f'n={LARGE}':>9} {'of peak':>9}"
        f" {f'× loops, n={SMALL}':>16}  bound"
    )
    failed = False
    for name, rate in small.items():
        best, ratio = max(rate, large.get(name, 0)), rate / small[LOOPS]
        said, holds = verdict(name, ratio)
        failed = failed or not holds
        at_large = f"{large[name]:9.2f}" if name in large else f"{'':9}"
        print(f"{name:>20} {rate:9.3f} {at_large} {best / peak:9.2%} {ratio:16.1f}  {said}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
