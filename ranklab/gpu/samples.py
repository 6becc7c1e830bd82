"""Samples of a card with their times, and the files that hold them."""

import copy
import json
import math
import re
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_SOURCE = ("driver", "torch", "date", "command")
_LIST = re.compile(r"\[\n[^\[\]{}]*\n *\]")  # of numbers, as JSON writes it: one to a line


class Recording:
    """Samples of one GPU, or of the CPU, with their times; a value that goes from rank to kernel.

    time_s: seconds since the block began, one for each sample; began: that moment, as time.time()
        counts. recording["name"]: the readings of a column as an array; NaN where the hardware or
        the driver does not tell. GPU and CPU have `utilization_percent` and `memory_bytes`;
        `columns` names all.
    phases: (name, from, to) for each `with recording.phase(name):`, on the clock of time_s.
    notes: what is to be known of the readings, in sentences.
    about: the card and its uuid, the host, the rank, versions, date and command.
    cost: CPU time that the sampling took, as a share of one core. gap_s: the longest time between
        two samples, in seconds.

    While the block runs it grows; `so_far()` is a copy that does not.
    """

    def __init__(self, about, notes=(), phases=None):
        self.about, self.cost, self.began = about, math.nan, math.nan
        self.phases = [] if phases is None else phases
        self._notes, self._zero = list(notes), None
        self._samples = []  # each comes as a whole: no column is ever longer than another

    def begin(self):
        """Time counts from here."""
        self.began, self._zero = time.time(), time.perf_counter()

    def now(self):
        """Seconds since then."""
        return time.perf_counter() - self._zero

    def add(self, seconds, readings, missing):
        """Add a sample: its time, column -> reading (None: unknown), column -> why it is."""
        self._samples.append((seconds, readings, missing))

    @contextmanager
    def phase(self, name):
        """Mark what the block in it does. Of a GPU it is the time in which work is queued:
        `torch.cuda.synchronize()` at its end makes it the time in which work is done.

        Cards sampled together (device="all") have their phases together.
        """
        if self._zero is None:
            raise RuntimeError("a phase is marked while the recording is made, where it is made.")
        start = self.now()
        try:
            yield
        finally:
            self.phases.append((name, start, self.now()))

    def so_far(self):
        """A copy with the samples and phases until now."""
        return copy.copy(self)

    def sourced(self):
        """The same, with a note that says on what it was made."""
        source = {key: self.about.get(key) or "not known" for key in ("card", *_SOURCE)}
        said = ", ".join(f"{key} {source[key]}" for key in _SOURCE)
        self._notes.append(f"Recorded on {source['card']}: {said}.")
        return self

    def __getstate__(self):
        grown = {"_samples": self._samples[:], "phases": self.phases[:], "_zero": None}
        return self.__dict__ | grown

    @property
    def time_s(self):
        return np.array([seconds for seconds, _, _ in self._samples[:]], dtype=float)

    @property
    def columns(self):
        return tuple(dict.fromkeys(c for _, readings, _ in self._samples[:] for c in readings))

    @property
    def notes(self):
        samples, failures = self._samples[:], Counter()
        for _, _, missing in samples:
            failures.update(missing.items())
        alike = {}  # one sentence for all that are missing as often, for the same reason
        for (column, why), times in failures.items():
            alike.setdefault((why, times), []).append(" ".join(column.split("_")[:-1]))
        return self._notes + [
            f"The driver did not tell {', '.join(columns)}"
            + (f" in {times} of {len(samples)} samples" if times < len(samples) else "")
            + f" ({why})."
            for (why, times), columns in alike.items()
        ]

    @property
    def gap_s(self):
        return float(np.diff(self.time_s, prepend=0.0).max(initial=0.0))

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, column):
        samples, columns = self._samples[:], self.columns
        if samples and column not in columns:
            raise KeyError(f"there is no column {column!r}; there are {', '.join(columns)}.")
        values = [readings.get(column) for _, readings, _ in samples]
        return np.array([math.nan if value is None else value for value in values], dtype=float)

    def mean(self, column="utilization_percent"):
        """The mean over time: a reading counts for as long as it took since the one before."""
        it = self.so_far()
        lasted, readings = np.diff(it.time_s, prepend=0.0), it[column]
        known = ~np.isnan(readings)
        if not known.any():
            return math.nan
        return float(np.average(readings[known], weights=lasted[known]))

    def __repr__(self):
        it = self.so_far()
        seconds = it.time_s[-1] if len(it) else 0.0
        return f"<{len(it)} samples of {self.about['card']} in {seconds:.1f} s>"


def save(recordings, path):
    """Write recordings (name -> Recording) as JSON: what is about all of them, and the data."""
    if not recordings:
        raise ValueError("save: there is no recording to write.")
    recordings = {name: r.so_far() for name, r in recordings.items()}
    first, *others = [r.about for r in recordings.values()]
    common = {k: v for k, v in first.items() if all(o.get(k, ...) == v for o in others)}
    data = {
        name: {
            "time_s": r.time_s.tolist(),
            **{column: _plain(r[column]) for column in r.columns},
            "phases": r.phases,
            "notes": r.notes,
            "began": _plain(r.began),
            "cost": _plain(r.cost),
            "about": {k: v for k, v in r.about.items() if k not in common},
        }
        for name, r in recordings.items()
    }
    text = json.dumps(common | {"data": data}, indent=1, allow_nan=False)
    Path(path).write_text(_LIST.sub(lambda found: re.sub(r"\n *", "", found[0]), text) + "\n")


def _plain(readings):
    """The readings as lists of numbers, with None for those that are unknown: JSON has no NaN."""
    return np.where(np.isnan(readings), None, readings).tolist()


def load(path):
    """The recordings that `save` wrote: name -> Recording."""
    common = json.loads(Path(path).read_text())
    recordings = {}
    for name, columns in common.pop("data").items():
        columns.pop("processes", None)  # which older files have
        about, notes = columns.pop("about", {}), columns.pop("notes", ())
        phases = [tuple(phase) for phase in columns.pop("phases", ())]
        recordings[name] = recording = Recording(common | about, notes, phases)
        numbers, times = (columns.pop("began", None), columns.pop("cost")), columns.pop("time_s")
        recording.began, recording.cost = (math.nan if x is None else x for x in numbers)
        for i, seconds in enumerate(times):
            recording.add(seconds, {c: values[i] for c, values in columns.items()}, {})
    return recordings


def flat(recordings):
    """Recordings one after the other, from a list of them, or of lists."""
    for one in recordings:
        yield from flat(one) if isinstance(one, (list, tuple)) else [one]


def recorded(name, made=()):
    """The recordings in images/recorded/ of this name, made on a card that a reader may lack.

    name: of the file, without .json. Looked for in the working folder, in the program's, and in
        all folders above these.
    made: those of this run, as `utilization_plot` takes them. Those of GPUs are written to the
        working folder, as such a file.

    Returns {} where there is none. A note of each says where it is from.
    """
    made = made if isinstance(made, dict) else {str(i): r for i, r in enumerate(flat(made))}
    if cards := {title: r for title, r in made.items() if r.about.get("uuid")}:
        save(cards, f"{name}.json")
    for start in (Path.cwd(), Path(sys.argv[0]).resolve().parent):
        for folder in (start, *start.parents):
            path = folder / "images" / "recorded" / f"{name}.json"
            if path.exists():
                return {title: recording.sourced() for title, recording in load(path).items()}
    return {}
