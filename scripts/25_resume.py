# Chapter 25 of Many Ranks, One Model, as one script. Generated from book/25_resume.md.
#
# Run it on 4 ranks, or on another number of them, in one of these ways:
#     python 25_resume.py
#     torchrun --standalone --nproc-per-node 4 25_resume.py
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 25_resume.py
#     mpiexec -n 4 python 25_resume.py
# The ranks use the GPUs that are there; RANKLAB_DEVICE=cpu (or cuda) decides otherwise.
#
# pip install matplotlib numpy scikit-learn torch  (for mpiexec also: mpich mpi4py)

import inspect
import io
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections import OrderedDict
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler


def start_ranks():
    """Started by hand: let torchrun start this file once for each rank."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    n = os.environ.get("RANKLAB_RANKS", "4")
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
    limit = timedelta(seconds=15)
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


playing = "kernel"
APART = ["final", "how", "said"]  # the kernel and the ranks have one each
held_by = {"ranks": {}}
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}
cards = {"ranks": torch.cuda.get_rng_state()} if device.type == "cuda" else {}
torch.seed()  # the kernel's streams begin somewhere else
np.random.seed()
random.seed()


def play(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()
        held_by[before] = {name: names.pop(name) for name in APART if name in names}
        names.update(held_by.pop(part))
        streams[before] = torch.get_rng_state(), np.random.get_state(), random.getstate()
        ours, numpys, pythons = streams[part]
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if device.type == "cuda":
            torch.set_default_device(device if part == "ranks" else None)
            cards[before] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(cards[part])
    return before


def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


# From ranklab.taught.training:


def split(X, y, share=0.1, seed=0):
    """Return (train X, train y) and (test X, test y): a random share to test.

    Every sample is in exactly one of the two.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator, device="cpu")
    test, train = order.tensor_split([round(share * len(X))])
    return (X[train], y[train]), (X[test], y[test])


# From ranklab.taught.sync_sgd:


def digits(seed=0):
    """Return (X, y) to train on and (X, y) to test: 1797 handwritten digits.

    X (n, 64), float32: 8 x 8 pixels, 0 to 1. y (n,), int64: the digit. A random
    fifth, drawn with `seed`, is for testing.
    """
    from sklearn.datasets import load_digits  # slow to import: only if wanted

    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X / 16, dtype=torch.float32)
    return split(X, torch.tensor(y), share=0.2, seed=seed)


# === Checkpoint and resume: killed at any moment, the same bits =======================

# A rank is killed in the middle of a training. What must be on the disk so that the run
# can go on, and end with the same bits as one that nobody stopped?
#
# 30 minutes to read, 10 predictions · 30 seconds to run · stands on chapter 11
#
# At the end you can write a training that survives a kill at any moment, on any rank.
# You can say what belongs in a checkpoint and what each part of it is for, prove that a
# resumed run is the same run, move it to another number of ranks, and choose how often
# to save.

if rank == 0:
    workshop = tempfile.TemporaryDirectory(prefix="checkpoints-")  # gone at the end
    folder = Path(workshop.name)
    BATCH = 16 * world_size
    (images, classes), _ = digits()
    full = len(classes) // BATCH * BATCH
    images, classes = images[:full].double(), classes[:full]
    torch.save((images, classes), folder / "data.pt")

train_set = from_rank_0(lambda: (images, classes))
batch = from_rank_0(lambda: BATCH)
place = from_rank_0(lambda: str(folder))
if rank == 0:
    result("training_samples", full)

# --- Killed, and continued ------------------------------------------------------------

# First the idea, on a program for two ranks. It is a file, which the next cells write:
# a training as a function, which is run twice. In the first training a rank is killed.
# The second one, which nobody kills, shows where the first should end.

if rank == 0:
    print("\n## Killed, and continued\n")
    before = '''
import os, signal
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
X, y = torch.load("data.pt")
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))

def fresh_network():
    torch.manual_seed(0)
    first, last = nn.Linear(64, 48), nn.Linear(48, 10)
    return nn.Sequential(first, nn.Tanh(), nn.Dropout(0.2), last).double()

def update(network, momentum):
    """SGD with momentum, by the mean gradient of both ranks."""
    for weight, moving in zip(network.parameters(), momentum):
        dist.all_reduce(weight.grad)
        moving.mul_(0.9).add_(weight.grad / 2)
        weight.data.sub_(0.1 * moving)
        weight.grad = None
'''

# Every fourth step it saves four things: the weights, the momentum of the optimizer,
# the number of the step, and the state of each rank's random generator.

if rank == 0:
    saving = '''
def save(path, network, momentum, step):
    random = [None, None]
    dist.all_gather_object(random, torch.get_rng_state())
    if rank == 0:
        state = {"model": network.state_dict(), "momentum": momentum}
        torch.save(state | {"step": step, "random": random}, path)
    dist.barrier()
'''

# When the training starts, it looks for that file, and goes on from it. If there is
# none, and the run's name is `killed`, rank 1 sends itself a SIGKILL before step 14. No
# process can catch this signal.

if rank == 0:
    training = '''
def train(name):
    network, step, saved = fresh_network(), 0, None
    momentum = [torch.zeros_like(weight) for weight in network.parameters()]
    torch.manual_seed(rank)  # dropout differs from rank to rank
    if os.path.exists(name):
        saved = torch.load(name)
        network.load_state_dict(saved["model"])
        momentum, step = saved["momentum"], saved["step"]
        torch.set_rng_state(saved["random"][rank])
    while step < 24:
        if name == "killed" and (rank, step) == (1, 14) and not saved:
            os.kill(os.getpid(), signal.SIGKILL)
        mine = order[32 * step : 32 * (step + 1)][rank::2]
        loss = nn.functional.cross_entropy(network(X[mine]), y[mine])
        loss.backward()
        update(network, momentum)
        if rank == 0:
            print("loss of", name, step, loss.item(), flush=True)
        step += 1
        if step % 4 == 0:
            save(name, network, momentum, step)
    return network.state_dict()
'''

# `torchrun` starts the program. If a rank fails, it ends the others and starts all of
# them anew, up to three times. When the killed run has come to its end, the same ranks
# run its twin, which nobody kills.

if rank == 0:
    both_runs = '''
ends = [train(name) for name in ("killed", "twin")]
if rank == 0:
    torch.save(ends, "ends.pt")
dist.barrier()
dist.destroy_process_group()
'''
    (folder / "first.py").write_text(before + saving + training + both_runs)

if rank == 0:
    launchers_own = "RANK WORLD_SIZE LOCAL_ GROUP_ ROLE_ MASTER_ TORCH PMI OMPI_"
    launchers_own = tuple(launchers_own.split())
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(launchers_own)
    }
    environment["OMP_NUM_THREADS"] = "1"
    on_a_mac = sys.platform == "darwin"
    environment["GLOO_SOCKET_IFNAME"] = "lo0" if on_a_mac else "lo"
    # See "A launcher is a loop".
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


def run_program(name, *launcher):
    """Run it to its end, and return the lines that it prints."""
    command = [sys.executable, *launcher, f"{name}.py"]
    how = {"cwd": folder, "env": environment, "text": True}
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **how) as program:
        try:
            said, _ = program.communicate(timeout=200)
        finally:
            program.terminate()  # and its ranks; nothing, if it has ended
    assert program.returncode == 0, said
    return said.splitlines()


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

# Predict: How many steps are computed twice? And how far are the final weights of the
# killed run from the twin's?

if rank == 0:
    for name in ("killed", "twin"):
        (folder / name).unlink(missing_ok=True)  # if this cell has run before
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node=2".split()
    said = run_program("first", *torchrun, "--max-restarts=3")


def losses_of(name):
    """[(step, loss)], as rank 0 has printed them."""
    start = f"loss of {name} "
    told = [line.split()[3:] for line in said if line.startswith(start)]
    return [(int(step), float(loss)) for step, loss in told]


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


def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


if rank == 0:
    of_twin, of_killed = losses_of("twin"), losses_of("killed")
    first_life, second_life = of_killed[:14], of_killed[14:]
    fig, ax = plt.subplots(num="killed")
    ax.axvspan(11.5, 13.5, color="C7", alpha=0.2, linewidth=0)
    ax.plot(*zip(*of_twin), color="0.8", linewidth=6, label="never killed")
    ax.plot(*zip(*first_life), "C0x", markersize=9, label="first life")
    ax.plot(*zip(*second_life), "C0o", markersize=5, label="second life")
    ax.text(12.5, 0.05, "computed\ntwice", ha="center", fontsize=9)
    ax.set(xlabel="step", ylabel="loss of rank 0", ylim=(0, None))
    ax.set_title("killed and started again, on the same line", size=11)
    ax.legend(loc="lower left")
    save_figures()

if rank == 0:
    steps_of = [[step for step, _ in life] for life in (first_life, second_life)]
    assert steps_of == [list(range(14)), list(range(12, 24))]
    losses_of_twin = dict(of_twin)
    assert all(loss == losses_of_twin[step] for step, loss in of_killed)
    of_both = zip(*(end.values() for end in torch.load(folder / "ends.pt")))
    assert all(torch.equal(weights, twins) for weights, twins in of_both)
    twice = sorted(set(steps_of[0]) & set(steps_of[1]))
    result("computed_twice", twice)

# In the picture the second life lies on the gray line, as if nothing had happened.
# Steps (computed_twice) are computed twice: the last checkpoint was taken after 12
# steps, so what came after it is lost. The final weights do not differ from the twin's
# in a single bit.
#
# The program does not know that it was killed. It looks for a file whenever it starts,
# so the launcher need do no more than start it again. On a cluster the job scheduler
# can do the same when a host has died.
#
# These lines are the idea, and they hold on a good day. Five things can go wrong with
# them. The rest of the chapter takes them in this order:
# 1. Rank 0 is killed while it writes.
# 2. Somebody reads before it has written, or two write at once.
# 3. The run has more state than these four things.
# 4. With more than two ranks, the same state gives other bits.
# 5. The run is continued on another number of ranks.

# --- A file that is whole or not there ------------------------------------------------

# `torch.save(state, path)` empties the old file and then fills it. Killed in between,
# it leaves half a file, and the old one is gone.
#
# So write under another name, a draft. Make sure that its bytes are on the disk. Only
# then rename it: the operating system changes a name in one step [osreplace].


def write_whole(path, write):
    """Let write(file) make the file: the old one until it is whole."""
    path = Path(path)
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())  # the bytes are on the disk, not on their way
    os.replace(draft, path)
    if os.name == "posix":  # and so is the name
        entry = os.open(path.parent, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)


def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


# A process of its own tries `write_whole`, and a second one a plain `open`. Each writes
# one half, kills itself, and never comes to the second.

everyone()
if rank == 0:
    print("\n## A file that is whole or not there\n")

play("ranks")
source_of_write_whole = inspect.getsource(write_whole)


def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(packed(value), values, group=driver)
    values = values and [unpacked(data, "cpu") for data in values]
    return values


everyone()
if rank == 0:
    play("kernel")
    half_a_file = '''
def half(file):
    file.write(b"new " * 500)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    file.write(b"new " * 500)

if sys.argv[1] == "plain":
    with open(sys.argv[2], "wb") as file:
        half(file)
else:
    write_whole(sys.argv[2], half)
'''
    needed = "import os, signal, sys\nfrom pathlib import Path\n\n"

source_of_write_whole_by_rank = to_rank_0(source_of_write_whole)
if rank == 0:
    needed += source_of_write_whole_by_rank[0]
    (folder / "half.py").write_text(needed + half_a_file)

# Predict: Before, each file holds the word `old` a thousand times. What do they hold
# afterwards?

if rank == 0:
    after = {}
    for how in ("plain", "whole"):
        target = folder / f"{how}.txt"
        target.write_bytes(b"old " * 1000)
        command = [sys.executable, folder / "half.py", how, target]
        subprocess.run(command, timeout=60)
        words = target.read_text().split()
        after[how] = f"{words.count('old')} old, {words.count('new')} new"
        result(f"after_a_kill_{how}", after[how])
    assert after == {"plain": "0 old, 500 new", "whole": "1000 old, 0 new"}

# Plain writing leaves (after_a_kill_plain): neither the old file nor the new one. With
# `write_whole` the old file is still there, (after_a_kill_whole), and beside it a draft
# that nobody reads.
#
# And the two `fsync`? A SIGKILL does not lose what was handed to the operating system.
# A power cut can lose it. They are there for that.

# --- One rank writes ------------------------------------------------------------------

# All ranks have the same weights, so why not let all of them write?
#
# Predict: Ranks 0 and 1 both write to the same name, with a plain `open`, both the same
# number of bytes. What can be in the file?
#
# Left to chance, this goes wrong only now and then. Here barriers force the bad case:
# rank 1 opens the file when rank 0 is halfway.

everyone()
if rank == 0:
    print("\n## One rank writes\n")

play("ranks")
buffer = io.BytesIO()
torch.save(nn.Linear(64, 48).state_dict(), buffer)
data = buffer.getvalue()
half = len(data) // 2
path = Path(place, "everybody.pt")
if rank == 0:
    file = open(path, "wb")
    file.write(data[:half])
    file.flush()
dist.barrier()
if rank == 1:
    late = open(path, "wb")  # empties what is there
dist.barrier()
if rank == 0:
    file.write(data[half:])  # goes on at its own place
    file.close()
dist.barrier()
state_of_file = None
if rank == 1:  # it has not written a byte so far
    zeros = path.read_bytes()[:half].count(0)
    state_of_file = path.stat().st_size == len(data), zeros == half
    late.close()
dist.barrier()


@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")


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


everyone()
if rank in (0,):
    with may_fail():
        show(torch.load(path), rank)

state_of_file_by_rank = to_rank_0(state_of_file)
if rank == 0:
    play("kernel")
    has_the_size, first_half_is_empty = state_of_file_by_rank[1]
    assert has_the_size and first_half_is_empty
    result("size_is_right", has_the_size)
    result("first_half_is_zeros", first_half_is_empty)

# The file has the right size, so a look at the folder shows nothing wrong. But its
# first half is zeros: rank 1's `open` has emptied it, and rank 0 went on at its own
# place. If rank 1 then writes as well, the file is whole again, and nobody ever learns
# how close it was.
#
# The error does not help, either. It speaks of a legacy format, and advises to load
# with `weights_only=False`. Do not follow it. That option runs whatever code the author
# of a file put there. A checkpoint that loaded yesterday, and asks for this option
# today under the same PyTorch, is a broken file.
#
# So one rank writes. It keeps two checkpoints: if the newest cannot be read, there is
# the one before it.
#
# A whole file can be unreadable, too. `torch.save` stores any object, and a load with
# `weights_only=True` reads only a few types. A loss that is a number of NumPy's is
# enough, and both checkpoints are lost before anybody notices. So `only_readable` looks
# through the state before anything is written.


def only_readable(value, where="state"):
    """Raise TypeError for what torch.load(weights_only=True) does not read."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        for key, part in value.items():
            only_readable(key, f"a key of {where}")
            only_readable(part, f"{where}[{key!r}]")
    elif kind in (list, tuple, set):
        for k, part in enumerate(value):
            only_readable(part, f"{where}[{k}]")
    elif not isinstance(value, (torch.Tensor, torch.dtype, torch.device)):
        plain = bool, int, float, complex, str, bytes, type(None), torch.Size
        if kind not in plain:
            what = f"{kind.__module__}.{kind.__qualname__}"
            raise TypeError(f"{where} is a {what}, which no load would read.")


everyone()
play("ranks")
if rank in (0,):
    foreign, buffer = {"losses": [np.float64(1)]}, io.BytesIO()
    torch.save(foreign, buffer)
    buffer.seek(0)
    said = []
    for refuses in (lambda: torch.load(buffer), lambda: only_readable(foreign)):
        try:
            refuses()
        except Exception as error:
            said.append(str(error))
    assert len(said) == 2 and "state['losses'][0] is a numpy.float64" in said[1]


def checkpoints(folder):
    """The whole checkpoints in a folder, the newest last."""
    return sorted(Path(folder).glob("step-*.pt"))


def latest_checkpoint(folder):
    """The newest whole checkpoint in a folder, or None."""
    return (checkpoints(folder) or [None])[-1]


def write_checkpoint(folder, state, keep=2):
    """Write a state, and delete all but the newest ones."""
    only_readable(state)
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = f"step-{state['step']:08}.pt"
    write_whole(Path(folder, name), partial(torch.save, state))
    for old in checkpoints(folder)[:-keep]:
        old.unlink()


# --- Nobody goes on before it is there ------------------------------------------------

# `save_checkpoint` is called by every rank. It does three things:
# - It gathers on rank 0 what each rank has for itself, such as its random state, for
#   rank 0's would be wrong for the others.
# - Rank 0 writes all of it into one file.
# - A broadcast from rank 0 ends it. So nobody goes on before rank 0 has written, and if
#   it could not write, all ranks raise the same error.


def save_checkpoint(folder, step, shared, own, group=None):
    """Write the checkpoint of a step, on rank 0 alone. Every rank calls it.

    shared: what all ranks have alike. own: what each has for itself. On
    return it is there for all to see; if not, OSError on all ranks.
    """
    first, problem = dist.get_rank(group) == 0, [None]
    everyones = [None] * dist.get_world_size(group) if first else None
    dist.gather_object(own, everyones, group=group, group_dst=0)
    if first:
        state = {"step": step, "shared": shared, "own": everyones}
        try:
            write_checkpoint(folder, state)
        except Exception as error:  # whatever it is, the others must hear
            said = f"The checkpoint of step {step} cannot be written: {error}"
            problem = [OSError(said)]
    dist.broadcast_object_list(problem, group=group, group_src=0)
    if problem[0]:
        raise problem[0]


# `gather_object` and `broadcast_object_list` send pickled objects. With NCCL these go
# through the current GPU of each rank, so choose it first, by `torch.cuda.set_device`.
#
# What happens without that broadcast? Here the others look for the newest checkpoint by
# themselves, and nobody has told them to wait.
#
# Predict: Rank 0 is slow: the others look before it has written step 2. Is there an
# error?

everyone()
hasty = Path(place, "hasty")
save_checkpoint(hasty, 1, {}, None)


def newest_step():
    return torch.load(latest_checkpoint(hasty))["step"]


if rank > 0:
    found = newest_step()
dist.barrier()
if rank == 0:
    write_checkpoint(hasty, {"step": 2})
    found = newest_step()
dist.barrier()

hasty_steps = to_rank_0(found)
if rank == 0:
    play("kernel")
    assert hasty_steps[0] == 2 and set(hasty_steps[1:]) == {1}
    result("resumed_from_step", hasty_steps)

# There is no error. The ranks go on from steps (resumed_from_step), and DDP does not
# notice: it compares only shapes, and only when it wraps. What comes of it depends on
# when a rank loads:
# - After DDP has wrapped: its weights are those of its own checkpoint, and they stay
#   different.
# - Before: DDP gives all ranks the weights of rank 0. But the optimizers, schedules and
#   positions are still those of two steps.


def weights_when(loaded):
    """The sum of the weights that a rank has, and the step that it is at."""
    layer = nn.Linear(3, 3, bias=False)
    if loaded == "before":
        nn.init.constant_(layer.weight, found)
        DDP(layer)
    else:
        DDP(layer)
        nn.init.constant_(layer.weight, found)
    return layer.weight.sum().item(), found


everyone()
play("ranks")

two_orders = weights_when("after"), weights_when("before")

two_orders_by_rank = to_rank_0(two_orders)
if rank == 0:
    play("kernel")
    after_wrapping, before_wrapping = zip(*two_orders_by_rank)
    assert len({weights for weights, _ in after_wrapping}) == 2
    assert len({weights for weights, _ in before_wrapping}) == 1
    assert len({step for _, step in before_wrapping}) == 2

# --- One rank reads, too --------------------------------------------------------------

# So one rank looks for the newest checkpoint, and sends what it has read to the others,
# which need not even see the folder. A file remembers the device of each tensor;
# `map_location="cpu"` reads all of it into ordinary memory, also where there is no such
# GPU. A small model can be sent like this. For large ones there is DCP, below.
#
# If the newest cannot be read, the one before it is taken, with a warning. If none can,
# that is an error: a training that silently began anew would in time delete what was
# left.


def newest_readable(folder):
    """The newest checkpoint that can be read, or None; are there any?"""
    there = checkpoints(folder)
    for path in reversed(there):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return state, True
        except Exception as error:
            warnings.warn(f"{path} cannot be read: {error}", stacklevel=2)
    return None, bool(there)


def load_checkpoint(folder, group=None):
    """The newest readable checkpoint, on every rank the same, or None."""
    box = [None, False]
    if dist.get_rank(group) == 0:
        box = list(newest_readable(folder))
    dist.broadcast_object_list(box, group=group, group_src=0)
    found, any_there = box
    if any_there and found is None:
        said = "can be read. To begin anew, move them away."
        raise RuntimeError(f"No checkpoint in {folder} {said}")
    return found


# A file that cannot be read is noticed. A flipped bit is not: it is read as another
# weight, for `torch.load` does not verify a checksum.

if rank == 0:
    flipped_file = folder / "flipped.pt"
    torch.save({"weights": torch.zeros(4096)}, flipped_file)
    content = bytearray(flipped_file.read_bytes())
    content[content.index(bytes(1000)) + 500] ^= 1
    flipped_file.write_bytes(content)
    assert torch.load(flipped_file)["weights"].count_nonzero() == 1

# If you fear that, store a checksum of your own.

# --- What a run is --------------------------------------------------------------------

# Predict: The weights, the optimizer, the number of the step, one random generator a
# rank: what else has a training of yours that changes from step to step?
#
# First the position in the data. The order of `DistributedSampler` follows from its
# seed and the number of the epoch. So a position is one number: how many batches have
# been dealt since the beginning.


def shares(n, epoch, batch, group=None):
    """This rank's part of each batch of an epoch: lists of numbers below n."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    sampler = DistributedSampler(range(n), world_size, rank, drop_last=True)
    sampler.set_epoch(epoch)
    with torch.device("cpu"):  # where the sampler's generator is
        mine, share = list(sampler), batch // world_size
    return [mine[i : i + share] for i in range(0, len(mine) - share + 1, share)]


# Then chance. Dropout draws from PyTorch's generator. This training also augments its
# images: Python draws how far they are shifted, and NumPy draws noise. So each rank has
# three generators, and on a GPU a fourth.


def seed_all(seed):
    """Seed all generators of this process."""
    torch.manual_seed(seed)  # of its GPUs, too
    np.random.seed(seed)
    random.seed(seed)


def random_states():
    """Where the generators of this process stand: no pickled objects."""
    name, keys, *rest = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    states["numpy"] = [name, keys.tolist(), *rest]
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states):
    """Put all generators of this process where they stood."""
    torch.set_rng_state(states["torch"].cpu())
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def network(dropout=0.0, seed=0):
    """A small network for 8 x 8 pixels, in float64; one seed, one start."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        first, last = nn.Linear(64, 48), nn.Linear(48, 10)
    layers = first, nn.Tanh(), nn.Dropout(dropout), last
    return nn.Sequential(*layers).double().to(torch.get_default_device())


def augmented(inputs):
    """Shift 8 x 8 pixels sideways, and add noise."""
    shift = random.choice((-1, 0, 1))
    shifted = inputs.view(-1, 8, 8).roll(shift, dims=2).flatten(1)
    noise = 0.1 * np.random.standard_normal(shifted.shape)
    return shifted + torch.from_numpy(noise).to(shifted)


def mean_over_ranks(loss, group=None):
    """The mean of all ranks' losses, a float."""
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size(group)


# Last the schedule. The learning rate falls to 0 along a cosine, and how far it has
# come is state as well. All that changes goes into one object:


class Training:
    """A training that knows what it is. batch: samples, of all ranks."""

    def __init__(self, model, data, batch, noise=None, horizon=24, group=None):
        self.data, self.batch, self.noise = data, batch, noise
        self.group, self.replica = group, DDP(model, process_group=group)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, horizon)
        self.parts = {"model": model, "optimizer": sgd, "schedule": cosine}
        self.dealt, self.losses = 0, []
        seed_all(dist.get_rank(group))  # noise of its own on every rank

    def step(self):
        """One step on this rank's share of the next batch."""
        X, y = self.data
        epoch, place = divmod(self.dealt, len(y) // self.batch)
        mine = shares(len(y), epoch, self.batch, self.group)[place]
        inputs = self.noise(X[mine]) if self.noise else X[mine]
        loss = nn.functional.cross_entropy(self.replica(inputs), y[mine])
        self.parts["optimizer"].zero_grad()
        loss.backward()
        self.parts["optimizer"].step()
        self.parts["schedule"].step()
        self.dealt += 1
        self.losses.append(mean_over_ranks(loss, self.group))


# Its state has two halves: what all ranks have alike, and what each has for itself.
# `forget` names what is not restored, to see what comes of it.


def state_of(run):
    """What all ranks have alike, and what this rank has for itself."""
    shared = {name: part.state_dict() for name, part in run.parts.items()}
    shared |= {"dealt": run.dealt, "losses": list(run.losses)}
    return shared, random_states()


def restore(run, found, forget=()):
    """Put a run where it was when the checkpoint `found` was taken."""
    shared, own = found["shared"], found["own"]
    for name, part in run.parts.items():
        if name not in forget:
            part.load_state_dict(shared[name])
    if "position" not in forget:
        run.dealt = shared["dealt"]
    run.losses = list(shared["losses"])
    same_ranks = len(own) == dist.get_world_size(run.group)
    if "random states" not in forget and same_ranks:
        set_random_states(own[dist.get_rank(run.group)])


# --- Everything restored, and other bits ----------------------------------------------

# Now the test: is a resumed run the same run? It makes twelve steps and a checkpoint,
# and then twelve more steps in a new object. Next to it runs the twin, 24 steps without
# a stop.


def begin(folder=None, forget=()):
    """A new run; with a folder, where its checkpoint was taken."""
    run = Training(network(dropout=0.2), train_set, batch, augmented)
    if folder:
        restore(run, load_checkpoint(folder), forget)
    return run


def advance(run, steps=24):
    while len(run.losses) < steps:
        run.step()
    return run


def weights_of(run):
    return nn.utils.parameters_to_vector(run.replica.parameters()).detach()


everyone()
if rank == 0:
    print("\n## Everything restored, and other bits\n")

play("ranks")

cold, cold_twin = Path(place, "cold"), advance(begin())
save_checkpoint(cold, 12, *state_of(advance(begin(), 12)))
resumed = advance(begin(cold))
cold_gap = (weights_of(resumed) - weights_of(cold_twin)).abs().max().item()

# Predict: Everything is restored. Are the weights equal, bit for bit? What may differ
# in the first step after a start? Think of chapter 11, "During backward". And would it
# matter with two ranks?

cold_gap_by_rank = to_rank_0(cold_gap)
if rank == 0:
    play("kernel")
    largest_gap = max(cold_gap_by_rank)
    assert largest_gap < 1e-12
    assert (largest_gap > 0) == (world_size > 2)
    result("gap_without_warm_up", largest_gap, varies=True)

# The weights differ by (gap_without_warm_up), and yet nothing is missing from the
# checkpoint. The cause is the order in which DDP sums:
# - In its first step, DDP has the parameters in its bucket in the order of
#   registration. Afterwards they are in the order of arrival.
# - The place of a number in the buffer decides at which rank its sum begins. A sum that
#   begins elsewhere may be rounded differently.
# - The resumed run makes step 12 with the first layout, the twin with the second.
#
# With two ranks there is only one sum, a + b, and nobody would notice.
#
# A gap of this size harms no training. It harms the test: "equal, bit for bit" is
# easily checked, while "nearly equal" hides every bug that is small at first.
#
# The repair is one extra backward pass before the training, whose gradients are thrown
# away. After it, every start has the buckets that it will keep.


def warm_up(run):
    """Let DDP make its final buckets: a backward pass for nothing."""
    run.replica.eval()  # no dropout, and batch norm keeps its statistics
    run.replica(run.data[0][:1]).sum().backward()
    run.replica.train()
    run.replica.zero_grad()
    return run


def begin(folder=None, forget=()):
    """A new run, warmed up; with a folder, where its checkpoint was taken."""
    run = Training(network(dropout=0.2), train_set, batch, augmented)
    warm_up(run)
    if folder:
        restore(run, load_checkpoint(folder), forget)
    return run


everyone()
play("ranks")

warm, twin = Path(place, "warm"), advance(begin())
save_checkpoint(warm, 12, *state_of(advance(begin(), 12)))
resumed = advance(begin(warm))
same_bits = torch.equal(weights_of(resumed), weights_of(twin))
same_losses = resumed.losses == twin.losses

same_bits_by_rank = to_rank_0(same_bits)
same_losses_by_rank = to_rank_0(same_losses)
if rank == 0:
    play("kernel")
    bits, losses_too = same_bits_by_rank, same_losses_by_rank
    assert all(bits) and all(losses_too)
    result("same_bits", bits)

# Now they are equal, on every rank. On a GPU this takes deterministic kernels as well:
# chapter 11, "Determinism, and what it costs". And the second life needs the same kind
# of machine, and the same version of PyTorch [randomness].
#
# One trap is left, for those who use a `DataLoader`. Its iterator draws from PyTorch's
# generator when it is made:

if rank == 0:
    loader = torch.utils.data.DataLoader(range(10))
    before = torch.get_rng_state()
    iterator = iter(loader)
    drawn = not torch.equal(before, torch.get_rng_state())
    assert drawn
    result("an_iterator_draws", drawn)

# A run that goes on makes an iterator in the middle of an epoch, which the twin did
# not. So restore the random states after making it, or give the loader a generator of
# its own.
#
# With `num_workers` above 0 that is not enough. The workers get their seeds from this
# draw [torchdata], and an iterator made in the middle of an epoch has others than the
# twin's. So noise that the workers draw is other noise. Draw it for each sample
# instead, as the end of this chapter says.

# --- What each part is for ------------------------------------------------------------

# The same checkpoint is restored again and again, each time with one thing left out.
# All these runs are measured on the same data at the end: all images, without noise.
#
# Which differences mean something? To know that, three more runs go on from the whole
# checkpoint, with other noise. They show how far chance alone moves the loss.
#
# Predict: Which omission does the most harm? Which ones cannot be told from chance?


def final_loss(run):
    """The loss on all images, without noise or dropout."""
    model, (X, y) = run.parts["model"].eval(), run.data
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(X), y).item()
    model.train()
    return loss


def other_noise(seed):
    run = begin(warm)
    seed_all(1000 * seed + rank)
    return final_loss(advance(run))


everyone()
if rank == 0:
    print("\n## What each part is for\n")

play("ranks")

omitted = ("random states", "position", "schedule", "optimizer", "model")
final = {"nothing": final_loss(twin)}
final |= {name: final_loss(advance(begin(warm, (name,)))) for name in omitted}
by_chance = [other_noise(seed) for seed in range(1, 4)]

final_by_rank = to_rank_0(final)
by_chance_by_rank = to_rank_0(by_chance)
if rank == 0:
    play("kernel")
    final, chance = final_by_rank[0], [*by_chance_by_rank[0]]
    chance.append(final["nothing"])
    ordered = sorted(final, key=final.get)
    low, high = min(chance), max(chance)
    close = "nothing", "random states", "position"
    fig, ax = plt.subplots(num="left-out", figsize=(5.2, 2.8))
    ax.axvspan(low, high, color="0.8", linewidth=0)
    for name in ordered:
        color = "k" if name in close else "C1"
        ax.plot(final[name], name, "o", color=color)
        if name not in close:
            where = (9, 0) if name != "model" else (-9, 0)
            ax.annotate(f"{final[name]:.2f}", (final[name], name), where,
                        textcoords="offset points", va="center", color=color,
                        ha="left" if where[0] > 0 else "right")
    ax.text(high, 0, " chance", color="0.35", va="center")
    ax.set(xlabel="final loss on all images", ylabel="left out")
    ax.set_title("in color: what chance does not explain", size=11)
    save_figures()

if rank == 0:
    for name, loss in final.items():
        result(f"final_without_{name.replace(' ', '_')}", round(loss, 4))
    result("chance", [round(low, 4), round(high, 4)])
    assert ordered[-1] == "model" and ordered[0] == "schedule"
    assert final["schedule"] < low and final["optimizer"] > high
    for name in ("random states", "position"):
        assert low - (high - low) < final[name] < high + (high - low)
    save_figures()

# In the picture the gray band is chance. The dots of the random states and of the
# position lie in it or beside it. The other three lie outside of it.
# - Without the model the training starts anew, and ends at (final_without_model) in
#   place of (final_without_nothing). Nobody can overlook that.
# - Without the optimizer the loss is (final_without_optimizer), above the band. The
#   momentum must gather again, and the learning rate, which the optimizer holds, begins
#   at that of step 0.
# - Without the schedule the loss is (final_without_schedule), below the band. The rate
#   falls as slowly as at the beginning, so the steps stay long. It is not the training
#   that was planned, and the better number hides it.
# - Without the position the batches of the epoch's beginning come twice, and others
#   never. The loss, (final_without_position), cannot be told from chance, which is
#   (chance).
# - Without the random states the noise is another one. The loss is
#   (final_without_random_states), and cannot be told from chance, either.
#
# On a GPU dropout draws other numbers, so there all of these losses are a little
# different.
#
# So why restore the last two? What is lost with them is the proof: only a run that can
# be repeated to the last bit tells a harmless difference from a bug.
#
# Two parts share the learning rate: the optimizer holds it, the schedule counts the
# steps. What happens to it can be seen without any training. Here the optimizer, the
# schedule, both or neither are restored:


def rates(*restored):
    """The rates of steps 12 to 23 after a stop, when these are restored."""
    lives = []
    for _ in range(2):
        weights = torch.zeros(1, requires_grad=True)
        sgd = torch.optim.SGD([weights], lr=0.1)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 24)
        parts, seen = {"optimizer": sgd, "schedule": cosine}, []
        for name in restored if lives else ():
            parts[name].load_state_dict(lives[0][name].state_dict())
        for _ in range(12):
            seen.append(sgd.param_groups[0]["lr"])
            sgd.step()
            cosine.step()
        lives.append(parts)
    return seen


everyone()
play("ranks")

rates_with = {"both": rates("optimizer", "schedule"), "neither": rates()}
rates_with |= {name: rates(name) for name in ("schedule", "optimizer")}

rates_with_by_rank = to_rank_0(rates_with)
if rank == 0:
    play("kernel")
    rates_of = rates_with_by_rank[0]
    styles = {"both": "k-", "schedule": "C1--"}
    styles |= {"optimizer": "C2-.", "neither": "C3:"}
    fig, ax = plt.subplots(num="rates", figsize=(5.2, 2.9))
    for name, style in styles.items():
        ax.plot(range(12, 24), rates_of[name], style, label=name)
    ax.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    ax.set_xticks(range(12, 24, 3))
    ax.set_title("the rate is right only if both are restored", size=11)
    fig.legend(title="restored", loc="outside lower center", ncols=4, fontsize=10)
    save_figures()

if rank == 0:
    right, optimizer = rates_of["both"], rates_of["optimizer"]
    assert optimizer[0] == right[0] and optimizer[-1] > 10 * right[-1]
    assert np.allclose(rates_of["schedule"], 2 * np.array(right))
    assert rates_of["neither"][0] == 0.1

# The black line is right. Each of the others is wrong in its own way:
# - With the optimizer alone the rate goes on from where it was, for the optimizer's
#   state holds it. But the schedule counts from 0, so the rate falls as slowly as at
#   the beginning.
# - With the schedule alone the rate is twice what it should be, to the end. This is
#   what the run without its optimizer had above.
# - With neither, the rate begins again at that of step 0.

# --- A launcher is a loop -------------------------------------------------------------

# Does the result depend on how the ranks were started, or on how often? To find out,
# the same training is run in two ways: in a program that is killed and started again,
# and on the ranks of this notebook. Here is the whole training:


def train(run, steps, folder, every, before_step=None):
    """Train up to step `steps`, from the newest checkpoint on; leave new ones.

    before_step(step) is called before each step.
    """
    found = load_checkpoint(folder, run.group)
    if found:
        restore(run, found)
    while len(run.losses) < steps:
        if before_step:
            before_step(len(run.losses))
        run.step()
        if len(run.losses) % every == 0:
            step = len(run.losses)
            save_checkpoint(folder, step, *state_of(run), run.group)
    return run.losses


# The functions of this page go into a file, as they stand. Below them comes what a rank
# does. Rank 1 kills itself before step 14, unless there is a checkpoint.

everyone()
if rank == 0:
    print("\n## A launcher is a loop\n")

play("ranks")
taken = [network, shares, augmented, mean_over_ranks, seed_all, random_states]
taken += [set_random_states, warm_up, state_of, restore, train, write_whole]
taken += [checkpoints, latest_checkpoint, write_checkpoint, save_checkpoint]
taken += [only_readable]
taken += [newest_readable, load_checkpoint]
sources = [inspect.getsource(function) for function in taken]
methods = map(inspect.getsource, (Training.__init__, Training.step))
program_text = "\n\n".join([*sources, "class Training:\n" + "\n".join(methods)])

everyone()
if rank == 0:
    play("kernel")
    imports = '''
import os, random, signal, tempfile, warnings
from collections import OrderedDict
from functools import partial
from pathlib import Path
import numpy as np
import torch
import torch._dynamo  # for DDP, and here once for all ranks
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

'''

program_text_by_rank = to_rank_0(program_text)
if rank == 0:
    functions = imports + program_text_by_rank[0]

if rank == 0:
    end = '''

def main(rank, meet):
    dist.init_process_group("gloo", meet, rank=rank, world_size=2)
    first_life = not latest_checkpoint("saved")

    def die_here(step):
        if first_life and (rank, step) == (1, 14):
            print("killed before step 14", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    model, data = network(dropout=0.2), torch.load("data.pt")
    run = warm_up(Training(model, data, 32, augmented))
    losses = train(run, 24, "saved", every=4, before_step=die_here)
    del run  # DDP must not outlive its process group, or a rank may hang
    if rank == 0:
        torch.save((losses, model.state_dict()), "restarted.pt")
    dist.barrier()
    dist.destroy_process_group()
'''

# The last lines are a launcher. `start_processes` ends all ranks as soon as one has
# failed, and the loop starts them again, in a new life.

if rank == 0:
    launcher = '''

for life in (1, 2, 3):
    print("life", life, flush=True)
    meet = f"file://{tempfile.mkdtemp(dir=os.getcwd())}/meet"
    try:
        mp.start_processes(main, (meet,), nprocs=2, start_method="fork")
        break
    except Exception as error:
        print(error)
'''
    (folder / "restarted.py").write_text(functions + end + launcher)

# Predict: The loop runs it, and rank 1 is killed before step 14. And ranks 0 and 1 of
# this notebook run it, with nobody killed. How many different results are there?

if rank == 0:
    for old in (folder / "saved").glob("*"):
        old.unlink()  # if this cell has run before
    lives = run_program("restarted")

everyone()
play("ranks")
two = dist.new_group([0, 1])
on_engines = None
if rank < 2:
    with torch.device("cpu"):  # where the program computes
        model, data = network(dropout=0.2), [part.cpu() for part in train_set]
        run = Training(model, data, 32, augmented, group=two)
        losses = train(warm_up(run), 24, Path(place, "engines"), every=4)
    on_engines = losses, model.state_dict()

everyone()
if rank == 0:
    play("kernel")
    of_lives = [line for line in lives if line.startswith(("life ", "killed "))]
    assert of_lives == ["life 1", "killed before step 14", "life 2"], lives

on_engines_by_rank = to_rank_0(on_engines)
if rank == 0:
    expected_losses, expected_weights = on_engines_by_rank[0]
    got_losses, got_weights = torch.load(folder / "restarted.pt")
    assert got_losses == expected_losses
    for key, expected in expected_weights.items():
        assert torch.equal(got_weights[key], expected), key
    kept = sorted((folder / "saved").glob("*"))
    result("files_kept", [path.name for path in kept])

# One. Killed or not, started by a loop or as the ranks of this notebook, the losses and
# the weights are the same, bit for bit. The tests of the book do this many times, with
# ranks and steps drawn at random, and in the middle of writing.

# --- What restarts have taught --------------------------------------------------------

# One line of `environment`, folded above, is there because restarts failed without it.
# `torchrun` keeps one store for all lives of the ranks, and after a restart a rank may
# find in it the address that a dead one has left [rdzvstore]. Then the restart fails
# with `Gloo connectFullMesh failed … Connection refused`. With
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` each life has a store of its own.
#
# An error like this one shows itself only in a restart. So try a restart before you
# need one.
#
# Job schedulers usually send a SIGTERM some time before the SIGKILL. Let its handler do
# no more than set a flag. After each step the ranks agree by an all-reduce whether any
# flag is set, and then all of them save. They have to agree, for to save is a
# collective, and the signal does not reach all ranks in the same step.
#
# A training with mixed precision, averaged weights or early stopping has more state
# than this one: the scaler, the averages, the best score.

# --- How often to save ----------------------------------------------------------------

# Who saves often loses time to saving. Who saves seldom loses more with each failure.
# Between the two there is a best interval.
#
# Say that a checkpoint costs $C$ seconds, that a failure comes every $M$ seconds on
# average, and that one saves every $T$ seconds. Two shares of the time are lost:
# - $C/T$ goes into saving.
# - A failure destroys half an interval on average, $T/2$ seconds, once in $M$ seconds.
#   That is $T/2M$.
#
# The sum is least where both are equal, at $T = \sqrt{2CM}$. The share that is lost is
# then $\sqrt{2C/M}$ [young1974].
#
# Worked problem: Llama 3 was trained on 16,384 H100s, with 419 unexpected interruptions
# in 54 days [llama3]. It has 405 billion parameters; weights in bf16 with the
# optimizer's state and weights in float32 take 14 bytes for each. One rank may write
# them all, part after part, through its 400 Gbit/s card, 50 GB/s [connectx7], or all
# ranks write parts, into storage that takes 2 TB/s [llama3]. How often should it save,
# and what is lost?

if rank == 0:
    print("\n## How often to save\n")
    M = 54 * 24 * 3600 / 419
    size = 14 * 405e9


def young(C):
    """The best interval in minutes, and the share of the time that is lost."""
    return (2 * C * M) ** 0.5 / 60, (2 * C / M) ** 0.5


if rank == 0:
    for who, bandwidth in (("one_rank", 50e9), ("all_ranks", 2e12)):
        minutes, lost = young(size / bandwidth)
        result(f"seconds_{who}", round(size / bandwidth, 1))
        result(f"minutes_{who}", round(minutes, 1))
        result(f"lost_{who}", round(100 * lost, 1))

if rank == 0:
    for C in (size / 50e9, size / 2e12):
        intervals = np.linspace(10, 10_000, 100_000)
        losses_of_time = C / intervals + intervals / (2 * M)
        best = intervals[losses_of_time.argmin()]
        assert abs(best / 60 - young(C)[0]) < 0.01
        assert abs(losses_of_time.min() - young(C)[1]) < 1e-4
    result("terabytes", round(size / 1e12, 2))
    result("hours_between_failures", round(M / 3600, 2))

# The state is (terabytes) TB, and something fails every (hours_between_failures) hours.
# The two ways compare like this:
#
# | who writes | a checkpoint takes | save every | time lost |
# | --- | --- | --- | --- |
# | one rank | (seconds_one_rank) s | (minutes_one_rank) minutes | (lost_one_rank) % |
# | all ranks | (seconds_all_ranks) s | (minutes_all_ranks) minutes | (lost_all_ranks) % |
#
# The formula counts neither the time to notice a failure nor the restart. Both come on
# top. And the saving itself can be made cheaper: copy the state to memory, go on with
# the training, and write in the background [mohan2021checkfreq].

# --- PyTorch's own checkpoint ---------------------------------------------------------

# `torch.distributed.checkpoint`, DCP, is made for this: every rank writes a part, all
# at once, into one folder [dcp]. What a rank has for itself it adds under a name that
# no other rank uses.

everyone()
if rank == 0:
    print("\n## PyTorch's own checkpoint\n")

play("ranks")

model = network()  # on every rank the same
state = {"model": model.state_dict(), "step": 1}
state[f"random states of rank {rank}"] = random_states()

parts_folder = Path(place, "dcp")
dcp.save(state, checkpoint_id=parts_folder)
dcp_files = sorted(os.listdir(parts_folder))


def milliseconds(save, repeats=3):
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        save()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


everyone()

our_folder, own = Path(place, "ours"), random_states()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the folder is there, the second time
    dcp_save = milliseconds(lambda: dcp.save(state, checkpoint_id=parts_folder))
our_save = milliseconds(lambda: save_checkpoint(our_folder, 1, state, own))

# Predict: All ranks have the same weights. Are they in the folder once, or once for
# each rank? And can half of the ranks read what all have written?

everyone()
divisors = [n for n in range(1, world_size // 2 + 1) if batch % n == 0]
half_of_us = max(divisors)  # or nearly half
half_group = dist.new_group(list(range(half_of_us)))
loaded_on_half = None
if rank < half_of_us:
    fresh = network(seed=5)
    to_fill = {"model": fresh.state_dict(), "step": 0}
    to_fill["random states of rank 1"] = random_states()
    how = {"checkpoint_id": parts_folder, "process_group": half_group}
    dcp.load(to_fill, **how)  # in place
    loaded_on_half = to_fill["step"], [p.clone() for p in fresh.parameters()]
weights_saved = list(model.parameters())
dist.barrier()

loaded_on_half_by_rank = to_rank_0(loaded_on_half)
if rank == 0:
    play("kernel")
    step_read, weights_read = loaded_on_half_by_rank[0]
    assert step_read == 1

weights_saved_by_rank = to_rank_0(weights_saved)
if rank == 0:
    for a, b in zip(weights_read, weights_saved_by_rank[0]):
        assert torch.equal(a, b)
    parts, holders = [*(folder / "dcp").iterdir()], set()

weights_saved_by_rank = to_rank_0(weights_saved)
if rank == 0:
    for weights in weights_saved_by_rank[0]:
        bits = weights.detach().numpy().tobytes()
        times = [part.read_bytes().count(bits) for part in parts]
        assert sum(times) == 1
        holders.add(times.index(1))
    assert len(holders) > 1

dcp_files_by_rank = to_rank_0(dcp_files)
if rank == 0:
    files = dcp_files_by_rank[0]
    assert len(files) == world_size + 1
    result("dcp_files", f"{files[0]}, {files[1]} to {files[-1]}")

dcp_save_by_rank = to_rank_0(dcp_save)
our_save_by_rank = to_rank_0(our_save)
if rank == 0:
    slower = max(dcp_save_by_rank) / max(our_save_by_rank)
    result("dcp_time_over_ours", slower, varies=True)

# The weights are there once, shared out among the files. There is a file for each rank,
# and `.metadata`, which says what lies where. A folder without it is no checkpoint.
#
# And half of the ranks can read it. Loading fills a state that is there already, tensor
# by tensor, and reads no more than each rank asks for: any number of ranks may ask.
#
# For a model this small DCP takes (dcp_time_over_ours) times as long as our one file.
# It is made for large states. With ours, one rank writes everything while the others
# wait, and the whole state must fit into that rank's memory. `dcp.async_save` also
# writes in the background.
#
# What DCP leaves to you is the same as before: what belongs in the state, the random
# states of each rank, the position, which folder is the newest, and which are deleted.
# Take a new folder each time: in an old one, the new parts are written over the old
# ones.

# --- Four ranks stop, two go on -------------------------------------------------------

# Predict: A checkpoint of all ranks is continued by half as many, with the same global
# batch. What is the same, what is close, and what is gone?

everyone()
if rank == 0:
    print("\n## Four ranks stop, two go on\n")

play("ranks")
quiet, noisy = Path(place, "quiet"), Path(place, "noisy")
of_all = advance(Training(network(), train_set, batch)).losses, twin.losses
train(Training(network(), train_set, batch), 12, quiet, every=12)
train(begin(), 12, noisy, every=12)
fewer = None
if rank < half_of_us:
    group = {"group": half_group}
    run = Training(network(), train_set, batch, **group)
    without_noise = train(run, 24, quiet, every=12)
    run = Training(network(0.2), train_set, batch, augmented, **group)
    fewer = without_noise, train(run, 24, noisy, every=12)
dist.barrier()


def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


fewer_by_rank = to_rank_0(fewer)
if rank == 0:
    play("kernel")
    quiet_losses, noisy_losses = map(np.array, fewer_by_rank[0])

of_all_by_rank = to_rank_0(of_all)
if rank == 0:
    quiet_twin, noisy_twin = map(np.array, of_all_by_rank[0])
    difference = np.abs(quiet_losses - quiet_twin).max()
    assert difference < 1e-12
    assert np.abs(noisy_losses - noisy_twin).max() > 1e-3
    result("largest_difference", float(difference), varies=True)

# The same are the batches: the sampler deals one shuffled list, whatever the number of
# ranks.
#
# Close are the losses of a training without noise. They agree to (largest_difference),
# which is rounding.
#
# Gone is the noise: the random states of some ranks have nowhere to go. `restore` then
# sets none, the ranks draw on from those of step 0, and the losses differ as those of
# two seeds do. Noise that is drawn for each sample, from a seed, the epoch and the
# sample's number, would not depend on the ranks at all.

# --- What you can do now --------------------------------------------------------------

# - Write a file so that a kill at any moment leaves the old one or the new one.
# - Save on one rank, load on all, and let nobody go on before the checkpoint is there.
# - Say what a run is: parts, position and the random states of each rank. Prove it, bit
#   for bit.
# - Tell from a learning rate what was not restored.
# - Choose how often to save from what a checkpoint costs and how often something fails.
# - Move a run from four ranks to two, and say what then is equal, what is close and
#   what is gone.

# --- Run it on a cluster --------------------------------------------------------------

#     torchrun --standalone --nproc-per-node 4 scripts/25_resume.py
#
# On several hosts the cells that write need a folder that all of them see: set `TMPDIR`
# to one.

# --- Where to read on -----------------------------------------------------------------

# - [mohan2021checkfreq]: checkpoints often and cheaply, and what is forgotten in them.
# - [young1974]: two pages on how often to save.
# - [dcp]: PyTorch's checkpoints of models that no rank can hold.
# - [llama3]: what failed in 54 days on 16,384 GPUs, in a table.

leave_group()
