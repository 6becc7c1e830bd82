"""Right answers to the exercises of chapter 08, with its data parallel training."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ranklab.taught.messages import sendrecv
from right_answers import right

# faster_way


@right("faster_way")
def least_of_a_table(nbytes, n, alpha, beta):
    import math

    seconds = {
        "doubling": math.log2(n) * (alpha + nbytes / beta),
        "ring": 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / beta,
    }
    return min(seconds, key=seconds.get)


# ring_reduce_scatter


@right("ring_reduce_scatter")
def one_part_travels(x):
    n, me = dist.get_world_size(), dist.get_rank()
    own = x.tensor_split(n)
    carried = own[(me - 1) % n].clone()
    for step in range(2, n + 1):
        box = torch.empty_like(own[(me - step) % n])
        both = [dist.P2POp(dist.isend, carried, (me + 1) % n)]
        both += [dist.P2POp(dist.irecv, box, (me - 1) % n)]
        for handle in dist.batch_isend_irecv(both):
            handle.wait()
        carried = box + own[(me - step) % n]
    return carried


@right("ring_reduce_scatter")
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


# mean_all_reduce


@right("mean_all_reduce")
def divided_before_the_sum(x):
    share = x.float().contiguous() / dist.get_world_size()
    dist.all_reduce(share)
    x.copy_(share)


@right("mean_all_reduce")
def mean_of_a_gathered_stack(x):
    all_xs = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(all_xs, x.contiguous())
    x[...] = torch.stack(all_xs).float().mean(dim=0)


# max_all_reduce


@right("max_all_reduce")
def pairs_first(x):
    """As MPICH does it: of the first ranks, each even one gives its x to its right neighbor."""
    n, me = dist.get_world_size(), dist.get_rank()
    rounds = n.bit_length() - 1
    beyond = n - 2**rounds
    largest, box = x.clone(), torch.empty_like(x)
    if me < 2 * beyond and me % 2 == 0:
        dist.send(largest, me + 1)
        dist.recv(largest, me + 1)
        return largest
    if me < 2 * beyond:
        dist.recv(box, me - 1)
        largest = largest.maximum(box)
    new = me // 2 if me < 2 * beyond else me - beyond
    for k in range(rounds):
        partner = new ^ (1 << k)
        partner = 2 * partner + 1 if partner < beyond else partner + beyond
        sendrecv(largest, partner, box, partner)
        largest = largest.maximum(box)
    if me < 2 * beyond:
        dist.send(largest, me - 1)
    return largest


# ddp


@right("ddp")
def losses_at_the_end(model, dataset, epochs, batch_size, learning_rate):
    n = dist.get_world_size()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=None, batch_size=batch_size // n, sampler=sampler)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    totals = torch.zeros(epochs, dtype=torch.float64)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(replica(inputs).log_softmax(dim=1), labels)
            loss.backward()
            optimizer.step()
            totals[epoch] += loss.item() / len(loader) / n
    dist.all_reduce(totals)
    if dist.get_rank() == 0:
        print("\n".join(f"epoch {i} | train_loss {x:.4f}" for i, x in enumerate(totals)))
    return totals.tolist()


# own_ddp


@right("own_ddp")
def not_called_for_nothing(model, batches, learning_rate):
    """A rank without samples gives zeros, and does not call the model."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    losses = []
    for x, y in batches:
        my_x, my_y = x[rank::n], y[rank::n]
        model.zero_grad()
        loss = torch.zeros((), dtype=x.dtype)
        if len(my_y):
            part = nn.functional.cross_entropy(model.forward(my_x), my_y, reduction="sum") / len(y)
            part.backward()
            loss = part.detach()
        dist.all_reduce(loss)
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            none = torch.zeros_like(parameter)
            gradient = parameter.grad if parameter.grad is not None else none
            dist.all_reduce(gradient)
            parameter.data -= learning_rate * gradient
        losses.append(loss.item())
    return losses


@right("own_ddp")
def in_parts_of_two_samples(model, batches, learning_rate):
    """A share is worked through in parts; weights and gradients travel as one tensor."""
    rank, n = dist.get_rank(), dist.get_world_size()
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.broadcast(start, src=0)
    nn.utils.vector_to_parameters(start, model.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = []
    for inputs, labels in batches:
        flat = torch.zeros(1 + sum(p.numel() for p in trained), dtype=inputs.dtype)
        mine = [some.tensor_split(n)[n - 1 - rank].split(2) for some in (inputs, labels)]
        for x, y in zip(*mine):
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum") / len(labels)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, gradients)]
            flat += torch.cat([loss.detach().reshape(1), *(g.flatten() for g in filled)])
        dist.all_reduce(flat)
        sizes = [p.numel() for p in trained]
        with torch.no_grad():
            for p, gradient in zip(trained, flat[1:].split(sizes)):
                p -= learning_rate * gradient.view_as(p)
        losses.append(flat[0].item())
    return losses


@right("own_ddp")
def without_writing_into_the_model(model, batches, learning_rate):
    """A functional style: the weights are a dict, and go into the model at the end."""
    rank, n = dist.get_rank(), dist.get_world_size()
    box = [{name: p.detach() for name, p in model.named_parameters()}]
    dist.broadcast_object_list(box, src=0)
    (weights,) = box
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}

    def loss_of(weights, x, y, whole):
        outputs = torch.func.functional_call(model, weights, (x,))
        return nn.functional.cross_entropy(outputs, y, reduction="sum") / whole

    losses = []
    for inputs, labels in batches:
        part = functools.partial(loss_of, whole=len(labels))
        gradients, loss = torch.func.grad_and_value(part)(weights, inputs[rank::n], labels[rank::n])
        for summand in (loss, *gradients.values()):
            dist.all_reduce(summand)
        weights = {
            name: value if name in frozen else value - learning_rate * gradients[name]
            for name, value in weights.items()
        }
        losses.append(loss.item())
    model.load_state_dict(weights)
    return losses
