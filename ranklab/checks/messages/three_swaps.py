"""What comes of three ranks that swap, each pair of them, in an order of their own."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "Each of the calls is safe if all make one. Here each rank makes two, and the first "
        "ones do not match: whom does each rank wait for in its first call?",
        "c": "Rank 0 waits for rank 1, which is in a call with rank 2. Who would free that one?",
        "d": "Gloo keeps the pairs apart: what comes from another rank does not fit by chance.",
    },
    because="In the first calls rank 0 waits for 1, rank 1 for 2, and rank 2 for 0. If all agree "
    "on an order of the pairs (first 0 and 1, then 0 and 2, then 1 and 2), there is no circle.",
)
