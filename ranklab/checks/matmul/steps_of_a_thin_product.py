"""How many steps a product takes, with as many workers as it can use."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "5 is 1 + log₂ 16: a tree over 16 terms. But 16 is the number of rows, and rows do "
        "not wait for each other. How many terms has one sum?",
        "c": "16 is the number of rows, and of columns. None of them waits for another.",
        "d": "1000 steps is what the loops need, which add in a row. A tree adds in pairs.",
    },
    because="All products are ready at step 1, and a tree over 1000 terms takes ⌈log₂ 1000⌉ = 10 "
    "more. Rows and columns add work; only the inner dimension adds span.",
)
