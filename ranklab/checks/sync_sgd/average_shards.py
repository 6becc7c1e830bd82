"""The mean gradient of all samples, of ranks that have different numbers of them."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks._mistakes import returns_nothing
from ranklab.exercises import Case, Exercise, Mistake

MAKES_ZEROS = """        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
"""
WEIGHTED = "parameter.grad *= samples / total.item()"
SUMMED = "        dist.all_reduce(parameter.grad)"


def case(what, *samples, shapes=((2, 3), (4,)), dtype=torch.float64):
    """Rank r has samples[r] samples."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        gradients = [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
        return gradients, samples[rank]

    return Case(what, make, ranks=len(samples))


def of_the_text(rank, world_size):
    return [torch.tensor([(2.0, 5.0)[rank]])], (3, 1)[rank]


def drive(answer, gradients, samples):
    """Give a model with these gradients, or with none, to the answer; return what they are then."""
    model = nn.ParameterList(torch.ones_like(gradient) for gradient in gradients)
    for parameter, gradient in zip(model, gradients):
        parameter.grad = gradient.clone() if samples else None
    answer(model, samples)
    return [parameter.grad for parameter in model]


def twin(inputs):
    total = sum(samples for _, samples in inputs)
    places = zip(*(gradients for gradients, _ in inputs))
    mean = [sum(g * m / total for g, (_, m) in zip(place, inputs)) for place in places]
    return [mean] * len(inputs)


def in_one_flat_message(model, samples):
    parameters = list(model.parameters())
    parts = [parameters[0].detach().new_full((1,), samples)]
    for p in parameters:
        parts.append(samples * p.grad.flatten() if samples else torch.zeros_like(p).flatten())
    flat = torch.cat(parts)
    dist.all_reduce(flat)
    pieces = (flat[1:] / flat[0]).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces):
        p.grad = piece.view_as(p).clone()


exercise = Exercise(
    cases=[
        Case("gradients 2 and 5, of 3 samples and 1", of_the_text, ranks=2),
        case("shards of 4, 0 and 2", 4, 0, 2),
        case("equal shards", 2, 2, 2, 2),
        case("shards of 5, 1, 3 and 7", 5, 1, 3, 7),
        case("float32", 1, 6, shapes=[(5,)], dtype=torch.float32),
        case("rank 0 has none", 0, 3),
        case("alone", 3),
    ],
    twin=twin,
    drive=drive,
    hint="Each gradient is a mean over m samples. What is its share of the mean over all?",
    mistakes=[
        Mistake(
            "A rank without samples has no gradients, and must take part in every all-reduce all "
            "the same. What can it give that changes nothing?",
            {MAKES_ZEROS: ""},
            {"    for parameter in": "    if not samples:\n        return\n    for parameter in"},
            happened=("stuck", "died", "error"),
            test=lambda seen: (
                any(not samples for _, samples in seen.inputs)
                and (seen.happened != "error" or "NoneType" in seen.error)
            ),
        ),
        returns_nothing({"    dist.all_reduce(total)": "    total = dist.all_reduce(total)"}),
        Mistake(
            "A rank without samples is to get everybody's gradient, too.",
            {SUMMED: f"{SUMMED}\n        parameter.grad = parameter.grad if samples else None"},
            test=lambda seen: None in [one[0] for one in seen.results],
        ),
        Mistake(
            "That is the plain mean, in which a rank with few samples counts as much as one with "
            "many.",
            {WEIGHTED: "parameter.grad /= dist.get_world_size()"},
        ),
        Mistake(
            "That is the sum of the gradients. Whose mean is asked for?", {WEIGHTED: "total *= 1"}
        ),
        Mistake(
            "The gradients are weighted by the samples, and never divided by the number of all.",
            {" / total.item()": ""},
        ),
        Mistake(
            "Divided once too often: the shares m / n add up to 1 already.",
            {"total.item()": "total.item() / dist.get_world_size()"},
        ),
    ],
    also_right=[
        in_one_flat_message,
        {
            WEIGHTED: "parameter.grad *= samples",
            SUMMED: f"{SUMMED}\n        parameter.grad /= total",
        },
    ],
)
