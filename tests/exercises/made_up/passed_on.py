import torch

from ranklab.exercises import Case, Exercise

exercise = Exercise(
    cases=[Case("4 numbers", lambda r, n: (torch.full((4,), float(r)),), ranks=n) for n in (4, 1)],
    twin=lambda inputs: [inputs[rank - 1][0] for rank in range(len(inputs))],
    judge=lambda seen: (
        "A message is enough."
        if any(seen.collectives) or max(seen.messages) > 1 or max(seen.sent) > 16
        else None
    ),
    hint="isend",
    trace=True,
)
