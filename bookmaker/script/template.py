"""The parts of a script's preamble, as Python that can be read and checked.

Nobody imports this file: `preamble.py` copies the parts that a script needs, with the
imports that these use. A line `#: name` begins a part. A line that ends with `#: word` is for
the scripts of which the word is true (`preamble.words`), with `#: !word` for the others. "N",
TIMEOUT, BACKEND and DEVICE stand for what the notebook's `Ranks(...)` says, NAMES for those that
are apart.
"""
# ruff: noqa: F811

import io
import os
import pickle
import random
import re
import shutil
import signal
import socket
import sys
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from ranklab.start.devices import choose_device, send_over_host

TIMEOUT, BACKEND, DEVICE, STYLE, NAMES = 20.0, None, None, {}, ()


#: one_process
if any(os.environ.get(name, "0") != "0" for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")):
    sys.exit()  # one process is enough: of several, all but the first end here


#: never_mpi
if os.environ.keys() & {"PMI_RANK", "OMPI_COMM_WORLD_RANK"}:
    sys.exit(
        "Each rank is an MPI world of its own here, as it was in the notebook. Start this script "
        "by itself or with torchrun; mpiexec would make one world of all."
    )


#: start_ranks
def start_ranks():
    """Started by hand: let torchrun start this file once for each rank."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    n = os.environ.get("RANKLAB_RANKS", "N")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share the processor
    try:
        torchrun(["--standalone", "--nproc-per-node", n, *sys.argv])
    except ChildFailedError:  # the rank itself has said why
        sys.exit(1)
    sys.exit()


#: start_by_mpi
def start_ranks():
    """Started by hand: become mpiexec, which starts this file once for each rank."""
    beside = os.path.dirname(sys.executable)
    mpiexec = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if not mpiexec or not find_spec("mpi4py"):
        missing = "mpi4py" if mpiexec else "mpiexec"
        sys.exit(f"The ranks talk through MPI, and {missing} is missing: pip install mpich mpi4py")
    if "RANK" in os.environ:  # torchrun has started some, of which one says so
        words = f"The ranks talk through MPI. Start them with: mpiexec -n N python {sys.argv[0]}"
        sys.exit(words if os.environ["RANK"] == "0" else 0)
    n = os.environ.get("RANKLAB_RANKS", "N")
    # The ranks share the processor: one thread each, and who waits gives it away (in MPICH).
    for name in ("OMP_NUM_THREADS", "MPIR_CVAR_ENABLE_HEAVY_YIELD"):
        os.environ.setdefault(name, "1")
    os.execv(mpiexec, [mpiexec, "-n", n, sys.executable, *sys.argv])


if not os.environ.keys() & {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} or not find_spec("mpi4py"):
    start_ranks()


#: ask_mpi
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


#: choose_device
# The source of ranklab's.


#: send_over_host
# The source of ranklab's.


#: choose_together
def choose_together():
    """This rank's device, and the backend: NCCL only if every rank of every host says so."""
    mine = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    try:
        name, fits = choose_device(*mine, torch.cuda.device_count(), DEVICE, BACKEND)
    except ValueError as error:
        name, fits = "cpu", f"{error}"
    store.set(f"backend of rank {rank}", fits)
    said = [store.get(f"backend of rank {r}").decode() for r in range(world_size)]
    if wrong := [words for words in said if " " in words]:  # one says it, all end
        sys.exit(wrong[0] if rank == 0 else 0)
    fits = "gloo" if "gloo" in said else fits
    return torch.device(name), "cpu:gloo,cuda:nccl" if fits == "nccl" else fits


#: form_groups
def form_groups():
    """Form the process group, and a second one that moves values to and from rank 0.

    The second one is patient: rank 0 may compute alone for long.
    """
    global driver
    number = store.add(f"groups of rank {rank}", 1)
    own = dist.PrefixStore(f"group {number}", store)
    own.set(f"rank {rank}", "here")  # no clock runs before all ranks are here
    own.wait([f"rank {r}" for r in range(world_size)], timedelta(minutes=30))
    limit = timedelta(seconds=TIMEOUT)
    defaults = dist.distributed_c10d  # what dist.new_group() goes by, if not told otherwise
    defaults.default_pg_timeout = limit
    if defaults.default_pg_nccl_timeout is not None:  # there is NCCL in this build of torch
        defaults.default_pg_nccl_timeout = limit
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=limit)
    driver = dist.new_group(backend="gloo", timeout=timedelta(hours=1))


#: end_all
def end_all(*error):
    """An error that nobody catches ends all ranks: they would wait for this one for ever."""
    from mpi4py import MPI

    sys.stderr = sys.__stderr__  # torch would keep the text until this function returns
    sys.__excepthook__(*error)
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.2)  # mpiexec, which ends now, is to show it first
    MPI.COMM_WORLD.Abort(1)


#: launch_by_mpi
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank also while it waits
sys.excepthook = end_all
ask_mpi()


#: launch
if not os.environ.keys() & {"RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}:
    start_ranks()
if "RANK" not in os.environ:
    ask_mpi()


#: join
if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"] and sys.platform != "win32":
    # All ranks are on this machine: no message needs to leave it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device, backend = torch.device(DEVICE), BACKEND  #: !cards
store = next(dist.rendezvous("env://"))[0]
device, backend = choose_together()  #: cards
if device.type == "cuda":  #: cards
    torch.cuda.set_device(device)  #: cards
    torch.set_default_device(device)  # what a rank makes lies on its card  #: cards !devices
    torch.set_default_device(device if rank else None)  # rank 0 begins as the kernel  #: devices
if device.type == "cuda" and backend == "gloo":  #: cards messages
    send_over_host()  #: cards messages
form_groups()


#: everyone
def everyone():
    """Wait until all ranks are here: a notebook starts a cell on all of them together."""
    dist.barrier(group=driver)


#: unpacked
def packed(value):
    """The bytes of a value."""
    with io.BytesIO() as file:
        torch.save(value, file)
        return file.getvalue()


def unpacked(data, place):
    """The value of these bytes, its tensors on the device `place`."""
    return torch.load(io.BytesIO(data), map_location=place, weights_only=False)


#: to_rank_0
def to_rank_0(value):
    """Every rank's value in rank order, on rank 0; None on the others."""
    before = play("ranks")  #: code
    values = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, group=driver)  #: !cards
    dist.gather_object(packed(value), values, group=driver)  #: cards
    values = values and [unpacked(data, "cpu") for data in values]  #: cards
    play(before)  #: code
    return values


#: one_named
APART_CODE = NAMES  # functions and classes of which there are two


class Packer(pickle.Pickler):
    """Stops at code that goes by a name of which there are two."""

    def reducer_override(self, value):
        name = getattr(value, "__qualname__", "").partition(".")[0]
        if name in APART_CODE and value.__module__ == "__main__":
            sys.exit(
                f"`{name}` of the kernel goes to the ranks, which have their own `{name}`. In a "
                "script code goes by its name: define it in one place, or give it two names."
            )
        return NotImplemented


def one_named(value):
    """The value, if all code in it goes by a name of which there is one."""
    Packer(io.BytesIO()).dump(value)
    return value


#: from_rank_0
def from_rank_0(make):
    """What make() returns on rank 0, on every rank: a copy for each."""
    before = play("kernel")  #: play
    box = [pickle.dumps(make()) if rank == 0 else None]  #: !cards
    box = [packed(make()) if rank == 0 else None]  #: cards
    dist.broadcast_object_list(box, group=driver)
    play(before)  #: play
    return pickle.loads(box[0])  #: !cards
    return unpacked(box[0], device)  #: cards


#: push
def push(name, make):
    """Give all ranks what make() returns in the kernel, under this name: a copy for each."""
    before = play("ranks")
    globals()[name] = from_rank_0(make)
    play(before)


#: play
playing = "kernel"
APART = NAMES  # the kernel and the ranks have one each  #: apart
held_by = {"ranks": {}}  #: apart
streams = {"ranks": (torch.get_rng_state(), np.random.get_state(), random.getstate())}  #: draws
cards = {"ranks": torch.cuda.get_rng_state()} if device.type == "cuda" else {}  #: draws devices
torch.seed()  # the kernel's streams begin somewhere else  #: draws
np.random.seed()  #: draws
random.seed()  #: draws


def play(part):
    """Rank 0 is also the kernel; give each part what it has of its own."""
    global playing
    before, playing = playing, part
    if rank == 0 and part != before:
        names = globals()  #: apart
        held_by[before] = {name: names.pop(name) for name in APART if name in names}  #: apart
        names.update(held_by.pop(part))  #: apart
        streams[before] = torch.get_rng_state(), np.random.get_state(), random.getstate()  #: draws
        ours, numpys, pythons = streams[part]  #: draws
        torch.set_rng_state(ours)  #: draws
        np.random.set_state(numpys)  #: draws
        random.setstate(pythons)  #: draws
        if device.type == "cuda":  #: devices
            torch.set_default_device(device if part == "ranks" else None)  #: devices
            cards[before] = torch.cuda.get_rng_state()  #: draws devices
            torch.cuda.set_rng_state(cards[part])  #: draws devices
    return before


#: in_step
def in_step(make):
    """Loop over make() on rank 0, and as often, over None, on the other ranks."""
    if rank == 0:
        play("kernel")  #: play
        for item in make():
            from_rank_0(lambda: True)
            yield item
            play("kernel")  #: play
    while from_rank_0(lambda: False):
        yield None


#: fresh_group
def fresh_group():
    """Replace the process groups, whatever state they are in; variables live on."""
    everyone()
    dist.destroy_process_group()
    form_groups()


#: leave_group
def leave_group():
    """The end of the ranks: rank 0 may go on alone."""
    everyone()
    dist.destroy_process_group()


#: may_fail
@contextmanager
def may_fail():
    """Say what went wrong, and go on: the error is meant to happen."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"failed, as it may here: {type(error).__name__}: {first_line}"
        print(f"rank {rank} {what}")  #: ranks
        print(what)  #: !ranks


#: result
def result(name, value, varies=False):
    """Print a result that the text quotes. varies: it differs from run to run."""

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value.item() if hasattr(value, "item") else value

    print(f"{name} = {plain(value)}")


#: file_beside
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


#: hide_file
del __file__  # processes that this one starts, and that import it, must not run it again


#: look
plt.switch_backend("Agg")  # figures go to files
plt.rcParams.update(STYLE)


#: agg
plt.switch_backend("Agg")  # figures go to files


#: save_figures
def save_figures():
    """Save the open figures beside this script, and close them."""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        figure.savefig(file_beside(figure.get_label() or number))
        plt.close(figure)


#: show
def show(value, on_rank=None):
    """Print a cell's last value, as a notebook does; a picture becomes a file."""
    if isinstance(value, plt.Figure):  #: plots
        value.savefig(file_beside(value.get_label() or "figure"))  #: plots
        return plt.close(value)  #: plots
    if hasattr(value, "_repr_svg_"):
        path = file_beside(getattr(value, "name", None) or "drawing")
        path.write_text(value._repr_svg_())
    elif value is not None:
        print(repr(value) if on_rank is None else f"rank {on_rank}: {value!r}")


#: display
def display(*values):
    """Show values in the middle of a cell."""
    for value in values:
        show(value)


#: left_out
def left_out(view):
    """A stand-in for one of ranklab's views, which says that it is left out."""

    def say(*args, **kwargs):
        print(f"{view}: left out, for this view of ranklab's is not installed here")

    return say


#: untraced
@contextmanager
def untraced(*args, **kwargs):
    """A stand-in for ranklab's trace: it records nothing."""
    yield None


#: unsampled
@contextmanager
def unsampled(*args, **kwargs):
    """A stand-in for ranklab's sampled: it reads nothing, and its phases only pass."""
    yield SimpleNamespace(phase=nullcontext)
