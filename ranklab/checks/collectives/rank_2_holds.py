"""What a rank holds after an all-to-all."""

from ranklab.exercises import Choice

exercise = Choice(
    right="c",
    why={
        "a": "That is what rank 2 began with. In an all-to-all a rank keeps only the part that is "
        "for itself.",
        "b": "That is what everyone would hold after an all-gather of the parts 0.",
        "d": "These are sums: a reduce-scatter. An all-to-all adds nothing.",
    },
    because="Rank 2 gets part 2 of everyone, in rank order: a column of the table whose rows the "
    "ranks held before.",
)
