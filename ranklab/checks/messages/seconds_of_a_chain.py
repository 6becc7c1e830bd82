"""How long a chain of ranks works, where each waits for the one before."""

from ranklab.exercises import Choice

exercise = Choice(
    right="c",
    why={
        "a": "So it would be if all worked at the same time. But each works only when it has "
        "received, and sends only when it has worked.",
        "b": "Count the ranks that work, the last one too.",
        "d": "There is no circle: rank 0 waits for nobody, and every path of waits ends there.",
    },
    because="Rank r begins when rank r - 1 has worked: a staircase, and one rank works at a time. "
    "With layers in place of work(), that is a model spread over four ranks.",
)
