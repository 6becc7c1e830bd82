# Chapter 1 of Many Ranks, One Model, as one script. Generated from book/01_matmul.md.
#
# Run it on 2 ranks, or on another number of them, in one of these ways:
#     python 01_matmul.py
#     torchrun --standalone --nproc-per-node 2 01_matmul.py
#     torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 01_matmul.py
#     mpiexec -n 2 python 01_matmul.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install big-O matplotlib numpy threadpoolctl torch vl-convert-python  (for mpiexec also: mpich mpi4py)

import html
import io
import itertools
import json
import math
import os
import re
import socket
import sys
import time
from collections import Counter
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import big_o
import matplotlib
import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits


def start_ranks():
    """Started by hand: let torchrun start this file once for each rank."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    n = os.environ.get("RANKLAB_RANKS", "2")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share the processor
    try:
        torchrun(["--standalone", "--nproc-per-node", n, *sys.argv])
    except ChildFailedError:  # the rank itself has said why
        sys.exit(1)
    sys.exit()


def ask_mpi():
    """Started by mpiexec: note in the environment what torchrun would have noted there."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    host = world.Split_type(MPI.COMM_TYPE_SHARED)
    with socket.socket() as free:
        free.bind(("", 0))
        name = "127.0.0.1" if host.size == world.size else socket.gethostname()
        address, port = world.bcast((name, free.getsockname()[1]))
    told = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": host.rank}
    told |= {"LOCAL_WORLD_SIZE": host.size, "MASTER_ADDR": address, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})


def choose_device(local_rank, local_size, gpus, device=None, backend=None):
    """Return the name of a rank's device, and the backend that fits.

    The rank is one of local_size on its host, where torch can use so many gpus. Asked for no
    device, it is RANKLAB_DEVICE; else a GPU, where there is one, and NCCL, if each rank has its
    own. What cannot be is a ValueError, in one sentence.
    """
    wanted = device or os.environ.get("RANKLAB_DEVICE") or ("cuda" if gpus else "cpu")
    said = f"device={device!r}" if device else f"RANKLAB_DEVICE={wanted}"
    name, _, index = wanted.partition(":")
    if name not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"{said} is not known. There are: 'cpu' and 'cuda'.")
    if name == "cpu":
        return "cpu", backend or "gloo"
    if int(index or 0) >= gpus:
        found = f"{gpus} GPU(s) here, counted from 0" if gpus else "no GPU here: take 'cpu'"
        raise ValueError(f"{said}: torch finds {found}.")
    alone = local_size == 1 or (gpus >= local_size and not index)
    return f"cuda:{index or local_rank % gpus}", backend or ("nccl" if alone else "gloo")


def choose_together():
    """This rank's device, and the backend: NCCL only if every rank of every host says so."""
    mine = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        name, fits = choose_device(*mine, torch.cuda.device_count())
    except ValueError as error:
        name, fits = "cpu", f"{error}"
    store.set(f"backend of rank {rank}", fits)
    said = [store.get(f"backend of rank {r}").decode() for r in range(world_size)]
    if wrong := [words for words in said if " " in words]:  # one says it, all end
        sys.exit(wrong[0] if rank == 0 else 0)
    fits = "gloo" if "gloo" in said else fits
    return torch.device(name), "cpu:gloo,cuda:nccl" if fits == "nccl" else fits


def form_groups():
    """Form the process group, and a second one that moves values to and from rank 0.

    The second one is patient: rank 0 may compute alone for long.
    """
    global driver
    number = store.add(f"groups of rank {rank}", 1)
    own = dist.PrefixStore(f"group {number}", store)
    own.set(f"rank {rank}", "here")  # no clock runs before all ranks are here
    own.wait([f"rank {r}" for r in range(world_size)], timedelta(minutes=30))
    limit = timedelta(seconds=20)
    defaults = dist.distributed_c10d  # what dist.new_group() goes by, if not told otherwise
    defaults.default_pg_timeout = limit
    if defaults.default_pg_nccl_timeout is not None:  # there is NCCL in this build of torch
        defaults.default_pg_nccl_timeout = limit
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=limit)
    driver = dist.new_group(backend="gloo", timeout=timedelta(hours=1))


if not os.environ.keys() & {"RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}:
    start_ranks()
if "RANK" not in os.environ:
    ask_mpi()


if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"] and sys.platform != "win32":
    # All ranks are on this machine: no message needs to leave it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = next(dist.rendezvous("env://"))[0]
device, backend = choose_together()
if device.type == "cuda":
    torch.cuda.set_device(device)
    torch.set_default_device(device if rank else None)  # rank 0 begins as the kernel
form_groups()


playing = "kernel"
APART = ["A", "B"]  # the kernel and the ranks have one each
held_by = {"ranks": {}}


def play(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
        if device.type == "cuda":
            torch.set_default_device(device if part == "ranks" else None)
    return before


# === Matrix multiplication: one product, counted and timed ============================

# What does one matrix product cost, how much of it can be done at the same time, and
# how much of your machine does it really use?
#
# 35 minutes to read, 13 predictions · 20 seconds to run · stands on no other chapter
#
# Training a neural network is, for the most part, multiplying matrices. Before we
# spread that over many processors, we need to know three things about one product: how
# many operations it takes, which of them wait for which, and how fast one machine can
# do them. At the end of this chapter you can count the operations of an algorithm by
# running it. You can say how far a program is from what its machine can do, on a laptop
# or on an H100, a GPU of data centers. And you can predict what more processes will
# bring.

if rank == 0:
    rng = np.random.default_rng(0)

# --- The same product, twice ----------------------------------------------------------

# Row $i$ of $A$ times column $j$ of $B$ gives the entry $C_{ij} = \sum_k A_{ik}
# B_{kj}$. Written down as it stands, that is three loops. The comment `#@save` says
# that later code imports what the cell defines.


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


# NumPy's `@` computes the same, by a BLAS: a tuned library of Basic Linear Algebra
# Subprograms [dongarra1990]. PyTorch's `@` calls one too: most often Intel's MKL on an
# x86 processor, and cuBLAS on an NVIDIA GPU.
#
# Let the loops and NumPy multiply the same matrices, on one thread. Of several calls
# the shortest counts, since whatever else a machine does can only make a call longer.


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


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# Predict: How many times faster is the library for 128 × 128 matrices: 10, 100, or
# 1000? And how much longer does each of the two take when $n$ doubles?


def cpu_seconds(multiply, n, repeat=3):
    """CPU time of multiply(A, B) on random n-by-n arrays."""
    A, B = rng.random((2, n, n))
    return best_time(multiply, A, B, repeat=repeat, clock=time.process_time)


if rank == 0:
    print("\n## The same product, twice\n")
    loops_n, blas_n = [16, 32, 64, 128], [128, 256, 512, 1024]
    with threadpool_limits(1, user_api="blas"):  # one thread, like the loops
        loops_seconds = [cpu_seconds(by_loops, n) for n in loops_n]
        blas_seconds = [cpu_seconds(np.matmul, n) for n in blas_n]

    result("loops_over_blas", loops_seconds[-1] / blas_seconds[0], varies=True)
    # n doubles three times: the geometric mean of what that does.
    loops_doubled, blas_doubled = (
        (s[-1] / s[0]) ** (1 / 3) for s in (loops_seconds, blas_seconds)
    )
    result("loops_doubled", loops_doubled, varies=True)
    result("blas_doubled", blas_doubled, varies=True)

SCRIPT = Path(__file__)
pictures = []


def file_beside(name):
    """The path of an SVG file beside this script, for a picture of this name."""
    name = first = re.sub(r"[^\w.-]+", "-", str(name))
    number = 1
    while name in pictures:
        number += 1
        name = f"{first}-{number}"
    pictures.append(name)
    path = SCRIPT.with_name(f"{SCRIPT.stem}-{name}.svg")
    print(f"saved beside this script: {path.name}")
    return path


# From ranklab.plots:

# Rank r has the same color in every figure. Okabe and Ito's palette, which stays distinct
# for color-blind readers, with its yellow and black replaced by colors seen on white.
RANK_COLORS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C510A",
    "#595959",
]

# For matplotlib.rcParams. The size is chosen for a phone: 5.2 inches of figure on 350
# pixels leave 11 point type readable.
STYLE = {
    "axes.prop_cycle": f"cycler('color', {RANK_COLORS})",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "figure.figsize": (5.2, 3.2),
    "font.size": 11,
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "savefig.facecolor": "white",
    "svg.hashsalt": "ranklab",
}

plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    fig, ax = plt.subplots(num="two-ways")
    ax.loglog(loops_n, loops_seconds, "o-", color="C1")
    ax.loglog(blas_n, blas_seconds, "o-", color="C0")
    ax.text(18, loops_seconds[2], "three loops", color="C1")
    ax.text(700, blas_seconds[2] / 2, "BLAS", color="C0")
    ends = loops_seconds[-1], blas_seconds[0]
    ax.annotate("", (128, ends[1]), (128, ends[0]),
                arrowprops={"arrowstyle": "<->"})
    middle = (ends[0] * ends[1]) ** 0.5
    ax.text(140, middle, f"{ends[0] / ends[1]:,.0f} times", va="center")
    ax.set_xticks([16, 64, 128, 256, 1024], ["16", "64", "128", "256", "1024"])
    ax.minorticks_off()
    ax.set(xlabel="n (rows of a matrix)", ylabel="CPU time (s)")
    ax.set_title("far apart, and growing alike", fontsize=11)
    save_figures()

if rank == 0:
    A, B = rng.integers(-9, 10, (2, 32, 32))
    assert np.array_equal(by_loops(A, B), A @ B)
    if cores_are_free():
        assert loops_seconds[-1] > 50 * blas_seconds[0]
        assert 5 < loops_doubled < 12
        assert 5 < blas_doubled < 12

# At 128 rows the library is (loops_over_blas) times as fast. Yet the lines are nearly
# parallel. Each time $n$ doubles, the loops take (loops_doubled) times as long in the
# mean and the library (blas_doubled) times, around $2^3 = 8$. In the notebook such a
# sentence has names in place of numbers; their values stand below the cells.
#
# That leaves three questions, and this chapter takes them in turn. Where does the eight
# come from? Where does the factor come from? And can several processors share the work?

# --- Count it by running it -----------------------------------------------------------

# How many operations does a product take? We need not read the code to find out. Python
# lets us replace the numbers by numbers that keep a tally.


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


# Predict: Each of the nine entries of a 3 × 3 product is a sum of three products. How
# many multiplications will the tally hold, and how many additions?

if rank == 0:
    print("\n## Count it by running it\n")
    A = [[2, 7, 3], [1, 5, 8], [0, 4, 1]]
    B = [[3, 0, 1], [2, 1, 0], [1, 2, 4]]
    entries, tally = count(product, A, B)
    result("multiplications", tally["mul"])
    result("additions", tally["add"])

if rank == 0:
    assert entries == [[23, 13, 14], [21, 21, 33], [9, 6, 4]]
    assert tally["mul"] == 27 and tally["add"] == 18
    for n in range(1, 11):
        _, tally = count(product, np.ones((n, n)), np.ones((n, n)))
        assert tally["mul"] == n**3
        assert tally["add"] == n**2 * (n - 1)

# A sum of three products has two plus signs. So there are nine times three
# multiplications and nine times two additions: (multiplications) and (additions). For
# any $n$, each of the $n^2$ entries takes $n$ multiplications and $n-1$ additions. That
# makes $n^3$ and $n^2(n-1)$.
#
# The field counts more coarsely. A flop is one floating-point operation, and a product
# of two $n \times n$ matrices is said to take $2n^3$ of them. That is what the hardware
# does: its fused multiply-add computes $c + ab$ in one go, $n$ times for an entry, and
# the first one adds to zero. We use $2n^3$ from here on.

# --- How it grows ---------------------------------------------------------------------

# Big-O notation says how a cost grows, without constant factors: $2n^3 - n^2$
# operations are $O(n^3)$. The package `big_o` [bigo] goes the other way. Given costs
# for several $n$, it fits classes of growth, from constant through linearithmic ($n
# \log n$) to exponential, and names the best. We ask it twice: for exact counts, and
# for the CPU time of the loops. Both come from products of matrices with $n$ rows.
#
# Predict: Which class does it find in the counts? And in the seconds, which are not
# exact: the same one, and if so, clearly or just before the next?

if rank == 0:
    print("\n## How it grows\n")
    few, sizes = np.arange(2, 21, 2), np.arange(8, 73, 8)
    counts = [
        count(product, np.ones((n, n)), np.ones((n, n)))[1]["mul"] for n in few
    ]
    rounds = np.array(
        [[cpu_seconds(by_loops, n, repeat=1) for n in sizes] for _ in range(15)]
    )
    shares = rounds / rounds.sum(axis=1, keepdims=True)

    best, _ = big_o.infer_big_o_class(few, np.array(counts))
    result("class_of_counts", type(best).__name__)
    _, fitted = big_o.infer_big_o_class(sizes, np.median(shares, axis=0))

# A core may run faster in one round than in the next, so we take each time as a share
# of its round, and the median of the shares. What a class leaves unexplained is its
# residual: the sum of the squared distances between the fit and the measurement. We
# divide by the residual of a flat line, so 1 means "no better than saying that nothing
# changes". `Polynomial` fits $a\,n^b$ with a free exponent $b$. It contains the cubic,
# so for the runner-up we set it aside.


def unexplained(fitted):
    """The residual of each class, as a share of the flat line's."""
    residual = {type(c).__name__: float(r) for c, r in fitted.items()}
    return {name: r / residual["Constant"] for name, r in residual.items()}


if rank == 0:
    growing = unexplained(fitted)
    fixed = {name: growing[name] for name in growing if name != "Polynomial"}
    first, second = sorted(fixed, key=fixed.get)[:2]
    result("least_unexplained", first, varies=True)
    result("second_over_first", fixed[second] / fixed[first], varies=True)

if rank == 0:
    names = sorted(growing, key=growing.get, reverse=True)
    colors = ["C0" if name in ("Cubic", "Polynomial") else "C7" for name in names]
    fig, ax = plt.subplots(num="residuals")
    ax.scatter([growing[name] for name in names], names, color=colors, zorder=2)
    ax.axvline(1, color="black", linewidth=1, linestyle="--")
    ax.set_title("the farther left, the better the class fits", fontsize=11)
    ax.text(0.8, "Cubic", "flat line", ha="right", va="center")
    ax.set(xscale="log", xlabel="residual, as a share of the flat line's")
    save_figures()

if rank == 0:
    assert type(best).__name__ == "Cubic"
    polynomial = next(c for c in fitted if type(c).__name__ == "Polynomial")
    exponent = polynomial.coefficients()[1]
    if cores_are_free():
        assert first == "Cubic" and fixed[second] > 2 * fixed[first]
        assert 2.5 < exponent < 3.3
    result("fitted_exponent", exponent, varies=True)

# Counts and seconds say `Cubic`, and clearly: in the seconds the next class,
# `Polynomial` aside, leaves (second_over_first) times as much unexplained. `Polynomial`
# found the exponent (fitted_exponent). It can leave more unexplained than `Cubic`,
# though it contains it: it is fitted to the logarithms, and has no constant term for
# what every call costs.

# --- Cubic is not exponential ---------------------------------------------------------

# "It grows exponentially" is said of anything that grows fast. It has a meaning: $n$ in
# the exponent. Cubic growth is polynomial, and the difference is not one of degree.
#
# Predict: A product takes one second. You double $n$. How long does it take if the cost
# is $n^3$? And if it were $2^n$, starting from $n = 50$?

if rank == 0:
    n = 50
    cubic, exponential = (2 * n) ** 3 // n**3, 2 ** (2 * n) // 2**n
    result("seconds_if_cubic", cubic)
    million_years = exponential / (365 * 24 * 3600) / 1e6
    result("million_years_if_exponential", round(million_years))

# With $n^3$ it takes (seconds_if_cubic) seconds. With $2^n$ it takes
# (million_years_if_exponential) million years. Mind also what $n$ is: the number of
# rows. A matrix has $N = n^2$ elements, and as a function of $N$ the cost grows like
# $N^{3/2}$.

# --- Extra: a fit finds growth where there is none ------------------------------------

# An experiment can look exactly like the one above and measure nothing. Here is one. It
# asks for the class of a matrix product and gets an answer.


def product_5x5(data):
    """The first 25 numbers as a matrix, times the next 25 as a matrix."""
    X, Y = np.reshape(data[:25], (5, 5)), np.reshape(data[25:], (5, 5))
    Z = np.zeros_like(X)
    for i in range(5):
        for j in range(5):
            for k in range(5):
                Z[i][j] += X[i][k] * Y[k][j]
    return Z


def numbers(n):
    """Random integers for product_5x5."""
    return big_o.datagen.integers(50, 0, 10)


# Predict: `big_o` will run this for "n" from 100 to 100 000. Which class will it
# report? Read the last function again before you answer. We ask five times.

if rank == 0:
    print("\n## Extra: a fit finds growth where there is none\n")
    fits = []
    for _ in range(5):
        ns, times = big_o.measure_execution_time(
            product_5x5, numbers, n_repeats=100
        )
        fits.append(big_o.infer_big_o_class(ns, times, simplicity_bias=0))
    found = [type(best).__name__ for best, _ in fits]
    result("found_in_noise", found, varies=True)

# The generator ignores its `n`. Every call multiplies two 5 × 5 matrices, so the true
# class is `Constant`. The answers in this run are (found_in_noise).

if rank == 0:
    assert len(numbers(100)) == len(numbers(100_000)) == 50
    shares = [unexplained(fitted) for _, fitted in fits]
    assert all(share["Linear"] <= share["Constant"] for share in shares)
    smallest = [min(share.values()) for share in shares]
    assert np.median(smallest) > 2 * growing["Cubic"] or not cores_are_free()
    result("noise_unexplained", float(np.median(smallest)), varies=True)
    result("growth_unexplained", growing["Cubic"], varies=True)

# A line has a slope to adjust and a flat line has not. On ten points of noise some
# slope fits a little better than none, and the same holds for $\log n$, $n^2$ and
# $n^3$. The best of them wins, and the verdict is a lottery. The residuals give it
# away: in noise the winner leaves a share of (noise_unexplained) unexplained, in the
# median; above, with inputs that grow, `Cubic` left (growth_unexplained). Before you
# believe a fit, ask what the flat line would have said.

# --- What waits for what --------------------------------------------------------------

# The product of 3 × 3 matrices takes 27 + 18 operations. Does it take as many steps?
# Only if we do them one after another. Suppose there were as many workers as we like,
# each doing one operation in a step. An operation can be done as soon as both its
# operands are there. Then each number has an earliest step, and our counting number can
# carry it along.


class Stepped(Counted):
    """A counted number that knows the earliest step at which it is there.

    step: 0 for an input; for a result, one more than its later operand.
    The tally is by kind and step.
    """

    def __init__(self, value, step=0):
        super().__init__(value)
        self.step = step

    def _record(self, kind, value, *operands):
        step = 1 + max(operand.step for operand in operands)
        Counted.tally[kind, step] += 1
        return Stepped(value, step)


# Predict: It is often said that the multiplications and additions of a matrix product
# are all independent. If so, two steps would do: all multiplications, then all
# additions. How many steps do the three loops need for 16 × 16?


def profile(multiply, n):
    """How many operations become ready at each step: a Counter."""
    ones = np.ones((n, n))
    _, tally = count(multiply, ones, ones, number=Stepped)
    steps = Counter()
    for (_, step), times in tally.items():
        steps[step] += times
    return steps


if rank == 0:
    print("\n## What waits for what\n")
    in_a_row = profile(product, 16)
    result("ready_at_step_1", in_a_row[1])
    result("steps_in_a_row", max(in_a_row))

# The multiplications are indeed independent of each other: all (ready_at_step_1) are
# ready at step 1. The additions are not. `total = total + …` needs the total before it.
# Entries do not wait for each other, but within an entry the additions form a chain:
# one step for the products, then one for each addition. So the product takes
# (steps_in_a_row) steps.
#
# The sum itself does not ask for a chain. Addition is associative, in floating point
# nearly so. We may add in pairs, then pairs of pairs.


def tree_sum(terms):
    """The sum of a list, added in pairs, then pairs of pairs."""
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2])]
        terms = pairs + terms[2 * len(pairs) :]  # an odd one out waits
    return terms[0]


def product_by_trees(A, B):
    """The product of two n-by-n matrices, each entry summed as a tree."""
    columns = list(zip(*B))
    return [
        [tree_sum([a * b for a, b in zip(row, column)]) for column in columns]
        for row in A
    ]


if rank == 0:
    as_trees = profile(product_by_trees, 16)
    result("steps_as_trees", max(as_trees))
    result("operations_16", as_trees.total())

if rank == 0:
    fig, ax = plt.subplots(num="profile")
    for shift, steps, color, label in (
        (-0.2, in_a_row, "C1", f"sums in a row: {max(in_a_row)} steps"),
        (0.2, as_trees, "C0", f"sums as trees: {max(as_trees)} steps"),
    ):
        at = [s + shift for s in steps]
        ax.bar(at, steps.values(), width=0.4, color=color, label=label)
    ax.set(xlabel="step", ylabel="operations ready", xticks=range(1, 17))
    ax.legend()
    save_figures()

if rank == 0:
    assert in_a_row[1] == 16**3
    assert all(in_a_row[step] == 16**2 for step in range(2, 17))
    assert as_trees.total() == in_a_row.total() == 16**3 + 16**2 * 15
    for n in range(1, 13):
        assert max(profile(product, n)) == n
        assert max(profile(product_by_trees, n)) == 1 + math.ceil(math.log2(n))

# The trees need (steps_as_trees) steps. The figure is a parallelism profile: how many
# workers could be busy at each step. Both ways do the same (operations_16) operations,
# so the bars of each color add up to the same.
#
# Two numbers sum a profile up:
# - the work: the number of operations, here $n^3 + n^2(n-1)$;
# - the span: the number of steps with as many workers as you like, $n$ for the loops
#   and $1 + \lceil \log_2 n \rceil$ for the trees.
#
# With $p$ workers, each taking what is ready, the number of steps $T_p$ is caught
# between them [brent1974]:
#
# $$\max\left(\frac{\text{work}}{p},\ \text{span}\right) \;\le\; T_p \;\le\; \frac{\text{work}}{p} + \text{span}.$$

if rank == 0:
    n = 4096
    work, span = n**3 + n**2 * (n - 1), 1 + math.ceil(math.log2(n))
    result("span_4096", span)
    result("parallelism_4096", f"{work / span:.1e}")

# For 4096 × 4096, work divided by span is (parallelism_4096): that many workers could
# be kept busy on average. No machine has so many. A large matrix product never lacks
# work that can be done at once. What it can lack, as we see next, is operands that
# arrive in time.

# --- The ladder -----------------------------------------------------------------------

# One product, many ways of doing it. Each is measured in GFLOP/s: $2n^3$ operations
# divided by the time, in billions. Numbers are float64, which is what a Python `float`
# is, unless a rung says otherwise. The slow ways get smaller matrices, or we would
# wait. Most are timed in CPU time, as above. Where several threads run, or a GPU, only
# the clock on the wall will do. So BLAS on one thread is timed by both, and has two
# rungs.


def gflops(multiply, n, dtype=np.float64, clock=time.process_time):
    """Rate of multiply(A, B) on random n-by-n arrays, in GFLOP/s."""
    A, B = rng.random((2, n, n)).astype(dtype)
    return 2 * n**3 / best_time(multiply, A, B, repeat=5, clock=clock) / 1e9


if rank == 0:
    print("\n## The ladder\n")
    rate = {"three loops": gflops(by_loops, 64)}

# How much does the order matter in which numbers are read from memory? Take two sums.
# One reads all numbers of an array, the other every sixteenth.
#
# Predict: One addition for each number. How many times longer does a number take in the
# sum with gaps? And does the time of the three loops change as much if their order is
# changed?


def per_number(numbers):
    """CPU seconds of a sum, for each number in it."""
    clock = time.process_time
    return best_time(np.sum, numbers, repeat=10, clock=clock) / len(numbers)


if rank == 0:
    large, small = np.ones(1 << 24), np.ones(1 << 16)  # 128 MiB and 512 KiB
    neighbors, gaps = per_number(large), per_number(large[::16])
    in_cache = per_number(small[::16])
    result("gaps_over_neighbors", gaps / neighbors, varies=True)
    result("gaps_far_over_near", gaps / in_cache, varies=True)

# A number with gaps takes (gaps_over_neighbors) times as long. How much of that is
# memory? Beside each core there is a small fast memory, the cache. The same code with
# the same gaps, on an array that fits into it, is (gaps_far_over_near) times as fast.
# That part of the factor is the wait for memory; what is left of it is not, for it is
# there in the cache as well.
#
# A cache gets memory in lines of mostly 64 bytes, eight numbers, and with gaps only one
# of the eight is used.
#
# The innermost of our three loops runs down a column of `B`, whose entries lie apart.
# Put `k` in the middle, and the innermost loop runs along a row, whose entries are
# neighbors.


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


if rank == 0:
    rate["loops reordered"] = gflops(
        lambda A, B: reordered(A.tolist(), B.tolist()), 64
    )
    gain = rate["loops reordered"] / rate["three loops"]
    result("gain_reordered", gain, varies=True)

# The rate changed by a factor of (gain_reordered). Matrices of 64 rows fit into the
# cache anyway: it is not memory that limits these loops. But Python's interpreter works
# between any two operations. So take it out of the innermost loop: one call of NumPy
# for a whole row, in the same order.


def by_rows(A, B):
    """The same order, with the innermost loop inside NumPy."""
    C = np.zeros_like(A)
    for i in range(len(A)):
        for k in range(len(A)):
            C[i] += A[i, k] * B[k]
    return C


if rank == 0:
    rate["NumPy rows"] = gflops(by_rows, 256)
    gain = rate["NumPy rows"] / rate["loops reordered"]
    result("gain_rows", gain, varies=True)

# That was it: a factor of (gain_rows). A row call does $2n$ operations on about $3n$
# numbers: each number is fetched and used once. A call on blocks of $b \times b$ does
# $2b^3$ operations on $3b^2$ numbers, so each is used about $b$ times while it is in
# the cache.


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


# A BLAS does this inside, blocking for cache: blocks within blocks, one size for each
# level of cache and one for the registers, with the instructions written by hand
# [goto2008]. So the last rungs are `@` on whole matrices: on one thread, on all cores,
# and on all of them with float32, PyTorch's default.
#
# Predict: How many operations does one core do in a single tick of its clock: one, or
# more? And how many times faster than one thread are all cores?

if rank == 0:
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
    wall = time.perf_counter
    with threadpool_limits(1, user_api="blas"):
        rate["NumPy blocks"] = gflops(by_blocks, 512)
        rate["BLAS, one thread"] = core_peak = gflops(np.matmul, 1024)
        rate["one thread, wall"] = gflops(np.matmul, 1024, clock=wall)
    with threadpool_limits(cores, user_api="blas"):
        rate["all cores, wall"] = gflops(np.matmul, 1024, clock=wall)
        rate["float32, wall"] = gflops(
            np.matmul, 1024, dtype=np.float32, clock=wall
        )
    result("blas_over_loops", core_peak / rate["three loops"], varies=True)
    result("core_peak", core_peak, varies=True)
    result("operations_a_tick", core_peak / 7, varies=True)  # under 7 GHz

# If there is a GPU, it gets a rung for float32 and one for bfloat16, a format of 2
# bytes in which most large models are trained. Newer NVIDIA GPUs can multiply float32
# numbers in TF32, a format that keeps 10 bits of a number behind the point, of
# float32's 23. For products, PyTorch does not let them unless asked, by
# `torch.set_float32_matmul_precision("high")` [cudasemantics]. So the rung of float32
# is float32 proper, and there is one for TF32.


def on_gpu(A, B):
    A @ B
    torch.cuda.synchronize()  # the call above returns before it is done


if rank == 0:
    if torch.cuda.is_available():
        for kind in ("float32", "TF32", "bfloat16"):
            dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
            A, B = torch.rand(2, 4096, 4096, device="cuda", dtype=dtype)
            precision = "high" if kind == "TF32" else "highest"
            torch.set_float32_matmul_precision(precision)
            seconds = best_time(on_gpu, A, B)
            rate[f"GPU, {kind}, wall"] = 2 * 4096**3 / seconds / 1e9
        torch.set_float32_matmul_precision("highest")

# From ranklab.plots:


def pale(color, share=0.25):
    """Return `color` mixed with white, as an opaque color: `share` of it is the color.

    Transparent colors and hatching do not go together in an SVG.
    """
    rgb = matplotlib.colors.to_rgb(color)
    return tuple(1 - share * (1 - part) for part in rgb)


if rank == 0:
    fig, ax = plt.subplots(num="ladder")
    kinds = {"loops": "C1", "NumPy": "C2", "BLAS": "C0", "wall": pale("C0", 0.5)}
    colors = [next(kinds[kind] for kind in kinds if kind in way) for way in rate]
    ax.barh(list(rate), rate.values(), color=colors)
    ax.set_title("one product, from loops to all cores", fontsize=11)
    on_white = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    for y, value in enumerate(rate.values()):
        text = f"{value:.3g}"
        ax.text(value * 1.2, y, text, va="center", fontsize=9, bbox=on_white)
    if "GPU, float32, wall" not in rate:
        ax.text(0.012, len(rate), "GPU: none in this machine", va="center", size=9)
        ax.set_ylim(-0.6, len(rate) + 0.6)
    ax.set(xscale="log", xlim=(0.01, 8 * max(rate.values())))
    ax.set_xlabel("GFLOP/s (pale: by the clock on the wall)")
    ticks = [10.0**k for k in range(-2, 6) if 10**k < max(rate.values())]
    ax.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    save_figures()

if rank == 0:
    A, B = rng.integers(-9, 10, (2, 128, 128)).astype(float)
    for multiply in (by_rows, by_blocks, reordered):
        assert np.array_equal(multiply(A, B), A @ B)
    if cores_are_free():
        assert gaps > 1.5 * neighbors and gaps > 1.2 * in_cache
        assert rate["loops reordered"] < 3 * rate["three loops"]
        assert rate["NumPy rows"] > 3 * rate["loops reordered"]
        assert core_peak > 50 * rate["three loops"]
        assert core_peak > 7  # no clock ticks 7 billion times a second
    assert torch.get_float32_matmul_precision() == "highest"
    built = {"MKL": torch.backends.mkl.is_available()}
    built |= {"CUDA": torch.backends.cuda.is_built()}
    built |= {"cuDNN": torch.backends.cudnn.is_available()}
    libraries = [name for name, there in built.items() if there]
    result("libraries_here", libraries or "none of them", varies=True)
    result("cores", cores, varies=True)
    in_float32 = rate["float32, wall"] / rate["all cores, wall"]
    result("float32_gain", in_float32, varies=True)
    more_cores = rate["all cores, wall"] / rate["one thread, wall"]
    result("cores_over_thread", more_cores, varies=True)

try:
    from ranklab.gpu import recorded, sampled
except ImportError:
    recorded = sampled = None
    if rank == 0:
        print("What ranklab.gpu measures is left out, for it is not installed here")

if recorded:
    if rank == 0:
        mine = {}
        for way in (way for way in rate if way.startswith("GPU")):
            with sampled() as mine[way]:  # it knows the card and the driver
                mine[way].about["gflop_per_s"] = round(rate[way])
        stored = recorded("01_matmul-gpu", mine)
        for way, s in stored.items():
            print(f"{way}: {s.about['gflop_per_s']:,} GFLOP/s")
        print(s.notes[-1] if stored else "No rungs of a GPU are recorded yet.")

# On the GPU of the recording, an H100, the same product is about seven times as fast in
# TF32 as in float32, and in bfloat16 twice as fast again.
#
# One thread of BLAS, with 1024 rows, reaches (core_peak) GFLOP/s. That is
# (blas_over_loops) times the rate of the loops with 64. No processor is sold with a
# clock of seven billion ticks a second, so one core did at least (operations_a_tick)
# operations in a tick, on average. That a machine with 64 cores does 64 operations at a
# time is therefore wrong. An instruction works on several numbers at once, which is
# called SIMD; a fused multiply-add counts twice; and a core can begin several
# instructions in a tick. A server core with AVX-512 may have two units that each take 8
# float64 numbers [inteloptimization]. That makes $2 \times 8 \times 2 = 32$ operations
# in a tick, and 64 such cores can do 2048.
#
# Of numbers half as long, an instruction takes twice as many. So float32 can gain a
# factor of two, here (float32_gain).
#
# Now the pale bars, by the clock on the wall. All (cores) cores had (cores_over_thread)
# times the rate of one thread. Two things can keep this number down. Other programs may
# have the cores. And the operating system may count hardware threads: two of them share
# the arithmetic of one core.

# --- The roof -------------------------------------------------------------------------

# Two things can limit a computation: how fast the processor computes, and how fast
# memory delivers. Which one does, depends on the arithmetic intensity $I$, the
# operations done for each byte moved. With a peak $P$ (flop/s) and a memory bandwidth
# $\beta$ (bytes/s), no code can be faster than
#
# $$\min(P,\ I \cdot \beta),$$
#
# and the plot of that is the roofline [williams2009].


def roofline(intensity, peak, bandwidth):
    """The most operations a second, at so many operations for each byte."""
    return np.minimum(peak, intensity * bandwidth)


# For $P$ we take the rate of BLAS on one thread. We measure $\beta$ like the STREAM
# benchmark [mccalpin1995], on one core with large arrays: an addition moves 24 bytes,
# two numbers read and one written; a dot product reads 16. The faster of the two
# counts.


def bytes_per_second(operation, bytes_each, *arrays):
    """Bytes a second of an operation on arrays, by its bytes for an entry."""
    clock = time.process_time
    seconds = best_time(operation, *arrays, repeat=10, clock=clock)
    return bytes_each * len(arrays[0]) / seconds


if rank == 0:
    print("\n## The roof\n")
    play("kernel")
    x, y, z = np.ones((3, 1 << 23))  # 64 MiB each
    with threadpool_limits(1, user_api="blas"):
        added = bytes_per_second(np.add, 24, x, y, z)
        dotted = bytes_per_second(np.dot, 16, x, y)
    bandwidth = max(added, dotted) / 1e9
    ridge = core_peak / bandwidth
    result("bandwidth", bandwidth, varies=True)
    result("ridge", ridge, varies=True)
    save_figures()

# Below (ridge) flops per byte, the ridge point of this core, memory is the limit; above
# it, the processor is.
#
# Now the intensities. Which bytes really cross between memory and cache, Python cannot
# see. So we take those that the code asks for, 8 for each number, as if nothing were
# remembered in between. An intermediate array counts twice, since it is written and
# then read. What "operation" means is what changes up the ladder.
#
# | one operation is | flops | numbers moved | flop/byte |
# | --- | --- | --- | --- |
# | a multiply-add in the loop, the sum kept at hand | 2 | 2 | 2/16 |
# | a multiply-add in the reordered loop | 2 | 3 | 2/24 |
# | `a * row`, then `row += row` | $2n$ | $5n$ | 2/40 |
# | `A_block @ B_block`, then `C_block += …` | $2b^3$ | $6b^2$ | $b/24$ |
# | the whole product in one call | $2n^3$ | $3n^2$ | $n/12$ |
#
# Predict: A matrix times a vector takes $2n^2$ flops and has to read the $n^2$ numbers
# of the matrix, so its intensity is $2/8$, however large $n$ is. It comes from the same
# BLAS as the matrix product. About how many GFLOP/s will it reach? The roofline has an
# answer.

if rank == 0:
    n = 4096
    M, v = np.ones((n, n)), np.ones(n)
    with threadpool_limits(1, user_api="blas"):
        read = bytes_per_second(np.matmul, 8 * n, M, v)  # of the matrix
    vector_rate = 2 / 8 * read / 1e9
    vector_roof = roofline(2 / 8, core_peak, bandwidth)
    result("vector_roof", vector_roof, varies=True)
    result("vector_rate", vector_rate, varies=True)
    save_figures()

if rank == 0:
    intensity = {"three loops": 2 / 16, "loops reordered": 2 / 24}
    intensity |= {"NumPy rows": 2 / 40, "NumPy blocks": 64 / 24}
    intensity |= {"BLAS, one thread": 1024 / 12}
    fig, ax = plt.subplots(num="roofline")
    x_axis = np.geomspace(0.0015, 3000)
    roof = roofline(x_axis, core_peak, bandwidth)
    ax.loglog(x_axis, roof, color="black")
    ax.fill_between(x_axis, roof, 99 * core_peak, color="#ececec", linewidth=0)
    ax.text(0.002, 6 * core_peak, "above the roof: out of reach", va="center")
    ax.text(20, 1.8 * core_peak, "processor", va="center")
    ax.text(0.003, 0.06 * bandwidth, "memory", va="center")
    points = {name: (intensity[name], rate[name]) for name in intensity}
    points["add two arrays"] = (1 / 24, added / 1e9 / 24)
    points["matrix times vector"] = (2 / 8, vector_rate)
    for name, (flop_per_byte, value) in points.items():
        marker, color = ("o", "C0") if name in rate else ("s", "C1")
        ax.loglog(flop_per_byte, value, marker, color=color)
        left = name == "loops reordered"
        side, shift = ("right", -6) if left else ("left", 6)
        style = {"textcoords": "offset points", "ha": side, "va": "top"}
        ax.annotate(
            name, (flop_per_byte, value), (shift, -3), fontsize=9, **style
        )
    ax.set(xlabel="arithmetic intensity (flop/byte)", ylabel="GFLOP/s")
    ax.margins(x=0)
    ax.set_ylim(min(rate.values()) / 4, 15 * core_peak)
    save_figures()

if rank == 0:
    if cores_are_free():
        assert vector_roof / 3 < vector_rate < 1.5 * vector_roof
        assert vector_rate < core_peak / 2
        assert rate["three loops"] < min(core_peak, 2 / 16 * bandwidth) / 10
    assert 1024 / 12 > ridge > 2 / 8
    save_figures()

# From ranklab.playable:

VEGA_LITE = "5.20"  # what draws it: a script's picture, and the pages' (bookmaker/site/stage.py)

MOST = 20_000  # rows: a page with more is slow to load

# Names of Vega's own signals: a control cannot have one of these.
_TAKEN = {"width", "height", "padding", "autosize", "background", "cursor"} | {
    "datum", "event", "item", "parent"}  # fmt: skip

_BASE = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "config": {
        "font": "sans-serif",
        "axis": {
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridOpacity": 0.4,
        },
        "legend": {"labelFontSize": 12, "orient": "bottom", "columns": 2, "title": None},
        "view": {"stroke": None},
    },
}


class Playable:
    """A figure with controls, as Vega-Lite; `spec` is all of it."""

    def __init__(self, spec, name):
        self.spec, self.name = spec, name

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"application/vnd.vegalite.v5+json": self.spec, "text/plain": repr(self)}

    def _repr_svg_(self):
        import vl_convert

        svg = vl_convert.vegalite_to_svg(self.spec, vl_version=VEGA_LITE)
        alt = html.escape(self.spec["description"])
        return svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)

    def __repr__(self):
        return f"<figure to play with: {self.name}>"


def playable(view, chart, name, alt, **controls):
    """Return a figure whose controls choose among tables that `view` computes now.

    view: called by keyword with a value for each control; returns a sentence with the numbers that
        matter, which stands above the figure, and its rows: dicts with the fields that the chart
        draws.
    chart: what `line_chart`, `bar_chart` or `box_chart` gives.
    name: the picture's name, from which a script makes its file name. alt: what is to be seen.
    controls: for each argument of the view a list of its values, or a dict from what the reader
        chooses to the value. Whole numbers in equal steps get a slider, all else a menu. The first
        value is chosen first.

    Raises ValueError for a control without values or with a name that Vega keeps for itself, for a
    combination without rows, and where all rows are too many for a page.
    """
    if taken := sorted(_TAKEN & controls.keys()):
        raise ValueError(f"playable: a control cannot be called {taken[0]!r}: Vega uses that name.")
    values = {key: c if isinstance(c, dict) else {v: v for v in c} for key, c in controls.items()}
    if empty := [key for key, options in values.items() if not options]:
        raise ValueError(f"playable: the control {empty[0]!r} has no values.")
    rows = []
    for at, chosen in enumerate(itertools.product(*(v.values() for v in values.values()))):
        says, some = view(**dict(zip(values, chosen)))
        if not some:
            raise ValueError(f"playable: the view has no rows for {dict(zip(values, chosen))}.")
        some = [{key: _short(value) for key, value in row.items()} for row in some]
        rows += [{"at": at, **row} for row in [some[0] | {"says": says}, *some[1:]]]
    if len(rows) > MOST:
        raise ValueError(f"playable: {len(rows)} rows are too many for a page; at most {MOST}.")
    lines = max(row["says"].count("\n") for row in rows if "says" in row)
    above = {
        "transform": [{"filter": "isValid(datum.says)"}],
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "lineBreak": "\n",
                 "fontSize": 12, "aria": False},
        "encoding": {"text": {"field": "says"}, "x": {"value": 0},
                     "y": {"value": -8 - 14 * lines}},
    }  # fmt: skip
    spec = _BASE | {
        "description": alt,
        "width": 440,  # a page's script makes it as wide as there is room
        "height": chart.get("height", 220),
        "usermeta": {"controls": {key: list(options) for key, options in values.items()}},
        "params": [_control(key, list(options)) for key, options in values.items()],
        "data": {"values": rows},
        "transform": [{"filter": f"datum.at == {_index(values)}"}],
        "layer": [*_with_colors(deepcopy(chart["layer"]), rows), above],
    }
    return Playable(spec, name)


def line_chart(x, y, log="", domain=None):
    """Lines through points: rows have `x`, `y` and, for several lines, `which`.

    x, y: what the axes say, with units. log: "x", "y" or "xy". domain: of y, (from, to).
    """
    encoding = {
        "x": _axis("x", x, "x" in log),
        "y": _axis("y", y, "y" in log, domain),
        "color": _which(),
    }
    dash = {"field": "which", "type": "nominal", "sort": None, "legend": None}
    line = {"mark": {"type": "line", "clip": True}, "encoding": encoding | {"strokeDash": dash}}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 50, "clip": True},
        "encoding": encoding,
    }
    return {"layer": [line, dots]}


def _axis(field, title, log, domain=None):
    scale = {"type": "log"} if log else {}
    scale |= {"domain": list(domain)} if domain else {}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _which():
    return {"field": "which", "type": "nominal", "sort": None, "scale": {"range": RANK_COLORS}}


def _with_colors(layers, rows):
    """The layers, with one color for each kind whatever the controls say; none if there is one."""
    kinds = list(dict.fromkeys(row["which"] for row in rows if "which" in row))
    for layer in layers:
        color = layer["encoding"].get("color")
        if color is None:
            continue
        if kinds:
            color["scale"] = {"domain": kinds, "range": RANK_COLORS[: len(kinds)]}
        else:
            layer["encoding"] = {
                key: how for key, how in layer["encoding"].items() if how.get("field") != "which"
            }
            layer["mark"] = _mark(layer["mark"]) | {"color": RANK_COLORS[0]}
    return layers


def _mark(mark):
    return {"type": mark} if isinstance(mark, str) else mark


def _control(key, options):
    """A parameter of Vega-Lite's, bound to an input of the browser's own."""
    label = {"name": key.replace("_", " ")}
    if len(options) > 2 and all(type(option) is int for option in options):
        steps = {b - a for a, b in itertools.pairwise(options)}
        if len(steps) == 1 and min(steps) > 0:
            bind = {"input": "range", "min": options[0], "max": options[-1], "step": steps.pop()}
            return {"name": key, "value": options[0], "bind": bind | label}
    return {
        "name": key,
        "value": options[0],
        "bind": {"input": "select", "options": options} | label,
    }


def _index(values):
    """The expression of Vega's that says which combination is chosen."""
    index = "0"
    for key, options in values.items():
        index = f"({index}) * {len(options)} + indexof({json.dumps(list(options))}, {key})"
    return index


def _short(value):
    """A number as its first five digits: a page holds thousands of them."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def show(value, on_rank=None):
    """Print a cell's last value, as a notebook does; a picture becomes a file."""
    if isinstance(value, plt.Figure):
        value.savefig(file_beside(value.get_label() or "figure"))
        return plt.close(value)
    if hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


# Read it from the right:
# - The whole product does so many operations for a byte that memory is no limit. It
#   stands at the flat roof, which is its own rate by definition.
# - Matrix times vector, from the same library, belongs to the slope: the roof there is
#   (vector_roof) GFLOP/s, and it reached (vector_rate).
# - The loops hang far below any roof. Neither memory nor arithmetic stops them. It is
#   the interpreter, which is in neither axis.
#
# That is the use of this picture: it says which thing to work on. Below both roofs: the
# code. At the slope: fewer bytes, or more work for each byte. At the flat roof: more
# processors.

# --- The roof of an accelerator -------------------------------------------------------

# A GPU has the same two limits, only higher. Its peaks are given in TFLOP/s, thousands
# of GFLOP/s. Here they are those of dense products, with inputs in bfloat16 [a100,
# h100]; the first line is what this page measured. SXM is the form in which these GPUs
# are built into servers.
#
# | | peak | memory | ridge point |
# | --- | --- | --- | --- |
# | one core here, float64 | (core_peak) GFLOP/s | (bandwidth) GB/s | (ridge) flop/byte |
# | A100 80 GB SXM | 312 TFLOP/s | 2.04 TB/s | (ridge_a100) flop/byte |
# | H100 SXM | 989 TFLOP/s | 3.35 TB/s | (ridge_h100) flop/byte |

if rank == 0:
    here = "one core here, float64"
    machines = {here: (core_peak, bandwidth, 8)}  # GFLOP/s, GB/s, bytes a number
    machines["A100, bfloat16"] = 312e3, 2040, 2
    machines["H100, bfloat16"] = 989e3, 3350, 2


def product_under_roof(machine, rows):
    peak, memory, each = machine
    intensity = 2 * rows**3 / (3 * rows**2 * each)
    most = roofline(intensity, peak, memory)
    line = [{"x": x, "y": roofline(x, peak, memory), "which": "roof"}
            for x in np.geomspace(0.1, 10_000, 26)]
    says = (f"{rows} rows: {intensity:.0f} flop/byte, at most\n"
            f"{most:,.0f} GFLOP/s, {most / peak:.0%} of the peak")
    return says, [*line, {"x": intensity, "y": most, "which": "the product"}]


if rank == 0:
    show(playable(
        product_under_roof,
        line_chart("intensity (flop/byte)", "GFLOP/s", log="xy"),
        name="play-roofline",
        alt="A roofline, and on it a product of two square matrices. With few rows "
        "it lies on the slope, with many on the flat part.",
        machine=machines,
        rows=[16, 64, 256, 1024, 4096],
    ))
    save_figures()

# Read a data sheet with care. The A100's has "624 TFLOPS" for this format too. That is
# with sparsity: half of one matrix is zero, in a fixed pattern, and not multiplied.
# Training multiplies dense matrices; for them it is half, 312. Its "2496 TOPS" are no
# FLOP/s at all: the operations are those of whole numbers of 4 bits, again with
# sparsity, and half of it without [ampere]. The H100's sheet prints only 1979, where a
# dense product gets at most 989. In TF32 it is half of that again, and in float32
# proper 67 TFLOP/s: a rung without its format says little.
#
# Worked problem: From which batch on does a linear layer with 4096 inputs and 4096
# outputs use an H100's processor and not only its memory? A batch of $m$ rows times a
# $d \times d$ weight takes $2 m d^2$ flops. In bfloat16, 2 bytes a number, it moves at
# least the weight, the input and the output: $2(d^2 + 2md)$ bytes. The intensity is
#
# $$I(m) = \frac{m\,d}{d + 2m},$$
#
# and it reaches the ridge point $R$ at $m = R\,d / (d - 2R)$.

if rank == 0:
    d = 4096
    R = 989e12 / 3.35e12  # flop/byte of an H100
    result("ridge_a100", round(312e12 / 2.039e12))
    result("ridge_h100", round(R))
    result("rows_needed", math.ceil(R * d / (d - 2 * R)))
    one_row = 3.35e12 * d / (d + 2)  # the slope's flop/s for m = 1
    result("one_row_percent", round(100 * one_row / 989e12, 2))

# From (rows_needed) rows on. In a language model every token is a row. With a single
# row, a matrix times a vector, the same layer gets at most (one_row_percent) % of the
# peak, however good the code is. That is why an accelerator wants large batches, and
# why a batch that is cut among many ranks must not be cut too small.

# --- Rows over two processes ----------------------------------------------------------

# At the flat roof, then, more processors. How far do the libraries go by themselves?
#
# | | what it is | how far one call of PyTorch reaches |
# | --- | --- | --- |
# | MKL [onemkl] | Intel's BLAS, and more mathematics | the cores of one machine |
# | CUDA [nickolls2008] | NVIDIA's language and runtime for programs on its GPUs | the GPU on which the tensors lie |
# | cuBLAS [cublas] | a BLAS, written in CUDA | the same GPU |
# | cuDNN [chetlur2014] | convolution, attention, normalization, written in CUDA | the same GPU |
#
# The PyTorch of this page has (libraries_here). Some of these have relatives that
# divide one product among several GPUs or machines, such as cuBLASMp [cublas];
# PyTorch's `@` does not call them. To go further is up to us. The rows of $C$ do not
# wait for each other: whoever has the rows of $A$ that belong to them, and all of $B$,
# can compute them alone.
#
# We start a few processes and give each its share. Chapter 5 shows what they are and
# how they come about. Here it is enough to know that each has its own memory, a number
# `rank`, and a `world_size`, which says how many they are. The processes themselves are
# called ranks, too.
#
# A cell that begins with `%%px` runs on all of them. `ranks["A"] = A` puts a copy of
# `A` on each, and reading `ranks["my_rows"]` brings back a list, with the `my_rows` of
# every rank in turn.


def packed(value):
    """The bytes of a value."""
    with io.BytesIO() as file:
        torch.save(value, file)
        return file.getvalue()


def unpacked(data, place):
    """The value of these bytes, its tensors on the device `place`."""
    return torch.load(io.BytesIO(data), map_location=place, weights_only=False)


def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play("kernel")
    box = [packed(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return unpacked(box[0], device)


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


# The entries are small whole numbers, so all sums are exact in float64, and "equal" can
# mean equal.

if rank == 0:
    print("\n## Rows over two processes\n")
    torch.manual_seed(0)
    A, B = torch.randint(-8, 9, (2, 403, 403)).double()
    whole = A @ B

push("A", lambda: A)
push("B", lambda: B)

play("ranks")
rows_each = len(A) // world_size
my_rows = A[rank * rows_each : (rank + 1) * rows_each] @ B


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(packed(value), values, group=driver)
    values = values and [unpacked(data, "cpu") for data in values]
    return values


# Predict: We glue the pieces together in the order of the ranks. Will the result equal
# the whole product?

pieces = to_rank_0(my_rows)
if rank == 0:
    play("kernel")
    glued = torch.cat(pieces)


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


if rank == 0:
    with may_fail():
        sizes = f"{list(glued.shape)} is not {list(whole.shape)}"
        assert torch.equal(glued, whole), sizes

# No rank complained, and yet there are rows missing. `len(A) // world_size` rounds
# down, and the rows that are left over belong to nobody. Comparing the shapes first is
# the way to find it.

if rank == 0:
    lost = len(whole) - len(glued)
    assert lost == len(whole) % world_size
    result("rows_lost", lost)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# The mistake is easy to make and can stay silent for long: were these training examples
# instead of rows, the last ones would never be seen. `tensor_split` hands out the
# remainder, one extra row each to the first ranks.

everyone()
play("ranks")
my_rows = A.tensor_split(world_size)[rank] @ B

pieces = to_rank_0(my_rows)
if rank == 0:
    play("kernel")
    assert torch.equal(torch.cat(pieces), whole)

# --- What cannot be shared ------------------------------------------------------------

# A real program also has a part that cannot be cut. Ours gets one: a chain of steps,
# each of which needs the result of the one before, so that every rank has to wait for
# all of it. Then comes the product, of which each rank does its rows.


def chain(steps=100_000):
    x = 0.1
    for _ in range(steps):
        x = 3.9 * x * (1 - x)  # needs the x before
    return x


def cpu_time(work, *args):
    """CPU seconds for work(*args)."""
    start = time.process_time()
    work(*args)
    return time.process_time() - start


# All of it in CPU time: what it takes if each rank has a core to itself. Rank 0 also
# does the whole product, while the others wait at a barrier, which lets nobody through
# until all are there. `dist` is PyTorch's module for communication,
# `torch.distributed`; it is there on every rank.


def timings(A, B):
    """Seconds: the chain, the product by one, by all, and p times as large."""
    mine, rounds = A.tensor_split(world_size)[rank], []
    for _ in range(5):
        whole = cpu_time(torch.matmul, A, B) if rank == 0 else 0.0
        dist.barrier()
        part = cpu_time(torch.matmul, mine, B)
        each = cpu_time(torch.matmul, A, B)  # as if A had p times as many rows
        rounds.append((cpu_time(chain), whole, part, each))
    return [min(times) for times in zip(*rounds)]  # the least of five rounds


everyone()
play("ranks")


at_403 = timings(A, B)
at_1612 = timings(*(M.repeat(4, 4) for M in (A, B)))

# Predict: The speed-up is the time of one divided by the time of many. The product
# alone could come near the number of ranks. How much is left of it with the chain? For
# which of the two sizes is more left?
#
# If a share $s$ of the time of one is serial, so that no number of ranks makes it
# shorter, then with $p$ ranks the speed-up is at most
#
# $$\frac{1}{s + (1-s)/p}, \qquad\text{and never more than } \frac{1}{s}.$$
#
# That is Amdahl's law [amdahl1967]. Speed-up divided by $p$ is the efficiency.


def amdahl(s, p):
    """The largest speed-up with p ranks if a share s of the time is serial."""
    return 1 / (s + (1 - s) / p)


everyone()
if rank == 0:
    play("kernel")
    p = world_size

at_403_by_rank = to_rank_0(at_403)
if rank == 0:
    times_at = {403: at_403_by_rank}

at_1612_by_rank = to_rank_0(at_1612)
if rank == 0:
    times_at[1612] = at_1612_by_rank
    found = {}
    for n, times in times_at.items():
        serial, whole, part, each = map(max, zip(*times))  # the slowest decides
        s = serial / (serial + whole)
        speed_up = (serial + whole) / (serial + part)
        scaled = (serial + p * whole) / (serial + each)
        found[n] = {"s": s, "speed-up": speed_up, "scaled": scaled,
                    "product": whole / part, "whole": whole}
        print(f"n = {n:4}: {s:4.0%} serial; Amdahl's law {amdahl(s, p):.2f}, "
              f"measured {speed_up:.2f}, efficiency {speed_up / p:.0%}")

if rank == 0:
    if cores_are_free():
        assert found[1612]["s"] < found[403]["s"] / 4
        for at in found.values():
            s = at["s"]
            assert at["speed-up"] < 1.5 * amdahl(s, p)
            assert at["scaled"] < 1.5 * (s + (1 - s) * p)
    result("product_speedup", found[1612]["product"], varies=True)
    result("serial_403", found[403]["s"], varies=True)
    result("serial_1612", found[1612]["s"], varies=True)
    result("speedup_403", found[403]["speed-up"], varies=True)
    result("speedup_1612", found[1612]["speed-up"], varies=True)
    result("limit_403", 1 / found[403]["s"], varies=True)
    save_figures()

# For the product alone, 1612 rows, the speed-up was (product_speedup). With the chain
# it was (speedup_1612) at 1612 rows, where the chain is (serial_1612) of the time of
# one, and (speedup_403) at 403 rows, where it is (serial_403). In the small case no
# number of ranks gets beyond (limit_403).
#
# A measurement can come out a little above the law. The times of one and of many were
# not taken at the same moment, and the law assumes that a rank works as fast on a part
# as on the whole.
#
# Amdahl asks how much faster the same problem becomes. Gustafson [gustafson1988] turned
# it around: with $p$ ranks we take a problem $p$ times as large, and ask how long one
# rank would have needed for it. If $s$ is the serial share of the run with $p$ ranks,
# that speed-up is $s + (1-s)\,p$, and it has no limit.
#
# The first is called strong scaling, the second weak scaling. Training moves between
# the two: a larger batch on more ranks is weak scaling, as long as the larger batch is
# of use.
#
# In the figure, "larger" is what we measured where each rank does a whole product.

if rank == 0:
    s = found[403]["s"]
    many = np.linspace(1, 8)
    fig, ax = plt.subplots(num="amdahl")
    ax.plot(many, many, "--", color="C7", label="ideal")
    ax.plot(many, s + (1 - s) * many, color="C2", label="Gustafson: larger problem")
    ax.plot(many, amdahl(s, many), color="C0", label="Amdahl: same problem")
    ax.axhline(1 / s, color="C0", lw=1, ls=":", label="its limit, 1/s")
    measured = {"larger": ("scaled", "s", 11, "C2", 4.4),
                "same": ("speed-up", "o", 5, "C0", 1.1)}
    for problem, (which, marker, size, color, x) in measured.items():
        look = {"color": color, "ms": size, "mfc": "none", "mew": 2}
        ax.plot(p, found[403][which], marker, **look)
        arrow = {"arrowstyle": "-", "color": color}
        ax.annotate(f"measured: {problem} problem", (p, found[403][which]),
                    (x, 0.3), color=color, fontsize=9, arrowprops=arrow)
    ax.set(xlabel="ranks", ylabel="speed-up", xticks=range(1, 9))
    ax.set_ylim(0, 8.2)
    ax.set_title(f"{s:.0%} serial: more ranks need a larger problem", fontsize=11)
    ax.legend(fontsize=9)
    save_figures()

# --- What moving costs ----------------------------------------------------------------

# Amdahl's law is still too kind. One process has its matrices at hand; several have to
# be given theirs. That is not a serial share, since a single process pays nothing. It
# is an overhead that comes with the ranks:
#
# $$T(p) = T_\text{serial} + \frac{T_\text{shared}}{p} + \text{overhead}(p).$$
#
# We measure it by the clock on the wall: push both matrices to all ranks, pull the
# pieces back. These copies go through the notebook; chapter 6 sends from rank to rank.

if rank == 0:
    start = time.perf_counter()

push("A", lambda: A)
push("B", lambda: B)
pieces = to_rank_0(my_rows)
if rank == 0:
    moving_403 = time.perf_counter() - start

everyone()
play("ranks")
my_rows = my_rows.repeat(4, 4)  # as long as the pieces of the larger size

everyone()
if rank == 0:
    play("kernel")
    large_A, large_B = A.repeat(4, 4), B.repeat(4, 4)
    start = time.perf_counter()

push("A", lambda: large_A)
push("B", lambda: large_B)
pieces = to_rank_0(my_rows)
if rank == 0:
    moving_1612 = time.perf_counter() - start

# Predict: $n$ became four times as large. By how much did the bytes to move grow, by
# how much the operations? So for which size is the moving worse, compared with the
# product?

if rank == 0:
    moving_over_product = {
        403: moving_403 / found[403]["whole"],
        1612: moving_1612 / found[1612]["whole"],
    }
    result("moving_over_403", moving_over_product[403], varies=True)
    result("moving_over_1612", moving_over_product[1612], varies=True)
    if cores_are_free():
        assert moving_over_product[1612] < 0.8 * moving_over_product[403]
        assert moving_over_product[403] > 1  # alone would have been faster

# Moving took (moving_over_403) times as long as the whole product at 403 rows, and
# (moving_over_1612) times at 1612. Bytes grow with $n^2$, here 16 times, and operations
# with $n^3$, 64 times. So the larger the matrices, the less the moving weighs. But
# wherever moving alone takes longer than the product, a factor above 1 here, one
# process is faster than all ranks together.
#
# How large must a product be on real machines? Let two H100s share one in bfloat16,
# each with half of the rows, and let the rows of $C$ stay where they are made. To each
# come half of $A$ and all of $B$, $3n^2$ bytes, and each does $n^3$ flops. With a link
# of $\beta$ bytes a second, moving and computing take equally long at $n = 3 \cdot
# 989\,\text{TFLOP/s} / \beta$.

if rank == 0:
    for link, bytes_a_second in (("nvlink", 450e9), ("infiniband", 50e9)):
        n = 3 * 989e12 / bytes_a_second
        result(f"rows_over_{link}", round(n))

# Over NVLink, which connects the GPUs of one machine with 450 GB/s each way [h100],
# that is (rows_over_nvlink) rows; over InfiniBand, a network between machines, with 400
# Gbit/s or 50 GB/s [connectx7], it is (rows_over_infiniband). Below that, the GPUs wait
# for the link.
#
# So there are two reasons why two processes are not twice as fast as one: a part that
# cannot be shared, and what it costs to bring the operands. The rest of this book is
# about moving less, moving it faster, and moving it while the product is running.

# --- Extra: Strassen's algorithm ------------------------------------------------------

# Can the exponent be smaller than 3? Cut each matrix into four blocks. The product of
# the $2 \times 2$ block matrices takes eight block products. In 1969 Strassen found
# that seven are enough [strassen1969], at the price of more additions. Additions are
# cheap for blocks: adding two $m \times m$ blocks takes $m^2$ operations, multiplying
# them about $2m^3$. And each of the seven can again be done with seven.


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


# Predict: For a 2 × 2 product the three loops take 8 multiplications and 4 additions.
# What does Strassen take? Count the plus and minus signs above. From which $n$ on does
# it need fewer operations in all?


def operations(n, leaf):
    """Operations of strassen(), with plain products from leaf on."""
    if n <= leaf:
        return 2 * n**3 - n**2
    return 7 * operations(n // 2, leaf) + 18 * (n // 2) ** 2


if rank == 0:
    print("\n## Extra: Strassen's algorithm\n")
    _, tally = count(lambda A, B: strassen(A, B, 1, by_loops), *np.ones((2, 2, 2)))
    result("strassen_2x2", [tally["mul"], tally["add"]])
    powers = [2**k for k in range(1, 13)]
    deep = [n for n in powers if operations(n, 1) < operations(n, n)]
    once = [n for n in powers if operations(n, n // 2) < operations(n, n)]
    result("crossover_all_the_way", deep[0])
    result("crossover_one_level", once[0])

# Multiplications and additions are now (strassen_2x2). Cut all the way down to single
# numbers, it needs fewer operations only when $n$ reaches (crossover_all_the_way). Cut
# once, with plain products below, it needs fewer from (crossover_one_level) on.
# Operations are not seconds, so we time one level against the plain product, over the
# loops and over BLAS.


def one_level(multiply, n):
    """CPU time of one level of Strassen, over the plain product's."""
    A, B = rng.random((2, n, n))
    clock = time.process_time
    plain = best_time(multiply, A, B, clock=clock)
    return best_time(strassen, A, B, n // 2, multiply, clock=clock) / plain


if rank == 0:
    strassen_n, large_n = [4, 8, 16, 32, 64, 96], [64, 128, 256, 512, 1024]
    with threadpool_limits(1, user_api="blas"):
        over_loops = [one_level(by_loops, n) for n in strassen_n]
        over_blas = [one_level(np.matmul, n) for n in large_n]

if rank == 0:
    counted = [operations(n, n // 2) / operations(n, n) for n in powers]
    fig, ax = plt.subplots(num="strassen")
    ax.plot(powers, counted, "--", color="C7", label="operations, counted")
    ax.plot(strassen_n, over_loops, "o-", color="C1", label="time, over loops")
    ax.plot(large_n, over_blas, "o-", color="C0", label="time, over BLAS")
    ax.axhline(1, color="black", linewidth=1)
    ax.text(4096, 0.7, "below 1: Strassen is cheaper", ha="right", fontsize=10)
    ax.set(xlabel="n", ylabel="Strassen / plain product", ylim=(0.6, 2.6))
    ax.set_xscale("log", base=2)
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, fontsize=9)
    save_figures()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


if rank == 0:
    for levels in range(5):
        n = 2**levels
        A, B = rng.integers(-9, 10, (2, n, n)).tolist()
        entries, tally = count(lambda A, B: strassen(A, B, 1, by_loops), A, B)
        assert entries == product(A, B)
        assert tally["mul"] == 7**levels
        assert tally["add"] == 6 * (7**levels - 4**levels)
        assert tally.total() == operations(n, 1)
    assert over_blas[0] > 1 and over_loops[0] > 1 or not cores_are_free()

# The counted operations come down to $7/8$. The crossover in time depends on what a
# product costs compared with an addition: over BLAS at 64 rows, where the counts
# already promise a gain, Strassen still loses. With great care it can be made to pay
# [huang2016]. Its exponent is $\log_2 7 \approx 2.81$; the best one in a refereed paper
# is 2.371339 [alman2025]. The number 2.3725 that is often quoted stands in the abstract
# of [duan2023], as the barrier that its method broke. All of these are polynomial, and
# the record ones win only at sizes far beyond use. Deep learning runs on the cubic
# product, done well.

# --- What you can do now --------------------------------------------------------------

# - Count the operations of an algorithm by running it on numbers that count, and find
#   out which of them wait for which.
# - Say how a cost grows, and tell cubic from exponential.
# - State work and span, and from them how much could be done at once.
# - Place a computation under the roofline of a core or a GPU, and say what to work on:
#   code, bytes, or processors.
# - Read a data sheet: which format, dense or sparse.
# - Predict what more processes can bring: Amdahl's law, Gustafson's, and the overhead
#   that neither counts.

# --- Run it on a cluster --------------------------------------------------------------

# The script of this chapter needs nothing of this book:
#
# ```bash
# torchrun --standalone --nproc-per-node 2 scripts/01_matmul.py
# ```
#
# All but Rows over two processes runs on rank 0 alone. On two machines, start the same
# line on each with `--nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29400`
# instead of `--standalone`; then the matrices move over the network.

# --- Where to read on -----------------------------------------------------------------

# - [goto2008]: how a BLAS gets near the peak. The best next step if the ladder made you
#   curious.
# - [williams2009]: the roofline, by its inventors, with more roofs than ours.
# - [cormen2022]: growth of functions, Strassen's algorithm, and a chapter on work and
#   span.
# - [gustafson1988]: two pages, and the other half of Amdahl's law.
# - [huang2016]: what it takes to make Strassen's algorithm pay in practice.

leave_group()
