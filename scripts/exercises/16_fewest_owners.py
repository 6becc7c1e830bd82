# Generated from book/16_layers.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 3e3cfc35ae3b).
#
# === As few owners as possible ========================================================
#
# Fill in, about 8 minutes. `balance` is told how many owners there are. Now each owner
# has so much memory, and the question is how many it takes. `fewest_owners(nbytes,
# limit)` is given the bytes of each layer of a chain and returns the bounds of a cut
# into as few stages as possible, none with more than `limit` bytes; the earlier stages
# take as many layers as they can. It raises ValueError where a single layer is too
# large. Layers of 3, 3, 2, 5 and 1 bytes and a limit of 6 give `[0, 2, 3, 5]`.
#
#     python scripts/exercises/16_fewest_owners.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def fewest_owners(nbytes, limit):
    """The bounds of a cut, each stage with at most `limit` bytes."""
    bounds = [0]
    # TODO: when must a new stage begin, and when is there no cut at all?
    # YOUR CODE HERE
    raise NotImplementedError()
    return [*bounds, len(nbytes)]


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("fewest_owners", fewest_owners) else 1)
