"""An MLP with a gate, its hidden features dealt out."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks.tensor import _pieces as pieces
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.tensor import copied, summed

NAMES = ("x", "gate", "up", "down", "bias")


def came_of(y, leaves):
    """y, and the gradient of each leaf, which is there once y has gone back."""
    return {"y": y} | {f"gradient of {name}": one for name, one in zip(NAMES, leaves)}


def drive(answer, *args):
    leaves = [pieces.leaf(one) for one in args]
    y = answer(*leaves)
    if not torch.is_tensor(y):
        return y
    pieces.run_back(y, pieces.drawn(9, *args[0].shape))
    return came_of(y, [one.grad for one in leaves])


def twin(inputs):
    """The same of the whole weights, in one process."""
    (x, *_, bias), (_, gates, ups, downs, _) = inputs[0], zip(*inputs)
    leaves = [
        pieces.leaf(one) for one in (x, torch.cat(gates), torch.cat(ups), torch.cat(downs, 1), bias)
    ]
    x, gate, up, down, bias = leaves
    y = (nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T + bias
    pieces.run_back(y, pieces.drawn(9, *x.shape))
    sizes = [len(one) for one in gates]
    of_ranks = zip(gate.grad.split(sizes), up.grad.split(sizes), down.grad.split(sizes, 1))
    return [came_of(y.detach(), [x.grad, *parts, bias.grad]) for parts in of_ranks]


def case(what, *sizes, shape=(2, 3)):
    """Rank r has sizes[r] hidden features."""

    def make(rank, world_size):
        mine, width = sizes[rank], shape[-1]
        gate, up = pieces.drawn(10 + rank, mine, width), pieces.drawn(20 + rank, mine, width)
        down = pieces.drawn(30 + rank, width, mine)
        return pieces.drawn(1, *shape), gate, up, down, pieces.drawn(2, width)

    return Case(what, make, ranks=len(sizes))


def rank_0_adds_the_bias(x, gate, up, down, bias):
    """As a number; its gradient comes from what is nothing, and stands behind the sum."""
    x = copied(x)
    y = nn.functional.linear(nn.functional.silu(x @ gate.mT) * (x @ up.mT), down)
    share = bias.detach() if dist.get_rank() == 0 else 0
    return summed(y + share) + (bias - bias.detach())


def one_matrix_for_both(x, gate, up, down, bias):
    opens, passes = (copied(x) @ torch.cat([gate, up]).T).chunk(2, -1)
    return torch.add(summed((opens * opens.sigmoid() * passes) @ down.T), bias)


def only_rank_0_sums(x, gate, up, down, bias):
    y = (nn.functional.silu(copied(x) @ gate.T) * (x @ up.T)) @ down.T
    return (y if dist.get_rank() else summed(y)) + bias


F = "    x = copied(x)\n"
Y = "summed(hidden @ down.T)"

exercise = Exercise(
    cases=[
        case("2 hidden features on each rank", 2, 2, 2, 2),
        case("1, 4 and 2 hidden features", 1, 4, 2, shape=(2, 4, 3)),
        case("a rank without hidden features", 3, 0, shape=(5,)),
        case("rank 0 without hidden features", 0, 2, 0, 1, shape=(1, 4)),
        case("alone", 5),
    ],
    twin=twin,
    drive=drive,
    judge=lambda seen: pieces.too_many(seen, 2),
    trace=True,
    tolerance=pieces.CLOSE,
    hint="The MLP of the chapter has one matrix before its function; here are two, and both take "
    "the same x.",
    also_right=[rank_0_adds_the_bias, one_matrix_for_both],
    mistakes=[
        Mistake(
            "`copied` and `summed` return what goes on; `dist.all_reduce` returns nothing.",
            lambda x, gate, up, down, bias: dist.all_reduce(x @ gate.T @ down.T) + bias,
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "As in nn.Linear, a weight is (outputs, inputs): nn.functional.linear(x, weight), or "
            "x @ weight.T.",
            {"gate.T": "gate", "up.T": "up", "down.T": "down"},
            happened="error",
            test=lambda seen: "cannot be multiplied" in seen.error or "must match" in seen.error,
        ),
        Mistake(
            "Each rank has another number of hidden features, and some have none. Only what has "
            "the same shape on all ranks can be summed, and every rank takes part.",
            {F: f"    if len(gate) == 0:\n        return bias.expand_as(x)\n{F}"},
            happened=("stuck", "died", "error"),
            test=lambda seen: len({args[1].shape for args in seen.inputs}) > 1,
        ),
        Mistake(
            "Every rank must take part in every sum, in the same order.",
            only_rank_0_sums,
            happened=("stuck", "died"),
        ),
        Mistake(
            "That is what the rank's own hidden features give. Who sums over the ranks?",
            {Y: "hidden @ down.T"},
            {Y: "hidden @ down.T", F: ""},
        ),
        Mistake(
            "The bias is in it as many times as there are ranks. When is it to be added?",
            {f"{Y} + bias": "summed(hidden @ down.T + bias)"},
        ),
        Mistake("The bias is not in it.", {f"{Y} + bias": Y}),
        Mistake(
            "The other one goes through silu: silu(gate x) * (up x).",
            {"x @ gate.T": "x @ up.T", "x @ up.T": "x @ gate.T"},
        ),
        Mistake(
            "The gate's function is silu, z * sigmoid(z).",
            {"functional.silu": "functional.gelu"},
            {"functional.silu": "functional.sigmoid"},
        ),
        Mistake(
            "y is right, but nothing leads back from it: autograd does not know of "
            "`dist.all_reduce`. g does.",
            {Y: "summed((hidden @ down.T).detach())"},
        ),
        Mistake(
            "The bias' gradient is as many times too large as there are ranks. It is added, on "
            "every rank, to what is the same on all: it needs no f.",
            {f"{Y} + bias": f"{Y} + copied(bias)"},
        ),
        Mistake(
            "The gradient of the weights is as many times too large as there are ranks: g hands "
            "the gradient on as it is.",
            {Y: f"copied({Y})"},
        ),
        Mistake(
            "x's gradient is that of the rank's own hidden features. x goes into those of all "
            "ranks: through what?",
            {F: ""},
        ),
        Mistake(
            "x's gradient is summed twice. Once through f is enough, for gate and up together.",
            {F: "    x = copied(copied(x))\n"},
        ),
        Mistake(
            "Only x's gradient is wrong. Both ways from x, through the gate and through up, lead "
            "to hidden features of all ranks: is f before both?",
            {F: "", "x @ gate.T": "copied(x) @ gate.T"},
            {F: "", "x @ up.T": "copied(x) @ up.T"},
        ),
        Mistake(
            "y is right. A rank's weights get their gradient on this rank, whole: what sums it?",
            {"x @ gate.T": "x @ copied(gate).T", "x @ up.T": "x @ copied(up).T"},
        ),
        Mistake(
            "x goes through f once, and what comes out goes both ways: autograd adds up the two "
            "gradients on the rank. The hidden features need not leave it.",
            {F: "", "x @ gate.T": "copied(x) @ gate.T", "x @ up.T": "copied(x) @ up.T"},
            test=lambda seen: seen.found == "judge",
        ),
    ],
)
