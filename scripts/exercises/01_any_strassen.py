# Generated from book/01_matmul.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 3145aab47e90).
#
# === Strassen for any size ============================================================
#
# Build, about 15 minutes. Cut $A$ into the blocks $a, b$ above $c, d$, and $B$ into $e,
# f$ above $g, k$. Strassen's seven products are $p = (a+d)(e+k)$, $q = (c+d)\,e$, $r =
# a\,(f-k)$, $s = d\,(g-e)$, $t = (a+b)\,k$, $u = (c-a)(e+f)$ and $v = (b-d)(g+k)$. The
# blocks of $AB$ are $p+s-t+v$ and $r+t$ above $q+s$ and $p-q+r+u$. Each of the seven
# can be made in the same way. Write `any_strassen(A, B, leaf, multiply)` for square
# matrices of any size: cut down to blocks of at most `leaf`, and no further, and give
# those to `multiply`. A 3 × 3 product with `leaf=2` calls it 7 times. Leave `A` and `B`
# as they are.
#
#     python scripts/exercises/01_any_strassen.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import numpy as np


def any_strassen(A, B, leaf, multiply):
    """Return A @ B for square arrays of any size, by Strassen's recursion.

    leaf: blocks of at most this size go to multiply(X, Y).
    """
    n = len(A)
    if n <= leaf:
        return multiply(A, B)
    # TODO: make the size even with zeros, cut, recurse seven times, join,
    # cut the zeros off.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("any_strassen", any_strassen) else 1)
