"""An operation with a rule: the largest entry of each block."""

import numpy as np
import torch

from ranklab.checks.own_framework import _operations as operations
from ranklab.exercises import Case, Exercise, Mistake

CAME, OPERATION = "what came", "a value and a tuple with one rule"
SPREAD = "np.put_along_axis(spread, first, grad.reshape(-1, 1), axis=1)"  # in the solution
ARRANGED = "spread = spread.reshape(blocks.shape).transpose(0, 1, 2, 4, 3, 5)"


def of_the_text(rank, world_size):
    return torch.tensor([[[[1.0, 5.0], [5.0, 2.0]]]]).double(), 2


def case(k, *shape, high=4):
    def make(rank, world_size):
        return operations.whole(*shape, seed=sum(shape), high=high), k

    ties = ", with many equal entries" if high == -1 else ""
    return Case(f"x {shape}, k = {k}{ties}", make, ranks=1)


def drive(max_pool, x, k):
    """The value, and what the rule makes of a gradient whose entries are all different."""
    x = x.numpy()
    came = max_pool(x, k)
    if not operations.is_operations(came) or len(came[1]) != 1:
        return {CAME: f"a {type(came).__name__}", "value": None, "gradient": None}
    value, (rule,) = came
    grad = np.arange(7.0, 7 + value.size).reshape(value.shape)
    before = grad.copy()
    gradient = operations.as_array(rule(grad))
    if not np.array_equal(grad, before):
        raise ValueError("the rule has changed the gradient that it was given")
    once = np.copy(gradient)
    if not np.array_equal(once, operations.as_array(rule(grad))):
        raise ValueError("called a second time, the rule gives another gradient")
    return {CAME: OPERATION, "value": value, "gradient": gradient}


def twin(inputs):
    ((x, k),) = inputs
    x.requires_grad_()
    value = torch.nn.functional.max_pool2d(x, k)
    value.backward(torch.arange(7.0, 7 + value.numel()).reshape(value.shape).double())
    return [{CAME: OPERATION, "value": value.detach().numpy(), "gradient": x.grad.numpy()}]


def by_loops(x, k):
    """Block by block, as one would write it first."""
    n, c, h, w = x.shape
    value, places = np.zeros((n, c, h // k, w // k)), []
    for at in np.ndindex(value.shape):
        i, j = at[2] * k, at[3] * k
        block = x[at[0], at[1], i : i + k, j : j + k]
        down, right = np.unravel_index(block.argmax(), block.shape)
        places.append((at, (at[0], at[1], i + down, j + right)))
        value[at] = block.max()

    def rule(grad):
        spread = np.zeros_like(x)
        for at, place in places:
            spread[place] += grad[at]
        return spread

    return value, [rule]


def to_all_of_the_largest(x, k):
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // k, k, w // k, k)
    value = blocks.max(axis=(3, 5))

    def rule(grad):
        is_largest = blocks == value[:, :, :, np.newaxis, :, np.newaxis]
        return (is_largest * grad[:, :, :, np.newaxis, :, np.newaxis]).reshape(x.shape)

    return value, (rule,)


def in_equal_parts(x, k):
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // k, k, w // k, k)
    value = blocks.max(axis=(3, 5))

    def rule(grad):
        is_largest = blocks == value[:, :, :, np.newaxis, :, np.newaxis]
        each = is_largest / is_largest.sum(axis=(3, 5), keepdims=True)
        return (each * grad[:, :, :, np.newaxis, :, np.newaxis]).reshape(x.shape)

    return value, (rule,)


def differs(seen, what):
    got, expected = seen.results[0][what], seen.expected[0][what]
    return np.shape(got) != expected.shape or not np.array_equal(got, expected)


exercise = Exercise(
    cases=[
        Case("the image of the text", of_the_text, ranks=1),
        case(2, 2, 3, 4, 6),
        case(3, 1, 2, 3, 6),
        case(2, 2, 1, 4, 4, high=-1),
        case(1, 1, 2, 2, 3),
    ],
    twin=twin,
    drive=drive,
    limit=3.0,
    hint="One axis for each block helps, or a loop over the blocks: which entry was the largest?",
    also_right=[by_loops],
    mistakes=[
        Mistake(
            "Does every loop come to its end?",
            {"    def rule(grad):": "    while True:\n        pass\n\n    def rule(grad):"},
            happened="slow",
        ),
        Mistake(
            "An operation returns two things: its value, an array, and a tuple of rules, functions "
            "of the gradient. Here that is a tuple with one: (rule,).",
            {", (rule,)": ""},
            {"(rule,)": "rule"},
            {", (rule,)": ", rule(np.ones(value.size))"},
            test=lambda seen: seen.results[0][CAME] != OPERATION,
        ),
        Mistake(
            "The rule gives a gradient for every entry of x, in the shape of x.",
            {"        return spread.reshape(x.shape)": "        return spread"},
            {"        return spread.reshape(x.shape)\n": ""},
            test=lambda seen: (
                np.shape(seen.results[0]["gradient"]) != seen.expected[0]["gradient"].shape
            ),
        ),
        Mistake(
            "The value has k × k entries of x behind each of its own: (n, c, h / k, w / k).",
            {"value.reshape(n, c, h // k, w // k)": "value"},
            test=lambda seen: np.shape(seen.results[0]["value"]) != seen.expected[0]["value"].shape,
        ),
        Mistake(
            "The blocks are not blocks of the image: h is (h / k, k) and w is (w / k, k), so the "
            "two k have to be brought together before they become one axis.",
            {
                "blocks = x.reshape(n, c, h // k, k, w // k, k).transpose(0, 1, 2, 4, 3, 5)": (
                    "blocks = x.reshape(n, c, h // k, w // k, k, k)"
                )
            },
            test=lambda seen: differs(seen, "value"),
        ),
        Mistake(
            "The value is right. Where several entries are the largest, the rule gives the "
            "gradient to all of them, and it has become more.",
            to_all_of_the_largest,
        ),
        Mistake(
            "The value is right. Where several entries are the largest, the first of them, row by "
            "row, gets the whole gradient.",
            in_equal_parts,
            {"rows.argmax(axis=1)": "(k * k - 1 - rows[:, ::-1].argmax(axis=1))"},
        ),
        Mistake(
            "The value is right. The rule forgets the gradient that comes in: an entry gets what "
            "its maximum got, not 1.",
            {"grad.reshape(-1, 1)": "np.ones((grad.size, 1))"},
        ),
        Mistake(
            "The value is right. The gradients lie at wrong places: the axes must go back as they "
            "came.",
            {ARRANGED: ""},
        ),
        Mistake(
            "The value is right. Only the entries that were the largest have a gradient; the rest "
            "gets 0.",
            {"np.zeros_like(rows)": "rows.copy()"},
            {SPREAD: "spread += grad.reshape(-1, 1)"},
        ),
    ],
)
