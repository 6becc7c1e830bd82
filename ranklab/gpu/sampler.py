"""A thread that reads a meter in fixed steps of time, while a block runs.

Why a thread, and not a process? A thread needs Python's global lock for each sample. Python code
hands it over every 5 ms, and PyTorch lets it go while it computes. Only one long call into C that
keeps the lock, such as sorting a list of millions, makes samples late. Late is not wrong: every
sample has the time at which it was taken, and the CPU's readings are differences of counters, so
that nothing is lost between two of them. (NVML's utilization is not: it tells of the moment
before it is asked.) `Recording.gap_s` says how long the longest time without a sample was. A
process would not be late, but costs a start, a second Python in memory, and a way to bring the
samples back. `benchmarks/sampler.py` measures both: the cost, and the gaps.
"""

import platform
import shlex
import sys
import threading
import time
from contextlib import contextmanager
from datetime import date

from ranklab.gpu.cpu import Cpu
from ranklab.gpu.nvml import Gpu
from ranklab.gpu.samples import Recording

SHORTEST = 0.02  # seconds: the last reading is not about less; the counters tick by 0.01


@contextmanager
def sampled(hz=10, of=None, device=0, nvml=None):
    """Sample the GPU or the CPU while the block runs; gives the Recording, filled as it runs.

    hz: samples a second. of: "gpu" or "cpu"; by default the GPU where NVML finds one.
    device: which GPU, as the program counts them (CUDA_VISIBLE_DEVICES is minded).
    nvml: a module with pynvml's functions, in place of pynvml.

    Raises ValueError for an `of` or `hz` that cannot be, and RuntimeError where there is no
    NVIDIA driver, no such GPU, or where sampling failed on the way.
    """
    if of not in (None, "gpu", "cpu"):
        raise ValueError(f'sampled: of={of!r} is not known; it is "gpu", "cpu" or None.')
    if not 0 < hz <= 1000:
        raise ValueError(f"sampled: hz={hz!r}: give a number of samples a second, up to 1000.")
    sampler = _Sampler(_meter(of, device, nvml), 1 / hz)
    try:
        sampler.start()
        yield sampler.recording
    finally:
        sampler.stop()
    if sampler.failure:
        about, number = sampler.recording.about, len(sampler.recording)
        raise RuntimeError(
            f"sampling {about['card']} stopped after {number} samples: {sampler.failure}"
        ) from sampler.failure


def _meter(of, device, nvml):
    if of == "cpu":
        return Cpu()
    try:
        return Gpu(device, nvml)
    except RuntimeError:
        if of == "gpu":
            raise
        return Cpu()


class _Sampler(threading.Thread):
    """Reads a meter in fixed steps of time, until it is told to stop."""

    def __init__(self, meter, period):
        super().__init__(name="ranklab-sampler", daemon=True)
        self.meter, self.period = meter, period
        self.recording = Recording(meter.about | _versions())
        self.failure = None
        self._began, self._enough = threading.Event(), threading.Event()

    def start(self):
        """Begin; return when the meter has its first values."""
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
            self._sample()
        except Exception as error:  # raised where the block ends
            self.failure = error
        finally:
            self._began.set()
            self.meter.close()
        seconds = max(time.perf_counter() - began, 1e-9)
        self.recording.cost = (time.thread_time() - spent) / seconds

    def _sample(self):
        self.meter.begin()
        began, last, over = time.perf_counter(), 0.0, False
        self._began.set()
        while not over:
            now = time.perf_counter() - began
            # Until the next whole step, or the one after it: a late sample does not push back all
            # that follow, and no reading is about a much shorter time than the others.
            left = self.period - now % self.period
            over = self._enough.wait(left if left > self.period / 2 else left + self.period)
            now = time.perf_counter() - began
            if over and len(self.recording) and now - last < SHORTEST:
                break
            self.recording.add(now, *self.meter.read())
            last = now


def _versions():
    torch = sys.modules.get("torch")  # if the program uses it
    return {
        "torch": torch and str(torch.__version__),
        "cuda": torch and torch.version.cuda,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
        "command": shlex.join(sys.orig_argv),
    }
