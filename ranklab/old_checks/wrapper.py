"""Three exercises of chapter 12: the first message, buckets, and an average now and then."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

first_message = Choice(
    "first_message",
    right="b",
    why={
        "a": "That bucket is the first one to be full. But it is the second one to be sent, and "
        "no bucket overtakes another.",
        "c": "Backward begins with the layer that was used last, and that is A: its gradient and "
        "B's are the first ones.",
        "d": "Nothing is wrong with it. All ranks send the same buckets in the same order, late.",
    },
    because="The buckets were dealt in reverse order of registration, and backward goes through "
    "the layers the other way. From the second step on, in the order of arrival, B and A leave "
    "first, and in the middle of backward.",
)


# deal ------------------------------------------------------------------------------------------


def _dealt(nbytes, first_bytes, bucket_bytes, more=0):
    """Deal; a bucket is closed when it has so many bytes, and `more`."""
    buckets, filling = [], []
    for k in reversed(range(len(nbytes))):
        filling.append(k)
        limit = bucket_bytes if buckets else first_bytes
        if sum(nbytes[j] for j in filling) >= limit + more:
            buckets.append(filling)
            filling = []
    return buckets + [filling] * bool(filling)


def _with_one_limit(nbytes, first_bytes, bucket_bytes):
    return _dealt(nbytes, bucket_bytes, bucket_bytes)


def _sizes(what, *args):
    return Case(what, lambda rank, world_size: args, ranks=1)


deal = Exercise(
    "deal",
    cases=[
        _sizes("five parameters of 4 bytes, 4 and 8", [4] * 5, 4, 8),
        _sizes("the last bucket is not full", [4] * 6, 4, 8),
        _sizes("one larger than a bucket", [4, 100, 4, 4], 4, 8),
        _sizes("nothing to deal", [], 4, 8),
        _sizes("all in the first bucket", [1, 2, 3], 100, 8),
        _sizes("some without bytes", [0, 4, 0, 8, 4], 4, 8),
        _sizes("weights and biases", [400, 40, 4000, 40, 400, 4], 100, 1000),
    ],
    expected=lambda inputs: [_dealt(*args) for args in inputs],
    hints=[
        Hint(
            lambda seen: [] in seen.results[0],
            "One of the buckets is empty: where the last one is closed just in time, nothing is "
            "left over.",
        ),
        Hint(
            lambda seen: seen.results[0] and 0 in seen.results[0][0],
            "The gradients of the last layers come first: the parameters are to be dealt from the "
            "last one to the first.",
        ),
        Hint(
            lambda seen: (
                sorted(k for some in seen.results[0] for k in some)
                != list(range(len(seen.inputs[0][0])))
            ),
            "Every parameter must be in one bucket, those too that come when no bucket gets full.",
        ),
        Hint(
            lambda seen: seen.results[0] == _with_one_limit(*seen.inputs[0]),
            "The first bucket is closed by `first_bytes`, all others by `bucket_bytes`.",
        ),
        Hint(
            lambda seen: seen.results[0] == _dealt(*seen.inputs[0], more=1),
            "A bucket that has just as many bytes is full, too.",
        ),
    ],
    hint="A bucket is closed as soon as it has so many bytes, or more.",
)


# average_every ---------------------------------------------------------------------------------


class _Net(nn.Module):
    """A layer that is used twice, one that is not trained, and one at the end."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.twice, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4)
            self.last = nn.Linear(4, 4, bias=False)
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(torch.tanh(self.twice(self.twice(x))))))


def _inputs_of(backward, rank):
    generator = torch.Generator().manual_seed(100 * backward + rank)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator)


def _drive_every(answer, every, backwards):
    """Return the gradients after each backward; they are dropped after every `every` of them."""
    model, rank, found = _Net(), dist.get_rank(), {}
    answer(model, every)
    for k in range(backwards):
        model(_inputs_of(k, rank)).square().mean().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found[_after(k)] = torch.cat([grad.flatten() for grad in grads])
        if (k + 1) % every == 0:
            model.zero_grad()
    return found


def _after(k):
    return f"every .grad after backward {k + 1}"


def _expected_every(inputs):
    every, backwards = inputs[0]
    of_ranks = []
    for rank in range(len(inputs)):
        model, sums, rows = _Net(), 0, []
        trained = [p for p in model.parameters() if p.requires_grad]
        for k in range(backwards):
            loss = model(_inputs_of(k, rank)).square().mean()
            grad = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
            sums = grad if k % every == 0 else sums + grad
            rows.append(sums)
        of_ranks.append(torch.stack(rows))
    mean = sum(of_ranks) / len(of_ranks)
    for rows in of_ranks:
        rows[every - 1 :: every] = mean[every - 1 :: every]
    return [{_after(k): row for k, row in enumerate(rows)} for rows in of_ranks]


def _judge_every(seen):
    """A sentence if there was an all-reduce too many."""
    every, backwards = seen.inputs[0]
    wanted = 3 * (backwards // every)  # twice.weight, twice.bias, last.weight
    for rank, calls in enumerate(seen.collectives):
        if sum(calls.values()) > wanted:
            return (
                f"Rank {rank} took part in {sum(calls.values())} collectives in {backwards} "
                f"backwards. {wanted} are enough: one a parameter, every {every} backwards."
            )
    return None


def _every(what, every, backwards, ranks):
    return Case(what, lambda rank, world_size: (every, backwards), ranks=ranks)


def _rows(seen, when):
    """(got, expected) of the backwards that average, or of the others, of all ranks."""
    every = seen.inputs[0][0]
    keep = [(k + 1) % every == 0 for k in range(seen.inputs[0][1])]
    chosen = [k for k, averages in enumerate(keep) if averages == when]
    return [
        (
            torch.stack([got[_after(k)] for k in chosen]),
            torch.stack([want[_after(k)] for k in chosen]),
        )
        for got, want in zip(seen.results, seen.expected)
    ]


def _agree(pairs, factor=1.0):
    return all(torch.allclose(got, factor * want, rtol=1e-9) for got, want in pairs)


def _agree_but_for_a_factor(pairs):
    got, want = pairs[0]
    largest = want.abs().argmax()
    factor = got.flatten()[largest] / want.flatten()[largest]
    return _agree(pairs, factor) and not _agree(pairs)


def _some_agree(pairs):
    """Are some parameters right after a backward, and others not?"""
    same = [torch.isclose(got, want, rtol=1e-9) for got, want in pairs]
    return any(row.any() and not row.all() for rows in same for row in rows)


def _first_average_is_right(seen):
    pairs = _rows(seen, True)
    return _agree([(got[:1], want[:1]) for got, want in pairs]) and not _agree(pairs)


def _only_new_parts_averaged(seen):
    """Is the mean over the ranks taken of the last backward's gradients alone?"""
    every = seen.inputs[0][0]
    before, last = _after(every - 2), _after(every - 1)
    own = [rows[before] for rows in seen.expected]
    mean = sum(own) / len(own)
    return all(
        torch.allclose(got[last] - want[last], one - mean, rtol=1e-9)
        for got, want, one in zip(seen.results, seen.expected, own)
    )


average_every = Exercise(
    "average_every",
    cases=[
        _every("every 2nd of 4 backwards", 2, 4, 4),
        _every("every backward", 1, 3, 2),
        _every("every 3rd of 7 backwards", 3, 7, 3),
        _every("every 2nd, alone", 2, 4, 1),
    ],
    expected=_expected_every,
    drive=_drive_every,
    judge=_judge_every,
    trace=True,
    tolerance=(1e-9, 1e-11),
    hints=[
        Hint(
            lambda seen: "cannot register a hook" in seen.error,
            "A parameter that is not trained has no gradient, and takes no hook.",
            when=("error",),
        ),
        Hint(
            lambda seen: seen.results and _agree(_rows(seen, True), len(seen.results)),
            "The gradients are the sums over the ranks; the means are asked for.",
        ),
        Hint(
            lambda seen: True,
            "Every rank must take part in every all-reduce, in the same order.",
            when=("stuck", "died"),
        ),
        replicas.RETURNS_NOTHING,
        Hint(
            lambda seen: _agree_but_for_a_factor(_rows(seen, True)),
            "It is the mean over the ranks, times a number. By what do you divide? Over the "
            "backwards, the gradients are added up.",
        ),
        Hint(
            lambda seen: _some_agree(_rows(seen, False)),
            "Some parameters average in this backward, and others do not. Does each of them have a "
            "count of its own?",
        ),
        Hint(
            lambda seen: seen.results and not _agree(_rows(seen, False)),
            "In a backward that does not average, .grad must be what the rank itself has "
            "added up so far.",
        ),
        Hint(
            _first_average_is_right,
            "The first average is right, and a later one is not. Which counts are to average?",
        ),
        Hint(
            _only_new_parts_averaged,
            "Only what the last backward brought is averaged. A hook of which kind sees .grad, and "
            "not only what comes in new?",
        ),
        Hint(
            lambda seen: seen.results and not _agree(_rows(seen, True)),
            "The last of so many backwards must leave the mean of what *all* of them added up.",
        ),
    ],
    hint="Count, for each parameter by itself, how often its gradient was complete.",
)
