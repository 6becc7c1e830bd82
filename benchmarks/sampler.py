"""What sampling costs, and how late a sample can be: ranklab.gpu, ten samples a second.

    python benchmarks/sampler.py [SECONDS]

- cost: CPU time of the sampler's thread, over the time that it ran: a share of one core. With no
  child process and with eight (as many as a DataLoader's workers may be), beside the same readings
  asked of psutil as its manual has it; and of the GPU where NVML finds one.
- gaps: the longest time between two samples while this process is busy in three ways: Python code
  (which hands the global lock over every 5 ms), a matrix product of PyTorch's (which lets it go),
  and the sorting of a long list (which keeps it to its end). A sample is due every 100 ms.

Prints two tables, and exits with 1 where the sampling costs more than half of psutil's readings.
"""

import multiprocessing
import os
import random
import statistics
import sys
import time

import psutil
import torch

from ranklab.gpu import sampled

BOUND = 0.5
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


def plain(seconds):
    """What these readings take of a core where psutil is asked for each, ten times a second."""
    own, began = psutil.Process(), time.thread_time()
    for _ in range(int(10 * seconds)):
        time.sleep(0.1)
        psutil.cpu_percent(percpu=True)
        psutil.virtual_memory()
        own.cpu_percent()
        for child in own.children(recursive=True):
            child.cpu_times()
    return (time.thread_time() - began) / seconds


def costs(seconds, children, of):
    """The sampler's share of a core, and psutil's: the medians of some rounds, in turn."""
    started = [
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
        for _ in range(children)
    ]
    for child in started:
        child.start()
    shares, plainly = [], []
    for _ in range(ROUNDS):
        with sampled(hz=10, of=of) as s:
            time.sleep(seconds)
        shares.append(s.cost)
        plainly.append(plain(seconds))
    for child in started:
        child.kill()
        child.join()
    return statistics.median(shares), statistics.median(plainly)


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
        share, plainly = costs(seconds, children, of)
        ratio = share / plainly
        failed = failed or ratio > BOUND
        verdict = "FAILS" if ratio > BOUND else "holds"
        shares = f"{share:8.2%} of a core, psutil {plainly:.2%}"
        print(f"{name:>20} {shares}   ratio {ratio:.2f}   bound {BOUND} {verdict}")
    print()
    for busy in (wait, spin, multiply, sort):
        print(f"{busy.__name__:>20} longest gap {1000 * gap(busy, seconds):6.0f} ms")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
