# Generated from book/03_training.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e5aa7ce9d387).
#
# === One gradient from unequal parts ==================================================
#
# Fill in, about 8 minutes. A batch is too large for the memory, so it is worked through
# in parts. Complete `gradient_of_parts(model, x, y, sizes)`: it returns the gradients
# of the mean loss over the whole batch, a list with a tensor for each parameter. It
# never calls the model with more than one part, nor keeps the graph of a part for
# later: a graph holds what the forward pass has computed, and those of all parts take
# as much memory as the whole batch. The parts have the sizes given, which need not be
# equal and can be 0; the model may be called with an empty part. For 6 samples and the
# sizes 3 and 3 the result is the mean of the parts' gradients; for 5 and 1 it is not.
#
#     python scripts/exercises/03_gradient_of_parts.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
from torch.nn.functional import cross_entropy


def gradient_of_parts(model, x, y, sizes):
    """The gradients of the mean cross-entropy over x and y, as a list."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    # TODO: for each part, its gradients. How much do they count? The parts
    # are x.split(sizes). The parameters may have a .grad from before: it must
    # not count, and may be overwritten.
    # YOUR CODE HERE
    raise NotImplementedError()
    return total


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("gradient_of_parts", gradient_of_parts) else 1)
