"""Trainings on several ranks beside the training of one process: what checks of them share.

A sample carries its own number in its first feature, so that it can be seen which rank computed on
which. Everything is in float64.
"""

import contextlib
import gc
import io
import itertools

import torch
from torch import nn
from torch.utils.data import DistributedSampler

RATE = 0.3
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # of weights and losses: the order of additions is free
FEATURES, HIDDEN, CLASSES = 5, 7, 3


# Data and models


def data(many):
    """Return inputs (many, FEATURES) and labels (many,); sample i carries the number i."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(many, FEATURES, dtype=torch.float64, generator=generator)
    inputs[:, 0] = torch.arange(many) / 64
    return inputs, torch.randint(CLASSES, (many,), generator=generator)


def numbers(inputs):
    """Return the numbers that the samples carry."""
    return [round(number) for number in (inputs[:, 0] * 64).tolist()]


def hands(n, ranks, epoch=0, **how):
    """Return what DistributedSampler deals of n samples: a list of numbers for each rank."""
    dealt = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(n), ranks, rank, **how)
        sampler.set_epoch(epoch)
        dealt.append(list(sampler))
    return dealt


class _Plain(nn.Sequential):
    """Linear layers without bias and tanh between them, as in chapter 3."""

    def __init__(self):
        super().__init__(
            nn.Linear(FEATURES, HIDDEN, bias=False),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            nn.Tanh(),
            nn.Linear(HIDDEN, CLASSES, bias=False),
        )


class _WithIdleParts(nn.Module):
    """A model with a bias that is not trained, and a parameter that no output depends on."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.first.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.randn(2))
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)))


MODELS = {"plain": _Plain, "with idle parts": _WithIdleParts}
IDLE = {"first.bias", "unused"}


def model(kind, seed):
    """Return a model of MODELS; another seed, other weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[kind]().double()


def weights(trained):
    """Return {name: values} of all parameters of a model."""
    return {name: value.detach().clone() for name, value in trained.named_parameters()}


# On a rank


def watch(answer, replica, *args):
    """Run answer(replica, *args) on this rank; return what came of it, as a dict.

    "steps": the numbers of the samples of each step; "weights"; "losses": what the answer
    returned; "lines": how many lines of a training it printed.
    """
    kind, steps = type(replica), []

    class Watched(kind):  # a hook would not see who calls forward() directly
        def forward(self, inputs):
            if torch.is_grad_enabled():  # a mere look at the loss is no step
                steps.append(numbers(inputs))
            return super().forward(inputs)

    replica.__class__ = Watched
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        losses = answer(replica, *args)
    print(printed.getvalue(), end="")
    gc.collect()  # a DDP in a circle of references would outlive the process group
    lines = sum("train_loss" in line for line in printed.getvalue().splitlines())
    return {"steps": steps, "weights": weights(replica), "losses": losses, "lines": lines}


# Without ranks


def train(alone, batches, rate=RATE, kept=0):
    """Train a model on whole batches, in one process; return the losses of the steps.

    kept: how many times the gradients of the step before are added to those of a step.
    """
    losses = []
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(alone(inputs), labels)
        for parameter in alone.parameters():
            parameter.grad = None if parameter.grad is None or not kept else kept * parameter.grad
        loss.backward()
        with torch.no_grad():
            for parameter in alone.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
        losses.append(loss.item())
    return losses


# The two beside each other


def about_weights(results, twin):
    """Say where a rank's weights are not those of the `twin`, a dict of them; else None."""
    for rank, result in enumerate(results):
        for name, want in twin.items():
            got = result["weights"][name]
            wrong = ~torch.isclose(got, want, **CLOSE)
            if wrong.any():
                at = tuple(wrong.nonzero()[0].tolist())
                return (
                    f"After the training, {name}{list(at)} is {got[at]:.6g} on rank {rank}.\n"
                    f"One process that is given the whole batches gets {want[at]:.6g}."
                )
    return None


def about_last_bits(results):
    """Say so if the weights of two ranks are close but not equal; else None."""
    for rank, result in enumerate(results):
        first = results[0]["weights"]
        if not all(torch.equal(value, first[name]) for name, value in result["weights"].items()):
            return (
                f"The weights of rank {rank} and of rank 0 differ in their last bits. Replicas "
                "must be equal to the last bit, or they drift apart."
            )
    return None


def about_losses(results, expected):
    """Say where a rank did not return the losses that are expected; else None."""
    for rank, result in enumerate(results):
        got = result["losses"]
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            what = "nothing" if got is None else f"{got!r:.60}"
            return f"It should return a list of {len(expected)} losses, and returned {what}."
        if wrong := [loss for loss in got if not isinstance(loss, float)]:
            return f"A loss should be a float, and one of them is {wrong[0]!r:.60}."
        if not close(_numbers_of(got), _numbers_of(expected)):
            said, wanted = (", ".join(f"{loss:.6g}" for loss in some) for some in (got, expected))
            return f"The losses on rank {rank}: {said}\nexpected:             {wanted}"
    return None


def _numbers_of(losses):
    return torch.tensor([float(loss) for loss in losses], dtype=torch.float64)


def flat(some):
    """Return weights, a dict for each rank, as rows: (ranks, numbers)."""
    return torch.stack([torch.cat([value.flatten() for value in one.values()]) for one in some])


def close(one, other):
    """Are two tensors the same, but for the order of additions?"""
    return torch.allclose(one, other, **CLOSE)


def chained(lists):
    return list(itertools.chain.from_iterable(lists))


# For hints


def of(seen, key):
    """Return what each rank has under `key`; nothing where the answer did not come to an end."""
    return [result[key] for result in seen.results]


def got_weights(seen):
    """Return the weights of all ranks: (ranks, numbers)."""
    return flat(of(seen, "weights"))


def weights_differ(seen):
    got = got_weights(seen)
    return not close(got, got[:1].expand_as(got))


def listed(numbers, most=8):
    some = ", ".join(map(str, numbers[:most]))
    return some + (f" and {len(numbers) - most} more" if len(numbers) > most else "") or "(none)"
