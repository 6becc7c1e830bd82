# Generated from book/03_training.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: ef650b891ecf).
#
# === The MLP ==========================================================================
#
# Build, about 30 minutes. The program of the exercise that this chapter follows, with
# its gaps. Complete, in this order: the model (`MLP(4, 1024, 256, 32)` has weights of
# the shapes (256, 1024), (256, 256), (256, 256) and (32, 256)), the split, the learning
# rate, one step, the evaluation, and the training loop. The check tells you how far you
# are; run it as often as you like. `run(["--niters", "200"])` then trains, and prints
# lines of the chapter's form. The docstrings say what is wanted; it is not always what
# the chapter's functions of the same names do. `MLP`, `split`, `evaluate`, `train` and
# others are defined anew: should you go back, run the chapter's cells again.
#
#     python scripts/exercises/03_mlp.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import argparse
import time

import torch
from sklearn.datasets import make_classification
from torch import nn

OPTIONS = {"n_layers": 4, "dim_in": 1024, "n_classes": 32, "dim_hidden": 256}
OPTIONS |= {"train_size": 10000, "batch_size": 64, "learning_rate": 0.1}
OPTIONS |= {"niters": 1000, "port": 29000}


class MLP(nn.Module):
    """n_layers linear layers without bias, tanh between them.

    From dim_in to dim_hidden, ..., from dim_hidden to n_classes.
    """

    def __init__(self, n_layers, dim_in, dim_hidden, n_classes):
        super().__init__()
        self.layers = nn.ModuleList()
        # TODO: append the layers, in order, each with
        # nn.init.kaiming_uniform_(layer.weight). With n_layers = 1 there is
        # one, from dim_in to n_classes.
        # YOUR CODE HERE
        raise NotImplementedError()

    def forward(self, x):
        """x: (batch, dim_in). Returns (batch, n_classes)."""
        # TODO: each layer, with torch.tanh after all but the last.
        # YOUR CODE HERE
        raise NotImplementedError()


def split(X, y):
    """Return (train X, train y), (test X, test y): a tenth is for testing.

    Rounded down. Which samples these are is random; every sample is in exactly
    one of the two.
    """
    # TODO: torch.randperm(n) is a random order.
    # YOUR CODE HERE
    raise NotImplementedError()


def rate_at(step, niters, first):
    """The learning rate of a step: falls in a line.

    From `first` at step 0 to 0.3 first at niters.
    """
    # TODO
    # YOUR CODE HERE
    raise NotImplementedError()


def train_step(model, optimizer, x, y):
    """Train on one batch; the loss is cross-entropy."""
    # TODO: forward, backward, update. What must happen to the gradients of
    # the step before?
    # YOUR CODE HERE
    raise NotImplementedError()


def evaluate(model, X, y, batch_size=64):
    """Return the mean loss over all samples, a float.

    The model sees batch_size of them at a time.
    Weights and gradients stay as they are, and no graph is recorded.
    """
    # TODO: the last batch can be smaller. It must not count as much as a full
    # one.
    # YOUR CODE HERE
    raise NotImplementedError()


def train(model, train_set, test_set, batches, learning_rate, every=100):
    """Train a step for each of `batches`: numbers of samples of train_set.

    Before every `every`-th step, the first included, both losses are taken;
    after it, a line with its seconds is printed. The rate is rate_at's, with
    niters = len(batches). Returns what the lines say, and no more: [(step,
    train loss, test loss)].
    """
    # TODO: an optimizer: torch.optim.SGD. Then for each step: both losses and
    # a line, where they are due; the rate, optimizer.param_groups[0]["lr"];
    # train_step on the chosen samples. Each line is printed:
    # print(line(step, train_loss, test_loss, seconds)); line is below.
    # YOUR CODE HERE
    raise NotImplementedError()


def line(step, train_loss, test_loss, seconds):
    """A line of the chapter's form."""
    losses = f"train_loss {train_loss:.4f} | test_loss {test_loss:.4f}"
    return f"step {step} | {losses} | step time {1000 * seconds:.2f}ms"


def run(arguments):
    """The whole program. arguments: a list of strings, as on a command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, value in OPTIONS.items():
        name = f"--{name.replace('_', '-')}"
        parser.add_argument(name, type=type(value), default=value)
    o = parser.parse_args(arguments)
    print(vars(o))
    torch.manual_seed(0)  # split, weights and batches: the same in every run
    X, y = make_classification(
        n_samples=o.train_size,
        n_features=o.dim_in,
        n_informative=o.dim_in // 2,
        n_classes=o.n_classes,
        n_clusters_per_class=10,
        random_state=0,
    )
    X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    train_set, test_set = split(X, y)
    n = len(train_set[0])
    epochs = 1 + o.niters * o.batch_size // n
    orders = [torch.randperm(n) for _ in range(epochs + 1)]
    batches = [b for order in orders for b in order.split(o.batch_size)]
    batches = batches[: o.niters]
    model = MLP(o.n_layers, o.dim_in, o.dim_hidden, o.n_classes)
    return train(model, train_set, test_set, batches, o.learning_rate)


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("mlp", MLP, split, rate_at, train_step, evaluate, train) else 1)
