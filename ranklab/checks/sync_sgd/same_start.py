"""One model for all ranks, by messages."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

from ranklab.exercises import Case, Exercise, Mistake

ALL = "[*model.parameters(), *model.buffers()]"
BOX = "box = values.new_empty(values.shape)"
RECEIVED, TAKEN = "            dist.recv(box, src)\n", "            values.copy_(box)\n"


class Model(nn.Module):
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


def tensors(model):
    return dict([*model.named_parameters(), *model.named_buffers()])


def values(model):
    return {name: tensor.detach().clone() for name, tensor in tensors(model).items()}


def case(src, ranks):
    return Case(f"from rank {src}", lambda rank, world_size: (rank, src), ranks=ranks)


def drive(answer, number, src):
    """Run the answer on this rank's model; return its values, and if they are where they were."""
    model = Model(number)
    before = [tensor.data_ptr() for tensor in tensors(model).values()]
    answer(model, src)
    after = [tensor.data_ptr() for tensor in tensors(model).values()]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return {"values": values(model), "in place": before == after, "trained": trained}


def twin(inputs):
    return [drive(lambda model, src: None, inputs[0][1], None)] * len(inputs)


def judge(seen):
    if any(seen.collectives):
        return "The result is right. But build it from messages: send and recv are enough."
    return None


def of_no_rank(seen):
    """Has a rank a tensor that is in no rank's model?"""
    models = [values(Model(rank)) for rank in range(len(seen.inputs))]
    return any(
        not any(torch.equal(value, model[name]) for model in models)
        for got in seen.results
        for name, value in got["values"].items()
    )


def around_a_ring(model, src):
    me, n = dist.get_rank(), dist.get_world_size()
    place = (me - src) % n
    with torch.no_grad():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            box = tensor.clone(memory_format=torch.contiguous_format)
            if place > 0:
                dist.recv(box, (me - 1) % n)
                tensor.copy_(box)
            if place < n - 1:
                dist.send(box, (me + 1) % n)


exercise = Exercise(
    cases=[case(1, 4), case(0, 3), case(1, 2), case(3, 4), case(0, 1)],
    twin=twin,
    drive=drive,
    trace=True,
    judge=judge,
    tolerance=(0.0, 0.0),
    hint="Rank src sends every tensor to every other rank; those receive, in the same order.",
    mistakes=[
        Mistake(
            "Does every message have its receiver? And must rank src hear from itself?",
            {"range(dist.get_world_size())": "range(1)"},
            happened="stuck",
        ),
        Mistake(
            "One weight of this model is not in one piece in memory. Send x.contiguous(), receive "
            "into a box, and copy.",
            {"values.contiguous()": "values"},
            {BOX: "box = values"},
            happened="error",
            test=lambda seen: "contiguous" in seen.error.lower() or "dense" in seen.error.lower(),
        ),
        Mistake(
            "Autograd guards its parameters: take their `detach()`, which is the same memory.",
            {"tensor.detach()": "tensor"},
            happened="error",
            test=lambda seen: "leaf" in seen.error or "requires grad" in seen.error,
        ),
        Mistake(
            "One buffer is missing: it is not in the state dict. `model.buffers()` has it.",
            {ALL: "model.state_dict().values()"},
        ),
        Mistake(
            "Only the tensor of whole numbers is wrong. Is each sent in its own type?",
            {"tensor.detach()": "tensor.detach().copy_(tensor.detach().double())"},
        ),
        Mistake(
            "The parameters are right. The model has more memory than that: its buffers.",
            {ALL: "model.parameters()"},
        ),
        Mistake(
            "A parameter that is not trained belongs to the start, too.",
            {"*model.parameters()": "*[p for p in model.parameters() if p.requires_grad]"},
        ),
        Mistake(
            "The weight that is not in one piece has not changed: was a copy of it filled?",
            {"tensor.detach()": "tensor.detach().contiguous()"},
        ),
        Mistake(
            "What is trained and what is not must stay as it was.",
            {TAKEN: f"{TAKEN}    model.requires_grad_()\n"},
            test=lambda seen: seen.results[0]["trained"] != seen.expected[0]["trained"],
        ),
        Mistake(
            "The values are right, in other memory: an optimizer that was made before would go on "
            "with the old ones. Copy into what is there.",
            {"values.copy_(box)": "tensor.data = box"},
            test=lambda seen: not all(got["in place"] for got in seen.results),
        ),
        Mistake(
            "Which rank's model counts? It is `src`, whichever rank that is.",
            {"    for tensor in": "    src = 0\n    for tensor in"},
        ),
        Mistake(
            "Some numbers are those of no rank's model. Was the message there when you took it "
            "out of its box?",
            {RECEIVED + TAKEN: TAKEN + RECEIVED},
            test=of_no_rank,
        ),
    ],
    also_right=[around_a_ring],
)
