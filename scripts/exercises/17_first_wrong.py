# Generated from book/17_pipeline.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 62000c935409).
#
# === The first that is wrong ==========================================================
#
# Fill in, about 8 minutes. `first_wrong(program)` is given one stage's program without
# its messages, and returns the index of the first instruction that is impossible there,
# or None if there is none. Impossible is: what has been done already; B or I without an
# F before it, W without an I before it, each of the same micro-batch and the same
# chunk; and B after I or I after B, for the activations are gone. A program that only
# is not finished is not wrong. For `F0 B1 F1` it is 1.
#
#     python scripts/exercises/17_first_wrong.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def first_wrong(program):
    """The index of the first impossible instruction, or None."""
    done = set()
    for index, (kind, *which) in enumerate(program):
        # TODO: which instructions must have been done, and which must not?
        # YOUR CODE HERE
        raise NotImplementedError()
        done.add((kind, *which))
    return None


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("first_wrong", first_wrong) else 1)
