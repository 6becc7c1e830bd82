# Generated from book/12_own_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 5e7c940f19dc).
#
# === Into buckets =====================================================================
#
# Fill in, about 8 minutes. `deal(nbytes, first_bytes, bucket_bytes)` is told how many
# bytes each parameter has, in the order of registration, and returns the buckets in the
# order in which they are to be sent: lists of the parameters' numbers. A bucket is
# closed as soon as it has `bucket_bytes` bytes or more, the first one with
# `first_bytes`; the last one need not be full, but there is no empty one. Five
# parameters of 4 bytes, 4 and 8 give `[[4], [3, 2], [1, 0]]`.
#
#     python scripts/exercises/12_deal.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def deal(nbytes, first_bytes, bucket_bytes):
    """Return the buckets, lists of parameters' numbers, as they are sent."""
    buckets, filling = [], []
    # TODO: in which order do the gradients come, and when is a bucket closed?
    # YOUR CODE HERE
    raise NotImplementedError()
    return buckets


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("deal", deal) else 1)
