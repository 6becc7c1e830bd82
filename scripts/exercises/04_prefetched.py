# Generated from book/04_feeding.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 92f38755785b).
#
# === Your own prefetcher ==============================================================
#
# Build, about 20 minutes. Write `prefetched(batches, depth)`: a generator that gives
# what the iterable `batches` gives, in order, while a thread already takes the next
# ones from it, up to `depth` of them, and perhaps one more for which there is no room
# yet. It may begin with the first item that is asked for. `batches` may be empty or
# endless, a batch may be anything, and an error that `batches` raises must reach
# whoever takes from the generator, after the batches that came before it.
# `list(prefetched([10, 11, 12, 13, 14], 2))` is `[10, 11, 12, 13, 14]`. Of a
# `queue.Queue(depth)`, `put(item)` waits while it is full, and `get()` while it is
# empty; `threading.Thread(target=f, daemon=True).start()` runs `f()` in a thread.
#
#     python scripts/exercises/04_prefetched.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

import queue
import threading


def prefetched(batches, depth):
    """Give the items of `batches`; a thread takes up to `depth` more."""
    # TODO: a queue of at most `depth`, a thread that fills it, a loop that
    # empties it.
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("prefetched", prefetched) else 1)
