# Generated from book/06_messages.md by `make forms`: edit the manuscript, not this file.

# %% check('seconds_of_a_chain', seconds_of_a_chain)

def seconds_of_a_chain():
    """Return "a", "b", "c" or "d"."""
    return "c"

# %% check('three_swaps', three_swaps)

def three_swaps():
    """Return "a", "b", "c" or "d"."""
    return "b"

# %% check('from_left', from_left)

import torch
import torch.distributed as dist


def from_left(x):
    """Return the left neighbor's x: rank r - 1's, and rank 0 the last one's."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    box = torch.empty_like(x)
    if world_size == 1:
        box.copy_(x)
    elif rank == 0:
        dist.recv(box, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(box, left)
    return box

# %% check('exchange', exchange)

import torch
import torch.distributed as dist


def exchange(letters):
    """Send letters[r] to rank r; return a list, entry s from rank s."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    boxes = [torch.empty_like(letter) for letter in letters]
    handles = []
    for other in range(world_size):
        if other == rank:
            boxes[rank].copy_(letters[rank])
        else:
            handles.append(dist.isend(letters[other], other))
            handles.append(dist.irecv(boxes[other], other))
    for handle in handles:
        handle.wait()
    return boxes

# %% check('deliver', deliver)

import torch
import torch.distributed as dist


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


def deliver(x, src, dst):
    """Return rank src's x on rank dst, which knows nothing of it; else None."""
    rank = dist.get_rank()
    if rank == src:
        dist.send(torch.tensor([x.dim(), DTYPES.index(x.dtype)]), dst)
        if x.dim() > 0:
            dist.send(torch.tensor(x.shape), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        head = torch.empty(2, dtype=torch.int64)
        dist.recv(head, src)
        dimensions, code = head.tolist()
        shape = torch.empty(dimensions, dtype=torch.int64)
        if dimensions > 0:
            dist.recv(shape, src)
        box = torch.empty(shape.tolist(), dtype=DTYPES[code])
        dist.recv(box, src)
        return box
    return None

# %% check('pass_along', pass_along)

import torch
import torch.distributed as dist


def pass_along(pieces, work):
    """Send every piece through work() on all ranks, in order.

    The last rank returns the list of results, the others return None.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    last = world_size - 1
    done = []
    handles = []
    for piece in pieces:
        if rank > 0:
            box = torch.empty_like(piece)
            dist.recv(box, rank - 1)
            piece = box
        done.append(work(piece))
        if rank < last:
            handles.append(dist.isend(done[-1], rank + 1))
    for handle in handles:
        handle.wait()
    return done if rank == last else None
