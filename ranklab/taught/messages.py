# Generated from book/06_messages.md by `make forms`: edit the manuscript, not this file.

"""Send and receive: who waits for whom: what chapter 06_messages teaches."""

import time

import numpy as np
import torch
import torch.distributed as dist


def ping(nbytes, repeats=10, a=0, b=1):
    """Seconds that one message of `nbytes` bytes takes between ranks a and b.

    Half of a round trip, the fastest of `repeats`: whatever else the machine
    does can only make a message slower. Every rank calls it; ranks other than
    a and b get nan.
    """
    ball = torch.zeros(nbytes, dtype=torch.uint8)
    me, times = dist.get_rank(), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        if me == a:
            dist.send(ball, b)
            dist.recv(ball, b)
        elif me == b:
            dist.recv(ball, a)
            dist.send(ball, a)
        times.append((time.perf_counter() - start) / 2)
    return min(times[1:]) if me in (a, b) else float("nan")  # 0 warms up


def latency_bandwidth(sizes, seconds):
    """Fit T(n) = alpha + n / beta to measured times.

    Return alpha (s) and beta (bytes/s). Least squares of the relative error,
    so that every size has the same weight.
    """
    n, t = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    equations = np.stack([1 / t, n / t], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(equations, np.ones(len(t)))
    return float(alpha), float(1 / per_byte)


def quietest(attempts):
    """Of several attempts, the traces of the one that was over soonest.

    attempts: for each rank a list of traces, one of each attempt; of None
    in a script that runs without ranklab.
    """

    def seconds(traces):
        if None in traces:
            return 0.0
        return max(t.end for t in traces) - min(t.begin for t in traces)

    return list(min(zip(*attempts, strict=True), key=seconds))


def sendrecv(outgoing, dst, incoming, src):
    """Send `outgoing` to rank dst, and receive `incoming` from rank src.

    Both at the same time. On return, `incoming` is filled and `outgoing` may
    be changed. If every rank makes one such call, there is no circle, whoever
    sends to whom, as long as every send has its receive. For Gloo and MPI;
    NCCL wants both started as one group, by `dist.batch_isend_irecv`.
    """
    handle = dist.isend(outgoing, dst)
    dist.recv(incoming, src)
    handle.wait()
