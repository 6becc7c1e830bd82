"""Chapter 8's all-reduces on real ranks: any size, type and layout, 1 to 8 ranks, any group."""

import inspect
import os
import pickle
import socket
import sys
import tempfile
from itertools import product

import pytest
from tiers import few

from ranklab import Ranks, traffic
from ranklab.errors import RankError
from ranklab.taught import all_reduce as taught

N = 8
SIZES = range(1, N + 1)
# The groups of the first n ranks, and two others.
GROUPS = [*(tuple(range(n)) for n in SIZES), (5, 2, 7), (1, 3, 4, 6, 7)]
BY_MESSAGES = ["gather", "tree", "doubling", "ring", "pipelined"]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(N, backend="gloo", device="cpu", timeout=20) as ranks:
        ranks.run(prepare, GROUPS)
        yield ranks


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def prepare(all_members):
    """Make the groups, and for each of them every all-reduce, with pieces of a few numbers."""
    global groups, all_reduces
    import functools

    from ranklab.taught import all_reduce as taught

    groups = {tuple(members): dist.new_group(members) for members in all_members}  # noqa: F821
    all_reduces = {
        "gather": taught.gather_all_reduce,
        "tree": taught.tree_all_reduce,
        "doubling": taught.doubling_all_reduce,
        "ring": taught.ring_all_reduce,
        "pipelined": functools.partial(taught.pipelined_all_reduce, piece=64),
    }
    for members, group in groups.items():
        if rank in members:  # noqa: F821
            shared = taught.SharedMemory(group, piece=64)
            all_reduces["shared", members] = lambda x, group, shared=shared: shared.all_reduce(x)
            ways = {
                "doubling": functools.partial(taught.doubling_all_reduce, group=group),
                "ring": functools.partial(taught.ring_all_reduce, group=group),
                "shared": shared.all_reduce,
            }
            table = [(0, "doubling"), (40, "ring"), (400, "shared")]
            fast = taught.FastAllReduce(ways, table)
            all_reduces["fast", members] = lambda x, group, fast=fast: fast(x)


@on_ranks
def compare(kind, members):
    """Run every case; return a sentence for each that differs from PyTorch's own all-reduce.

    All types in groups of 5 and 8; in the others, of all lengths and layouts, float32.
    """
    if rank not in members:  # noqa: F821
        return []
    group = groups[tuple(members)]
    all_reduce = all_reduces.get((kind, tuple(members))) or all_reduces[kind]

    def tensors(dtype):
        for length in (0, 1, 2, 5, 64, 257):
            yield torch.arange(length).to(dtype) % 11 + rank  # noqa: F821
        yield torch.tensor(3 + rank).to(dtype)  # noqa: F821
        yield (torch.arange(30).view(5, 6) % 11 + rank).to(dtype).t()  # noqa: F821
        yield (torch.arange(30).view(5, 6) % 11 + rank).to(dtype)[:, 2]  # noqa: F821
        yield (torch.arange(40) % 11 + rank).to(dtype)[3:31:3]  # noqa: F821

    wrong, types = [], [torch.float32, torch.float64, torch.bfloat16, torch.int64]  # noqa: F821
    for dtype in types if len(members) in (5, 8) else types[:1]:
        for x in tensors(dtype):
            expected = x.clone()
            dist.all_reduce(expected, group=group)  # noqa: F821
            around = x._base.clone() if x._base is not None else None
            all_reduce(x, group)
            if not torch.equal(x, expected):  # noqa: F821
                wrong.append(f"{kind}, rank {rank} of {members}: {dtype}, {tuple(x.shape)}")  # noqa: F821
            elif around is not None and x.dim() == 1:  # what lies between a view's numbers
                inside = torch.zeros_like(around)  # noqa: F821
                inside.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(1)
                if not torch.equal(x._base[inside == 0], around[inside == 0]):  # noqa: F821
                    wrong.append(f"{kind}, rank {rank}: it wrote beside the view")  # noqa: F821
    return wrong


@pytest.mark.parametrize(
    "kind, members",
    few(
        product([*BY_MESSAGES, "shared", "fast"], GROUPS),
        lambda kind, members: kind not in ("gather", "tree") and len(members) in (2, 3, 8),
    ),
    ids=str,
)
def test_sums_equal_pytorchs_for_every_group_type_length_and_layout(ranks, kind, members):
    assert ranks.run(compare, kind, members) == [[]] * N


@on_ranks
def compare_large(kind):
    """Some MB that no part divides, in pieces of the usual size."""
    from ranklab.taught import all_reduce as taught

    n = 1_300_003
    x = (torch.arange(n) % 101 + rank).to(torch.float32)  # noqa: F821
    expected = x.clone()
    dist.all_reduce(expected)  # noqa: F821
    makers = {
        "shared": lambda: taught.SharedMemory().all_reduce,
        "pipelined": lambda: taught.pipelined_all_reduce,
    }
    call = makers[kind]()
    twice = x.clone()
    call(x)
    call(twice)  # what the first one left in the buffers does no harm
    return torch.equal(x, expected) and torch.equal(twice, expected)  # noqa: F821


@pytest.mark.parametrize("kind", ["shared", "pipelined"])
def test_sums_of_several_pieces(ranks, kind):
    assert ranks.run(compare_large, kind) == [True] * N


@on_ranks
def two_groups_at_once(kind):
    """The even ranks and the odd ranks, each among themselves, at the same time."""
    global halves
    from ranklab.taught import all_reduce as taught

    if "halves" not in globals():
        halves = [dist.new_group(list(range(first, world_size, 2))) for first in (0, 1)]  # noqa: F821
    half = halves[rank % 2]  # noqa: F821
    all_reduce = all_reduces.get(kind) or taught.SharedMemory(half).all_reduce
    x = torch.full((1000,), float(rank))  # noqa: F821
    all_reduce(x, half) if kind in all_reduces else all_reduce(x)
    return x.unique().tolist()


@pytest.mark.parametrize("kind", few([*BY_MESSAGES, "shared"], lambda kind: kind == "shared"))
def test_two_groups_at_the_same_time(ranks, kind):
    assert ranks.run(two_groups_at_once, kind) == [[12.0], [16.0]] * 4


@on_ranks
def traced(kind, members, n):
    from ranklab import trace

    x = torch.ones(n)  # noqa: F821
    with trace() as t:
        if rank in members:  # noqa: F821
            all_reduces[kind](x, groups[tuple(members)])
    return t


@pytest.mark.parametrize("n", few([2, 3, 4, 8], lambda n: n in (3, 8)))
@pytest.mark.parametrize("kind", ["ring", "pipelined"])
def test_a_rank_of_a_ring_sends_as_much_as_it_must_and_no_more(ranks, kind, n):
    length = 120 * n
    rows = traffic(ranks.run(traced, kind, tuple(range(n)), length))
    assert [row.sent_bytes for row in rows][:n] == [2 * (n - 1) * 4 * length // n] * n


@pytest.mark.parametrize("n", few([1, 2, 5, 8], lambda n: n == 5))
def test_gathering_and_the_tree_send_2_tensors_for_each_rank_but_one(ranks, n):
    for kind in ("gather", "tree"):
        rows = traffic(ranks.run(traced, kind, tuple(range(n)), 64))
        assert sum(row.sent_bytes for row in rows) == 2 * (n - 1) * 4 * 64


@on_ranks
def bits(kind, members):
    """The sum of numbers that no two orders add alike, bit by bit."""
    if rank not in members:  # noqa: F821
        return None
    key = (kind, tuple(members))
    call = all_reduces.get(key) or all_reduces[kind]
    x = torch.randn(999, generator=torch.Generator().manual_seed(rank))  # noqa: F821
    call(x, groups[tuple(members)])
    return x.view(torch.int32).tolist()  # noqa: F821


@pytest.mark.parametrize("kind", [*BY_MESSAGES, "shared"])
def test_all_ranks_get_the_same_bits(ranks, kind):
    for n in (3, 6, 8):
        sums = ranks.run(bits, kind, tuple(range(n)))[:n]
        assert all(each == sums[0] for each in sums)


@on_ranks
def kept_after(count):
    """How many of this rank's open files and mappings are shared memories, after `count` more."""
    import gc
    import os

    from ranklab.taught import all_reduce as taught

    for _ in range(count):
        memory = taught.SharedMemory()
    del memory
    gc.collect()
    open_files = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            open_files += "all-reduce" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed meanwhile
    with open("/proc/self/maps") as maps:
        return open_files, sum("memfd:all-reduce" in line for line in maps)


def names():
    """What could be left behind under a name."""
    shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    mine = [entry.name for entry in os.scandir(tempfile.gettempdir())]
    return {name for name in shared if name.startswith(("psm_", "all-reduce", "torch_"))} | {
        name for name in mine if name.startswith("all-reduce")
    }


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list files")
def test_shared_memory_keeps_no_file_open_and_goes_with_its_object(ranks):
    once = ranks.run(kept_after, 1)
    assert once == ranks.run(kept_after, 4)
    assert all(open_files <= maps and maps > 0 for open_files, maps in once)


@on_ranks
def one_does_not_come():
    from ranklab.taught import all_reduce as taught

    shared = taught.SharedMemory(timeout=0.5)
    try:
        if rank != 3:  # noqa: F821
            shared.all_reduce(torch.ones(3))  # noqa: F821
    except TimeoutError as error:
        return str(error)


def test_a_rank_that_does_not_come_is_named(ranks):
    said = ranks.run(one_does_not_come)
    assert said.pop(3) is None
    assert all("Rank 3" in each and "0.5 s" in each for each in said), said


@on_ranks
def pretend_other_host(hosts):
    from ranklab.taught import all_reduce as taught

    real = taught.this_host
    taught.this_host = lambda: hosts[rank % 2]  # noqa: F821
    try:
        taught.SharedMemory()
    except ValueError as error:
        return str(error)
    finally:
        taught.this_host = real


@pytest.mark.parametrize("second", [("host-1", "boot"), ("host-0", "another boot")])
def test_ranks_on_two_hosts_are_told_that_they_share_no_memory(ranks, second):
    for said in ranks.run(pretend_other_host, [("host-0", "boot"), second]):
        assert f"host-0, {second[0]}" in said and "one host" in said


def test_the_table_has_the_fastest_way_from_each_size_on():
    times = {"tree": [1, 1, 5, 9], "ring": [3, 2, 4, 2], "shared": [2, 2, 5, 3]}
    table = taught.winners([4, 16, 64, 256], times)
    assert table == [(0, "tree"), (256, "ring")]  # at 64, the gain is too small
    assert taught.winners([4, 16, 64, 256], times, gain=1) == [(0, "tree"), (64, "ring")]
    fast = taught.FastAllReduce({}, table)
    assert [fast.way(nbytes) for nbytes in (0, 64, 255, 256, 1 << 30)] == ["tree"] * 3 + [
        "ring"
    ] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells starts apart")
def test_a_host_is_told_from_another_one_of_its_name():
    name, boot, processes = taught.this_host()
    assert name == socket.gethostname()
    assert len(boot.strip()) == 36 and processes.startswith("pid:")


def test_an_all_reduce_says_what_it_takes_and_what_it_is():
    for way in (taught.gather_all_reduce, taught.ring_all_reduce):
        assert list(inspect.signature(way).parameters) == ["x", "group"]
        assert way.__doc__ and pickle.loads(pickle.dumps(way)) is way


class Fence:
    """Stands for the barrier's lock; notes each call, and the count at that time."""

    def __init__(self, barrier):
        self.barrier, self.seen = barrier, []

    def release(self):
        self.seen.append(("release", self.barrier.counts[0]))

    def acquire(self):
        self.seen.append(("acquire", self.barrier.counts[0]))


def test_a_barrier_has_a_fence_before_its_count_and_one_after_the_others():
    """Release, then acquire: the other order lets both sides meet in between, and cross."""
    barrier = taught.SharedBarrier(bytearray(64), me=0, n=1)
    assert barrier.fence.locked()
    barrier.wait()
    assert barrier.fence.locked()
    barrier.fence = Fence(barrier)
    barrier.wait()
    assert barrier.fence.seen == [("release", 1), ("acquire", 1), ("release", 2), ("acquire", 2)]


@on_ranks
def one_dies_in_the_middle(dying):
    """Rank `dying` is killed between two pieces; the others say what they raised, and when."""
    import os
    import signal
    import time

    from ranklab.taught import all_reduce as taught

    shared = taught.SharedMemory(timeout=3)
    wait, waits = shared.barrier.wait, []

    def wait_or_die():
        waits.append(time.monotonic())
        if rank == dying and len(waits) == 4:  # noqa: F821
            os.kill(os.getpid(), signal.SIGKILL)
        wait()

    shared.barrier.wait = wait_or_die
    try:
        shared.all_reduce(torch.ones(5 << 18))  # noqa: F821
    except TimeoutError as error:
        return str(error), time.monotonic() - waits[0]


def test_a_rank_that_dies_leaves_nothing_behind_and_nobody_waiting(ranks):
    """The last test, as it costs a rank."""
    before = names()
    pending = {r: ranks.client[r].apply_async(one_dies_in_the_middle, 1) for r in range(N)}
    survivors = [result.get(timeout=30) for r, result in pending.items() if r != 1]
    for said, seconds in survivors:
        assert "Rank 1" in said and seconds < 15
    with pytest.raises(RankError):
        ranks.run(int)
    assert names() <= before
    ranks.close()
    assert names() <= before
