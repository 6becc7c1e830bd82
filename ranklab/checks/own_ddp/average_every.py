"""A mean over the ranks now and then, by hooks on the parameters."""

import torch
import torch.distributed as dist
from torch import nn

from ranklab.exercises import Case, Exercise, Mistake

AVERAGES = "p.grad /= dist.get_world_size()\n            dist.all_reduce(p.grad)"
COUNTS = "counts[p] = counts.get(p, 0) + 1"
IS_DUE = "if counts[p] % every == 0:"


class Net(nn.Module):
    """A layer that is used twice, one that is not trained, and one at the end."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.twice, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4)
            self.last = nn.Linear(4, 4, bias=False)
        self.frozen.requires_grad_(False)
        self.double()
        self.trained = [p for p in self.parameters() if p.requires_grad]

    def loss(self, backward, rank):
        generator = torch.Generator().manual_seed(100 * backward + rank)
        x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
        x = self.frozen(torch.tanh(self.twice(self.twice(x))))
        return self.last(torch.tanh(x)).square().mean()


def drive(answer, every, backwards):
    """The gradients after each backward; they are dropped after every `every` of them."""
    model, found = Net(), {}
    answer(model, every)
    for k in range(backwards):
        model.loss(k, dist.get_rank()).backward()
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found[f"every .grad after backward {k + 1}"] = torch.cat(grads)
        if (k + 1) % every == 0:
            model.zero_grad()
    return found


def twin(inputs):
    (every, backwards), model, sums = inputs[0], Net(), 0
    found = [{} for _ in inputs]
    for k in range(backwards):
        grads = [
            torch.cat([g.flatten() for g in torch.autograd.grad(model.loss(k, r), model.trained)])
            for r in range(len(inputs))
        ]
        sums = torch.stack(grads) + (sums if k % every else 0)
        now = sums if (k + 1) % every else sums.mean(0, keepdim=True).expand_as(sums)
        for one, row in zip(found, now):
            one[f"every .grad after backward {k + 1}"] = row
    return found


def judge(seen):
    """There was a collective too many."""
    every, backwards = seen.inputs[0]
    wanted = 3 * (backwards // every)  # twice.weight, twice.bias, last.weight
    for rank, calls in enumerate(seen.collectives):
        if sum(calls.values()) > wanted:
            return (
                f"Rank {rank} took part in {sum(calls.values())} collectives in {backwards} "
                f"backwards. {wanted} are enough: one a parameter, every {every} backwards."
            )


def all_at_the_end(model, every):
    """The last gradient of a backward sends them all, as one tensor."""
    trained = [p for p in model.parameters() if p.requires_grad]
    seen = []

    def hook(p):
        seen.append(p)
        if len(seen) % (every * len(trained)) == 0:
            flat = torch.cat([p.grad.flatten() for p in trained])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for p, part in zip(trained, flat.split([p.numel() for p in trained])):
                p.grad = part.view_as(p).clone()

    for p in trained:
        p.register_post_accumulate_grad_hook(hook)


def case(what, every, backwards, ranks):
    return Case(what, lambda rank, world_size: (every, backwards), ranks=ranks)


def counted_by(key):
    return {
        COUNTS: f"counts[{key}] = counts.get({key}, 0) + 1",
        IS_DUE: IS_DUE.replace("[p]", f"[{key}]"),
    }


exercise = Exercise(
    cases=[
        case("every 2nd of 4 backwards", 2, 4, 4),
        case("every backward", 1, 3, 2),
        case("every 3rd of 7 backwards", 3, 7, 3),
        case("every 2nd, alone", 2, 4, 1),
    ],
    twin=twin,
    drive=drive,
    judge=judge,
    trace=True,
    tolerance=(1e-9, 1e-11),
    hint="Count, for each parameter by itself, how often its gradient was complete.",
    also_right=[all_at_the_end],
    mistakes=[
        Mistake(
            "A parameter that is not trained has no gradient, and takes no hook.",
            {"if p.requires_grad:": "if True:"},
            happened="error",
            test=lambda seen: "cannot register a hook" in seen.error,
        ),
        Mistake(
            "Every rank must take part in every all-reduce, in the same order.",
            {"% every == 0:": "% every == 0 and dist.get_rank() == 0:"},
            happened=("stuck", "died"),
        ),
        Mistake(
            "`dist.all_reduce` writes into the tensor that it is given, and returns nothing.",
            {AVERAGES: "p.grad = dist.all_reduce(p.grad) / dist.get_world_size()"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "Nobody needs to be asked: all ranks make the same backwards, and count alike.",
            {COUNTS: COUNTS + "\n        dist.barrier()"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "The gradients are the sums over the ranks; the means are asked for.",
            {"p.grad /= dist.get_world_size()": "pass"},
        ),
        Mistake(
            "It is the mean over the ranks, times a number. By what do you divide? Over the "
            "backwards, the gradients are added up.",
            {"dist.get_world_size()": "dist.get_world_size() * every"},
            {"dist.get_world_size()": "every"},
        ),
        Mistake(
            "Some parameters average in this backward, and others do not. Does each of them have a "
            "count of its own?",
            counted_by("None"),
            counted_by("p.shape"),
        ),
        Mistake(
            "In a backward that does not average, .grad must be what the rank itself has added up "
            "so far.",
            {IS_DUE: "if True:"},
        ),
        Mistake(
            "The first average is right, and a later one is not. Which counts are to average?",
            {"% every == 0": "== every"},
        ),
        Mistake(
            "Only what the last backward brought is averaged. A hook of which kind sees .grad, and "
            "not only what comes in new?",
            {
                "def hook(p):": "def hook(p, new):",
                AVERAGES: "new = new / dist.get_world_size()\n            dist.all_reduce(new)\n"
                "        return new",
                "p.register_post_accumulate_grad_hook(hook)": "p.register_hook("
                "lambda new, p=p: hook(p, new))",
            },
        ),
        Mistake(
            "The last of so many backwards must leave the mean of what *all* of them added up.",
            {AVERAGES: "pass"},
            {"% every == 0": "% every == 1"},
        ),
    ],
)
