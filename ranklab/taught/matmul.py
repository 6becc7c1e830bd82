# Generated from book/01_matmul.md by `make forms`: edit the manuscript, not this file.

"""Matrix multiplication: one product, counted and timed: what chapter 01_matmul teaches."""

import os
import time
from collections import Counter
from typing import ClassVar

import numpy as np


def product(A, B):
    """The product of two n-by-n matrices, given and returned as rows."""
    n = len(A)
    C = [[A[i][0] * B[0][j] for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            total = C[i][j]
            for k in range(1, n):
                total = total + A[i][k] * B[k][j]
            C[i][j] = total
    return C


def by_loops(A, B):
    """The three loops, for arrays."""
    return np.array(product(A.tolist(), B.tolist()))


def best_time(function, *args, repeat=3, clock=time.perf_counter):
    """Seconds for function(*args): the shortest of `repeat` calls.

    One call to warm up comes before them. clock: time.perf_counter, or
    time.process_time for the CPU time, which leaves out other programs.
    """
    function(*args)
    times = []
    for _ in range(repeat):
        start = clock()
        function(*args)
        times.append(clock() - start)
    return min(times)


def cores_are_free():
    """Do others leave the cores to us?

    Not if less than 0.8 of a core was ours for 50 ms just now, or if in the
    last minute twice as many programs as cores had something to do, our own
    among them. False with one core, too, where the system does not count
    programs, as Windows does not, and where RANKLAB_CORES_ARE_SHARED is set:
    whoever starts several programs at once knows better than we can measure.
    """
    counted = (os.cpu_count() or 1) > 1 and hasattr(os, "getloadavg")
    if not counted or "RANKLAB_CORES_ARE_SHARED" in os.environ:
        return False
    start, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() < start + 0.05:
        pass
    ours = (time.thread_time() - used) / 0.05
    return ours > 0.8 and os.getloadavg()[0] < 2 * os.cpu_count()


class Counted:
    """A number that counts the operations on it in `Counted.tally`.

    Products count as "mul", sums and differences as "add".
    """

    tally: ClassVar = Counter()  # one for all numbers

    def __init__(self, value):
        self.value = value

    def _record(self, kind, value, *operands):  # a later section needs these
        Counted.tally[kind] += 1
        return Counted(value)

    def __mul__(self, other):
        return self._record("mul", self.value * other.value, self, other)

    def __add__(self, other):
        return self._record("add", self.value + other.value, self, other)

    def __sub__(self, other):
        return self._record("add", self.value - other.value, self, other)


def count(multiply, A, B, number=Counted):
    """Run multiply(A, B) on counting numbers.

    A, B: n-by-n matrices, as arrays or lists of rows. number: the class
    that counts. Returns the entries as plain numbers (a list of rows), and
    the tally (a Counter).
    """
    A, B = (np.array([[number(x) for x in row] for row in M]) for M in (A, B))
    Counted.tally.clear()
    C = multiply(A, B)
    plain = [[entry.value for entry in row] for row in C]
    return plain, Counter(Counted.tally)


def reordered(A, B):
    """The three loops in the order i, k, j: the innermost runs along rows."""
    n = len(A)
    C = [[0.0] * n for _ in range(n)]
    for i in range(n):
        row = C[i]
        for k in range(n):
            a, row_of_B = A[i][k], B[k]
            for j in range(n):
                row[j] += a * row_of_B[j]
    return C


def by_rows(A, B):
    """The same order, with the innermost loop inside NumPy."""
    C = np.zeros_like(A)
    for i in range(len(A)):
        for k in range(len(A)):
            C[i] += A[i, k] * B[k]
    return C


def by_blocks(A, B, b=64):
    """The product cut into b-by-b blocks, a call for each product of two."""
    C = np.zeros_like(A)
    for i in range(0, len(A), b):
        for j in range(0, len(A), b):
            for k in range(0, len(A), b):
                block_of_A = A[i : i + b, k : k + b]
                block_of_B = B[k : k + b, j : j + b]
                C[i : i + b, j : j + b] += block_of_A @ block_of_B
    return C


def roofline(intensity, peak, bandwidth):
    """The most operations a second, at so many operations for each byte."""
    return np.minimum(peak, intensity * bandwidth)


def strassen(A, B, leaf, multiply):
    """The product of two n-by-n arrays by Strassen's recursion (1969).

    n: leaf times a power of two. leaf: blocks of this size go to
    multiply(A, B).
    """
    if len(A) <= leaf:
        return multiply(A, B)
    h = len(A) // 2
    a, b, c, d = A[:h, :h], A[:h, h:], A[h:, :h], A[h:, h:]
    e, f, g, k = B[:h, :h], B[:h, h:], B[h:, :h], B[h:, h:]
    pairs = [(a + d, e + k), (c + d, e), (a, f - k), (d, g - e)]
    pairs += [(a + b, k), (c - a, e + f), (b - d, g + k)]
    p, q, r, s, t, u, v = (strassen(x, y, leaf, multiply) for x, y in pairs)
    return np.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])
