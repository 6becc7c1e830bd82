"""An operation that keeps nothing of what it computes, and computes it again."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import torch

from ranklab.checks.graphs import _tensors as tensors
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.graphs import Tensor, backward, in_order, matmul, mul, relu

RUNS = "runs of f"
BEHIND, KEPT = "Tensors behind the output", "Tensors of f's first run still there"
PASSES = "times that backward passed a"
WEIGHTS = "gradients of the weights"
PARTS = ("what came", RUNS, BEHIND, KEPT, PASSES, "value", "gradient of x", WEIGHTS)
# In the solution
AGAIN, END = "mul(f(leaf), Tensor(grad))", "return Tensor(f(Tensor(a.data)).data, (a,), rule)"


def case(batch, *widths):
    def make(rank, world_size):
        x, scale = tensors.random((batch, widths[0]), (batch, widths[0]), seed=sum(widths))
        return x, scale, tensors.random(*pairwise(widths), seed=1)

    return Case(f"a batch of {batch}, widths {'-'.join(map(str, widths))}", make, ranks=1)


class Network:
    """Layers x -> relu(x @ w), which count their runs, and know what the first one made."""

    def __init__(self, weights):
        self.weights = [Tensor(w.numpy()) for w in weights]
        self.runs, self.made = 0, []

    def __call__(self, x):
        self.runs += 1
        for w in self.weights:
            product = matmul(x, w)
            x = relu(product)
            if self.runs == 1:
                self.made += map(weakref.ref, (product, x))
        return x

    def kept(self):
        """How many Tensors of the first run are still there, its result left out."""
        gc.collect()
        return sum(made() is not None for made in self.made[:-1])


def drive(checkpoint, x, scale, weights):
    """A scaled batch through a checkpointed network; what is kept, and what backward gives."""
    network, leaf = Network(weights), Tensor(x.numpy())
    scaled, passes = mul(leaf, Tensor(scale.numpy())), []
    rule = scaled.rule

    def counted(grad):
        passes.append(1)
        return rule(grad)

    scaled.rule = counted
    out = checkpoint(network, scaled)
    came = dict.fromkeys(PARTS) | {"what came": tensors.what(out)}
    if came["what came"] != tensors.TENSOR:
        return came
    came |= {
        BEHIND: len(in_order(out)),
        KEPT: network.kept(),
        "value": torch.as_tensor(out.data.copy()),
    }
    runs = network.runs
    backward(mul(out, Tensor(np.arange(out.data.size).reshape(out.data.shape) + 1.0)))
    return came | {
        RUNS: [runs, network.runs],
        PASSES: len(passes),
        "gradient of x": tensors.gradient(leaf),
        WEIGHTS: [tensors.gradient(w) for w in network.weights],
    }


def twin(inputs):
    (x, scale, weights) = inputs[0]
    out = x.requires_grad_() * scale
    for w in weights:
        out = torch.relu(out @ w.requires_grad_())
    (out * (torch.arange(out.numel()).reshape(out.shape) + 1.0)).sum().backward()
    behind = 4  # x, the scale, their product, and the output
    gradients = [w.grad for w in weights]
    parts = tensors.TENSOR, [1, 2], behind, 0, 1, out.detach(), x.grad, gradients
    return [dict(zip(PARTS, parts, strict=True))]


exercise = Exercise(
    cases=[case(2, 3, 4, 2), case(1, 1, 1), case(5, 4, 4, 4, 4, 3), case(3, 2, 6)],
    twin=twin,
    drive=drive,
    limit=3.0,
    hint="`backward` starts with ones. What can be multiplied into the end of the second run, so "
    "that its rules get `grad` instead?",
    also_right=[
        # The Tensor that f returned, with another source and another rule.
        {END: "out = f(a)\n    out.sources, out.rule = (a,), rule\n    return out"},
        # The same leaf twice.
        {
            "    def rule": "    leaf = Tensor(a.data)\n\n    def rule",
            "        leaf = Tensor(a.data)": "        leaf.grad = None",
            "f(Tensor(a.data))": "f(leaf)",
        },
        # Nothing is multiplied: a Tensor whose rule gives `grad`, whatever comes in.
        {AGAIN: "Tensor(0.0, (f(leaf),), lambda one: (one * grad,))"},
    ],
    mistakes=[
        Mistake(
            "What makes the loop end? None is needed here: each of the two runs is one call of f.",
            {f"        backward({AGAIN})": "        while leaf.grad is None:\n            f(leaf)"},
            happened="slow",
        ),
        Mistake(
            "The rule runs `f`, and not the whole operation again.",
            {"f(leaf)": "checkpoint(f, leaf)"},
            happened="error",
            test=lambda seen: "RecursionError" in seen.error,
        ),
        *tensors.no_rule(
            {"(a,), rule": "(a,)"},
            {"        return (leaf.grad,)": ""},
            {"(leaf.grad,)": "leaf.grad"},
        ),
        Mistake(
            "`grad` and `.data` are arrays; `mul`, `f` and `backward` take Tensors.",
            {"Tensor(grad)": "grad"},
            happened="error",
            test=lambda seen: "'numpy.ndarray' object has no attribute" in seen.error,
        ),
        Mistake(
            "`grad` has the shape of f's result, and not that of `a`: it comes in at the end of "
            "the second run.",
            {AGAIN: "f(leaf)", "(leaf.grad,)": "(leaf.grad * grad,)"},
            happened="error",
            test=lambda seen: "broadcast" in seen.error,
        ),
        Mistake(
            "Only a leaf gets a `.grad`, and `a` is none. Let the second run start from a fresh "
            "leaf, where the inner backward stops.",
            {"f(leaf)": "f(a)", "(leaf.grad,)": "(a.grad,)"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        *tensors.no_tensor({"return Tensor": "Tensor"}, {END: "return f(Tensor(a.data)).data"}),
        Mistake(
            "Nothing leads from the output back to `a`: give it a source and the rule.",
            {", (a,), rule": ""},
            test=lambda seen: seen.results[0][BEHIND] == 1,
        ),
        Mistake(
            "f ran only once, so backward used what the first run had left. Keep none of that: "
            "run f again inside the rule.",
            {END: "return f(a)"},
            test=lambda seen: seen.results[0][RUNS] == [1, 1],
        ),
        Mistake(
            "f should run once forward, and once more in the rule.",
            {END: f"f(a)\n    {END}"},
            test=lambda seen: seen.results[0][RUNS] != [1, 2],
        ),
        Mistake(
            "The output still holds what f made on the way. Give it only the data of f's result, "
            "and `a` as its one source.",
            {
                "(leaf.grad,)": "(leaf.grad, 0 * grad)",
                END: "out = f(a)\n    return Tensor(out.data, (a, out), rule)",
            },
            test=lambda seen: seen.results[0][BEHIND] > 4,
        ),
        Mistake(
            "The output's source is `a` itself, and not a copy of it: what was computed before "
            "hangs on `a`.",
            {"(a,), rule": "(Tensor(a.data),), rule"},
            test=lambda seen: seen.results[0][BEHIND] < 4,
        ),
        Mistake(
            "Something still holds what f made on the way. A rule holds all that it mentions, and "
            "a Tensor its sources: does the rule mention f's first result?",
            {
                "    def rule": "    out = f(Tensor(a.data))\n\n    def rule",
                "leaf = Tensor(a.data)": "leaf = Tensor(a.data + 0 * out.data.sum())",
                "f(Tensor(a.data)).data, (": "out.data, (",
            },
            test=lambda seen: seen.results[0][KEPT],
        ),
        Mistake(
            "The inner backward went on through `a`, into what was computed before. Let the second "
            "run start from a fresh leaf, where it stops.",
            {"f(leaf)": "f(a)", "(leaf.grad,)": "(0 * a.data,)"},
            test=lambda seen: seen.results[0][PASSES] > 1,
        ),
        Mistake(
            "The inner backward starts with ones, and the outer one has come with `grad`: where "
            "does that come in?",
            {AGAIN: "f(leaf)"},
        ),
        Mistake(
            "The gradient that the fresh leaf got is the one to hand on to `a`.",
            {"(leaf.grad,)": "(0 * leaf.grad,)"},
            test=lambda seen: tensors.differs(seen, "gradient of x"),
        ),
    ],
)
