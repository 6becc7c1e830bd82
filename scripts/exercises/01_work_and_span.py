# Generated from book/01_matmul.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 31f31dc9ae57).
#
# === Work and span of any shape =======================================================
#
# Fill in, about 5 minutes. The chapter counted square matrices. Now $A$ is $n \times m$
# and $B$ is $m \times p$. Write `work_and_span(n, m, p)`, which returns the number of
# operations (multiplications and additions, none of them to a zero) and the number of
# steps if each entry is summed as a tree: two whole numbers. For a 2 × 8 matrix times
# an 8 × 2 one it returns `(60, 4)`.
#
#     python scripts/exercises/01_work_and_span.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import math


def work_and_span(n, m, p):
    """Count an (n, m) matrix times an (m, p) one.

    Returns (operations, steps), two whole numbers.
    """
    # TODO: how many entries are there, and what does each one cost?
    # YOUR CODE HERE
    raise NotImplementedError()
    return work, span


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("work_and_span", work_and_span) else 1)
