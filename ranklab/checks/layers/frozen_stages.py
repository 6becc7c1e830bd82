"""What must be sent between stages, some of which are not trained."""

from ranklab.exercises import Choice

exercise = Choice(
    right="c",
    why={
        "a": "Who would use the gradient that comes back to stage 0? Its layers have parameters, "
        "but none of them is trained.",
        "b": "Stage 1 passes a gradient on to nobody: behind it there is only stage 0, which is "
        "frozen. So what would stage 1 itself do with one?",
        "d": "Frozen layers compute as before: without their activations stage 2 has nothing to "
        "start from. (For a fixed data set they could be computed once and stored.)",
    },
    because="All three activations are needed. A gradient is needed only where there is still "
    "something to train at or before its place: over the seam from 3 to 2, and no further. Stages "
    "0 and 1 run no backward and keep nothing for it. In code: stage 2's `like` requires no "
    "gradient, and stages 0 and 1 call no `stand_in.backward()`; it must be all of it, or one of "
    "them waits or raises an error.",
)
