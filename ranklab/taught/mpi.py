# Generated from book/09_mpi.md by `make forms`: edit the manuscript, not this file.

"""MPI: the same ideas under an older name: what chapter 09_mpi teaches."""

import torch


def ring_over(x, me, n, sendrecv):
    """Replace x, flat, by the sum over n ranks; me: this one's number.

    sendrecv(outgoing, dst, incoming, src) is how messages are exchanged.
    """
    left, right = (me - 1) % n, (me + 1) % n
    parts = x.tensor_split(n)
    box = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        outgoing, mine = parts[(me - step) % n], parts[(me - step - 1) % n]
        incoming = box[: len(mine)] if step < n - 1 else mine
        sendrecv(outgoing, right, incoming, left)
        if step < n - 1:
            mine += incoming
