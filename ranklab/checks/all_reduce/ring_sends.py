"""What a rank sends in a ring, and by doubling."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "The ring: 80 MB is what the reduce-scatter and the all-gather send together only if "
        "there are two ranks. Count the steps, and what a part is. Doubling: one round doubles "
        "the ranks that have been added, and in each of them the whole tensor is sent.",
        "c": "That is right for the ring. Doubling needs as many rounds as it takes to come from 1 "
        "to 8 by doubling, and not one for each other rank.",
        "d": "The ring sends less than two tensors, and doubling one for each round.",
    },
    because="The ring: 14 steps of 10 MB. Doubling: 3 rounds of 80 MB. With 1000 ranks it would be "
    "160 MB against 800.",
)
