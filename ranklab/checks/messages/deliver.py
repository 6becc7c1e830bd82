"""A tensor of unknown size, from one rank to another."""

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake

INTEGERS, NUMBER = "5 of int64", "one number without a dimension"
TRANSPOSED = "a transposed 2 × 3"
TELLS_THE_SHAPE = "        if x.dim() > 0:\n            dist.send(torch.tensor(x.shape), dst)\n"
READS_THE_SHAPE = "        if dimensions > 0:\n            dist.recv(shape, src)\n"


def case(what, tensor, src, dst, ranks=4):
    def make(rank, world_size):
        return tensor.clone(memory_format=torch.preserve_format) if rank == src else None, src, dst

    return Case(f"{what}, from rank {src} to {dst}", make, ranks=ranks)


def sent(seen):
    return seen.inputs[seen.inputs[0][1]][0]


def arrived(seen):
    return [one for one in seen.results if isinstance(one, torch.Tensor)]


def twin(inputs):
    _, src, dst = inputs[0]
    return [inputs[src][0].contiguous() if r == dst else None for r in range(len(inputs))]


def drive(deliver, x, src, dst):
    """What arrived, contiguous (a transposed box would be as right)."""
    arrived = deliver(x, src, dst)
    return arrived.contiguous() if isinstance(arrived, torch.Tensor) else arrived


def as_an_object(x, src, dst):
    if dist.get_rank() == src:
        dist.send_object_list([x], dst)
    if dist.get_rank() == dst:
        box = [None]
        dist.recv_object_list(box, src)
        return box[0]


def knows_the_box(x, src, dst):
    """x is None where it is to give the box."""
    if dist.get_rank() == src:
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        box = torch.empty_like(x)
        dist.recv(box, src)
        return box


exercise = Exercise(
    cases=[
        case("2 × 3 of float32", torch.arange(6.0).reshape(2, 3), 0, 1),
        case(INTEGERS, torch.arange(5) - 2, 2, 0),
        case(
            "1 × 2 × 1 × 3 × 2 of float64",
            torch.arange(12.0).double().reshape(1, 2, 1, 3, 2),
            0,
            2,
            3,
        ),
        case(NUMBER, torch.tensor(7.0), 1, 0, 2),
        case("0 × 3, so no number", torch.zeros(0, 3), 0, 1, 2),
        case(TRANSPOSED, torch.arange(6.0).reshape(3, 2).t(), 3, 1),
        case("4 of bool", torch.tensor([True, False, True, True]), 0, 3),
        case("3 of bfloat16", torch.tensor([1.5, -2.0, 0.25], dtype=torch.bfloat16), 1, 0, 2),
        case("1 MB", torch.arange(1 << 18).float(), 1, 2, 3),
    ],
    twin=twin,
    drive=drive,
    hint="First a message of fixed size that says how many dimensions and which type, then the "
    "shape, then the numbers.",
    mistakes=[
        Mistake(
            "A transposed tensor is not one row of bytes. `.contiguous()` makes a copy that is.",
            {"x.contiguous()": "x"},
            happened=("error", "stuck"),
            test=lambda seen: not sent(seen).is_contiguous(),
        ),
        Mistake(
            "A tensor without a dimension has an empty shape. If one side leaves out the message "
            "that tells it, the other has to leave it out, too.",
            {READS_THE_SHAPE: "        dist.recv(shape, src)\n"},
            happened=("error", "stuck", "died"),
            test=lambda seen: sent(seen).dim() == 0,
        ),
        Mistake(
            "Only rank `src` has a tensor; x is None on all others. Whatever the receiver needs to "
            "know of it has to come in a message.",
            knows_the_box,
            {"torch.empty(shape.tolist(), ": "torch.empty(x.shape, "},
            happened="error",
            test=lambda seen: "NoneType" in seen.error or "not None" in seen.error,
        ),
        Mistake(
            "How many bytes has a number of this type, and how many has one in the box? The "
            "receiver has to be told the type as well, as its place in DTYPES, for example.",
            {", dtype=DTYPES[code]": ""},
            happened="died",
            test=lambda seen: sent(seen).dtype != torch.float32,
        ),
        Mistake(
            "The message is larger than its box. torch.tensor makes int64 of whole numbers: is the "
            "box for them int64, too, and as long?",
            {"(2, dtype=torch.int64)": "(2, dtype=torch.int32)"},
            {"(2, dtype=torch.int64)": "(1, dtype=torch.int64)"},
            happened="died",
        ),
        Mistake(
            "Put the sends of `src` beside the receives of `dst`: are they as many, in one order? "
            "Ranks that are neither of the two have nothing to do.",
            {"dist.recv(box, src)": "dist.recv(box, src)\n        dist.recv(head, src)"},
            {"elif rank == dst:": "else:"},
            happened="stuck",
        ),
        Mistake(
            "The type has to travel as well: as its place in DTYPES, for example.",
            {"x.contiguous()": "x.float().contiguous()", ", dtype=DTYPES[code]": ""},
            test=lambda seen: any(one.dtype != sent(seen).dtype for one in arrived(seen)),
        ),
        Mistake(
            "The shape has to travel, and before it the number of dimensions: how else could the "
            "receiver bring a box for the shape?",
            {"        return box": "        return box.flatten()"},
            test=lambda seen: any(one.shape != sent(seen).shape for one in arrived(seen)),
        ),
        Mistake(
            "Only the rank that receives returns something; the others return None.",
            {"    return None": "    return x"},
        ),
    ],
    also_right=[
        as_an_object,
        {
            TELLS_THE_SHAPE: "        dist.send(torch.tensor(x.shape), dst)\n",
            READS_THE_SHAPE: "        dist.recv(shape, src)\n",
        },
    ],
)
