# Generated from book/10_sync_sgd.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: c3aa5c41c53c).
#
# === Deal the cards ===================================================================
#
# Fill in, about 10 minutes. Write `dealt_to(rank, world_size, n, drop_last)`: the list
# of samples, of 0 to n − 1, that `DistributedSampler` deals to a rank without
# shuffling. Without `drop_last` it goes on from the start of the list until all hands
# are equal, more than once around if it must; with it, it leaves out the last ones. For
# rank 1 of 4 and n = 9 it is [1, 5, 0], and with `drop_last` [1, 5]. PyTorch's own
# sampler would pass the check; do without it.
#
#     python scripts/exercises/10_dealt_to.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def dealt_to(rank, world_size, n, drop_last):
    """The samples of one rank, a list of ints; as many as any other has."""
    # TODO: how many cards are dealt in all, and which are this rank's?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("dealt_to", dealt_to) else 1)
