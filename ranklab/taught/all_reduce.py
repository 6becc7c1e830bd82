# Generated from book/08_all_reduce.md by `make forms`: edit the manuscript, not this file.

"""How fast can an all-reduce be?: what chapter 08_all_reduce teaches."""

import functools
import mmap
import os
import socket
import tempfile
import threading
import time

import numpy as np
import torch
import torch.distributed as dist

from ranklab.taught.collectives import sendrecv
from ranklab.taught.messages import latency_bandwidth


def on_flat(algorithm):
    """Make `algorithm(flat, members, me)` an all-reduce: any tensor, any group, in place."""

    @functools.wraps(algorithm)
    def all_reduce(x, group=None):
        flat = x.contiguous().view(-1)  # x itself, if it lies in one piece; else a copy
        algorithm(flat, dist.get_process_group_ranks(group), dist.get_rank(group))
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))

    del all_reduce.__wrapped__  # else help() would show the arguments of `algorithm`
    return all_reduce


@on_flat
def gather_all_reduce(x, members, me):
    """Rank 0 receives from all, adds, and sends the sum to all."""
    if me == 0:
        incoming = torch.empty_like(x)
        for other in members[1:]:
            dist.recv(incoming, other)
            x += incoming
        for other in members[1:]:
            dist.send(x, other)
    else:
        dist.send(x, members[0])
        dist.recv(x, members[0])


@on_flat
def tree_all_reduce(x, members, me):
    """Sums go up a binomial tree to rank 0, and the total comes down the same tree."""
    incoming = torch.empty_like(x)
    distance = 1
    while distance < len(members) and me % (2 * distance) == 0:  # up: collect, while I may
        if me + distance < len(members):
            dist.recv(incoming, members[me + distance])
            x += incoming
        distance *= 2
    if me > 0:  # hand mine to the parent, and wait for the total
        dist.send(x, members[me - distance])
        dist.recv(x, members[me - distance])
    while distance > 1:  # down: to those that I collected from, the farthest first
        distance //= 2
        if me + distance < len(members):
            dist.send(x, members[me + distance])


@on_flat
def doubling_all_reduce(x, members, me):
    """Recursive doubling. Ranks beyond the largest power of two are represented by a partner."""
    core = 1 << (len(members).bit_length() - 1)  # the largest power of two that is not above n
    if me >= core:
        dist.send(x, members[me - core])
        dist.recv(x, members[me - core])
        return
    incoming = torch.empty_like(x)
    represents = members[me + core] if me + core < len(members) else None
    if represents is not None:
        dist.recv(incoming, represents)
        x += incoming
    distance = 1
    while distance < core:
        partner = members[me ^ distance]  # the rank whose number differs in this one bit
        sendrecv(x, partner, incoming, partner)
        x += incoming
        distance *= 2
    if represents is not None:
        dist.send(x, represents)


@on_flat
def ring_all_reduce(x, members, me):
    """A ring: each part's sum travels once around and is added to, then its total is copied."""
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    parts = x.tensor_split(n)  # as equal as can be; the first ones are the longer ones
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        outgoing, mine = parts[(me - step) % n], parts[(me - step - 1) % n]
        if step < n - 1:  # what comes is a sum under way: add mine to it
            incoming = box[: len(mine)]
            sendrecv(outgoing, right, incoming, left)
            mine += incoming
        else:  # what comes is a total
            sendrecv(outgoing, right, mine, left)


def pipelined_all_reduce(x, group=None, piece=2 << 20):
    """The ring, in pieces of `piece` bytes: each one goes on as soon as it has been added."""
    on_flat(functools.partial(_pipelined, piece=piece))(x, group)


def _pipelined(x, members, me, piece):
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    count = max(1, x.nbytes // n // piece)
    pieces = [part.tensor_split(count) for part in x.tensor_split(n)]
    boxes = [torch.empty_like(longest) for longest in pieces[0]]

    def receive(step, i):
        """Start to receive piece i of this step: into a box to add it, or where it belongs."""
        mine = pieces[(me - step - 1) % n][i]
        return dist.irecv(boxes[i][: len(mine)] if step < n - 1 else mine, left)

    steps = range(2 * (n - 1))
    sends = [dist.isend(mine, right) for mine in pieces[me] if steps]
    arriving = [receive(0, i) for i in range(count) if steps]
    for step in steps:
        for i, mine in enumerate(pieces[(me - step - 1) % n]):
            arriving[i].wait()
            if step < n - 1:
                mine += boxes[i][: len(mine)]
            if step + 1 in steps:  # pass it on, and make room for what comes next
                sends.append(dist.isend(mine, right))
                arriving[i] = receive(step + 1, i)
    for handle in sends:
        handle.wait()


def this_host():
    """Its name, and (on Linux) what tells it from others of that name."""
    name = socket.gethostname()
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:  # drawn at each start of a machine
            return name, boot.read(), os.readlink("/proc/self/ns/pid")  # containers differ here
    except OSError:
        return (name,)


def shared_bytes(nbytes, group=None):
    """Return `nbytes` bytes of memory that all ranks of the group see. All must call it.

    It has no name, so it goes with the last process that has it, however that one ends.
    Raises ValueError if the ranks are not all on one host.
    """
    members, hosts = dist.get_process_group_ranks(group), [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, this_host(), group=group)
    if len(set(hosts)) > 1:
        names = ", ".join(sorted(host[0] for host in set(hosts)))
        raise ValueError(f"Ranks on several hosts ({names}) share no memory: it needs one host.")
    file, where = None, [None]
    if members[0] == dist.get_rank():
        if hasattr(os, "memfd_create"):  # Linux: a file in memory, which never has a name
            file = os.memfd_create("all-reduce")
            where = [f"/proc/{os.getpid()}/fd/{file}"]
        else:
            file, where[0] = tempfile.mkstemp()
        os.ftruncate(file, nbytes)
    dist.broadcast_object_list(where, src=members[0], group=group)
    file = os.open(where[0], os.O_RDWR) if file is None else file
    memory = mmap.mmap(file, nbytes)
    dist.barrier(group)  # rank 0 keeps its file open until everybody has it
    os.close(file)
    if members[0] == dist.get_rank() and not where[0].startswith("/proc/"):
        os.remove(where[0])
    return memory


class SharedBarrier:
    """A barrier for `n` ranks that share `memory`, of which it uses the first 64 n bytes."""

    def __init__(self, memory, me, n, timeout=20.0):
        self.counts = memoryview(memory)[: 64 * n].cast("q")  # 8 numbers a rank: a cache line
        self.me, self.n, self.timeout, self.count = me, n, timeout, 0
        self.fence = threading.Lock()
        self.fence.acquire()  # it stays taken, but for a moment in _in_order

    def wait(self):
        """Return when all ranks have called it as often as this one. Raises TimeoutError."""
        self.count += 1
        self._in_order()  # what was written before can be seen before the count can
        self.counts[8 * self.me] = self.count
        deadline, looks = time.monotonic() + self.timeout, 0
        for r in range(self.n):
            while self.counts[8 * r] < self.count:
                looks += 1
                self._let_others_work(looks)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"Rank {r} has not come for {self.timeout} s.")
        self._in_order()  # what is read from now on is no older than the counts

    def _in_order(self):
        """A fence: nothing from before it and nothing from after it can change places."""
        self.fence.release()  # nothing from before this line can take effect after it,
        self.fence.acquire()  # and nothing from after this line before it

    def _let_others_work(self, looks):
        """Offer the core to others; after a while of that, sleep."""
        if looks < 100 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(2e-5)


class SharedMemory:
    """All-reduce for ranks of one host, through memory that all of them see.

    All ranks of the group make it together, once: it may then be used for any tensor. After an
    error in the middle of an all-reduce it is of no more use; make another one.
    """

    def __init__(self, group=None, piece=1 << 21, timeout=20.0):
        self.me, self.n, self.piece = dist.get_rank(group), dist.get_world_size(group), piece
        head = 4096 * (1 + self.n // 64)  # for the barrier's counts
        memory = shared_bytes(head + 2 * (self.n + 1) * piece, group)
        self.barrier = SharedBarrier(memory, self.me, self.n, timeout)
        self.halves = torch.frombuffer(memory, dtype=torch.uint8, offset=head)
        self.halves = self.halves.view(2, self.n + 1, piece)  # a row for each rank, one for sums

    def all_reduce(self, x):
        """Replace x by the sum of all ranks' x. All must have the same shape and type."""
        flat = x.contiguous().view(-1)
        pieces = flat.split(self.piece // x.element_size())
        for k in range(-1, len(pieces) + 1):
            if k > 0:  # take the sums of the piece before
                self._copy(self._rows(k - 1, pieces)[self.n], pieces[k - 1])
            if 0 <= k < len(pieces):
                self._add(pieces[k], self._rows(k, pieces))
            if k + 1 < len(pieces):  # put the next piece
                self._copy(pieces[k + 1], self._rows(k + 1, pieces)[self.me])
            if k < len(pieces):
                self.barrier.wait()
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))

    def _rows(self, k, pieces):
        """The n + 1 rows for piece k, of its length and type."""
        return self.halves[k % 2].view(pieces[k].dtype)[:, : len(pieces[k])]

    def _mine(self, length):
        """The part that this rank adds: where it begins, where it ends."""
        return length * self.me // self.n, length * (self.me + 1) // self.n

    def _add(self, piece, rows):
        """Add the others' rows to my part of the piece, and show the sum to all."""
        first, end = self._mine(len(piece))
        mine = piece[first:end]
        for r in range(self.n):
            if r != self.me:
                mine += rows[r, first:end]
        rows[self.n, first:end].copy_(mine)

    def _copy(self, source, target):
        """Copy all but my part, which need not travel."""
        first, end = self._mine(len(source))
        target[:first].copy_(source[:first])
        target[end:].copy_(source[end:])


def line(sizes, seconds):
    """Two numbers for all sizes: alpha + nbytes / beta."""
    alpha, beta = latency_bandwidth(sizes, seconds)
    return lambda nbytes: alpha + nbytes / beta


def curve(sizes, seconds):
    """What was measured, and between two sizes a straight line on a log-log plot."""
    logs = np.log(sizes), np.log(seconds)
    return lambda nbytes: (
        np.exp(np.interp(np.log(nbytes), *logs)) * np.maximum(1, nbytes / sizes[-1])
    )


def cost_models(n, message, add, shared):
    """Return {way: function from bytes to seconds} for n ranks.

    message(nbytes, m), add(nbytes, m): the seconds of m messages or additions at the same time;
    shared(nbytes): those of an all-reduce through shared memory.
    """

    def around(s):
        return 2 * (n - 1) * message(s / n, n) + (n - 1) * add(s / n, n)

    core = 1 << (n.bit_length() - 1)
    # Round k of the tree: ranks 2^k, 3 * 2^k, 5 * 2^k, ... send; how many of them are there?
    levels = [len(range(1 << k, n, 2 << k)) for k in range((n - 1).bit_length())]
    beyond = [n - core] * (n > core)
    return {
        "gather": lambda s: 2 * (n - 1) * message(s, 1) + (n - 1) * add(s, 1),
        "tree": lambda s: sum(2 * message(s, m) + add(s, m) for m in levels),
        "doubling": lambda s: (
            (core.bit_length() - 1) * (message(s, core) + add(s, core))
            + sum(2 * message(s, m) + add(s, m) for m in beyond)
        ),
        "ring": around,
        "pieces": around,  # what they save by adding and sending at once is not in the model
        "shared": shared,
    }


class FastAllReduce:
    """The best way for each size: through shared memory on one host, else by messages."""

    def __init__(self, group=None, crossover=1 << 20):
        self.group, self.crossover = group, crossover
        try:
            self.shared = SharedMemory(group)
        except ValueError:  # several hosts
            self.shared = None

    def __call__(self, x):
        """Replace x by the sum of all ranks' x."""
        if self.shared:
            self.shared.all_reduce(x)
        elif x.nbytes < self.crossover:
            doubling_all_reduce(x, self.group)
        else:
            ring_all_reduce(x, self.group)
