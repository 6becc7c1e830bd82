"""What the exercises of chapter 10 check: shards, means over them, the same start.

Those on batch statistics and on a whole step are in sync_step.
"""

import torch
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

summed_rate = Choice(
    "summed_rate",
    right="b",
    why={
        "a": "That would be the mean of the eight gradients. A sum is eight times as large.",
        "c": "The samples of a step are still 256. A sum does not add any.",
        "d": "Every rank uses 32 samples, but the sum holds the gradients of all 256.",
    },
    because="Eight times the mean, at the rate 0.1, moves the weights as the mean does at the rate "
    "0.8.",
)


def _close(one, other):
    return torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def _collectives_used(seen):
    """A sentence if a rank made a collective call."""
    if any(seen.collectives):
        return "The result is right. But build it from messages: send and recv are enough."
    return None


# dealt_to --------------------------------------------------------------------------------------


def _deal(n, ranks, drop_last=False):
    what = f"{n} sample{'s' * (n > 1)}{', drop_last' if drop_last else ''}"
    return Case(what, lambda rank, world_size: (rank, world_size, n, drop_last), ranks=ranks)


def _hands(inputs):
    _, world_size, n, drop_last = inputs[0]
    return replicas.hands(n, world_size, shuffle=False, drop_last=drop_last)


dealt_to = Exercise(
    "dealt_to",
    cases=[
        _deal(9, 4),
        _deal(9, 4, drop_last=True),
        _deal(2, 3),
        _deal(1, 4),
        _deal(12, 4),
        _deal(12, 3, drop_last=True),
        _deal(7, 2),
        _deal(11, 2, drop_last=True),
        _deal(5, 1),
    ],
    expected=_hands,
    hints=[
        Hint(
            lambda seen: len({len(hand) for hand in seen.results}) > 1,
            "The hands are not equally long. A rank with fewer samples would make fewer steps.",
        ),
        Hint(
            lambda seen: any(s >= seen.inputs[0][2] for hand in seen.results for s in hand),
            "There is no such sample. After the last one comes sample 0 again.",
        ),
        Hint(
            lambda seen: seen.inputs[0][3] and len(seen.results[0]) > len(seen.expected[0]),
            "With drop_last, nobody gets a sample twice: what does not make a whole round is left "
            "out.",
        ),
        Hint(
            lambda seen: not seen.inputs[0][3] and len(seen.results[0]) < len(seen.expected[0]),
            "Without drop_last every sample is dealt to somebody. Round up.",
        ),
        Hint(
            lambda seen: len(seen.inputs) > 1 and seen.results[0][:2] == [0, 1],
            "These are pieces, cut off one after the other. Cards are dealt around: 0 to rank 0, "
            "1 to rank 1.",
        ),
    ],
    hint="How many rounds are dealt? In round k, which card does this rank get?",
)


# average_shards --------------------------------------------------------------------------------


class _Weights(nn.Module):
    """Parameters with given gradients, or without."""

    def __init__(self, gradients, there):
        super().__init__()
        self.weights = nn.ParameterList(torch.ones_like(g) for g in gradients)
        for parameter, gradient in zip(self.weights, gradients):
            parameter.grad = gradient.clone() if there else None


def _drive_average(answer, gradients, samples):
    """Give a model with these gradients to the answer; return what they are afterwards."""
    model = _Weights(gradients, there=samples > 0)
    answer(model, samples)
    return [parameter.grad for parameter in model.weights]


def _shards(what, *samples, shapes=((2, 3), (4,)), dtype=torch.float64):
    """A case in which rank r has samples[r] samples."""

    def make(rank, world_size):
        generator = torch.Generator().manual_seed(rank)
        gradients = [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
        return gradients, samples[rank]

    return Case(what, make, ranks=len(samples))


def _of_the_text(rank, world_size):
    return [torch.tensor([(2.0, 5.0)[rank]])], (3, 1)[rank]


def _weighted(inputs):
    total = sum(samples for _, samples in inputs)
    places = zip(*(gradients for gradients, _ in inputs))
    mean = [sum(g * m / total for g, (_, m) in zip(place, inputs)) for place in places]
    return [mean] * len(inputs)


def _gradients_are(seen, weight):
    """Are the results the sum over the ranks of weight(samples, all samples, ranks) * gradient?"""
    n, total = len(seen.inputs), sum(samples for _, samples in seen.inputs)
    wanted = sum(weight(m, total, n) * gradients[0] for gradients, m in seen.inputs if m)
    return _close(seen.results[0][0], wanted)


average_shards = Exercise(
    "average_shards",
    cases=[
        Case("gradients 2 and 5, of 3 samples and 1", _of_the_text, ranks=2),
        _shards("shards of 4, 0 and 2", 4, 0, 2),
        _shards("equal shards", 2, 2, 2, 2),
        _shards("shards of 5, 1, 3 and 7", 5, 1, 3, 7),
        _shards("float32", 1, 6, shapes=[(5,)], dtype=torch.float32),
        _shards("rank 0 has none", 0, 3),
        _shards("alone", 3),
    ],
    expected=_weighted,
    drive=_drive_average,
    hints=[
        Hint(
            lambda seen: (
                any(samples == 0 for _, samples in seen.inputs)
                and (seen.happened != "error" or "NoneType" in seen.error)
            ),
            "A rank without samples has no gradients, and must take part in every all-reduce all "
            "the same. What can it give that changes nothing?",
            when=("stuck", "died", "error"),
        ),
        replicas.RETURNS_NOTHING,
        Hint(
            lambda seen: any(g is None for g in seen.results[0]),
            "A rank without samples is to get everybody's gradient, too.",
        ),
        Hint(
            lambda seen: _gradients_are(seen, lambda m, total, n: 1 / n),
            "That is the plain mean, in which a rank with few samples counts as much as one with "
            "many.",
        ),
        Hint(
            lambda seen: _gradients_are(seen, lambda m, total, n: 1.0),
            "That is the sum of the gradients. Whose mean is asked for?",
        ),
        Hint(
            lambda seen: _gradients_are(seen, lambda m, total, n: m),
            "The gradients are weighted by the samples, and never divided by the number of all.",
        ),
        Hint(
            lambda seen: _gradients_are(seen, lambda m, total, n: m / total / n),
            "Divided once too often: the shares m / n add up to 1 already.",
        ),
        Hint(
            lambda seen: _gradients_are(
                seen, lambda m, total, n: 1 / sum(m > 0 for _, m in seen.inputs)
            ),
            "That is the mean over the ranks that have samples, and each counts the same.",
        ),
    ],
    hint="Each gradient is a mean over m samples. What is its share of the mean over all?",
)


# same_start ------------------------------------------------------------------------------------


class _OfManyKinds(nn.Module):
    """A model with what models have: another one on every rank."""

    def __init__(self, rank):
        super().__init__()
        generator = torch.Generator().manual_seed(rank)

        def draw(*shape, dtype=torch.float32):
            return torch.randn(*shape, dtype=dtype, generator=generator)

        self.layer = nn.Linear(3, 2)
        self.layer.weight.data = draw(2, 3)
        self.layer.bias.data = draw(2)
        self.layer.bias.requires_grad_(False)  # not trained
        self.exact = nn.Parameter(draw(4, dtype=torch.float64))
        self.turned = nn.Parameter(draw(3, 2).t())  # not in one piece
        self.norm = nn.BatchNorm1d(2)
        self.norm.running_mean.copy_(draw(2))
        self.norm.num_batches_tracked += 2**53 + 2 * rank + 1  # no float holds it
        self.register_buffer("passing", draw(3), persistent=False)


def _values(model):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in tensors}


def _drive_start(answer, number, src):
    """Run the answer on this rank's model; return its values, and if they are where they were."""
    model = _OfManyKinds(number)
    before = [tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()]]
    answer(model, src)
    after = [tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()]]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return {"values": _values(model), "in place": before == after, "trained": trained}


def _start(src, ranks):
    return Case(f"from rank {src}", lambda rank, world_size: (rank, src), ranks=ranks)


def _starts(inputs):
    model = _OfManyKinds(inputs[0][1])
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return [{"values": _values(model), "in place": True, "trained": trained}] * len(inputs)


def _unequal(seen):
    """The names of what is not as it should be, on any rank."""
    return {
        name
        for got, wanted in zip(seen.results, seen.expected)
        for name, value in got["values"].items()
        if not torch.equal(value, wanted["values"][name])
    }


def _other_rank_counted(seen):
    """Have all ranks the model of one rank, but not that of src?"""
    others = [rank for rank in range(len(seen.inputs)) if rank != seen.inputs[0][1]]
    models = [_values(_OfManyKinds(rank)) for rank in others]
    return any(
        all(torch.equal(got["values"][name], model[name]) for got in seen.results for name in model)
        for model in models
    )


def _of_no_rank(seen):
    """Has a rank a tensor that is in no rank's model?"""
    models = [_values(_OfManyKinds(rank)) for rank in range(len(seen.inputs))]
    return any(
        not any(torch.equal(value, model[name]) for model in models)
        for got in seen.results
        for name, value in got["values"].items()
    )


_BUFFERS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "passing"}

same_start = Exercise(
    "same_start",
    cases=[_start(1, 4), _start(0, 3), _start(1, 2), _start(3, 4), _start(0, 1)],
    expected=_starts,
    drive=_drive_start,
    trace=True,
    judge=_collectives_used,
    tolerance=(0.0, 0.0),
    hints=[
        Hint(
            lambda seen: True,
            "Does every message have its receiver? And must rank src hear from itself?",
            when=("stuck",),
        ),
        Hint(
            lambda seen: "contiguous" in seen.error.lower() or "dense" in seen.error.lower(),
            "One weight of this model is not in one piece in memory. Send x.contiguous(), receive "
            "into a box, and copy.",
            when=("error",),
        ),
        Hint(
            lambda seen: "leaf" in seen.error or "requires grad" in seen.error,
            "Autograd guards its parameters: take their `detach()`, which is the same memory.",
            when=("error",),
        ),
        Hint(
            lambda seen: _unequal(seen) == {"passing"},
            "One buffer is missing: it is not in the state dict. `model.buffers()` has it.",
        ),
        Hint(
            lambda seen: _unequal(seen) == {"norm.num_batches_tracked"},
            "Only the tensor of whole numbers is wrong. Is each sent in its own type?",
        ),
        Hint(
            lambda seen: _unequal(seen) and _unequal(seen) <= _BUFFERS,
            "The parameters are right. The model has more memory than that: its buffers.",
        ),
        Hint(
            lambda seen: _unequal(seen) == {"layer.bias"},
            "A parameter that is not trained belongs to the start, too.",
        ),
        Hint(
            lambda seen: _unequal(seen) == {"turned"},
            "The weight that is not in one piece has not changed: was a copy of it filled?",
        ),
        Hint(
            lambda seen: seen.results[0]["trained"] != seen.expected[0]["trained"],
            "What is trained and what is not must stay as it was.",
        ),
        Hint(
            lambda seen: not all(got["in place"] for got in seen.results),
            "The values are right, in other memory: an optimizer that was made before would go on "
            "with the old ones. Copy into what is there.",
        ),
        Hint(
            _other_rank_counted,
            "Which rank's model counts? It is `src`, whichever rank that is.",
        ),
        Hint(
            _of_no_rank,
            "Some numbers are those of no rank's model. Was the message there when you took it "
            "out of its box?",
        ),
    ],
    hint="Rank src sends every tensor to every other rank; those receive, in the same order.",
)
