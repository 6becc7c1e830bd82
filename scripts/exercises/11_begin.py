# Generated from book/11_ddp.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: fc0f83b571b4).
#
# === One number, many seeds ===========================================================
#
# Fill in, about 10 minutes. A run is given one seed, and everything random must follow
# from it. `begin(seed, epoch, n, build)` returns three things: the model that `build()`
# makes, with first weights equal on all ranks, although nobody sends them; the list of
# the samples of this rank in this epoch, from `DistributedSampler` for n samples, with
# `seed` as its seed; and twelve numbers of noise, `torch.randn(12)`, other ones on each
# rank. `build` draws from PyTorch's own generator, and so shall the noise. The same
# seed gives the same everything; another seed gives another model, and noise that no
# rank has with the seeds nearby. Another epoch changes the samples alone.
#
#     python scripts/exercises/11_begin.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def begin(seed, epoch, n, build):
    """Return (model, this rank's samples, twelve numbers of noise)."""
    # TODO: which seed for the weights?
    # YOUR CODE HERE
    raise NotImplementedError()
    model = build()
    sampler = DistributedSampler(range(n))
    # TODO: the seed of the sampler, and the epoch.
    # YOUR CODE HERE
    raise NotImplementedError()
    # TODO: which seed for the noise?
    # YOUR CODE HERE
    raise NotImplementedError()
    return model, list(sampler), torch.randn(12)


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("begin", begin) else 1)
