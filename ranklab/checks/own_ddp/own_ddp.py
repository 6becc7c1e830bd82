"""Data parallel training by hand: the weights of one process that is given the whole batches."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.exercises import Case, Exercise, Mistake

SHARE = "mine = slice(rank, None, world_size)"
RECORDED = "        with torch.no_grad():\n            dist.all_reduce(loss)"
PART = (
    ', reduction="sum")\n'
    "        loss = loss / len(labels)  # its part of the mean over the whole batch"
)
STEP = "parameter -= learning_rate * parameter.grad"
THERE = "if parameter.grad is not None:"


@dataclass(frozen=True)
class Steps:
    """The numbers of the samples of each step. No two of them are compared: shares are free."""

    samples: list


def drive(answer, kind, seed, batches):
    watched = replicas.watch(answer, replicas.model(kind, seed), batches, replicas.RATE)
    losses = watched["losses"]
    return {
        "weights": watched["weights"],
        "losses": losses,
        "losses without tensors": not any(map(torch.is_tensor, losses or [])),
        "steps": Steps(watched["steps"]),
    }


def twin(inputs):
    kind, seed, batches = inputs[0]
    model = replicas.model(kind, seed)
    losses = replicas.train(model, batches)
    right = {"weights": replicas.weights(model), "losses": losses, "losses without tensors": True}
    return [{**right, "steps": Steps([])}] * len(inputs)


def dealt(seen):
    """Return (its samples, those that each rank computed on) of every batch.

    A rank need not call the model once for each batch: with nothing to compute it may not call it,
    and it may work through its share in parts. But a sample is in one batch only.
    """
    computed = [replicas.chained(result["steps"].samples) for result in seen.results]
    batches = [sorted(replicas.numbers(inputs)) for inputs, _ in seen.inputs[0][2]]
    return [(whole, [[k for k in some if k in whole] for some in computed]) for whole in batches]


def about_shares(seen):
    """Say where the ranks' shares are not even, or do not make up the batch; else None."""
    for i, (whole, shares) in enumerate(dealt(seen)):
        sizes = list(map(len, shares))
        if sorted(replicas.chained(shares)) != whole or max(sizes) > min(sizes) + 1:
            of_ranks = [f"    rank {r}: {replicas.listed(some)}" for r, some in enumerate(shares)]
            head = f"The batch of step {i + 1} has the samples {replicas.listed(whole)}."
            return "\n".join([head, *of_ranks])


def judge(seen):
    return about_shares(seen) or replicas.about_last_bits(seen.results)


def whole_batch_everywhere(seen):
    whole, shares = dealt(seen)[0]
    return len(shares) > 1 and all(sorted(share) == whole for share in shares)


def rank_without_samples(seen):
    return any(len(labels) < len(seen.inputs) for _, labels in seen.inputs[0][2])


def case(*sizes, ranks, kind="plain"):
    def make(rank, world_size):
        inputs, labels = replicas.data(sum(sizes))
        return kind, 1 + rank, list(zip(inputs.split(sizes), labels.split(sizes)))

    what = f"batches of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} samples"
    return Case(what + ", some parameters without gradient" * (kind != "plain"), make, ranks=ranks)


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
        with torch.no_grad():
            for p, gradient in zip(trained, flat[1:].split([p.numel() for p in trained])):
                p -= learning_rate * gradient.view_as(p)
        losses.append(flat[0].item())
    return losses


ROUNDED = "many = len(labels) // world_size\n        mine = slice(rank * many, (rank + 1) * many)"
IN_ITS_OWN_ORDER = """of_all = [torch.empty_like(parameter.grad) for _ in range(world_size)]
                    dist.all_gather(of_all, parameter.grad)
                    parameter.grad.zero_()
                    for k in range(world_size):
                        parameter.grad += of_all[(rank + k) % world_size]"""
OF_A_COPY = """total = parameter.grad.clone()
                    dist.all_reduce(total)
                    parameter -= learning_rate * total"""

exercise = Exercise(
    cases=[
        case(12, 12, 12, ranks=4),
        case(8, 3, 8, ranks=4),
        case(10, 7, ranks=4),
        case(9, 6, 9, ranks=3),
        case(8, 8, ranks=2),
        case(8, 8, ranks=2, kind="with idle parts"),
        case(5, 1, 4, ranks=3),
        case(5, 4, ranks=1),
    ],
    twin=twin,
    drive=drive,
    judge=judge,
    tolerance=(1e-9, 1e-11),
    hint="Write down the gradient of the mean over the whole batch as a sum over the ranks.",
    also_right=[in_parts_of_two_samples],
    mistakes=[
        Mistake(
            "A rank without samples must still take part in every collective.",
            {SHARE: f"if rank >= len(labels):\n            continue\n        {SHARE}"},
            {"loss.backward()": "len(labels[mine]) and loss.backward()"},
            happened=("stuck", "died"),
            test=rank_without_samples,
        ),
        Mistake(
            "Every rank must make the same collective calls, in the same order.",
            {"dist.all_reduce(loss)": "rank == 0 and dist.all_reduce(loss)"},
            happened=("stuck", "died"),
        ),
        Mistake(
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing.",
            {"dist.all_reduce(loss)": "loss = dist.all_reduce(loss)"},
            happened="error",
            test=lambda seen: "'NoneType' object has no attribute 'item'" in seen.error,
        ),
        Mistake(
            "A rank without samples has no gradients, and the others wait for its zeros.",
            {
                "loss.backward()": "len(labels[mine]) and loss.backward()",
                THERE: "if True:\n                    parameter.grad *= 1",
            },
            happened="error",
            test=lambda seen: (
                "NoneType" in seen.error
                and seen.inputs[0][0] == "plain"
                and rank_without_samples(seen)
            ),
        ),
        Mistake(
            "Before the first `backward`, every `.grad` is None.",
            {"model.zero_grad()": "[p.grad.zero_() for p in model.parameters()]"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error and seen.inputs[0][0] == "plain",
        ),
        Mistake(
            "Some parameters have no gradient: their `.grad` is None.",
            {THERE: "if True:"},
            happened="error",
            test=lambda seen: "None" in seen.error,
        ),
        Mistake(
            "A batch smaller than world size: does every rank get a share, if an empty one?",
            {SHARE: "mine = torch.arange(len(labels)).chunk(world_size)[rank]"},
            happened="error",
            test=lambda seen: seen.error.startswith("IndexError") and rank_without_samples(seen),
        ),
        Mistake(
            "Weights are written outside of what autograd records: under `torch.no_grad()`.",
            {RECORDED: "        if True:\n            dist.all_reduce(loss.detach())"},
            happened="error",
            test=lambda seen: "leaf" in seen.error,
        ),
        Mistake(
            "Every rank computes on the whole batch. That is no faster than one process.",
            {SHARE: "mine = slice(None)", PART: ") / world_size"},
            test=whole_batch_everywhere,
        ),
        Mistake(
            "Over all ranks, each sample of a batch must be computed on once, and the shares must "
            "be even.",
            {SHARE: ROUNDED},
            {SHARE: f"{ROUNDED[:-1]} if rank + 1 < world_size else None)"},
            test=about_shares,
        ),
        Mistake(
            "Parameters that have no gradient are parts of the model, too: those of rank 0 count.",
            {"dist.broadcast(": "parameter.requires_grad and dist.broadcast("},
        ),
        Mistake(
            "Rank 0 makes its steps, and the other ranks stand still.",
            {STEP: f"{STEP} * (rank == 0)"},
            {STEP: f"{STEP} * (rank == 0)", "dist.broadcast(parameter, src=0)": "pass"},
        ),
        Mistake(
            "The ranks' weights differ by as much as at the start: all make the same steps, each "
            "from its own weights. Who tells them the start?",
            {"dist.broadcast(parameter, src=0)": "pass"},
        ),
        Mistake(
            "The ranks have different weights. What must be equal at each step?",
            {"                    dist.all_reduce(parameter.grad)\n": ""},
            test=lambda seen: (
                seen.inputs[0][0] == "plain"
                and any(
                    not torch.allclose(value, seen.results[0]["weights"][name], rtol=1e-9)
                    for result in seen.results
                    for name, value in result["weights"].items()
                )
            ),
        ),
        Mistake(
            "The steps are world size times too long: the gradients were added up. And then?",
            {PART: ")"},
        ),
        Mistake(
            "These are the weights of a training that starts with another rank's weights; those of "
            "rank 0 count.",
            {"src=0": "src=world_size - 1"},
            {"src=0": "src=min(1, world_size - 1)"},
        ),
        Mistake(
            "In the second step the gradients of the first are in it, too: `backward` adds to what "
            "a `.grad` holds already.",
            {"        model.zero_grad()\n": ""},
            {
                "        model.zero_grad()\n": "",
                f"dist.all_reduce(parameter.grad)\n                    {STEP}": OF_A_COPY,
            },
        ),
        Mistake(
            "All ranks agree, on something else than one process. Where the shares are of "
            "different sizes, is the mean of the ranks' means the mean of the batch?",
            {PART: ") / world_size"},
        ),
        Mistake(
            "The mean over no samples is nan, and so is whatever it is added to.",
            {PART: ") * (len(labels[mine]) / len(labels))"},
        ),
        Mistake(
            "Every rank adds up the same gradients. Does each of them do it in the same order?",
            {"dist.all_reduce(parameter.grad)": IN_ITS_OWN_ORDER},
            test=lambda seen: replicas.about_last_bits(seen.results),
        ),
        Mistake(
            "Rank 0 returns the right losses, and another rank does not. Which collective gives "
            "its result to all?",
            {"dist.all_reduce(loss)": "dist.reduce(loss, dst=0)"},
        ),
        Mistake(
            "The training is right in this case, but each rank returns a loss of its own: the mean "
            "over all ranks needs a collective.",
            {"            dist.all_reduce(loss)\n": ""},
            {"            dist.all_reduce(loss)\n": "            loss *= world_size\n"},
        ),
        Mistake(
            "That is the sum of the ranks' losses. What makes a mean of it?",
            {"loss.item()": "loss.item() * world_size"},
        ),
        Mistake(
            "A loss is to be a float: `.item()` makes one of a tensor.",
            {"loss.item()": "loss"},
            test=lambda seen: not seen.results[0]["losses without tensors"],
        ),
        Mistake(
            "The training is right in this case, and every rank has the same weights. Look at the "
            "losses only.",
            {"    return losses\n": ""},
            test=lambda seen: all(
                torch.allclose(value, right["weights"][name], rtol=1e-9)
                for result, right in zip(seen.results, seen.expected)
                for name, value in result["weights"].items()
            ),
        ),
    ],
)
