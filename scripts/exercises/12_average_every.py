# Generated from book/12_own_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e5257070fa0f).
#
# === An average now and then ==========================================================
#
# Fill in, about 12 minutes. With accumulation, several backwards add up in `.grad`
# before a step is made. `average_every(model, every)` gives every trained parameter a
# hook, so that after each `every`-th backward its `.grad` is the mean over the ranks of
# what all these backwards have added up. After the others it is what the rank itself
# has added up so far, and nothing is sent then. No wrapper, no `no_sync`, no buckets;
# an all-reduce that waits is good enough. With `every=2`, backwards 2, 4, 6 and so on
# average.
#
#     python scripts/exercises/12_average_every.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def average_every(model, every):
    """From now on, every `every`-th backward leaves the mean in .grad."""
    counts = {}

    def hook(p):
        """Autograd calls it once in a backward: p's gradient is complete."""
        # TODO: is it time to average? then do.
        # YOUR CODE HERE
        raise NotImplementedError()

    # TODO: give it to all parameters that are trained.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("average_every", average_every) else 1)
