"""f and g: what goes into the ranks' branches, and what comes out of them, summed."""

import torch
import torch.distributed as dist

from ranklab.checks.tensor import _pieces as pieces
from ranklab.exercises import Case, Exercise, Mistake
from ranklab.taught.tensor import copied, summed

GIVEN, CAME = "left as it was: x and the branch's result", "left as it was: the gradient"


class Branch:
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


def drive(answer, kind, x, trained):
    branch, leaf, came = Branch(kind, dist.get_rank(), x.shape[-1]), pieces.leaf(x, trained), []
    y = answer(branch, leaf)
    if not torch.is_tensor(y):
        return y
    out = y + leaf if kind == "x itself" else y
    if y.requires_grad:
        y.register_hook(lambda gradient: came.append((gradient, gradient.detach().clone())))
    pieces.run_back(out, pieces.drawn(9, *x.shape))
    return {
        "value": y,
        "gradient of x": leaf.grad,
        "gradient of the branch's weights": branch.weights.grad,
        GIVEN: all(torch.equal(*pair) for pair in [(leaf, x), *branch.made]),
        CAME: all(torch.equal(*pair) for pair in came),
    }


def twin(inputs):
    kind, x, trained = inputs[0]
    leaf = pieces.leaf(x, trained)
    branches = [Branch(kind, rank, x.shape[-1]) for rank in range(len(inputs))]
    value = sum(branch(leaf) for branch in branches)
    pieces.run_back(value + leaf if kind == "x itself" else value, pieces.drawn(9, *x.shape))
    same = {"value": value.detach(), "gradient of x": leaf.grad, GIVEN: True, CAME: True}
    return [{**same, "gradient of the branch's weights": one.weights.grad} for one in branches]


def case(what, kind, ranks, x, trained=True):
    return Case(what, lambda rank, world_size: (kind, x, trained), ranks=ranks)


def by_a_hook(branch, x):
    """f is a hook on the gradient of a view of x; g adds what is missing, as a constant."""

    def add_up(gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total

    inside = x.view_as(x)
    if inside.requires_grad:
        inside.register_hook(add_up)
    y = branch(inside)
    total = y.detach().contiguous().clone()
    dist.all_reduce(total)
    return y + (total - y.detach())


CALL = "G.apply(branch(F.apply(x)))"
SUM = """total = {}.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total"""
OF_Y, OF_GRADIENT = SUM.format("y"), SUM.format("gradient")
AVERAGED = "return total / dist.get_world_size()"

exercise = Exercise(
    cases=[
        case("rank + 1 times [1., 2.]", "times", 4, torch.tensor([1.0, 2.0]).double()),
        case("x (2, 3), each branch a matrix", "linear", 4, pieces.drawn(5, 2, 3)),
        case("each branch ends with a tanh", "tanh", 3, pieces.drawn(5, 4, 2)),
        case("x is not trained", "linear", 2, pieces.drawn(5, 2, 3), trained=False),
        case("each branch uses x twice", "twice", 4, pieces.drawn(5, 1, 3)),
        case(
            "branches that return x itself, beside a residual", "x itself", 3, pieces.drawn(5, 2, 2)
        ),
        case("rank 0's branch returns a transposed tensor", "turned", 3, pieces.drawn(5, 2, 3)),
        case("alone", "linear", 1, pieces.drawn(5, 2, 3)),
    ],
    twin=twin,
    drive=drive,
    judge=lambda seen: pieces.too_many(seen, 1 + seen.inputs[0][2]),
    gaps=3,
    trace=True,
    tolerance=pieces.CLOSE,
    hint="f: as it is in forward, summed in backward. g: summed in forward, as it is in backward.",
    also_right=[lambda branch, x: summed(branch(copied(x))), by_a_hook],
    mistakes=[
        Mistake(
            "An autograd function is not called, and no object is made of it: `F.apply(x)`.",
            {CALL: "G.apply(branch(F(x)))"},
            {CALL: "G.apply(branch(F()(x)))"},
            happened="error",
            test=lambda seen: any(
                said in seen.error
                for said in ("egacy autograd", "instantiated", "'F'", "'Function'")
            ),
        ),
        Mistake(
            "`backward` returns as many values as `forward` has arguments, ctx left out: None for "
            "those that have no gradient.",
            {
                "forward(ctx, x)": "forward(ctx, x, group)",
                CALL: "G.apply(branch(F.apply(x, None)))",
            },
            happened="error",
            test=lambda seen: "incorrect number of gradients" in seen.error,
        ),
        Mistake(
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing. What "
            "goes on is that tensor.",
            {OF_Y: "return dist.all_reduce(y.clone())"},
            {CALL: f"{CALL}.add_(dist.all_reduce(x.detach()))"},
            happened=("error", "returned"),
            test=lambda seen: "NoneType" in seen.error or seen.results[0] is None,
        ),
        Mistake(
            "Something was changed in place that autograd still needs. Sum a clone.",
            {CALL: "G.apply(branch(F.apply(x)).mul_(1))"},
            happened="error",
            test=lambda seen: "inplace operation" in seen.error or "in-place" in seen.error,
        ),
        Mistake(
            "Every rank must take part in every sum, in forward and in backward: no rank may leave "
            "out the way back.",
            {OF_GRADIENT: OF_GRADIENT.replace("dist.all", "dist.get_rank() or dist.all")},
            happened=("stuck", "died"),
        ),
        Mistake(
            "`dist.all_reduce` changes the tensor that it is given. What comes into a forward is "
            "not yours to change: sum a clone.",
            {OF_Y: "dist.all_reduce(y)\n            return y"},
            test=lambda seen: not all(got[GIVEN] for got in seen.results),
        ),
        Mistake(
            "Backward, too, gets a tensor that others hold: here it is the gradient of the "
            "residual as well. Sum a clone.",
            {OF_GRADIENT: "dist.all_reduce(gradient)\n            return gradient"},
            test=lambda seen: not all(got[CAME] for got in seen.results),
        ),
        Mistake(
            "That is the rank's own branch. Who adds up those of all ranks?",
            {OF_Y: "return y.view_as(y)"},
            {CALL: "branch(x)"},
        ),
        Mistake(
            "That is the mean of the branches. The sum is asked for.",
            {OF_Y: OF_Y.replace("return total", AVERAGED)},
        ),
        Mistake(
            "x is the same on every rank, and goes into the branches as it is. What does f do, in "
            "which direction?",
            {CALL: "F.apply(branch(G.apply(x)))"},
            {"return x.view_as(x)": SUM.format("x")},
        ),
        Mistake(
            "The value is right, but nothing leads back from it to the branch: a sum that autograd "
            "does not know of has no backward.",
            {CALL: "G.apply(branch(F.apply(x)).detach())"},
        ),
        Mistake(
            "The branch's gradient is as many times too large as there are ranks. The loss is "
            "computed alike on every rank, and it is one loss: what has g to do in backward?",
            {"return gradient": OF_GRADIENT},
        ),
        Mistake(
            "The branch's gradient is divided by the number of ranks. In a sum, each summand has "
            "the gradient of the whole.",
            {"return gradient": "return gradient / dist.get_world_size()"},
        ),
        Mistake(
            "x's gradient is that of the rank's own branch alone. x went into the branches of all "
            "ranks: what has f to do in backward?",
            {OF_GRADIENT: "return gradient"},
        ),
        Mistake(
            "x's gradient is the mean over the ranks. Every branch has its part in it: the sum.",
            {OF_GRADIENT: OF_GRADIENT.replace("return total", AVERAGED)},
        ),
        Mistake(
            "x's gradient is summed twice: in the backward of f, and where else?",
            {CALL: "G.apply(branch(F.apply(F.apply(x))))"},
        ),
        Mistake(
            "Nothing leads back to x: does x itself go through f, and its result into the branch?",
            {OF_GRADIENT: "return None"},
        ),
        Mistake(
            "A sum adds memory to memory, and in the memory of a transposed tensor the numbers "
            "stand in another order, which `clone()` keeps. Sum a contiguous clone, in forward and "
            "in backward.",
            {OF_Y: OF_Y.replace("memory_format=torch.contiguous_format", "")},
            {OF_GRADIENT: OF_GRADIENT.replace("memory_format=torch.contiguous_format", "")},
        ),
        Mistake(
            "One in forward, and one in backward. Where x needs no gradient, autograd leaves the "
            "backward of f out by itself.",
            {OF_GRADIENT: f"dist.all_reduce(gradient.clone())\n            {OF_GRADIENT}"},
            test=lambda seen: seen.found == "judge",
        ),
    ],
)
