"""What the exercises of chapter 02 check: times, memory, and two operations of autograd."""

from itertools import pairwise

import numpy as np
import torch

from ranklab.checks._graphs import FORMULA, SECONDS, backwards, ladder, layers, uneven
from ranklab.exercises import Case, Choice, Exercise, Hint
from ranklab.taught.graphs import Tensor, add, backward, in_order, matmul, mul, relu

update_in_place = Choice(
    "update_in_place",
    right="b",
    why={
        "a": "Then dX3 would multiply by the new W3. It needs the one that the forward pass used. "
        "That U3 reads only dW3 is not the point; ask who still reads what U3 writes.",
        "c": "That is safe, and it is how most optimizers are called. But once dX3 is done, "
        "nobody in this step reads W3 again.",
        "d": "It needs dW3, so it does wait for something. And somebody may still need what it "
        "overwrites.",
    },
    because="U3 needs dW3, and it destroys what dX3 still reads. That second arrow is in no graph "
    "of values; writing in place adds it. (If U3 made a new tensor, dW3 alone would do.)",
)


# earliest_end ----------------------------------------------------------------------------------


def _timed_graph(what, graph, seconds):
    return Case(what, lambda rank, world_size: (dict(graph), dict(seconds)), ranks=1)


def _earliest(inputs):
    """Relax every arrow until nothing changes (Bellman and Ford)."""
    (graph, seconds) = inputs[0]
    end, before = {name: seconds[name] for name in graph}, None
    while end != before:
        before = dict(end)
        for name, (_, *sources) in graph.items():
            start = max((end[s] for s in sources if s in graph), default=0.0)
            end[name] = start + seconds[name]
    return [end]


def _by_levels(seen):
    """Does the answer let every operation wait for the whole level before?"""
    return seen.results[0].keys() == seen.expected[0].keys() and all(
        seen.results[0][name] >= end for name, end in seen.expected[0].items()
    )


earliest_end = Exercise(
    "earliest_end",
    cases=[
        _timed_graph("the formula of the chapter", FORMULA, SECONDS),
        _timed_graph("the formula, all operations alike", FORMULA, dict.fromkeys(FORMULA, 2.0)),
        _timed_graph("a single operation", {"z": FORMULA["z"]}, {"z": 3.0}),
        _timed_graph("a training step of 3 layers", layers(3), uneven(layers(3))),
        _timed_graph(
            "the same, written down in the opposite order",
            backwards(layers(3)),
            uneven(layers(3)),
        ),
        _timed_graph("a ladder of 60 operations", ladder(30), uneven(ladder(30))),
        _timed_graph("no operation at all", {}, {}),
    ],
    expected=_earliest,
    limit=5.0,
    hints=[
        Hint(
            lambda seen: seen.happened == "slow",
            "Is the end of an operation worked out again for everybody who needs it? Keep it.",
        ),
        Hint(
            lambda seen: "KeyError" in seen.error,
            "Not every input is an operation. And an operation comes after those that it needs, "
            "in whatever order the graph was written down: `schedule` gives such an order.",
        ),
        Hint(lambda seen: seen.happened == "changed", "Keep the times in a dict of your own."),
        Hint(
            lambda seen: seen.results[0].keys() != seen.expected[0].keys(),
            "The result has an entry for every operation, and none for the inputs of the whole.",
        ),
        Hint(
            _by_levels,
            "Some operations are said to end too late. Nobody waits for a level, nor for the sum "
            "of what its inputs took: only for the latest of its own inputs.",
        ),
    ],
    hint="An operation starts when the latest of its inputs is there; inputs of the whole graph "
    "are there from the start.",
)


# largest_batch ---------------------------------------------------------------------------------


def _fits(widths, itemsize, memory, batch):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return itemsize * (2 * parameters + batch * sum(widths)) <= memory


def _largest(inputs):
    """Search by halves for the last batch that fits."""
    below, above = 0, 1
    while _fits(*inputs[0], above):
        above *= 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if _fits(*inputs[0], middle) else (below, middle)
    return [below]


def _memory(what, widths, itemsize, memory):
    return Case(what, lambda rank, world_size: (list(widths), itemsize, memory), ranks=1)


_MLP = [784, 128, 64, 10]
_PARAMETERS = 109_386  # of that network


largest_batch = Exercise(
    "largest_batch",
    cases=[
        _memory("784-128-64-10 in float32, 1 MB", _MLP, 4, 1_000_000),
        _memory("the same in float64, 4 MB", _MLP, 8, 4_000_000),
        _memory("one byte short of a batch of 1", _MLP, 4, 4 * (2 * _PARAMETERS + 986) - 1),
        _memory("just enough for a batch of 1", _MLP, 4, 4 * (2 * _PARAMETERS + 986)),
        _memory("not enough for the parameters", _MLP, 4, 1000),
        _memory("one layer, 1-1, in float32, 100 bytes", [1, 1], 4, 100),
        _memory("eight layers of 4096 in bfloat16, 16 GB", [4096] * 9, 2, 16 * 10**9),
    ],
    expected=_largest,
    hints=[
        Hint(lambda seen: seen.results[0] < 0, "There is no batch of less than nothing: then 0."),
        Hint(
            lambda seen: isinstance(seen.results[0], float),
            "A batch is a whole number of samples; // rounds down.",
        ),
        Hint(
            lambda seen: (
                seen.results[0] > seen.expected[0]
                and seen.results[0] == _largest([_without_gradients(*seen.inputs[0])])[0]
            ),
            "Each parameter is there twice in training: once itself, once as its gradient.",
        ),
        Hint(
            lambda seen: seen.results[0] > seen.expected[0],
            "Too large, it does not fit. What else has to be there: biases, gradients, the input "
            "batch, bytes instead of numbers?",
        ),
    ],
    hint="Parameters (weights and biases) and their gradients do not depend on the batch; "
    "activations are batch times the sum of the widths, the input among them.",
)


def _without_gradients(widths, itemsize, memory):
    """The question whose right answer comes from forgetting the gradients."""
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return widths, itemsize, memory + itemsize * parameters


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


def _its_tensor(name, out):
    if not (hasattr(out, "rule") and hasattr(out, "sources")):  # a notebook may have its own Tensor
        raise TypeError(f"{name} returned a {type(out).__name__}; it should return a Tensor")
    return out


def _gradient(leaf):
    return None if leaf.grad is None else torch.as_tensor(np.array(leaf.grad))


def _drive_rows(scale_rows, a, s, weights, times):
    """Use the operation once or twice; return its value and, after backward, both gradients."""
    leaf, scales = Tensor(a.numpy()), Tensor(s.numpy())
    out = leaf
    for _ in range(times):
        out = _its_tensor("scale_rows", scale_rows(out, scales))
    value = torch.as_tensor(out.data.copy())
    backward(mul(out, Tensor(weights.numpy())))
    return {"value": value, "gradient of a": _gradient(leaf), "gradient of s": _gradient(scales)}


def _torch_rows(inputs):
    (a, s, weights, times) = inputs[0]
    a, s = a.clone().requires_grad_(), s.clone().requires_grad_()
    out = a
    for _ in range(times):
        out = out * s[:, None]
    (out * weights).sum().backward()
    return [{"value": out.detach(), "gradient of a": a.grad, "gradient of s": s.grad}]


def _differs(seen, what):
    got, expected = seen.results[0][what], seen.expected[0][what]
    return got is None or got.shape != expected.shape or not torch.allclose(got, expected)


scale_rows = Exercise(
    "scale_rows",
    cases=[_rows(2, 3), _rows(3, 3), _rows(1, 4), _rows(4, 1), _rows(5, 2, times=2), _rows(1, 1)],
    expected=_torch_rows,
    drive=_drive_rows,
    hints=[
        Hint(
            lambda seen: seen.happened == "changed",
            "Make a new array, with *. In place, with *=, the data of `a` is gone for its rule.",
        ),
        Hint(
            lambda seen: "broadcast" in seen.error or _differs(seen, "value"),
            "The value comes first: row i of a, times s[i]. For NumPy that is s as a column.",
        ),
        Hint(
            lambda seen: _differs(seen, "gradient of a"),
            "The gradient of a: each of its entries was multiplied by the scale of its row, so the "
            "incoming gradient is, too.",
        ),
        Hint(
            lambda seen: _differs(seen, "gradient of s"),
            "One scale was used by a whole row, so its gradient is a sum over that row.",
        ),
    ],
    hint="Compare with `mul` and `add` of the chapter: what does each rule give for each source?",
)


# checkpoint ------------------------------------------------------------------------------------


class _Network:
    """Layers x -> relu(x @ w + b), which count how often they were run."""

    def __init__(self, weights, biases):
        self.weights = [Tensor(w.numpy()) for w in weights]
        self.biases = [Tensor(b.numpy()) for b in biases]
        self.runs = 0

    def __call__(self, x):
        self.runs += 1
        for w, b in zip(self.weights, self.biases, strict=True):
            x = relu(add(matmul(x, w), b))
        return x


def _drive_checkpoint(checkpoint, x, scale, weights, biases):
    """A scaled batch through a checkpointed network; what is kept, and what backward gives."""
    network, leaf = _Network(weights, biases), Tensor(x.numpy())
    out = _its_tensor("checkpoint", checkpoint(network, mul(leaf, Tensor(scale.numpy()))))
    kept, runs = len(in_order(out)), network.runs
    value = torch.as_tensor(out.data.copy())
    backward(mul(out, Tensor(np.arange(out.data.size).reshape(out.data.shape) + 1.0)))
    return {
        "runs of f": [runs, network.runs],
        "Tensors behind the output": kept,
        "value": value,
        "gradient of x": _gradient(leaf),
        "gradients of the weights": [_gradient(w) for w in network.weights],
        "gradients of the biases": [_gradient(b) for b in network.biases],
    }


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
            "runs of f": [1, 2],
            "Tensors behind the output": 4,  # x, the scale, their product, and the output
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
    hints=[
        Hint(
            lambda seen: seen.results[0]["runs of f"] == [1, 1],
            "f ran only once, so backward used what the first run had left. Keep none of that: "
            "run f again inside the rule.",
        ),
        Hint(
            lambda seen: seen.results[0]["Tensors behind the output"] > 4,
            "The output still holds what f made on the way. Give it only the data of f's result, "
            "and `a` as its one source.",
        ),
        Hint(
            lambda seen: seen.happened == "error" or _differs(seen, "gradient of x"),
            "Run f again on a fresh leaf, so that the inner backward stops there; then hand on "
            "that leaf's gradient. And the inner backward starts with ones: where does `grad` "
            "come in?",
        ),
        Hint(
            lambda seen: seen.results[0]["runs of f"] != [1, 2],
            "f should run once forward, and once more in the rule.",
        ),
    ],
    hint="`backward(mul(again, Tensor(grad)))` runs the inner backward with `grad` as its start.",
)
