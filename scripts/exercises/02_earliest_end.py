# Generated from book/02_graphs.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 17349d313642).
#
# === When is it done? =================================================================
#
# Fill in, about 6 minutes. The steps of the chapter are equally long; operations are
# not. Write `earliest_end(graph, seconds)`: for every operation, the time at which it
# can be done, if workers are never lacking. For the formula of the chapter with 1
# second for each operation, but 5 for `k`, it returns `{"z": 1.0, "k": 5.0, "u": 2.0,
# "t": 6.0}`.
#
#     python scripts/exercises/02_earliest_end.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

from ranklab.taught.graphs import schedule


def earliest_end(graph, seconds):
    """When can each operation of a graph be done, if workers are never lacking?

    graph: name -> (function, *names of its inputs), as for `schedule`.
    seconds: name -> how long that operation takes.
    Returns name -> when it is done, in seconds.
    """
    end = {}
    for names in schedule(graph):
        for name in names:
            # TODO: when does it start, and so when does it end? Not all
            # inputs are operations.
            # YOUR CODE HERE
            raise NotImplementedError()
    return end


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("earliest_end", earliest_end) else 1)
