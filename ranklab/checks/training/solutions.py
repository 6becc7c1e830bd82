# Generated from book/03_training.md by `make forms`: edit the manuscript, not this file.

# %% check('canary', canary)

def canary():
    """Return "a" (robust), "b" (other labels) or "c" (learned nothing)."""
    return "b"

# %% check('no_remainder', no_remainder)

def no_remainder():
    """Return "a" (both 0.2), "b" (0.1 and 6) or "c" (both below 0.1)."""
    return "b"

# %% check('gradient_of_parts', gradient_of_parts)

import torch
from torch.nn.functional import cross_entropy


def gradient_of_parts(model, x, y, sizes):
    """The gradients of the mean cross-entropy over x and y, as a list."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        outputs = model(inputs)
        loss = cross_entropy(outputs, classes, reduction="sum") / len(y)
        gradients = torch.autograd.grad(loss, parameters)
        for so_far, gradient in zip(total, gradients):
            so_far += gradient
    return total

# %% check('which_rows', which_rows)

def which_rows(f, X):
    """Return the numbers of the rows of X on which f(X) depends, as a list."""
    before = f(X)
    found = []
    for row in range(len(X)):
        changed = X.clone()
        changed[row] = 1.7 * changed[row] + 1.3
        if f(changed) != before:
            found.append(row)
    return found

# %% check('mlp', MLP, split, rate_at, train_step, evaluate, train)

import time
import torch
from torch import nn


class MLP(nn.Module):
    """n_layers linear layers without bias, tanh between them.

    From dim_in to dim_hidden, ..., from dim_hidden to n_classes.
    """

    def __init__(self, n_layers, dim_in, dim_hidden, n_classes):
        super().__init__()
        self.layers = nn.ModuleList()
        sizes = [dim_in, *[dim_hidden] * (n_layers - 1), n_classes]
        for n_in, n_out in zip(sizes, sizes[1:]):
            layer = nn.Linear(n_in, n_out, bias=False)
            nn.init.kaiming_uniform_(layer.weight)
            self.layers.append(layer)

    def forward(self, x):
        """x: (batch, dim_in). Returns (batch, n_classes)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.tanh(layer(x))
        return last(x)


def split(X, y):
    """Return (train X, train y), (test X, test y): a tenth is for testing.

    Rounded down. Which samples these are is random; every sample is in exactly
    one of the two.
    """
    order = torch.randperm(len(X))
    test, train = order[: len(X) // 10], order[len(X) // 10 :]
    return (X[train], y[train]), (X[test], y[test])


def rate_at(step, niters, first):
    """The learning rate of a step: falls in a line.

    From `first` at step 0 to 0.3 first at niters.
    """
    return first * (1 - 0.7 * step / niters)


def train_step(model, optimizer, x, y):
    """Train on one batch; the loss is cross-entropy."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def evaluate(model, X, y, batch_size=64):
    """Return the mean loss over all samples, a float.

    The model sees batch_size of them at a time.
    Weights and gradients stay as they are, and no graph is recorded.
    """
    total = 0.0
    with torch.no_grad():
        for x, c in zip(X.split(batch_size), y.split(batch_size)):
            z = model(x)
            total += nn.functional.cross_entropy(z, c, reduction="sum").item()
    return total / len(X)


def train(model, train_set, test_set, batches, learning_rate, every=100):
    """Train a step for each of `batches`: numbers of samples of train_set.

    Before every `every`-th step, the first included, both losses are taken;
    after it, a line with its seconds is printed. The rate is rate_at's, with
    niters = len(batches). Returns what the lines say, and no more: [(step,
    train loss, test loss)].
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    history = []
    for step, chosen in enumerate(batches):
        if step % every == 0:
            losses = [evaluate(model, *train_set), evaluate(model, *test_set)]
            history.append((step, *losses))
        start = time.perf_counter()
        rate = rate_at(step, len(batches), learning_rate)
        optimizer.param_groups[0]["lr"] = rate
        train_step(model, optimizer, *(part[chosen] for part in train_set))
        if step % every == 0:
            print(line(*history[-1], time.perf_counter() - start))
    return history


def line(step, train_loss, test_loss, seconds):
    """A line of the chapter's form."""
    losses = f"train_loss {train_loss:.4f} | test_loss {test_loss:.4f}"
    return f"step {step} | {losses} | step time {1000 * seconds:.2f}ms"
