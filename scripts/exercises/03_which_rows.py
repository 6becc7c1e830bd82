# Generated from book/03_training.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e7b004658488).
#
# === Which rows matter ================================================================
#
# Build, about 8 minutes. Write the instrument of this chapter: `which_rows(f, X)`
# returns the list of the rows of X (their numbers, rising) on which `f(X)` depends. `f`
# takes a tensor of the shape of X, float64, (n, features), and returns a number, the
# same for the same input. Leave X as it is. If `f` takes the mean of the first three
# rows of six, the answer is `[0, 1, 2]`. A row may matter very little, and a row may
# already look as if it were blank. A row may matter by the differences between its
# numbers alone, or by their ratios alone. If a row matters, you may rely on it that
# scaling it and adding a number shows.
#
#     python scripts/exercises/03_which_rows.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def which_rows(f, X):
    """Return the numbers of the rows of X on which f(X) depends, as a list."""
    # TODO: change one row at a time, in a copy, and compare.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("which_rows", which_rows) else 1)
