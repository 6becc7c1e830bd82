import torch

from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("2 numbers", lambda rank, world_size: (torch.zeros(2),), ranks=2)],
    twin=lambda inputs: [torch.ones(2)] * 2,
    in_place=True,
    hint="fill_",
)
