"""Wrong answers to the exercises of chapter 10, and what must be said of each."""

import torch
import torch.distributed as dist

from wrong_answers import wrong

# dealt_to --------------------------------------------------------------------------------------


@wrong("dealt_to", says=["9 samples, 4 ranks", "not equally long"])
def hands_of_different_length(rank, world_size, n, drop_last):
    return list(range(rank, n, world_size))


@wrong("dealt_to", says=["There is no such sample"])
def beyond_the_last(rank, world_size, n, drop_last):
    rounds = n // world_size if drop_last else -(-n // world_size)
    return list(range(rank, rounds * world_size, world_size))


@wrong("dealt_to", says=["9 samples, drop_last", "nobody gets a sample twice"])
def never_drops(rank, world_size, n, drop_last):
    rounds = -(-n // world_size)
    return [place % n for place in range(rank, rounds * world_size, world_size)]


@wrong("dealt_to", says=["Cards are dealt around"])
def in_pieces(rank, world_size, n, drop_last):
    size = n // world_size if drop_last else -(-n // world_size)
    return [place % n for place in range(rank * size, (rank + 1) * size)]


@wrong("dealt_to", says=["1 sample, 4 ranks", "not equally long"])
def filled_up_once(rank, world_size, n, drop_last):
    deck = list(range(n))
    missing = -n % world_size
    deck = deck[: n - n % world_size] if drop_last else deck + deck[:missing]
    return deck[rank::world_size]


@wrong("dealt_to", says=["9 samples, drop_last, 4 ranks"])
def as_the_text_shows_it(rank, world_size, n, drop_last):
    return [[0, 4, 8], [1, 5, 0], [2, 6, 1], [3, 7, 2]][rank]


# average_shards --------------------------------------------------------------------------------


@wrong("average_shards", says=["2.75", "the plain mean"])
def plain_mean(model, samples):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("average_shards", says=["the sum of the gradients"])
def a_sum(model, samples):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


@wrong("average_shards", says=["never divided"])
def never_divided(model, samples):
    for parameter in model.parameters():
        parameter.grad *= samples
        dist.all_reduce(parameter.grad)


@wrong("average_shards", says=["shards of 4, 0 and 2", "must take part in every all-reduce"])
def empty_ranks_stay_away(model, samples):
    total = torch.tensor(samples)
    dist.all_reduce(total)
    if samples == 0:
        return
    for parameter in model.parameters():
        parameter.grad *= samples / total.item()
        dist.all_reduce(parameter.grad)


@wrong("average_shards", says=["shards of 4, 0 and 2", "must take part in every all-reduce"])
def multiplies_none(model, samples):
    total = torch.tensor(samples)
    dist.all_reduce(total)
    for parameter in model.parameters():
        parameter.grad = parameter.grad * (samples / total.item())
        dist.all_reduce(parameter.grad)


@wrong("average_shards", says=["Divided once too often"])
def divided_twice(model, samples):
    total = torch.tensor(samples)
    dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= samples / total.item() / dist.get_world_size()
        dist.all_reduce(parameter.grad)


@wrong("average_shards", says=["NoneType", "returns nothing"])
def takes_what_is_returned(model, samples):
    total = dist.all_reduce(torch.tensor(samples))
    for parameter in model.parameters():
        parameter.grad *= samples / total
        dist.all_reduce(parameter.grad)


# same_start ------------------------------------------------------------------------------------


def _send_all(tensors, src=0):
    for tensor in tensors:
        if dist.get_rank() == src:
            for other in range(dist.get_world_size()):
                if other != src:
                    dist.send(tensor.detach().contiguous(), other)
        else:
            box = torch.empty(tensor.shape, dtype=tensor.dtype)
            dist.recv(box, src)
            tensor.detach().copy_(box)


@wrong("same_start", says=["its buffers"])
def parameters_only(model, src):
    _send_all(model.parameters(), src)


@wrong("same_start", says=["`model.buffers()` has it"])
def the_state_dict(model, src):
    _send_all(model.state_dict().values(), src)


@wrong("same_start", says=["is not trained"])
def what_is_trained(model, src):
    _send_all([p for p in model.parameters() if p.requires_grad], src)
    _send_all(model.buffers(), src)


@wrong("same_start", says=["from rank 1", "whichever rank that is"])
def always_from_rank_0(model, src):
    _send_all([*model.parameters(), *model.buffers()], 0)


@wrong("same_start", says=["send and recv are enough", "those receive, in the same order"])
def by_broadcast(model, src):
    for tensor in [*model.parameters(), *model.buffers()]:
        packed = tensor.detach().contiguous()
        dist.broadcast(packed, src)
        tensor.detach().copy_(packed)


@wrong("same_start", says=["in other memory"])
def in_other_memory(model, src):
    _send_all([*model.parameters(), *model.buffers()], src)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


@wrong("same_start", says=["must stay as it was"])
def all_of_it_trained(model, src):
    _send_all([*model.parameters(), *model.buffers()], src)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


@wrong("same_start", says=["stuck", "Does every message have its receiver?"])
def to_rank_1_only(model, src):
    for tensor in [*model.parameters(), *model.buffers()]:
        box = tensor.detach().contiguous()
        if dist.get_rank() == src:
            dist.send(box, (src + 1) % dist.get_world_size())
        else:
            dist.recv(box, src)
            tensor.detach().copy_(box)


@wrong("same_start", says=["Is each sent in its own type?"])
def all_in_one_vector_of_floats(model, src):
    tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    vector = torch.cat([tensor.flatten().double() for tensor in tensors])
    _send_all([vector], src)
    for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view(tensor.shape))


@wrong("same_start", says=["those of no rank's model", "when you took it out"])
def taken_out_too_early(model, src):
    handles = []
    for tensor in [*model.parameters(), *model.buffers()]:
        if dist.get_rank() == src:
            others = [rank for rank in range(dist.get_world_size()) if rank != src]
            handles += [dist.isend(tensor.detach().contiguous(), rank) for rank in others]
        else:
            box = torch.full(tensor.shape, 7, dtype=tensor.dtype)
            handle = dist.irecv(box, src)
            tensor.detach().copy_(torch.full_like(box, 7))
            handles.append(handle)
    for handle in handles:
        handle.wait()
