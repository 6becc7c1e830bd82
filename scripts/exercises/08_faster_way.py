# Generated from book/08_all_reduce.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 03be2aa72a68).
#
# === The way that wins ================================================================
#
# Fill in, about 6 minutes. `faster_way(nbytes, n, alpha, beta)` says which of two ways
# is the faster one for n ranks, n a power of two, if a message of m bytes takes `alpha
# + m / beta` seconds and adding takes nothing: `"doubling"` or `"ring"`. For 4 bytes, 4
# ranks, 50 µs and 1 GB/s it is `"doubling"`.
#
#     python scripts/exercises/08_faster_way.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def faster_way(nbytes, n, alpha, beta):
    """Return "doubling" or "ring"; "doubling" if both take the same."""
    # TODO: how many rounds has each way, how many bytes each message?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("faster_way", faster_way) else 1)
