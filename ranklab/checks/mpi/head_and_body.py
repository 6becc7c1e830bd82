"""A tensor of unknown shape and type from one rank to all: the head as an object."""

import torch

from ranklab.checks.mpi._watched import world
from ranklab.exercises import Case, Exercise, Mistake

FEW = 1000  # bytes that may be pickled: shape and type take some 100
PICKLED = "The tensor is right, but its numbers were pickled: {} bytes. They are to be a buffer."
HEAD = "head = (x.shape, x.dtype) if comm.rank == root else None"
BOX = "torch.empty(shape, dtype=dtype)"


def case(what, x, root=0):
    return Case(what, lambda rank, world_size: (x if rank == root else None, root), ranks=2)


def drive(answer, x, root):
    comm = world()
    result = answer(comm, x, root)
    if comm.pickled > FEW:
        raise RuntimeError(PICKLED.format(comm.pickled))
    return result


def by_flat_numbers(comm, x, root):
    mine = comm.rank == root
    dtype, *shape = comm.bcast([x.dtype, *x.shape] if mine else None, root)
    box = x.clone(memory_format=torch.contiguous_format) if mine else torch.zeros(shape).to(dtype)
    comm.Bcast(box.view(-1).view(torch.uint8) if shape else box, root=root)
    return box


exercise = Exercise(
    cases=[
        case("six numbers in two rows", torch.arange(6.0).reshape(2, 3)),
        case("from rank 1, 10,000 of bfloat16", torch.arange(1e4).bfloat16().reshape(100, 100), 1),
        case("a transposed matrix", torch.arange(12).reshape(3, 4).t(), 1),
        case("one number, without dimensions", torch.tensor(2.5, dtype=torch.float64)),
        case("no number at all", torch.empty(0, 3)),
    ],
    twin=lambda inputs: [next(x for x, _ in inputs if x is not None)] * len(inputs),
    drive=drive,
    limit=5.0,
    hint="First comm.bcast of shape and type, then comm.Bcast of a tensor in one piece.",
    mistakes=[
        Mistake(
            "Objects are for the head. The numbers of the tensor go as a buffer, by Bcast.",
            {HEAD: "return comm.bcast(x, root)"},
            happened="error",
            test=lambda seen: "were pickled" in seen.error,
        ),
        Mistake(
            "A buffer is a piece of memory, without holes: a transposed tensor has to be made "
            "contiguous before it is sent.",
            {"x.contiguous()": "x"},
            happened="error",
            test=lambda seen: "not contiguous" in seen.error,
        ),
        Mistake(
            "Only `root` has an x. The others have None, which has neither shape nor type.",
            {HEAD: "head = (x.shape, x.dtype)"},
            happened="error",
            test=lambda seen: "NoneType" in seen.error,
        ),
        Mistake(
            "`bcast`, in lower case, returns what the root has sent; what you gave it stays as it is.",
            {"shape, dtype = comm.bcast(head, root)": "comm.bcast(head, root)\n    shape, dtype = head"},
            happened="error",
            test=lambda seen: "unpack" in seen.error,
        ),
        Mistake(
            "The box has the right shape, and the type of other numbers: bytes of one type were read "
            "as another. The type belongs to the head.",
            {BOX: "torch.empty(shape)"},
            happened=("error", "returned"),
            test=lambda seen: seen.found == "dtype" or "truncated" in seen.error,
        ),
        Mistake(
            "The box is still empty: after the head, who fills it?",
            {"    comm.Bcast(body, root)\n": ""},
        ),
    ],
    also_right=[by_flat_numbers],
)
