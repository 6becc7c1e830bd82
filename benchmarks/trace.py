"""What tracing costs: small communications with and without a trace, side by side in one run.

    python benchmarks/trace.py

Blocks of calls, traced and untraced in turn, on the same two ranks; the slower rank counts, and
the fastest block of each kind, for a machine that does something else delays more than a trace
does. Beside it: how long a trace takes to begin and to end (medians). Below: the bytes that Gloo's
sockets really sent, and the formulas of `traffic()`. It measures, and judges nothing: the exit
status is 0 unless a rank fails.
"""

import statistics

from ranklab import Ranks, traffic

BLOCKS, CALLS = 30, 100
CASES = ("add", "all_reduce", "ping-pong", "all_reduce, two groups")


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def measure(case, blocks, calls):
    """Return ([s for a call, untraced], [s, traced], [s to begin], [s to end 1000 events])."""
    import contextlib
    import time

    from ranklab import trace

    group = dist.new_group(list(range(world_size))) if "groups" in case else None  # noqa: F821
    x = torch.ones(16)  # noqa: F821

    def call():
        if case == "add":
            torch.add(x, x)  # noqa: F821
        elif case == "ping-pong":
            for sender in (0, 1):
                if rank == sender:  # noqa: F821
                    dist.send(x, 1 - rank)  # noqa: F821
                else:
                    dist.recv(x, 1 - rank)  # noqa: F821
        else:
            dist.all_reduce(x)  # noqa: F821

    times, begins, ends = {False: [], True: []}, [], []
    for traced in [None, *[False, True] * blocks]:  # the first block warms up
        dist.barrier()  # noqa: F821
        entered = time.perf_counter()
        with trace() if traced else contextlib.nullcontext() as t:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            ended = time.perf_counter()
        left = time.perf_counter()
        if traced is not None:
            times[traced].append((ended - began) / calls)
        if traced:
            begins.append(began - entered)
            ends.append((left - ended) / max(1, len(t.events)) * 1000)
    if group is not None:
        dist.destroy_process_group(group)  # noqa: F821
    return times[False], times[True], begins, ends


@on_ranks
def bytes_on_the_wire(collective):
    """Run a collective once; return (bytes that this rank's sockets sent, its trace)."""
    import os
    import socket

    from ranklab import trace

    def sent():
        total = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as end:
                    if end.family in (socket.AF_INET, socket.AF_INET6):
                        info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                        total += int.from_bytes(info[200:208], "little")  # tcpi_bytes_sent
                        total -= int.from_bytes(info[208:216], "little")  # ... sent once more
            except OSError:
                continue  # it is gone, or not of TCP
        return total

    n, x = world_size, torch.ones(1 << 18)  # noqa: F821
    whole = torch.ones(n << 18)  # noqa: F821
    parts = list(whole.chunk(n))
    work = {
        "all_reduce": lambda: dist.all_reduce(x),  # noqa: F821
        "broadcast": lambda: dist.broadcast(x, 0),  # noqa: F821
        "all_gather": lambda: dist.all_gather(parts, x),  # noqa: F821
        "reduce": lambda: dist.reduce(x, 0),  # noqa: F821
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts),  # noqa: F821
        "gather": lambda: dist.gather(x, parts if rank == 0 else None, 0),  # noqa: F821
        "scatter": lambda: dist.scatter(x, parts if rank == 0 else None, 0),  # noqa: F821
        "all_to_all": lambda: dist.all_to_all_single(torch.ones(n << 18), whole),  # noqa: F821
    }[collective]
    work()
    dist.barrier()  # noqa: F821
    before = sent()
    with trace() as t:
        work()
    dist.barrier()  # noqa: F821
    return sent() - before, t


WIRE = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather", "scatter")
WIRE += ("all_to_all",)


def overhead(ranks):
    print(f"{'':26}{'untraced':>10}{'traced':>10}{'ratio':>8}{'begins':>10}{'1000 events':>13}")
    for case in CASES:
        plain, traced, begins, ends = zip(*ranks.run(measure, case, BLOCKS, CALLS))
        without, with_ = (min(map(max, zip(*of_ranks))) * 1e6 for of_ranks in (plain, traced))
        begin, end = (statistics.median(map(max, zip(*part))) * 1e3 for part in (begins, ends))
        print(
            f"{case:26}{without:>7.1f} µs{with_:>7.1f} µs{with_ / without:>8.2f}"
            f"{begin:>7.1f} ms{end:>10.1f} ms"
        )


def wire(ranks):
    print(f"\nMB sent by each rank's sockets, {len(ranks)} ranks (below it: the formula)")
    for collective in WIRE:
        measured, traces = zip(*ranks.run(bytes_on_the_wire, collective))
        print(f"{collective:16}", *(f"{nbytes / 1e6:7.2f}" for nbytes in measured))
        print(f"{'':16}", *(f"{row.moved_bytes / 1e6:7.2f}" for row in traffic(list(traces))))


def main():
    with Ranks(2, timeout=30) as ranks:
        overhead(ranks)
    with Ranks(4, timeout=30) as ranks:
        wire(ranks)


if __name__ == "__main__":
    main()
