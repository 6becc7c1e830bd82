# Generated from book/02_graphs.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 39b9702d873b).
#
# === A rule of your own ===============================================================
#
# Build, about 10 minutes. Give our autograd an operation that it lacks. `scale_rows(a,
# s)` multiplies row $i$ of `a` by the number `s[i]`. It returns a `Tensor` whose rule
# gives a gradient for each source, in the shape of that source. Leave the data of `a`
# and `s` as they are.
#
#     python scripts/exercises/02_scale_rows.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np

from ranklab.taught.graphs import Tensor


def scale_rows(a, s):
    """a (m, n) with row i multiplied by s[i]; s has m entries.

    Both are Tensors; returns one.
    """
    # TODO: the value, and a rule: from the gradient of the result to those
    # of a and s.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("scale_rows", scale_rows) else 1)
