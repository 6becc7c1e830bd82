# Generated from book/18_tensor.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 30e79c4fd244).
#
# === A gated MLP ======================================================================
#
# Build, about 12 minutes. Many models have an MLP with a gate: y = D (silu(G x) · (U
# x)) + b, where the dot multiplies number by number and silu(z) = z · sigmoid(z). The
# hidden features are dealt out: `gate` and `up` are this rank's rows (own, width),
# `down` its columns (width, own); on some rank `own` may be 0. `bias` (width,) and x
# (..., width) are the same on all. `gated_mlp(x, gate, up, down, bias)` returns y on
# every rank, with gradients as of the whole for all five. One all-reduce forward, and
# one backward.
#
#     python scripts/exercises/18_gated_mlp.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

from torch import nn

from ranklab.taught.tensor import copied, summed


def gated_mlp(x, gate, up, down, bias):
    """down @ (silu(gate @ x) * (up @ x)) + bias, hidden features dealt out."""
    # TODO: where does x go into the parts; where do the terms come together?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("gated_mlp", gated_mlp) else 1)
