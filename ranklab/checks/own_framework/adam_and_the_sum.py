"""What becomes of Adam where nobody divides the sum of the gradients."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "That is SGD's answer. Adam divides a gradient by its own size, and with it the 8.",
        "c": "The batch is the same 256 examples. Only their gradients were added up otherwise.",
        "d": "Nearly. Adam divides the whole of gradient and decay by its size. Which of the two "
        "has become 8 times as large, and which has not?",
    },
    because="8 times the gradient plus 0.01 times the weights is 8 times (the gradient plus "
    "0.01 / 8 times the weights), and the 8 before the bracket is what Adam divides away.",
)
