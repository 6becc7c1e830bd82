"""How many samples fit in the memory, beside the parameters and their gradients."""

import bisect
from itertools import pairwise
from numbers import Integral

import torch

from ranklab.exercises import Case, Exercise, Mistake

MLP = [784, 128, 64, 10]
A_SAMPLE, PARAMETERS = 986, 109_386  # numbers, of that network
FITS = 4 * (2 * PARAMETERS + A_SAMPLE)  # a batch of 1 does
SUM = "sum(n_in * n_out + n_out for n_in, n_out in layers)"  # in the solution
FLOOR = "left // (itemsize * sum(widths))"


def case(what, *args):
    return Case(what, lambda rank, world_size: args, ranks=1)


def twin(inputs):
    """Search by halves for the last batch that fits."""
    (widths, itemsize, memory) = inputs[0]
    parameters = sum(n_in * n_out + n_out for n_in, n_out in pairwise(widths))

    def needed(batch):
        return itemsize * (2 * parameters + batch * sum(widths))

    return [max(0, bisect.bisect(range(memory), memory, key=needed) - 1)]


def a_float(seen):
    """A batch that is right, and no whole number."""
    batch = seen.results[0]
    if torch.is_tensor(batch) or isinstance(batch, Integral):
        return None
    kind = type(batch).__name__
    return f"It returned {float(batch)}: the right number, but as a {kind}. A batch is a whole one."


exercise = Exercise(
    cases=[
        case("784-128-64-10 in float32, 1 MB", MLP, 4, 1_000_000),
        case("the same in float64, 4 MB", MLP, 8, 4_000_000),
        case("one byte short of a batch of 1", MLP, 4, FITS - 1),
        case("just enough for a batch of 1", MLP, 4, FITS),
        case("not enough for the parameters", MLP, 4, 1000),
        case("one layer, 1-1, in float32, 100 bytes", [1, 1], 4, 100),
        case("eight layers of 4096 in bfloat16, 16 GB", [4096] * 9, 2, 16 * 10**9),
    ],
    twin=twin,
    judge=a_float,
    limit=3.0,
    hint="Parameters (weights and biases) and their gradients do not depend on the batch; "
    "activations are batch times the sum of the widths, the input among them.",
    also_right=[
        {
            "def": "import numpy as np\n\n\ndef",
            "    parameters": "    widths = np.array(widths)\n    parameters",
            SUM: "widths[:-1] @ widths[1:] + widths[1:].sum()",
        },
    ],
    mistakes=[
        Mistake(
            "A search has to end. (It can be worked out without one: how much is left for the "
            "batch, and what does a sample cost?)",
            {"    return": "    while left >= 0:\n        memory += itemsize\n    return"},
            happened="slow",
        ),
        Mistake(
            "`//` of whole numbers is a whole number; `np.floor` and `/` give floats.",
            {"2 * parameters": "2.0 * parameters"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake("There is no batch of less than nothing: then 0.", {f"max(0, {FLOOR})": FLOOR}),
        Mistake("A batch is a whole number of samples; // rounds down.", {"left //": "left /"}),
        Mistake(
            "Each parameter is there twice in training: once itself, once as its gradient.",
            {"2 * parameters": "parameters"},
        ),
        Mistake(
            "One sample too many. Is a part of a sample rounded up? Or are the biases missing?",
            {FLOOR: FLOOR.replace("left //", "-(-left //") + ")"},
            {FLOOR: f"round({FLOOR.replace('//', '/')})"},
            {" + n_out": ""},
        ),
        Mistake(
            "The input batch is kept as well: the first width counts like the others.",
            {"sum(widths)": "sum(widths[1:])"},
        ),
        Mistake(
            "Too large, it does not fit. What else has to be there: biases, gradients, the input "
            "batch, bytes instead of numbers?",
            {"* itemsize": "* 4", "(itemsize": "(4"},
            {"memory -": "memory + 0 *"},
            test=lambda seen: seen.results[0] > seen.expected[0],
        ),
        Mistake(
            "Too small, more would fit. What is counted that does not stay, or counted twice?",
            {"(itemsize": "(2 * itemsize"},
            test=lambda seen: seen.results[0] < seen.expected[0],
        ),
    ],
)
