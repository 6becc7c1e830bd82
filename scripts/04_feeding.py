# Chapter 4 of Many Ranks, One Model, as one script. Generated from book/04_feeding.md.
#
# Run it: python 04_feeding.py
#
# pip install matplotlib numpy torch

import itertools
import math
import os
import re
import signal
import statistics
import sys
import time
import warnings
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


# === Keep the processor busy ==========================================================

# The meter shows 20 %: what is the processor waiting for? It shows 100 %: is it doing
# anything?
#
# 25 minutes to read · 25 seconds to run · stands on chapter 3
#
# An expensive processor that waits for its input costs as much as one that computes. At
# the end you can say what a utilization number means and what it does not, tell a
# training loop that is starved by its input from one that is fed, predict how many
# workers it takes to feed it, and find the two mistakes that workers bring along.
#
# Everything here runs on your GPU if you have one, and else on your CPU. On a CPU we
# leave the training one thread, so that the other cores are free to load data.

on_gpu = torch.cuda.is_available()
place = torch.device("cuda" if on_gpu else "cpu")
meter, column = ("gpu", "utilization_percent") if on_gpu else ("cpu", "own_percent")
torch.set_num_threads(1)
torch.manual_seed(0)
result("processor", place.type, varies=True)

# --- What the number means ------------------------------------------------------------

# NVIDIA's driver reports a GPU's utilization as the percentage of time, over its last
# sample period, during which one or more kernels was executing; the period is between a
# sixth of a second and a second [nvml]. (A kernel, here, is a function that runs on the
# GPU.) An operating system reports a core in the same spirit: the share of time in
# which some process ran on it. Both say how long something was running. Neither says
# how much of the processor it used, or for what.
#
# `sampled` reads the number ten times a second while its block runs: of a GPU through
# NVML, the library behind `nvidia-smi`; of the CPU through `psutil`. There we look at
# this process alone, without its workers; 100 % is one core. Here are four things to do
# for a while. Each returns how many floating-point operations it has done.


def asleep(seconds):
    """Do nothing."""
    time.sleep(seconds)
    return 0


def spinning(seconds):
    """Keep the processor running, on nothing."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if on_gpu:
            torch.cuda._sleep(10**7)  # one thread of the GPU counts its clock
            torch.cuda.synchronize()
    return 0


def repeated(operation, flops, seconds):
    """Call operation() for that long; return the operations that it did."""
    calls, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        operation()
        calls += 1
        if on_gpu:
            torch.cuda.synchronize()  # a GPU's operations are only queued by their call
    return calls * flops


print("\n## What the number means\n")
one, n = torch.ones(1, device=place), 8192 if on_gpu else 512
square = torch.rand(n, n, device=place)
activities = {
    "asleep": asleep,
    "spinning": spinning,
    "tiny sums": lambda seconds: repeated(lambda: one.add_(1), 1, seconds),
    "matrix products": lambda seconds: repeated(lambda: square @ square, 2 * n**3, seconds),
}

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

try:
    from ranklab.gpu import recorded, sampled, save, utilization_plot
except ImportError:
    recorded = sampled = save = utilization_plot = None
    print("What ranklab.gpu measures is left out, for it is not installed here")

# Predict: Sort the four by what the meter will show, and then by the operations done in
# a second.

if recorded:
    seconds = 3.0 if on_gpu else 0.5
    activities["matrix products"](0.1)  # warm up
    percent, gflops = {}, {}
    for name, activity in activities.items():
        with sampled(of=meter) as s:
            done = activity(seconds)
        percent[name], gflops[name] = s.mean(column), done / s.time_s[-1] / 1e9

    assert percent["asleep"] < percent["spinning"] and gflops["spinning"] == 0
    assert gflops["tiny sums"] < gflops["matrix products"] / 100
    result("percent", [round(value) for value in percent.values()], varies=True)
    result("rate_of_tiny", gflops["tiny sums"] / gflops["matrix products"], varies=True)


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if recorded:
    fig, ax = plt.subplots(num="utilization-and-work")
    y, best = np.arange(len(percent)), gflops["matrix products"]
    rates = [100 * rate / best for rate in gflops.values()]
    ax.barh(y - 0.18, percent.values(), height=0.34, color="C0", label="utilization")
    ax.barh(y + 0.18, rates, height=0.34, color="C1", label="operations, of matrix products'")
    ax.set_yticks(y, percent)
    ax.invert_yaxis()
    ax.set(xlabel="%")
    ax.legend(loc="upper left", bbox_to_anchor=(-0.2, -0.2), ncols=2, fontsize=9)
    save_figures()

# The meter cannot tell the last three apart. A loop that asks for the time over and
# over has the utilization of a matrix product, and does nothing. Sums of one number at
# a time reach (rate_of_tiny) of the product's rate: nearly all of that time goes into
# calling them. (On a busy machine all three show less than 100 %, as other programs get
# a share of the core. And the system counts a process's time in hundredths of a second:
# over the half second that an activity lasts here, means are right to 2 %.)
#
# So the number can be trusted in one direction. Low utilization proves that the
# processor waits. High utilization does not prove that it works. On a GPU, a kernel
# that occupies a single one of its hundred-odd multiprocessors counts in full, and so
# does one that waits for a message of another GPU: a training in which all wait for one
# that is gone shows 100 %. Whether it works is a question for operations per second
# against the peak, as in chapter 1, or simply for examples per second.
#
# Here it is in a real training step, on data that is already in memory:

features = 8192 if on_gpu else 1024
model = nn.Sequential(
    nn.Linear(features, 2 * features), nn.ReLU(), nn.Linear(2 * features, 10)
).to(place)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(x, y):
    """One training step on a batch: x (batch, features), y (batch,) class numbers."""
    x, y = x.to(place, non_blocking=True), y.to(place, non_blocking=True)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if on_gpu:
        torch.cuda.synchronize()


if recorded:
    rates = {}
    for batch_size in (1, 256):
        x, y = torch.randn(batch_size, features), torch.randint(10, (batch_size,))
        step(x, y)
        with sampled(of=meter) as s:
            steps = repeated(partial(step, x, y), 1, seconds)
        rates[batch_size] = steps * batch_size / s.time_s[-1]
        print(f"batch {batch_size:3}: {s.mean(column):3.0f} %, {rates[batch_size]:8.0f} examples/s")

    assert rates[256] > 2 * rates[1]
    result("large_over_small_batch", rates[256] / rates[1], varies=True)

# About the same utilization, and (large_over_small_batch) times the examples. From here
# on, throughput decides, in examples per second, and utilization is a symptom.

# --- Two kinds of slow input ----------------------------------------------------------

# A training loop takes a batch, makes a step, takes the next. Where the batch comes
# from, is the job of a `Dataset`, which gives one example at a time, and a
# `DataLoader`, which puts them together [torchdata]. An example can be slow for two
# reasons. It may have to come from a disk or over a network: then the processor has
# nothing to do meanwhile. Or it has to be made, by decoding, resizing, tokenizing: then
# a core works. We want both, as slow as we choose, so that what comes out can be
# compared with what should.


class Fetched(Dataset):
    """100 000 examples, each of which takes `seconds` to arrive, as from a disk or a network.

    An example is (x, y): x float32 of `features` numbers, all of them its index; y a class of 10.
    """

    def __init__(self, features, seconds):
        self.features, self.seconds = features, seconds

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        self.take_time()
        return torch.full((self.features,), float(i)), i % 10

    def take_time(self):
        """Wait."""
        time.sleep(self.seconds)


#@save
class Decoded(Fetched):
    """The same examples, each of which takes `seconds` of a core, as decoding an image does."""

    def take_time(self):
        """Compute. The core's seconds count, however many processes share the core."""
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass


# How slow is slow depends on how fast the step is. So we time that first, for a batch
# of 32.


def step_seconds(batch_size, repeats=15):
    """Seconds for a step on a batch that is in memory: the median."""
    x, y = torch.randn(batch_size, features), torch.randint(10, (batch_size,))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step(x, y)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


print("\n## Two kinds of slow input\n")
batch = 32
step_time = step_seconds(batch)
slow = Fetched(features, 4 * step_time / batch)  # a batch takes as long as 4 steps
result("step_ms", 1000 * step_time, varies=True)


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


# PyTorch's loader has workers: processes that fetch batches. Ours are forked: copies of
# this process, which therefore know the classes of a notebook. We ask for that by name,
# as it is not the default everywhere. PyTorch warns of more workers than cores (whether
# it is right is a question of this chapter), and Python, from 3.12 on, of forks. We
# switch both warnings off.
#
# Warning: Forks have two traps, for your own datasets. Once this process has used the
# GPU, a copy of it cannot. And other threads are not copied, but the locks that they
# hold are: who asks for one waits forever. If a dataset touches either, put it into a
# file and take `"forkserver"` [multiprocessing]: new Pythons, which do not know what a
# notebook defines.

warnings.filterwarnings("ignore", message="This DataLoader will create")
show(warnings.filterwarnings("ignore", message="This process .* is multi-threaded"))


def loader(dataset, batch_size=None, workers=0, **options):
    """A DataLoader whose workers, if it has any, are forked from this process."""
    if workers:
        options["multiprocessing_context"] = "fork"
    return DataLoader(dataset, batch_size, num_workers=workers, **options)


def throughput(batches, step, seconds=math.inf, warm_up=3):
    """Examples a second that step(x, y) gets through with these batches, measured so long.

    batches: a DataLoader, or whatever gives (x, y). The first ones do not count: workers start.
    """
    start, examples = None, 0
    for number, (x, y) in enumerate(batches):
        step(x, y)
        now = time.perf_counter()
        if number < warm_up:
            start = now
            continue
        examples += len(x)
        if now - start > seconds:
            break
    return examples / (now - start)


# Predict: Everybody writes `DataLoader(data, batch_size=32)` once. How many worker
# processes load the data?

plain = DataLoader(slow, batch_size=32)
assert plain.num_workers == 0
result("default_workers", plain.num_workers)
result("default_prefetch", DataLoader(slow, num_workers=1).prefetch_factor)

# None. It is often said that the default is one; it is (default_workers), and that is
# something else. With 0 workers, the training process itself fetches each batch,
# between two steps: it waits for every example, then computes, then waits. With 1
# worker there is a second process, which fetches the next batch while the first one
# computes.

fed_by_itself = throughput(loader(slow, batch, workers=0), step, 0.5)
fed_by_one = throughput(loader(slow, batch, workers=1), step, 0.5)
result("of_the_ceiling", fed_by_itself * step_time / batch, varies=True)
result("one_over_none", fed_by_one / fed_by_itself, varies=True)

# This loop is starved: it reaches (of_the_ceiling) of what the step alone could do. (A
# batch takes four steps' time to load and one to train on: a fifth was to be expected.)
# One worker made it (one_over_none) times as fast. Expected was 5/4 = 1.25 at most: the
# shorter of the two, the step, hides behind the longer one. (The two were measured one
# after the other. On a busy machine the number also tells what else it had to do
# meanwhile.)

# --- Watch it starve ------------------------------------------------------------------

# A sample every tenth of a second sees nothing of a wait that takes a hundredth. To see
# it we make everything longer, as a larger model would: many steps on each batch, and
# five times as long to wait for it.

print("\n## Watch it starve\n")
tooth = 0.3 if on_gpu else 0.1  # seconds; NVML's own sample period may be 1/6 s
steps_each = math.ceil(tooth / step_time)
slower = Fetched(features, 5 * steps_each * step_time / batch)


def long_step(x, y):
    """Many training steps on one batch."""
    for _ in range(steps_each):
        step(x, y)


if recorded:
    over_time, reached = {}, {}
    for name, workers in {"starved, 0 workers": 0, "fed, 8 workers": 8}.items():
        with sampled(of=meter) as s:
            batches = loader(slower, batch, workers)
            reached[workers] = throughput(batches, long_step, 12 * tooth, warm_up=1)
        over_time[name] = s
    result("long_fed_over_starved", reached[8] / reached[0], varies=True)
    result("cost_of_sampling", s.cost, varies=True)

if recorded:
    show(utilization_plot(over_time, name="starved-and-fed"))

# Above: teeth. Every tooth is a batch trained on, every gap a wait. Below, after the
# workers have started, the gaps close, and the same step on the same data gets through
# (long_fed_over_starved) times as many examples; (5 + 1)/1 = 6 was to be expected. When
# you see teeth in the utilization of a GPU, that is the first thing to think of. When
# you see an even 20 %, it may be the same, with teeth too fine for the meter. (Watching
# is nearly free: the sampling took (cost_of_sampling) of a core.)
#
# If this chapter has recorded the same two curves on a GPU, they are shown here:

if recorded:
    if on_gpu:
        save(over_time, "04_feeding-gpu.json")  # for images/recorded/
    from_a_card = recorded("04_feeding-gpu")
    for name, s in from_a_card.items():
        print(f"{name}: {s.about['card']}, driver {s.about['driver']}, {s.about['date']}")
        print(f"    {s.about['command']}")
    if not from_a_card:
        print("There is no recording from a GPU yet.")
    result("recordings", len(from_a_card), varies=True)

if recorded:
    show(utilization_plot(from_a_card, name="recorded") if from_a_card else None)

# --- The knee -------------------------------------------------------------------------

# How many workers are enough? Let a batch take $L$ seconds to load and $S$ seconds to
# train on. With $w$ workers, $w$ batches are under way at a time, so that one arrives
# every $L/w$ seconds. (This is Little's law [little1961]: how many are inside, $w$,
# equals how many come in a second, $w/L$, times how long each stays, $L$.) The training
# takes one every $S$ seconds at best. The slower of the two decides:
#
# $$\text{batches per second} = \begin{cases} 1/(L + S) & w = 0 \\ \min(w/L,\ 1/S) & w \ge 1
# \end{cases}$$
#
# The two rates meet at $w = L/S$: the knee. Below it every worker adds the same; above
# it workers only cost memory. But there is a limit that this leaves out. Loading that
# computes needs cores. If $K$ of the $L$ seconds are a core's, and a batch takes $S$
# seconds of a core to train on, then $c$ cores cannot do more than $c/(K+S)$ of them in
# a second, with any number of workers. (Where the step runs on a GPU, that is $c/K$.)
# If this limit is below $1/S$, the knee is where $w/L$ meets it. Input that waits takes
# a little of a core, too, to put the batches together.


def predicted(workers, load, step, core_seconds=0.0, cores=1):
    """Batches a second with so many workers.

    load, step: seconds to load a batch, and to train on it. core_seconds: how many of these,
    together, a core has to work, with `cores` of them. 0: nothing but waiting.
    """
    if workers == 0:
        return 1 / (load + step)
    limits = [workers / load, 1 / step]
    if core_seconds:
        limits.append(cores / core_seconds)
    return min(limits)


# Predict: The fetched input takes 4 steps' time a batch, the decoded one 2; the step
# runs on a core, too. Where is the knee of each, with 2 cores and with 8?

print("\n## The knee\n")
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
workers = [0, 1, 2, 4, 6]
step_time = step_seconds(batch)
inputs = {
    "fetched: waits for 4 steps": Fetched(features, 4 * step_time / batch),
    "decoded: computes for 2 steps": Decoded(features, 2 * step_time / batch),
}
measured = {
    name: [throughput(loader(data, batch, w), step, 0.2, warm_up=2 + w) for w in workers]
    for name, data in inputs.items()
}
result("cores", cores, varies=True)

# Now the formula. What a batch takes of a core is measured, for both; how long it waits
# we know, for we have chosen it.


def load_seconds(data, clock, repeats=4):
    """Seconds to load a batch, by this clock: the median."""
    times = [clock()]
    for _ in itertools.islice(loader(data, batch), repeats):
        times.append(clock())
    return statistics.median(np.diff(times))


def formula(data):
    """What the formula says for each number of workers, in examples a second."""
    core = load_seconds(data, time.thread_time)  # without the waiting
    loading = core + (data.seconds * batch if type(data) is Fetched else 0)
    in_core = core if on_gpu else core + step_time
    return [batch * predicted(w, loading, step_time, in_core, cores) for w in workers]


lines = [formula(data) for data in inputs.values()]
waits, computes = measured.values()
assert max(waits) > 1.3 * waits[0]  # waiting can be hidden, whatever else the machine does
result("fetched_gain", max(waits) / waits[0], varies=True)
result("decoded_gain", max(computes) / computes[0], varies=True)
result("predicted_gains", [round(max(line) / line[0], 1) for line in lines], varies=True)

fig, ax = plt.subplots(num="knee")
ceiling = batch / step_time
for (name, rates), line, color in zip(measured.items(), lines, ("C0", "C1")):
    ax.plot(workers, np.array(line) / ceiling, "--", color=color, linewidth=1.5)
    ax.plot(workers, np.array(rates) / ceiling, "o", color=color, label=name)
ax.axhline(1, color="black", linewidth=1, label="the step alone")
ax.set(xlabel="workers", ylabel="throughput, of the step's own", ylim=(0, None), xticks=workers)
ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), fontsize=9)
save_figures()

# Dots are measured, dashed lines predicted. The knee of the input that waits is near 4,
# with 2 cores or 8: workers that sleep need none. That of the input that computes is at
# 2 with 8 cores. With 2 it comes earlier, at 4/3, where $w/(2S)$ meets $2/(3S)$: more
# workers only take the core away from the training.
#
# At best the two were (fetched_gain) and (decoded_gain) times as fast as with no
# worker. Predicted were (predicted_gains); the first is above (4 + 1)/1 by what it
# takes to put the batches together. Expect dots below their lines: each batch must also
# be handed over, a wait lasts longer than asked for, and other programs use the same
# cores.
#
# That is why "twice as many workers as GPUs" and "as many as cores" are both wrong as
# rules. Ask the input whether it waits or computes, measure $L$ and $S$, and divide. If
# it computes and the cores are used up, the way out is less work: decode once and store
# the result, or let the GPU do it [mohan2021].

# --- What a queue can do, and what it cannot ------------------------------------------

# A worker does not stop when its batch is ready. It goes on until it is
# `prefetch_factor` batches ahead, (default_prefetch) by default. What are more of them
# good for? Take an input that is fast enough on average but not evenly: nothing for
# seven batches, then a long wait, as when a new file is opened.


class Files(Fetched):
    """The first example of every 8th batch waits for all of them: its file is being opened."""

    def __getitem__(self, i):
        if i % (8 * batch) == 0:
            time.sleep(self.seconds * 8 * batch)
        return torch.full((self.features,), float(i)), i % 10


# Predict: The waits add up to three quarters of the steps' time. One worker. Will more
# prefetching help? And if they added up to twice the steps' time?

print("\n## What a queue can do, and what it cannot\n")
pause = 0.008  # seconds: in place of a step, so that nothing but the queue decides
short_queue, long_queue = [], []
for share in (0.75, 2.0):
    files = Files(features, share * pause / batch)
    for length, of_the_steps in ((2, short_queue), (16, long_queue)):
        batches = loader(files, batch, workers=1, prefetch_factor=length)
        rates = [
            throughput(itertools.islice(batches, 3 * 8), lambda x, y: time.sleep(pause), warm_up=8)
            for _ in range(2)
        ]
        of_the_steps.append(round(max(rates) * pause / batch, 2))
result("short_queue", short_queue, varies=True)
result("long_queue", long_queue, varies=True)
save_figures()

# In a queue of 2, two steps' time of each wait is hidden; so 8 batches take 8 + 6 − 2 =
# 12 steps' time from the first input, and 8 + 16 − 2 = 22 from the second. That lets us
# expect 8/12 = 0.67 and 8/22 = 0.36 of the steps' own rate, and we measured
# (short_queue). In a queue of 16 the waits vanish, and the worker is what is left: 1
# and 0.5, and measured were (long_queue). The second input gets no further with any
# queue, for it delivers half as much as the steps would take. A queue evens out; it
# does not speed up. It brings an input to its mean rate at best. (And it costs memory:
# workers × `prefetch_factor` batches.)
#
# Two more switches. `persistent_workers=True` keeps the workers from one epoch to the
# next, instead of starting them anew. And `pin_memory=True` puts each batch into pinned
# memory, which stays in its place so that the GPU can fetch it by itself. Then
# `.to("cuda", non_blocking=True)` returns at once: the program goes on while the copy
# waits its turn. Only if it is asked for on another stream, `torch.cuda.Stream`, does
# it run beside the computation [moens2024]. Without a GPU there is nobody to fetch it:


def copy_ms(x):
    """Milliseconds until a copy to the GPU has been asked for, and until it is done."""
    x.to(place)  # warm up
    start = time.perf_counter()
    x.to(place, non_blocking=True)
    asked = time.perf_counter()
    torch.cuda.synchronize()
    return 1000 * (asked - start), 1000 * (time.perf_counter() - start)


if on_gpu:
    pageable = torch.randn(1 << 24)
    print("pageable: asked for after %.2f ms, done after %.2f ms" % copy_ms(pageable))
    print("pinned:   asked for after %.2f ms, done after %.2f ms" % copy_ms(pageable.pin_memory()))
else:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        next(iter(DataLoader(Fetched(1, 0), pin_memory=True)))
    print(said[0].message)

# --- Data, twice ----------------------------------------------------------------------

# Now what goes wrong. Not every dataset can be indexed. A stream, from a socket or a
# large file, is an `IterableDataset`: it only says what comes next.


class Stream(IterableDataset):
    """The numbers from 0 to 99, one after the other."""

    def __iter__(self):
        return iter(range(100))


# Predict: The loader hands out batches of 10. How many batches come with 0 workers? And
# with 4?

print("\n## Data, twice\n")
seen = {w: torch.cat(list(loader(Stream(), 10, w))).tolist() for w in (0, 1, 4)}
assert [len(numbers) for numbers in seen.values()] == [100, 100, 400]
assert sorted(seen[4]) == sorted(4 * seen[0])
result("numbers_seen", [len(numbers) for numbers in seen.values()])
result("first_twenty", seen[4][:20])

# With 4 workers, every number came 4 times. Each worker got a copy of the dataset, as a
# fork does, and each went through the whole stream. No error, no warning, and the loss
# falls, as it would. Only counting finds that an "epoch" is four times as long, and
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
    numbers = torch.cat(list(loader(Shared(), 10, w))).tolist()
    assert sorted(numbers) == list(range(100))
result("order_with_4", numbers[:12])

# Every number once, though in another order. A dataset with indices has no such
# problem: the training process deals out the indices, and the batches come back in
# order, however many workers there are.

quick = torch.utils.data.Subset(Fetched(1, 0), range(200))
orders = [torch.cat([x for x, _ in loader(quick, 16, w)]).flatten().tolist() for w in (0, 4)]
assert orders[0] == orders[1] == list(range(200))

# Copies have a second trap. Ask what else is copied:


class Noisy(Dataset):
    """Noise for each example: from NumPy's global generator, and from one of its own."""

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
result("own_noise", own_noise)
result("global_noise", global_noise, varies=True)

# Each list is a worker's: two of the first epoch, two of the second. The generator that
# the dataset owns was copied, state and all: each worker draws the same numbers, and in
# the next epoch, from a fresh copy, again. The global generators do not repeat: PyTorch
# seeds Python's, NumPy's and its own in each worker, from its own seed and the worker's
# number. (Before version 1.9 it left out NumPy's, and training programs drew the same
# "random" crops in every worker.) An exercise below repairs it.

# --- A worker that dies ---------------------------------------------------------------

# A worker can also vanish. On a cluster it is typically the system that kills it, when
# memory runs out.


class Deadly(Fetched):
    """Example 40 ends the process that loads it, as the system does when memory runs out."""

    def __getitem__(self, i):
        if i == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


print("\n## A worker that dies\n")
try:
    for x, y in loader(Deadly(features, 0), batch, workers=2):
        step(x, y)
except RuntimeError as error:
    print(error)
    died = True
assert died

# The system tells the training process that a worker is gone, and it raises a
# `RuntimeError`. It knows which one, and not where: the traceback shows what the
# training was doing. It says how the worker ended, Killed, or only that it "exited
# unexpectedly": that depends on who notices first. Both suggest memory: watch it, and
# try fewer workers and a shorter queue. Where a worker fails with an exception, set the
# workers to 0: it is then raised in your own process, where a debugger works. That is
# the best reason for the default.

# --- What to do when the number is low ------------------------------------------------

# 1. Train on one batch that is in memory. That is the ceiling: $1/S$.
# 2. Go through the loader without training. That is the input's own rate.
# 3. If the second is the lower one, feed. Does it wait? More workers, until $w = L/S$
#    with the $L$ that you measure. Does it compute? Workers up to the cores, then less
#    work for each example. Is it uneven? A longer queue.
# 4. If the first is the lower one, the input is not to blame, whatever the utilization.
#    Look at the step: larger batches, fewer small operations, chapter 1's roofline.

print("\n## What to do when the number is low\n")
fetched = inputs["fetched: waits for 4 steps"]
alone = throughput(loader(fetched, batch, 4), lambda x, y: None, 0.3)
of_ceiling = alone * step_time / batch
result("input_over_ceiling", of_ceiling, varies=True)
result("workers_it_takes", math.ceil(4 / of_ceiling), varies=True)

# For the fetched input with 4 workers, the input's own rate is (input_over_ceiling) of
# the ceiling. It was made to be about 1; each example's wait is a little longer than
# asked for, and on busy cores much longer. So $L$ is 4/(input_over_ceiling) steps'
# time, and it takes (workers_it_takes) workers.

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
