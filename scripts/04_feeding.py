# Chapter 4 of Many Ranks, One Model, as one script. Generated from book/04_feeding.md.
#
# Run it: python 04_feeding.py
#
# pip install matplotlib numpy torch vl-convert-python

import html
import itertools
import json
import math
import os
import re
import signal
import sys
import tempfile
import textwrap
import time
import warnings
from copy import deepcopy
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

if any(os.environ.get(name, "0") != "0" for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")):
    sys.exit()  # one process is enough: of several, all but the first end here


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


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


del __file__  # processes that this one starts, and that import it, must not run it again


# === Data loading and GPU utilization: keep the processor busy ========================

# The meter shows 20 %: what is the processor waiting for? It shows 100 %: is it doing
# anything?
#
# An expensive processor that waits for its input costs as much as one that computes. At
# the end you can
# - say what a utilization number means, and what it does not;
# - tell a training loop that is starved by its input from one that is fed;
# - predict how many workers it takes to feed it;
# - find the two mistakes that workers bring along.
#
# 25 minutes to read, 8 predictions · 40 seconds to run · stands on chapter 3
#
# Everything here runs on your GPU if you have one, and else on your CPU. On a CPU we
# leave the training one thread, so that the other cores are free to load data.

on_gpu = torch.cuda.is_available()
place = torch.device("cuda" if on_gpu else "cpu")
meter = "gpu" if on_gpu else "cpu"
column = "utilization_percent" if on_gpu else "own_percent"
torch.set_num_threads(1)
torch.manual_seed(0)
result("processor", place.type, varies=True)

# --- What the number means ------------------------------------------------------------

# Here are four things that a processor can be told to do, again and again. Beside each
# stands how many floating-point operations it is.

print("\n## What the number means\n")
n = 8192 if on_gpu else 512
one = torch.ones(1, device=place)
square = torch.rand(n, n, device=place)
spin = partial(torch.cuda._sleep, 10**7) if on_gpu else time.perf_counter
activities = {
    "asleep": (partial(time.sleep, 0.01), 0),
    "spinning": (spin, 0),  # it asks what time it is
    "tiny sums": (partial(one.add_, 1), 1),
    "matrix products": (partial(torch.matmul, square, square), 2 * n**3),
}

try:
    from ranklab.gpu import recorded, sampled, utilization_plot
except ImportError:
    recorded = sampled = utilization_plot = None
    print("What ranklab.gpu measures is left out, for it is not installed here")

# `sampled` reads the utilization ten times a second while its block runs: of a GPU
# through NVML, the library behind `nvidia-smi`; of the CPU through `psutil`. On the CPU
# we look at this process alone, without the processes that it starts, and 100 % is one
# core. Linux counts a process's time in hundredths of a second, so a single reading is
# off by up to 10 %, and may stand above 100; means are exact.

if recorded:
    def repeated(operation, seconds):
        """Call operation() for so long; return how often that was."""
        calls, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            operation()
            if on_gpu:
                torch.cuda.synchronize()  # a call only queues a GPU's work
            calls += 1
        return calls


    def percents_and_rates(operations, seconds=1.5 if on_gpu else 0.25, rounds=3):
        """What the meter says of each, and calls a second, for each round."""
        percents, rates = ({name: [] for name in operations} for _ in range(2))
        for _ in range(rounds):
            for name, operation in operations.items():  # they take turns
                repeated(operation, 1 if on_gpu else 0.05)  # warms up the meter
                with sampled(of=meter) as s:
                    calls = repeated(operation, seconds)
                percents[name].append(s.mean(column))
                rates[name].append(calls / s.time_s[-1])
        return percents, rates

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

# Predict: Sort the four by what the meter will show, and then by the operations done in
# a second.

if recorded:
    percents, rates = percents_and_rates(
        {name: operation for name, (operation, _) in activities.items()}
    )
    gflops = {
        name: max(rates[name]) * flops / 1e9
        for name, (_, flops) in activities.items()
    }


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if recorded:
    fig, ax = plt.subplots(num="utilization-and-work", figsize=(5.2, 2.8))
    y, best = np.arange(len(percents)), gflops["matrix products"]
    low, high = np.array([(min(p), max(p)) for p in percents.values()]).T
    done = [100 * rate / best for rate in gflops.values()]
    ax.barh(y - 0.18, high, height=0.34, color="C0", label="utilization (%)")
    ax.hlines(y - 0.18, low, high, color="black", linewidth=2)
    ax.barh(y + 0.18, done, height=0.34, color="C1", label="operations (%)")
    for row, share in zip(y, done):
        number = f"{share:.0f}" if share > 1 else f"{share:.1g}"
        ax.text(share + 1, row + 0.18, number, va="center", fontsize=9)
    ax.set_yticks(y, percents)
    ax.invert_yaxis()
    ax.set_title("The meter shows as much where nothing gets done", fontsize=10)
    ax.set(xlabel="%, best of three rounds; black: lowest to best")
    ax.legend(loc="upper left", bbox_to_anchor=(-0.2, -0.25), ncols=2, fontsize=9)
    save_figures()

# From ranklab.taught.matmul:


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


if recorded:
    idle, *running = map(max, percents.values())
    if cores_are_free():
        full = running[::2] if on_gpu else running  # a GPU idles between sums
        assert max(running) > 3 * idle and min(full) > max(running) / 2
    assert gflops["spinning"] == 0
    assert gflops["tiny sums"] < gflops["matrix products"] / 100
    result("percents", [round(value) for value in (idle, *running)], varies=True)
    tiny_share = gflops["tiny sums"] / gflops["matrix products"]
    result("rate_of_tiny", tiny_share, varies=True)

# The meter showed (percents) %: it tells sleep from the rest, and the last three hardly
# from each other. A loop that does nothing but spin shows about as much as a matrix
# product. Sums of one number at a time reach (rate_of_tiny) of the product's rate; the
# picture says it in percent.
#
# NVIDIA's driver reports a GPU's utilization as the percentage of time, over its last
# sample period, during which one or more kernels was executing; the period is between a
# sixth of a second and a second [nvml]. A kernel, here, is a function that runs on the
# GPU. An operating system reports a core in the same spirit: the share of time in which
# some process ran on it. Both say how long something was running. Neither says how much
# of the processor it used, or for what.
#
# So the number can be trusted in one direction. Low utilization proves that the
# processor waits. High utilization does not prove that it works. A GPU is made of many
# multiprocessors that compute side by side, an H100 SXM of 132 [hopper], and a kernel
# that occupies a single one of them counts in full. So does one that waits for a
# message of another GPU.
#
# Whether a GPU works is a question for operations per second against the peak, the MFU
# of chapter 3, or simply for examples per second. Between utilization and MFU stands
# what DCGM measures: the share of multiprocessors that had something to do, and the
# share of time in which their matrix units worked [dcgm].
#
# The same can be seen in a real training step, on data that is already in memory:

features = 8192 if on_gpu else 1024
model = nn.Sequential(
    nn.Linear(features, 2 * features),
    nn.ReLU(),
    nn.Linear(2 * features, 10),
).to(place)


def step(x, y):
    """A training step on x (batch, features) and y (batch,), classes."""
    x, y = x.to(place, non_blocking=True), y.to(place, non_blocking=True)
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
    if on_gpu:
        torch.cuda.synchronize()


# Predict: The same step on batches of 1 and of 256 examples. Which one shows more
# utilization? Which one gets through more examples a second, and how many times as
# many?

if recorded:
    steps = {
        size: partial(step, torch.randn(size, features), torch.arange(size) % 10)
        for size in (1, 256)
    }
    shown, rates = percents_and_rates(steps)
    seen = {size: (max(shown[size]), max(rates[size]) * size) for size in steps}
    for size, (percent, rate) in seen.items():
        print(f"batch {size:3}: {percent:3.0f} %, {rate:8.0f} examples/s")

if recorded:
    per_percent = [rate / percent for percent, rate in seen.values()]
    assert per_percent[1] > 2 * per_percent[0]
    gain = per_percent[1] / per_percent[0]
    result("large_over_small_batch", gain, varies=True)
    result("times_the_examples", seen[256][1] / seen[1][1], varies=True)

# The larger batch gets through (times_the_examples) times as many examples a second.
# Which of the two shows the higher utilization stands in the two lines above. For each
# percent of it, the larger batch gets through (large_over_small_batch) times the
# examples. Either step updates all weights once, whether for one example or for 256.
# From here on throughput decides, in examples per second, and utilization is a symptom.

# --- Watch it starve ------------------------------------------------------------------

# A training loop takes a batch, makes a step, takes the next. Where the batch comes
# from is the job of a `Dataset`, which gives examples, and a `DataLoader`, which puts
# them together [torchdata].
#
# An example can be slow for two reasons. It may have to come from a disk or over a
# network: then the processor has nothing to do meanwhile. Or it has to be made, by
# decoding, resizing, tokenizing: then a core works. We want both, as slow as we choose,
# so that what comes out can be compared with what should. Where a dataset has a method
# `__getitems__`, the loader asks it for a whole batch at once.


class Fetched(Dataset):
    """100 000 examples, each `seconds` long on its way, as over a network.

    An example is (x, y): x float32, `features` times its index; y a class of
    10. A batch is asked for as a whole, and is waited for once.
    """

    def __init__(self, features, seconds):
        self.features, self.seconds = features, seconds

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return self.__getitems__([i])[0]

    def __getitems__(self, indices):
        self.take_time(indices)
        shape = (self.features,)
        return [(torch.full(shape, float(i)), i % 10) for i in indices]

    def take_time(self, indices):
        """Wait for these examples."""
        time.sleep(self.seconds * len(indices))


class Decoded(Fetched):
    """The same examples, each of which takes `seconds` of a core to make."""

    def take_time(self, indices):
        """Compute. A core's seconds count, however many share the core."""
        end = time.thread_time() + self.seconds * len(indices)
        while time.thread_time() < end:
            pass


# PyTorch's loader has workers: processes that fetch batches. Ours are forked: copies of
# this process, which therefore know the classes of a notebook. We ask for that by name,
# as it is not the default everywhere.


def loader(dataset, batch_size=None, workers=0, **options):
    """A DataLoader; its workers, if any, are forked from this process."""
    if workers:
        options["multiprocessing_context"] = "fork"
    return DataLoader(dataset, batch_size, num_workers=workers, **options)


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


# Warning: Forks have two traps, for your own datasets. Once this process has used the
# GPU, a copy of it cannot. And other threads are not copied, but the locks that they
# hold are: whoever asks for one in the copy waits forever. If a dataset touches either,
# put it into a file and take `"forkserver"` [multiprocessing]: new Pythons, which do
# not know what a notebook defines.

print("\n## Watch it starve\n")
warnings.filterwarnings("ignore", message="This DataLoader will create")
show(warnings.filterwarnings("ignore", message="This process .* is multi-threaded"))

# Predict: Everybody writes `DataLoader(data, batch_size=32)` once. How many worker
# processes load the data?

plain = DataLoader(Fetched(features, 0), batch_size=32)
result("default_workers", plain.num_workers)
ahead = DataLoader(Fetched(features, 0), num_workers=1).prefetch_factor
result("default_prefetch", ahead)
assert plain.num_workers == 0

# None. The default is often said to be one. It is (default_workers), and that is
# something else. With 0 workers, the training process itself fetches each batch,
# between two steps: it waits for every example, then computes, then waits. With 1
# worker there is a second process, which fetches the next batch while the first one
# computes. It may be `prefetch_factor` batches ahead, (default_prefetch) by default;
# more of that below.
#
# Now both, with the meter running. A step on one batch takes 0.3 seconds here, as a
# larger model's might: we repeat our small step for that long. To load a batch takes
# three times as long.


def throughput(batches, step, count, warm_up=3, repeats=3):
    """Examples a second that step(x, y) gets through, in each of `repeats`.

    batches: a DataLoader, or whatever gives (x, y). Each repeat is `count`
    batches; the first warm_up batches are in none, as workers start then.
    """
    batches = iter(batches)

    def after(many):
        start, examples = time.perf_counter(), 0
        for x, y in itertools.islice(batches, many):
            step(x, y)
            examples += len(x)
        return examples / (time.perf_counter() - start)

    after(warm_up)
    return [after(count) for _ in range(repeats)]


if recorded:
    batch = 32


    def watched(workers, seconds, count):
        """Train with the meter running: what it showed, and examples a second."""

        def long_step(x, y):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                step(x, y)

        data = Fetched(features, 3 * seconds / batch)
        with sampled(of=meter) as s:
            batches = iter(loader(data, batch, workers))  # ends after the block
            rates = throughput(batches, long_step, count, max(workers, 1), 2)
        return s, max(rates)

# Predict: With no worker the loop loads for three steps' time, then trains for one.
# What will the meter show on average? And how many times as fast is the loop if four
# workers load?
#
# A third run is like the first, but in steps of 0.01 seconds.

if recorded:
    starved, slowly = watched(workers=0, seconds=0.3, count=2)
    fed, quickly = watched(workers=4, seconds=0.3, count=3)
    fine, _ = watched(workers=0, seconds=0.01, count=20)
    over_time = {"starved, 0 workers": starved, "fed, 4 workers": fed}
    over_time["starved, fine teeth"] = fine

if recorded:
    show(utilization_plot(over_time, name="starved-and-fed"))

if recorded:
    working = fed[column][np.array(fed.time_s) > 1.5]  # the workers have started
    low = np.mean(working) / 10
    readings = starved[column], working, fine[column][1:]
    idle = [np.mean(one < low) for one in readings]
    if cores_are_free():
        if not on_gpu:  # a GPU's meter may average over a tooth and its gap
            assert idle[0] > 0.5 and max(idle[1:]) < 0.7 * idle[0]
        assert 2.5 < quickly / slowly < 4.5
    result("idle_starved", idle[0], varies=True)
    result("idle_fed", idle[1], varies=True)
    result("idle_fine", idle[2], varies=True)
    result("long_fed_over_starved", quickly / slowly, varies=True)
    result("starved_percent", starved.mean(column), varies=True)
    result("cost_of_sampling", starved.cost, varies=True)

# At the top: teeth. Every tooth is a batch trained on, every gap a wait, and the
# average is (starved_percent) %; with a core to itself it would be one step in four, 25
# %. The loop is starved: in (idle_starved) of the readings there was next to nothing.
#
# In the middle, once the workers have started, that was so in (idle_fed), and the gaps
# between the steps have closed. The average in its title includes the start. The same
# step on the same data gets through (long_fed_over_starved) times as many examples; (3
# + 1)/1 = 4 was to be expected.
#
# At the bottom the same loop is starved, too, but in steps of 0.01 seconds. Each
# reading is now the mean over two teeth or more, and next to nothing shows in
# (idle_fine) of them. A low and even utilization can be a starved loop, too. Where a
# tooth is as long as the time between two readings, it is worse: the readings then show
# a pattern that is not there. A GPU's meter averages over its own sample period, up to
# a second: even the long teeth at the top may not show. Watching itself took
# (cost_of_sampling) of a core.

if recorded:
    stored = recorded("04_feeding-gpu", over_time)
    show(utilization_plot(stored, name="recorded") if stored else print("None yet."))

# On an H100 the three curves have the same shapes. Its meter averages over a fifth of a
# second: the long teeth are wider than that, and show. The fine ones are not, and an
# even fifth is all that is left of them.

# --- The knee -------------------------------------------------------------------------

# How many workers are enough? Let a batch take $L$ seconds to load and $S$ seconds to
# train on. With $w$ workers, $w$ batches are under way at a time, each for $L$ seconds,
# so $w/L$ arrive in a second. This is Little's law [little1961]: how many are under way
# equals how many arrive in a second, times how long each is under way. The training
# takes $1/S$ in a second at best. The slower of the two decides:
#
# $$\text{batches per second} = \begin{cases} 1/(L + S) & w = 0 \\ \min(w/L,\ 1/S) & w \ge 1
# \end{cases}$$
#
# The two rates meet at $w = L/S$: the knee. Beyond it more workers bring nothing.
#
# There is a limit that this leaves out. Loading that computes needs cores. If $K$ of
# the $L$ seconds are a core's, then $c$ cores cannot load more than $c/K$ batches in a
# second, with any number of workers. Where the training runs on the same cores, and
# needs $S$ seconds of one for a batch, it is $c/(K+S)$.


def predicted(workers, load, step, core_seconds=0.0, cores=1):
    """Batches a second with so many workers.

    load, step: seconds to load a batch, and to train on it. core_seconds: how
    long a core works for a batch; 0: not at all. cores: how many there are.
    """
    if workers == 0:
        return 1 / (load + step)
    limits = [workers / load, 1 / step]
    if core_seconds:
        limits.append(cores / core_seconds)
    return min(limits)


# To see the two limits apart, we take two inputs that are equally slow. One waits, the
# other computes. The step of this section is what a step on a GPU is for the CPU: a
# wait, in which the cores are free. We leave out that one core may be busy with queuing
# the GPU's work, or with asking whether it is done.

if recorded:
    print("\n## The knee\n")
    S, L = 0.02, 0.08  # seconds, as ordered; they are measured below
    inputs = {
        "waits": Fetched(features, L / batch),
        "computes": Decoded(features, L / batch),
    }


    def gpu_step(x, y):
        """A step on a GPU, as a core sees it."""
        time.sleep(S)

# Predict: To load takes four steps' time, for both. Where is the knee of each, on 2
# cores and on 8? How many times as fast as with no worker does each get?

if recorded:
    workers = {"waits": [0, 1, 2, 4, 6], "computes": [0, 1, 2, 4]}
    measured = {}
    for name, data in inputs.items():
        measured[name] = [
            throughput(
                loader(data, batch, w),
                gpu_step,
                count=2 * max(1, w),  # w batches come together: whole rounds
                warm_up=max(1, w),
            )
            for w in workers[name]
        ]

# Now the formula. What it needs are two measurements without any worker: a batch that
# is loaded and not trained on, and a step on a batch that is in memory. The first is
# read on two clocks: on `thread_time` a batch costs only what a core worked for it. For
# the input that computes this is its $L$, too, on a core that it shares with nobody.

if recorded:
    def load_seconds(data):
        """Seconds to load a batch, by both clocks: the least of four."""
        clocks = time.perf_counter, time.thread_time
        times = [[clock() for clock in clocks]]
        for _ in itertools.islice(loader(data, batch), 4):
            times.append([clock() for clock in clocks])
        return np.diff(times, axis=0).min(axis=0)


    in_memory = itertools.repeat(next(iter(loader(inputs["waits"], batch))))
    step_seconds = batch / max(throughput(in_memory, gpu_step, count=4))
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))  # those that this process may use
    lines = {}
    for name, data in inputs.items():
        load, core = load_seconds(data)
        if name == "computes":
            load = core  # as it would be with a core to itself
        how = load, step_seconds, core, cores
        lines[name] = [batch * predicted(w, *how) for w in workers[name]]
    alone = float(np.median(measured["computes"][0])) / lines["computes"][0]
    free = cores_are_free() and alone > 0.8  # it had a core to itself

if recorded:
    fig, ax = plt.subplots(num="knee", figsize=(5.2, 3.4))
    for name, color in zip(inputs, ("C0", "C1")):
        rates = np.array(measured[name]) * step_seconds / batch
        middle = np.median(rates, axis=1)
        line = np.array(lines[name]) * step_seconds / batch
        ax.plot(workers[name], line, "--", color=color, linewidth=1.5)
        spread = [middle - rates.min(axis=1), rates.max(axis=1) - middle]
        how = {"fmt": "o", "capsize": 4, "color": color, "label": f"input {name}"}
        ax.errorbar(workers[name], middle, spread, **how)
    ceilings = {"the step alone": 1.0}
    if lines["computes"][-1] < 0.9 * batch / step_seconds:
        share = lines["computes"][-1] * step_seconds / batch
        ceilings[f"all that {cores} cores can load"] = share
    for meaning, share in ceilings.items():
        ax.axhline(share, color="black", linewidth=1, linestyle=":")
        ax.text(6.1, share + 0.01, meaning, va="bottom", ha="right", fontsize=9)
    ax.set(xlabel="workers", ylabel="throughput, of the step's own")
    ax.set(ylim=(0, 1.15), xticks=workers["waits"])
    title = f"dots: median of 3 · lines: formula · {cores} cores"
    title += "" if free else ", shared with other programs"
    ax.set_title(title, fontsize=9)
    ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2)
    save_figures()

if recorded:
    waits, computes = (
        [float(np.median(rates)) for rates in measured[name]] for name in inputs
    )
    reached = [rate / line for rate, line in zip(waits, lines["waits"])]
    one, two, four, six = waits[1:]
    if cores_are_free():
        assert reached[3] > 0.8 and min(reached) > 0.7 and max(reached) < 1.2
        assert two > 1.5 * one and four > 1.5 * two
        assert six < 1.2 * four  # above the knee: nothing more
        assert max(computes) < 1.2 * max(lines["computes"])
        assert cores >= 4 or max(computes) < 0.8 * max(waits)
    result("cores", cores, varies=True)
    result("core_share", alone, varies=True)
    result("reached_at_4", reached[3], varies=True)
    gains = [max(rates) / rates[0] for rates in (waits, computes)]
    result("gains", [round(gain, 1) for gain in gains], varies=True)
    wanted = [max(line) / line[0] for line in lines.values()]
    result("predicted_gains", [round(gain, 1) for gain in wanted], varies=True)

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


# The input that waits has its knee at 4 workers, and no core matters: workers that
# sleep need none. With 4 workers it reached (reached_at_4) of what was predicted, and 6
# brought nothing more.
#
# The input that computes has the same $L$, and its line ends where the cores do: on 2
# cores, at 2 workers. With 4 cores or more, on 8 for example, it has its knee at 4,
# like the other. This run had (cores) cores.


def feeding(ms_to_load, ms_to_train, cores):
    load, step, lines = ms_to_load / 1e3, ms_to_train / 1e3, []
    for which, core in (("input waits", 0.0), ("input computes", load)):
        lines += [
            {"x": w, "y": predicted(w, load, step, core, cores), "which": which}
            for w in range(17)
        ]
    without, *_, with_all = lines[:17]
    says = (
        f"the knee is at {load / step:.3g} workers; an input that waits\n"
        f"gets {with_all['y'] / without['y']:.1f} times as fast"
    )
    return says, lines


show(playable(
    feeding,
    line_chart("workers", "batches a second", domain=(0, 100)),
    name="play-knee",
    alt="Batches a second against the number of workers, for an input that "
    "waits and one that computes. Both rise in a line to a ceiling: the "
    "step's own rate, or what the cores can load.",
    ms_to_load=[80, 40, 160],
    ms_to_train=[20, 10, 40],
    cores=[2, 1, 4, 8, 16],
))

# How many times as fast does each get? With no worker a batch takes $L + S = 0.1$ s,
# which is 10 in a second. The step alone does 50, so that the input that waits can
# become 5 times as fast. Two cores load $2/0.08 = 25$, which is 2.5 times as fast; with
# 4 cores or more it is 5 again. In this run the two became (gains) times as fast. From
# the times measured here the formula makes it (predicted_gains).
#
# Where other programs use the cores, the dots of the input that computes lie below its
# line, which is what the cores can do if they do nothing else. They may also stop
# rising at fewer workers. With no worker this input needs one core only, and reached
# (core_share) of its line. If that start is slow as well, the gain, a ratio, can look
# right by accident.
#
# That is why "twice as many workers as GPUs" and "as many as cores" are both wrong as
# rules. Ask the input whether it waits or computes, measure $L$ and $S$, and divide. If
# it computes and the cores are used up, the way out is less work: decode once and store
# the result, or let the GPU do it [mohan2021].

# --- On real machines -----------------------------------------------------------------

# What feeds a GPU are links. The first three are in the order in which a batch takes
# them, and each is slower than the next; the last is for comparison:
#
# | the way of a batch | GB/s | source |
# | --- | ---: | --- |
# | a network card of 400 Gbit/s | 50 | [connectx7] |
# | PCIe 5 with 16 lanes, host to GPU | 64 | [hopper] |
# | an H100's memory (HBM3) to its cores | 3350 | [h100] |
# | this machine: a copy in memory, read and written | (copy_gb_per_s) | measured below |

block, times = torch.ones(1 << 24), []
box = torch.empty_like(block)
for _ in range(5):
    start = time.perf_counter()
    box.copy_(block)
    times.append(time.perf_counter() - start)
copy_gb_per_s = 2 * block.numel() * 4 / min(times) / 1e9
result("copy_gb_per_s", copy_gb_per_s, varies=True)

# Worked problem: A GPU trains on 2,500 images a second, in batches of 256. The storage
# answers after 0.2 seconds, with files of 110 kB; to decode one takes 10 ms of a core.
# How many workers and cores does the GPU need, how many bytes a second from the
# storage, and how much memory for the finished batches of 224 × 224 pixels, 3 colors
# and 4 bytes each? A worker keeps (default_prefetch) of them ready.

s = 256 / 2500  # seconds that a batch is trained on
k = 256 * 0.010  # seconds of a core to decode it
load = k + 0.2
needed = math.ceil(load / s)
result("workers_needed", needed)
result("cores_needed", round(k / s))
result("mb_per_s", round(2500 * 110e3 / 1e6))
waiting = needed * ahead * 256 * 3 * 224 * 224 * 4
result("gb_of_batches", round(waiting / 1e9, 1))

enough = round(k / s)
assert predicted(needed, load, s, k, enough) == 1 / s
assert predicted(needed - 1, load, s, k, enough) < 1 / s
assert predicted(needed, load, s, k, enough - 1) < 1 / s
per_token = 6 * 405e9  # flop: chapter 3's rule
result("tokens_per_s", round(400e12 / per_token))
assert 4 * 400e12 / per_token < 1000  # bytes a second

# $S = 256/2500 = 0.1024$ s and $L = 256 \cdot 0.01 + 0.2 = 2.76$ s, so $L/S$, rounded
# up, is (workers_needed) workers, on (cores_needed) cores, for one GPU. The storage
# must give (mb_per_s) MB/s, which is little for the links above: here it is the cores
# that starve the GPU. And finished batches wait in (gb_of_batches) GB of shared memory,
# of which a container may have far less.
#
# Text is another case. Llama 3's largest model needs $6 \cdot 405 \cdot 10^9$
# operations a token, and a GPU did 400 TFLOP/s of them [llama3]: (tokens_per_s) tokens
# a second, with 4 bytes each less than a kilobyte a second.

# --- What a queue can do, and what it cannot ------------------------------------------

# A worker does not stop when its batch is ready. It goes on until it is
# `prefetch_factor` batches ahead, (default_prefetch) by default. What are more of them
# good for?
#
# Take an input that does not come evenly: no wait for seven batches, then a long one,
# as when a new file is opened. We make two of them. The waits of the first add up to
# three quarters of the steps' time, that is, to 6 steps in every 8 batches. Those of
# the second add up to twice the steps' time, to 16 steps.

if recorded:
    class Files(Fetched):
        """Every 8th batch waits for all of them: its file is being opened."""

        def take_time(self, indices):
            if indices[0] % (8 * batch) == 0:
                super().take_time(range(8 * batch))

# Predict: One worker loads. Will more prefetching help the first of the two inputs? And
# the second?

if recorded:
    print("\n## What a queue can do, and what it cannot\n")
    queues = {2: [], 16: []}  # length of the queue -> of the steps' own rate
    for share in (0.75, 2.0):
        files = Files(features, share * S / batch)
        for length, reached in queues.items():
            batches = loader(files, batch, workers=1, prefetch_factor=length)
            [rate] = throughput(batches, gpu_step, count=16, warm_up=8, repeats=1)
            reached.append(round(rate * step_seconds / batch, 2))
    result("short_queue", queues[2], varies=True)
    result("long_queue", queues[16], varies=True)
    save_figures()

if recorded:
    (short_quick, short_slow), (long_quick, long_slow) = queues.values()
    if cores_are_free():
        assert long_quick > 1.1 * short_quick and long_slow > 1.1 * short_slow
        assert long_slow < 0.7 and long_quick > 1.3 * long_slow

# In a queue of 2, two steps' time of each wait is hidden. So 8 batches take 8 + 6 − 2 =
# 12 steps' time from the first input, and 8 + 16 − 2 = 22 from the second. That lets us
# expect 8/12 = 0.67 and 8/22 = 0.36 of the steps' own rate, and we measured
# (short_queue).
#
# A queue of 16 can hold more than the steps take during a wait of the first input. What
# is left is the slower of two mean rates, the worker's and the steps'. So 1 and 0.5 are
# the most that can be expected, and (long_queue) came out, more than from the short
# queue. The second input delivers half as much as the steps would take, and no queue
# can change that. A queue evens out; it does not speed up. It brings an input to its
# mean rate at best, and it costs memory: workers × `prefetch_factor` batches.
#
# Two more switches. `persistent_workers=True` keeps the workers from one epoch to the
# next, instead of starting them anew. And `pin_memory=True` puts each batch into pinned
# memory, which stays in its place so that the GPU can fetch it by itself. Then
# `.to("cuda", non_blocking=True)` returns at once: the program goes on while the copy
# waits its turn.
#
# A GPU can have several queues of work, its streams. A copy that is asked for on a
# second one, `torch.cuda.Stream`, can run beside the computation: the next batch
# travels while this one is trained on [moens2024]. Without a GPU there is nobody to
# fetch a pinned batch, and PyTorch says so:


def copy_ms(x):
    """Milliseconds until a copy to the GPU is asked for, and is done."""
    x.to(place)  # warm up
    start = time.perf_counter()
    x.to(place, non_blocking=True)
    asked = time.perf_counter()
    torch.cuda.synchronize()
    return 1000 * (asked - start), 1000 * (time.perf_counter() - start)


if on_gpu:
    pageable = torch.randn(1 << 24)
    pinned = pageable.pin_memory()
    for kind, x in (("pageable", pageable), ("pinned", pinned)):
        asked, done = copy_ms(x)
        print(f"{kind}: asked after {asked:.2f} ms, done after {done:.2f} ms")
else:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        next(iter(DataLoader(Fetched(1, 0), pin_memory=True)))
    print(textwrap.fill(str(said[0].message), 80))

# --- Data, twice ----------------------------------------------------------------------

# Now what goes wrong. Not every dataset can be indexed. A stream, from a socket or a
# large file, is an `IterableDataset`: it only says what comes next.


class Stream(IterableDataset):
    """The numbers from 0 to 99, one after the other."""

    def __iter__(self):
        return iter(range(100))


# Predict: The loader hands out batches of 10. How many batches come with 0 workers? And
# with 4?


def numbers(stream, w):
    """All numbers that a loader with w workers hands out."""
    return torch.cat(list(loader(stream, 10, w))).tolist()


print("\n## Data, twice\n")
seen = {w: numbers(Stream(), w) for w in (0, 1, 4)}
assert sorted(seen[4]) == sorted(4 * seen[0])
result("numbers_seen", [len(each) for each in seen.values()])
result("first_twenty", seen[4][:20])
assert seen[4][:40] == 4 * seen[0][:10]

# 10 batches, and 40. With 4 workers, every number came 4 times. Each worker got a copy
# of the dataset with the fork, and went through the whole stream. No error, no warning,
# and a loss would fall. Only counting finds that an "epoch" is four times as long, and
# four batches in a row are the same.
#
# This is the first bug of data parallelism, and you will meet it again with ranks in
# place of workers in chapter 10. The repair is the same there: each one must know who
# it is and how many they are, and take its part.


class Shared(Stream):
    """The same numbers, each of them from one worker only."""

    def __iter__(self):
        info = get_worker_info()  # None in the training process itself
        which, of = (info.id, info.num_workers) if info else (0, 1)
        return itertools.islice(super().__iter__(), which, None, of)


for w in (0, 3, 4):
    assert sorted(numbers(Shared(), w)) == list(range(100))
result("order_with_4", numbers(Shared(), 4)[:12])

# Every number once, though in another order. A dataset with indices has no such
# problem: the training process deals out the indices, and the batches come back in
# order, however many workers there are.

quick = torch.utils.data.Subset(Fetched(1, 0), range(200))
for w in (0, 4):
    order = torch.cat([x for x, _ in loader(quick, 16, w)]).flatten()
    assert order.tolist() == list(range(200))

# Copies have a second trap. Ask what else is copied:


class Noisy(Dataset):
    """For each example: noise of NumPy's global generator, and of its own."""

    def __init__(self):
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return np.random.rand(), self.own.random()


# Predict: Two workers, four examples each, two epochs. Which of the two kinds of noise
# repeats?

global_noise, own_noise = [], []
noisy = Noisy()
for _ in range(2):
    for first, second in loader(noisy, 4, workers=2):
        global_noise.append([round(value, 3) for value in first.tolist()])
        own_noise.append([round(value, 3) for value in second.tolist()])
assert len({tuple(values) for values in global_noise}) == 4
assert len({tuple(values) for values in own_noise}) == 1
print("own:   ", *own_noise, sep="\n  ")
print("global:", *global_noise, sep="\n  ")
result("own_noise", own_noise[0])

# The dataset's own. Each list is a worker's: two of the first epoch, two of the second.
# The generator that the dataset owns was copied, state and all: each worker draws the
# same numbers, and in the next epoch, from a fresh copy, again. An exercise below
# repairs it.
#
# NumPy's global generator does not repeat. PyTorch seeds its own in each worker, from a
# base seed and the worker's number [torchdata], and the printed lists show that
# NumPy's, too, differs. Do not count on it for other libraries: the same page warns
# that their seeds may be duplicated.

# --- A worker that dies ---------------------------------------------------------------

# A worker can also vanish. On a cluster it is typically the system that kills it, when
# memory runs out.


class Deadly(Fetched):
    """Example 40 ends the process that loads it, as a system without memory."""

    def take_time(self, indices):
        if 40 in indices:
            os.kill(os.getpid(), signal.SIGKILL)


if recorded:
    print("\n## A worker that dies\n")
    died = False
    try:
        for x, y in loader(Deadly(features, 0), batch, workers=2):
            step(x, y)
    except RuntimeError as error:
        print(textwrap.fill(str(error), 80))
        died = True
    assert died

# The system tells the training process that a worker is gone, and it raises a
# `RuntimeError`. It knows which one, and not where: the traceback shows what the
# training was doing. It says how the worker ended, Killed, or only that it "exited
# unexpectedly": that depends on who notices first.
#
# Both suggest memory: watch it, and try fewer workers and a shorter queue. In a
# container, look at `/dev/shm` first: workers hand over their batches through it, and a
# bus error is what a worker dies of when it is full. Give the container more,
# `--shm-size` or `--ipc=host` [pytorchreadme].
#
# Where a worker fails with an exception, set the workers to 0: it is then raised in
# your own process, where a debugger works. That is the best reason for the default.

# --- What to do when the number is low ------------------------------------------------

# Measure two rates. Train on one batch that is in memory: that is the ceiling, $1/S$.
# Then go through the loader without training: that is the input's own rate.

if recorded:
    print("\n## What to do when the number is low\n")
    ceiling = batch / step_seconds


    def nothing(x, y):
        """Take the batch, and leave it."""


    def input_rate(w):
        """What the input that waits can do with w workers, of the ceiling."""
        batches = loader(inputs["waits"], batch, w)
        rates = throughput(batches, nothing, count=w, warm_up=w)
        return float(np.median(rates)) / ceiling


    of_ceiling = {w: input_rate(w) for w in (1, 6)}
    result("input_with_1", of_ceiling[1], varies=True)
    result("input_with_6", of_ceiling[6], varies=True)
    assert of_ceiling[1] < 0.5 and (of_ceiling[6] > 1 or not cores_are_free())

# With 1 worker the input reaches (input_with_1) of the ceiling: feed it. With 6 it
# could do (input_with_6) times what the steps take: look at the step. By the formula it
# is 1/4 and 6/4.
# 1. The input is the lower one. Does it wait? More workers, until $w = L/S$ with the
#    $L$ that you measure. Does it compute? Workers up to the cores, then less work for
#    each example. Is it uneven? A longer queue.
# 2. The step is the lower one. The input is not to blame, whatever the utilization
#    says. Larger batches, fewer small operations, chapter 1's roofline. Is it near the
#    peak? Then it works: compare its MFU, or what DCGM says of the multiprocessors, and
#    not the utilization.
# 3. Both are high, and the loop is slow. Then it is what happens between them: copies
#    to the GPU that the step waits for, from memory that is not pinned; a `.item()` or
#    a `print` in each step; workers that start anew in each epoch; workers and training
#    on the same cores.
# 4. A worker dies, or the loader hangs. Memory, `/dev/shm`, a lock that was held at the
#    fork.

# --- Extra: tokens in one file --------------------------------------------------------

# A file for each example is slow to open and to find. Large data sets therefore come in
# shards: files of many examples, one after the other, read from the beginning to the
# end. Text needs even less: all tokens stand in one file, which is a memory map for
# each worker. Nothing is read until a place in it is touched; then the system reads a
# page of it and keeps it, in the page cache, for all processes together. So the second
# epoch comes from memory if the file fits.

print("\n## Extra: tokens in one file\n")
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "tokens.bin"
    np.arange(1_000_000, dtype=np.uint32).tofile(path)
    tokens = np.memmap(path, dtype=np.uint32, mode="r")
    starts = np.random.default_rng(0).integers(len(tokens) - 128, size=8)
    windows = torch.tensor(np.stack([tokens[s : s + 128] for s in starts]))
    assert windows.shape == (8, 128) and len(tokens) == 1_000_000
    assert windows[:, 0].tolist() == starts.tolist()
    del tokens

# Eight windows of 128 tokens, from random places, without asking for the whole file.

# --- What you can do now --------------------------------------------------------------

# - Say what a utilization of 100 % proves, and measure what it does not.
# - Tell a starved loop from a fed one, by its curve and by two measurements.
# - Predict the knee from $L$ and $S$, for input that waits and for input that computes.
# - Choose `num_workers`, `prefetch_factor` and the batch size for a reason.
# - Count what your workers deliver, and keep their randomness apart.

# --- Run it on a cluster --------------------------------------------------------------

#     python scripts/04_feeding.py
#
# It uses one GPU, or one core and its workers. Where everything is started by
# `torchrun`, one process is enough; others would end at once:
#
#     torchrun --standalone --nproc-per-node 1 scripts/04_feeding.py
#
# On a machine with a GPU it writes `04_feeding-gpu.json` into the folder where you
# start it: the two curves, with card, driver, versions, date and command.

# --- Where to read on -----------------------------------------------------------------

# - [torchdata]: every option of the loader, and a section on workers that is worth its
#   length.
# - [mohan2021]: how much time real trainings lose to their input, and to which part of
#   it.
# - [murray2021]: an input pipeline that finds the number of workers and the queue by
#   itself.
# - [little1961]: why the knee is where it is, for any system in which things wait.
# - [nvml]: what each of the driver's numbers means, in a sentence each.
