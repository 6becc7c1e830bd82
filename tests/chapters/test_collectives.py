"""Chapter 7's collectives, on real ranks: groups of 1 to 8, any length, type and layout."""

import re
import time
from dataclasses import dataclass
from itertools import chain, product

import matplotlib.colors
import pytest
import torch
import torch.distributed as dist
from on_ranks import started
from tiers import few

from ranklab import trace, traffic
from ranklab.plots import RANK_COLORS, holdings, marks_in, pale
from ranklab.taught import collectives as own
from ranklab.traces.rounds import rounds

LENGTHS = 0, 1, 5, 24
DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.int64
LAYOUTS = "contiguous", "strided", "transposed"


@pytest.fixture(scope="module")
def eight():
    with started(8) as ranks:
        yield ranks


@dataclass
class Case:
    """What the ranks of a group give to the collectives.

    Numbers are small whole ones, so that sums are exact in every type.
    """

    length: int
    dtype: torch.dtype
    layout: str

    def of(self, rank, part=0):
        """What `rank` has, as its part for rank `part`; parts differ in length by one."""
        values = torch.arange(self.length + part % 2) % 4 + rank + part
        return self.laid_out(values.to(self.dtype))

    def box(self, part):
        """A box for part `part`, with something else in it."""
        box = self.of(7, part)
        return box.fill_(99)

    def total(self, n, part=0):
        return sum((self.of(r, part) for r in range(1, n)), self.of(0, part).clone())

    def laid_out(self, values):
        """The same values in one piece; as a column of a matrix; as a transposed matrix."""
        if self.layout == "contiguous":
            return values
        if self.layout == "strided":
            return torch.stack([values, values], dim=1)[:, 0]
        return torch.stack([values, values], dim=1).t()


def mistakes_in_a_group_of(k):
    """What goes wrong in a group of the last k ranks, as sentences. Runs on every rank."""
    first = dist.get_world_size() - k
    group = dist.new_group(range(first, first + k))
    if dist.get_rank() < first:
        return []
    found = []
    for (i, length), (j, dtype) in product(enumerate(LENGTHS), enumerate(DTYPES)):
        case = Case(length, dtype, LAYOUTS[(i + j + k) % 3])  # of k = 1 to 3, each has all layouts
        for what, got, wanted in chain(rooted(case, group), rootless(case, group)):
            same = got.shape == wanted.shape and got.dtype == wanted.dtype
            if not same or not torch.equal(got, wanted):
                found.append(f"{what} in a group of {k}, {case}: {got.tolist()} on a rank")
    return found


def rooted(case, group):
    """Call the collectives that have a root; yield what, what came out, what should have."""
    k, me = dist.get_world_size(group), dist.get_rank(group)
    parts = [case.of(me, part) for part in range(k)]
    for root in {0, k - 1}:
        own.broadcast(x := case.of(me), root, group)
        yield "broadcast", x, case.of(root)
        own.reduce(x := case.of(me), root, group)
        yield "reduce", x, case.total(k) if me == root else case.of(me)
        own.scatter(box := case.box(me), parts if me == root else None, root, group)
        yield "scatter", box, case.of(root, me)
        boxes = [case.box(r) for r in range(k)] if me == root else None
        own.gather(case.of(me, me), boxes, root, group)
        for r, box in enumerate(boxes or []):
            yield f"gather from {r}", box, case.of(r, r)


def rootless(case, group):
    """The same for those without a root."""
    k, me = dist.get_world_size(group), dist.get_rank(group)
    parts = [case.of(me, part) for part in range(k)]
    own.all_gather(boxes := [case.box(r) for r in range(k)], case.of(me, me), group)
    for r, box in enumerate(boxes):
        yield f"all-gather from {r}", box, case.of(r, r)
    own.reduce_scatter(box := case.box(me), parts, group)
    yield "reduce-scatter", box, case.total(k, me)
    own.all_reduce(x := case.of(me), group)
    yield "all-reduce", x, case.total(k)
    own.all_to_all(boxes := [case.box(me) for _ in range(k)], parts, group)
    for r, box in enumerate(boxes):
        yield f"all-to-all from {r}", box, case.of(r, me)
    for r, part in enumerate(parts):
        yield "an argument afterwards", part, case.of(me, r)


@pytest.mark.parametrize("k", few(range(1, 9), lambda k: k in (1, 2, 3, 8)))
def test_every_collective_is_right(eight, k):
    mistakes = [*chain(*eight.run(mistakes_in_a_group_of, k))]
    assert not mistakes, "\n".join(mistakes[:10])


def numbers_after_a_plain_call():
    """The collectives without a group: all ranks. A scalar and a matrix are reduced as they are."""
    me, n = dist.get_rank(), dist.get_world_size()
    scalar, matrix = torch.tensor(1.0), torch.full((3, 5), me).t()
    own.all_reduce(scalar)
    own.all_reduce(matrix)
    own.broadcast(x := torch.tensor([[me]]), n - 1)
    own.barrier()
    return scalar.item(), matrix.unique().tolist(), tuple(matrix.shape), x.item()


def test_without_a_group_all_ranks_take_part(eight):
    assert eight.run(numbers_after_a_plain_call) == [(8.0, [28], (5, 3), 7)] * 8


def barrier_with_a_latecomer(latecomer, k):
    """When this rank of a group of k came to a barrier, and when it went."""
    group = dist.new_group(range(k))
    dist.barrier()
    if dist.get_rank() >= k:
        return None
    if dist.get_rank() == latecomer:
        time.sleep(0.3)
    came = time.monotonic()
    own.barrier(group)
    return came, time.monotonic()


@pytest.mark.parametrize(("latecomer", "k"), [(0, 2), (2, 3), (3, 5), (0, 7), (7, 8)])
def test_nobody_passes_a_barrier_before_all_have_come(eight, latecomer, k):
    times = [t for t in eight.run(barrier_with_a_latecomer, latecomer, k) if t]
    assert len(times) == k
    assert min(went for _, went in times) >= times[latecomer][0]


def traces_of_all():
    """A trace of each collective, of float32 tensors of n parts of 100 numbers."""
    n, root = dist.get_world_size(), dist.get_rank() == 0
    whole = torch.zeros(100 * n)
    parts, boxes = list(whole.chunk(n)), list(torch.zeros(n, 100))
    calls = {
        own.broadcast: (whole, 0),
        own.scatter: (parts[0], boxes if root else None, 0),
        own.gather: (parts[0], boxes if root else None, 0),
        own.all_gather: (boxes, parts[0]),
        own.reduce: (whole, 0),
        own.reduce_scatter: (parts[0], boxes),
        own.all_reduce: (whole,),
        own.all_to_all: (boxes, parts),
        own.barrier: (),
    }
    traces = {}
    for call, arguments in calls.items():
        with trace() as t:
            call(*arguments)
        traces[call.__name__] = t
    return traces


def test_bytes_messages_and_rounds_are_the_formulas(eight):
    of_ranks = eight.run(traces_of_all)
    n, part = 8, 400
    expected = {  # what the busiest rank sends, bytes and messages; bytes of all; rounds
        "broadcast": (3 * n * part, 3, 7 * n * part, 3),
        "scatter": (7 * part, 7, 7 * part, 7),
        "gather": (part, 1, 7 * part, 7),
        "all_gather": (7 * part, 7, 56 * part, 7),
        "reduce": (n * part, 1, 7 * n * part, 3),
        "reduce_scatter": (7 * part, 7, 56 * part, 7),
        "all_reduce": (14 * part, 14, 112 * part, 14),
        "all_to_all": (7 * part, 7, 56 * part, 7),
        "barrier": (0, 3, 0, 3),
    }
    for name, claim in expected.items():
        of_name = [traces[name] for traces in of_ranks]
        table = traffic(of_name)
        busiest = max(row.sent_bytes for row in table), max(row.sent for row in table)
        assert (*busiest, table.total.sent_bytes, rounds(of_name)) == claim, name


def test_a_mark_says_whose_part_it_is():
    assert marks_in(0) == []
    assert marks_in(2.0**63) == [(7, 7)]
    everyone = sum(2.0 ** (r + 8 * 3) for r in range(8))
    assert marks_in(everyone) == [(r, 3) for r in range(8)]


def test_the_picture_shows_what_the_tensors_hold():
    marks = [torch.tensor([2.0 ** (r + 8 * j) for j in range(3)]) for r in range(2)]
    picture = holdings(marks, [[sum(marks)[:1], torch.zeros(1)], []], name="a test")
    alt = re.search('aria-label="([^"]*)"', picture.svg).group(1)
    assert alt == (
        "Before, rank 0 holds 0a, 0b, 0c; rank 1 holds 1a, 1b, 1c. "
        "After, rank 0 holds Σa, an empty box; rank 1 holds nothing. "
        "Σ is the sum over ranks 0 and 1."
    )
    assert picture.name == "a test"
    colors = [matplotlib.colors.to_hex(pale(RANK_COLORS[r], 0.55)) for r in range(2)]
    assert [picture.svg.count(f"fill: {color}") for color in colors] == [3 + 1, 3 + 1]
    assert picture.svg.count("stroke-dasharray") == 1  # the empty box
