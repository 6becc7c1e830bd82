# Generated from book/04_feeding.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 760e3ce7eb53).
#
# === A stream, each number once =======================================================
#
# Fill in, about 10 minutes. `Shared`, above, gave each worker every w-th number. Files
# are read faster in one piece. Complete `EachOnce(start, stop)`, a stream of the
# numbers from `start` up to but without `stop`: every number comes from one worker
# only, the share of each worker is one piece of the stream, in the order of the
# workers, and no two shares differ by more than one number. Which are the longer ones
# is yours to choose. `EachOnce(0, 10)` with 2 workers: 0 to 4 from the first, 5 to 9
# from the second. It must also work with no worker, and with more workers than numbers.
#
#     python scripts/exercises/04_each_once.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

from torch.utils.data import IterableDataset, get_worker_info


class EachOnce(IterableDataset):
    """The numbers from start up to stop, each from one worker only."""

    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __iter__(self):
        # TODO: which worker is this, of how many? Its piece: from `first` up
        # to but without `last`.
        # YOUR CODE HERE
        raise NotImplementedError()
        return iter(range(first, last))


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("each_once", EachOnce) else 1)
