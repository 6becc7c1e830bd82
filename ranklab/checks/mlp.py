"""What the exercise `mlp` of chapter 03 checks: a whole training program, part by part."""

import contextlib
import io
import math
from itertools import pairwise

import torch
from torch import nn

from ranklab.checks.training import case, model_of, samples
from ranklab.exercises import Exercise, Hint

_ORDER = ("MLP", "split", "rate_at", "train_step", "evaluate", "train")


class _Known(nn.Module):
    """A model that numbers have gone into; it notes who computes with it, and how."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.largest, self.graph = 0, False

    def forward(self, x):
        out = self.model(x)
        self.largest = max(self.largest, len(x))
        self.graph |= out.requires_grad
        return out


def _weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def _drive_shapes(parts, *sizes):
    """Shapes of the weights, and whether they are as Kaiming-uniform initialization has them."""
    weights = _weights(parts["MLP"](*sizes))
    bounds = [math.sqrt(6 / w.shape[1]) for w in weights if w.dim() == 2]
    reach = [w.abs().max().item() / b for w, b in zip(weights, bounds, strict=False)]
    kaiming = all(0.9 < r <= 1 + 1e-6 for r in reach)
    return {"weights": [list(w.shape) for w in weights], "Kaiming-uniform": kaiming}


def _shapes(n_layers, dim_in, dim_hidden, n_classes):
    sizes = [dim_in, *[dim_hidden] * (n_layers - 1), n_classes]
    shapes = [[n_out, n_in] for n_in, n_out in pairwise(sizes)]
    return {"weights": shapes, "Kaiming-uniform": True}


def _filled(model, sizes):
    """Put the weights of model_of(sizes) into a model of the answer's."""
    known = _weights(model_of(sizes))
    with torch.no_grad():
        for parameter, value in zip(model.double().parameters(), known, strict=True):
            parameter.copy_(value)
    return model


def _drive_forward(parts, sizes, x):
    n_layers, hidden = len(sizes) - 1, sizes[1] if len(sizes) > 2 else 7
    return _filled(parts["MLP"](n_layers, sizes[0], hidden, sizes[-1]), sizes)(x).detach()


def _drive_split(parts, n):
    """What became of n samples; sample i holds i, and its class is i % 3."""
    X, y = torch.arange(n, dtype=torch.float32).reshape(n, 1), torch.arange(n) % 3
    (train_X, train_y), (test_X, test_y) = parts["split"](X, y)
    train, test = train_X.flatten().tolist(), test_X.flatten().tolist()
    classes = [*train_y.tolist(), *test_y.tolist()]
    return {
        "for training": len(train),
        "for testing": len(test),
        "in both": len({*train} & {*test}),
        "in neither": n - len({*train, *test}),
        "each with its class": classes == [int(i) % 3 for i in [*train, *test]],
        "by chance": n < 100 or not _evenly_spaced(test),
    }


def _evenly_spaced(numbers):
    """Is it a stretch, the last tenth say, or every tenth? (Many drawn by chance never are.)"""
    return len({b - a for a, b in pairwise(sorted(numbers))}) <= 1


def _split(n):
    sizes = {"for training": n - n // 10, "for testing": n // 10}
    return sizes | {"in both": 0, "in neither": 0, "each with its class": True, "by chance": True}


def _drive_rate(parts, steps, niters, first):
    return [parts["rate_at"](step, niters, first) for step in steps]


def _drive_step(parts, sizes, x, y, many):
    model = model_of(sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(many):
        parts["train_step"](model, optimizer, x, y)
    return _weights(model)


def _stepped(sizes, x, y, many):
    model = model_of(sizes)
    for _ in range(many):
        _descend(model, x, y, 0.5)
    return _weights(model)


def _descend(model, x, y, rate):
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= rate * gradient


def _drive_evaluate(parts, sizes, x, y, batch_size):
    model = _Known(model_of(sizes))
    before = _weights(model)
    loss = parts["evaluate"](model, x, y, batch_size)
    kept = all(torch.equal(a, b) for a, b in zip(before, _weights(model), strict=True))
    kept &= all(parameter.grad is None for parameter in model.parameters())
    return {
        "loss": loss,
        "a plain number": not isinstance(loss, torch.Tensor),
        "weights and gradients as before": kept,
        "a graph was recorded": model.graph,
        "at most batch_size at a time": model.largest <= batch_size,
    }


def _evaluated(sizes, x, y, batch_size):
    return {
        "loss": nn.functional.cross_entropy(model_of(sizes)(x), y).item(),
        "a plain number": True,
        "weights and gradients as before": True,
        "a graph was recorded": False,
        "at most batch_size at a time": True,
    }


def _drive_train(parts, sizes, train_set, test_set, batches, rate, every):
    model = model_of(sizes)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history = parts["train"](model, train_set, test_set, batches, rate, every)
    print(printed.getvalue(), end="")  # as without this, where the reader looks for it
    lines = printed.getvalue().splitlines()
    return {"losses": history, "weights": _weights(model), "lines printed": len(lines)}


def _trained(sizes, train_set, test_set, batches, rate, every):
    model, history = model_of(sizes), []
    for step, chosen in enumerate(batches):
        if step % every == 0:
            losses = [
                nn.functional.cross_entropy(model(X), y).item() for X, y in (train_set, test_set)
            ]
            history.append((step, *losses))
        X, y = train_set
        _descend(model, X[chosen], y[chosen], rate * (1 - 0.7 * step / len(batches)))
    return {"losses": history, "weights": _weights(model), "lines printed": len(history)}


_PARTS = {  # part -> (what runs on the rank, what it should give)
    "shapes": (_drive_shapes, _shapes),
    "forward": (_drive_forward, lambda sizes, x: model_of(sizes)(x).detach()),
    "split": (_drive_split, _split),
    "rate": (
        _drive_rate,
        lambda steps, niters, first: [first * (1 - 0.7 * s / niters) for s in steps],
    ),
    "step": (_drive_step, _stepped),
    "evaluate": (_drive_evaluate, _evaluated),
    "train": (_drive_train, _trained),
}


def _drive_mlp(answers, part, *args):
    return _PARTS[part][0](dict(zip(_ORDER, answers, strict=True)), *args)


def _expect_mlp(inputs):
    part, *args = inputs[0]
    return [_PARTS[part][1](*args)]


def _training(niters, every):
    X, y = samples(40, seed=3)
    batches = [torch.arange(7 * step, 7 * step + 7) % 30 for step in range(niters)]
    return [5, 4, 4, 3], (X[:30], y[:30]), (X[30:], y[30:]), batches, 0.4, every


def _in(part, test=lambda got, right: True):
    """A test for a hint: does it concern this part, and does test(got, right) hold?"""
    return lambda seen: seen.inputs[0][0] == part and test(seen.results[0], seen.expected[0])


def _lost(key):
    return lambda got, right: got[key] != right[key]


def _history(got, right):
    """Are the losses those that are expected, entry by entry?"""
    pairs = zip(got["losses"], right["losses"], strict=True)
    return all(_close(one, other) for one, other in pairs)


def _with_an_end(got, right):
    """Is there an entry more than the lines, for the end?"""
    return len(got["losses"]) == len(right["losses"]) + 1


mlp = Exercise(
    "mlp",
    cases=[
        case("MLP(4, 1024, 256, 32): its weights", "shapes", 4, 1024, 256, 32),
        case("MLP(1, 30, 20, 10): its weights", "shapes", 1, 30, 20, 10),
        case("MLP(3, 50, 20, 7): its weights", "shapes", 3, 50, 20, 7),
        case("an MLP of 4 layers with known weights", "forward", [5, 4, 4, 4, 3], samples(6)[0]),
        case("an MLP of 1 layer with known weights", "forward", [5, 3], samples(2)[0]),
        case("split of 200 samples", "split", 200),
        case("split of 57 samples", "split", 57),
        case("rate_at, 1000 steps from 0.1", "rate", [0, 1, 500, 999, 1000], 1000, 0.1),
        case("rate_at, 7 steps from 2", "rate", [0, 3, 6], 7, 2.0),
        case("one train_step", "step", [5, 4, 3], *samples(8), 1),
        case("three times train_step", "step", [5, 4, 3], *samples(8), 3),
        case("evaluate, 20 samples, 5 at a time", "evaluate", [5, 4, 3], *samples(20), 5),
        case("evaluate, 21 samples, 5 at a time", "evaluate", [5, 4, 3], *samples(21), 5),
        case("evaluate, 3 samples, 64 at a time", "evaluate", [5, 4, 3], *samples(3), 64),
        case("train, 5 steps, a line for each second", "train", *_training(5, 2)),
        case("train, 8 steps, one line", "train", *_training(8, 100)),
    ],
    expected=_expect_mlp,
    drive=_drive_mlp,
    trains=True,
    answers=len(_ORDER),
    gaps=len(_ORDER) + 1,  # two of them in the model
    tolerance=(1e-6, 1e-9),
    hints=[
        Hint(
            _in("shapes", lambda got, right: len(got["weights"]) > len(right["weights"])),
            "There are more weights than layers: a bias=True somewhere, or a layer too many?",
        ),
        Hint(
            _in("shapes", lambda got, right: got["weights"] == right["weights"]),
            "nn.Linear has drawn its weights by its own rule. Draw them again with "
            "nn.init.kaiming_uniform_(layer.weight).",
        ),
        Hint(_in("shapes"), "n_layers counts the linear layers, the first and the last included."),
        Hint(
            _in("forward", lambda got, right: got.shape != right.shape),
            "The last layer gives a number for each class; it is one of self.layers, too.",
        ),
        Hint(
            _in("forward", lambda got, right: got.abs().max() <= 1),
            "No output is above 1: is there a tanh after the last layer, too?",
        ),
        Hint(_in("forward"), "Each layer in turn, and torch.tanh between them."),
        Hint(
            _in("split", lambda got, right: not got["for testing"] or not got["for training"]),
            "Both sets are to hold samples.",
        ),
        Hint(
            _in("split", lambda got, right: got["for training"] == right["for testing"]),
            "That is the wrong way round: a tenth is for testing.",
        ),
        Hint(
            _in("split", _lost("each with its class")),
            "A sample and its class must go the same way: use the same order for X and y.",
        ),
        Hint(
            _in("split", _lost("in both")),
            "A sample that is trained on says nothing about new ones. Cut one order in two.",
        ),
        Hint(
            _in("split", _lost("in neither")),
            "Every sample belongs in one of the two sets; none may be lost.",
        ),
        Hint(
            _in("split", _lost("for testing")),
            "No sample is lost, and the sets have other sizes: a tenth, rounded down, is "
            "len(X) // 10.",
        ),
        Hint(
            _in("split", _lost("by chance")),
            "The first or the last tenth can be special in data that somebody has sorted, and "
            "every tenth in data that comes in turns.",
        ),
        Hint(_in("split"), "Return (train X, train y), (test X, test y): two pairs of tensors."),
        Hint(_in("rate"), "At step niters the rate would be 0.3 · first; half-way, 0.65 · first."),
        Hint(
            lambda seen: seen.case.what == "three times train_step" and seen.found == "value",
            "The first step is right. backward() adds to the gradients that are there: the "
            "optimizer's zero_grad() removes them.",
        ),
        Hint(_in("step"), "Forward, loss, backward, optimizer.step(), each once."),
        Hint(
            _in("evaluate", _lost("weights and gradients as before")),
            "An evaluation looks. No backward, no step.",
        ),
        Hint(
            _in("evaluate", _lost("a graph was recorded")),
            "Put the model's call under torch.no_grad(): otherwise it keeps all activations.",
        ),
        Hint(
            _in("evaluate", _lost("at most batch_size at a time")),
            "Give the model batch_size samples at a time; a large set may not fit otherwise.",
        ),
        Hint(
            _in("evaluate", _lost("a plain number")),
            "Return a float: .item() gives one.",
        ),
        Hint(
            _in("evaluate", lambda got, right: got["loss"] is None),
            "Return the mean loss.",
        ),
        Hint(
            lambda seen: seen.case.what == "evaluate, 21 samples, 5 at a time",
            "A mean of means counts the one sample of the last batch as much as five others. "
            "Add up sums, and divide by the number of samples.",
        ),
        Hint(
            _in("train", lambda got, right: got["losses"] is None),
            "Return the list of (step, train loss, test loss).",
        ),
        Hint(
            _in("train", _with_an_end),
            "An entry for each line and none for the end: the chapter's own `train` adds one.",
        ),
        Hint(
            _in("train", lambda got, right: len(got["losses"]) == len(right["losses"]) - 1),
            "The first step, number 0, has an entry, too.",
        ),
        Hint(
            _in("train", lambda got, right: len(got["losses"]) != len(right["losses"])),
            "An entry is due where step % every == 0, and at no other step.",
        ),
        Hint(
            _in("train", lambda got, right: not _has_triples(got["losses"])),
            "An entry is (step, train loss, test loss), with plain numbers.",
        ),
        Hint(
            _in(
                "train",
                lambda got, right: [e[0] for e in got["losses"]] != [e[0] for e in right["losses"]],
            ),
            "The first number of an entry is the number of the step, from 0.",
        ),
        Hint(
            _in("train", lambda got, right: got["losses"][0][1] == got["losses"][0][2]),
            "Both losses are the same: on which set is the test loss taken?",
        ),
        Hint(
            _in("train", lambda got, right: not _close(got["losses"][0], right["losses"][0])),
            "The very first losses are wrong: take both before the step, each on its set.",
        ),
        Hint(
            _in("train", lambda got, right: not _history(got, right) or _other_weights(got, right)),
            "The first losses are right and the weights go another way: does every step set the "
            "rate of rate_at(step, len(batches), learning_rate) before it trains, and does it "
            "train on the chosen samples of train_set alone?",
        ),
        Hint(
            _in("train", _lost("lines printed")),
            "The losses and the weights are right. Each line is to be printed, once, and nothing "
            "else: print(line(step, train_loss, test_loss, seconds)).",
        ),
    ],
    hint="The parts above this one are right. Compare this one with its docstring.",
)


def _has_triples(losses):
    """Is each entry three numbers?"""
    triples = [entry for entry in losses if isinstance(entry, (tuple, list)) and len(entry) == 3]
    numbers = (int, float, torch.Tensor)
    return len(triples) == len(losses) and all(isinstance(n, numbers) for t in triples for n in t)


def _other_weights(got, right):
    pairs = zip(got["weights"], right["weights"], strict=True)
    return not all(torch.allclose(one, other) for one, other in pairs)


def _close(one, other):
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))
