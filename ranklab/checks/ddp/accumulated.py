"""Gradients that add up over parts, and are averaged once."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranklab.checks import _replicas as replicas
from ranklab.exercises import Case, Exercise, Mistake

QUIET = "        with nullcontext() if last else replica.no_sync():\n"
FORWARD = "outputs = replica(inputs)\n"
IMPORT, COUNTED = "from torch import nn\n", "    n = sum("


class InMemory:
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


def case(what, sizes, ranks):
    def make(rank, world_size):
        inputs, labels = replicas.data(sum(sizes) * world_size)
        mine = slice(rank * sum(sizes), (rank + 1) * sum(sizes))
        return (list(zip(inputs[mine].split(sizes), labels[mine].split(sizes))),)

    return Case(what, make, ranks=ranks)


def drive(answer, parts):
    """Run the answer on a wrapped model that has seen a step; return the gradients it leaves."""
    model = replicas.model("plain", 1)
    replica = DistributedDataParallel(model)
    inputs, labels = parts[0]
    nn.functional.cross_entropy(replica(inputs), labels).backward()  # leaves a gradient
    in_memory = InMemory(model)
    return {
        "returned": answer(replica, parts),
        "gradients": [parameter.grad for parameter in model.parameters()],
        "samples in memory": max(in_memory.most, max(len(labels) for _, labels in parts)),
    }


def twin(inputs):
    """The gradients of the mean over all samples of all ranks, without ranks."""
    model = replicas.model("plain", 1)
    x, y = map(torch.cat, zip(*(part for (parts,) in inputs for part in parts)))
    nn.functional.cross_entropy(model(x), y).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    most = max(len(labels) for _, labels in inputs[0][0])
    return [{"returned": None, "gradients": gradients, "samples in memory": most}] * len(inputs)


def judge(seen):
    calls = seen.collectives[0].get("all_reduce", 0) - 1  # one belongs to the step before
    return None if calls == 1 else f"There were {calls} all-reduces, and one is enough."


def gradients_differ(seen):
    first, *others = replicas.of(seen, "gradients")
    return any(not replicas.close(a, b) for other in others for a, b in zip(first, other))


def averages_by_hand(replica, parts):
    n = sum(len(labels) for _, labels in parts) * dist.get_world_size()
    replica.zero_grad()
    with replica.no_sync():
        for x, y in parts:
            (nn.functional.cross_entropy(replica(x), y, reduction="sum") / n).backward()
    for parameter in replica.parameters():
        dist.all_reduce(parameter.grad)


def past_the_wrapper(replica, parts):
    """The model inside knows nothing of ranks; only the last part goes through the wrapper."""
    *others, (inputs, labels) = parts
    n = sum(len(y) for _, y in parts)
    replica.zero_grad()
    for x, y in others:
        (nn.functional.cross_entropy(replica.module(x), y, reduction="sum") / n).backward()
    (nn.functional.cross_entropy(replica(inputs), labels, reduction="sum") / n).backward()


def in_parts_of_its_own(replica, parts):
    """One sample at a time."""
    samples = [pair for x, y in parts for pair in zip(x.split(1), y.split(1))]
    replica.zero_grad(set_to_none=False)
    for k, (x, y) in enumerate(samples, start=1):
        replica.require_backward_grad_sync = k == len(samples)  # what no_sync sets
        loss = nn.functional.nll_loss(replica(x).log_softmax(dim=1), y)
        loss.div(len(samples)).backward()


exercise = Exercise(
    cases=[
        case("parts of 3, 3 and 2 samples", [3, 3, 2], 4),
        case("one part of 5 samples", [5], 2),
        case("parts of 1, 4 and 2 samples", [1, 4, 2], 2),
        case("parts of 2 and 2 samples", [2, 2], 1),
    ],
    twin=twin,
    drive=drive,
    judge=judge,
    trains=True,
    trace=True,
    tolerance=(replicas.CLOSE["rtol"], replicas.CLOSE["atol"]),
    hint="Take the sum of a part's losses, and divide by the samples of all parts of this rank.",
    mistakes=[
        Mistake(
            "The ranks have different gradients: the last part has to communicate.",
            {QUIET: "        with replica.no_sync():\n"},
            test=gradients_differ,
        ),
        Mistake(
            "That is the mean of the parts' means. A part of 3 samples counts more than one of 2.",
            {', reduction="sum"': "", "loss / n": "loss / len(parts)"},
        ),
        Mistake(
            "That is the sum of the parts' means.", {', reduction="sum"': "", "loss / n": "loss"}
        ),
        Mistake(
            "The gradients that were there before are in it, too.",
            {"    replica.zero_grad()\n": ""},
        ),
        Mistake(
            "That is too small by the number of ranks: DDP divides by it already.",
            {
                IMPORT: f"{IMPORT}import torch.distributed as dist\n",
                "loss / n": "loss / n / dist.get_world_size()",
            },
        ),
        Mistake(
            "The gradients are right. Leave it to DDP to average them, in the last part; and in "
            "the others the forward pass has to be inside of `no_sync`, too.",
            {f"{QUIET}            {FORWARD}": f"        {FORWARD}{QUIET}"},
            averages_by_hand,
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "What a forward pass saves for backward stays until backward comes. So: forward and "
            "backward of one part, and then the next part.",
            {
                IMPORT: f"{IMPORT}import torch\n",
                COUNTED: f"    parts = [[*map(torch.cat, zip(*parts))]]\n{COUNTED}",
            },
            test=lambda seen: any(
                got["samples in memory"] > right["samples in memory"]
                for got, right in zip(seen.results, seen.expected)
            ),
        ),
    ],
    also_right=[past_the_wrapper, in_parts_of_its_own],
)
