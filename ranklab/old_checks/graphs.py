"""What the exercises of chapter 02 check: times, memory, and two operations of autograd."""

import math
from itertools import pairwise
from numbers import Integral

import torch

from ranklab.checks._graphs import FORMULA, SECONDS, backwards, ladder, layers, uneven
from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

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


def _ends(test):
    """Is test(got, expected) true of two dicts with the same operations and other times?"""

    def of(seen):
        got, expected = seen.results[0], seen.expected[0]
        return seen.found == "value" and got != expected and test(got, expected)

    return of


def _in_steps(seen):
    """Are these the numbers of steps, for which all operations are alike?"""
    graph, _ = seen.inputs[0]
    return seen.results[0] == _earliest([(graph, dict.fromkeys(graph, 1.0))])[0]


def _starts(seen):
    """Are these the times at which the operations start?"""
    _, seconds = seen.inputs[0]
    return seen.results[0] == {n: end - seconds[n] for n, end in seen.expected[0].items()}


def _missing_key(seen):
    """The key of a KeyError in the answer, or None."""
    kind, _, key = seen.error.partition(": ")
    return key.strip("'\"") if kind == "KeyError" else None


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
    limit=3.0,
    hints=[
        called_as("earliest_end(graph, seconds)"),
        Hint(
            lambda seen: seen.case.what.startswith("a ladder"),
            "Is the end of an operation worked out again for everybody who needs it? Keep it.",
            when=("slow",),
        ),
        Hint(lambda seen: True, "Does every loop come to its end?", when=("slow",)),
        Hint(
            lambda seen: _missing_key(seen) in seen.inputs[0][0],
            "An operation comes after those that it needs, in whatever order the graph was "
            "written down: `schedule` gives such an order.",
            when=("error",),
        ),
        Hint(
            lambda seen: _missing_key(seen) is not None,
            "Not every input is an operation: some are inputs of the whole, there from the start.",
            when=("error",),
        ),
        Hint(
            lambda seen: "max() " in seen.error and "empty" in seen.error,
            "Some operations wait for no other one: when do those start?",
            when=("error",),
        ),
        Hint(lambda seen: True, "Keep the times in a dict of your own.", when=("changed",)),
        Hint(
            lambda seen: seen.results[0].keys() != seen.expected[0].keys(),
            "The result has an entry for every operation, and none for the inputs of the whole.",
        ),
        Hint(
            lambda seen: seen.found == "type" and not isinstance(seen.results[0], dict),
            "It returns a dict: name -> when it is done.",
        ),
        Hint(_starts, "Those are the times at which they start."),
        Hint(
            lambda seen: seen.found == "value" and _in_steps(seen),
            "Those are steps. How long an operation takes is in `seconds`.",
        ),
        Hint(
            lambda seen: any(end < seen.inputs[0][1][n] for n, end in seen.results[0].items()),
            "No operation is done before its own `seconds` are over.",
        ),
        Hint(
            _ends(lambda got, expected: all(got[name] >= expected[name] for name in expected)),
            "Some operations are said to end too late. Nobody waits for a level, nor for the sum "
            "of what its inputs took: only for the latest of its own inputs.",
        ),
        Hint(
            _ends(lambda got, expected: all(got[name] <= expected[name] for name in expected)),
            "Some operations are said to end too early: one can start when *all* its inputs are "
            "there.",
        ),
    ],
    hint="An operation starts when the latest of its inputs is there; inputs of the whole graph "
    "are there from the start.",
)


# largest_batch ---------------------------------------------------------------------------------


def _fits(widths, itemsize, memory, batch):
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))
    return itemsize * (2 * parameters + batch * sum(widths)) <= memory


def _a_float(seen):
    """A batch that is right, and no whole number."""
    batch = seen.results[0]
    if torch.is_tensor(batch) or isinstance(batch, Integral):
        return None
    kind = type(batch).__name__
    return f"It returned {float(batch)}: the right number, but as a {kind}. A batch is a whole one."


def _as_if(*, parameters=2, biases=1, without_input=False, rounded=math.floor):
    """Is the result what comes of this slip, and not the right one?

    parameters: how often each is counted. biases: 0 if they are not.
    """

    def of(seen):
        widths, itemsize, memory = seen.inputs[0]
        count = sum(n_in * n_out + biases * n_out for n_in, n_out in pairwise(widths))
        left = memory - parameters * count * itemsize
        batch = rounded(left / (itemsize * sum(widths[without_input:])))
        return seen.results[0] == max(0, batch) != seen.expected[0]

    return of


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
    judge=_a_float,
    limit=3.0,
    hints=[
        Hint(
            lambda seen: True,
            "A search has to end. (It can be worked out without one: how much is left for the "
            "batch, and what does a sample cost?)",
            when=("slow",),
        ),
        Hint(
            lambda seen: seen.found == "judge",
            "`//` of whole numbers is a whole number; `np.floor` and `/` give floats.",
        ),
        Hint(lambda seen: seen.results[0] < 0, "There is no batch of less than nothing: then 0."),
        Hint(
            lambda seen: seen.results[0] != int(seen.results[0]),
            "A batch is a whole number of samples; // rounds down.",
        ),
        Hint(
            _as_if(parameters=1),
            "Each parameter is there twice in training: once itself, once as its gradient.",
        ),
        Hint(
            lambda seen: (
                seen.results[0] == seen.expected[0] + 1
                and (_as_if(rounded=round)(seen) or _as_if(rounded=math.ceil)(seen))
            ),
            "One sample too many. Is a part of a sample rounded up? Or are the biases missing?",
        ),
        Hint(_as_if(biases=0), "A linear layer has a bias for each of its outputs."),
        Hint(
            _as_if(without_input=True),
            "The input batch is kept as well: the first width counts like the others.",
        ),
        Hint(
            lambda seen: seen.results[0] > seen.expected[0],
            "Too large, it does not fit. What else has to be there: biases, gradients, the input "
            "batch, bytes instead of numbers?",
        ),
        Hint(
            lambda seen: seen.results[0] < seen.expected[0],
            "Too small, more would fit. What is counted that does not stay, or counted twice?",
        ),
    ],
    hint="Parameters (weights and biases) and their gradients do not depend on the batch; "
    "activations are batch times the sum of the widths, the input among them.",
)
