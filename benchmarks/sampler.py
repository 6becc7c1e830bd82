"""What sampling costs, and how late a sample can be: ranklab.gpu, ten samples a second.

    python benchmarks/sampler.py [SECONDS]

- cost: CPU time of the sampler's thread, over the time that it ran: a share of one core. With no
  child process and with eight (as many as a DataLoader's workers may be), and of the GPU where
  NVML finds one.
- gaps: the longest time between two samples while this process is busy in three ways: Python code
  (which hands the global lock over every 5 ms), a matrix product of PyTorch's (which lets it go),
  and the sorting of a long list (which keeps it to its end). A sample is due every 100 ms.

Prints two tables, and exits with 1 where the sampling takes more than a hundredth of a core.
"""

import multiprocessing
import os
import random
import statistics
import sys
import time

import torch

from ranklab.gpu import sampled

BOUND = 0.01
ROUNDS = 3


def wait(seconds):
    time.sleep(seconds)


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def multiply(seconds):
    a, end = torch.rand(1500, 1500), time.perf_counter() + seconds
    while time.perf_counter() < end:
        a @ a


def sort(seconds):
    numbers = [random.random() for _ in range(1_000_000)]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sorted(numbers)


def cost(seconds, children, of):
    """The sampler's share of a core, the median of some rounds."""
    started = [
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
        for _ in range(children)
    ]
    for child in started:
        child.start()
    shares = []
    for _ in range(ROUNDS):
        with sampled(hz=10, of=of) as s:
            time.sleep(seconds)
        shares.append(s.cost)
    for child in started:
        child.kill()
        child.join()
    return statistics.median(shares)


def gap(busy, seconds):
    with sampled(hz=10, of="cpu") as s:
        busy(seconds)
    return s.gap_s


def main(seconds=5.0):
    """Measure and print; return 1 if the sampling costs too much, else 0."""
    print(f"10 samples a second, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}\n")
    cases = [("CPU, no child", 0, "cpu"), ("CPU, 8 children", 8, "cpu")]
    try:
        with sampled(of="gpu") as s:
            cases.append((s.about["card"], 0, "gpu"))
    except RuntimeError as error:
        print(f"The GPU's column is missing: {error}\n")
    failed = False
    for name, children, of in cases:
        share = cost(seconds, children, of)
        failed = failed or share > BOUND
        verdict = "FAILS" if share > BOUND else "holds"
        print(f"{name:>20} {share:8.2%} of a core   bound {BOUND:.0%} {verdict}")
    print()
    for busy in (wait, spin, multiply, sort):
        print(f"{busy.__name__:>20} longest gap {1000 * gap(busy, seconds):6.0f} ms")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
