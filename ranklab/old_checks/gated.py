"""The exercise of chapter 18 on an MLP with a gate, its hidden features dealt out."""

import torch
from torch import nn

from ranklab.checks._said import breaks_a_rule, called_as
from ranklab.checks.tensor import _pieces as pieces
from ranklab.old_checks._model import Case, Exercise, Hint

_NAMES = ("x", "gate", "up", "down", "bias")


def _gated(x, gate, up, down, bias):
    return (nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T + bias


def _drive_gated(answer, x, gate, up, down, bias):
    leaves = [pieces.leaf(one) for one in (x, gate, up, down, bias)]
    y = answer(*leaves)
    if not torch.is_tensor(y):
        return y
    pieces.run_back(y, pieces.drawn(9, *x.shape))
    grads = {f"gradient of {name}": one.grad for name, one in zip(_NAMES, leaves)}
    return {"y": y} | grads


def _whole(inputs, times=1, formula=_gated):
    """The whole weights, as leaves, and what comes of them; times: how often the bias counts."""
    (x, _, _, _, bias), parts = inputs[0], list(zip(*inputs))
    leaves = [
        pieces.leaf(one)
        for one in (x, torch.cat(parts[1]), torch.cat(parts[2]), torch.cat(parts[3], 1), bias)
    ]
    y = formula(*leaves[:4], times * leaves[4])
    pieces.run_back(y, pieces.drawn(9, *x.shape))
    return y.detach(), leaves


def _expected_gated(inputs, **how):
    y, (x, gate, up, down, bias) = _whole(inputs, **how)
    sizes = [one[1].shape[0] for one in inputs]
    of_ranks = zip(gate.grad.split(sizes), up.grad.split(sizes), down.grad.split(sizes, 1))
    return [
        {"y": y, "gradient of x": x.grad}
        | {f"gradient of {name}": one for name, one in zip(_NAMES[1:4], parts)}
        | {"gradient of bias": bias.grad}
        for parts in of_ranks
    ]


def _as_if(seen, **how):
    """Is y what it would be if ..., and not what it should be?"""
    return pieces.is_instead(seen, "y", [one["y"] for one in _expected_gated(seen.inputs, **how)])


def _y_of(seen, formula):
    return _as_if(seen, formula=formula)


def _other_gate(x, gate, up, down, bias):
    return _gated(x, up, gate, down, bias)


def _gelu(x, gate, up, down, bias):
    return (nn.functional.gelu(x @ gate.T) * (x @ up.T)) @ down.T + bias


def _sigmoid(x, gate, up, down, bias):
    return (torch.sigmoid(x @ gate.T) * (x @ up.T)) @ down.T + bias


def _own_y(seen):
    return [_gated(*args) for args in seen.inputs]


def _x_gradient_of_own(seen):
    """x's gradient where it is not summed."""
    found = []
    for x, gate, up, down, bias in seen.inputs:
        leaf = pieces.leaf(x)
        pieces.run_back(_gated(leaf, gate, up, down, bias), pieces.drawn(9, *x.shape))
        found.append(leaf.grad)
    return found


def _hidden(what, *sizes, shape=(2, 3)):
    """A case in which rank r has sizes[r] hidden features."""

    def make(rank, world_size):
        mine, width = sizes[rank], shape[-1]
        gate, up = pieces.drawn(10 + rank, mine, width), pieces.drawn(20 + rank, mine, width)
        down = pieces.drawn(30 + rank, width, mine)
        return pieces.drawn(1, *shape), gate, up, down, pieces.drawn(2, width)

    return Case(what, make, ranks=len(sizes))


def _two_sums(seen):
    most = pieces.collectives(seen)
    if most <= 2:
        return None
    return (
        f"All numbers are right. But a rank took part in {most} collectives, and two are enough: "
        "one in forward, and one in backward."
    )


gated_mlp = Exercise(
    "gated_mlp",
    cases=[
        _hidden("2 hidden features on each rank", 2, 2, 2, 2),
        _hidden("1, 4 and 2 hidden features", 1, 4, 2, shape=(2, 4, 3)),
        _hidden("a rank without hidden features", 3, 0, shape=(5,)),
        _hidden("rank 0 without hidden features", 0, 2, 0, 1, shape=(1, 4)),
        _hidden("alone", 5),
    ],
    expected=_expected_gated,
    drive=_drive_gated,
    judge=_two_sums,
    trace=True,
    tolerance=pieces.CLOSE,
    hints=[
        called_as("gated_mlp(x, gate, up, down, bias)"),
        Hint(
            lambda seen: "NoneType" in seen.error,
            "`copied` and `summed` return what goes on; `dist.all_reduce` returns nothing.",
            when=("error",),
        ),
        Hint(
            lambda seen: "cannot be multiplied" in seen.error or "must match" in seen.error,
            "As in nn.Linear, a weight is (outputs, inputs): nn.functional.linear(x, weight), or "
            "x @ weight.T.",
            when=("error",),
        ),
        Hint(
            lambda seen: len({args[1].shape for args in seen.inputs}) > 1,
            "Each rank has another number of hidden features, and some have none. Only what has "
            "the same shape on all ranks can be summed, and every rank takes part.",
            when=("stuck", "died", "error"),
        ),
        pieces.said_to_wait("Every rank must take part in every sum, in the same order."),
        Hint(
            lambda seen: pieces.is_instead(seen, "y", _own_y(seen)),
            "That is what the rank's own hidden features give. Who sums over the ranks?",
        ),
        Hint(
            lambda seen: _as_if(seen, times=len(seen.results)),
            "The bias is in it as many times as there are ranks. When is it to be added?",
        ),
        Hint(
            lambda seen: _as_if(seen, times=0),
            "The bias is not in it.",
        ),
        Hint(
            lambda seen: _y_of(seen, _other_gate),
            "The other one goes through silu: silu(gate x) * (up x).",
        ),
        Hint(
            lambda seen: _y_of(seen, _gelu) or _y_of(seen, _sigmoid),
            "The gate's function is silu, z * sigmoid(z).",
        ),
        Hint(
            lambda seen: pieces.is_right(seen, "y") and seen.results[0]["gradient of gate"] is None,
            "y is right, but nothing leads back from it: autograd does not know of "
            "`dist.all_reduce`. g does.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, "gradient of bias", len(seen.results)),
            "The bias' gradient is as many times too large as there are ranks. It is added, on "
            "every rank, to what is the same on all: it needs no f.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, "gradient of down", len(seen.results)),
            "The gradient of the weights is as many times too large as there are ranks: g hands "
            "the gradient on as it is.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, "gradient of x", _x_gradient_of_own(seen)),
            "x's gradient is that of the rank's own hidden features. x goes into those of all "
            "ranks: through what?",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, "gradient of x", len(seen.results)),
            "x's gradient is summed twice. Once through f is enough, for gate and up together.",
        ),
        Hint(
            lambda seen: (
                pieces.is_right(seen, "y")
                and pieces.is_right(seen, "gradient of gate")
                and not pieces.is_right(seen, "gradient of x")
            ),
            "Only x's gradient is wrong. Both ways from x, through the gate and through up, lead "
            "to hidden features of all ranks: is f before both?",
        ),
        Hint(
            lambda seen: pieces.is_right(seen, "y") and not pieces.is_right(seen, "gradient of up"),
            "y is right. A rank's weights get their gradient on this rank, whole: what sums it?",
        ),
        Hint(
            breaks_a_rule,
            "x goes through f once, and what comes out goes both ways: autograd adds up the two "
            "gradients on the rank. The hidden features need not leave it.",
        ),
    ],
    hint="The MLP of the chapter has one matrix before its function; here are two, and both take "
    "the same x.",
)
