# Generated from book/17_pipeline.md by `make forms`, to work in: right here, or in a copy.
# Once this file is changed, `make forms` leaves it alone (as generated: 4c1f28f3d60d).
#
# === Under a limit ====================================================================
#
# Build, about 25 minutes. A stage has memory for so many activations.
# `within_limit(stages, micro_batches, limit)` returns a schedule of F and B that
# `check_schedule` accepts, in which no stage holds more than `limit` micro-batches (at
# least 1), and which is as fast as that allows, with a forward of 1 s, a backward of 2
# s, and messages that take no time: the check compares its end with the best one. With
# `limit` 1, one micro-batch at a time goes there and back; with as many as there are
# stages, or more, 1F1B will do. Four stages, 6 micro-batches and a limit of 2 can be
# done in 39 s. 1F1B with a shorter warm-up takes 51 s. (Why, is for you to find out.)
#
#     python scripts/exercises/17_within_limit.py
#
# says what is missing or wrong (in the book's environment: `source .venv/bin/activate`).

def within_limit(stages, micro_batches, limit):
    """A schedule in which no stage ever holds more than `limit` activations."""
    # TODO: when can a micro-batch start at stage 0, and when is it where?
    # YOUR CODE HERE
    raise NotImplementedError()
    return schedule


if __name__ == "__main__":
    from ranklab.exercises import check

    raise SystemExit(0 if check("within_limit", within_limit) else 1)
