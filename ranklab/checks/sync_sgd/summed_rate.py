"""Gradients that are summed, at the rate of the mean."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "That would be the mean of the eight gradients. A sum is eight times as large.",
        "c": "The samples of a step are still 256. A sum does not add any.",
        "d": "Every rank uses 32 samples, but the sum holds the gradients of all 256.",
    },
    because="Eight times the mean, at the rate 0.1, moves the weights as the mean does at the rate "
    "0.8.",
)
