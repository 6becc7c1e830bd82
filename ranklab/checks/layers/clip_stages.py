"""The norm of a gradient in stages, with a weight that two ranks own."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.exercises import Case, Exercise, Mistake

TIED = [1.0, 2.0, 2.0]  # the gradient of a shared weight


def drive(answer, gradients, shared, max_norm):
    """Give the answer parameters with these gradients; the norm, and what became of them."""
    parameters = []
    for gradient in gradients:
        parameters.append(nn.Parameter(torch.ones(2) if gradient is None else 0 * gradient))
        parameters[-1].grad = None if gradient is None else gradient.clone()
    norm = answer(parameters, None if shared is None else parameters[shared], max_norm)
    dist.barrier()
    return {"norm": norm, "gradients": [p.grad for p in parameters]}


def twin(inputs):
    counted = [
        gradient
        for rank, (gradients, shared, _) in enumerate(inputs)
        for i, gradient in enumerate(gradients)
        if gradient is not None and (rank == 0 or i != shared)
    ]
    norm = nn.utils.get_total_norm([gradient.double() for gradient in counted]).item()
    factor = min(1.0, inputs[0][2] / norm)
    return [
        {"norm": norm, "gradients": [None if g is None else factor * g for g in gradients]}
        for gradients, _, _ in inputs
    ]


def case(what, max_norm, *of_ranks, shared=False, dtype=torch.float64):
    """Rank r has of_ranks[r]: gradients, as lists of numbers or None. shared: first and last."""

    def make(rank, world_size):
        mine = [None if one is None else torch.tensor(one, dtype=dtype) for one in of_ranks[rank]]
        at = {0: 0, world_size - 1: len(mine) - 1}.get(rank) if shared else None
        return mine, at, max_norm

    return Case(what, make, ranks=len(of_ranks))


def half_from_each_owner(parameters, shared, max_norm):
    """Both owners count half of the shared gradient's square; PyTorch scales."""
    squares = torch.zeros(1, dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            squares += (0.5 if p is shared else 1) * p.grad.double().pow(2).sum()
    dist.all_reduce(squares)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, squares.sqrt()[0])
    return float(squares.sqrt())


NORM = "dist.all_reduce(total)\n    norm = total.sqrt().item()"

exercise = Exercise(
    cases=[
        case("gradients 3 and 4, max_norm 1", 1.0, [[3.0]], [[4.0]]),
        case("a norm below max_norm", 10.0, [[3.0]], [[4.0]]),
        case("a shared weight", 2.0, [TIED, [1.0]], [[4.0]], [[3.0], TIED], shared=True),
        case("parameters without a gradient", 1.0, [None, [1.0, 2.0]], [[2.0], None]),
        case("a rank without any", 1.0, [[1.0, 1.0]], [None], [], [[1.0], [1.0]]),
        case("two ranks and a shared weight", 1.0, [TIED], [[6.0], TIED], shared=True),
        case("equal gradients, nothing shared", 1.0, [TIED], [TIED]),
        case("float32", 0.5, [[0.1, 0.7]], [[0.3]], [[0.4, 0.2]], dtype=torch.float32),
        case("alone", 1.0, [[3.0], [4.0]]),
    ],
    twin=twin,
    drive=drive,
    tolerance=(1e-5, 1e-7),  # torch's own adds 1e-6 to the norm that it divides by
    hint="Each rank has some of the squares. Their sum over all ranks is the square of the norm.",
    also_right=[half_from_each_owner],
    mistakes=[
        Mistake(
            "A parameter without a gradient has None in `.grad`. (And `dist.all_reduce` returns "
            "nothing: it writes into the tensor that it is given.)",
            {"if p.grad is not None and not twice:": "if not twice:"},
            {NORM: f"total = {NORM}"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "Every rank must take part in the all-reduce, also one whose stage has no gradients, "
            "with a tensor of the same shape and type.",
            {"    total =": "    if not gradients:\n        return 0.0\n    total ="},
            happened=("stuck", "died"),
        ),
        Mistake(
            "That is the norm of this rank's own gradients.", {"    dist.all_reduce(total)\n": ""}
        ),
        Mistake(
            "These are the ranks' norms, added up. What can be added up are their squares.",
            {NORM: "total.sqrt_()\n    dist.all_reduce(total)\n    norm = total.item()"},
        ),
        Mistake("That is the square of the norm.", {"total.sqrt().item()": "total.item()"}),
        Mistake(
            "The shared weight is one parameter with two owners: it is counted twice.",
            {"p is shared and dist.get_rank() > 0": "False"},
        ),
        Mistake(
            "The shared weight is counted by neither of its owners.",
            {" and dist.get_rank() > 0": ""},
        ),
        Mistake(
            "The norm is right, and the two copies of the shared gradient are not equal any more: "
            "counted once, but scaled on both ranks.",
            {"is not None]": "is not None and not (p is shared and dist.get_rank())]"},
            {"is not None]": "is not None and p is not shared]"},
        ),
        Mistake(
            "The norm is smaller than `max_norm`: nothing is to be changed then.",
            {"if norm > max_norm:": "if norm > 0:"},
        ),
        Mistake(
            "The norm is right, and the gradients are as they were: they are to be scaled in "
            "place.",
            {"gradient *= max_norm": "gradient = gradient * max_norm"},
        ),
    ],
)
