"""A shift around a ring, and the way back of its gradient."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

FORWARD = "return Shift.pass_on(x, 1)"
BACKWARD = "return Shift.pass_on(gradient, -1)"


def drive(answer, x, weight, transposed):
    """Shift of x, and the gradient of x under the loss sum(weight * shifted)."""
    x = x.t() if transposed else x
    x = x.detach().requires_grad_()
    y = answer.apply(x)
    held = y.detach().clone()
    (y.sum() if weight is None else (y * weight).sum()).backward()
    dist.barrier()
    return {"shifted": held, "gradient": x.grad}


def twin(inputs):
    xs = [x.t() if transposed else x for x, _, transposed in inputs]
    weights = [torch.ones_like(x) if one[1] is None else one[1] for x, one in zip(xs, inputs)]
    n = len(inputs)
    return [{"shifted": xs[r - 1], "gradient": weights[(r + 1) % n]} for r in range(n)]


def case(what, x, ranks, weighted=True, transposed=False):
    """x: that of rank 0; rank r adds 100 · r."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        shape = x.t().shape if transposed else x.shape
        weight = torch.rand(shape, dtype=x.dtype, generator=generator) if weighted else None
        return x * (rank + 1) if len(x) == 1 else x + 100 * rank, weight, transposed

    return Case(what, make, ranks=ranks)


class ByTurns(torch.autograd.Function):
    """Rank 0 receives first, and the others send."""

    @staticmethod
    def forward(ctx, x):
        return ByTurns.move(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return ByTurns.move(gradient, -1)

    @staticmethod
    def move(x, step):
        rank, n = dist.get_rank(), dist.get_world_size()
        came = torch.zeros(x.shape, dtype=x.dtype)
        if n == 1:
            return came.copy_(x)
        if rank == 0:
            dist.recv(came, -step % n)
        dist.send(x.contiguous(), (rank + step) % n)
        if rank:
            dist.recv(came, (rank - step) % n)
        return came


GRID = torch.arange(6.0, dtype=torch.float64).view(2, 3)

exercise = Exercise(
    cases=[
        case("10, 20 and 30", torch.tensor([10.0]), 3),
        case("2 × 3 of float64", GRID, 4),
        case("two ranks", GRID, 2),
        case("alone", GRID, 1),
        case("4 MB each", torch.zeros(1 << 20), 4),
        case("the loss is a plain sum", GRID, 3, weighted=False),
        case("x is a transposed matrix", GRID, 3, transposed=True),
    ],
    twin=twin,
    drive=drive,
    hint="The adjoint of sending to the next rank is receiving from it.",
    also_right=[ByTurns],
    mistakes=[
        Mistake(
            "A single rank is its own neighbor, on both sides, and can send itself nothing.",
            {"        if world_size == 1:\n            return x.clone()\n": ""},
            happened=("stuck", "error", "died"),
            test=lambda seen: len(seen.inputs) == 1,
        ),
        Mistake(
            "If every rank begins with `send`, each waits for its receiver, all around. Start "
            "sending, receive, and then wait until it is sent.",
            {"work = dist.isend": "dist.send", "        work.wait()\n": ""},
            happened="stuck",
        ),
        Mistake(
            "What is sent must lie in memory without gaps. x may be a view, and the gradient of a "
            "sum is one number that is shown many times: `.contiguous()`. And receive into a box "
            "of your own: `empty_like` makes one with the gaps of its model.",
            {"x.contiguous()": "x"},
            {", memory_format=torch.contiguous_format": ""},
            happened="error",
            test=lambda seen: "contiguous" in seen.error,
        ),
        Mistake(
            "backward returns one gradient for each argument of forward after ctx.",
            {BACKWARD: "return ()"},
            happened="error",
            test=lambda seen: "returned an incorrect number of gradients" in seen.error,
        ),
        Mistake(
            "x has no gradient at all: backward must return it.",
            {BACKWARD: BACKWARD.removeprefix("return ")},
            test=lambda seen: seen.results[0]["gradient"] is None,
        ),
        Mistake(
            "Forward goes the wrong way around: rank 1 is to have rank 0's x.",
            {FORWARD: "return Shift.pass_on(x, -1)", BACKWARD: "return Shift.pass_on(gradient, 1)"},
            {FORWARD: "return Shift.pass_on(x, -1)"},
        ),
        Mistake(
            "Every rank has its own x back.",
            {FORWARD: "return x.clone()"},
            {FORWARD: "return x.clone()", BACKWARD: "return gradient.clone()"},
        ),
        Mistake(
            "Forward is right. In backward the gradient goes the same way as x did. Whose output "
            "did this rank's x become?",
            {BACKWARD: "return Shift.pass_on(gradient, 1)"},
        ),
        Mistake(
            "Forward is right. In backward every rank keeps the gradient of what it *received*; it "
            "belongs to another rank's x.",
            {BACKWARD: "return gradient.clone()"},
        ),
        Mistake(
            "Rank 0 comes after the last rank.",
            {FORWARD: f"{FORWARD} * (dist.get_rank() > 0)"},
        ),
    ],
)
