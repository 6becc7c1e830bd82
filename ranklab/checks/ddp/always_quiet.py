"""Every step under `no_sync`."""

from ranklab.exercises import Choice

exercise = Choice(
    right="b",
    why={
        "a": "DDP misses nothing: under `no_sync` it is told not to communicate, and it does not.",
        "c": "The optimizer knows nothing of ranks; it takes the `.grad` that it finds.",
        "d": "`optimizer.step()` has used the ranks' own gradients already. And if they stay in "
        "`.grad`, the next step averages what comes, but not the weights that differ by now.",
    },
    because="Nothing was sent, so each rank has the gradients of its own samples and steps along "
    "them. DDP makes the weights equal once, when it wraps, and never looks at them again.",
)
