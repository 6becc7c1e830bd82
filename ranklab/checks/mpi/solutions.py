# Generated from book/09_mpi.md by `make forms`: edit the manuscript, not this file.

# %% check('total_on_rank_3', total_on_rank_3)

def total_on_rank_3():
    """Return "a", "b", "c" or "d"."""
    return "b"

# %% check('head_and_body', head_and_body)

import torch


def head_and_body(comm, x, root):
    """Return rank root's tensor on every rank; its numbers as a buffer."""
    body = x.contiguous() if comm.rank == root else None
    head = (x.shape, x.dtype) if comm.rank == root else None
    shape, dtype = comm.bcast(head, root)
    if comm.rank != root:
        body = torch.empty(shape, dtype=dtype)
    comm.Bcast(body, root)
    return body

# %% check('gather_unequal', gather_unequal)

import torch


def gather_unequal(comm, x):
    """Return all ranks' numbers in one flat tensor, on every rank."""
    counts = comm.allgather(len(x))
    box = torch.empty(sum(counts), dtype=x.dtype)
    comm.Allgatherv(x, [box, counts])
    return box

# %% check('mpi_bf16_sum', mpi_bf16_sum)

import torch


def mpi_bf16_sum(comm, x):
    """Replace x, flat and of bfloat16, by the sum of all ranks' x."""
    from mpi4py import MPI

    def add(a, b, datatype):
        a = torch.frombuffer(a, dtype=torch.bfloat16)
        b = torch.frombuffer(b, dtype=torch.bfloat16)
        b += a

    operation = MPI.Op.Create(add, commute=True)
    comm.Allreduce(MPI.IN_PLACE, x.view(torch.int16), operation)
    operation.Free()
