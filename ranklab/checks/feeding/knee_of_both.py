"""How many workers are enough, where they wait and compute."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "The 2 cores are needed for 30 of the 90 ms only. In the other 60 ms a worker waits, "
        "and another one can have its core.",
        "c": "9 workers would bring a batch every 10 ms if they only waited. But each batch takes "
        "30 ms of a core, and there are 2 cores: what do these allow?",
        "d": "90 is the milliseconds of one batch, not a number of workers. How many batches are "
        "under way at a time with w workers?",
    },
    because="Two cores decode a batch every 30/2 = 15 ms; the step alone would take one every "
    "10 ms, so the cores are the limit. Batches come every 90/w ms: 15 ms is reached at w = 6.",
)
