# Generated from book/02_graphs.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 0855db243c3c).
#
# === The largest batch that fits ======================================================
#
# Fill in, about 8 minutes. You train a network of linear layers with biases, such as
# the 784-128-64-10 of the chapter, and have `memory` bytes. What stays during a step
# are the parameters, a gradient for each parameter, and the activations as counted
# above: batch × width for every width, the input's among them. Write
# `largest_batch(widths, itemsize, memory)`: the largest batch that fits, a whole
# number, or 0 if none does. With that network, 4 bytes a number and 1 000 000 bytes it
# returns 31.
#
#     python scripts/exercises/02_largest_batch.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def largest_batch(widths, itemsize, memory):
    """The largest batch size whose training step fits in memory, or 0.

    widths: of the input and of each layer's output. itemsize: bytes a
    number. memory: bytes.
    """
    # TODO: what is there whatever the batch is? And what does one sample
    # more cost?
    # YOUR CODE HERE
    raise NotImplementedError()


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("largest_batch", largest_batch) else 1)
