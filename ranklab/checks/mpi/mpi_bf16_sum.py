"""A reduction that MPI does not have, by an operation of one's own."""

import torch

from ranklab.checks.mpi._watched import world
from ranklab.exercises import Case, Exercise, Mistake

WIDE = "The sum is right, but {} bytes were sent where {} would do: two for each number."
PICKLED = "The sum is right, but {} bytes were pickled. The numbers are to be a buffer."
FEW = 200  # bytes: an operation that is passed by name is no object that is sent


def case(what, length, scale=1.0):
    def make(rank, world_size):
        if rank == 0:
            return (torch.ones(length).bfloat16(),) if length < 3 else (_spread(length, 1, scale),)
        return (_spread(length, 0, scale),)

    return Case(what, make, ranks=2)


def _spread(length, start, scale):
    return (scale * (torch.arange(length) % 37 + start)).bfloat16()


def drive(answer, x):
    comm = world()
    answer(comm, x)
    if comm.pickled > FEW:
        raise RuntimeError(PICKLED.format(comm.pickled))
    if comm.sent > x.nbytes:
        raise RuntimeError(WIDE.format(comm.sent, x.nbytes))


exercise = Exercise(
    cases=[
        case("2 numbers", 2),
        case("20,001 numbers", 20_001),
        case("numbers whose sums must be rounded", 5, scale=1.0078125),
        case("no number at all", 0),
    ],
    twin=lambda inputs: [inputs[0][0] + inputs[1][0]] * 2,
    drive=drive,
    in_place=True,
    limit=5.0,
    tolerance=(0.0, 0.0),
    hint="MPI.Op.Create makes an operation; x.view(torch.int16) has two bytes a number.",
    mistakes=[],
)
