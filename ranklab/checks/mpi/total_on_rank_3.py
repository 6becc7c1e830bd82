"""Which calls fill, and which return."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "That is each rank's x after the Bcast. Then four of them are added.",
        "c": "That is the sum of what the ranks began with, and nobody kept it: allreduce, in "
        "lower case, returns its result and leaves x as it was.",
        "d": "So it would be if the first allreduce had put its sum into x. In lower case it "
        "returns the sum, and x stays as it was.",
    },
    because="allreduce returns, and here nobody takes what it returns; Bcast fills, so every x is "
    "rank 1's 2.0; and four times 2 is 8.",
)
