# Generated from book/17_pipeline.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: efb35b9c131b).
#
# === A backward in two parts ==========================================================
#
# Fill in, about 5 minutes. y has been computed from x and from some weights, by any
# layers. `split_backward(y, x, weights, gradient)` is given the gradient of y. It
# returns the gradient of x, and a function `later`. Until `later()` is called, the
# weights' gradients are neither computed nor is any `.grad` touched; then they are
# added to `.grad`, as a backward would. x's `.grad` is never touched. Several may be
# waiting, and `later` is called in any order, once each. A weight that y does not
# depend on keeps its `.grad` as it is. For `y = x @ w` with a gradient of ones, the
# first result is `ones @ w.T`, and `later()` adds `x.T @ ones` to `w.grad`.
#
#     python scripts/exercises/17_split_backward.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch


def split_backward(y, x, weights, gradient):
    """(The gradient of x, a function that adds the weights' to their .grad.)"""
    # TODO: one walk now, for x alone; another one later, for the weights.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("split_backward", split_backward) else 1)
