# Generated from book/02_graphs.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 62a0a93ee824).
#
# === Keep less, compute again =========================================================
#
# Build, about 15 minutes. A chain of operations keeps every result on the way until
# backward. `checkpoint(f, a)` returns `f(a)` as if it were a single operation: of what
# `f` computes on the way it keeps nothing, and when its rule is called it runs `f` a
# second time and goes backward through that. The gradients are the same; the memory is
# not. `f` takes a `Tensor` and returns one; it may use weights of its own, and their
# gradients must come out, too.
#
#     python scripts/exercises/02_checkpoint.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

from ranklab.taught.graphs import Tensor, backward, mul


def checkpoint(f, a):
    """Return f(a), a Tensor whose only source is `a`; the rule runs f again."""
    # TODO: run f on a fresh leaf that holds a's data, and keep only the data of what comes out.

    def rule(grad):
        # TODO: run f again, and let `grad` flow backward through it, down to the fresh leaf.
        # YOUR CODE HERE
        raise NotImplementedError()

    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("checkpoint", checkpoint) else 1)
