# Generated from book/07_collectives.md by `make forms`: edit the manuscript, not this file.

"""Collectives: what all ranks do together: what chapter 07_collectives teaches."""

import torch
import torch.distributed as dist


def send(x, dst, group=None):
    """Send x, any view, to rank dst of the group."""
    dist.send(x.contiguous(), group=group, group_dst=dst)


def recv(box, src, group=None):
    """Fill `box`, any view, with what rank src of the group sends."""
    packed = box.contiguous()  # box itself, if it is contiguous
    dist.recv(packed, group=group, group_src=src)
    if packed is not box:
        box.copy_(packed)


def sendrecv(outgoing, dst, incoming, src, group=None):
    """Send `outgoing` to rank dst, fill `incoming` from rank src, at once.

    For Gloo and MPI; NCCL wants both started by dist.batch_isend_irecv.
    """
    handle = dist.isend(outgoing.contiguous(), group=group, group_dst=dst)
    recv(incoming, src, group)
    handle.wait()


def broadcast(x, src, group=None):
    """Give rank src's x to all of the group, along a binomial tree."""
    n = dist.get_world_size(group)
    me = (dist.get_rank(group) - src) % n  # counted from the root
    step = 1
    while step < n:
        if me < step and me + step < n:
            send(x, (src + me + step) % n, group)
        elif step <= me < 2 * step:
            recv(x, (src + me - step) % n, group)
        step *= 2


def scatter(box, parts, src, group=None):
    """Fill each rank's box with its part of rank src's list."""
    me = dist.get_rank(group)
    if me != src:  # parts is None
        recv(box, src, group)
        return
    for dst, part in enumerate(parts):
        if dst == me:
            box.copy_(part)
        else:
            send(part, dst, group)


def gather(x, boxes, dst, group=None):
    """Fill rank dst's list of boxes with each rank's x."""
    me = dist.get_rank(group)
    if me != dst:  # boxes is None
        send(x, dst, group)
        return
    for src, box in enumerate(boxes):
        if src == me:
            box.copy_(x)
        else:
            recv(box, src, group)


def all_gather(boxes, x, group=None):
    """Fill each rank's boxes with every rank's x, around the ring."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    boxes[me].copy_(x)
    for step in range(n - 1):
        mine, next_one = boxes[(me - step) % n], boxes[(me - step - 1) % n]
        sendrecv(mine, right, next_one, left, group)


def reduce(x, dst, group=None):
    """Put the sum of all ranks' x into rank dst's x; the others keep theirs."""
    n = dist.get_world_size(group)
    me = (dist.get_rank(group) - dst) % n
    total, incoming = x.clone(), torch.empty_like(x)
    step = 1
    while 2 * step < n:  # to the last step of the broadcast
        step *= 2
    while step:
        if me < step and me + step < n:
            recv(incoming, (dst + me + step) % n, group)
            total += incoming
        elif step <= me < 2 * step:
            send(total, (dst + me - step) % n, group)
        step //= 2
    if me == 0:
        x.copy_(total)


def reduce_scatter(box, parts, group=None):
    """Fill each rank's box with the sum of its part of all lists."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    left, right = (me - 1) % n, (me + 1) % n
    sums = [part.clone() for part in parts]
    for step in reversed(range(n - 1)):
        staying, leaving = sums[(me - step) % n], sums[(me - step - 1) % n]
        incoming = torch.empty_like(staying)
        sendrecv(leaving, left, incoming, right, group)
        staying += incoming
    box.copy_(sums[me])


def all_reduce(x, group=None):
    """Replace x by the sum of all: reduce-scatter, then all-gather."""
    flat = x.reshape(-1)  # a view if there can be one, otherwise a copy
    parts = list(flat.tensor_split(dist.get_world_size(group)))
    total = torch.empty_like(parts[dist.get_rank(group)])
    reduce_scatter(total, parts, group)
    all_gather(parts, total, group)
    if not x.is_contiguous():
        x.copy_(flat.view_as(x))


def all_to_all(boxes, parts, group=None):
    """Fill box s of rank r with part r of rank s, for all r and s."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    boxes[me].copy_(parts[me])
    for step in range(1, n):
        to, come_from = (me + step) % n, (me - step) % n
        sendrecv(parts[to], to, boxes[come_from], come_from, group)


def barrier(group=None):
    """Return when every rank of the group has called it."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    word, heard = torch.empty(0), torch.empty(0)
    step = 1
    while step < n:
        sendrecv(word, (me + step) % n, heard, (me - step) % n, group)
        step *= 2
