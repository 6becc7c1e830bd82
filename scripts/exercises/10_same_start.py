# Generated from book/10_sync_sgd.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: d5ea95ba010a).
#
# === The same start, from messages ====================================================
#
# Build, about 15 minutes. Write `same_start(model, src)`: afterwards every rank's model
# has the parameters and the buffers of rank `src`, in place, to the bit, whatever their
# types are (also those of parameters that are not trained). Look out: a weight need not
# be in one piece in memory, and a buffer need not be in the state dict. Use messages,
# no collective. With `src=1`, every rank ends with rank 1's model, and rank 1's stays
# as it is.
#
#     python scripts/exercises/10_same_start.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist


def same_start(model, src):
    """Give every rank, in place, rank src's parameters and buffers."""
    # TODO: who sends what to whom?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("same_start", same_start) else 1)
