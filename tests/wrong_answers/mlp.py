"""Wrong answers to the exercise `mlp` of chapter 03: the right program with one part replaced."""

import contextlib
import io
from itertools import pairwise

import torch
from torch import nn

from wrong_answers import wrong


class MLP(nn.Module):
    def __init__(self, n_layers, dim_in, dim_hidden, n_classes):
        super().__init__()
        sizes = [dim_in, *[dim_hidden] * (n_layers - 1), n_classes]
        self.layers = nn.ModuleList(
            nn.Linear(n_in, n_out, bias=False) for n_in, n_out in pairwise(sizes)
        )
        for layer in self.layers:
            nn.init.kaiming_uniform_(layer.weight)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def split(X, y):
    order = torch.randperm(len(X))
    test, train = order[: len(X) // 10], order[len(X) // 10 :]
    return (X[train], y[train]), (X[test], y[test])


def rate_at(step, niters, first):
    return first * (1 - 0.7 * step / niters)


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def evaluate(model, X, y, batch_size=64):
    total = 0.0
    with torch.no_grad():
        for x, classes in zip(X.split(batch_size), y.split(batch_size)):
            total += nn.functional.cross_entropy(model(x), classes).item() * len(x)
    return total / len(X)


def line(step, train_loss, test_loss):
    return f"step {step} | train_loss {train_loss:.4f} | test_loss {test_loss:.4f}"


def train(model, train_set, test_set, batches, learning_rate, every=100, falling=True, held_out=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    history, sets = [], (train_set, test_set)
    for step, chosen in enumerate(batches):
        if step % every == 0:
            history.append((step, evaluate(model, *train_set), evaluate(model, *sets[held_out])))
            print(line(*history[-1]))
        if falling:
            optimizer.param_groups[0]["lr"] = rate_at(step, len(batches), learning_rate)
        train_step(model, optimizer, train_set[0][chosen], train_set[1][chosen])
    return history


RIGHT = {f.__name__: f for f in (MLP, split, rate_at, train_step, evaluate, train)}


def program(**other):
    """The six answers, some of them replaced."""
    return tuple((RIGHT | other).values())


# The model


class WithBias(MLP):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.layers[0] = nn.Linear(sizes[1], self.layers[0].out_features)


class LinearsOwnStart(MLP):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        for layer in self.layers:
            layer.reset_parameters()


class OneLayerMore(MLP):
    def __init__(self, n_layers, *sizes):
        super().__init__(n_layers + 1, *sizes)


class TanhAtTheEnd(MLP):
    def forward(self, x):
        return torch.tanh(super().forward(x))


class WithoutItsLast(MLP):
    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return x


class NoTanh(MLP):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@wrong("mlp", says=["its weights", "bias=True"], several=True)
def with_a_bias():
    return program(MLP=WithBias)


@wrong("mlp", says=["Kaiming-uniform", "nn.init.kaiming_uniform_"], several=True)
def not_initialized():
    return program(MLP=LinearsOwnStart)


@wrong("mlp", says=["its weights", "a layer too many"], several=True)
def one_layer_more():
    return program(MLP=OneLayerMore)


@wrong("mlp", says=["known weights", "after the last layer"], several=True)
def tanh_at_the_end():
    return program(MLP=TanhAtTheEnd)


@wrong("mlp", says=["an MLP of 4 layers", "one of self.layers, too"], several=True)
def without_its_last():
    return program(MLP=WithoutItsLast)


class OnlyItsLayers(MLP):
    def forward(self, x):
        raise NotImplementedError()


class OnlyItsLayersWithBias(WithBias):
    def forward(self, x):
        raise NotImplementedError()


def to_do(*args):
    raise NotImplementedError()


@wrong("mlp", says=["Not finished yet: case 4 of 16", "raises NotImplementedError"], several=True)
def its_layers_only():
    return OnlyItsLayers, to_do, to_do, to_do, to_do, to_do


@wrong("mlp", says=["Wrong in case 1 of 16", "bias=True"], several=True)
def its_layers_only_and_wrong():
    return OnlyItsLayersWithBias, to_do, to_do, to_do, to_do, to_do


@wrong("mlp", says=["known weights", "between them"], several=True)
def no_tanh():
    return program(MLP=NoTanh)


# The split


@wrong("mlp", says=["split of 200 samples", "the wrong way round"], several=True)
def split_the_wrong_way_round():
    return program(split=lambda X, y: split(X, y)[::-1])


@wrong("mlp", says=["split of 200 samples", "in data that somebody has sorted"], several=True)
def the_last_tenth():
    def last(X, y):
        cut = len(X) - len(X) // 10
        return (X[:cut], y[:cut]), (X[cut:], y[cut:])

    return program(split=last)


@wrong("mlp", says=["split of 200 samples", "comes in turns"], several=True)
def every_tenth():
    def regular(X, y):
        test = torch.arange(len(X) // 10).flip(0) * 10
        train = [i for i in range(len(X)) if i not in set(test.tolist())]
        return (X[train], y[train]), (X[test], y[test])

    return program(split=regular)


@wrong("mlp", says=["split of 200 samples", "says nothing about new ones"], several=True)
def test_samples_are_trained_on():
    return program(split=lambda X, y: ((X, y), split(X, y)[1]))


@wrong("mlp", says=["split of 200 samples", "the same order for X and y"], several=True)
def classes_shuffled_apart():
    def apart(X, y):
        (train_X, _), (test_X, _) = split(X, y)
        (_, train_y), (_, test_y) = split(X, y)
        return (train_X, train_y), (test_X, test_y)

    return program(split=apart)


@wrong("mlp", says=["split of 57 samples", "len(X) // 10"], several=True)
def a_tenth_rounded():
    def rounded(X, y):
        test, train = torch.randperm(len(X)).tensor_split([round(0.1 * len(X))])
        return (X[train], y[train]), (X[test], y[test])

    return program(split=rounded)


@wrong("mlp", says=["split of 57 samples", "none may be lost"], several=True)
def nine_tenths_rounded_down():
    def lossy(X, y):
        order, tenth = torch.randperm(len(X)), len(X) // 10
        test, train = order[:tenth], order[tenth : tenth + 9 * len(X) // 10]
        return (X[train], y[train]), (X[test], y[test])

    return program(split=lossy)


# The step


@wrong("mlp", says=["rate_at", "0.3 · first"], several=True)
def falling_to_zero():
    return program(rate_at=lambda step, niters, first: first * (1 - step / niters))


@wrong("mlp", says=["three times train_step", "zero_grad()"], several=True)
def gradients_add_up():
    def adding(model, optimizer, x, y):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return program(train_step=adding)


@wrong("mlp", says=["one train_step", "optimizer.step()"], several=True)
def no_update():
    def looking(model, optimizer, x, y):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    return program(train_step=looking)


# The evaluation


@wrong("mlp", says=["evaluate, 21 samples", "A mean of means"], several=True)
def mean_of_means():
    def means(model, X, y, batch_size=64):
        with torch.no_grad():
            losses = [
                nn.functional.cross_entropy(model(x), classes)
                for x, classes in zip(X.split(batch_size), y.split(batch_size))
            ]
        return torch.stack(losses).mean().item()

    return program(evaluate=means)


@wrong("mlp", says=["evaluate, 20 samples", "torch.no_grad()"], several=True)
def with_a_graph():
    def recorded(model, X, y, batch_size=64):
        with torch.enable_grad():
            parts = zip(X.split(batch_size), y.split(batch_size))
            losses = [nn.functional.cross_entropy(model(x), c, reduction="sum") for x, c in parts]
        return sum(losses).item() / len(X)

    return program(evaluate=recorded)


@wrong("mlp", says=["evaluate, 20 samples", "No backward, no step"], several=True)
def trained_while_evaluating():
    def training(model, X, y, batch_size=64):
        loss = nn.functional.cross_entropy(model(X), y)
        loss.backward()
        return loss.item()

    return program(evaluate=training)


@wrong("mlp", says=["evaluate, 20 samples", "batch_size samples at a time"], several=True)
def all_at_once():
    return program(evaluate=lambda model, X, y, batch_size=64: evaluate(model, X, y, len(X)))


# The training


@wrong("mlp", says=["train, 5 steps", "on which set"], several=True)
def test_loss_on_the_training_set():
    def published(*args):
        return train(*args, held_out=0)

    return program(train=published)


@wrong("mlp", says=["train, 5 steps", "rate_at(step, len(batches), learning_rate)"], several=True)
def constant_rate():
    def constant(*args):
        return train(*args, falling=False)

    return program(train=constant)


@wrong("mlp", says=["train, 5 steps", "before the step"], several=True)
def losses_after_the_step():
    def late(model, train_set, test_set, batches, learning_rate, every=100):
        optimizer, history = torch.optim.SGD(model.parameters(), lr=learning_rate), []
        for step, chosen in enumerate(batches):
            optimizer.param_groups[0]["lr"] = rate_at(step, len(batches), learning_rate)
            train_step(model, optimizer, train_set[0][chosen], train_set[1][chosen])
            if step % every == 0:
                history.append((step, evaluate(model, *train_set), evaluate(model, *test_set)))
                print(line(*history[-1]))
        return history

    return program(train=late)


def trains(after=lambda history, model, train_set, test_set: history, **how):
    """A `train` whose history or whose lines are not what they should be."""

    def train_and_more(model, train_set, test_set, batches, learning_rate, every=100):
        printed = how.get("printed", 1)
        with contextlib.redirect_stdout(io.StringIO()):
            history = train(model, train_set, test_set, batches, learning_rate, every)
        for entry in history:
            for _ in range(printed):
                print(line(*entry))
        return after(history, model, train_set, test_set)

    return program(train=train_and_more)


@wrong("mlp", says=["lines printed", "expected: 3", "got:      0", "print(line("], several=True)
def nothing_printed():
    return trains(printed=0)


@wrong("mlp", says=["lines printed", "got:      6", "nothing else", "it printed"], several=True)
def printed_twice():
    return trains(printed=2)


@wrong("mlp", says=["train, 5 steps", "none for the end"], several=True)
def an_entry_for_the_end():
    def ended(history, model, train_set, test_set):
        return [*history, (5, evaluate(model, *train_set), evaluate(model, *test_set))]

    return trains(ended)


@wrong("mlp", says=["train, 5 steps", "Return the list of (step"], several=True)
def no_history():
    return trains(lambda *_: None)


@wrong("mlp", says=["train, 5 steps", "An entry is (step"], several=True)
def history_of_test_losses():
    return trains(lambda history, *_: [entry[2] for entry in history])


@wrong("mlp", says=["train, 5 steps", "number of the step, from 0"], several=True)
def steps_from_one():
    return trains(lambda history, *_: [(step + 1, a, b) for step, a, b in history])
