"""A training with PyTorch's DistributedDataParallel.

It must end, on every rank, with the weights of one process that is given the whole batches.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ranklab.checks import _replicas as replicas
from ranklab.checks._mistakes import returns_nothing
from ranklab.exercises import Case, Exercise, Mistake

SAMPLER, SHARE = "DistributedSampler(dataset)", "// dist.get_world_size()\n    loader"
WRAPPED = "replica = DistributedDataParallel(model)"
SUMMED, MEAN = "        dist.all_reduce(total)\n", "mean = total[0] / total[1]"
WEIGHTED, COUNTED = "len(labels) * loss.item()", "total[1] += len(labels)"
STEP = "            optimizer.step()\n"
STEPS, LINES = "samples of each step", "lines printed"
EVERY_GRADIENT = "            for p in model.parameters():\n                "


def case(samples, batch_size, *, epochs, ranks):
    def make(rank, world_size):
        return "plain", 1 + rank, replicas.data(samples), epochs, batch_size

    what = f"{samples} samples, batches of {batch_size}, {epochs} epochs"
    return Case(what, make, ranks=ranks)


def drive(answer, kind, seed, data, epochs, batch_size):
    model = replicas.model(kind, seed)
    dataset = TensorDataset(*data)
    came = replicas.watch(answer, model, dataset, epochs, batch_size, replicas.RATE)
    return {STEPS: came.pop("steps"), LINES: came.pop("lines"), **came}


def twin(inputs):
    """Train in one process on what all ranks together are dealt."""
    kind, seed, (x, y), epochs, batch_size = inputs[0]
    share = batch_size // len(inputs)
    model, losses, steps = replicas.model(kind, seed), [], []  # a step: the samples of each rank
    for epoch in range(epochs):
        hands = replicas.hands(len(y), len(inputs), epoch)
        dealt = [[hand[at : at + share] for hand in hands] for at in range(0, len(hands[0]), share)]
        whole = map(replicas.chained, dealt)
        batches = [(x[batch], y[batch]) for batch in whole]
        sums = [loss * len(of) for loss, (_, of) in zip(replicas.train(model, batches), batches)]
        losses.append(sum(sums) / sum(len(of) for _, of in batches))
        steps += dealt
    trained = {"weights": replicas.weights(model), "losses": losses}
    return [
        {STEPS: [shares[rank] for shares in steps], **trained, LINES: 0 if rank else epochs}
        for rank in range(len(inputs))
    ]


def judge(seen):
    for loss in replicas.chained(replicas.of(seen, "losses")):
        if not isinstance(loss, float):
            return f"A loss should be a float, and one of them is {loss!r:.60}."
    return replicas.about_last_bits(seen.results)


def taken(seen):
    """How many samples rank 0 took, and how many it should have taken."""
    return [sum(map(len, one[0][STEPS])) for one in (seen.results, seen.expected)]


def first_step(seen):
    return len(seen.results[0][STEPS][0])


def trained_right(seen):
    return not replicas.about_weights(seen.results, seen.expected[0]["weights"])


def losses_are_right(seen, rank):
    return not replicas.about_losses([seen.results[rank]], seen.expected[rank]["losses"])


def losses_at_the_end(model, dataset, epochs, batch_size, learning_rate):
    n = dist.get_world_size()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_sampler=None, batch_size=batch_size // n, sampler=sampler)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    totals, counts = torch.zeros(2, epochs, dtype=torch.float64)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(replica(inputs).log_softmax(dim=1), labels)
            loss.backward()
            optimizer.step()
            totals[epoch] += loss.item() * len(labels)
            counts[epoch] += len(labels)
    dist.all_reduce(totals)
    dist.all_reduce(counts)
    totals /= counts
    if dist.get_rank() == 0:
        print("\n".join(f"epoch {i} | train_loss {x:.4f}" for i, x in enumerate(totals)))
    return totals.tolist()


exercise = Exercise(
    cases=[
        case(48, 12, epochs=2, ranks=4),
        case(50, 16, epochs=3, ranks=3),
        case(40, 12, epochs=2, ranks=2),
        case(61, 8, epochs=2, ranks=4),
        case(10, 4, epochs=2, ranks=1),
    ],
    twin=twin,
    drive=drive,
    judge=judge,
    trains=True,
    tolerance=(replicas.CLOSE["rtol"], replicas.CLOSE["atol"]),
    hint="Compare a step of one rank with that of one process: its samples, its gradient.",
    mistakes=[
        Mistake(
            "The samples come in the order of the dataset; they must be shuffled.",
            {SAMPLER: "DistributedSampler(dataset, shuffle=False)"},
        ),
        Mistake(
            "Every rank goes through all samples: the loader needs a sampler that deals them out.",
            {SAMPLER: "DistributedSampler(dataset, num_replicas=1, rank=0)"},
            test=lambda seen: taken(seen)[0] > taken(seen)[1],
        ),
        Mistake(
            "Every epoch has the order of the first one. How does the sampler learn that the next "
            "epoch has begun?",
            {"        sampler.set_epoch(epoch)\n": ""},
        ),
        Mistake(
            "At each step a rank takes a whole batch, and so all ranks together take too much. "
            "What is the share of one?",
            {SHARE: "\n    loader"},
            test=lambda seen: len(seen.inputs) > 1 and first_step(seen) == seen.inputs[0][4],
        ),
        Mistake(
            "The share of a rank is the batch size by world size, rounded down.",
            {SHARE: "// dist.get_world_size() + 1\n    loader"},
            test=lambda seen: first_step(seen) != len(seen.expected[0][STEPS][0]),
        ),
        Mistake(
            "Some samples are never used. Does the sampler drop the last ones?",
            {SAMPLER: "DistributedSampler(dataset, drop_last=True)"},
            test=lambda seen: taken(seen)[0] < taken(seen)[1],
        ),
        Mistake(
            "The samples are dealt out, but not as `DistributedSampler` does it with the seed that "
            "it has and the number of the epoch.",
            {SAMPLER: "DistributedSampler(dataset, seed=1)"},
            test=lambda seen: replicas.of(seen, STEPS) != [one[STEPS] for one in seen.expected],
        ),
        Mistake(
            "All ranks start with the weights of rank 0, and then each of them trains alone: the "
            "gradients are averaged only if the samples go through the wrapped model. The loop "
            "calls `replica`.",
            {WRAPPED: "DistributedDataParallel(model)"},
        ),
        Mistake(
            "The ranks have different weights: each of them trains alone. What makes the start "
            "equal, and averages the gradients?",
            {WRAPPED: ""},
            test=replicas.weights_differ,
        ),
        Mistake(
            "The steps are too long or too short by the number of ranks. At the end of `backward` "
            "DDP has averaged the gradients: nothing is left to do to them.",
            {STEP: f"{EVERY_GRADIENT}dist.all_reduce(p.grad)\n{STEP}"},
            {STEP: f"{EVERY_GRADIENT}p.grad /= dist.get_world_size()\n{STEP}"},
        ),
        returns_nothing({SUMMED: "        total = dist.all_reduce(total)\n"}),
        Mistake(
            "The training is right in this case. `.item()` makes a float of a tensor.",
            {"mean.item()": "mean"},
            test=lambda seen: isinstance(seen.results[0]["losses"][0], torch.Tensor),
        ),
        Mistake(
            "Rank 0 returns the right losses, and another rank does not. Which collective gives "
            "its result to all?",
            {SUMMED: "        dist.reduce(total, 0)\n"},
            test=lambda seen: (
                losses_are_right(seen, 0)
                and not all(losses_are_right(seen, rank) for rank in range(len(seen.results)))
            ),
        ),
        Mistake(
            "The training is right in this case, but each rank returns a loss of its own: the "
            "mean over all ranks needs a collective.",
            {SUMMED: ""},
        ),
        Mistake(
            "The losses are added over all ranks, and the samples are not: divide by the samples "
            "of all ranks.",
            {SUMMED: "        dist.all_reduce(total[0])\n"},
        ),
        Mistake(
            "That is the mean of the batches' means, in which a short last batch counts as much "
            "as a full one.",
            {WEIGHTED: "loss.item()", COUNTED: "total[1] += 1"},
        ),
        Mistake(
            "One rank is enough.",
            {"dist.get_rank() == 0": "True"},
            test=lambda seen: len(seen.results) > 1 and all(replicas.of(seen, LINES)),
        ),
        Mistake(
            "Which rank prints the line?",
            {"            print(line)": "            pass"},
            test=lambda seen: trained_right(seen) and not any(replicas.of(seen, LINES)),
        ),
        Mistake(
            "The training is right in this case, and every rank has the same weights. Look at the "
            "losses only.",
            {MEAN: "mean = total[0]"},
            test=lambda seen: trained_right(seen) and not losses_are_right(seen, 0),
        ),
        Mistake(
            "Every rank must make the same collective calls, in the same order. Is one of them "
            "inside of an `if`?",
            {SUMMED: "        dist.get_rank() or dist.all_reduce(total)\n"},
            happened=("stuck", "died"),
        ),
    ],
    also_right=[losses_at_the_end],
)
