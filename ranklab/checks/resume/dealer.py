"""A dealer of samples that goes on where another one stopped."""

import torch

from ranklab.exercises import Case, Exercise, Mistake

STATE = '{"epoch": self.epoch, "dealt": self.dealt}'
RESUMED = 'self.epoch, self.dealt = state["epoch"], state["dealt"]'
NEW_EPOCH = """        if self.dealt + batch > self.n:
            self.epoch, self.dealt = self.epoch + 1, 0
"""
COUNTED = "        self.dealt += batch\n"
HAND, PIECE = "whole[self.rank :: self.world_size]", "len(whole) // self.world_size"
SMALLER = "When does an epoch end? When the batch that is asked for is larger than what is left."
OF_ALL = "The position has to mean the same for any number of ranks: count the samples of all."
WHOLE = (
    "Is the whole position in the state? The epoch is part of it, and the batches may be of "
    "another size."
)


def case(what, *args, hint=""):
    return Case(what, lambda *_: args, ranks=1, hint=hint)


def batches_of(hands, stop):
    """Put names to what was dealt, batch by batch."""
    return {f"batch {i + 1}{', after the stop' * (i >= stop)}": one for i, one in enumerate(hands)}


def drive(answer, n, seed, batches, stop, before, after):
    """Deal to `before` ranks, stop, go on with `after` ranks; return what each was dealt."""
    first = [answer(n, seed, rank, before) for rank in range(before)]
    hands = [[one.next(batch) for one in first] for batch in batches[:stop]]
    states = [one.state() for one in first]
    later = [answer(n, seed, rank, after) for rank in range(after)]
    for rank, one in enumerate(later):
        one.resume(dict(states[rank % before]))
    hands += [[one.next(batch) for one in later] for batch in batches[stop:]]
    plain = all(isinstance(value, (int, float)) for state in states for value in state.values())
    return {"state() is a dict of plain numbers": plain, **batches_of(hands, stop)}


def twin(inputs):
    n, seed, batches, stop, before, after = inputs[0]
    hands, epoch, dealt = [], 0, 0
    for i, batch in enumerate(batches):
        if dealt + batch > n:
            epoch, dealt = epoch + 1, 0
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        whole, ranks = order[dealt : dealt + batch], before if i < stop else after
        hands.append([whole[rank::ranks] for rank in range(ranks)])
        dealt += batch
    return [{"state() is a dict of plain numbers": True, **batches_of(hands, stop)}]


class ByTheNumberOfTheSample:
    """One number is the position: how many samples were dealt or left out since the start."""

    def __init__(self, n, seed, rank, world_size):
        self.n, self.seed, self.place, self.position = n, seed, (rank, world_size), 0

    def next(self, batch):
        rank, world_size = self.place
        left = self.n - self.position % self.n
        if left < batch:
            self.position += left
        epoch, first = divmod(self.position, self.n)
        torch.manual_seed(self.seed + epoch)
        order = torch.randperm(self.n)
        self.position += batch
        return order[first + rank : first + batch : world_size].tolist()

    def state(self):
        return {"position": self.position}

    def resume(self, state):
        self.position = state["position"]


exercise = Exercise(
    cases=[
        case("10 samples, batches of 4, two ranks", 10, 0, [4, 4, 4, 4], 4, 2, 2),
        case("a smaller batch at the end", 10, 0, [6, 4, 2, 2], 4, 2, 2, hint=SMALLER),
        case("a stop in the middle of epoch 1", 10, 3, [4] * 7, 3, 2, 2, hint=WHOLE),
        case("four ranks stop, two go on", 24, 1, [8] * 7, 2, 4, 2, hint=OF_ALL),
        case("two ranks stop, four go on", 24, 1, [4] * 9, 4, 2, 4, hint=OF_ALL),
        case("another batch after the stop", 30, 2, [6, 6, 12, 12, 12], 2, 2, 2, hint=WHOLE),
        case("a stop at the end of an epoch", 8, 5, [4] * 6, 2, 2, 2, hint=WHOLE),
    ],
    twin=twin,
    drive=drive,
    hint="Deal two epochs by hand, on paper: which places of the order has batch 1, batch 2?",
    mistakes=[
        Mistake(
            "What is kept must be readable anywhere, later: names and numbers, no tensors.",
            {STATE: '{"epoch": self.epoch, "dealt": torch.tensor(self.dealt)}'},
            test=lambda seen: not seen.results[0]["state() is a dict of plain numbers"],
        ),
        Mistake(
            "These are pieces of the batch. Rank r gets the places r, r + world_size, and so on.",
            {HAND: f"whole[{PIECE} * self.rank :][: {PIECE}]"},
        ),
        Mistake(
            SMALLER,
            {"> self.n": ">= self.n"},
            {NEW_EPOCH: "", COUNTED: COUNTED + NEW_EPOCH},
        ),
        Mistake(
            "After the stop it begins anew. What does `resume` do with the state?",
            {RESUMED: "pass"},
        ),
        Mistake(
            OF_ALL,
            {
                STATE: STATE.replace("self.dealt", "self.dealt // self.world_size"),
                RESUMED: f"{RESUMED} * self.world_size",
            },
        ),
        Mistake(WHOLE, {RESUMED: 'self.dealt = state["dealt"]'}),
    ],
    also_right=[ByTheNumberOfTheSample],
)
