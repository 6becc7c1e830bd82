# Generated from book/13_own_framework.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 8e72143f853e).
#
# === Who has how many =================================================================
#
# Fill in, about 5 minutes. `share_sizes(n, batch_size, ranks)` returns, for each step
# of an epoch over n examples, how many of its batch each rank has, as `ShardedLoader`
# deals them: a list of lists of ints. The last batch may be smaller. For 10 examples in
# batches of 4 on 3 ranks it is [[2, 1, 1], [2, 1, 1], [1, 1, 0]].
#
#     python scripts/exercises/13_share_sizes.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def share_sizes(n, batch_size, ranks):
    """For each step, the sizes of the shares of all ranks: lists of ints."""
    steps = []
    for first in range(0, n, batch_size):
        # TODO: how large is this batch, and who has which of its examples?
        # YOUR CODE HERE
        raise NotImplementedError()
    return steps


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("share_sizes", share_sizes) else 1)
