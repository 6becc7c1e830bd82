"""What two ranks that meet at a barrier can never print."""

from ranklab.exercises import Choice

exercise = Choice(
    right="c",
    why={
        "a": "Both print, both meet, both print again: it may well come so.",
        "b": "It may: before the barrier, and after it, nothing orders the two ranks.",
        "d": "It may: in each half of the program the two lines come in any order.",
    },
    because="`0 after` says that rank 0 has left the barrier, and nobody leaves before all have "
    "come: rank 1 has printed `1 before` by then. Order between ranks comes from waiting alone.",
)
