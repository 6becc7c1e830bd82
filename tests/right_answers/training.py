"""Right answers to the exercises of chapter 03, the program `mlp` among them."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

from right_answers import right

# gradient_of_parts


@right("gradient_of_parts")
def functions_of_the_weights(model, x, y, sizes):
    def loss(weights, x, y):
        outputs = torch.func.functional_call(model, weights, (x,))
        return F.cross_entropy(outputs, y, reduction="sum")

    weights = {name: value.detach() for name, value in model.named_parameters()}
    parts = [torch.func.grad(loss)(weights, *part) for part in zip(x.split(sizes), y.split(sizes))]
    return [sum(part[name] for part in parts) / len(y) for name in weights]


@right("gradient_of_parts")
def keeping_the_last_graph(model, x, y, sizes):
    model.zero_grad()
    for inputs, classes in zip(x.split(sizes), y.split(sizes)):
        loss = F.cross_entropy(model(inputs), classes, reduction="sum") / len(y)
        loss.backward(retain_graph=True)
    return [parameter.grad for parameter in model.parameters()]


@right("gradient_of_parts")
def without_the_empty_parts(model, x, y, sizes):
    total, at = [torch.zeros_like(parameter) for parameter in model.parameters()], 0
    for size in filter(None, sizes):
        loss = F.cross_entropy(model(x[at : at + size]), y[at : at + size])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        total = [a + b * size / len(y) for a, b in zip(total, gradients, strict=True)]
        at += size
    return tuple(total)


# which_rows


@right("which_rows")
def by_other_rows(f, X):
    generator = torch.Generator().manual_seed(5)
    others = torch.rand(X.shape, dtype=X.dtype, generator=generator)
    numbers = torch.arange(len(X))[:, None]
    return [row for row in range(len(X)) if f(torch.where(numbers == row, others, X)) != f(X)]


@right("which_rows")
def by_nan(f, X):
    before, found = f(X), []
    for row in range(len(X)):
        changed = X.clone()
        changed[row] = float("nan")
        if f(changed) != before:
            found.append(row)
    return found


# mlp


class Stacked(nn.Sequential):
    def __init__(self, n_layers, dim_in, dim_hidden, n_classes):
        sizes = [dim_in] + [dim_hidden] * (n_layers - 1) + [n_classes]
        super().__init__()
        for k in range(n_layers):
            if k:
                self.append(nn.Tanh())
            self.append(nn.Linear(sizes[k], sizes[k + 1], bias=False))
            nn.init.kaiming_uniform_(self[-1].weight)


class BareWeights(nn.Module):
    def __init__(self, n_layers, dim_in, dim_hidden, n_classes):
        super().__init__()
        n_in, self.weights = dim_in, nn.ParameterList()
        for left in reversed(range(n_layers)):
            n_out = dim_hidden if left else n_classes
            bound = (6 / n_in) ** 0.5
            self.weights.append(nn.Parameter(torch.empty(n_out, n_in).uniform_(-bound, bound)))
            n_in = n_out

    def forward(self, x):
        for w in self.weights[:-1]:
            x = (x @ w.T).tanh()
        return x @ self.weights[-1].T


def by_a_mask(X, y):
    mask = torch.zeros(len(X), dtype=torch.bool)
    mask[torch.randperm(len(X))[: len(X) // 10]] = True
    return (X[~mask], y[~mask]), (X[mask], y[mask])


def by_random_numbers(X, y):
    test = torch.rand(len(y), generator=torch.Generator().manual_seed(1)).topk(len(y) // 10).indices
    train = [i for i in range(len(y)) if i not in set(test.tolist())]
    return [X[train], y[train]], [X[test], y[test]]


def in_two_summands(step, niters, first):
    return first + (0.3 * first - first) * step / niters


def with_autograd_grad(model, optimizer, x, y):
    loss = F.nll_loss(model(x).log_softmax(dim=-1), y)
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient
    optimizer.step()
    model.zero_grad()


def with_a_closure(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


@torch.inference_mode()
def in_inference_mode(model, X, y, batch_size=64):
    losses, model = [], model.eval()
    for at in range(0, len(y), batch_size):
        outputs = model(X[at : at + batch_size])
        losses += F.cross_entropy(outputs, y[at : at + batch_size], reduction="none").tolist()
    model.train()
    return sum(losses) / len(losses)


def with_frozen_weights(model, X, y, batch_size=64):
    model.requires_grad_(False)
    parts = zip(X.split(batch_size), y.split(batch_size))
    total = sum(F.cross_entropy(model(x), c).double() * len(c) for x, c in parts)
    model.requires_grad_(True)
    return float(total / len(y))


def with_a_scheduler(model, train_set, test_set, batches, learning_rate, every=100):
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    n, (X, y), history = len(batches), train_set, []
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: in_two_summands(s, n, 1.0))
    for step in range(n):
        if not step % every:
            losses = [in_inference_mode(model, *some) for some in (train_set, test_set)]
            history += [(step, *losses)]
            print(f"step {step} | train_loss {losses[0]:.4f} | test_loss {losses[1]:.4f}")
        with_a_closure(model, optimizer, X[batches[step]], y[batches[step]])
        scheduler.step()
    return history


def with_an_optimizer_for_each_step(model, train_set, test_set, batches, learning_rate, every=100):
    history = {}
    for step, chosen in enumerate(batches):
        if step % every == 0:
            history[step] = tuple(with_frozen_weights(model, *s) for s in (train_set, test_set))
            print(step, *history[step])
        rate = in_two_summands(step, len(batches), learning_rate)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with_autograd_grad(model, optimizer, *(some.index_select(0, chosen) for some in train_set))
    return [[step, *losses] for step, losses in history.items()]


@right("mlp", several=True)
def with_what_pytorch_has():
    return (
        Stacked,
        by_a_mask,
        in_two_summands,
        with_a_closure,
        in_inference_mode,
        with_a_scheduler,
    )


@functools.lru_cache(maxsize=2)
def weight_of(niters):
    return 0.7 / niters


def with_a_cache(step, niters, first):
    return first * (1 - step * weight_of(niters))


@right("mlp", several=True)
def with_a_function_that_has_a_cache():
    return (
        Stacked,
        by_a_mask,
        with_a_cache,
        with_a_closure,
        in_inference_mode,
        with_a_scheduler,
    )


@right("mlp", several=True)
def from_bare_tensors():
    return (
        BareWeights,
        by_random_numbers,
        in_two_summands,
        with_autograd_grad,
        with_frozen_weights,
        with_an_optimizer_for_each_step,
    )
