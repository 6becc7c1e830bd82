from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={"a": "That is what scatter does.", "c": "That is what gather does."},
    because="Everybody gets it.",
)
