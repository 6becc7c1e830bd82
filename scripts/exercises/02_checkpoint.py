# Generated from book/02_graphs.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 265d2190cfd9).
#
# === Keep less, compute again =========================================================
#
# Build, about 20 minutes. A chain of operations keeps every result on the way until
# backward. `checkpoint(f, a)` returns a `Tensor` with the data of `f(a)`, as if `f`
# were a single operation. Of what `f` computes on the way it keeps nothing. When its
# rule is called, it runs `f` a second time and goes backward through that run alone,
# not through `a` into what was before. The gradients are the same; the memory is not.
# `f` takes a `Tensor` and returns one. It may use weights of its own: they are leaves,
# and must get their gradients, too.
#
#     python scripts/exercises/02_checkpoint.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

from ranklab.taught.graphs import Tensor, backward, mul


def checkpoint(f, a):
    """Return f(a), a Tensor whose only source is `a`; its rule runs f again."""
    # TODO: run f on a fresh leaf that holds a's data, and keep only the data
    # of what comes out.

    def rule(grad):
        # TODO: run f again, and let `grad` flow backward through it, down to
        # the fresh leaf.
        # YOUR CODE HERE
        raise NotImplementedError()

    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("checkpoint", checkpoint) else 1)
