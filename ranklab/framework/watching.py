"""How a training goes, of any framework with these names: torch's networks, too."""

import time
import tracemalloc

import numpy as np

from ranklab.framework.grad_mode import no_grad
from ranklab.framework.world import World, accuracy


def training(model, optimizer, loss_of, tensor, batches):
    """Train, one step at a time: yields each step's loss, and seconds of the processor."""
    for X, y in batches:
        began = time.process_time()
        optimizer.zero_grad()
        loss = loss_of(model(tensor(X)), tensor(y))
        loss.backward()
        optimizer.step()
        yield loss.item(), time.process_time() - began


def sides(model, tensor):
    """A list to which each ReLU will add, at every call, which entries it lets pass."""
    seen = []

    def noting(relu):
        def forward(x):
            value = relu(x)
            seen.append(value.data.numpy() > 0)
            return value

        return forward

    _change_relus(model, noting)
    return seen


def replay(model, tensor, seen):
    """From now on each ReLU passes, call by call, what those of another network have passed."""
    passed = iter(seen)
    _change_relus(model, lambda relu: lambda x: x * tensor(next(passed)))


def first_step_apart(some, others, steps):
    """In which step two lists of `sides` differ for the first time; `steps`, if in none."""
    differ = [np.any(a != b) for a, b in zip(some, others)]
    return next((i // (len(differ) // steps) for i, it in enumerate(differ) if it), steps)


def _change_relus(model, change):
    for _, module in model.named_modules():
        if type(module).__name__ == "ReLU":
            module.forward = change(module.forward)


def recognized(model, batches):
    """The share of examples whose class has the largest logit."""
    model.eval()  # batch norm with its running statistics
    with no_grad():
        right = [model(X).array.argmax(axis=1) == y.array for X, y in batches]
    return float(np.concatenate(right).mean())


def right_on_all_ranks(model, loader):
    """How many examples a model recognizes: the loader deals each rank its share."""
    model.eval()
    with no_grad():
        return sum(accuracy(model(X), y) * World.share[1] for X, y in loader)


def memory_of(kind, p, steps=10):
    """Bytes in use after each step of an optimizer; the last weights, and its momentum."""
    optimizer, used = kind([p], lr=0.1, momentum=0.9, weight_decay=0.01), []
    tracemalloc.start()
    for _ in range(steps):
        optimizer.reset_grad()
        (p * p).mean().backward()
        optimizer.step()
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return used, p.array, optimizer.u[0]


def products_alone(parameters, n):
    """A function that does the matrix products of a step of ResNet-9 on n images, nothing else."""
    weights = [p.array.reshape(len(p.array), -1) for p in parameters if p.ndim > 1]
    rows = [n * side**2 for side in (8, 4, 4, 4, 2, 1, 1, 1, 1, 1)]  # what comes out of each
    inputs, grads = (
        [np.ones((n, w.shape[axis]), w.dtype) for n, w in zip(rows, weights)] for axis in (1, 0)
    )

    def products():
        for x, grad, w in zip(inputs, grads, weights):
            # Nobody wants the gradient of the images.
            x @ w.T, grad.T @ x, w is weights[0] or grad @ w

    return products
