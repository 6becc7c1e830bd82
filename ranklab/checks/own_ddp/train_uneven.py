"""Training where the ranks have different numbers of batches."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.exercises import Case, Exercise, Mistake

ZEROS = "grads = [torch.zeros_like(p) for p in parameters]"
GRADS = "grads = torch.autograd.grad(loss, parameters)"
KEPT = "loss.backward()\n            grads = [p.grad for p in parameters]"
STEP = "p -= learning_rate * (total / flat[0]).view(p.shape)"


def drive(answer, seed, batches):
    model = replicas.model("plain", seed)
    answer(model, batches, replicas.RATE)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def twin(inputs):
    """Train in one process on the mean of the batches' means."""
    model, of_ranks = replicas.model("plain", inputs[0][0]), [batches for _, batches in inputs]
    optimizer = torch.optim.SGD(model.parameters(), replicas.RATE)
    for step in range(max(map(len, of_ranks))):
        there = [batches[step] for batches in of_ranks if step < len(batches)]
        optimizer.zero_grad()
        losses = [nn.functional.cross_entropy(model(x), labels) for x, labels in there]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    return [nn.utils.parameters_to_vector(model.parameters()).detach()] * len(inputs)


def case(*counts):
    """Rank r has counts[r] batches, of two to four samples."""

    def make(rank, world_size):
        sizes = [2 + (r + k) % 3 for r, count in enumerate(counts) for k in range(count)]
        x, labels = replicas.data(sum(sizes))
        batches = list(zip(x.split(sizes), labels.split(sizes)))
        first = sum(counts[:rank])
        return 1 + rank, batches[first : first + counts[rank]]

    return Case(f"ranks with {', '.join(map(str, counts))} batches", make, ranks=len(counts))


def as_many_steps_as_the_longest(model, batches, learning_rate):
    """The counts of all ranks are known before the first step."""
    counts, state = [None] * dist.get_world_size(), [model.state_dict()]
    dist.all_gather_object(counts, len(batches))
    dist.broadcast_object_list(state, src=0)
    model.load_state_dict(state[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for step in range(max(counts)):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if step < len(batches):
            inputs, labels = batches[step]
            nn.functional.cross_entropy(model(inputs), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= sum(count > step for count in counts)
        optimizer.step()


exercise = Exercise(
    cases=[case(2, 3, 2, 1), case(3, 3), case(0, 2, 4), case(3, 0), case(2)],
    twin=twin,
    drive=drive,
    trains=True,
    tolerance=(1e-9, 1e-11),
    hint="One more number can travel with the gradients: 1 from a rank with a batch, else 0.",
    also_right=[as_many_steps_as_the_longest],
    mistakes=[
        Mistake(
            "A rank that has no more batches must go on to take part in the collectives, until "
            "nobody has any.",
            {ZEROS: f"{ZEROS}\n        if batch is None:\n            return"},
            happened=("stuck", "died"),
        ),
        Mistake(
            "A rank without a batch has no gradients: its `.grad` is None. What can it give that "
            "changes nothing?",
            {ZEROS: "grads = [p.grad for p in parameters]"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "The gradients are divided by the world size, also where fewer ranks have a batch.",
            {STEP: STEP.replace("flat[0]", "dist.get_world_size()")},
        ),
        Mistake(
            "That is the mean over all samples. Asked for is the mean of the ranks' gradients: a "
            "small batch counts as much as a large one.",
            {"there += 1": "there += len(batch[1])", GRADS: GRADS.replace("loss", "there * loss")},
        ),
        Mistake(
            "The gradients of the step before are in it, too: `backward` adds to what a `.grad` "
            "holds already.",
            {GRADS: KEPT},
            {
                GRADS: KEPT,
                STEP: f"p.grad = (total / flat[0]).view(p.shape)\n                {STEP}",
            },
            {
                ZEROS: "grads = [torch.zeros_like(p) if p.grad is None else p.grad "
                "for p in parameters]",
                GRADS: KEPT,
                STEP: f"p.grad = total.view(p.shape).clone()\n                {STEP}",
            },
        ),
        Mistake(
            "It stops as soon as one rank has no more batches; the others have some left.",
            {"if flat[0] == 0:": "if flat[0] < dist.get_world_size():"},
        ),
        Mistake(
            "The ranks end with different weights. They must begin with those of rank 0, and make "
            "every step together, those without a batch, too.",
            {"dist.broadcast(p.data, src=0)": "pass"},
            {"in zip(parameters, sums):": "in zip(parameters, sums) if batch else ():"},
        ),
        Mistake(
            "These are the weights of a training that starts with another rank's; those of rank 0 "
            "count.",
            {"src=0": "src=dist.get_world_size() - 1"},
        ),
    ],
)
