# Chapter 1 of Many Ranks, One Model, as one script. Generated from book/01_matmul.md.
#
# Run it on 2 ranks, or on another number of them, in one of these ways:
#     python 01_matmul.py
#     torchrun --standalone --nproc-per-node 2 01_matmul.py
#     torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 01_matmul.py
#     mpiexec -n 2 python 01_matmul.py
#
# pip install big-O matplotlib numpy threadpoolctl torch  (for mpiexec also: mpich mpi4py)

import math
import os
import pickle
import re
import socket
import sys
import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import big_o
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
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(host.rank),
        LOCAL_WORLD_SIZE=str(host.size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )


def choose_device(device=None, backend=None):
    """A GPU for each rank, and NCCL, if there are enough; else Gloo. Or what is asked for."""
    local_rank, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    device = torch.device(device or (f"cuda:{local_rank % gpus}" if gpus else "cpu"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device, backend or ("nccl" if device.type == "cuda" and gpus >= here else "gloo")


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
device, backend = choose_device()
store = next(dist.rendezvous("env://"))[0]
form_groups()


APART = ["A", "B"]  # the kernel and the ranks have one each
playing, held_by = "kernel", {"ranks": {}}


def play(part):
    """Rank 0 is also the kernel; give each part its own of the names that are apart."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
    return before


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


def show(value, on_rank=None):
    """Print a cell's last value, as a notebook does; a picture becomes a file."""
    if isinstance(value, plt.Figure):
        value.savefig(file_beside(value.get_label() or "figure"))
        plt.close(value)
    elif hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


# === One matrix product, counted ======================================================

# What does one matrix product cost, how much of it can be done at the same time, and
# how much of your machine does it really use?
#
# 40 minutes to read, with the code · 20 seconds to run · stands on no other chapter
#
# Training a neural network is, for the most part, multiplying matrices. To spread
# training over many processors we have to know three things about one product: how many
# operations it takes, which of them wait for which, and how fast one machine can do
# them. In this chapter all three are measured. At the end you can count the operations
# of an algorithm by running it, say how far a program is from what its machine can do,
# and say why two processes are not twice as fast as one.

# --- Count it by running it -----------------------------------------------------------

# Row $i$ of $A$ against column $j$ of $B$ gives entry $C_{ij} = \sum_k A_{ik} B_{kj}$.
# Written down as it stands, that is three loops.

if rank == 0:
    print("\n## Count it by running it\n")
    A = [[2, 7, 3], [1, 5, 8], [0, 4, 1]]
    B = [[3, 0, 1], [2, 1, 0], [1, 2, 4]]


def product_from_zeros(A, B):
    """The product of two n-by-n matrices, each a list of rows."""
    n = len(A)
    C = [[0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            for k in range(n):
                C[i][j] += A[i][k] * B[k][j]
    return C


if rank == 0:
    show(product_from_zeros(A, B))

# How many operations was that? The code does not have to be read for it. Python lets us
# replace the numbers by numbers that keep a tally. (In the next cell `_record` is told
# the operands as well; a later section needs them. The comment `#@save` says that later
# chapters import what the cell defines.)


class Counted:
    """A number that counts the operations done on it, in the Counter `Counted.tally`.

    Products count as "mul", sums and differences as "add".
    """

    tally: ClassVar = Counter()  # one for all numbers

    def __init__(self, value):
        self.value = value

    def _record(self, kind, value, *operands):
        Counted.tally[kind] += 1
        return Counted(value)

    def __mul__(self, other):
        return self._record("mul", self.value * other.value, self, other)

    def __add__(self, other):
        return self._record("add", self.value + other.value, self, other)

    def __sub__(self, other):
        return self._record("add", self.value - other.value, self, other)

    def __radd__(self, plain):  # 0 + number: an addition like any other
        return self._record("add", plain + self.value, self)


def count(multiply, A, B, number=Counted):
    """Run multiply(A, B) on counting numbers.

    A, B: n-by-n matrices, as arrays or lists of rows. number: the class that counts.
    Returns the product's entries as plain numbers (a list of rows), and the tally (a Counter).
    """
    A, B = (np.array([[number(x) for x in row] for row in M]) for M in (A, B))
    Counted.tally.clear()
    C = multiply(A, B)
    return [[entry.value for entry in row] for row in C], Counter(Counted.tally)


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# Predict: Each of the nine entries is a sum of three products. How many multiplications
# will the tally hold, and how many additions?

if rank == 0:
    entries, tally = count(product_from_zeros, A, B)
    assert entries == [[23, 13, 14], [21, 21, 33], [9, 6, 4]]
    result("multiplications", tally["mul"])
    result("additions_from_zeros", tally["add"])

# By hand it is 27 and 18: a sum of three products has two plus signs. The
# multiplications agree. But the code did (additions_from_zeros) additions, nine too
# many. (In this book a number like that one comes from the run, through `result`. In
# the notebook the sentence has its name instead, in gray: look for
# `additions_from_zeros = …` below a cell.)
#
# Nine is the number of entries, so each entry costs one addition more than its formula
# has plus signs. It is the first one: `C[i][j]` starts as 0, and `0 + A[i][0] *
# B[0][j]` is an addition too. Starting from the first product removes it.


def product(A, B):
    """The product of two n-by-n matrices, as rows; each sum starts from its first product."""
    n = len(A)
    C = [[A[i][0] * B[0][j] for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            total = C[i][j]
            for k in range(1, n):
                total = total + A[i][k] * B[k][j]
            C[i][j] = total
    return C


if rank == 0:
    entries, tally = count(product, A, B)
    assert entries == product_from_zeros(A, B)
    assert tally["mul"] == 27 and tally["add"] == 18
    result("additions", tally["add"])

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

# For any $n$, each of the $n^2$ entries takes $n$ multiplications and $n-1$ additions.
# That makes $n^3$ and $n^2(n-1)$. We do not have to believe that either.

if rank == 0:
    for n in range(1, 11):
        M = np.ones((n, n))
        _, tally = count(product, M, M)
        assert tally["mul"] == n**3
        assert tally["add"] == n**2 * (n - 1)

# The field counts more coarsely. A flop is one floating-point operation, and a product
# of two $n \times n$ matrices is said to take $2n^3$ of them: $n^3$ multiplications and
# $n^3$ additions, the extra ones to zero included. That is what the hardware does: its
# fused multiply-add instruction computes $c + ab$ in one go, and the first one of each
# sum adds to zero. We use $2n^3$ from here on, whenever time is involved.

# --- How it grows ---------------------------------------------------------------------

# Big-O notation says how a cost grows, without its constant factors: $2n^3 - n^2$
# operations are $O(n^3)$. The package `big_o` [bigo] goes the other way. Given costs
# for several $n$, it fits eight classes of growth, from constant to exponential, and
# names the best. First we give it exact numbers: counted multiplications.

if rank == 0:
    print("\n## How it grows\n")
    sizes = np.arange(2, 21, 2)
    multiplications = []
    for n in sizes:
        _, tally = count(product, np.ones((n, n)), np.ones((n, n)))
        multiplications.append(tally["mul"])

    best, _ = big_o.infer_big_o_class(sizes, np.array(multiplications))
    result("class_of_counts", type(best).__name__)
    assert type(best).__name__ == "Cubic"

# Then seconds. The input must grow with $n$: `big_o` calls our generator for each $n$,
# and we make two $n \times n$ matrices. Each time is the shortest of 30, because
# whatever else the machine does can only make a call longer. (`varies=True` says of a
# result that it may differ from machine to machine.)


def two_matrices(n):
    """Two random n-by-n matrices, as lists of rows."""
    return np.random.rand(2, n, n).tolist()


if rank == 0:
    sizes, seconds = big_o.measure_execution_time(
        lambda pair: product(*pair), two_matrices, min_n=8, max_n=48, n_timings=30
    )
    assert seconds[-1] > 6**2 * seconds[0]  # n is 6 times larger: more than quadratic growth

    # In milliseconds: big_o takes residuals for equal that differ by less than 1e-6.
    best, fitted = big_o.infer_big_o_class(sizes, 1000 * seconds)
    result("class_of_seconds", type(best).__name__, varies=True)

# The verdict alone says little. What each class leaves unexplained says more: its
# residual, the sum of the squared distances between the fit and the measurement. We
# divide by the residual of `Constant`, which is a flat line through the mean. So 1
# means "no better than saying that nothing changes".


def unexplained(fitted):
    """The residual of each class of growth, as a share of the flat line's."""
    residual = {type(c).__name__: float(r) for c, r in fitted.items()}
    return {name: r / residual["Constant"] for name, r in residual.items()}


if rank == 0:
    growing = unexplained(fitted)
    exponent = next(c for c in fitted if type(c).__name__ == "Polynomial").coefficients()[1]
    result("fitted_exponent", exponent, varies=True)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    names = sorted(growing, key=growing.get, reverse=True)
    fig, ax = plt.subplots(num="residuals")
    ax.barh(names, [growing[name] for name in names], color=["C7"] * (len(names) - 1) + ["C0"])
    ax.axvline(1, color="black", linewidth=1, linestyle="--")
    ax.set(xscale="log", xlabel="residual, as a share of the flat line's", xlim=(None, 3))
    ax.set_title("what each class leaves unexplained of the time", fontsize=10)
    save_figures()

# The classes differ by orders of magnitude. `Polynomial` fits $a\,n^b$ with a free
# exponent and found (fitted_exponent) for $b$. It comes out near 3, on a quiet machine
# a little below: at small $n$ a part of the time goes into the two outer loops, which
# grow more slowly.

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
    result("million_years_if_exponential", round(exponential / (365 * 24 * 3600) / 1e6))

# With $n^3$ it takes (seconds_if_cubic) seconds. With $2^n$ it takes
# (million_years_if_exponential) million years.

if rank == 0:
    n = np.arange(2, 65)
    omega = 2.371339  # the best exponent in a refereed paper: Alman et al., 2025
    fig, ax = plt.subplots(num="growth")
    ax.loglog(n, 2.0**n, color="C1", label="$2^n$: exponential")
    ax.loglog(n, n**3.0, color="C0", label="$n^3$: three loops")
    ax.loglog(n, n**omega, color="C2", label=f"$n^{{{omega}}}$: best refereed exponent")
    ax.set(xlabel="n (rows of a matrix)", ylabel="growth, without constant factors", ylim=(1, 1e12))
    ax.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    ax.minorticks_off()
    ax.legend()
    save_figures()

# On two logarithmic axes a polynomial is a straight line, and its exponent is the
# slope. (Mind what is left out: the constant factors. With them, the flattest line
# starts so high that it comes below $n^3$ only at sizes far beyond use.) An exponential
# bends upward and passes every polynomial in the end.
#
# Mind also what $n$ is. It is the number of rows. A matrix has $N = n^2$ elements, and
# counted in elements the product costs $N^{3/2}$.

# --- When the fit finds something in nothing ------------------------------------------

# An experiment can look exactly like the one above and measure nothing. Here is one
# that has been published as an example. It asks for the class of a matrix product and
# gets an answer.


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
# report? Read the last function again before you answer. We ask three times.

if rank == 0:
    print("\n## When the fit finds something in nothing\n")
    fits = []
    for _ in range(3):
        ns, seconds_5x5 = big_o.measure_execution_time(product_5x5, numbers, n_repeats=500)
        fits.append(big_o.infer_big_o_class(ns, 1000 * seconds_5x5))  # in milliseconds, as above
    result("found_in_noise", [type(best).__name__ for best, _ in fits], varies=True)

# The generator ignores its `n`. Every call multiplies two 5×5 matrices, so the true
# class is `Constant`. The answers in this run are (found_in_noise); the published one
# was `Logarithmic`. Counting shows the truth at once, because counts carry no noise:

if rank == 0:
    for n in (100, 100_000):
        Counted.tally.clear()
        product_5x5([Counted(x) for x in numbers(n)])
        assert Counted.tally["mul"] == 5**3  # the same work, whatever n is

# But why can a fit find growth where there is none?

if rank == 0:
    for _, fitted in fits:
        residual = {type(c).__name__: r for c, r in fitted.items()}
        assert residual["Linear"] <= residual["Constant"]

# A line has a slope to adjust and a flat line has not. On ten points of pure noise some
# slope fits a little better than none, and the same holds for $\log n$, $n^2$ and
# $n^3$. The best of them wins, unless it is better by less than `big_o`'s margin of
# $10^{-6}$. That margin is in squared units of the time: in seconds it hides such small
# differences in many runs, and the answer is then `Constant`, right for the wrong
# reason; in milliseconds it hides almost none. So the verdict is a lottery, and the
# residuals give it away.

if rank == 0:
    fig, ax = plt.subplots(num="noise")
    for _, fitted in fits:
        share = unexplained(fitted)
        ax.plot([share[name] for name in names], names, "o", color="C1", fillstyle="none")
    ax.plot([growing[name] for name in names], names, "o", color="C0", label="growing with n")
    ax.plot([], [], "o", color="C1", fillstyle="none", label="always 5 by 5, three runs")
    ax.axvline(1, color="black", linewidth=1, linestyle="--")
    ax.set(xscale="log", xlabel="residual, as a share of the flat line's")
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, fontsize=9)
    save_figures()

# Where there is growth, the right class leaves next to nothing and the wrong ones leave
# far more. Where there is none, all classes stay near the dashed line, and even the
# best leaves a good part unexplained: the gap of orders of magnitude is missing. Before
# you believe a fit, ask what the flat line would have said.

# --- Fewer than $n^3$ -----------------------------------------------------------------

# Cut each matrix into four blocks. The product of the $2 \times 2$ block matrices takes
# eight block products. In 1969 Strassen found that seven are enough [strassen1969], at
# the price of more additions. Additions are cheap for blocks: adding two $m \times m$
# blocks takes $m^2$ operations, multiplying them about $2m^3$. And each of the seven
# can again be done with seven.


def strassen(A, B, leaf, multiply):
    """The product of two n-by-n arrays by Strassen's recursion (Strassen, 1969).

    n: leaf times a power of two. leaf: blocks of this size go to multiply(A, B).
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


def by_loops(A, B):
    """The three loops, for arrays."""
    return np.array(product(A.tolist(), B.tolist()))


def strassen_to(leaf):
    """Strassen's recursion down to leaf, with the three loops below it."""
    return lambda A, B: strassen(A, B, leaf, by_loops)


# Predict: For a 2×2 product the three loops take 8 multiplications and 4 additions.
# What does Strassen take? Count the plus and minus signs above.

if rank == 0:
    print("\n## Fewer than $n^3$\n")
    rng = np.random.default_rng(0)
    for levels in range(5):
        n = 2**levels
        A, B = rng.integers(-9, 10, (2, n, n)).tolist()
        entries, tally = count(strassen_to(1), A, B)
        assert entries == product(A, B)
        assert tally["mul"] == 7**levels
        assert tally["add"] == 6 * (7**levels - 4**levels)
        if n == 2:
            result("strassen_2x2", [tally["mul"], tally["add"]])
    result("multiplications_16", tally["mul"])
    result("multiplications_16_loops", 16**3)
    result("total_16", tally.total())
    result("total_16_loops", 16**3 + 16**2 * 15)

# It takes (strassen_2x2) of them, instead of 8 and 4. For 16×16, cut down to single
# numbers, the multiplications fall from (multiplications_16_loops) to
# (multiplications_16). But with the additions it is (total_16) operations instead of
# (total_16_loops). So where does it begin to pay? We need not run it for that; the
# recursion counts itself.


def operations(n, leaf):
    """Multiplications and additions of strassen(), with plain products from leaf on."""
    if n <= leaf:
        return 2 * n**3 - n**2
    return 7 * operations(n // 2, leaf) + 18 * (n // 2) ** 2


if rank == 0:
    for leaf in (1, 2, 4, 8, 16):
        _, tally = count(strassen_to(leaf), A, B)
        assert operations(16, leaf) == tally.total()

    powers = [2**k for k in range(1, 13)]
    all_the_way = [n for n in powers if operations(n, 1) < operations(n, n)]
    one_level_down = [n for n in powers if operations(n, n // 2) < operations(n, n)]
    result("crossover_all_the_way", all_the_way[0])
    result("crossover_one_level", one_level_down[0])

# Cut all the way down to single numbers, Strassen needs fewer operations only when $n$
# reaches (crossover_all_the_way). Cut once, with plain products below, it needs fewer
# from (crossover_one_level) on. Hence the rule: recurse while the blocks are large, and
# stop early. Where to stop is the leaf size.
#
# Operations are not seconds. We time one level of Strassen against the plain product,
# with two kinds of product below: our loops, and NumPy's `@`, which calls a BLAS: a
# tuned library of Basic Linear Algebra Subprograms [dongarra1990]. PyTorch's `@` on a
# CPU calls one too.


def best_time(function, *args, repeat=5):
    """Seconds for function(*args): the shortest of `repeat` calls, after one to warm up."""
    function(*args)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function(*args)
        times.append(time.perf_counter() - start)
    return min(times)


# Predict: One level saves one product in eight, so at best the time falls to $7/8$. For
# which of the two kinds of product will Strassen pay at smaller $n$: the slow loops or
# the fast BLAS?


def one_level(multiply, n, repeat):
    """Time of one level of Strassen, as a multiple of the plain product's, for n-by-n."""
    A, B = rng.random((2, n, n))
    plain = best_time(multiply, A, B, repeat=repeat)
    return best_time(strassen, A, B, n // 2, multiply, repeat=repeat) / plain


if rank == 0:
    loops_n, blas_n = [96, 64, 32, 16, 8, 4], [1024, 512, 256, 128, 64]
    loops_ratio = [one_level(by_loops, n, repeat=6) for n in loops_n]
    with threadpool_limits(1, user_api="blas"):  # one thread, like the loops
        blas_ratio = [one_level(np.matmul, n, repeat=5) for n in blas_n]
    assert blas_ratio[-1] > 1  # 64-by-64: far too small for Strassen over BLAS

if rank == 0:
    counted_ratio = [operations(n, n // 2) / operations(n, n) for n in powers]
    fig, ax = plt.subplots(num="strassen")
    ax.plot(powers, counted_ratio, "--", color="C7", label="operations, counted")
    ax.plot(loops_n, loops_ratio, "o-", color="C0", label="time, over Python loops")
    ax.plot(blas_n, blas_ratio, "o-", color="C1", label="time, over BLAS")
    ax.axhline(1, color="black", linewidth=1)
    ax.axhline(7 / 8, color="black", linewidth=1, linestyle=":")
    ax.text(2, 0.86, "7/8", va="top")
    ax.set(xlabel="n", ylabel="Strassen / plain product", ylim=(0.7, 2.6))
    ax.set_xscale("log", base=2)
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, fontsize=9)
    save_figures()

# The counted operations come down to $7/8$, and the loops follow. BLAS falls too at
# first, but it may rise again: where the blocks are megabytes, each sum is put into
# memory fresh from the operating system, and to touch a new page for the first time
# costs more than the addition. That is no operation either. (On a machine that is busy
# with other things the times wander.) But they cross 1 at different places: the counted
# operations first, the loops later, BLAS last, if at all in this plot. The crossover
# depends on what a product costs compared with an addition. Over Python loops a product
# is so slow that the additions, done by NumPy, hardly matter; what delays the crossing
# is what each call costs besides, such as turning arrays into lists and cutting and
# joining blocks. BLAS makes products fast and leaves additions as slow as memory is, so
# Strassen has to wait for much larger matrices. The better the plain product, the less
# there is to gain; with great care it can be gained all the same [huang2016].
#
# The leaf size shows the same from the other side:

if rank == 0:
    n, leaves = 64, [4, 8, 16, 32, 64]
    A, B = rng.random((2, n, n))
    leaf_seconds = np.array([best_time(strassen_to(leaf), A, B) for leaf in leaves])
    leaf_operations = np.array([operations(n, leaf) for leaf in leaves])
    assert leaves[leaf_operations.argmin()] == 8
    fig, ax = plt.subplots(num="leaf")
    for costs, style, color, label in (
        (leaf_operations, "o--", "C7", "operations, counted"),
        (leaf_seconds, "o-", "C0", "time, over Python loops"),
    ):
        ax.plot(leaves, costs / costs[-1], style, color=color, label=label)
    ax.axhline(1, color="black", linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks(leaves, leaves)
    ax.set(xlabel="leaf size (64: no recursion)", ylabel="Strassen / plain product")
    ax.set_ylim(0)
    ax.legend()
    save_figures()

# By operations alone, leaves of 8 would be the best choice. The clock wants larger
# ones: each level of the recursion also calls functions, cuts blocks and makes arrays,
# and none of that is an operation on numbers.
#
# Strassen's recursion gives $O(n^{\log_2 7})$, and $\log_2 7 \approx 2.81$. Better
# exponents are known. In refereed papers the record went from 2.371866 [duan2023] over
# 2.371552 [williams2024] to 2.371339 [alman2025]. (The first of these is sometimes
# quoted as 2.3725. That number is in its abstract too, as the barrier of the older
# method, which it broke.) Preprints of 2026, not refereed when this was written, state
# 2.371177 [dupont2026] and then 9/4, the latter with a proof checked by machine
# [openai2026]. None of this is about matrices that anybody multiplies: such algorithms
# win only at sizes far beyond use. Deep learning runs on the cubic product, done well.
# The rest of the chapter is about doing it well.

# --- What waits for what --------------------------------------------------------------

# The product of 3×3 matrices takes 27 + 18 operations. Does it take as many steps? Only
# if we do them one after another. Suppose there were as many workers as we like, each
# doing one operation per step. An operation can be done as soon as both its operands
# are there. Then each number has an earliest step, and our counting number can carry it
# along.


class Stepped(Counted):
    """A counted number that knows the earliest step at which it can be there.

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
# additions. How many steps do the three loops need for 16×16?


def profile(multiply, n):
    """How many operations become ready at each step of an n-by-n product: a Counter."""
    _, tally = count(multiply, np.ones((n, n)), np.ones((n, n)), number=Stepped)
    steps = Counter()
    for (_, step), times in tally.items():
        steps[step] += times
    return steps


if rank == 0:
    print("\n## What waits for what\n")
    in_a_row = profile(product, 16)
    result("steps_in_a_row", max(in_a_row))
    assert in_a_row[1] == 16**3  # all the multiplications, at once
    assert all(in_a_row[step] == 16**2 for step in range(2, 17))  # then one addition per entry

# The multiplications are indeed independent of each other: all
# (multiplications_16_loops) are ready at step 1. The additions are not. `total = total
# + …` needs the total before it. Entries do not wait for each other, but within an
# entry the additions form a chain, so the product takes (steps_in_a_row) steps.
#
# The sum itself does not ask for a chain. Addition is associative (nearly so in
# floating point), so we may add in pairs, then pairs of pairs.


def tree_sum(terms):
    """The sum of a list, added in pairs, then pairs of pairs."""
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]  # an odd one out waits for the next round
    return terms[0]


def product_by_trees(A, B):
    """The product of two n-by-n matrices given as rows, each entry summed as a tree."""
    columns = list(zip(*B, strict=True))
    return [
        [tree_sum([a * b for a, b in zip(row, column, strict=True)]) for column in columns]
        for row in A
    ]


if rank == 0:
    as_trees = profile(product_by_trees, 16)
    assert as_trees.total() == in_a_row.total() == 16**3 + 16**2 * 15  # the same operations
    for n in range(1, 13):
        assert max(profile(product, n)) == n
        assert max(profile(product_by_trees, n)) == 1 + math.ceil(math.log2(n))
    result("steps_as_trees", max(as_trees))
    result("operations_16", as_trees.total())

if rank == 0:
    fig, ax = plt.subplots(num="profile")
    for shift, steps, color, label in (
        (-0.2, in_a_row, "C1", f"sums in a row: {max(in_a_row)} steps"),
        (0.2, as_trees, "C0", f"sums as trees: {max(as_trees)} steps"),
    ):
        ax.bar([s + shift for s in steps], steps.values(), width=0.4, color=color, label=label)
    ax.set(xlabel="step", ylabel="operations ready", xticks=range(1, 17))
    ax.legend()
    save_figures()

# This is the parallelism profile: how many workers could be busy at each step. Both
# forms do the same (operations_16) operations, so the bars of each color have the same
# area in total. Two numbers sum them up. The work is the number of operations, here
# $n^3 + n^2(n-1)$. The span is the number of steps with as many workers as you like:
# $n$ for the loops, $1 + \lceil \log_2 n \rceil$ for the trees. With $p$ workers the
# number of steps $T_p$ is caught between them [brent1974]:
#
# $$\max\left(\frac{\text{work}}{p},\ \text{span}\right) \;\le\; T_p \;\le\; \frac{\text{work}}{p} + \text{span}.$$

if rank == 0:
    n = 4096
    work, span = n**3 + n**2 * (n - 1), 1 + math.ceil(math.log2(n))
    result("span_4096", span)
    result("parallelism_4096", f"{work / span:.1e}")

# For 4096×4096, work divided by span is (parallelism_4096): that many workers could be
# kept busy on average. No machine has so many. A matrix product never lacks work that
# can be done at once. What it lacks, as we see next, is operands arriving in time.

# --- The ladder -----------------------------------------------------------------------

# One product, many ways of doing it, each measured in GFLOP/s: $2n^3$ operations
# divided by the time, in billions. Numbers are float64 unless it says otherwise, which
# is what a Python `float` is. The slow ways get smaller matrices, or we would wait. For
# the Python loops the rate hardly depends on $n$; for NumPy rows it does, since a
# longer row pays better for its call, so that bar would be a few times longer at the
# size that BLAS gets.


def gflops(multiply, n, dtype=np.float64, repeat=4):
    """Rate of multiply(A, B) on random n-by-n arrays, in GFLOP/s."""
    A, B = rng.random((2, n, n)).astype(dtype)
    return 2 * n**3 / best_time(multiply, A, B, repeat=repeat) / 1e9


if rank == 0:
    print("\n## The ladder\n")
    rate = {"three loops": gflops(by_loops, 64, repeat=10)}

# The first change is the order of the loops. With `k` in the middle, the innermost loop
# runs along a row of `B` and a row of `C`, instead of down a column. Rows lie together
# in memory; columns do not. In a compiled language this small change can bring a large
# gain.


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
    rate["loops reordered"] = gflops(lambda A, B: reordered(A.tolist(), B.tolist()), 64, repeat=10)
    result("gain_reordered", rate["loops reordered"] / rate["three loops"], varies=True)

# Here the rate changed by a factor of (gain_reordered), and on a quiet machine that is
# about 1.1. Most of it comes not from the order: in the new order `A[i][k]` and `B[k]`
# are looked up once a row instead of once an operation. The order in memory is not what
# limits this code. For each multiplication the interpreter executes several
# instructions of its own, looks up types and makes a new object; beside that, memory is
# fast. So take the interpreter out of the innermost loop: one call of NumPy for a whole
# row.


def by_rows(A, B):
    """The same order, with the innermost loop inside NumPy."""
    C = np.zeros_like(A)
    for i in range(len(A)):
        for k in range(len(A)):
            C[i] += A[i, k] * B[k]
    return C


if rank == 0:
    rate["NumPy rows"] = gflops(by_rows, 256)

# A row call does $2n$ operations on about $3n$ numbers: each number is fetched and used
# once. A call on blocks of $b \times b$ does $2b^3$ operations on $3b^2$ numbers, so
# each is used about $b$ times while it is near, in a cache, the small fast memory
# beside each core.


def by_blocks(A, B, b=64):
    """The product cut into b-by-b blocks, each product of two blocks a call of its own."""
    C = np.zeros_like(A)
    for i in range(0, len(A), b):
        for j in range(0, len(A), b):
            for k in range(0, len(A), b):
                C[i : i + b, j : j + b] += A[i : i + b, k : k + b] @ B[k : k + b, j : j + b]
    return C


if rank == 0:
    for multiply in (by_rows, by_blocks, reordered):
        A, B = rng.integers(-9, 10, (2, 128, 128)).astype(float)
        assert np.array_equal(multiply(A, B), A @ B)

# A BLAS does this inside: blocks within blocks, one size for each level of cache and
# one for the registers, with the instructions written by hand [goto2008]. So the last
# rungs are `@` on whole matrices: on one thread, on all processors that the system
# counts (a core that runs two threads counts twice), and on all of them with float32,
# PyTorch's default. (On a Mac, NumPy may use Apple's Accelerate, whose threads
# `threadpoolctl` cannot limit: there read "one thread" as "as many as Accelerate
# takes".)
#
# Predict: How many times faster than three loops is BLAS on one thread: 10, 100, 1000?
# And how much does float32 gain over float64?

if rank == 0:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with threadpool_limits(1, user_api="blas"):
        rate["NumPy blocks"] = gflops(by_blocks, 512)
        rate["BLAS, one thread"] = gflops(np.matmul, 1024)
    with threadpool_limits(cores, user_api="blas"):
        rate["BLAS, all cores"] = gflops(np.matmul, 1024)
        others = [gflops(np.matmul, n) for n in (512, 1536)]
        rate["BLAS, all cores, float32"] = gflops(np.matmul, 1024, dtype=np.float32)
    peak = max(rate["BLAS, one thread"], rate["BLAS, all cores"], *others)
    result("cores", cores, varies=True)

if rank == 0:
    if torch.cuda.is_available():
        A, B = torch.rand(2, 4096, 4096, device="cuda")

        def on_gpu():
            A @ B
            torch.cuda.synchronize()  # the call above returns before the GPU is done

        rate["GPU, float32"] = 2 * 4096**3 / best_time(on_gpu) / 1e9

    assert rate["BLAS, one thread"] > 50 * rate["three loops"]
    result("blas_over_loops", rate["BLAS, one thread"] / rate["three loops"], varies=True)
    result("float32_gain", rate["BLAS, all cores, float32"] / rate["BLAS, all cores"], varies=True)
    result("cores_over_thread", rate["BLAS, all cores"] / rate["BLAS, one thread"], varies=True)

if rank == 0:
    fig, ax = plt.subplots(num="ladder")
    ax.barh(list(rate), rate.values(), color="C0")
    ax.axvline(peak, color="C1", linestyle="--", label="measured peak, float64")
    on_white = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    for y, value in enumerate(rate.values()):
        ax.text(value * 1.2, y, f"{value:.3g}", va="center", fontsize=9, bbox=on_white)
    if "GPU, float32" not in rate:
        ax.text(0.012, len(rate), "GPU: none in this machine", va="center", fontsize=9)
        ax.set_ylim(-0.6, len(rate) + 0.6)
    ax.set(xscale="log", xlabel="GFLOP/s", xlim=(0.01, 8 * max(rate.values())))
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.2), fontsize=9)
    save_figures()

# Every rung does the same $2n^3$ operations; only the time differs. One thread of BLAS
# is (blas_over_loops) times as fast as the three loops. A share of it is the
# interpreter's, removed by calling NumPy for a row at a time. The largest step is from
# rows to blocks, and it is two things at once: each number fetched is used many times,
# and each product of two blocks is itself done by the BLAS, which keeps numbers in
# registers and uses the processor's widest instructions. One call for the whole product
# saves the calls and copies between the blocks. A wide instruction works on several
# numbers at once, and on twice as many if each is half as long. So float32 can gain a
# factor of two ((float32_gain) in this run). What all (cores) processors add to one
# depends on who else wants them: a factor of (cores_over_thread) in this run.
#
# About the dashed line: it is the largest float64 rate that any product reached in this
# run. The processor's theoretical peak is at least as high. How high cannot be read
# reliably from inside Python, so it is not drawn.
#
# Note: The page that you read was made on a machine without a GPU, so the top rung is
# empty. No recording from a GPU is in `images/recorded/` yet; one will stand here with
# its card, driver and date. If your machine has a CUDA GPU, running this chapter
# measures yours.

# --- The roof -------------------------------------------------------------------------

# What stops the ladder where it stops? Two things can limit a computation: how fast the
# processor computes, and how fast memory delivers. Which of them does, depends on the
# arithmetic intensity $I$, the operations done for each byte moved. With a peak $P$
# (flop/s) and a memory bandwidth $\beta$ (bytes/s), no code can be faster than
#
# $$\min(P,\ I \cdot \beta),$$
#
# and the plot of that is the roofline [williams2009]. We measure $\beta$ like the
# STREAM benchmark [mccalpin1995]: add two arrays that should be too large for the cache
# and count 24 bytes for each addition: two numbers read, one written. (Many processors
# also read the place that will be written, so that 32 bytes move; code that only reads
# can then stand up to a third above the slope. If your processor's last cache is larger
# than these arrays, take more.) Everything in this section is on one core; the rungs on
# all processors, in float32 and on a GPU each have a roof of their own, which is not
# drawn here.

if rank == 0:
    print("\n## The roof\n")
    x, y, z = np.ones((3, 1 << 23))  # 64 MiB each
    add_seconds = best_time(np.add, x, y, z, repeat=20)
    bandwidth = 24 * len(x) / add_seconds / 1e9  # GB/s
    core_peak = rate["BLAS, one thread"]
    ridge = core_peak / bandwidth
    result("bandwidth", bandwidth, varies=True)
    result("ridge", ridge, varies=True)
    save_figures()

# Below (ridge) flops per byte, memory is the limit on this machine; above, the
# processor is. Now the intensities. The bound holds for the bytes that really cross
# between memory and processor ([williams2009] call this operational intensity). Caches
# decide which those are, and Python cannot see it. So we take the bytes that the code
# asks for, 8 for each number: each operation reads its operands and writes its result,
# and nothing is remembered. Where caches help, that places a point too far left, never
# too far right; and the ladder's matrices are small enough to lie in a large cache, so
# for them the slope is a landmark and not a limit. (The lists of the loops ask for more
# than this: each entry is a pointer to a number elsewhere.) What "operation" means is
# what changes up the ladder.
#
# | one operation is | flops | float64 numbers moved | intensity (flop/byte) |
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
        vector_rate = 2 * n**2 / best_time(np.matmul, M, v, repeat=20) / 1e9
    assert vector_rate < rate["BLAS, one thread"]
    result("vector_roof", min(core_peak, 2 / 8 * bandwidth), varies=True)
    result("vector_rate", vector_rate, varies=True)
    save_figures()

if rank == 0:
    intensity = {"three loops": 2 / 16, "loops reordered": 2 / 24, "NumPy rows": 2 / 40}
    intensity |= {"NumPy blocks": 64 / 24, "BLAS, one thread": 1024 / 12}
    fig, ax = plt.subplots(num="roofline")
    x_axis = np.geomspace(0.004, 3000)
    roof = np.minimum(core_peak, x_axis * bandwidth)
    ax.loglog(x_axis, roof, color="black", label="roof of one core")
    points = {name: (intensity[name], rate[name]) for name in intensity}
    points["add two arrays"] = (1 / 24, bandwidth / 24)
    points["matrix times vector"] = (2 / 8, vector_rate)
    for name, (flop_per_byte, value) in points.items():
        marker, color = ("o", "C0") if name in rate else ("s", "C1")
        ax.loglog(flop_per_byte, value, marker, color=color)
        side, shift = ("right", -6) if name == "loops reordered" else ("left", 6)
        style = {"textcoords": "offset points", "ha": side, "va": "top", "fontsize": 9}
        ax.annotate(name, (flop_per_byte, value), (shift, -3), **style)
    ax.set(xlabel="arithmetic intensity (flop/byte)", ylabel="GFLOP/s", ylim=(0.01, 4 * core_peak))
    ax.legend(loc="upper left")
    save_figures()

# Read it from the right. The whole product does so many operations per byte that memory
# is no limit: it stands at the flat roof, which is its own rate by definition. Matrix ×
# vector, from the same library, hangs at the slope: the roof promised at most
# (vector_roof) GFLOP/s and it reached (vector_rate). No better code will lift it much,
# since the bytes have to come. (A point can stand above the slope: if its numbers fit
# in the cache, which delivers faster than the memory that $\beta$ was measured on, or
# if something else disturbed the measurement of $\beta$.)
#
# The loops hang far below any roof. Neither memory nor arithmetic stops them; it is the
# interpreter, which is in neither axis. That is the use of this picture: it says which
# thing to work on. Below both roofs: the code. At the slope: fewer bytes, or more work
# per byte. At the flat roof: more processors.

# --- Rows over two processes ----------------------------------------------------------

# At the flat roof, then, more processors. The rows of $C$ do not wait for each other:
# whoever has the rows of $A$ that belong to them, and all of $B$, can compute them
# alone. We start a few processes and give each its share. In chapter 5 you learn what
# they are and how they come about. Here it is enough to know that each has its own
# memory, a number `rank`, and a `world_size`, which says how many they are. A cell that
# begins with `%%px` runs on all of them.


def from_rank_0(make):
    """What make() returns on rank 0, in the kernel, on every rank: a copy for each."""
    before = play("kernel")
    box = [pickle.dumps(make()) if rank == 0 else None]
    dist.broadcast_object_list(box, group=driver)
    play(before)
    return pickle.loads(box[0])


def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


# The entries are small whole numbers, so all sums are exact in float64 and "equal" can
# mean equal, in whatever order they were added.

if rank == 0:
    print("\n## Rows over two processes\n")
    torch.manual_seed(0)
    A, B = torch.randint(-8, 9, (2, 1003, 1003)).double()
    whole = A @ B

push("A", lambda: A)
push("B", lambda: B)

play("ranks")
rows_each = len(A) // world_size
my_rows = A[rank * rows_each : (rank + 1) * rows_each] @ B


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)
    return values


# Predict: We glue the pieces together in rank order. Will the result equal the whole
# product?

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
        print(f"rank {rank} failed, as it may here: {type(error).__name__}: {first_line}")


if rank == 0:
    with may_fail():
        assert torch.equal(glued, whole), f"{list(glued.shape)} is not {list(whole.shape)}"

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

# --- How much faster? -----------------------------------------------------------------

# Each rank times its own part, with one thread. Rank 0 also does the whole product,
# while the others rest.


def seconds_for(rows, repeat=7):
    """Seconds for rows @ B: the shortest of `repeat` calls, after one to warm up."""
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        rows @ B
        times.append(time.perf_counter() - start)
    return min(times[1:])


everyone()
play("ranks")


whole_seconds = seconds_for(A) if rank == 0 else 0.0

everyone()
part_seconds = seconds_for(A.tensor_split(world_size)[rank])

# The ranks' memory is separate, so the matrices have to be moved in and the pieces out.
# We time that too: it is part of the job.

everyone()
if rank == 0:
    play("kernel")
    start = time.perf_counter()

push("A", lambda: A)
push("B", lambda: B)
pieces = to_rank_0(my_rows)
if rank == 0:
    moving = time.perf_counter() - start

# Predict: How many times faster are all the ranks together than one, for the product
# alone? And if the moving counts as well?

whole_seconds_by_rank = to_rank_0(whole_seconds)
if rank == 0:
    alone = max(whole_seconds_by_rank)  # rank 0's; the others have 0

part_seconds_by_rank = to_rank_0(part_seconds)
if rank == 0:
    together = max(part_seconds_by_rank)  # the slowest rank decides
    serial = moving / (moving + alone)
    result("speedup_product", alone / together, varies=True)
    result("speedup_with_moving", alone / (moving + together), varies=True)
    result("serial_share", serial, varies=True)
    result("amdahl_limit", 1 / serial, varies=True)


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


# The speed-up is the time of one divided by the time of many. If a share $s$ of the
# time is serial, so that it does not shrink with more ranks, then with $p$ ranks it is
# at most
#
# $$\frac{1}{s + (1-s)/p}, \qquad\text{and never more than } \frac{1}{s}.$$
#
# That is Amdahl's law [amdahl1967]. Here the moving is the serial share.


def amdahl(s, p):
    """The largest speed-up with p ranks if a share s of the time is serial."""
    return 1 / (s + (1 - s) / p)


if rank == 0:
    p = np.linspace(1, 8)
    serial_4n = 4**2 * moving / (4**2 * moving + 4**3 * alone)  # predicted from n² and n³
    fig, ax = plt.subplots(num="amdahl")
    ax.plot(p, p, "--", color="C7", label="ideal")
    ax.plot(p, amdahl(serial_4n, p), ":", color="black", label=f"Amdahl, {serial_4n:.0%}, for 4 n")
    ax.plot(p, amdahl(serial, p), color="black", label=f"Amdahl, {serial:.0%} serial")
    measured = {"product alone": alone / together}
    measured["with moving"] = alone / (moving + together)
    for marker, (name, speedup) in zip("os", measured.items(), strict=True):
        ax.plot(world_size, speedup, marker, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set(xlabel="ranks", ylabel="speed-up", xticks=[1, 2, 4, 8], xticklabels=[1, 2, 4, 8])
    ax.set(yticks=[0.25, 0.5, 1, 2, 4, 8], yticklabels=["1/4", "1/2", 1, 2, 4, 8])
    ax.set_ylim(0.8 * min(0.3, *measured.values()), 9)
    ax.legend(fontsize=9)
    save_figures()

# For the product alone the speed-up was (speedup_product); at best it equals the number
# of ranks, if each has a core to itself and nobody else wants it. (A higher value means
# that the time of one was disturbed, or that the parts fit in a cache which the whole
# does not.) With the moving it was (speedup_with_moving). Below 1 means that the
# kernel, which has both matrices already, would have been faster alone.
#
# The curves ask a kinder question: suppose the moving had to be done even for one rank.
# Then it is (serial_share) of that job, and by Amdahl's law no number of ranks makes it
# more than (amdahl_limit) times as fast. Even that is too kind: every rank gets all of
# $A$ and $B$, one after another, so the moving is not constant but grows with the
# ranks.
#
# The share is not a law of nature. Moving grows with $n^2$ and the product with $n^3$,
# so for larger matrices the curve rises; the dotted one is the prediction for four
# times the rows. And we were wasteful: every rank got all of $A$, one after another,
# through a channel that is made for convenience. How to move less, faster, and while
# the product is running, is what the rest of this book is about.

# --- What you can do now --------------------------------------------------------------

# - Count the operations of an algorithm by running it on numbers that count, and find
#   out which of them wait for which.
# - Tell growth from noise, and cubic from exponential.
# - State work and span, and from them how much could be done at once.
# - Place a computation under the roofline, and say what to work on: code, bytes, or
#   processors.
# - Predict with Amdahl's law what more processes can bring.

# --- Run it on a cluster --------------------------------------------------------------

# The script of this chapter needs nothing of this book. Take it along and start it with
# as many ranks as you like:
#
# ```bash
# torchrun --standalone --nproc-per-node 2 scripts/01_matmul.py
# ```
#
# All but the last section runs on rank 0 alone. On two machines, start the same line on
# each with `--nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29400` instead of
# `--standalone`; then the moving goes over the network.

# --- Where to read on -----------------------------------------------------------------

# - [goto2008]: how a BLAS gets near the peak. The best next step if the ladder made you
#   curious.
# - [williams2009]: the roofline, by its inventors, with more roofs than ours.
# - [cormen2022]: growth of functions, Strassen's algorithm, and a chapter on work and
#   span.
# - [huang2016]: what it takes to make Strassen's algorithm pay in practice.
# - [alman2025]: the best exponent proven in a refereed paper.

leave_group()
