import torch

from ranklab.exercises import Case, Exercise, Mistake


def _numbers(length, dtype=torch.float32, src=0):
    return lambda rank, world_size: (torch.arange(length, dtype=dtype) + 10 * rank, src)


exercise = Exercise(
    cases=[
        Case("1 number", _numbers(1, src=1)),
        Case("no number at all", _numbers(0), ranks=2),
        Case("int64", _numbers(5, torch.int64), ranks=1),
        Case("7 numbers", _numbers(7, src=2), ranks=3),
        Case("1000 numbers", _numbers(1000, src=3)),
    ],
    twin=lambda inputs: [inputs[inputs[0][1]][0]] * len(inputs),
    mistakes=[
        Mistake("Who receives?", happened="stuck"),
        Mistake("An exception in a test is no hint.", test=lambda seen: seen.no_such_thing),
    ],
    hint="Draw who has what after each message.",
    limit=6.0,
)
