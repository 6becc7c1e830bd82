"""What runs on the ranks to make a process group of them.

These functions are sent to the ranks by value and run in the namespace of the `%%px` cells, which
is what makes `global rank` the reader's own `rank`. Each imports what it needs by itself: a rank
does not have to have ranklab, and its start does not wait for `import ranklab`.
"""

# What they need of the lab, for processes that are forked from one that imports.
PRELOAD = ["ranklab.doctor.witness", "ranklab.traces.recording", "ranklab.upstream.packing"]


def runs_on_rank(function):
    """Let ipyparallel rebuild `function` in the rank's namespace, not in a module of that name."""
    function.__module__ = "__main__"
    return function


@runs_on_rank
def prepare(folder, forget=None, told=()):
    """Get ready to be a rank; return (host name, process id, place).

    From here on the rank can say where it is, also while it is stuck (doctor/witness.py). What it
    leaves behind for after its death goes to `folder`, if that is on this host. In a rank of
    an MPI world its place is (its rank there, the world's size), else None; there `forget` is the
    function of ranklab.upstream.mpich, and told is what it wants.
    """
    import contextlib
    import gc
    import os
    import socket

    place = None
    if forget:
        from mpi4py import MPI

        place = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        # MPI has started. A child that found its launcher's words would take them for its own.
        forget(os.environ, told)

    import torch.distributed  # noqa: F401

    with contextlib.suppress(ImportError):  # another host, without ranklab
        from ranklab.doctor import witness
        from ranklab.upstream import packing

        packing.by_value()
        witness.testify(folder if os.path.isdir(folder) else None)

    gc.freeze()  # what stays loaded for good need not be searched by `leave`
    return socket.gethostname(), os.getpid(), place


@runs_on_rank
def free_address():
    """Return an address of this host, (name, port), for ranks on several hosts to meet at."""
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        return socket.getfqdn(), probe.getsockname()[1]


@runs_on_rank
def join(
    my_rank,
    meeting_point,
    size,
    under_mpi,
    backend,
    devices,
    seconds,
    loopback,
    limit_new_groups,
    send_over_host,
):
    """Join the process group and put `rank`, `world_size`, `device`, `torch`, `dist` in place.

    `meeting_point` is where the ranks find each other: the path of a file, or (host, port);
    `under_mpi`, it is known to rank 0 alone. `devices` names the device of each rank. `seconds` is
    the time after which a rank that waits for another one gives up. `loopback` names the network
    interface to use, or is None for several hosts. `limit_new_groups` is the function of
    ranklab.upstream.torch, `send_over_host` that of ranklab.start.devices.
    """
    import os
    import sys
    from datetime import timedelta

    global rank, world_size, device, torch, dist
    import torch
    import torch.distributed as dist

    rank, world_size, device = my_rank, size, torch.device(devices[my_rank])
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))  # as every launcher does
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_default_device(device)  # what is made here lies here
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    if "ranklab.doctor.witness" in sys.modules:
        sys.modules["ranklab.doctor.witness"].joined()
    if "ranklab.upstream.packing" in sys.modules:
        sys.modules["ranklab.upstream.packing"].know_devices(devices)
    timeout = timedelta(seconds=seconds)
    limit_new_groups(timeout)
    if under_mpi:
        from mpi4py import MPI

        # In a world of its own, where no message is left over from a call that others left out.
        world = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(range(size)))
        meeting_point = world.bcast(meeting_point)
        world.Free()
    if isinstance(meeting_point, str):
        store = dist.FileStore(meeting_point, size)
    else:
        store = dist.TCPStore(*meeting_point, size, is_master=rank == 0)
    # The reader's timeout may be short, and says nothing about how long processes take to get here:
    # all of them first meet in the store, then build the group.
    store.set_timeout(timedelta(seconds=60))
    store.set(f"here/{rank}", "")
    store.wait([f"here/{other}" for other in range(size)])
    if device.type == "cuda" and backend == "gloo":
        send_over_host()
    if backend == "nccl":
        backend = "cpu:gloo,cuda:nccl"  # tensors on the CPU travel, too
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


@runs_on_rank
def leave():
    """Take the process group down, working or broken."""
    import gc

    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()  # the traceback of a failed call holds the group, with its threads and open files
