"""The exercise on PyTorch's DistributedDataParallel.

It must end, on every rank, with the weights of one process that is given the whole batches.
"""

from torch.utils.data import TensorDataset

from ranklab.checks import _replicas as replicas
from ranklab.checks._said import called_as
from ranklab.old_checks._model import Case, Exercise, Hint


def _drive_ddp(answer, kind, seed, data, epochs, batch_size):
    """Run the answer to `ddp` on this rank."""
    dataset = TensorDataset(*data)
    model = replicas.model(kind, seed)
    return replicas.watch(answer, model, dataset, epochs, batch_size, replicas.RATE)


def _dealt(seen):
    """Return the numbers of the samples that DistributedSampler deals out: [epoch][step][rank]."""
    _, _, (_, labels), epochs, batch_size = seen.inputs[0]
    world_size = len(seen.inputs)
    share = batch_size // world_size
    dealt = []
    for epoch in range(epochs):
        hands = replicas.hands(len(labels), world_size, epoch)
        starts = range(0, len(hands[0]), share)
        dealt.append([[hand[start : start + share] for hand in hands] for start in starts])
    return dealt


def _twin_of_ddp(seen, rate=1):
    """Train in one process on what all ranks together are dealt, at `rate` times the rate."""
    kind, seed, (inputs, labels), *_ = seen.inputs[0]
    model, losses = replicas.model(kind, seed), []
    for steps in _dealt(seen):
        whole = [replicas.chained(shares) for shares in steps]
        batches = [(inputs[batch], labels[batch]) for batch in whole]
        of_steps = replicas.train(model, batches, rate * replicas.RATE)
        losses.append(sum(of_steps) / len(of_steps))
    return {"weights": replicas.weights(model), "losses": losses}


def _judge_ddp(seen):
    twin, epochs = _twin_of_ddp(seen), seen.inputs[0][3]
    return (
        _about_hands(seen)
        or replicas.about_weights(seen.results, twin["weights"])
        or replicas.about_last_bits(seen.results)
        or replicas.about_losses(seen.results, twin["losses"])
        or _about_lines(replicas.of(seen, "lines"), epochs)
    )


def _about_hands(seen):
    """Say where a rank did not compute on the samples that it is dealt."""
    steps_of_all = replicas.chained(_dealt(seen))
    for rank, steps in enumerate(replicas.of(seen, "steps")):
        expected = [shares[rank] for shares in steps_of_all]
        for i, (got, want) in enumerate(zip(steps, expected)):
            if got != want:
                return (
                    f"In step {i + 1}, rank {rank} computed on samples {replicas.listed(got)}.\n"
                    f"Those of the sampler are {replicas.listed(want)}."
                )
        if len(steps) != len(expected):
            return f"Rank {rank} made {len(steps)} steps, and {len(expected)} are expected."
    return None


def _about_lines(lines, epochs):
    """Say so if it is not rank 0 alone that prints a line for each epoch."""
    for rank, got in enumerate(lines):
        want = 0 if rank else epochs
        if got != want:
            return f"Rank {rank} printed {got} lines with a train_loss; expected: {want}."
    return None


def _first_two_epochs(seen):
    """Return the samples of rank 0 in the first epoch and in the second."""
    steps, epochs = seen.results[0]["steps"], seen.inputs[0][3]
    many = len(steps) // epochs
    return replicas.chained(steps[:many]), replicas.chained(steps[many : 2 * many])


def _every_epoch_the_same(seen):
    first, second = _first_two_epochs(seen)
    return first == second


def _not_shuffled(seen):
    first, _ = _first_two_epochs(seen)
    return first == sorted(first)


def _length_of_hand(seen):
    """Return how many samples rank 0 took in the first epoch, and how many it should have."""
    return len(_first_two_epochs(seen)[0]), sum(len(shares[0]) for shares in _dealt(seen)[0])


def _all_take_all(seen):
    got, want = _length_of_hand(seen)
    return got > want


def _fewer_samples(seen):
    got, want = _length_of_hand(seen)
    return got < want


def _same_start_and_alone_then(seen):
    """Did each rank start with the weights of rank 0, and train on its samples alone?"""
    kind, seed, (inputs, labels), *_ = seen.inputs[0]
    trained = []
    for rank in range(len(seen.inputs)):
        model = replicas.model(kind, seed)
        hands = [shares[rank] for shares in replicas.chained(_dealt(seen))]
        replicas.train(model, [(inputs[hand], labels[hand]) for hand in hands])
        trained.append(replicas.weights(model))
    return replicas.several(seen) and replicas.close(
        replicas.got_weights(seen), replicas.flat(trained)
    )


def _averaged_again(seen):
    """Are the weights those of gradients times the number of ranks, or divided by it?"""
    n, got = len(seen.results), replicas.got_weights(seen)[:1]
    twins = [_twin_of_ddp(seen, rate)["weights"] for rate in (n, 1 / n)]
    return n > 1 and any(replicas.close(got, replicas.flat([twin])) for twin in twins)


def _share_is_the_batch(seen):
    return replicas.several(seen) and len(seen.results[0]["steps"][0]) == seen.inputs[0][4]


def _other_share(seen):
    return len(seen.results[0]["steps"][0]) != len(_dealt(seen)[0][0][0])


def _ddp_case(samples, batch_size, *, epochs, ranks):
    def make(rank, world_size):
        return "plain", 1 + rank, replicas.data(samples), epochs, batch_size

    what = f"{samples} samples, batches of {batch_size}, {epochs} epochs"
    return Case(what, make, ranks=ranks)


ddp = Exercise(
    "ddp",
    cases=[
        _ddp_case(48, 12, epochs=2, ranks=4),
        _ddp_case(50, 16, epochs=3, ranks=3),
        _ddp_case(40, 12, epochs=2, ranks=2),
        _ddp_case(61, 8, epochs=2, ranks=4),
        _ddp_case(10, 4, epochs=2, ranks=1),
    ],
    expected=None,
    drive=_drive_ddp,
    trains=True,
    judge=_judge_ddp,
    hints=[
        called_as("train_ddp(model, dataset, epochs, batch_size, learning_rate)"),
        Hint(_not_shuffled, "The samples come in the order of the dataset; they must be shuffled."),
        Hint(
            _all_take_all,
            "Every rank goes through all samples: the loader needs a sampler that deals them out.",
        ),
        Hint(
            _every_epoch_the_same,
            "Every epoch has the order of the first one. How does the sampler learn that the next "
            "epoch has begun?",
        ),
        Hint(
            _share_is_the_batch,
            "At each step a rank takes a whole batch, and so all ranks together take too much. "
            "What is the share of one?",
        ),
        Hint(_other_share, "The share of a rank is the batch size by world size, rounded down."),
        Hint(_fewer_samples, "Some samples are never used. Does the sampler drop the last ones?"),
        Hint(
            _about_hands,
            "The samples are dealt out, but not as `DistributedSampler` does it with the seed that "
            "it has and the number of the epoch.",
        ),
        Hint(
            _same_start_and_alone_then,
            "All ranks start with the weights of rank 0, and then each of them trains alone: the "
            "gradients are averaged only if the samples go through the wrapped model. The loop "
            "calls `replica`.",
        ),
        Hint(
            replicas.weights_differ,
            "The ranks have different weights: each of them trains alone. What makes the start "
            "equal, and averages the gradients?",
        ),
        Hint(
            _averaged_again,
            "The steps are too long or too short by the number of ranks. At the end of `backward` "
            "DDP has averaged the gradients: nothing is left to do to them.",
        ),
        replicas.RETURNS_NOTHING,
        *replicas.hints_on_losses(_twin_of_ddp),
        Hint(
            lambda seen: all(replicas.of(seen, "lines")) and replicas.several(seen),
            "One rank is enough.",
        ),
        Hint(
            lambda seen: seen.results and not any(replicas.of(seen, "lines")),
            "Which rank prints the line?",
        ),
        Hint(
            lambda seen: True,
            "Every rank must make the same collective calls, in the same order. Is one of them "
            "inside of an `if`?",
            when=("stuck", "died"),
        ),
    ],
    hint="Compare a step of one rank with that of one process: its samples, its gradient.",
)
