"""A whole step of synchronous SGD with momentum."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.checks._mistakes import returns_nothing
from ranklab.exercises import Case, Exercise, Mistake

RATE, MOMENTUM = 0.2, 0.9
SUM_BY_N = ', reduction="sum") / n'
SUMMED = "            dist.all_reduce(parameter.grad)\n"
AS_FLOAT32 = """            short = parameter.grad.float()
            dist.all_reduce(short)
            parameter.grad.copy_(short)
"""


def case(what, *sizes):
    """Some steps; sizes: for each of them, how many samples every rank has."""

    def make(rank, world_size):
        of_all = [many for step in sizes for many in step]
        shards = [*zip(*(tensor.split(of_all) for tensor in replicas.data(sum(of_all))))]
        return 3, shards[rank::world_size]

    return Case(what, make, ranks=len(sizes[0]))


def drive(answer, seed, batches):
    """Make the steps on this rank; return losses, weights, velocities, and if they stayed put."""
    model = replicas.model("plain", seed)
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]
    before = [tensor.data_ptr() for tensor in [*model.parameters(), *velocity]]
    losses = [answer(model, velocity, x, y, RATE, MOMENTUM) for x, y in batches]
    after = [tensor.data_ptr() for tensor in [*model.parameters(), *velocity]]
    weights = replicas.weights(model)
    return {"losses": losses, "weights": weights, "velocity": velocity, "in place": before == after}


def alone(model, velocity, inputs, labels, rate, momentum):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, v, gradient in zip(model.parameters(), velocity, gradients):
            v.mul_(momentum).add_(gradient)
            parameter -= rate * v
    return loss.item()


def twin(inputs):
    """The same steps in one process, on whole batches."""
    steps = zip(*(batches for _, batches in inputs))
    whole = [[torch.cat(tensors) for tensors in zip(*shards)] for shards in steps]
    return [drive(alone, inputs[0][0], whole)] * len(inputs)


def some_rank_has_none(seen):
    return any(len(labels) == 0 for _, batches in seen.inputs for _, labels in batches)


def right_to_few_digits(seen):
    want = replicas.flat([seen.expected[0]["weights"]])
    return torch.allclose(replicas.got_weights(seen)[:1], want, rtol=1e-4, atol=1e-6)


def by_functional_gradients(model, velocity, inputs, labels, rate, momentum):
    weights = list(model.parameters())
    summed = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
    gradients = torch.autograd.grad(summed, weights)
    parts = [summed.detach().reshape(1), summed.detach().new_tensor([len(labels)])]
    flat = torch.cat([*parts, *(g.flatten() for g in gradients)])
    dist.all_reduce(flat)
    flat /= flat[1].item()
    pieces = flat[2:].split([w.numel() for w in weights])
    with torch.no_grad():
        for w, v, piece in zip(weights, velocity, pieces):
            v.copy_(momentum * v + piece.view_as(w))
            w.sub_(rate * v)
    return flat[0].item()


exercise = Exercise(
    cases=[
        case("3 samples each, three steps", *[[3, 3, 3, 3]] * 3),
        case("shards of 5, 1 and 2", *[[5, 1, 2]] * 2),
        case("one rank without samples", [2, 0, 3], [1, 4, 0]),
        case("two ranks, other sizes in each step", [4, 1], [2, 2], [1, 6]),
        case("alone", [4], [3]),
    ],
    twin=twin,
    drive=drive,
    tolerance=(replicas.CLOSE["rtol"], replicas.CLOSE["atol"]),
    hint="Do first what one rank would do with the whole batch. Which sums are over all ranks?",
    mistakes=[
        Mistake(
            "A loss is not a number: what is the mean over no samples? Take a sum instead.",
            {SUM_BY_N: ") * len(labels) / n"},
            test=lambda seen: any(str(loss) == "nan" for loss in seen.results[0]["losses"]),
        ),
        Mistake(
            "A rank without samples must take part in every collective, too. What can it give that "
            "changes nothing?",
            {"    loss = nn": "    if len(labels) == 0:\n        return 0.0\n    loss = nn"},
            happened=("stuck", "died", "error"),
            test=lambda seen: (
                some_rank_has_none(seen) and (seen.happened != "error" or "NoneType" in seen.error)
            ),
        ),
        Mistake(
            "Every rank must make the same collective calls, in the same order.",
            {"        dist.all_reduce(loss)": "        dist.get_rank() or dist.barrier()"},
            happened=("stuck", "died"),
        ),
        returns_nothing({"    dist.all_reduce(n)": "    n = dist.all_reduce(n)"}),
        Mistake(
            "The ranks end with different weights. Is every gradient added up before the step?",
            {SUMMED: ""},
            test=replicas.weights_differ,
        ),
        Mistake(
            "Weights and velocities are to be changed in place: whoever holds the old ones, an "
            "optimizer say, would not see the new.",
            {"parameter -= rate": "parameter.data = parameter - rate"},
            test=lambda seen: not all(got["in place"] for got in seen.results),
        ),
        Mistake(
            "The weights are right. Look at the losses: is it the mean over the samples of all "
            "ranks, on every rank?",
            {"        dist.all_reduce(loss)\n": ""},
            test=lambda seen: not replicas.about_weights(seen.results, seen.expected[0]["weights"]),
        ),
        Mistake(
            "These are steps without momentum. Does velocity keep, in place, what the step before "
            "left there?",
            {"v.mul_(momentum).add_(parameter.grad)": "v = parameter.grad"},
        ),
        Mistake(
            "The gradients of the shards' means are summed, and not averaged.", {SUM_BY_N: ")"}
        ),
        Mistake(
            "That is the plain mean over the ranks: a small shard counts as much as a large one.",
            {SUM_BY_N: ") / dist.get_world_size()"},
        ),
        Mistake(
            "The first step is right, and a later one is not. What is in `.grad` from the step "
            "before?",
            {"    model.zero_grad()\n": ""},
        ),
        Mistake(
            "It is right to a few digits. The weights are float64: what is computed or sent in "
            "float32?",
            {SUMMED: AS_FLOAT32},
            test=right_to_few_digits,
        ),
    ],
    also_right=[by_functional_gradients],
)
