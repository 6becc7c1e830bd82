"""The two exercises on data parallel training: with PyTorch's DDP, and by hand.

Both are compared with one process that sees every batch whole, in float64. A sample carries its own
number in its first feature, so that it can be seen which rank computed on which.
"""

import contextlib
import gc
import io
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from ranklab.exercises import Case, Exercise, Hint

FEATURES, HIDDEN, CLASSES = 5, 7, 3
RATE = 0.3
TOLERANCE = (1e-9, 1e-11)  # of weights and losses: the order of the additions is free

SAMPLES, SIZES = "samples of each step", "shares of each step"
WEIGHTS, LOSSES, LINES = "weights", "losses", "lines printed"


# Data and models


def _data(many, seed=0):
    """Return inputs (many, FEATURES) and labels (many,); sample i carries the number i."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(many, FEATURES, dtype=torch.float64, generator=generator)
    inputs[:, 0] = torch.arange(many) / 64
    return inputs, torch.randint(CLASSES, (many,), generator=generator)


def _numbers(inputs):
    """Return the numbers that the samples carry."""
    return [round(number) for number in (inputs[:, 0] * 64).tolist()]


class _Tanh(nn.Sequential):
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


IDLE = {"first.bias", "unused"}
MODELS = {"tanh": _Tanh, "idle parts": _WithIdleParts}


def _model(kind, seed):
    """Return a model in float64; another seed, other weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[kind]().double()


def _weights(model):
    """Return {name: values} of all parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


# On a rank: the answer, watched


def _watch(answer, model, *args):
    """Run answer(model, *args); return its result, the samples of its steps, and its lines."""
    steps = []

    def note(_, inputs):
        if torch.is_grad_enabled():  # a mere look at the loss is no step
            steps.append(_numbers(inputs[0]))

    watching = model.register_forward_pre_hook(note)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        losses = answer(model, *args)
    watching.remove()
    print(printed.getvalue(), end="")
    gc.collect()  # a DDP in a circle of references would outlive the process group
    return losses, steps, printed.getvalue().splitlines()


# Without ranks: the twin


def _twin(model, batches, rate=RATE):
    """Train on whole batches, in one process; return the losses of the steps."""
    losses = []
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
        losses.append(loss.item())
    return losses


# What went wrong


def _of(seen, key):
    """Return what each rank has under `key`."""
    return [result[key] for result in seen.results]


def _right(seen, key):
    return _of(seen, key) == [result[key] for result in seen.expected]


def _several(seen):
    return len(seen.results) > 1


def _flat(weights):
    """Return weights, a dict for each rank, as rows (ranks, numbers)."""
    return torch.stack([torch.cat([w.flatten() for w in one.values()]) for one in weights])


def _same(one, other):
    return torch.allclose(one, other, *TOLERANCE)


def _got_and_expected(seen):
    """Return the weights that came and those that should have: (ranks, numbers) each."""
    return _flat(_of(seen, WEIGHTS)), _flat([result[WEIGHTS] for result in seen.expected])


def _weights_right(seen):
    return _same(*_got_and_expected(seen))


def _weights_differ(seen):
    got, _ = _got_and_expected(seen)
    return not _same(got, got[:1].expand_as(got))


def _starts(seen):
    """Return the weights that the ranks come with: (ranks, numbers)."""
    return _flat([_weights(_model(*args[:2])) for args in seen.inputs])


def _others_stand_still(seen):
    """Did rank 0 move, and the others stay where they were, or where rank 0 began?"""
    (first, *others), start = _flat(_of(seen, WEIGHTS)), _starts(seen)
    still = [_same(got, own) or _same(got, start[0]) for got, own in zip(others, start[1:])]
    return _several(seen) and not _same(first, start[0]) and all(still)


def _idle_parts_differ(seen):
    """Do parameters without gradient differ from those of rank 0?"""
    return any(
        not _same(got[WEIGHTS][name], want[WEIGHTS][name])
        for got, want in zip(seen.results, seen.expected)
        for name in IDLE & want[WEIGHTS].keys()
    )


def _each_from_its_own_start(seen):
    """Did all ranks make the same steps, each from the weights that it came with?"""
    got, _ = _got_and_expected(seen)
    start = _starts(seen)
    return _weights_differ(seen) and torch.allclose(got - got[0], start - start[0], rtol=1e-6)


def _losses_differ(seen):
    losses = _of(seen, LOSSES)
    return _weights_right(seen) and any(other != losses[0] for other in losses)


def _losses_summed(seen):
    got, expected = (torch.tensor(results[0][LOSSES]) for results in (seen.results, seen.expected))
    return _several(seen) and torch.allclose(got, expected * len(seen.results))


ABOUT_LOSSES = (
    Hint(
        _losses_differ,
        "The training is right, but each rank returns a loss of its own: the mean over all ranks "
        "needs a collective.",
    ),
    Hint(_losses_summed, "That is the sum of the ranks' losses. What makes a mean of it?"),
)


# Exercise: with DistributedDataParallel


def _drive_ddp(answer, kind, seed, data, epochs, batch_size):
    """Run the answer to `ddp` on this rank."""
    model = _model(kind, seed)
    dataset = TensorDataset(*data)
    losses, steps, lines = _watch(answer, model, dataset, epochs, batch_size, RATE)
    lines = sum("train_loss" in line for line in lines)
    return {SAMPLES: steps, WEIGHTS: _weights(model), LOSSES: losses, LINES: lines}


def _dealt(many, batch_size, epochs, world_size):
    """Return the numbers of the samples that DistributedSampler deals out: [epoch][step][rank]."""
    share = batch_size // world_size
    samplers = [DistributedSampler(range(many), world_size, rank) for rank in range(world_size)]
    dealt = []
    for epoch in range(epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        hands = [list(sampler) for sampler in samplers]
        starts = range(0, len(hands[0]), share)
        dealt.append([[hand[start : start + share] for hand in hands] for start in starts])
    return dealt


def _expected_ddp(inputs):
    """Return what `ddp` leads to on each rank."""
    kind, seed, (features, labels), epochs, batch_size = inputs[0]
    dealt = _dealt(len(labels), batch_size, epochs, len(inputs))
    model, losses = _model(kind, seed), []
    for steps in dealt:
        whole = [list(itertools.chain(*shares)) for shares in steps]
        of_steps = _twin(model, [(features[batch], labels[batch]) for batch in whole])
        losses.append(sum(of_steps) / len(of_steps))
    return [
        {
            SAMPLES: [shares[rank] for steps in dealt for shares in steps],
            WEIGHTS: _weights(model),
            LOSSES: losses,
            LINES: epochs if rank == 0 else 0,
        }
        for rank in range(len(inputs))
    ]


def _hands(seen):
    """Return the samples of rank 0 in each epoch, those that came and those that should have."""
    epochs = seen.inputs[0][3]
    for results in (seen.results, seen.expected):
        steps = results[0][SAMPLES]
        many = len(steps) // epochs
        starts = range(0, many * epochs, many)
        yield [list(itertools.chain(*steps[start : start + many])) for start in starts]


def _all_take_all(seen):
    """Does every rank compute on as many samples as there are?"""
    (got, *_), (expected, *_) = _hands(seen)
    return len(got) > len(expected)


def _share_is_the_batch(seen):
    return len(seen.results[0][SAMPLES][0]) > len(seen.expected[0][SAMPLES][0])


def _every_epoch_the_same(seen):
    (first, second, *_), _ = _hands(seen)
    return not _right(seen, SAMPLES) and first == second


def _fewer_samples(seen):
    (got, *_), (expected, *_) = _hands(seen)
    return len(got) < len(expected)


def _not_shuffled(seen):
    (first, *_), _ = _hands(seen)
    return first == sorted(first)


def _everybody_prints(seen):
    return _several(seen) and all(_of(seen, LINES))


def _ddp_case(samples, batch_size, *, epochs, ranks):
    def make(rank, world_size):
        return "tanh", 1 + rank, _data(samples), epochs, batch_size

    what = f"{samples} samples, batches of {batch_size}, {epochs} epochs, {_ranks(ranks)}"
    return Case(what, make, ranks=ranks)


def _ranks(many):
    return "1 rank" if many == 1 else f"{many} ranks"


ddp = Exercise(
    "ddp",
    cases=[
        _ddp_case(48, 12, epochs=2, ranks=4),
        _ddp_case(50, 16, epochs=3, ranks=3),
        _ddp_case(40, 12, epochs=2, ranks=2),
        _ddp_case(61, 8, epochs=2, ranks=4),
        _ddp_case(10, 4, epochs=2, ranks=1),
    ],
    expected=_expected_ddp,
    drive=_drive_ddp,
    tolerance=TOLERANCE,
    hints=[
        Hint(_not_shuffled, "The samples come in the order of the dataset; they must be shuffled."),
        Hint(
            _every_epoch_the_same,
            "Every epoch has the order of the first one. How does the sampler learn that the next "
            "epoch has begun?",
        ),
        Hint(
            _all_take_all,
            "Every rank goes through all samples: the loader needs a sampler that deals them out.",
        ),
        Hint(
            _share_is_the_batch,
            "Each rank takes a whole batch at every step, and so all ranks together take too much. "
            "What is the share of one?",
        ),
        Hint(_fewer_samples, "Some samples are never used. Does the sampler drop the last ones?"),
        Hint(
            _weights_differ,
            "The ranks have different weights: each of them trains alone. What makes the start "
            "equal, and averages the gradients?",
        ),
        *ABOUT_LOSSES,
        Hint(_everybody_prints, "Every rank prints. One of them is enough."),
        Hint(lambda seen: not any(_of(seen, LINES)), "No rank prints the line."),
    ],
    hint="Compare what one rank does in a step with what one process would do without the others.",
)


# Exercise: by hand


def _drive_own(answer, kind, seed, batches):
    """Run the answer to `own_ddp` on this rank."""
    model = _model(kind, seed)
    losses, steps, _ = _watch(answer, model, batches, RATE)
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, steps)
    together = list(itertools.zip_longest(*everybody, fillvalue=[]))
    return {
        SAMPLES: [sorted(itertools.chain(*shares)) for shares in together],
        SIZES: [sorted(map(len, shares)) for shares in together],
        WEIGHTS: _weights(model),
        LOSSES: losses,
    }


def _expected_own(inputs):
    """Return what `own_ddp` leads to on each rank."""
    kind, seed, batches = inputs[0]
    world_size = len(inputs)
    model = _model(kind, seed)
    losses = _twin(model, batches)
    sizes = [
        [(len(labels) + rank) // world_size for rank in range(world_size)] for _, labels in batches
    ]
    samples = [_numbers(features) for features, _ in batches]
    result = {SAMPLES: samples, SIZES: sizes, WEIGHTS: _weights(model), LOSSES: losses}
    return [result] * world_size


def _as_with(seen, *, rate=1, rank=0):
    """Are the weights those of `rate` times the learning rate, or of another rank's start?"""
    kind, seed, batches = seen.inputs[rank]
    model = _model(kind, seed)
    _twin(model, batches, rate * RATE)
    got, _ = _got_and_expected(seen)
    return _several(seen) and _same(got[0], _flat([_weights(model)])[0])


def _uneven(seen):
    return any(sizes[0] != sizes[-1] for sizes in seen.expected[0][SIZES])


def _everything_everywhere(seen):
    got, expected = seen.results[0][SAMPLES], seen.expected[0][SAMPLES]
    return len(got[0]) == len(expected[0]) * len(seen.results) and _several(seen)


def _own_case(sizes, *, ranks, kind="tanh"):
    def make(rank, world_size):
        features, labels = _data(sum(sizes))
        return kind, 1 + rank, list(zip(features.split(sizes), labels.split(sizes)))

    what = "batches of " + ", ".join(map(str, sizes)) + f" samples, {_ranks(ranks)}"
    return Case(what + (", some parameters without gradient" * (kind != "tanh")), make, ranks=ranks)


own_ddp = Exercise(
    "own_ddp",
    cases=[
        _own_case([12, 12, 12], ranks=4),
        _own_case([8, 3, 8], ranks=4),
        _own_case([10, 7], ranks=4),
        _own_case([9, 6, 9], ranks=3),
        _own_case([8, 8], ranks=2),
        _own_case([8, 8], ranks=2, kind="idle parts"),
        _own_case([5, 1, 4], ranks=3),
        _own_case([5, 4], ranks=1),
    ],
    expected=_expected_own,
    drive=_drive_own,
    tolerance=TOLERANCE,
    hints=[
        Hint(
            _everything_everywhere,
            "Every rank computes on the whole batch. That is right, and no faster than one rank.",
        ),
        Hint(
            lambda seen: not _right(seen, SAMPLES),
            "Over all ranks, each sample of a batch must be computed on once.",
        ),
        Hint(
            lambda seen: not _right(seen, SIZES),
            "Each sample is used once, but the shares are not even.",
        ),
        Hint(
            _each_from_its_own_start,
            "The ranks' weights differ by as much as at the start: all make the same steps, each "
            "from its own weights. Who tells them the start?",
        ),
        Hint(_others_stand_still, "Rank 0 makes its steps, and the other ranks stand still."),
        Hint(
            _idle_parts_differ,
            "Parameters that have no gradient are parts of the model, too: those of rank 0 count.",
        ),
        Hint(_weights_differ, "The ranks have different weights. What must be equal at each step?"),
        Hint(
            lambda seen: _as_with(seen, rate=len(seen.results)),
            "The steps are world size times too long: the gradients were added up. And then?",
        ),
        Hint(
            lambda seen: any(_as_with(seen, rank=rank) for rank in range(1, len(seen.results))),
            "These are the weights of a training that starts with another rank's weights; those "
            "of rank 0 count.",
        ),
        *ABOUT_LOSSES,
        Hint(
            lambda seen: not _weights_right(seen) and _uneven(seen),
            "All ranks agree, on something else than one process. Where the shares are of "
            "different sizes, is the mean of the ranks' means the mean of the batch?",
        ),
    ],
    hint="Write down the gradient of the mean over the whole batch as a sum over the ranks.",
)
