"""Wrong answers to the exercises of chapter 08."""

import os

import torch
import torch.distributed as dist

from ranklab.taught.all_reduce import doubling_all_reduce
from ranklab.taught.collectives import reduce_scatter
from ranklab.taught.messages import sendrecv
from wrong_answers import wrong

# faster_way


@wrong("faster_way", says=["100,000,000 bytes", "cut into n parts"])
def always_doubling(nbytes, n, alpha, beta):
    return "doubling"


@wrong("faster_way", says=["doubling"])
def a_fixed_size(nbytes, n, alpha, beta):
    return "doubling" if nbytes < 1 << 16 else "ring"


@wrong("faster_way", says=["fewer messages one after the other"])
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


@wrong("faster_way", says=["100 bytes, 1 rank,", "if the times are the same"])
def the_ring_in_a_tie(nbytes, n, alpha, beta):
    doubling = (n.bit_length() - 1) * (alpha + nbytes / beta)
    return "doubling" if doubling < 2 * (n - 1) * (alpha + nbytes / n / beta) else "ring"


@wrong("faster_way", says=["one of two words"])
def another_word(nbytes, n, alpha, beta):
    return "recursive doubling"


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


@wrong(
    "ring_reduce_scatter", says=["4 numbers, 4 ranks", "part r of rank r's own x", "comes in last"]
)
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


@wrong(
    "ring_reduce_scatter", says=["to come around the ring", "all_reduce", "The loop of the stub"]
)
def a_part_of_an_all_reduce(x):
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(dist.get_world_size())[dist.get_rank()]


@wrong("ring_reduce_scatter", says=["sent 48 bytes. 12 are enough", "The loop of the stub"])
def whole_tensors_instead_of_parts(x):
    n, me = dist.get_world_size(), dist.get_rank()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sendrecv(passing, (me + 1) % n, incoming, (me - 1) % n)
        total, passing = total + incoming, incoming
    return total.tensor_split(n)[me]


@wrong("ring_reduce_scatter", says=["another order", "to the right"])
def each_part_straight_to_its_owner(x):
    n, me = dist.get_world_size(), dist.get_rank()
    parts = x.tensor_split(n)
    total = parts[me].clone()
    for distance in range(1, n):
        to, origin = (me + distance) % n, (me - distance) % n
        box = torch.empty_like(total)
        sendrecv(parts[to].contiguous(), to, box, origin)
        total += box
    return total


@wrong("ring_reduce_scatter", says=["another order", "went to the left"])
def the_one_of_chapter_7(x):
    parts = list(x.tensor_split(dist.get_world_size()))
    box = torch.empty_like(parts[dist.get_rank()])
    reduce_scatter(box, parts)
    return box


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
    x.copy_(torch.tensor([298.0, 1.0]))


@wrong("mean_all_reduce", says=["column 0 of a float32 matrix", "Numbers beside x have changed"])
def a_float_that_is_x_itself(x):
    y = x.float()
    dist.all_reduce(y)
    y /= dist.get_world_size()
    x.copy_(y)


@wrong("mean_all_reduce", says=["TypeError", "It is called as mean_all_reduce(x)"])
def with_a_group(x, group):
    dist.all_reduce(x, group=group)


@wrong("mean_all_reduce", says=["a transposed matrix", "`contiguous()`"])
def flat_by_view(x):
    total = x.to(torch.float32, copy=True).view(-1)
    dist.all_reduce(total)
    x.copy_((total / dist.get_world_size()).view(x.shape))


# sum_and_max


def _combined(both, incoming):
    return torch.stack([both[0] + incoming[0], torch.maximum(both[1], incoming[1])])


def _largest_in_a_circle(x):
    """Chapter 7's all_max, on a copy."""
    n, me = dist.get_world_size(), dist.get_rank()
    largest, incoming, step = x.clone(), torch.empty_like(x), 1
    while step < n:
        sendrecv(largest, (me + step) % n, incoming, (me - step) % n)
        largest = torch.maximum(largest, incoming)
        step *= 2
    return largest


@wrong("sum_and_max", says=["messages alone", "two ranks swap"])
def by_a_collective(x):
    total, largest = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return total, largest


@wrong("sum_and_max", says=["messages, and", "fit into one tensor"])
def one_after_another(x):
    """The chapter's sum and the maximum of the chapter before: right, with twice the messages."""
    total = x.clone()
    doubling_all_reduce(total)
    return total, _largest_in_a_circle(x)


@wrong("sum_and_max", says=["3 ranks", "counted twice"])
def as_if_both_forgave(x):
    n, me = dist.get_world_size(), dist.get_rank()
    both, step = torch.stack([x, x]), 1
    while step < n:
        incoming = torch.empty_like(both)
        sendrecv(both, (me + step) % n, incoming, (me - step) % n)
        both = _combined(both, incoming)
        step *= 2
    return both[0], both[1]


@wrong("sum_and_max", says=["3 ranks"])
def for_powers_of_two(x):
    n, me = dist.get_world_size(), dist.get_rank()
    both, distance = torch.stack([x, x]), 1
    while distance < n:
        partner = me ^ distance
        if partner < n:
            incoming = torch.empty_like(both)
            sendrecv(both, partner, incoming, partner)
            both = _combined(both, incoming)
        distance *= 2
    return both[0], both[1]


@wrong("sum_and_max", says=["swaps what it has so far"])
def swaps_its_x(x):
    n, me = dist.get_world_size(), dist.get_rank()
    mine, distance = torch.stack([x, x]), 1
    both, incoming = mine, torch.empty_like(mine)
    while distance < n:
        sendrecv(mine, me ^ distance, incoming, me ^ distance)
        both = _combined(both, incoming)
        distance *= 2
    return both[0], both[1]


@wrong("sum_and_max", says=["2 numbers, 4 ranks", "sendrecv does both at once"])
def both_receive_first(x):
    """A deadlock."""
    n, me = dist.get_world_size(), dist.get_rank()
    both, distance = torch.stack([x, x]), 1
    incoming = torch.empty_like(both)
    while distance < n:
        dist.recv(incoming, me ^ distance)
        dist.send(both, me ^ distance)
        both = _combined(both, incoming)
        distance *= 2
    return both[0], both[1]


def _beyond_a_power_of_two(x, fold=_combined, cast=lambda both: both):
    """The solution, with another way to take in what a rank beyond has, or another type."""
    n, me = dist.get_world_size(), dist.get_rank()
    core = 1 << (n.bit_length() - 1)
    both = cast(torch.stack([x, x]))
    incoming = torch.empty_like(both)
    if me >= core:
        dist.send(both, me - core)
        dist.recv(both, me - core)
        return both[0], both[1]
    if me + core < n:
        dist.recv(incoming, me + core)
        both = fold(both, incoming)
    distance = 1
    while distance < core:
        sendrecv(both, me ^ distance, incoming, me ^ distance)
        both = _combined(both, incoming)
        distance *= 2
    if me + core < n:
        dist.send(both, me + core)
    return both[0], both[1]


@wrong("sum_and_max", says=["9 numbers, 3 ranks", "The sums are right, and the maxima are not"])
def adds_what_a_rank_beyond_has(x):
    return _beyond_a_power_of_two(x, fold=torch.add)


@wrong("sum_and_max", says=["int64, 6 ranks", "The results have the type of x"])
def in_float32(x):
    return _beyond_a_power_of_two(x, cast=torch.Tensor.float)


@wrong("sum_and_max", says=["not done after 3 s", "The distance doubles"])
def forgets_to_double(x):
    both = torch.stack([x, x])
    while dist.get_world_size() > 1:
        incoming = torch.empty_like(both)
        sendrecv(both, dist.get_rank() ^ 1, incoming, dist.get_rank() ^ 1)
        both = _combined(both, incoming)
    return both[0], both[1]


@wrong("sum_and_max", says=["The sums come first"])
def the_maximum_first(x):
    sums, maxima = _beyond_a_power_of_two(x)
    return maxima, sums


@wrong("sum_and_max", says=["A pair is asked for"])
def both_in_one_tensor(x):
    return torch.stack(_beyond_a_power_of_two(x))


@wrong("sum_and_max", says=["no rank 3", "Not every rank has a partner"])
def partners_beyond_the_last_rank(x):
    n, me = dist.get_world_size(), dist.get_rank()
    both, distance = torch.stack([x, x]), 1
    while distance < n:
        incoming = torch.empty_like(both)
        sendrecv(both, me ^ distance, incoming, me ^ distance)
        both = _combined(both, incoming)
        distance *= 2
    return both[0], both[1]


@wrong("sum_and_max", says=["4 messages, and 3 must be enough", "fit into one tensor"])
def two_messages_a_round(x):
    n, me = dist.get_world_size(), dist.get_rank()
    total, largest, distance = x.clone(), x.clone(), 1
    while distance < n:
        incoming = torch.empty_like(x), torch.empty_like(x)
        sendrecv(total, me ^ distance, incoming[0], me ^ distance)
        sendrecv(largest, me ^ distance, incoming[1], me ^ distance)
        total, largest = total + incoming[0], torch.maximum(largest, incoming[1])
        distance *= 2
    return total, largest
