"""A rank that died: what ended it, and where it was, from what its process left behind.

Its death is noticed by its parent, the fork server (start/fork_server.py, `_reap`), or by the nanny
of a stock engine. That tells the hub, and the hub tells the kernel, where ipyparallel takes the
rank off its list: `Ranks.gone` is who is missing there. Then whoever waits for it is freed: by the
vigil of the cell that runs (vigil.py, `look`), else by rounds.py, `free_when_one_dies`.
"""

import contextlib
import json
import os

from ranklab.doctor import places, stacks
from ranklab.doctor.one_rank import Death, Report
from ranklab.start import exits


def report_of(ranks, rank):
    """Return the Report of a rank that died."""
    pid = ranks.pids[rank] if rank < len(ranks.pids) else None
    said = _last_words(ranks, pid)
    fault = stacks.at_the_fault(ranks.folder, pid)
    frames = said.get("places") or stacks.readers_frames(fault)
    place = places.in_frames(frames, ranks.cell)
    lines = () if place else tuple(stacks.last_lines(fault))
    death = Death(exits.of_engine(ranks.cluster, pid) if pid else None, lines)
    recent = tuple(said.get("recent", ()))
    return Report(rank, "died", place, said.get("call"), recent=recent, death=death)


def _last_words(ranks, pid):
    """Return what the process said of itself as it was aborted (witness.py), if anything."""
    path = os.path.join(ranks.folder, f"last-words-{pid}")
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return json.load(file)
    return {}
