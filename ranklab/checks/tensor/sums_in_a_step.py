"""How many sums a step of a split model needs, and of what."""

from ranklab.exercises import Choice

exercise = Choice(
    right="d",
    why={
        "a": "A block has an attention and an MLP, and each sums its outputs in forward: 2. What "
        "of backward, where x went into the parts of all ranks? And what is summed: parts of the "
        "features, or all of them?",
        "b": "The payload is right. But those are the sums of forward alone: where x went into the "
        "parts of all ranks, backward has to sum, too.",
        "c": "The number is right. But what a rank hands over is its share of a sum, with all "
        "`width` features in it: with more ranks there is less to compute, and as much to sum.",
        "e": "The payload is right. But query, key and value take the same x, and x goes through f "
        "once for all three: autograd adds up the three gradients on the rank, for nothing.",
    },
    because="Two in forward (after the attention and after the MLP), two in backward (where x went "
    "in), in 24 blocks. What is summed has all the features, however many ranks there are.",
)
