"""What twice as many micro-batches cost in 1F1B."""

from ranklab.exercises import Choice

exercise = Choice(
    right="a",
    why={
        "b": "The bubble is right. Stage 0 holds 4 micro-batches before and after, but how many "
        "samples is that?",
        "c": "The memory is right. A stage waits for three forwards and three backwards, and each "
        "of them is half as long now.",
        "d": "That is GPipe, whose stages hold all micro-batches, and even there they are half as "
        "large. In 1F1B stage 0 begins with its backwards as soon as the first gradient is back.",
    },
    because="3/11 of the time was idle, and 3/19 is. Stage 0 holds 4 micro-batches, as many as "
    "there are stages, and each of them is half as large.",
)
