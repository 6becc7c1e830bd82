# Generated from book/18_tensor.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: e88a6bc8026c).
#
# === Smooth labels ====================================================================
#
# Build, about 20 minutes. Label smoothing takes a little of the right token and gives
# it to all: a loss of (1 − ε) · (−log p of the target) + ε · (the mean over all tokens
# v of −log pᵥ). `smooth_cross_entropy(logits, targets, first, vocabulary, epsilon)` is
# given this rank's columns of the logits (places, own), which begin with column `first`
# of `vocabulary`, and all targets (places,). It returns the mean over the places, on
# every rank, with the gradient of the rank's own logits. It must bear logits of
# ±10,000, and hand over at most 4 numbers for each place to collectives. With ε = 0 it
# is the loss of this chapter.
#
#     python scripts/exercises/18_smooth_cross_entropy.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist

from ranklab.taught.tensor import summed


def smooth_cross_entropy(logits, targets, first, vocabulary, epsilon):
    """Mean cross-entropy, labels smoothed; logits' columns are dealt out."""
    # TODO: the largest logit of each place; what is added up over the ranks?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("smooth_cross_entropy", smooth_cross_entropy) else 1)
