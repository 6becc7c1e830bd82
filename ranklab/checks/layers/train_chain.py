"""A training of stages, one on each rank, that send each other what is of unknown shape."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.exercises import Case, Exercise, Mistake

RATE = 0.3


class Turned(nn.Module):
    """Last two dimensions exchanged: what comes out is not contiguous."""

    def forward(self, x):
        return x.transpose(-1, -2)


KINDS = {  # stages by name; each in float64
    "linear": lambda: [nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(3, 6), nn.Linear(6, 4)],
    "tanh": lambda: [
        nn.Sequential(nn.Linear(5, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 9)),
        nn.Linear(9, 3),
    ],
    "no parameters first": lambda: [nn.Flatten(), nn.Linear(6, 4)],
    "no parameters between": lambda: [nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)],
    "three dimensions": lambda: [
        nn.Unflatten(1, (2, 3)),
        nn.Linear(3, 4),
        nn.Sequential(nn.Flatten(), nn.Linear(8, 3)),
    ],
    "transposed": lambda: [
        nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), Turned()),
        nn.Sequential(Turned(), nn.Flatten(), nn.Linear(6, 3)),
    ],
    "alone": lambda: [nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))],
}
INPUTS = {"no parameters first": (2, 3), "three dimensions": (6,), "transposed": (6,)}


def stages_of(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(kind))
        return [stage.double() for stage in KINDS[kind]()]


def came_of(losses, stage):
    return {"losses": losses, "weights": [p.detach() for p in stage.parameters()]}


def drive(answer, kind, batches):
    stage = stages_of(kind)[dist.get_rank()]
    losses = answer(stage, batches, RATE)
    dist.barrier()
    return came_of(losses, stage)


def twin(inputs):
    """Train the whole chain in one process."""
    stages, losses = stages_of(inputs[0][0]), []
    whole = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(whole.parameters(), RATE)
    for (x, _), (_, labels) in zip(inputs[0][1], inputs[-1][1]):
        loss = nn.functional.cross_entropy(whole(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [came_of(losses, stage) for stage in stages]


def case(what, kind, *sizes):
    def make(rank, world_size):
        batches = []
        for k, size in enumerate(sizes):
            generator = torch.Generator().manual_seed(k)
            shape = size, *INPUTS.get(kind, (5,))
            x = torch.randn(shape, dtype=torch.float64, generator=generator)
            labels = torch.randint(3, (size,), generator=generator)
            batches.append((None if rank else x, labels if rank == world_size - 1 else None))
        return kind, batches

    return Case(what, make, ranks=len(KINDS[kind]()))


def with_objects(stage, batches, learning_rate):
    """Whole arrays as objects; the gradients by torch.autograd.grad."""
    rank, n = dist.get_rank(), dist.get_world_size()
    weights, losses = list(stage.parameters()), []

    def received(src):
        box = [None]
        dist.recv_object_list(box, src=src)
        return box[0]

    for x, labels in batches:
        if rank:
            x = received(rank - 1).requires_grad_()
        y, loss = stage(x), None
        if rank == n - 1:
            y = nn.functional.cross_entropy(y, labels)
            gradient, loss = None, y.item()
        else:
            dist.send_object_list([y.detach()], dst=rank + 1)
            gradient = received(rank + 1)
        of = [*weights, x] if rank else weights
        found = torch.autograd.grad(y, of, gradient) if of else []
        if rank:
            dist.send_object_list([found[-1]], dst=rank - 1)
        with torch.no_grad():
            for w, g in zip(weights, found):
                w -= learning_rate * g
        everyones = [None] * n
        dist.all_gather_object(everyones, loss)
        losses.append(everyones[-1])
    return losses


TELLS = """            dist.send(torch.tensor([y.dim()]), rank + 1)
            dist.send(torch.tensor(y.shape), rank + 1)
"""
LEARNS = """            dimensions = torch.empty(1, dtype=torch.int64)
            dist.recv(dimensions, rank - 1)
            sizes = torch.empty(dimensions.item(), dtype=torch.int64)
            dist.recv(sizes, rank - 1)
"""
ONCE = {
    TELLS: "            losses or dist.send_object_list([[*y.shape]], rank + 1)\n",
    LEARNS: "            box = box if losses else [None]\n"
    "            losses or dist.recv_object_list(box, rank - 1)\n",
    "sizes.tolist()": "box[0]",
}
GOES_BACK = """            dist.recv(gradient, rank + 1)
            if y.requires_grad:
                y.backward(gradient)
"""
SENDS_BACK = "        if rank > 0:\n            dist.send(x.grad.contiguous(), rank - 1)\n"

exercise = Exercise(
    cases=[
        case("four linear layers, three batches", "linear", 6, 6, 6),
        case("three stages of several layers", "tanh", 4, 4),
        case("a stage without parameters in the middle", "no parameters between", 5, 5),
        case("a first stage without parameters", "no parameters first", 4, 4),
        case("three dimensions between", "three dimensions", 3, 3),
        case("a stage that transposes what it sends", "transposed", 4, 4),
        case("batches of 7, 2 and 4", "linear", 7, 2, 4),
        case("alone", "alone", 5, 3),
    ],
    twin=twin,
    drive=drive,
    trains=True,
    tolerance=(1e-9, 1e-11),
    hint="Forward: receive, compute, send on. Backward: receive the gradient of what was sent, "
    "send back that of what was received. Then a step.",
    also_right=[with_objects],
    mistakes=[
        Mistake(
            "Is it `x.grad` that is None? What came has a gradient only if autograd was told that "
            "it needs one: `requires_grad_()`. *A stage that forgets* is about that.",
            {"            x.requires_grad_()\n": ""},
            happened="error",
            test=lambda seen: "NoneType" in seen.error and "contiguous" in seen.error,
        ),
        Mistake(
            "What is sent must lie in memory without gaps: `.contiguous()`. So must the box that "
            "it is received into: `empty_like` makes one with the gaps of its model.",
            {"y.detach().contiguous()": "y.detach()"},
            {"gradient = torch.empty(y.shape, dtype=torch.float64)": "gradient = 0 * y.detach()"},
            happened="error",
            test=lambda seen: "contiguous" in seen.error,
        ),
        Mistake(
            "Where the first stage has no parameters, there is nothing to differentiate: the "
            "gradient still comes, and no backward is needed.",
            {"if y.requires_grad:": "if True:"},
            happened="error",
            test=lambda seen: "does not require grad" in seen.error,
        ),
        Mistake(
            "What is None here? Rank 0 alone has inputs, and the last rank alone has labels; a "
            "tensor that requires no gradient has none, and `dist.recv` returns no tensor.",
            {"y = stage(x)": "y = stage(batches[len(losses)][0])"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "For every send there must be a receive on the neighbor, in the same order, with the "
            "same shape: is a gradient sent back for each activation, also by a stage without "
            "parameters? Does every rank learn the loss?",
            {SENDS_BACK: SENDS_BACK.replace("rank > 0", "rank > 0 and [*stage.parameters()]")},
            happened=("stuck", "died"),
        ),
        Mistake(
            "How does a rank learn the shape of what comes? It can differ from batch to batch, and "
            "in the number of dimensions.",
            ONCE,
            happened="error",
            test=lambda seen: "shape" in seen.error or "size" in seen.error,
        ),
        Mistake(
            "The last rank returns the right losses. The others are to return them, too.",
            {"        dist.broadcast(loss, src=world_size - 1)\n": ""},
        ),
        Mistake(
            "The gradients of all batches so far are added up: set them back before each backward.",
            {"        stage.zero_grad()\n": ""},
        ),
        Mistake(
            "The last stage is trained, and the first has the weights that it began with.",
            {GOES_BACK: "", SENDS_BACK: ""},
        ),
        Mistake(
            "No weight has changed: the stages are to be trained in place.",
            {"p -= learning_rate * p.grad": "pass"},
        ),
    ],
)
