# Generated from book/09_mpi.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: c1abbbccf1e8).
#
# === A head and a body ================================================================
#
# Fill in, about 8 minutes. Rank `root` has a tensor `x`, the others have `None`.
# `head_and_body(comm, x, root)` returns that tensor on every rank. What the others must
# know to bring a box is small: send it as an object. The numbers may be many: send them
# as a buffer. `x` may have any shape, be transposed, and be of any type of PyTorch.
#
#     python scripts/exercises/09_head_and_body.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch


def head_and_body(comm, x, root):
    """Return rank root's tensor on every rank; its numbers as a buffer."""
    body = x.contiguous() if comm.rank == root else None
    # TODO: the head goes first, as an object; then who has no body brings a box,
    # and the body follows.
    # YOUR CODE HERE
    raise NotImplementedError()
    return body


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("head_and_body", head_and_body) else 1)
