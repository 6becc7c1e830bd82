"""Chapter 9 on real ranks of MPI: its ring beside chapter 8's, all types and operations of both."""

import pytest
import torch
from tiers import few
from under_mpi import mpiexec, needs_mpi

from ranklab import Ranks
from ranklab.exercises.solution import solution

pytestmark = needs_mpi

N = 3  # no power of two: MPI and Gloo add in other orders
INTEGERS = "uint8", "int8", "int32", "int64"
FLOATS = "float16", "float32", "float64"
NUMERIC, BITWISE = ("SUM", "PROD", "MIN", "MAX"), ("BAND", "BOR", "BXOR")


@pytest.fixture(scope="module")
def ranks():
    with Ranks(N, engines="mpi", backend="gloo", device="cpu", timeout=20) as ranks:
        yield ranks


def on_ranks(function):
    function.__module__ = "__main__"
    return function


@on_ranks
def sums_by_ring(length, dtype):
    """What this rank has after chapter 9's ring over MPI and over Gloo, and after chapter 8's."""
    from mpi4py import MPI

    from ranklab.taught import all_reduce, messages, mpi

    def over_mpi(outgoing, dst, incoming, src):
        MPI.COMM_WORLD.Sendrecv(outgoing, dst, recvbuf=incoming, source=src)

    generator = torch.Generator().manual_seed(rank)  # noqa: F821
    x = (8 * torch.rand(length, generator=generator, dtype=torch.float64)).to(dtype)
    sums = [x.clone() for _ in range(3)]
    mpi.ring_over(sums[0], rank, world_size, over_mpi)  # noqa: F821
    mpi.ring_over(sums[1], rank, world_size, messages.sendrecv)  # noqa: F821
    all_reduce.ring_all_reduce(sums[2])
    return sums


@pytest.mark.parametrize("length", few([0, 1, 2, 7, 30_001], lambda n: n in (0, 7, 30_001)))
@pytest.mark.parametrize("dtype", few(["float32", "bfloat16", "int64"], lambda t: t != "int64"))
def test_the_ring_gives_the_same_bits_over_mpi_and_over_gloo_as_in_chapter_8(ranks, length, dtype):
    sums = ranks.run(sums_by_ring, length, getattr(torch, dtype))
    for of_rank in sums:
        for one in of_rank:
            assert torch.equal(one, sums[0][2])


@on_ranks
def reduced(kind, op):
    """Numbers, reduced by MPI and by Gloo: four kinds of calls, on this rank."""
    import torch.distributed as dist
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    generator = torch.Generator().manual_seed(10 + comm.rank)
    x = (1 + 2 * torch.rand(5 * comm.size, generator=generator, dtype=torch.float64)).to(kind)
    ops = getattr(dist.ReduceOp, {"PROD": "PRODUCT"}.get(op, op)), getattr(MPI, op)
    y, z, part, box = x.clone(), x.clone(), x[:5].clone(), x[:5].clone()
    dist.all_reduce(y, ops[0])
    comm.Allreduce(MPI.IN_PLACE, z, ops[1])
    dist.reduce_scatter(part, list(x.chunk(comm.size)), ops[0])
    comm.Reduce_scatter_block(x, box, ops[1])
    at_root, by_mpi = x.clone(), x.clone()
    dist.reduce(at_root, comm.size - 1, ops[0])
    comm.Reduce(x, by_mpi, ops[1], comm.size - 1)
    if comm.rank < comm.size - 1:
        at_root = by_mpi
    return [(y, z), (part, box), (at_root, by_mpi)]


def units(a, b):
    """How many units in the last place two tensors of positive numbers are apart."""
    if a.is_floating_point():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
        a, b = a.view(bits), b.view(bits)
    return int((a.long() - b.long()).abs().max())


GRID = [(kind, op) for kind in INTEGERS for op in NUMERIC + BITWISE]
GRID += [(kind, op) for kind in FLOATS for op in NUMERIC]


@pytest.mark.parametrize(
    "kind, op", few(GRID, lambda *row: row in [("uint8", "BXOR"), ("float16", "PROD")])
)
def test_mpi_and_gloo_reduce_alike(ranks, kind, op):
    rounds = kind in FLOATS and op in ("SUM", "PROD")
    for pairs in ranks.run(reduced, getattr(torch, kind), op):
        for by_gloo, by_mpi in pairs:
            assert units(by_gloo, by_mpi) <= 2 * (N - 1) * rounds


@on_ranks
def summed_in_bf16(add_bf16, length):
    """The sum of all ranks' numbers by an operation of the reader's, and by Gloo."""
    import torch.distributed as dist
    from mpi4py import MPI

    x = (torch.arange(length) % 9 + rank).bfloat16()  # noqa: F821
    y = x.clone()
    op = MPI.Op.Create(add_bf16, commute=True)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x.view(torch.int16), op)
    op.Free()
    dist.all_reduce(y)
    return x, y


@pytest.mark.parametrize("length", few([1, 5, 40_001], lambda n: n == 40_001))
def test_the_operation_of_the_exercise_adds_bfloat16_under_mpi(ranks, length):
    (add_bf16,) = solution("add_bf16").answers()
    for by_mpi, by_gloo in ranks.run(summed_in_bf16, on_ranks(add_bf16), length):
        assert torch.equal(by_mpi, by_gloo)


@on_ranks
def refused():
    """What MPI says of a sum of bfloat16."""
    from mpi4py import MPI

    x = torch.ones(2, dtype=torch.bfloat16)
    try:
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
    except MPI.Exception as error:
        return str(error)
    return x


def test_mpi_has_no_sum_of_bfloat16(ranks):
    assert all("Invalid MPI_Op" in said for said in ranks.run(refused))


@pytest.mark.everything
def test_mpiexec_ends_a_program_that_waits_for_ever():
    """As the page says, with its variable."""
    waiting = "from mpi4py import MPI; MPI.COMM_WORLD.Recv(bytearray(1), source=0)"
    ran = mpiexec(1, "-m", "mpi4py", "-c", waiting, limit=60, MPIEXEC_TIMEOUT="5")
    assert "TIMED OUT" in ran.stdout  # the exit code is 0 at times, with MPICH 5.0.2
