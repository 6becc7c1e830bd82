"""What a loss says that does not change with the labels."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "A robust network gives the same outputs, but a loss compares outputs with labels. "
        "Other labels, another loss.",
        "c": "Only a network that gives all 32 classes the same probability loses the same with "
        "any labels, and that is ln 32 = 3.4657.",
    },
    because="A loss is computed from outputs and labels. If other labels change no digit, the "
    "number comes from other labels, of the training set say, or from an earlier run.",
)
