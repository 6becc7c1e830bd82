"""Random numbers of its own for every worker, and the same ones in the next run."""

import itertools

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ranklab.checks.feeding._workers import forked
from ranklab.exercises import Case, Exercise, Mistake

SEED = "torch.initial_seed()"


class Draws(Dataset):
    """Each example is a number from the generator `rng` of the dataset."""

    def __init__(self, length):
        self.rng, self.length = np.random.default_rng(0), length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return float(self.rng.random())


def drive(reseed, seed, workers):
    """Twice the same run of two epochs: run -> epoch -> worker -> its draws."""
    runs = []
    for _ in range(2):
        torch.manual_seed(seed)
        batches = DataLoader(Draws(3 * workers), batch_size=3, **forked(workers, reseed))
        runs.append([[batch.tolist() for batch in batches] for _ in range(2)])
    return runs


def alike(seen):
    """Yield (a worker, another one, what both drew in an epoch of the first run)."""
    for epoch in seen.results[0][0]:
        for (a, drawn), (b, others) in itertools.combinations(enumerate(epoch), 2):
            if drawn == others:
                yield a, b, drawn


def again(seen):
    """Return what was drawn in the first epoch, and in the second one, too."""
    first, second = seen.results[0][0]
    return [share for share in first if share in second]


def judge(seen):
    first, second = seen.results[0]
    for a, b, drawn in alike(seen):
        return f"Workers {a} and {b} draw the same numbers: {listed(drawn)}."
    for drawn in again(seen):
        return f"The second epoch draws the numbers of the first again: {listed(drawn)}."
    if first != second:
        return (
            "Two runs that begin with the same torch.manual_seed differ: worker 0 first drew "
            f"{listed(first[0][0])}, then {listed(second[0][0])}."
        )
    return None


def listed(values):
    return ", ".join(f"{value:.3f}" for value in values)


def by_a_sequence_of_seeds(worker_id):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng([worker_id, info.seed - worker_id])


exercise = Exercise(
    cases=[
        Case("2 workers, 2 epochs", lambda rank, world_size: (0, 2), ranks=1),
        Case("3 workers, 2 epochs", lambda rank, world_size: (1, 3), ranks=1),
    ],
    twin=None,
    judge=judge,
    drive=drive,
    hint="In a worker, torch.initial_seed() and get_worker_info().seed are what you need.",
    mistakes=[
        Mistake(
            "np.random.default_rng takes large seeds, too; the older generators want them below "
            "2**32.",
            {"np.random.default_rng": "np.random.RandomState"},
            happened="error",
            test=lambda seen: "Seed must be between 0 and" in seen.error,
        ),
        Mistake(
            "These are the numbers of the generator that the dataset came with. Does "
            "`dataset.rng` become another one?",
            {"    dataset.rng =": "    rng ="},
        ),
        Mistake(
            "Which number do you seed with, and is it another one in each worker?",
            {SEED: "1234"},
            {SEED: f"{SEED} - worker_id"},
            test=lambda seen: any(alike(seen)),
        ),
        Mistake(
            "A worker of the second epoch is a new process with the same number. What differs?",
            {SEED: "worker_id"},
            test=again,
        ),
        Mistake(
            "The seed must come from PyTorch's, not from the clock or the operating system.",
            {SEED: ""},
            test=lambda seen: seen.results[0][0] != seen.results[0][1],
        ),
    ],
    also_right=[by_a_sequence_of_seeds],
)
