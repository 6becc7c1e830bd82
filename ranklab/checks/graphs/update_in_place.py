"""Which arrows a weight's update in place adds to the graph of a training step."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "Then dX3 would multiply by the new W3. It needs the one that the forward pass used. "
        "That U3 reads only dW3 is not the point; ask who still reads what U3 writes.",
        "c": "That is safe, and it is how most optimizers are called. But once dX3 is done, "
        "nobody in this step reads W3 again.",
        "d": "It needs dW3, so it does wait for something. And somebody may still need what it "
        "overwrites.",
    },
    because="U3 needs dW3, and it destroys what dX3 still reads. That second arrow is in no graph "
    "of values; writing in place adds it. (If U3 made a new tensor, dW3 alone would do.)",
)
