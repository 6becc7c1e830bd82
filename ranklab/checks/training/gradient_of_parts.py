"""The gradient of a batch that does not fit in the memory, part by part."""

import gc
import weakref

import torch
from torch.nn import functional as F

from ranklab.checks.training._models import case, model_of, samples
from ranklab.exercises import Exercise, Mistake

# In the solution
MEAN = ', reduction="sum") / len(y)'
ADD = """        gradients = torch.autograd.grad(loss, parameters)
        for so_far, gradient in zip(total, gradients):
            so_far += gradient
"""


def parts(what, sizes):
    X, y = samples(sum(sizes))
    return case(what, lambda: model_of([5, 4, 3]), X, y, sizes)


def drive(answer, model, x, y, sizes):
    """The gradients, and whether there was one part in the memory at a time."""
    largest, kept, hidden = [0], [0], []

    def before(_, inputs):
        largest.append(len(inputs[0]))
        if sum(there() is not None for there in hidden) > 1:
            gc.collect()
        kept.append(sum(there() is not None for there in hidden))

    model.register_forward_pre_hook(before)
    # A graph keeps what tanh returned. That of the last part may end with the next one's loss.
    model[1].register_forward_hook(lambda _, inputs, out: hidden.append(weakref.ref(out)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # of the step before
    gradients = answer(model, x, y, sizes)
    return {
        "gradients": gradients,
        "no part too large": max(largest) <= max(sizes),
        "graphs let go": max(kept) <= 1,
    }


def twin(inputs):
    model, x, y, _ = inputs[0]
    gradients = list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))
    return [{"gradients": gradients, "no part too large": True, "graphs let go": True}]


def functions_of_the_weights(model, x, y, sizes):
    def loss(weights, x, y):
        outputs = torch.func.functional_call(model, weights, (x,))
        return F.cross_entropy(outputs, y, reduction="sum")

    weights = {name: value.detach() for name, value in model.named_parameters()}
    parts = [torch.func.grad(loss)(weights, *part) for part in zip(x.split(sizes), y.split(sizes))]
    return [sum(part[name] for part in parts) / len(y) for name in weights]


exercise = Exercise(
    cases=[
        parts("6 samples, 3 and 3", [3, 3]),
        parts("6 samples, 5 and 1", [5, 1]),
        parts("7 samples in one part", [7]),
        parts("9 samples, 4, 0 and 5", [4, 0, 5]),
        parts("12 samples, one each", [1] * 12),
        parts("11 samples, 2, 3, 1 and 5", [2, 3, 1, 5]),
    ],
    twin=twin,
    drive=drive,
    tolerance=(1e-9, 1e-12),
    trains=True,  # torch.func imports what an optimizer does
    limit=3.0,
    hint="Write the mean over all samples as a sum over parts. With what factor does the mean over "
    "one part stand in it?",
    also_right=[
        functions_of_the_weights,
        {
            "    total =": "    model.zero_grad()\n    total =",
            ADD: "        loss.backward(retain_graph=True)\n",
            "return total": "return tuple(parameter.grad for parameter in parameters)",
        },
    ],
    mistakes=[
        Mistake(
            "The model was called with more than one part: that is what the memory does not allow.",
            {"x.split(sizes), y.split(sizes)": "[x], [y]"},
            test=lambda seen: not seen.results[0]["no part too large"],
        ),
        Mistake(
            "One gradient of the sum of all losses needs the graphs of all parts at once, and they "
            "hold what the whole batch does. Take each part's gradients before the next part's "
            "forward pass, and add up those.",
            {
                "    for inputs": "    loss = 0\n    for inputs",
                "        loss =": "        loss = loss +",
                ADD: "",
                "return total": "return list(torch.autograd.grad(loss, parameters))",
            },
            test=lambda seen: not seen.results[0]["graphs let go"],
        ),
        Mistake(
            "The gradients have the dtype of the parameters: torch.zeros_like(parameter) has it.",
            {"zeros_like(parameter)": "zeros(parameter.shape)"},
            test=lambda seen: seen.found == "dtype",
        ),
        Mistake(
            "Return a list, with a tensor of its shape for each of model.parameters().",
            {"return total": "return torch.cat([one.flatten() for one in total])"},
            test=lambda seen: seen.found in ("type", "shape"),
        ),
        Mistake(
            "Nothing was added to the zeros. `so_far += gradient` changes the tensor that is in "
            "the list; `so_far = so_far + gradient` makes another one.",
            {"so_far +=": "so_far = so_far +"},
        ),
        Mistake(
            "That is of the last part alone: add up, and do not replace.",
            {"so_far += gradient": "so_far.copy_(gradient)"},
            {"so_far += gradient": "so_far.copy_(gradient)", MEAN: ")"},
        ),
        Mistake(
            "Every entry is too large by 1, which .grad held before: backward() adds to it.",
            {
                ADD: "        loss.backward()\n",
                "return total": "return [parameter.grad for parameter in parameters]",
            },
        ),
        Mistake(
            "That is too large by the number of parts: it is their sum, not their mean.",
            {MEAN: ")"},
        ),
        Mistake(
            "A part of 5 samples must count 5 times as much as a part of 1.",
            {MEAN: ") / len(sizes)"},
        ),
        Mistake(
            "Each part is worked through once: zip(x.split(sizes), y.split(sizes)) gives them.",
            {"    return": "    while total:\n        pass\n    return"},
            happened="slow",
        ),
    ],
)
