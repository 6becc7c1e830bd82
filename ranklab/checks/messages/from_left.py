"""A tensor from the left neighbor, in a circle of ranks."""

import threading

import torch
import torch.distributed as dist

from ranklab.exercises import Case, Exercise, Mistake


def case(what, shape, ranks, dtype=torch.float32):
    """Every rank's x: other numbers on each."""

    def make(rank, world_size):
        x = torch.arange(torch.Size(shape).numel()) % 7 + 10 * rank
        return (x.to(dtype).reshape(shape),)

    return Case(what, make, ranks=ranks)


def judge(seen):
    if any(seen.collectives):
        return (
            "The result is right, but it was to be made of messages alone, such as send and recv; "
            "a collective is none."
        )
    return None


def in_two_threads(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return x.clone()
    sender = threading.Thread(target=dist.send, args=(x, (rank + 1) % n))
    sender.start()
    box = torch.zeros_like(x)
    dist.recv(box, (rank - 1) % n)
    sender.join()
    return box


def started_and_waited_for(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return x
    box = torch.empty_like(x)
    handle = dist.isend(x, (rank + 1) % n)
    dist.recv(box, (rank - 1) % n)
    handle.wait()
    return box


def started_and_forgotten(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return x
    box = torch.empty_like(x)
    dist.isend(x, (rank + 1) % n)
    dist.recv(box, (rank - 1) % n)
    return box


exercise = Exercise(
    cases=[
        case("1 number", [1], 4),
        case("2 × 3 numbers", [2, 3], 3),
        case("1 MB", [1 << 18], 4),
        case("int64", [5], 2, torch.int64),
        case("1 number", [1], 1),
        case("float64", [3], 3, torch.float64),
    ],
    twin=lambda inputs: [inputs[r - 1][0] for r in range(len(inputs))],
    judge=judge,
    trace=True,
    hint="The box of recv has the shape and the type of what is sent.",
    mistakes=[
        Mistake(
            "Each rank names two others, its left neighbor and its right one.",
            {"return box": "dist.barrier()\n    return box"},
            test=lambda seen: seen.found == "judge",
        ),
        Mistake(
            "What came is in the box: return that, a tensor.",
            {"    return box\n": ""},
            test=lambda seen: seen.found == "type",
        ),
        Mistake(
            "That is the right neighbor's x. Who sends to whom?",
            {"left, right = ": "right, left = "},
        ),
        Mistake(
            "Every rank has its own x still. recv fills the box that it is given, and returns "
            "the sender's rank.",
            {"return box": "return x"},
        ),
        Mistake(
            "A rank alone is its own left neighbor, and there are no messages to oneself.",
            {"    if world_size == 1:\n        box.copy_(x)\n    elif": "    if"},
            happened=("stuck", "error"),
            test=lambda seen: len(seen.inputs) == 1,
        ),
        Mistake(
            "Each waits for the next. If all ranks begin with the same call, which could begin "
            "with the other one? It has to be right for an odd number of ranks, too. And what "
            "isend was given may never leave where its handle was not kept, and waited for.",
            {"elif rank == 0": "elif False"},
            started_and_forgotten,
            happened="stuck",
        ),
    ],
    also_right=[in_two_threads, started_and_waited_for],
)
