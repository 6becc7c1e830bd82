# Generated from book/03_training.md by `make forms`: edit the manuscript, not this file.

"""The training loop: its time, and what its loss says: what chapter 03_training teaches."""

import functools
import time
from itertools import pairwise

import torch
from torch import nn


def make_data(n, dim_in=1024, n_classes=32, *, class_sep=1.0, seed=0):
    """Return n made-up samples: X (n, dim_in), float32, and y (n,), int64.

    class_sep: half the edge of the cube at whose corners the clusters are.
    """
    from sklearn.datasets import make_classification  # slow: only if wanted

    X, y = make_classification(
        n_samples=n,
        n_features=dim_in,
        n_informative=dim_in // 2,
        n_classes=n_classes,
        n_clusters_per_class=10,
        class_sep=class_sep,
        random_state=seed,
    )
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y)


class MLP(nn.Module):
    """Linear layers without bias, and tanh between them.

    sizes: of the input, of each hidden layer, and of the output.
    """

    def __init__(self, sizes, seed=0):
        super().__init__()
        self.layers = nn.ModuleList()
        for place, (n_in, n_out) in enumerate(pairwise(sizes)):
            layer = nn.Linear(n_in, n_out, bias=False, device="cpu")
            generator = torch.Generator().manual_seed(1000 * seed + place)
            nn.init.kaiming_uniform_(layer.weight, generator=generator)
            self.layers.append(layer)
        self.to(torch.get_default_device())  # drawn on the CPU, as everywhere

    def forward(self, x):
        """x: (batch, sizes[0]). Returns (batch, sizes[-1]), for each class."""
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.tanh(layer(x))
        return last(x)


@torch.no_grad()
def evaluate(model, X, y):
    """Return the mean cross-entropy over X (n, features) and y (n,), a float,
    and the share of samples whose class is found. Nothing is trained."""
    model.eval()  # for layers that train otherwise, such as dropout
    outputs = model(X)
    model.train()
    loss = nn.functional.cross_entropy(outputs, y).item()
    return loss, (outputs.argmax(1) == y).float().mean().item()


@functools.lru_cache(maxsize=2)  # every step asks; it holds for an epoch
def order_of_epoch(epoch, n, seed):
    """Return the numbers of n samples, in the random order of an epoch."""
    generator = torch.Generator().manual_seed(1000003 * seed + epoch)
    return torch.randperm(n, generator=generator, device="cpu")


def samples_of_step(step, n, batch_size, seed=0):
    """Return which of n samples step number `step` trains on: (batch_size,).

    Every epoch goes through the samples in a new random order, in full
    batches; what does not fill a batch is left out, other samples in each
    epoch. The result depends on the arguments alone, so every process can ask,
    in any order.
    """
    epoch, place = divmod(step, n // batch_size)
    order = order_of_epoch(epoch, n, seed)
    return order[place * batch_size : (place + 1) * batch_size]


def loss_and_gradients(model, x, y):
    """Return a batch's loss; leave its gradients in the parameters' .grad."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


def rate_at(step, niters, first=0.1):
    """The learning rate: falls in a line from `first` to 0.3 first."""
    return first * (1 - 0.7 * step / niters)


def now():
    """The time, once the GPU, if one is used, has done all it was asked."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def line(step, train_loss, test_loss, seconds):
    """What a training run prints of a step."""
    losses = f"train_loss {train_loss:.4f} | test_loss {test_loss:.4f}"
    return f"step {step} | {losses} | step time {1000 * seconds:.2f}ms"


def split(X, y, share=0.1, seed=0):
    """Return (train X, train y) and (test X, test y): a random share to test.

    Every sample is in exactly one of the two.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator, device="cpu")
    test, train = order.tensor_split([round(share * len(X))])
    return (X[train], y[train]), (X[test], y[test])


def losses_at(step, model, *sets):
    """Return the step, and the mean loss over each set (X, y)."""
    return step, *(evaluate(model, *one)[0] for one in sets)


def train(
    model,
    train_set,
    test_set,
    *,
    niters,
    batch_size,
    learning_rate,
    seed=0,
    report=print,
):
    """Train with SGD; return [(step, train loss, test loss)], taken every 100
    steps, each before its step and with a line to `report`, and at the end."""
    X, y = train_set
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    history = []
    for step in range(niters):
        if step % 100 == 0:
            history.append(losses_at(step, model, train_set, test_set))
        chosen = samples_of_step(step, len(X), batch_size, seed)
        x, labels = X[chosen], y[chosen]
        start = time.perf_counter()
        loss_and_gradients(model, x, labels)
        rate = rate_at(step, niters, learning_rate)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        if step % 100 == 0:
            report(line(*history[-1], time.perf_counter() - start))
    return [*history, losses_at(niters, model, train_set, test_set)]
