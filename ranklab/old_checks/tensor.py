"""Exercises of chapter 18 on f and g. (gated, split_sums and clipping have the others.)"""

import torch
import torch.distributed as dist

from ranklab.checks._said import breaks_a_rule, called_as
from ranklab.checks.tensor import _pieces as pieces
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

sums_in_a_step = Choice(
    "sums_in_a_step",
    right="d",
    why={
        "a": "A block has an attention and an MLP, and each sums its outputs in forward: 2. What "
        "of backward, where x went into the parts of all ranks? And what is summed: parts of the "
        "features, or all of them?",
        "b": "The payload is right. But those are the sums of forward alone: where x went into the "
        "parts of all ranks, backward has to sum, too.",
        "c": "The number is right. But what a rank hands over is its share of a sum, with all "
        "`width` features in it: with more ranks there is less to compute, and as much to sum.",
        "e": "The payload is right. But query, key and value take the same x, and x goes through f "
        "once for all three: autograd adds up the three gradients on the rank, for nothing.",
    },
    because="Two in forward (after the attention and after the MLP), two in backward (where x went "
    "in), in 24 blocks. What is summed has all the features, however many ranks there are.",
)


# summed_branches -------------------------------------------------------------------------------

_VALUE, _OF_X, _OF_BRANCH = "value", "gradient of x", "gradient of the branch's weights"
_LEFT, _RESULTS = "left as it was", "the gradient that comes back"


_ONE_TWO = torch.tensor([1.0, 2.0], dtype=torch.float64)


class _Branch:
    """A rank's branch: of what kind, and which weights; it remembers what it made."""

    def __init__(self, kind, rank, width):
        weights = torch.tensor(1.0 + rank) if kind == "times" else pieces.drawn(rank, width, width)
        self.kind, self.weights, self.made = kind, pieces.leaf(weights.double()), []
        self.is_first = rank == 0

    def __call__(self, x):
        y = {
            "times": lambda: self.weights * x,
            "linear": lambda: x @ self.weights,
            "tanh": lambda: torch.tanh(x @ self.weights),
            "twice": lambda: (x @ self.weights) * x,
            "x itself": lambda: x.view_as(x),
            "turned": lambda: self.turned(x) if self.is_first else x @ self.weights,
        }[self.kind]()
        self.made.append((y, y.detach().clone()))
        return y

    def turned(self, x):
        """x @ weights, which lies in memory as its transpose does; so does the gradient of x."""
        return (self.weights.T @ x.T.contiguous()).T


def _drive_branches(answer, kind, x, trained):
    branch, leaf, came = _Branch(kind, dist.get_rank(), x.shape[-1]), pieces.leaf(x, trained), []
    y = answer(branch, leaf)
    if not torch.is_tensor(y):
        return y
    out = y + leaf if kind == "x itself" else y
    if y.requires_grad:
        y.register_hook(lambda gradient: came.append((gradient, gradient.detach().clone())))
    pieces.run_back(out, pieces.drawn(9, *x.shape))
    return {
        _VALUE: y,
        _OF_X: leaf.grad,
        _OF_BRANCH: branch.weights.grad,
        _LEFT: {
            "x": torch.equal(leaf, x),
            "what the branch returned": all(torch.equal(*pair) for pair in branch.made),
            _RESULTS: all(torch.equal(*pair) for pair in came),
        },
    }


def _expected_branches(inputs):
    kind, x, trained = inputs[0]
    leaf = pieces.leaf(x, trained)
    branches = [_Branch(kind, rank, x.shape[-1]) for rank in range(len(inputs))]
    value = sum(branch(leaf) for branch in branches)
    pieces.run_back(value + leaf if kind == "x itself" else value, pieces.drawn(9, *x.shape))
    left = dict.fromkeys(("x", "what the branch returned", _RESULTS), True)
    return [
        {_VALUE: value.detach(), _OF_X: leaf.grad, _OF_BRANCH: b.weights.grad, _LEFT: left}
        for b in branches
    ]


def _of_own_branch(inputs, key):
    """What each rank would have if it were alone."""
    found = []
    for rank, (kind, x, trained) in enumerate(inputs):
        branch, leaf = _Branch(kind, rank, x.shape[-1]), pieces.leaf(x, trained)
        value = branch(leaf)
        pieces.run_back(value + leaf if kind == "x itself" else value, pieces.drawn(9, *x.shape))
        found.append({_VALUE: value.detach(), _OF_X: leaf.grad}[key])
    return found


def _of_summed_x(seen):
    """The values where x is summed on its way into the branches, and they are, or are not."""
    summed = [(kind, x * len(seen.inputs), trained) for kind, x, trained in seen.inputs]
    return [one[_VALUE] for one in _expected_branches(summed)], _of_own_branch(summed, _VALUE)


def _branches(what, kind, ranks, *shape, trained=True):
    return Case(
        what, lambda rank, world_size: (kind, pieces.drawn(5, *shape), trained), ranks=ranks
    )


def _not_left(seen, what):
    return not all(got[_LEFT][what] for got in seen.results)


def _lacks(seen, key):
    """Is there no gradient where there should be one?"""
    return seen.results[0][key] is None and seen.expected[0][key] is not None


def _few_sums(seen):
    """A sentence if there was a collective too many."""
    most, enough = pieces.collectives(seen), 1 + seen.inputs[0][2]
    if most <= enough:
        return None
    return (
        f"All numbers are right. But a rank took part in {most} collectives, and "
        f"{'two are' if enough == 2 else 'one is'} enough: one in forward"
        f"{', and one in backward.' if enough == 2 else '; x is not trained here.'}"
    )


summed_branches = Exercise(
    "summed_branches",
    cases=[
        Case(
            "rank + 1 times [1., 2.]", lambda rank, world_size: ("times", _ONE_TWO, True), ranks=4
        ),
        _branches("x (2, 3), each branch a matrix", "linear", 4, 2, 3),
        _branches("each branch ends with a tanh", "tanh", 3, 4, 2),
        _branches("x is not trained", "linear", 2, 2, 3, trained=False),
        _branches("each branch uses x twice", "twice", 4, 1, 3),
        _branches("branches that return x itself, beside a residual", "x itself", 3, 2, 2),
        _branches("rank 0's branch returns a transposed tensor", "turned", 3, 2, 3),
        _branches("alone", "linear", 1, 2, 3),
    ],
    expected=_expected_branches,
    drive=_drive_branches,
    judge=_few_sums,
    gaps=3,
    trace=True,
    tolerance=pieces.CLOSE,
    hints=[
        called_as("summed_branches(branch, x)"),
        pieces.NOT_CALLED,
        pieces.ONE_FOR_EACH_ARGUMENT,
        Hint(
            lambda seen: "NoneType" in seen.error,
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing. "
            "`forward` and `backward` return what goes on.",
            when=("error",),
        ),
        Hint(
            lambda seen: "inplace operation" in seen.error or "in-place" in seen.error,
            "Something was changed in place that autograd still needs. Sum a clone.",
            when=("error",),
        ),
        pieces.said_to_wait(
            "Every rank must take part in every sum, in forward and in backward: no rank may leave "
            "out the way back."
        ),
        Hint(
            lambda seen: not isinstance(seen.results[0], dict),
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing. What "
            "goes on is that tensor.",
        ),
        Hint(
            lambda seen: _not_left(seen, "x") or _not_left(seen, "what the branch returned"),
            "`dist.all_reduce` changes the tensor that it is given. What comes into a forward is "
            "not yours to change: sum a clone.",
        ),
        Hint(
            lambda seen: _not_left(seen, _RESULTS),
            "Backward, too, gets a tensor that others hold: here it is the gradient of the "
            "residual as well. Sum a clone.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _VALUE, _of_own_branch(seen.inputs, _VALUE)),
            "That is the rank's own branch. Who adds up those of all ranks?",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _VALUE, 1 / len(seen.results)),
            "That is the mean of the branches. The sum is asked for.",
        ),
        Hint(
            lambda seen: any(
                pieces.is_instead(seen, _VALUE, wanted) for wanted in _of_summed_x(seen)
            ),
            "x is the same on every rank, and goes into the branches as it is. What does f do, in "
            "which direction?",
        ),
        Hint(
            lambda seen: _lacks(seen, _OF_BRANCH),
            "The value is right, but nothing leads back from it to the branch: a sum that autograd "
            "does not know of has no backward.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _OF_BRANCH, len(seen.results)),
            "The branch's gradient is as many times too large as there are ranks. The loss is "
            "computed alike on every rank, and it is one loss: what has g to do in backward?",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _OF_BRANCH, 1 / len(seen.results)),
            "The branch's gradient is divided by the number of ranks. In a sum, each summand has "
            "the gradient of the whole.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _OF_X, _of_own_branch(seen.inputs, _OF_X)),
            "x's gradient is that of the rank's own branch alone. x went into the branches of all "
            "ranks: what has f to do in backward?",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _OF_X, 1 / len(seen.results)),
            "x's gradient is the mean over the ranks. Every branch has its part in it: the sum.",
        ),
        Hint(
            lambda seen: pieces.is_instead(seen, _OF_X, len(seen.results)),
            "x's gradient is summed twice: in the backward of f, and where else?",
        ),
        Hint(
            lambda seen: _lacks(seen, _OF_X),
            "Nothing leads back to x: does x itself go through f, and its result into the branch?",
        ),
        Hint(
            lambda seen: seen.inputs[0][0] == "turned",
            "A sum adds memory to memory, and in the memory of a transposed tensor the numbers "
            "stand in another order, which `clone()` keeps. Sum a contiguous clone, in forward and "
            "in backward.",
        ),
        Hint(
            lambda seen: breaks_a_rule(seen) and not seen.inputs[0][2],
            "Where x needs no gradient, autograd leaves the backward of f out by itself.",
        ),
    ],
    hint="f: as it is in forward, summed in backward. g: summed in forward, as it is in backward.",
)
