"""Two exercises of chapter 16: a shift around a ring, and a chain of stages of unknown shapes."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Exercise, Hint

# shift -----------------------------------------------------------------------------------------


def _drive_shift(answer, x, weight, transposed):
    """Return Shift of x, and the gradient of x under the loss sum(weight * shifted)."""
    x = x.t() if transposed else x
    x = x.detach().requires_grad_()
    y = answer.apply(x)
    held = y.detach().clone()
    (y.sum() if weight is None else (y * weight).sum()).backward()
    dist.barrier()
    return {"shifted": held, "gradient": x.grad}


def _expected_shift(inputs):
    xs = [x.t() if transposed else x for x, _, transposed in inputs]
    weights = [torch.ones_like(x) if one[1] is None else one[1] for x, one in zip(xs, inputs)]
    n = len(inputs)
    return [{"shifted": xs[r - 1], "gradient": weights[(r + 1) % n]} for r in range(n)]


def _around(what, make_x, ranks, weighted=True, transposed=False):
    def make(rank, world_size):
        x = make_x(rank)
        generator = torch.Generator().manual_seed(rank)
        shape = x.t().shape if transposed else x.shape
        weight = torch.rand(shape, dtype=x.dtype, generator=generator) if weighted else None
        return x, weight, transposed

    return Case(what, make, ranks=ranks)


def _tens(rank):
    return torch.tensor([10.0 * (rank + 1)])


def _grid(rank):
    return torch.arange(6.0, dtype=torch.float64).view(2, 3) + 100 * rank


def _part(seen, name, offset):
    """Has each rank in `name` what the rank `offset` further on had given for it?"""
    key = 0 if name == "shifted" else 1
    given = [one[key] for one in seen.inputs]
    n = len(given)
    return all(
        torch.equal(one[name], given[(r + offset) % n]) for r, one in enumerate(seen.results)
    )


def _first(seen, name, test):
    return seen.results and test(seen.results[0][name])


shift = Exercise(
    "shift",
    cases=[
        _around("10, 20 and 30", _tens, 3),
        _around("2 × 3 of float64", _grid, 4),
        _around("two ranks", _grid, 2),
        _around("alone", _grid, 1),
        _around("4 MB each", lambda rank: torch.full([1 << 20], float(rank)), 4),
        _around("the loss is a plain sum", _grid, 3, weighted=False),
        _around("x is a transposed matrix", _grid, 3, transposed=True),
    ],
    expected=_expected_shift,
    drive=_drive_shift,
    hints=[
        Hint(
            lambda seen: len(seen.inputs) == 1,
            "A single rank is its own neighbor, on both sides, and can send itself nothing.",
            when=("stuck", "error", "died"),
        ),
        Hint(
            lambda seen: True,
            "If every rank begins with `send`, each waits for its receiver, all around. Start "
            "sending, receive, and then wait until it is sent.",
            when=("stuck",),
        ),
        Hint(
            lambda seen: "contiguous" in seen.error,
            "What is sent must lie in memory without gaps. x may be a view, and the gradient of a "
            "sum is one number that is shown many times: `.contiguous()`. And receive into a box "
            "of your own: `empty_like` makes one with the gaps of its model.",
            when=("error",),
        ),
        Hint(
            lambda seen: "returned an incorrect number of gradients" in seen.error,
            "backward returns one gradient for each argument of forward after ctx.",
            when=("error",),
        ),
        Hint(
            lambda seen: _first(seen, "gradient", lambda grad: grad is None),
            "x has no gradient at all: backward must return it.",
        ),
        Hint(
            lambda seen: _part(seen, "shifted", 1) and not _part(seen, "shifted", -1),
            "Forward goes the wrong way around: rank 1 is to have rank 0's x.",
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1 and _part(seen, "shifted", 0),
            "Every rank has its own x back.",
        ),
        Hint(
            lambda seen: _part(seen, "shifted", -1) and _part(seen, "gradient", -1),
            "Forward is right. In backward the gradient goes the same way as x did. Whose output "
            "did this rank's x become?",
        ),
        Hint(
            lambda seen: _part(seen, "shifted", -1) and _part(seen, "gradient", 0),
            "Forward is right. In backward every rank keeps the gradient of what it *received*; it "
            "belongs to another rank's x.",
        ),
        Hint(
            lambda seen: not torch.equal(seen.results[0]["shifted"], seen.expected[0]["shifted"]),
            "Rank 0 comes after the last rank.",
        ),
    ],
    hint="The adjoint of sending to the next rank is receiving from it.",
)


# train_chain -----------------------------------------------------------------------------------

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
        nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), _Turned()),
        nn.Sequential(_Turned(), nn.Flatten(), nn.Linear(6, 3)),
    ],
    "alone": lambda: [nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))],
}
INPUTS = {"no parameters first": (2, 3), "three dimensions": (6,), "transposed": (6,)}


class _Turned(nn.Module):
    """Last two dimensions exchanged: what comes out is not contiguous."""

    def forward(self, x):
        return x.transpose(-1, -2)


def _stages_of(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(kind))
        return [stage.double() for stage in KINDS[kind]()]


def _data(kind, size, k):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(size, *INPUTS.get(kind, (5,)), dtype=torch.float64, generator=generator)
    return x, torch.randint(3, (size,), generator=generator)


def _drive_chain(answer, kind, batches):
    stage = _stages_of(kind)[dist.get_rank()]
    losses = answer(stage, batches, replicas.RATE)
    dist.barrier()
    return {"losses": losses, "weights": [p.detach() for p in stage.parameters()]}


def _expected_chain(inputs, accumulate=False):
    """Train the whole chain in one process; accumulate: gradients are never set back."""
    kind = inputs[0][0]
    stages, losses = _stages_of(kind), []
    whole = nn.Sequential(*stages)
    for (x, _), (_, labels) in zip(inputs[0][1], inputs[-1][1]):
        loss = nn.functional.cross_entropy(whole(x), labels)
        if not accumulate:
            whole.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for p in whole.parameters():
                p -= replicas.RATE * p.grad
    return [{"losses": losses, "weights": [p.detach() for p in one.parameters()]} for one in stages]


def _chain(kind, *sizes, what=None):
    ranks = len(KINDS[kind]())

    def make(rank, world_size):
        pairs = [_data(kind, size, k) for k, size in enumerate(sizes)]
        first, last = rank == 0, rank == world_size - 1
        return kind, [(x if first else None, y if last else None) for x, y in pairs]

    return Case(what or f"{kind}, batches of {', '.join(map(str, sizes))}", make, ranks=ranks)


def _unchanged(seen, r):
    """Has rank r, which has parameters, the weights that it began with?"""
    began = [p.detach() for p in _stages_of(seen.inputs[0][0])[r].parameters()]
    return began and all(map(torch.equal, seen.results[r]["weights"], began))


def _losses_right(seen, r):
    got, want = (torch.tensor(one[r]["losses"]) for one in (seen.results, seen.expected))
    return got.shape == want.shape and replicas.close(got, want)


def _is_accumulated(seen):
    want = _expected_chain(seen.inputs, accumulate=True)
    pairs = zip(seen.results[-1]["weights"], want[-1]["weights"])
    return len(seen.inputs[0][1]) > 1 and all(replicas.close(*pair) for pair in pairs)


train_chain = Exercise(
    "train_chain",
    cases=[
        _chain("linear", 6, 6, 6, what="four linear layers, three batches"),
        _chain("tanh", 4, 4, what="three stages of several layers"),
        _chain("no parameters between", 5, 5, what="a stage without parameters in the middle"),
        _chain("no parameters first", 4, 4, what="a first stage without parameters"),
        _chain("three dimensions", 3, 3, what="three dimensions between"),
        _chain("transposed", 4, 4, what="a stage that transposes what it sends"),
        _chain("linear", 7, 2, 4, what="batches of 7, 2 and 4"),
        _chain("alone", 5, 3, what="alone"),
    ],
    expected=_expected_chain,
    drive=_drive_chain,
    trains=True,
    tolerance=(1e-9, 1e-11),
    hints=[
        Hint(
            lambda seen: "NoneType" in seen.error and "contiguous" in seen.error,
            "Is it `x.grad` that is None? What came has a gradient only if autograd was told that "
            "it needs one: `requires_grad_()`. *A stage that forgets* is about that.",
            when=("error",),
        ),
        Hint(
            lambda seen: "contiguous" in seen.error,
            "What is sent must lie in memory without gaps: `.contiguous()`. So must the box that "
            "it is received into: `empty_like` makes one with the gaps of its model.",
            when=("error",),
        ),
        Hint(
            lambda seen: "does not require grad" in seen.error,
            "Where the first stage has no parameters, there is nothing to differentiate: the "
            "gradient still comes, and no backward is needed.",
            when=("error",),
        ),
        Hint(
            lambda seen: "NoneType" in seen.error,
            "What is None here? Rank 0 alone has inputs, and the last rank alone has labels; a "
            "tensor that requires no gradient has none, and `dist.recv` returns no tensor.",
            when=("error",),
        ),
        Hint(
            lambda seen: True,
            "For every send there must be a receive on the neighbor, in the same order, with the "
            "same shape: is a gradient sent back for each activation, also by a stage without "
            "parameters? Does every rank learn the loss?",
            when=("stuck", "died"),
        ),
        Hint(
            lambda seen: "shape" in seen.error or "size" in seen.error,
            "How does a rank learn the shape of what comes? It can differ from batch to batch, and "
            "in the number of dimensions.",
            when=("error",),
        ),
        Hint(
            lambda seen: (
                any(not _losses_right(seen, r) for r in range(len(seen.results)))
                and _losses_right(seen, len(seen.results) - 1)
            ),
            "The last rank returns the right losses. The others are to return them, too.",
        ),
        Hint(
            _is_accumulated,
            "The gradients of all batches so far are added up: set them back before each backward.",
        ),
        Hint(
            lambda seen: _unchanged(seen, 0) and not _unchanged(seen, len(seen.results) - 1),
            "The last stage is trained, and the first has the weights that it began with.",
        ),
        Hint(
            lambda seen: all(_unchanged(seen, r) for r in (0, len(seen.results) - 1)),
            "No weight has changed: the stages are to be trained in place.",
        ),
    ],
    hint="Forward: receive, compute, send on. Backward: receive the gradient of what was sent, "
    "send back that of what was received. Then a step.",
)
