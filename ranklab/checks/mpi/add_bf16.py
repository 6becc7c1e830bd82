"""An operation for MPI's reductions: what MPI does not have."""

import warnings

import torch

from ranklab.exercises import Case, Exercise, Mistake

READS_A = "(a, dtype=torch.bfloat16)"
READS_B = "(b, dtype=torch.bfloat16)"
MANY = torch.arange(1000)
ADDS = "b += a"


def case(what, a, b):
    given = torch.tensor(a).bfloat16(), torch.tensor(b).bfloat16()
    return Case(what, lambda rank, world_size: given, ranks=1)


def drive(answer, a, b):
    """Call it as MPI does, with two stretches of memory; return what is then in the second."""
    memory = [bytearray(x.view(torch.uint8).numpy().tobytes()) for x in (a, b)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer(*map(memoryview, memory), None)
    after, result = (torch.frombuffer(m, dtype=torch.bfloat16).clone() for m in memory)
    if not torch.equal(after, a):
        raise RuntimeError("`a` was changed. MPI may still need it: the result belongs into `b`.")
    return result


def widened(a, b, datatype):
    box = torch.frombuffer(b, dtype=torch.bfloat16)
    box.copy_(torch.frombuffer(a, dtype=torch.bfloat16).float() + box.float())


exercise = Exercise(
    cases=[
        case("1, 2 and 10, 20", [1.0, 2.0], [10.0, 20.0]),
        case("one number", [0.5], [-4.0]),
        case("sums that must be rounded", [1.0, 3.0, 257.0], [256.0, 512.0, 1.0078125]),
        case("1,000 numbers", (MANY % 50).tolist(), (MANY % 7).tolist()),
    ],
    twin=lambda inputs: [inputs[0][0] + inputs[0][1]],
    drive=drive,
    tolerance=(0.0, 0.0),
    hint="torch.frombuffer makes a tensor of a stretch of memory, without a copy.",
    mistakes=[
        Mistake(
            "What is left in `b` is the result, and `a` stays as it is.",
            {ADDS: "a += b"},
            happened="error",
            test=lambda seen: "was changed" in seen.error,
        ),
        Mistake(
            "`b + a` makes a new tensor, which nobody looks at. The result must lie where `b` is.",
            {ADDS: "b = b + a"},
            {ADDS: "return a + b"},
        ),
        Mistake(
            "The bits are those of bfloat16. Read as another type they are other numbers.",
            {READS_A: "(a, dtype=torch.float16)", READS_B: "(b, dtype=torch.float16)"},
            {READS_A: "(a, dtype=torch.int16)", READS_B: "(b, dtype=torch.int16)"},
        ),
    ],
    also_right=[widened],
)
