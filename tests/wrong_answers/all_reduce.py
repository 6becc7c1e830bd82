"""Wrong answers to the exercises of chapter 08."""

import os

import torch
import torch.distributed as dist

from ranklab.taught.messages import sendrecv
from wrong_answers import wrong

# faster_way


@wrong("faster_way", says=["100,000,000 bytes"])
def always_doubling(nbytes, n, alpha, beta):
    return "doubling"


@wrong("faster_way", says=["doubling"])
def a_fixed_size(nbytes, n, alpha, beta):
    return "doubling" if nbytes < 1 << 16 else "ring"


@wrong("faster_way", says=["How many messages"])
def counts_only_bytes(nbytes, n, alpha, beta):
    doubling = (n.bit_length() - 1) * nbytes
    return "doubling" if doubling <= 2 * (n - 1) * nbytes / n else "ring"


@wrong("faster_way", says=["ring"])
def whole_tensors_around_the_ring(nbytes, n, alpha, beta):
    doubling = (n.bit_length() - 1) * (alpha + nbytes / beta)
    return "doubling" if doubling <= 2 * (n - 1) * (alpha + nbytes / beta) else "ring"


@wrong("faster_way", says=["How many messages"])
def half_a_ring(nbytes, n, alpha, beta):
    doubling = (n.bit_length() - 1) * (alpha + nbytes / beta)
    return "doubling" if doubling <= (n - 1) * (alpha + nbytes / n / beta) else "ring"


# ring_reduce_scatter


def _ring(x, outgoing_of, mine_of, returned=0):
    n, me = dist.get_world_size(), dist.get_rank()
    parts = x.clone().tensor_split(n)
    for step in range(n - 1):
        outgoing, mine = parts[outgoing_of(me, step) % n], parts[mine_of(me, step) % n]
        incoming = torch.empty_like(mine)
        sendrecv(outgoing, (me + 1) % n, incoming, (me - 1) % n)
        mine += incoming
    return parts[(me + returned) % n]


@wrong("ring_reduce_scatter", says=["another rank's part"])
def begins_as_the_chapter_does(x):
    return _ring(x, lambda me, s: me - s, lambda me, s: me - s - 1, returned=1)


@wrong("ring_reduce_scatter", says=["4 numbers, 4 ranks", "Not a total"])
def the_chapters_loop_as_it_is(x):
    return _ring(x, lambda me, s: me - s, lambda me, s: me - s - 1)


@wrong("ring_reduce_scatter", says=["Not a total"])
def sends_its_own_each_time(x):
    n, me = dist.get_world_size(), dist.get_rank()
    parts, own = x.clone().tensor_split(n), x.clone().tensor_split(n)
    for step in range(n - 1):
        outgoing, mine = own[(me - step - 1) % n], parts[(me - step - 2) % n]
        incoming = torch.empty_like(mine)
        sendrecv(outgoing, (me + 1) % n, incoming, (me - 1) % n)
        mine += incoming
    return parts[me]


@wrong("ring_reduce_scatter", says=["x"])
def adds_into_x(x):
    n, me = dist.get_world_size(), dist.get_rank()
    parts = x.tensor_split(n)
    for step in range(n - 1):
        outgoing, mine = parts[(me - step - 1) % n], parts[(me - step - 2) % n]
        incoming = torch.empty_like(mine)
        sendrecv(outgoing, (me + 1) % n, incoming, (me - 1) % n)
        mine += incoming
    return parts[me].clone()


@wrong("ring_reduce_scatter", says=["4 numbers, 4 ranks"])
def everybody_sends_first(x):
    """A deadlock: send waits for its receiver."""
    n, me = dist.get_world_size(), dist.get_rank()
    parts = x.clone().tensor_split(n)
    for step in range(n - 1):
        mine = parts[(me - step - 2) % n]
        incoming = torch.empty_like(mine)
        dist.send(parts[(me - step - 1) % n], (me + 1) % n)
        dist.recv(incoming, (me - 1) % n)
        mine += incoming
    return parts[me]


@wrong("ring_reduce_scatter", says=["Rank 2 died", "as long as"])
def one_dies(x):
    if dist.get_rank() == 2:
        os._exit(3)
    return _ring(x, lambda me, s: me - s - 1, lambda me, s: me - s - 2)


@wrong("ring_reduce_scatter", says=["to come around the ring", "all_reduce"])
def a_part_of_an_all_reduce(x):
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(dist.get_world_size())[dist.get_rank()]


@wrong("ring_reduce_scatter", says=["sent 48 bytes. 12 are enough"])
def whole_tensors_instead_of_parts(x):
    n, me = dist.get_world_size(), dist.get_rank()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sendrecv(passing, (me + 1) % n, incoming, (me - 1) % n)
        total, passing = total + incoming, incoming
    return total.tensor_split(n)[me]


# mean_all_reduce


@wrong("mean_all_reduce", says=["3 ranks", "rounded more than once"])
def divides_first_in_bfloat16(x):
    share = (x / dist.get_world_size()).float().contiguous()
    dist.all_reduce(share)
    x.copy_(share)


@wrong("mean_all_reduce", says=["rounded more than once"])
def in_bfloat16(x):
    total = x.contiguous()
    dist.all_reduce(total)
    x.copy_(total / dist.get_world_size())


@wrong("mean_all_reduce", says=["rounded more than once"])
def divides_in_bfloat16(x):
    total = x.to(torch.float32, copy=True).contiguous()
    dist.all_reduce(total)
    x.copy_(total)
    x /= dist.get_world_size()


@wrong("mean_all_reduce", says=["a copy that nobody looks at"])
def throws_the_mean_away(x):
    total = x.float().contiguous()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    x = total.to(torch.bfloat16)


@wrong("mean_all_reduce", says=["That is the sum"])
def forgets_to_divide(x):
    total = x.float().contiguous()
    dist.all_reduce(total)
    x.copy_(total)


@wrong("mean_all_reduce", says=["1000 numbers"])
def written_for_the_case_that_is_shown(x):
    x.copy_(torch.tensor([65.0, 1.0]))


# max_all_reduce


@wrong("max_all_reduce", says=["messages alone"])
def by_a_collective(x):
    largest = x.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest


@wrong("max_all_reduce", says=["messages, and"])
def around_a_ring(x):
    n, me = dist.get_world_size(), dist.get_rank()
    largest, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sendrecv(passing, (me + 1) % n, incoming, (me - 1) % n)
        largest, passing = torch.maximum(largest, incoming), incoming
    return largest


@wrong("max_all_reduce", says=["3 ranks"])
def for_powers_of_two(x):
    n, me = dist.get_world_size(), dist.get_rank()
    largest, incoming, distance = x.clone(), torch.empty_like(x), 1
    while distance < n:
        partner = me ^ distance
        if partner < n:
            sendrecv(largest, partner, incoming, partner)
            largest = torch.maximum(largest, incoming)
        distance *= 2
    return largest


@wrong("max_all_reduce", says=["swaps what it has so far"])
def swaps_its_x(x):
    n, me = dist.get_world_size(), dist.get_rank()
    largest, incoming, distance = x.clone(), torch.empty_like(x), 1
    while distance < n:
        sendrecv(x, me ^ distance, incoming, me ^ distance)
        largest = torch.maximum(largest, incoming)
        distance *= 2
    return largest


@wrong("max_all_reduce", says=["2 numbers, 4 ranks"])
def both_receive_first(x):
    """A deadlock."""
    n, me = dist.get_world_size(), dist.get_rank()
    largest, incoming, distance = x.clone(), torch.empty_like(x), 1
    while distance < n:
        dist.recv(incoming, me ^ distance)
        dist.send(largest, me ^ distance)
        largest = torch.maximum(largest, incoming)
        distance *= 2
    return largest
