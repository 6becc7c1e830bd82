"""A kill between the renaming of a checkpoint and the word that it is there."""

from ranklab.exercises import Choice

exercise = Choice(
    right="a",
    why={
        "b": "Who looks for the newest checkpoint when a life begins? Rank 0 alone; the others are "
        "sent what it has read.",
        "c": "It was finished on the disk: the renaming is the last thing that happens there. What "
        "the ranks had been told is gone with them.",
        "d": "The file is whole, or it would not have its name.",
    },
    because="A checkpoint is there from its renaming on. Rank 0 finds it, reads it, and sends it "
    "to all.",
)
