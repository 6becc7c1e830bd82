# Generated from book/25_resume.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: f2461bc8984b).
#
# === A dealer that remembers ==========================================================
#
# Build, about 20 minutes. Write a class `Dealer(n, seed, rank, world_size)`, which
# deals n samples in batches. `next(batch)` returns the list of this rank's samples of
# the next global batch, of `batch` samples for all ranks together; `batch` is a
# multiple of `world_size`, and may change from call to call. Epoch e has the order
# `torch.randperm(n, generator=torch.Generator().manual_seed(seed + e))`, beginning with
# e = 0; of a batch, rank r gets the places r, r + world_size, and so on. Where fewer
# than `batch` samples are left, they are left out, and the next epoch begins. `state()`
# returns a dict of plain numbers, and `resume(state)` makes a dealer go on from there,
# also one of another rank, or of another number of ranks. With n = 10, batches of 4 and
# two ranks, the third batch is the first of epoch 1.
#
#     python scripts/exercises/25_dealer.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch


class Dealer:
    def __init__(self, n, seed, rank, world_size):
        # TODO
        # YOUR CODE HERE
        raise NotImplementedError()

    def next(self, batch):
        """This rank's samples of the next batch of `batch` samples in all."""
        # TODO: is there a batch left? Which order has the epoch?
        # YOUR CODE HERE
        raise NotImplementedError()

    def state(self):
        """What another dealer needs to know to go on: a dict of numbers."""
        # TODO
        # YOUR CODE HERE
        raise NotImplementedError()

    def resume(self, state):
        """Go on from there."""
        # TODO
        # YOUR CODE HERE
        raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("dealer", Dealer) else 1)
