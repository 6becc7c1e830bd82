"""Samples of a processor with their times, and the files that hold them."""

import json
import math
import sys
from pathlib import Path

import numpy as np


class Recording:
    """Samples of one processor, with their times.

    time_s: seconds since the block began, one for each sample. recording["name"]: the readings of
        a column as an array; NaN where the hardware or the driver does not tell. Both kinds have
        `utilization_percent` and `memory_bytes`; `columns` names all.
    processes: for each sample a dict pid -> {"utilization_percent", "memory_bytes"}.
    about: the card or processor, versions, date and command.
    cost: CPU time that the sampling took, as a share of one core. gap_s: the longest time between
        two samples, in seconds.
    """

    def __init__(self, about):
        self.about, self.cost = about, math.nan
        self._times, self._columns, self.processes = [], {}, []

    def add(self, seconds, readings, processes):
        """Add a sample: its time, column -> reading (None: unknown), and its processes."""
        for name, reading in readings.items():
            self._columns.setdefault(name, []).append(math.nan if reading is None else reading)
        self.processes.append(processes)
        self._times.append(seconds)

    @property
    def time_s(self):
        return np.array(self._times, dtype=float)

    @property
    def columns(self):
        return tuple(self._columns)

    @property
    def gap_s(self):
        return float(np.diff(self.time_s, prepend=0.0).max(initial=0.0))

    def __len__(self):
        return len(self._times)

    def __getitem__(self, column):
        if column not in self._columns:
            raise KeyError(f"there is no column {column!r}; there are {', '.join(self.columns)}.")
        return np.array(self._columns[column][: len(self)], dtype=float)

    def mean(self, column="utilization_percent"):
        """The mean over time: a reading counts for as long as it took since the one before."""
        lasted, readings = np.diff(self.time_s, prepend=0.0), self[column]
        known = ~np.isnan(readings)
        if not known.any():
            return math.nan
        return float(np.average(readings[known], weights=lasted[known]))

    def __repr__(self):
        seconds = self._times[-1] if self._times else 0.0
        return f"<{len(self)} samples of {self.about['card']} in {seconds:.1f} s>"


def save(recordings, path):
    """Write recordings (name -> Recording) of one machine as JSON: about it, and the data.

    Raises ValueError where two of them differ in their card or versions.
    """
    abouts = [recording.about for recording in recordings.values()]
    if not abouts or any(about != abouts[0] for about in abouts):
        raise ValueError("save: give one or more recordings, all from one card and one program.")
    data = {
        name: {
            "time_s": r.time_s.tolist(),
            **{column: _plain(r[column]) for column in r.columns},
            "processes": r.processes,
            "cost": r.cost,
        }
        for name, r in recordings.items()
    }
    Path(path).write_text(json.dumps(abouts[0] | {"data": data}, indent=1, allow_nan=False) + "\n")


def _plain(readings):
    """The readings as lists of numbers, with None for those that are unknown: JSON has no NaN."""
    return np.where(np.isnan(readings), None, readings).tolist()


def load(path):
    """The recordings that `save` wrote: name -> Recording."""
    about = json.loads(Path(path).read_text())
    recordings = {}
    for name, columns in about.pop("data").items():
        recordings[name] = recording = Recording(about)
        times, processes = columns.pop("time_s"), columns.pop("processes")
        recording.cost = columns.pop("cost")
        for i, (seconds, each) in enumerate(zip(times, processes, strict=True)):
            by_pid = {int(pid): readings for pid, readings in each.items()}
            recording.add(seconds, {c: values[i] for c, values in columns.items()}, by_pid)
    return recordings


def recorded(name):
    """The recordings in images/recorded/ of this name, made on a card that a reader may lack.

    name: of the file, without .json. Looked for in the working folder, in the program's, and in
    all folders above these. Returns {} where there is none.
    """
    for start in (Path.cwd(), Path(sys.argv[0]).resolve().parent):
        for folder in (start, *start.parents):
            path = folder / "images" / "recorded" / f"{name}.json"
            if path.exists():
                return load(path)
    return {}
