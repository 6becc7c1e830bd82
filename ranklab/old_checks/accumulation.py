"""Two exercises of chapter 11: what `no_sync` leaves undone, and parts that add up under it."""

import torch
from torch.nn.parallel import DistributedDataParallel

from ranklab.checks import _replicas as replicas
from ranklab.old_checks._model import Case, Choice, Exercise, Hint

always_quiet = Choice(
    "always_quiet",
    right="b",
    why={
        "a": "DDP misses nothing: under `no_sync` it is told not to communicate, and it does not.",
        "c": "The optimizer knows nothing of ranks; it takes the `.grad` that it finds.",
        "d": "`optimizer.step()` has used the ranks' own gradients already. And if they stay in "
        "`.grad`, the next step averages what comes, but not the weights that differ by now.",
    },
    because="Nothing was sent, so each rank has the gradients of its own samples and steps along "
    "them. DDP makes the weights equal once, when it wraps, and never looks at them again.",
)


# Parts that add up


class _InMemory:
    """Counts samples whose forward pass is done, and whose gradient has not come: `most` at once.

    What autograd saved for them is in memory. It is this that accumulation keeps small.
    """

    def __init__(self, model):
        self.now, self.most = 0, 0
        self.watching = model.register_forward_hook(self._came)

    def _came(self, model, inputs, outputs):
        if outputs.requires_grad:
            self.now += len(outputs)
            self.most = max(self.most, self.now)
            outputs.register_hook(self._went)

    def _went(self, gradient):
        self.now -= len(gradient)


def _drive_accumulated(answer, parts):
    """Run the answer on a wrapped model that has seen a step; return the gradients it leaves."""
    model = replicas.model("plain", 1)
    replica = DistributedDataParallel(model)
    inputs, labels = parts[0]
    torch.nn.functional.cross_entropy(replica(inputs), labels).backward()  # leaves a gradient
    in_memory = _InMemory(model)
    returned = answer(replica, parts)
    gradients = [parameter.grad for parameter in model.parameters()]
    return {
        "returned": returned,
        "gradients": [None if g is None else g.clone() for g in gradients],
        "in memory": in_memory.most,
    }


def _gradients(loss):
    """The gradients of loss(model), of the model that all ranks have."""
    model = replicas.model("plain", 1)
    return list(torch.autograd.grad(loss(model), list(model.parameters())))


def _of_the_whole(seen):
    """The gradients of the mean over all samples of all ranks, without ranks."""
    inputs, labels = (torch.cat(tensors) for tensors in zip(*_everything(seen)))
    return _gradients(lambda model: torch.nn.functional.cross_entropy(model(inputs), labels))


def _mean_of_means(seen, parts=slice(None)):
    """The gradients of the mean of the parts' means, of some parts of every rank."""

    def loss(model):
        chosen = [part for (of_rank,) in seen.inputs for part in of_rank[parts]]
        losses = [torch.nn.functional.cross_entropy(model(x), y) for x, y in chosen]
        return torch.stack(losses).mean()

    return _gradients(loss)


def _with_what_was_there(seen):
    """The right gradients, added to those that the step before has left."""
    before = _mean_of_means(seen, slice(1))
    return [a + b for a, b in zip(_of_the_whole(seen), before)]


def _everything(seen):
    return [part for (parts,) in seen.inputs for part in parts]


def _same(some, others):
    return all(a is not None and replicas.close(a, b) for a, b in zip(some, others))


def _judge_accumulated(seen):
    if seen.results[0]["returned"] is not None:
        return "It should return nothing; the gradients are in `.grad`."
    want = _of_the_whole(seen)
    for rank, got in enumerate(replicas.of(seen, "gradients")):
        if any(gradient is None for gradient in got):
            return f"On rank {rank} a parameter has no gradient afterwards."
        if not _same(got, want):
            ours, wanted = (torch.cat([g.flatten() for g in some]) for some in (got, want))
            largest = int(wanted.abs().argmax())
            return (
                f"On rank {rank}, the gradient has {ours[largest]:.6g} where that of the mean over "
                f"all samples\nof all ranks has its largest number, {wanted[largest]:.6g}."
            )
    # one all-reduce belongs to the step before the answer's
    calls = seen.collectives[0].get("all_reduce", 0) - 1
    if calls != 1:
        return f"There were {calls} all-reduces, and one is enough."
    return _about_memory(seen)


def _about_memory(seen):
    largest = max(len(labels) for _, labels in seen.inputs[0][0])
    most = max(replicas.of(seen, "in memory"))
    if most > largest:
        return (
            f"The gradients are right. But {most} samples were in memory at once, and the largest "
            f"part has {largest}."
        )
    return None


def _gradients_differ(seen):
    first, *others = replicas.of(seen, "gradients")
    return any(not _same(first, other) for other in others)


def _right(seen):
    return _is(seen, _of_the_whole(seen))


def _is(seen, gradients, factor=1.0):
    return _same(replicas.of(seen, "gradients")[0], [factor * g for g in gradients])


def _sizes_case(what, sizes, ranks):
    def make(rank, world_size):
        inputs, labels = replicas.data(sum(sizes) * world_size)
        mine = slice(rank * sum(sizes), (rank + 1) * sum(sizes))
        return (list(zip(inputs[mine].split(sizes), labels[mine].split(sizes))),)

    return Case(what, make, ranks=ranks)


accumulated = Exercise(
    "accumulated",
    cases=[
        _sizes_case("parts of 3, 3 and 2 samples", [3, 3, 2], 4),
        _sizes_case("one part of 5 samples", [5], 2),
        _sizes_case("parts of 1, 4 and 2 samples", [1, 4, 2], 2),
        _sizes_case("parts of 2 and 2 samples", [2, 2], 1),
    ],
    expected=None,
    drive=_drive_accumulated,
    judge=_judge_accumulated,
    trains=True,
    trace=True,
    hints=[
        Hint(
            lambda seen: "in memory" in _judge_accumulated(seen),
            "What a forward pass saves for backward stays until backward comes. So: forward and "
            "backward of one part, and then the next part.",
        ),
        Hint(
            lambda seen: replicas.several(seen) and _gradients_differ(seen),
            "The ranks have different gradients: the last part has to communicate.",
        ),
        Hint(
            lambda seen: _is(seen, _mean_of_means(seen)),
            "That is the mean of the parts' means. A part of 3 samples counts more than one of 2.",
        ),
        Hint(
            lambda seen: _is(seen, _mean_of_means(seen), len(seen.inputs[0][0])),
            "That is the sum of the parts' means.",
        ),
        Hint(
            _right,
            "The gradients are right. Leave it to DDP to average them, in the last part; and in "
            "the others the forward pass has to be inside of `no_sync`, too.",
        ),
        Hint(
            lambda seen: _is(seen, _with_what_was_there(seen)),
            "The gradients that were there before are in it, too.",
        ),
        Hint(
            lambda seen: (
                replicas.several(seen) and _is(seen, _of_the_whole(seen), 1 / len(seen.results))
            ),
            "That is too small by the number of ranks: DDP divides by it already.",
        ),
    ],
    hint="Take the sum of a part's losses, and divide by the samples of all parts of this rank.",
)
