"""A thread that reads meters in fixed steps of time, while a block runs.

A thread needs Python's global lock for each sample, so it may be late, where a process would cost a
start and a second Python. Late is not wrong: every sample has its time, and the CPU's readings are
differences of counters. (NVML's utilization is of the moment before it is asked.)
`benchmarks/sampler.py` measures what it costs, and how late it is.
"""

import platform
import shlex
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path

from ranklab.gpu.cpu import Cpu
from ranklab.gpu.nvml import NoGpu, gpus, torch_with_cuda
from ranklab.gpu.samples import Recording

SHORTEST = 0.02  # seconds: the last reading is not about less; the counters tick by 0.01


@contextmanager
def sampled(hz=10, of=None, device=None, nvml=None):
    """Sample what this process uses while the block runs; gives a Recording, filled as it runs.

    That is its GPU where there is one, else the CPU, and a note says why if that may surprise.
    hz: samples a second. of: "gpu" (an error where there is none) or "cpu".
    device: a torch.device ("cuda:1", "cpu"), or a GPU's number as the program counts; by default
        the GPU that torch has set. "all": gives a list of Recordings, of all GPUs that the
        program may see, read by one thread.
    nvml: a module with pynvml's functions, in place of pynvml.

    Raises ValueError for arguments that cannot be, and RuntimeError where of="gpu" finds none, or
    where sampling failed on the way. (What a driver does not tell is no failure, but a note.)
    """
    if of not in (None, "gpu", "cpu"):
        raise ValueError(f'sampled: of={of!r} is not known; it is "gpu", "cpu" or None.')
    if not 0 < hz <= 1000:
        raise ValueError(f"sampled: hz={hz!r}: give a number of samples a second, up to 1000.")
    sampler = _Sampler(_meters(of, device, nvml), 1 / hz, rank=None if device == "all" else _rank())
    try:
        sampler.start()
        yield sampler.recordings if device == "all" else sampler.recordings[0]
    finally:
        sampler.stop()
    if sampler.failure:
        first = sampler.recordings[0]
        raise RuntimeError(
            f"sampling {first.about['card']} stopped after {len(first)} samples: {sampler.failure}"
        ) from sampler.failure


def _meters(of, device, nvml):
    """What is to be read, open: of one card, or of all."""
    kind, number = _parsed(device)
    if "cpu" in (of, kind):
        return [Cpu()]
    try:
        return gpus(number, nvml)
    except RuntimeError as error:
        if of == "gpu":
            raise
        cpu = Cpu()
        if torch_with_cuda() or not isinstance(error, NoGpu):
            cpu.notes.append(f"This is the CPU, for the GPU could not be read: {error}")
        return [cpu]


def _parsed(device):
    """Return ("cpu", None), or ("cuda", its number, None or "all")."""
    if device in (None, "all") or (isinstance(device, int) and device >= 0):
        return "cuda", device
    kind, _, number = str(device).partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdigit():
        raise ValueError(f'sampled: device={device!r}: "cuda:1", "cpu", a number, or "all".')
    return kind, int(number) if number and kind == "cuda" else None


class _Sampler(threading.Thread):
    """Reads meters in fixed steps of time, one after the other, until it is told to stop."""

    def __init__(self, meters, period, rank):
        super().__init__(name="ranklab-sampler", daemon=True)
        self.meters, self.period = meters, period
        program, phases = _program() | {"rank": rank}, []
        self.recordings = [Recording(m.about | program, m.notes, phases) for m in meters]
        self.failure = None
        self._began, self._enough = threading.Event(), threading.Event()

    def start(self):
        """Begin; return when the meters have their first values."""
        super().start()
        self._began.wait()

    def stop(self):
        """Take the last sample, and end."""
        self._enough.set()
        if self.is_alive():  # not where its start was interrupted
            self.join()

    def run(self):
        began, spent = time.perf_counter(), time.thread_time()
        try:
            with ExitStack() as opened:
                for meter in self.meters:
                    opened.callback(meter.close)
                self._sample()
        except Exception as error:  # raised where the block ends
            self.failure = error
        finally:
            self._began.set()
        seconds = max(time.perf_counter() - began, 1e-9)
        for recording in self.recordings:
            recording.cost = (time.thread_time() - spent) / seconds

    def _sample(self):
        for meter, recording in zip(self.meters, self.recordings):
            meter.begin()
            recording.begin()
        began, last, over = time.perf_counter(), 0.0, False
        self._began.set()
        while not over:
            now = time.perf_counter() - began
            # Until the next whole step, or the one after it: a late sample does not push back all
            # that follow, and no reading is about a much shorter time than the others.
            left = self.period - now % self.period
            over = self._enough.wait(left if left > self.period / 2 else left + self.period)
            now = time.perf_counter() - began
            if over and last and now - last < SHORTEST:
                break
            for meter, recording in zip(self.meters, self.recordings):
                recording.add(recording.now(), *meter.read())
            last = now


def _program():
    torch = sys.modules.get("torch")  # if the program uses it
    return {
        "host": platform.node(),
        "torch": torch and str(torch.__version__),
        "cuda": torch and torch.version.cuda,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
        "command": shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]),
    }


def _rank():
    dist = sys.modules.get("torch.distributed")
    there = dist and dist.is_available() and dist.is_initialized()
    return dist.get_rank() if there else None
