"""Samples that are dealt like cards, as many to every rank."""

import itertools

from torch.utils.data import DistributedSampler

from ranklab.checks._replicas import hands
from ranklab.exercises import Case, Exercise, Mistake

ROUNDED = "n // world_size if drop_last else -(-n // world_size)"
AROUND = "range(rank, rounds * world_size, world_size)"


def deal(n, ranks, drop_last=False):
    what = f"{n} sample{'s' * (n > 1)}{', drop_last' if drop_last else ''}"
    return Case(what, lambda rank, world_size: (rank, world_size, n, drop_last), ranks=ranks)


def twin(inputs):
    _, world_size, n, drop_last = inputs[0]
    return hands(n, world_size, shuffle=False, drop_last=drop_last)


def by_the_sampler(rank, world_size, n, drop_last):
    return [*DistributedSampler(range(n), world_size, rank, shuffle=False, drop_last=drop_last)]


def around_the_table(rank, world_size, n, drop_last):
    dealt, deck, dealing = [[] for _ in range(world_size)], itertools.cycle(range(n)), 0
    while dealing < n or dealing % world_size:
        for hand in dealt:
            hand.append(next(deck))
            dealing += 1
    return dealt[rank][:-1] if drop_last and dealing > n else dealt[rank]


exercise = Exercise(
    cases=[
        deal(9, 4),
        deal(9, 4, drop_last=True),
        deal(2, 3),
        deal(1, 4),
        deal(12, 4),
        deal(12, 3, drop_last=True),
        deal(7, 2),
        deal(11, 2, drop_last=True),
        deal(5, 1),
    ],
    twin=twin,
    hint="How many rounds are dealt? In round k, which card does this rank get?",
    mistakes=[
        Mistake(
            "The hands are not equally long. A rank with fewer samples would make fewer steps.",
            {"rounds * world_size": "n"},
            test=lambda seen: len({len(hand) for hand in seen.results}) > 1,
        ),
        Mistake(
            "There is no such sample. After the last one comes sample 0 again.",
            {"place % n": "place"},
        ),
        Mistake(
            "With drop_last, nobody gets a sample twice: what does not make a whole round is left "
            "out.",
            {ROUNDED: "-(-n // world_size)"},
        ),
        Mistake(
            "Without drop_last every sample is dealt to somebody. Round up.",
            {ROUNDED: "n // world_size"},
        ),
        Mistake(
            "These are pieces, cut off one after the other. Cards are dealt around: 0 to rank 0, "
            "1 to rank 1.",
            {AROUND: "range(rank * rounds, (rank + 1) * rounds)"},
        ),
    ],
    also_right=[by_the_sampler, around_the_table],
)
