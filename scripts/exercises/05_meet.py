# Generated from book/05_ranks.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 8064b9f808fc).
#
# === A rendezvous of your own =========================================================
#
# Build, about 12 minutes. `meet.py` again, from memory: write `meet(folder, card)`.
# Every rank calls it with the same fresh folder and a card of its own, a string; it
# returns the list of all cards, in the order of the ranks. Use files only, no messages.
# Other files may lie in the folder. Ranks may come late, later than any sleep. And the
# disk may be slow: a file can be there before all of it is.
#
#     python scripts/exercises/05_meet.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import time
from pathlib import Path

import torch.distributed as dist


def meet(folder, card):
    """Leave this rank's card; return the cards of all, in rank order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    folder = Path(folder)
    # TODO: leave a card, wait until all are there, read them.
    # Sleep a little between two looks.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("meet", meet) else 1)
