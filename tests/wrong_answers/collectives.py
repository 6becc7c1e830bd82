"""Wrong answers to the exercises of chapter 07, and what must be said of each."""

import os

import torch
import torch.distributed as dist

from ranklab.taught.collectives import recv, send, sendrecv
from wrong_answers import wrong

# total_accuracy --------------------------------------------------------------------------------


@wrong("total_accuracy", says=["expected: 0.25", "the mean of the ranks' accuracies"])
def mean_of_means(right, seen):
    accuracy = torch.tensor([right / max(seen, 1)])
    dist.all_reduce(accuracy)
    return accuracy.item() / dist.get_world_size()


@wrong("total_accuracy", says=["one rank has seen nothing", "ZeroDivisionError", "Divide last"])
def divides_first(right, seen):
    counts = torch.tensor([right / seen * seen, seen])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@wrong("total_accuracy", says=["above 1", "both counts"])
def forgets_the_others_seen(right, seen):
    count = torch.tensor([float(right)])
    dist.all_reduce(count)
    return count.item() / (seen / 4 or 1)


@wrong("total_accuracy", says=["2 collective calls", "One is enough", "fit into one tensor"])
def in_two_calls(right, seen):
    rights, all_seen = torch.tensor([right]), torch.tensor([seen])
    dist.all_reduce(rights)
    dist.all_reduce(all_seen)
    return rights.item() / all_seen.item()


@wrong("total_accuracy", says=["one rank has seen nothing, 3 ranks"])
def for_the_case_in_the_text(right, seen):
    return 0.25


@wrong("total_accuracy", says=["2 collective calls", "One is enough"])
def in_two_calls_of_objects(right, seen):
    counts = [[None] * dist.get_world_size() for _ in range(2)]
    dist.all_gather_object(counts[0], right)
    dist.all_gather_object(counts[1], seen)
    return sum(counts[0]) / sum(counts[1])


@wrong("total_accuracy", says=["stuck", "all_reduce", "rank 0", "must make the call"])
def only_rank_0_asks(right, seen):
    counts = torch.tensor([right, seen])
    if dist.get_rank() == 0:
        dist.all_reduce(counts)
    dist.barrier()
    return (counts[0] / counts[1]).item()


@wrong("total_accuracy", says=["one rank has seen nothing", "got:      nan", "Divide last"])
def divides_first_in_a_tensor(right, seen):
    counts = torch.stack([torch.tensor(right) / seen * seen, torch.tensor(float(seen))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


# largest ---------------------------------------------------------------------------------------


@wrong("largest", says=["The number is right. Who has it?"])
def a_place_instead_of_a_rank(x):
    top = x.max().reshape(1).clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return top.item(), x.argmax().item()


@wrong("largest", says=["changed its argument", "a tensor of your own"])
def in_the_readers_own_tensor(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.max().item(), dist.get_rank()


@wrong("largest", says=["the same on two ranks", "the lowest of them"])
def the_last_who_has_it(x):
    maxima = [torch.empty(1, dtype=x.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(maxima, x.max().reshape(1))
    return max((top.item(), r) for r, top in enumerate(maxima))


@wrong("largest", says=["negative numbers only", "All numbers are negative here"])
def starts_from_zero(x):
    maxima = [torch.zeros(1, dtype=x.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(maxima, x.max().reshape(1))
    best, who = 0.0, 0
    for r, top in enumerate(maxima):
        if top.item() > best:
            best, who = top.item(), r
    return best, who


@wrong("largest", says=["got:      (6, 0)", "`[box] * n` is one box, n times"])
def one_box_for_all(x):
    mine = x.max().reshape(1)
    maxima = [torch.empty_like(mine)] * dist.get_world_size()
    dist.all_gather(maxima, mine)
    numbers = torch.cat(maxima).tolist()
    return max(numbers), numbers.index(max(numbers))


@wrong("largest", says=["float64, 2 ranks", "float32 cannot"])
def in_float32(x):
    mine = x.max().reshape(1).float()
    maxima = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(maxima, mine)
    numbers = torch.cat(maxima).tolist()
    return max(numbers), numbers.index(max(numbers))


@wrong("largest", says=["the same on two ranks", "the same shape from every rank"])
def gathers_x(x):
    xs = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(xs, x)
    numbers = [each.max().item() for each in xs]
    return max(numbers), numbers.index(max(numbers))


@wrong("largest", says=["A number is asked for", "`.item()`"])
def a_tensor_instead_of_a_number(x):
    mine = x.max().reshape(1)
    maxima = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(maxima, mine)
    return max(maxima), maxima.index(max(maxima))


@wrong("largest", says=["2 collective calls", "see whose"])
def number_and_owner_one_after_the_other(x):
    n, me = dist.get_world_size(), dist.get_rank()
    top = x.max().reshape(1).clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    who = torch.tensor([me if x.max() == top else n])
    dist.all_reduce(who, op=dist.ReduceOp.MIN)
    return top.item(), who.item()


# all_lists -------------------------------------------------------------------------------------


@wrong("all_lists", says=["Only one rank has the lists"])
def only_to_rank_0(numbers):
    me, n = dist.get_rank(), dist.get_world_size()
    lists = [None] * n if me == 0 else None
    dist.gather_object(numbers, lists)
    return lists


@wrong("all_lists", says=["in one long list"])
def one_long_list(numbers):
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, numbers)
    return [number for some in lists for number in some]


@wrong("all_lists", says=["All lists are of one length now"])
def filled_up_with_zeros(numbers):
    n = dist.get_world_size()
    mine = torch.tensor(numbers + [0] * (3 - len(numbers)))
    boxes = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(boxes, mine)
    return [box.tolist() for box in boxes]


@wrong("all_lists", says=["It should return 4 values, and returned 3", "an empty one"])
def without_the_empty_ones(numbers):
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, numbers)
    return [some for some in lists if some]


@wrong("all_lists", says=["died", "the same shape from every rank"])
def as_a_tensor(numbers):
    mine = torch.tensor(numbers)
    boxes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, mine)
    return [box.tolist() for box in boxes]


@wrong("all_lists", says=["IndexError", "a place for every rank"])
def into_an_empty_list(numbers):
    lists = []
    dist.all_gather_object(lists, numbers)
    return lists


# all_max ---------------------------------------------------------------------------------------


@wrong("all_max", says=["numbers that nobody had"])
def adds(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me - step) % n)
        x += incoming
        step *= 2


@wrong("all_max", says=["Numbers are missing"])
def always_the_neighbor(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + 1) % n, incoming, (me - 1) % n)
        torch.maximum(x, incoming, out=x)
        step *= 2


@wrong("all_max", says=["Nobody's x has changed"])
def in_a_copy(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me - step) % n)
        x = torch.maximum(x, incoming)
        step *= 2


@wrong("all_max", says=["stuck", "That is what sendrecv is for"])
def one_after_the_other(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        send(x, (me + step) % n)
        recv(incoming, (me - step) % n)
        torch.maximum(x, incoming, out=x)
        step *= 2


@wrong("all_max", says=["sent 3 messages where 2 would do", "How far must"])
def around_the_ring(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, passing = torch.empty_like(x), x.clone()
    for _ in range(n - 1):
        sendrecv(passing, (me + 1) % n, incoming, (me - 1) % n)
        torch.maximum(x, incoming, out=x)
        passing = incoming.clone()


@wrong("all_max", says=["But build it from messages", "has the rounds already"])
def built_in(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)


@wrong("all_max", says=["sent 3 messages where 2 would do", "How far must"])
def one_further_each_round(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me - step) % n)
        torch.maximum(x, incoming, out=x)
        step += 1


@wrong("all_max", says=["not done after 3 s", "does it double in every round?"])
def without_the_doubling(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me - step) % n)
        torch.maximum(x, incoming, out=x)


@wrong("all_max", says=["stuck", "receives from the left"])
def receives_from_the_right(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me + step) % n)
        torch.maximum(x, incoming, out=x)
        step *= 2


@wrong("all_max", says=["ambiguous", "place by place"])
def the_max_of_python(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, (me + step) % n, incoming, (me - step) % n)
        x.copy_(max(x, incoming))
        step *= 2


@wrong("all_max", says=["no rank 4", "after the last one comes rank 0"])
def off_the_end(x):
    n, me = dist.get_world_size(), dist.get_rank()
    incoming, step = torch.empty_like(x), 1
    while step < n:
        sendrecv(x, me + step, incoming, me - step)
        torch.maximum(x, incoming, out=x)
        step *= 2


# own_scan --------------------------------------------------------------------------------------


@wrong("own_scan", says=["what the ranks before have"])
def without_its_own(x):
    me, before = dist.get_rank(), torch.zeros_like(x)
    if me > 0:
        recv(before, me - 1)
    if me < dist.get_world_size() - 1:
        send(before + x, me + 1)
    return before


@wrong("own_scan", says=["Each rank adds its left neighbor's x"])
def only_the_neighbor(x):
    me, total = dist.get_rank(), x.clone()
    if me < dist.get_world_size() - 1:
        handle = dist.isend(x.contiguous(), me + 1)
    if me > 0:
        before = torch.empty_like(x)
        recv(before, me - 1)
        total += before
    if me < dist.get_world_size() - 1:
        handle.wait()
    return total


@wrong("own_scan", says=["stuck", "A scan is a row, not a circle", "Who waits for nobody"])
def all_receive_first(x):
    n, me = dist.get_world_size(), dist.get_rank()
    total, before = x.clone(), torch.empty_like(x)
    if n > 1:
        recv(before, (me - 1) % n)
        if me > 0:
            total += before
        send(total, (me + 1) % n)
    return total


@wrong("own_scan", says=["changed its argument"])
def in_place(x):
    me = dist.get_rank()
    if me > 0:
        before = torch.empty_like(x)
        recv(before, me - 1)
        x += before
    if me < dist.get_world_size() - 1:
        send(x, me + 1)
    return x


@wrong("own_scan", says=["int64, 3 ranks", "died"])
def gives_up_on_other_types(x):
    if x.dtype != torch.float32:
        os._exit(1)
    return right_for_floats(x)


def right_for_floats(x):
    me, total = dist.get_rank(), x.clone()
    if me > 0:
        before = torch.empty_like(x)
        recv(before, me - 1)
        total += before
    if me < dist.get_world_size() - 1:
        send(total, me + 1)
    return total


@wrong("own_scan", says=["Every rank has the sum of all"])
def the_sum_of_all(x):
    total = x.contiguous().clone()
    dist.all_reduce(total)
    return total


@wrong("own_scan", says=["int64, 3 ranks"])
def as_the_text_shows_it(x):
    return torch.full_like(x, (dist.get_rank() + 1) ** 2)


@wrong("own_scan", says=["there is no rank", "A row has two ends"])
def without_ends(x):
    me, total, before = dist.get_rank(), x.clone(), torch.empty_like(x)
    recv(before, me - 1)
    total += before
    send(total, me + 1)
    return total


@wrong("own_scan", says=["stuck", "can send only after it has heard", "What isend starts"])
def all_tell_those_above_first(x):
    n, me, total = dist.get_world_size(), dist.get_rank(), x.clone()
    for other in range(me + 1, n):
        send(x, other)
    for other in range(me):
        before = torch.empty_like(x)
        recv(before, other)
        total += before
    return total


@wrong("own_scan", says=["bfloat16, 4 ranks", "the shape and the type of x"])
def adds_in_another_type(x):
    me, total = dist.get_rank(), x.float() if x.dtype == torch.bfloat16 else x.clone()
    if me > 0:
        before = torch.empty_like(total)
        recv(before, me - 1)
        total += before
    if me < dist.get_world_size() - 1:
        send(total, me + 1)
    return total
