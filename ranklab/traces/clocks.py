"""Whose clock, and how far it is from rank 0's.

The profiler's times are those of the system's clock, `time.time_ns()`: all processes of a running
system share it, whatever containers they are in. Two hosts do not, and their clocks differ by more
than a message takes.
"""

import os
import socket
import time
from pathlib import Path

from ranklab.traces.data import Clock

ROUNDS = 20
TAG = 0x7ACE  # of the messages that compare the clocks

# What launchers say of how many ranks there are here, and in all.
_HERE_AND_ALL = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
)


def this_clock():
    """The clock of this host, not compared with any other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # there is none but on Linux
        boot = socket.gethostname()
    return Clock(socket.gethostname(), boot)


def several_hosts(environment=os.environ):
    """Do the ranks run on several hosts? What the launcher says, else no.

    All ranks get the same answer, without a message: whoever asks the others must be sure that
    the others ask, too.
    """
    if environment.get("GLOO_SOCKET_IFNAME", "") in ("lo", "lo0"):
        return False
    for here, all_ in _HERE_AND_ALL:
        if here in environment and all_ in environment:
            return environment[here] != environment[all_]
    return int(environment.get("SLURM_JOB_NUM_NODES", 1)) > 1


def compare(clock, now=time.time_ns, rounds=ROUNDS):
    """Find out how far this rank's clock is from rank 0's. All ranks call it together.

    Rank 0 and one other rank at a time send a number back and forth. The round trip that took
    the least time counts: the other rank's answer was given somewhere within it, so half of it is
    what the result may be wrong by.

    clock: a Clock, whose offset and uncertainty (ns) are filled in. now: what tells the time.
    """
    import torch.distributed as dist

    clock.offset, clock.uncertainty = 0, 0
    others = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        for other in others:
            _ask(other, now, rounds)
    else:
        clock.offset, clock.uncertainty = _answer(now, rounds)


def _box(value=0):
    import torch
    import torch.distributed as dist

    on_gpu = dist.get_backend() == "nccl"
    return torch.tensor([value, 0], dtype=torch.int64, device="cuda" if on_gpu else "cpu")


def _ask(other, now, rounds):
    """Rank 0: send `rounds` numbers to `other`, then what came of the fastest round trip."""
    import torch.distributed as dist

    best = None
    answer = _box()
    for _ in range(rounds):
        left = now()
        dist.send(_box(left), other, tag=TAG)
        dist.recv(answer, other, tag=TAG)
        there = int(answer[0])  # waits for a GPU
        back = now()
        if best is None or back - left < 2 * best[1]:
            best = there - (left + back) // 2, (back - left + 1) // 2
    result = _box(best[0])
    result[1] = best[1]
    dist.send(result, other, tag=TAG)


def _answer(now, rounds):
    """Another rank: say the time, `rounds` times; return (offset, uncertainty) in ns."""
    import torch.distributed as dist

    question = _box()
    for _ in range(rounds):
        dist.recv(question, 0, tag=TAG)
        question.tolist()  # waits for a GPU
        dist.send(_box(now()), 0, tag=TAG)
    dist.recv(question, 0, tag=TAG)
    return tuple(question.tolist())


def agreement(traces):
    """Return (ns by which times of two ranks may be wrong, a sentence on it, or "")."""
    boots = {trace.clock.boot for trace in traces}
    if len(boots) == 1:
        return 0, ""
    if any(trace.clock.uncertainty is None for trace in traces):
        return float("inf"), (
            f"the clocks of {len(boots)} hosts were not compared: trace(align=True) does it"
        )
    worst = sum(sorted(trace.clock.uncertainty for trace in traces)[-2:])
    return worst, f"clocks of {len(boots)} hosts, compared to within {worst / 1e3:.3g} µs"
