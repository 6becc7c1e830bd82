"""Which bucket leaves first, where the layers are used in another order than they were made."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "That bucket is the first one to be full. But it is the second one to be sent, and "
        "no bucket overtakes another.",
        "c": "Backward begins with the layer that was used last, and that is A: its gradient and "
        "B's are the first ones.",
        "d": "Nothing is wrong with it. All ranks send the same buckets in the same order, late.",
    },
    because="The buckets were dealt in reverse order of registration, and backward goes through "
    "the layers the other way. From the second step on, in the order of arrival, B and A leave "
    "first, and in the middle of backward.",
)
