# Generated from book/08_all_reduce.md by `make forms`: edit the manuscript, not this file.

"""All-reduce: one sum for all, as fast as it can be: what chapter 08_all_reduce teaches."""

import functools
import mmap
import os
import socket
import tempfile
import threading
import time

import torch
import torch.distributed as dist

from ranklab.taught.collectives import broadcast, reduce, sendrecv


def ring_step(parts, step, members, me, box):
    """Part me - step goes to the right, part me - step - 1 comes in."""
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    outgoing = parts[(me - step) % n]
    mine = parts[(me - step - 1) % n]
    if step < n - 1:  # what comes is a sum under way: add mine to it
        incoming = box[: len(mine)]
        sendrecv(outgoing, right, incoming, left)
        mine += incoming
    else:  # what comes is a total
        sendrecv(outgoing, right, mine, left)


def on_flat(algorithm):
    """Make `algorithm(flat, members, me)` an all-reduce, in place.

    It takes any tensor, and any process group.
    """

    @functools.wraps(algorithm)
    def all_reduce(x, group=None):
        flat = x.contiguous().view(-1)  # x itself, if it is in one piece
        members = dist.get_process_group_ranks(group)
        algorithm(flat, members, dist.get_rank(group))
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))

    del all_reduce.__wrapped__  # else help() shows algorithm's arguments
    return all_reduce


@on_flat
def ring_all_reduce(x, members, me):
    """Each part's sum goes once around, then its total."""
    n = len(members)
    parts = x.tensor_split(n)  # the first ones may be longer by one
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        ring_step(parts, step, members, me, box)


@on_flat
def gather_all_reduce(x, members, me):
    """Rank 0 receives from all, adds, and sends the sum to all."""
    if me > 0:
        dist.send(x, members[0])
        dist.recv(x, members[0])
        return
    incoming = torch.empty_like(x)
    for other in members[1:]:
        dist.recv(incoming, other)
        x += incoming
    for other in members[1:]:
        dist.send(x, other)


def tree_all_reduce(x, group=None):
    """Sums go up a tree to rank 0, and the total comes down."""
    reduce(x, 0, group)
    broadcast(x, 0, group)


def swap_and_add(x, partner, incoming):
    """Two ranks give each other what they have, and both add."""
    sendrecv(x, partner, incoming, partner)
    x += incoming


@on_flat
def doubling_all_reduce(x, members, me):
    """Recursive doubling, for any number of ranks."""
    core = 1 << (len(members).bit_length() - 1)  # a power of two
    if me >= core:  # a partner in the core speaks for me
        dist.send(x, members[me - core])
        dist.recv(x, members[me - core])
        return
    incoming = torch.empty_like(x)
    represents = me + core < len(members)
    if represents:
        dist.recv(incoming, members[me + core])
        x += incoming
    distance = 1
    while distance < core:  # the partner's number differs in one bit
        swap_and_add(x, members[me ^ distance], incoming)
        distance *= 2
    if represents:
        dist.send(x, members[me + core])


def _pipelined(x, members, me, piece):
    n = len(members)
    left, right = members[(me - 1) % n], members[(me + 1) % n]
    count = max(1, x.nbytes // n // piece)
    pieces = [part.tensor_split(count) for part in x.tensor_split(n)]
    boxes = [torch.empty_like(longest) for longest in pieces[0]]

    def receive(step, i):  # into a box, or where it belongs
        mine = pieces[(me - step - 1) % n][i]
        box = boxes[i][: len(mine)] if step < n - 1 else mine
        return dist.irecv(box, left)

    steps = range(2 * (n - 1))
    sends = [dist.isend(mine, right) for mine in pieces[me] if steps]
    arriving = [receive(0, i) for i in range(count) if steps]
    for step in steps:
        for i, mine in enumerate(pieces[(me - step - 1) % n]):
            arriving[i].wait()
            if step < n - 1:
                mine += boxes[i][: len(mine)]
            if step + 1 in steps:  # pass it on, make room for the next
                sends.append(dist.isend(mine, right))
                arriving[i] = receive(step + 1, i)
    for handle in sends:
        handle.wait()


def pipelined_all_reduce(x, group=None, piece=2 << 20):
    """The ring in pieces of `piece` bytes: each goes on when added."""
    on_flat(functools.partial(_pipelined, piece=piece))(x, group)


def this_host():
    """Its name, and (on Linux) what tells it from others of that name."""
    name = socket.gethostname()
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            # A start of the machine, and what containers differ in.
            return name, boot.read(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return (name,)


def shared_bytes(nbytes, group=None):
    """Return `nbytes` bytes of memory that all ranks of the group see.

    All must call it. The memory has no name, so it goes with the last
    process that has it, however that one ends. Raises ValueError if the
    ranks are not all on one host.
    """
    members = dist.get_process_group_ranks(group)
    hosts = [None] * len(members)
    dist.all_gather_object(hosts, this_host(), group=group)
    if len(set(hosts)) > 1:
        names = ", ".join(sorted(host[0] for host in set(hosts)))
        raise ValueError(f"Ranks on several hosts ({names}) share no memory: it needs one host.")
    file, where = None, [None]
    if members[0] == dist.get_rank():
        if hasattr(os, "memfd_create"):  # Linux: it never has a name
            file = os.memfd_create("all-reduce")
            where = [f"/proc/{os.getpid()}/fd/{file}"]
        else:
            file, where[0] = tempfile.mkstemp()
        os.ftruncate(file, nbytes)
    dist.broadcast_object_list(where, src=members[0], group=group)
    file = os.open(where[0], os.O_RDWR) if file is None else file
    memory = mmap.mmap(file, nbytes)
    dist.barrier(group)  # rank 0 keeps its file until all have it
    os.close(file)
    if members[0] == dist.get_rank() and not where[0].startswith("/proc/"):
        os.remove(where[0])
    return memory


class SharedBarrier:
    """A barrier for `n` ranks that share `memory`: its first 64 n bytes."""

    def __init__(self, memory, me, n, timeout=20.0):
        # 8 numbers a rank: a cache line of its own.
        self.counts = memoryview(memory)[: 64 * n].cast("q")
        self.me, self.n = me, n
        self.timeout, self.count = timeout, 0
        self.fence = threading.Lock()
        self.fence.acquire()  # it stays taken, but for a moment

    def wait(self):
        """Return when all ranks have called it as often as this one.

        Raises TimeoutError.
        """
        self.count += 1
        self._in_order()  # what was written before is seen before
        self.counts[8 * self.me] = self.count
        deadline, looks = time.monotonic() + self.timeout, 0
        for r in range(self.n):
            while self.counts[8 * r] < self.count:
                looks += 1
                self._let_others_work(looks)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"Rank {r} has not come for {self.timeout} s.")
        self._in_order()  # what is read from now on is no older

    def _in_order(self):
        """A fence: nothing from before and from after changes places."""
        self.fence.release()  # nothing from before it comes after it,
        self.fence.acquire()  # and nothing from after it before it

    def _let_others_work(self, looks):
        """Offer the core to others; after a while of that, sleep."""
        if looks < 100 and hasattr(os, "sched_yield"):
            os.sched_yield()
        else:
            time.sleep(2e-5)


class SharedRows:
    """A row for each rank and one for sums, which all ranks see, twice.

    All ranks of the group make it together. Pieces of a tensor use the
    two halves by turns.
    """

    def __init__(self, group=None, piece=1 << 21, timeout=20.0):
        self.me, self.n = dist.get_rank(group), dist.get_world_size(group)
        self.piece = piece
        head = 4096 * (1 + self.n // 64)  # for the barrier's counts
        memory = shared_bytes(head + 2 * (self.n + 1) * piece, group)
        self.barrier = SharedBarrier(memory, self.me, self.n, timeout)
        halves = torch.frombuffer(memory, dtype=torch.uint8, offset=head)
        self.halves = halves.view(2, self.n + 1, piece)

    def rows(self, k, piece):
        """The n + 1 rows for piece k, of its length and type."""
        return self.halves[k % 2].view(piece.dtype)[:, : len(piece)]

    def mine(self, length):
        """The part that this rank adds: where it begins, and ends."""
        first = length * self.me // self.n
        return first, length * (self.me + 1) // self.n

    def copy(self, source, target):
        """Copy all but my part, which need not travel."""
        first, end = self.mine(len(source))
        target[:first].copy_(source[:first])
        target[end:].copy_(source[end:])

    def add(self, piece, rows):
        """Add the others' rows to my part of the piece; show the sum."""
        first, end = self.mine(len(piece))
        for r in range(self.n):
            if r != self.me:
                piece[first:end] += rows[r, first:end]
        rows[self.n, first:end].copy_(piece[first:end])


class SharedMemory(SharedRows):
    """All-reduce for ranks of one host, through memory that all see."""

    def all_reduce(self, x):
        """Replace x by the sum of all ranks' x, of one shape and type."""
        flat = x.contiguous().view(-1)
        pieces = flat.split(self.piece // x.element_size())
        for k in range(-1, len(pieces) + 1):
            if k > 0:  # take the sums of the piece before
                old = pieces[k - 1]
                self.copy(self.rows(k - 1, old)[self.n], old)
            if 0 <= k < len(pieces):
                self.add(pieces[k], self.rows(k, pieces[k]))
            if k + 1 < len(pieces):  # put the next piece
                new = pieces[k + 1]
                self.copy(new, self.rows(k + 1, new)[self.me])
            if k < len(pieces):
                self.barrier.wait()
        if not x.is_contiguous():
            x.copy_(flat.view(x.shape))


def cost_models(n, message, add):
    """Return {way: function from bytes to seconds} for n ranks.

    message(nbytes, m): the seconds of m messages at the same time;
    add(nbytes): those of an addition.
    """
    core = 1 << (n.bit_length() - 1)
    beyond = [n - core] * (n > core)
    # Round k of the tree: ranks 2^k, 3 * 2^k, 5 * 2^k, ... send.
    levels = range((n - 1).bit_length())
    senders = [len(range(1 << k, n, 2 << k)) for k in levels]
    return {
        "gather": lambda s: 2 * (n - 1) * message(s, 1) + (n - 1) * add(s),
        "tree": lambda s: sum(2 * message(s, m) + add(s) for m in senders),
        "doubling": lambda s: (
            (core.bit_length() - 1) * (message(s, core) + add(s))
            + sum(2 * message(s, m) + add(s) for m in beyond)
        ),
        "ring": lambda s: 2 * (n - 1) * message(s / n, n) + (n - 1) * add(s / n),
    }


def winners(sizes, times, gain=2):
    """Return [(nbytes, way), ...]: from that size on, take that way.

    times: {way: seconds at each of `sizes`}, the same on all ranks. It
    changes only for a way that is `gain` times as fast.
    """
    table = []
    for k, nbytes in enumerate(sizes):
        best = min(times, key=lambda way: times[way][k])
        if not table:
            table.append((0, best))
        elif times[table[-1][1]][k] > gain * times[best][k]:
            table.append((int(nbytes), best))
    return table


class FastAllReduce:
    """For each size the way that was measured to be the fastest.

    ways: {name: all-reduce}. table: what `winners` returns, one and the
    same on all ranks.
    """

    def __init__(self, ways, table):
        self.ways, self.table = ways, table

    def way(self, nbytes):
        """The name of the way that a tensor of this size takes."""
        return [way for first, way in self.table if nbytes >= first][-1]

    def __call__(self, x):
        """Replace x by the sum of all ranks' x."""
        self.ways[self.way(x.nbytes)](x)
