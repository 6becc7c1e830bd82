import torch

from ranklab.exercises import Case, Exercise


def _used(answers, n):
    model, step = answers
    made = model(n)
    return [step(made, torch.ones(n)).item() for _ in range(2)]


exercise = Exercise(
    cases=[Case(f"width {n}", lambda rank, world_size, n=n: (n,), ranks=1) for n in (1, 4)],
    twin=lambda inputs: [[float(inputs[0][0]), float(inputs[0][0])]],
    drive=_used,
    trains=True,
    answers=2,
    hint="Once more.",
)
