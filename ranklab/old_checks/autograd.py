"""The exercises on the autograd of one's own, of the chapter on graphs."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import torch

from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint
from ranklab.taught.graphs import Tensor, add, backward, in_order, matmul, mul, relu

# scale_rows ------------------------------------------------------------------------------------


def _random(*shapes, seed=0):
    """Small whole numbers in float64: legible, and without rounding."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-3, 4, shape, generator=generator).double() for shape in shapes]


def _rows(m, n, times=1):
    what = f"{m} row{'s' if m > 1 else ''} of {n}" + (", applied twice" if times > 1 else "")

    def make(rank, world_size):
        return (*_random((m, n), (m,), (m, n), seed=10 * m + n), times)

    return Case(what, make, ranks=1)


_TENSOR = "a Tensor, as Tensor(data, sources, rule) makes it"


def _what(out):
    """What an operation returned, in words; a notebook may have a Tensor class of its own."""
    if hasattr(out, "rule") and hasattr(out, "sources"):
        return _TENSOR
    if torch.is_tensor(out):
        return "a torch.Tensor"
    kind = f"{type(out).__module__}.{type(out).__name__}".removeprefix("builtins.")
    return "nothing (None)" if out is None else f"a {kind}"


def _gradient(leaf):
    return None if leaf.grad is None else torch.as_tensor(np.array(leaf.grad))


def _drive_rows(scale_rows, a, s, weights, times):
    """Use the operation once or twice; return its value and, after backward, both gradients."""
    leaf, scales = Tensor(a.numpy()), Tensor(s.numpy())
    came = dict.fromkeys(("what came", "value", "gradient of a", "gradient of s"))
    out = leaf
    for _ in range(times):
        out = scale_rows(out, scales)
        came["what came"] = _what(out)
        if came["what came"] != _TENSOR:
            return came
    came["value"] = torch.as_tensor(out.data.copy())
    backward(mul(out, Tensor(weights.numpy())))
    return came | {"gradient of a": _gradient(leaf), "gradient of s": _gradient(scales)}


def _torch_rows(inputs):
    (a, s, weights, times) = inputs[0]
    a, s = a.clone().requires_grad_(), s.clone().requires_grad_()
    out = a
    for _ in range(times):
        out = out * s[:, None]
    (out * weights).sum().backward()
    gradients = {"gradient of a": a.grad, "gradient of s": s.grad}
    return [{"what came": _TENSOR, "value": out.detach(), **gradients}]


def _differs(seen, what):
    got, expected = seen.results[0][what], seen.expected[0][what]
    return got is None or got.shape != expected.shape or not torch.allclose(got, expected)


def _is_none(seen, what):
    return seen.results[0][what] is None


# Of an operation that is to return a Tensor with a rule.
_NO_TENSOR = [
    Hint(
        lambda seen: seen.results[0]["what came"] == "nothing (None)",
        "It returned nothing: is a `return` missing?",
    ),
    Hint(
        lambda seen: seen.results[0]["what came"] != _TENSOR,
        "Return a Tensor of the chapter, `Tensor(data, sources, rule)`: `backward` goes from one "
        "to its sources, and asks its rule.",
    ),
]
_NO_RULE = [
    Hint(
        lambda seen: "'NoneType' object is not callable" in seen.error,
        "`backward` found a Tensor with sources and without a rule: the rule is the third argument "
        "of `Tensor`.",
        when=("error",),
    ),
    Hint(
        lambda seen: "'NoneType' object is not iterable" in seen.error,
        "`backward` called a rule that returned nothing: is a `return` missing in it?",
        when=("error",),
    ),
    Hint(
        lambda seen: "zip() argument 2" in seen.error,
        "A rule returns a tuple with one gradient for each source, in the order of the sources.",
        when=("error",),
    ),
]


scale_rows = Exercise(
    "scale_rows",
    cases=[_rows(2, 3), _rows(3, 3), _rows(1, 4), _rows(4, 1), _rows(5, 2, times=2), _rows(1, 1)],
    expected=_torch_rows,
    drive=_drive_rows,
    limit=3.0,
    hints=[
        called_as("scale_rows(a, s)"),
        Hint(lambda seen: True, "Does every loop come to its end?", when=("slow",)),
        Hint(
            lambda seen: True,
            "Make a new array, with *. In place, with *=, the data of `a` is gone for its rule.",
            when=("changed",),
        ),
        *_NO_RULE,
        Hint(
            lambda seen: "broadcast" in seen.error,
            "NumPy lines up shapes at their ends, so (2,) does not fit (2, 3). One number for each "
            "row has to be a column, (2, 1): in the value, and in the rule.",
            when=("error",),
        ),
        *_NO_TENSOR,
        Hint(
            lambda seen: _differs(seen, "value"),
            "The value comes first: row i of a, times s[i]. For NumPy that is s as a column.",
        ),
        Hint(
            lambda seen: _is_none(seen, "gradient of a") or _is_none(seen, "gradient of s"),
            "No gradient came there: are both `a` and `s` among the sources?",
        ),
        Hint(
            lambda seen: (
                len(seen.inputs[0][0]) > 1
                and seen.results[0]["gradient of a"].shape == seen.inputs[0][1].shape
            ),
            "The rule returns the gradients in the order of the sources, each in the shape of its "
            "source.",
        ),
        Hint(
            lambda seen: (
                seen.found == "shape"
                and seen.results[0]["gradient of a"].shape == seen.inputs[0][0].shape[1:]
            ),
            "A rule returns a tuple with one gradient for each source. An array instead of it is "
            "taken apart into its rows.",
        ),
        Hint(
            lambda seen: _differs(seen, "gradient of a"),
            "The gradient of a: each of its entries was multiplied by the scale of its row, so the "
            "incoming gradient is, too.",
        ),
        Hint(
            lambda seen: (
                seen.results[0]["gradient of s"].shape == (*seen.inputs[0][1].shape, 1)
                and seen.inputs[0][0].shape[1] > 1
            ),
            "The sums over the rows are a column here; `s` has one dimension.",
        ),
        Hint(
            lambda seen: seen.found == "shape",
            "One scale was used by a whole row, so its gradient is a sum over that row.",
        ),
        Hint(
            lambda seen: _differs(seen, "gradient of s"),
            "The gradient of s[i] is a sum over row i. What was s[i] multiplied by there, and what "
            "gradient came in?",
        ),
    ],
    hint="Compare with `mul` and `add` of the chapter: what does each rule give for each source?",
)


# checkpoint ------------------------------------------------------------------------------------


class _Network:
    """Layers x -> relu(x @ w + b), which count their runs, and know what the first one made."""

    def __init__(self, weights, biases):
        self.weights = [Tensor(w.numpy()) for w in weights]
        self.biases = [Tensor(b.numpy()) for b in biases]
        self.runs, self.made = 0, []

    def __call__(self, x):
        self.runs += 1
        for w, b in zip(self.weights, self.biases, strict=True):
            product = matmul(x, w)
            total = add(product, b)
            x = relu(total)
            if self.runs == 1:
                self.made += map(weakref.ref, (product, total, x))
        return x

    def kept(self):
        """How many Tensors of the first run are still there, its result left out."""
        gc.collect()
        return sum(made() is not None for made in self.made[:-1])


def _drive_checkpoint(checkpoint, x, scale, weights, biases):
    """A scaled batch through a checkpointed network; what is kept, and what backward gives."""
    network, leaf = _Network(weights, biases), Tensor(x.numpy())
    scaled, passes = mul(leaf, Tensor(scale.numpy())), []
    rule = scaled.rule

    def counted(grad):
        passes.append(1)
        return rule(grad)

    scaled.rule = counted
    out = checkpoint(network, scaled)
    came = dict.fromkeys(_PARTS) | {"what came": _what(out)}
    if came["what came"] != _TENSOR:
        return came
    came |= {
        "Tensors behind the output": len(in_order(out)),
        "Tensors of f's first run still there": network.kept(),
        "value": torch.as_tensor(out.data.copy()),
    }
    runs = network.runs
    backward(mul(out, Tensor(np.arange(out.data.size).reshape(out.data.shape) + 1.0)))
    return came | {
        "runs of f": [runs, network.runs],
        "times that backward passed a": len(passes),
        "gradient of x": _gradient(leaf),
        "gradients of the weights": [_gradient(w) for w in network.weights],
        "gradients of the biases": [_gradient(b) for b in network.biases],
    }


_PARTS = (
    "what came",
    "runs of f",
    "Tensors behind the output",
    "Tensors of f's first run still there",
    "times that backward passed a",
    "value",
    "gradient of x",
    "gradients of the weights",
    "gradients of the biases",
)


def _from_ones(seen):
    """Are the weights' gradients what they are if the inner backward starts with ones?"""
    x, scale, weights, biases = seen.inputs[0]
    ws = [w.clone().requires_grad_() for w in weights]
    out = x * scale
    for w, b in zip(ws, biases, strict=True):
        out = torch.relu(out @ w + b)
    out.sum().backward()
    return all(
        map(torch.allclose, seen.results[0]["gradients of the weights"], (w.grad for w in ws))
    )


def _torch_checkpoint(inputs):
    (x, scale, weights, biases) = inputs[0]
    x, *parameters = [p.clone().requires_grad_() for p in (x, *weights, *biases)]
    ws, bs = parameters[: len(weights)], parameters[len(weights) :]
    out = x * scale
    for w, b in zip(ws, bs, strict=True):
        out = torch.relu(out @ w + b)
    (out * (torch.arange(out.numel()).reshape(out.shape) + 1.0)).sum().backward()
    return [
        {
            "what came": _TENSOR,
            "runs of f": [1, 2],
            "Tensors behind the output": 4,  # x, the scale, their product, and the output
            "Tensors of f's first run still there": 0,
            "times that backward passed a": 1,
            "value": out.detach(),
            "gradient of x": x.grad,
            "gradients of the weights": [w.grad for w in ws],
            "gradients of the biases": [b.grad for b in bs],
        }
    ]


def _network(batch, *widths):
    what = f"a batch of {batch}, widths {'-'.join(map(str, widths))}"

    def make(rank, world_size):
        x, scale = _random((batch, widths[0]), (batch, widths[0]), seed=sum(widths))
        weights = _random(*pairwise(widths), seed=1)
        biases = _random(*((n_out,) for n_out in widths[1:]), seed=2)
        return x, scale, weights, biases

    return Case(what, make, ranks=1)


checkpoint = Exercise(
    "checkpoint",
    cases=[
        _network(2, 3, 4, 2),
        _network(1, 1, 1),
        _network(5, 4, 4, 4, 4, 3),
        _network(3, 2, 6),
    ],
    expected=_torch_checkpoint,
    drive=_drive_checkpoint,
    limit=3.0,
    hints=[
        called_as("checkpoint(f, a)"),
        Hint(
            lambda seen: True,
            "What makes the loop end? None is needed here: each of the two runs is one call of f.",
            when=("slow",),
        ),
        Hint(
            lambda seen: "RecursionError" in seen.error,
            "The rule runs `f`, and not the whole operation again.",
            when=("error",),
        ),
        *_NO_RULE,
        Hint(
            lambda seen: "'numpy.ndarray' object has no attribute" in seen.error,
            "`grad` and `.data` are arrays; `mul`, `f` and `backward` take Tensors.",
            when=("error",),
        ),
        Hint(
            lambda seen: "broadcast" in seen.error,
            "`grad` has the shape of f's result, and not that of `a`: it comes in at the end of "
            "the second run.",
            when=("error",),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error,
            "Only a leaf gets a `.grad`, and `a` is none. Let the second run start from a fresh "
            "leaf, where the inner backward stops.",
            when=("error",),
        ),
        *_NO_TENSOR,
        Hint(
            lambda seen: seen.results[0]["Tensors behind the output"] == 1,
            "Nothing leads from the output back to `a`: give it a source and the rule.",
        ),
        Hint(
            lambda seen: seen.results[0]["runs of f"] == [1, 1],
            "f ran only once, so backward used what the first run had left. Keep none of that: "
            "run f again inside the rule.",
        ),
        Hint(
            lambda seen: seen.results[0]["runs of f"] != [1, 2],
            "f should run once forward, and once more in the rule.",
        ),
        Hint(
            lambda seen: seen.results[0]["Tensors behind the output"] > 4,
            "The output still holds what f made on the way. Give it only the data of f's result, "
            "and `a` as its one source.",
        ),
        Hint(
            lambda seen: seen.results[0]["Tensors behind the output"] < 4,
            "The output's source is `a` itself, and not a copy of it: what was computed before "
            "hangs on `a`.",
        ),
        Hint(
            lambda seen: seen.results[0]["Tensors of f's first run still there"],
            "Something still holds what f made on the way. A rule holds all that it mentions, and "
            "a Tensor its sources: does the rule mention f's first result?",
        ),
        Hint(
            lambda seen: seen.results[0]["times that backward passed a"] > 1,
            "The inner backward went on through `a`, into what was computed before. Let the second "
            "run start from a fresh leaf, where it stops.",
        ),
        Hint(
            lambda seen: seen.found == "value" and _from_ones(seen),
            "The inner backward starts with ones, and the outer one has come with `grad`: where "
            "does that come in?",
        ),
        Hint(
            lambda seen: seen.found == "value" and _differs(seen, "gradient of x"),
            "The gradient that the fresh leaf got is the one to hand on to `a`.",
        ),
    ],
    hint="`backward` starts with ones. What can be multiplied into the end of the second run, so "
    "that its rules get `grad` instead?",
)
